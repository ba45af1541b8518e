"""The judge: what of the candidates is put beside a prompt in full, and what as a reminder.

A fast model decides, or an algorithm: by rank, until the room for each kind is taken. Either way
the same caps hold (`RecallConfig`), so a model that wants everything gets no more than fits.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

import msgspec

from perdure.config.settings import RecallConfig
from perdure.core.errors import BadAnswer
from perdure.recall.steps import prompts
from perdure.recall.steps.prompts import Case
from perdure.recall.steps.showing import Shown
from perdure.recall.values import Candidate

if TYPE_CHECKING:
    from perdure.gateway.gateway import Gateway

#: The kind of work, for the gateway's books.
TASK = "recall-judge"
#: Candidates that a judge is shown.
MOST = 40
#: Without a model, a reference layer needs this score: it takes much room.
_LAYER = 0.25
#: A reminder takes about so many tokens beside its gist: age, key, the call that fetches it.
_TICKLER = 25


class Choice(msgspec.Struct, frozen=True):
    """What is shown, by place: in full, and as a reminder; the most useful first."""

    full: tuple[int, ...] = ()
    ticklers: tuple[int, ...] = ()


def by_algorithm(
    candidates: Iterable[Candidate], doubted: Collection[int], triggered: Collection[int] = ()
) -> Choice:
    """All in full, in their order, but for what a filter doubts and weak reference layers.

    A layer counts if its score is high or, in `triggered`, a word of the prompt calls for it.
    """
    full, ticklers = list[int](), list[int]()
    for each in candidates:
        weak = each.kind == "reference" and each.score < _LAYER and each.place not in triggered
        (ticklers if weak or each.place in doubted else full).append(each.place)
    return Choice(tuple(full), tuple(ticklers))


def capped(
    choice: Choice,
    candidates: Mapping[int, Candidate],
    full: Mapping[int, Shown],
    tiny: Mapping[int, Shown],
    *,
    config: RecallConfig,
    limit: int,
) -> Choice:
    """What of a choice fits. What does not fit in full becomes a reminder, if that fits."""
    room = {
        "turn": config.full_tokens,
        "memory": config.memory_tokens,
        "reference": config.reference_tokens,
    }
    whole, rest = list[int](), list[int]()
    for place in choice.full[:limit]:
        kind, shown = candidates[place].kind, full.get(place)
        if shown is not None and shown.tokens <= room[kind]:
            room[kind] -= shown.tokens
            whole.append(place)
        else:
            rest.append(place)
    left, ticklers, reminded = config.tickler_tokens, list[int](), set[str]()
    for place in (*rest, *choice.ticklers):
        tokens = _TICKLER + (tiny[place].tokens if place in tiny else 0)
        few = len(ticklers) < config.pointers and len(whole) + len(ticklers) < limit
        about = _about(candidates[place])
        if few and tokens <= left and about not in reminded:
            left -= tokens
            reminded.add(about)
            ticklers.append(place)
    return Choice(tuple(whole), tuple(ticklers))


def _about(candidate: Candidate) -> str:
    """What a reminder is about: rounds of one turn have the same gist."""
    return f"{candidate.session}#{candidate.turn}" if candidate.turn else candidate.key


class Judge:
    """Asks the models that are configured for `judge`."""

    def __init__(self, gateway: Callable[[], Gateway]) -> None:
        self._gateway = gateway

    async def choose(self, case: Case, seconds: float) -> Choice:
        """What a model chooses. It is shown the first `MOST` candidates that have a text.

        Numbers that it was not shown are ignored. Raises `BadAnswer` if the answer is not in the
        form that was asked for, or names nothing but such numbers; and as `Gateway.complete`.
        """
        shown = case.readable(MOST)
        request = prompts.judging(case.prompt, case.lately, [case.exhibit(each) for each in shown])
        reply = await self._gateway().complete(request, case.ask("judge", TASK, seconds))
        return _chosen(prompts.judgement(reply.text), shown)


def _chosen(said: prompts.Judgement, shown: Sequence[Candidate]) -> Choice:
    """The choice that numbers mean. Each candidate is taken once, where it is named first."""
    named = [*said.full, *said.layers, *said.ticklers]
    known = {number: shown[number - 1] for number in named if 0 < number <= len(shown)}
    if named and not known:
        raise BadAnswer(
            "The judge names only records that it was not shown.",
            hint="Use a model that follows instructions.",
        )
    layers = [n for n in said.layers if n in known and known[n].kind == "reference"]
    full = dict.fromkeys([n for n in said.full if n in known] + layers)
    ticklers = dict.fromkeys(n for n in said.ticklers if n in known and n not in full)
    return Choice(
        tuple(known[number].place for number in full),
        tuple(known[number].place for number in ticklers),
    )
