"""Providers' prompt caches: what of a request is read, what is written, what it costs.

A request is a list of blocks. The cache holds the request before; the common beginning is read, the
rest is new. Providers differ in figures only, so their rules are data.

Assumed in favour of every policy: breakpoints are set well, and nothing expires between two
requests. Only the request before is remembered: a policy that went back to an older one would do
better in reality.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import msgspec

from perdure.core.errors import InvalidInput
from perdure.core.messages import Usage

_STRIDE = 256  # Blocks compared at once: lists of the same objects compare fast.


class CacheBlock(NamedTuple):
    """A part of a request: blocks with the same key are the same bytes."""

    key: bytes
    tokens: int


class Rules(msgspec.Struct, frozen=True, kw_only=True):
    """What a provider does, and charges as a multiple of its price for plain input."""

    name: str
    #: Whose price list holds, and the model in it that stands for the others.
    provider: str
    model: str
    read: float
    write: float | None  # None: what is not read costs the same whether it is kept or not.
    minimum: int = 1_024  # A shorter beginning is neither read nor written.
    step: int = 1  # What is read is a multiple of this.
    for_an_hour: bool = False  # What is written is kept for an hour.


RULES: dict[str, Rules] = {
    rules.name: rules
    for rules in (
        Rules(
            name="anthropic",
            provider="anthropic",
            model="claude-opus-5",
            read=0.1,
            write=1.25,
        ),
        Rules(
            name="anthropic-1h",
            provider="anthropic",
            model="claude-opus-5",
            read=0.1,
            write=2.0,
            for_an_hour=True,
        ),
        # Up to GPT-5.5.
        Rules(
            name="openai",
            provider="openai",
            model="gpt-5.5",
            read=0.1,
            write=None,
            step=128,
        ),
        Rules(
            name="openai-5.6",
            provider="openai",
            model="gpt-5.6",
            read=0.1,
            write=1.25,
            step=128,
        ),
    )
}


def rules_for(name: str) -> Rules:
    """Raises `InvalidInput` if there are none of this name."""
    if name not in RULES:
        raise InvalidInput(
            f"There are no cache rules called {name!r}.", hint=f"Use one of {', '.join(RULES)}."
        )
    return RULES[name]


class Charge(NamedTuple):
    """The input tokens of one request, by rate."""

    read: int
    written: int
    plain: int

    @property
    def tokens(self) -> int:
        return self.read + self.written + self.plain

    def plus(self, other: Charge) -> Charge:
        return Charge(
            self.read + other.read, self.written + other.written, self.plain + other.plain
        )

    def units(self, rules: Rules) -> float:
        """What it costs, in tokens of plain input."""
        write = 1.0 if rules.write is None else rules.write
        return self.read * rules.read + self.written * write + self.plain

    def usage(self, rules: Rules) -> Usage:
        native = (
            {"cache_creation": {"ephemeral_1h_input_tokens": self.written}}
            if rules.for_an_hour
            else {}
        )
        return Usage(
            input=self.tokens,
            output=0,
            cache_read=self.read,
            # Where writing is not charged for, price lists have no rate for it.
            cache_write=0 if rules.write is None else self.written,
            native=native,
        )


class Sent(NamedTuple):
    """One request: its charge, and how much of it is the request before."""

    charge: Charge
    extends: bool  # All of the request before stands at the beginning of this one.
    tokens: int  # Tokens of its blocks.


class SimulatedCache:
    """A provider's cache for one conversation. `system` tokens are in front of every request."""

    def __init__(self, rules: Rules, system: int = 0) -> None:
        self._rules = rules
        self._system = system
        self._before: Sequence[CacheBlock] = ()
        self._tokens = 0  # of the blocks before
        self._warm = False

    def send(self, blocks: Sequence[CacheBlock], behind: int = 0) -> Sent:
        """Send a request; `behind` tokens at its end are new each time and not worth keeping. Takes
        time for what is new only.
        """
        rules, before = self._rules, self._before
        common = common_blocks(before, blocks)
        shared = self._tokens - sum(block.tokens for block in before[common:])
        tokens = shared + sum(block.tokens for block in blocks[common:])
        extends = common == len(before)
        kept = self._system + tokens
        read = self._readable(self._system + shared) if self._warm else 0
        if kept < rules.minimum or rules.write is None:
            charge = Charge(read, 0, kept - read + behind)
        else:
            charge = Charge(read, kept - read, behind)
        self._before, self._tokens, self._warm = blocks, tokens, True
        return Sent(charge, extends, tokens)

    def _readable(self, tokens: int) -> int:
        if tokens < self._rules.minimum:
            return 0
        return tokens - tokens % self._rules.step


def common_blocks(first: Sequence[CacheBlock], second: Sequence[CacheBlock]) -> int:
    most = min(len(first), len(second))
    at = 0
    while at < most:
        end = min(at + _STRIDE, most)
        if first[at:end] != second[at:end]:
            while first[at] == second[at]:
                at += 1
            return at
        at = end
    return most
