"""Histories of known sizes, made by hand."""

from __future__ import annotations

from collections.abc import Sequence

from perdure.core.turns import Position
from perdure.gateway.prices import Prices
from perdure.simulation.policy_replay import Bill
from perdure.simulation.prompt_cache import CacheBlock, Rules
from perdure.simulation.replay_input import Call, ReplaySetting

#: No minimum, no steps: every token counts.
PLAIN = Rules(name="plain", provider="nobody", model="none", read=0.1, write=1.25, minimum=0)
BILL = Bill(PLAIN, Prices.load(), "none")


def call(number: int, prompt: int = 10, reply: int = 20, result: int = 70, masked: int = 5) -> Call:
    """A call whose prompt, reply and tool's output take so many tokens."""
    blocks = tuple(
        CacheBlock(f"{what} {number}".encode(), tokens)
        for what, tokens in (("prompt", prompt), ("reply", reply), ("result", result))
    )
    return Call(
        position=Position(number + 1, 1),
        messages=(),
        blocks=blocks,
        masked=(*blocks[:2], CacheBlock(f"masked {number}".encode(), masked)),
        opening=1,
    )


def calls(count: int) -> list[Call]:
    return [call(number) for number in range(count)]


def setting(history: Sequence[Call], budget: int = 10**9, injection: int = 0) -> ReplaySetting:
    return ReplaySetting(calls=history, budget=budget, injection=injection)
