"""Why a prompt is as it is: for each block, what it stands for, at which level, and why."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import groupby
from typing import TYPE_CHECKING, Literal

import msgspec

from perdure.core.levels import Level
from perdure.core.turns import Position
from perdure.history.shown import Native
from perdure.history.strategies.planning import LEAD
from perdure.history.tags import name_of

if TYPE_CHECKING:
    from perdure.context.context import Context


class Explained(msgspec.Struct, frozen=True):
    """One block of a prompt."""

    kind: Literal["message", "block", "native", "injection", "prompt"]
    #: ``T-50-through-100``, ``T-183``; the turn that it is for, if it was injected.
    name: str
    #: None for what is not history.
    level: Level | None
    tokens: int
    #: What it stands for takes, in o200k tokens.
    raw: int
    why: str


def explain(context: Context) -> list[Explained]:
    """What the prompt is made of, in the order in which it is sent."""
    shown = context.shown
    blocks = [
        (
            (each.element.first.turn, each.element.first.round),
            Explained(
                "block",
                each.element.name,
                each.element.level,
                each.element.tokens,
                each.element.raw,
                each.why,
            ),
        )
        for each in shown.blocks
    ]
    injected = [
        ((each.turn, 0), Explained("injection", f"T-{each.turn}", None, each.tokens, 0, _SENT))
        for each in shown.injected
        if context.injection is None or each.turn != context.injection.turn
    ]
    natives = [
        ((each[0].place.turn, each[0].place.round), _native(each, context))
        for each in _turns(shown.rounds)
    ]
    apart = [((turn, 1), each) for turn, each in _apart(context)]
    found = sorted([*blocks, *injected, *apart, *natives], key=lambda each: each[0])
    lead = list[Explained]()
    if shown.blocks or shown.begins_inside:
        why = "the message that begins the window"
        lead = [Explained("message", "", None, LEAD, 0, why)]
    return [*lead, *(each for _, each in found), *_new(context)]


_SENT = "sent with this turn's prompt; stays until the next epoch"


def _turns(rounds: tuple[Native, ...]) -> Iterator[list[Native]]:
    """Rounds of one turn together; those that are shown in part by themselves."""
    for _, of in groupby(rounds, lambda each: (each.place.turn, each.reduced and each.place)):
        yield list(of)


def _native(of: list[Native], context: Context) -> Explained:
    turn, first, last = of[0].place.turn, of[0].place, of[-1].place
    turn_of = [each for each in context.shown.rounds if each.place.turn == turn]
    if first.round == 1 and len(of) == len(turn_of):
        name = f"T-{turn}"
    else:
        name = name_of(Position(turn, first.round), Position(turn, last.round))
    if of[0].reduced:
        why = "too large for the budget: shown in part"
    elif turn == context.shown.open_turn:
        why = "under way"
    else:
        why = "recent: as it was said"
    tokens, raw = sum(each.tokens for each in of), sum(each.raw for each in of)
    return Explained("native", name, "R", tokens, raw, why)


def _apart(context: Context) -> Iterator[tuple[int, Explained]]:
    """The prompt that stands apart from its round."""
    shown = context.shown
    if shown.prompt and shown.open_turn is not None:
        tokens = context.encoder.tokens(shown.prompt)
        why = "its turn was under way at the last epoch: as it was said"
        prompt = Explained("prompt", f"T-{shown.open_turn}", "R", tokens, tokens, why)
        yield shown.open_turn, prompt


def _new(context: Context) -> Iterator[Explained]:
    name, injection = f"T-{context.turn}", context.injection
    if injection is not None and injection.text:
        why = "board, memory and reminder for this prompt"
        yield Explained("injection", name, None, injection.tokens, 0, why)
    if context.prompt:
        tokens = context.prompt_tokens
        yield Explained("prompt", name, "R", tokens, tokens, "the new prompt: never shortened")
