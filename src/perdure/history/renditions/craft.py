"""Makes the texts of one round or one turn, by the algorithm, without holding up the event loop.

The algorithm is loaded when something is first made: who only reads a bank does not wait for it.
"""

from __future__ import annotations

import asyncio
import importlib
import logging
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import TypeVar

from perdure.core.messages import Message, Text, ToolCall, ToolResult
from perdure.core.tokens import Counter, count_messages
from perdure.history.manifest import Place
from perdure.history.renditions import packing
from perdure.history.renditions.records import TinyVariant, Variant
from perdure.history.renditions.sources import Sources
from perdure.history.tags import escape
from perdure.history.token_counts import TokenCounts
from perdure.jobs import Runner

#: Characters above which a round is worked on in a thread: it would take longer than a slice.
_HEAVY = 4_096
#: Seconds for which a thread may keep the interpreter to itself while we work in another.
_TURN = 0.0005
#: Tokens of a turn at T that is merely cut.
_TINY = 40

_log = logging.getLogger(__name__)

_ALGORITHM = "perdure.history.renditions.algorithm"

R = TypeVar("R")


class Craft:
    """Makes renditions; stores nothing."""

    def __init__(self, sources: Sources, counts: TokenCounts, jobs: Runner) -> None:
        self._sources = sources
        self._counts = counts
        self.jobs = jobs
        self._is_loaded = False

    @property
    def counter(self) -> Counter:
        return self._counts.counter

    async def variant(self, messages: tuple[Message, ...], place: Place) -> Variant:
        """S and C of a round, made by the algorithm."""
        full = await self._sources.full(messages)
        return await self._worked(_weight(full), lambda: _variant_of(full, place, self.counter))

    async def tiny(self, rounds: Iterable[tuple[Message, ...]]) -> TinyVariant:
        """T of a turn, made by the algorithm."""
        full = [await self._sources.full(messages) for messages in rounds]
        return await self._worked(sum(map(_weight, full)), lambda: _tiny_of(full, self.counter))

    async def tokens(self, messages: tuple[Message, ...]) -> int:
        """What a round takes raw."""
        full = await self._sources.full(messages)
        return await self._worked(_weight(full), lambda: count_messages(self.counter, full))

    async def _worked(self, weight: int, work: Callable[[], R]) -> R:
        """The result of work on so many characters, without holding others up."""
        if not self._is_loaded:
            await asyncio.to_thread(importlib.import_module, _ALGORITHM)
            self._is_loaded = True
        if weight > _HEAVY:
            with _sharing():
                return await asyncio.to_thread(work)
        await self.jobs.breathe()
        return work()


class _Sharing:
    """While threads of ours work, others get the interpreter ten times as often.

    Whoever waits for it otherwise waits 5 ms each time, and an append waits several times.
    """

    def __init__(self) -> None:
        self._threads = 0
        self._usual = 0.0

    @contextmanager
    def __call__(self) -> Iterator[None]:
        if not self._threads:
            self._usual = sys.getswitchinterval()
            sys.setswitchinterval(min(self._usual, _TURN))
        self._threads += 1
        try:
            yield
        finally:
            self._threads -= 1
            if not self._threads:
                sys.setswitchinterval(self._usual)


_sharing = _Sharing()


def _variant_of(full: tuple[Message, ...], place: Place, counter: Counter) -> Variant:
    from perdure.history.renditions import algorithm

    try:
        smooth, compact = map(packing.clean, algorithm.both(full, str(place)))
    except Exception:  # noqa: BLE001 (one text must not keep all others from theirs)
        _log.exception("%s could not be shortened, and is cut", place)
        whole = packing.clean(algorithm.raw(full))
        smooth, compact = (
            algorithm.truncate(whole, counter.count(whole) * share // 100, counter)
            for share in (50, 15)
        )
    return packed_variant(full, smooth, compact, counter, algorithm.RECIPE)


def packed_variant(
    full: tuple[Message, ...], smooth: str, compact: str, counter: Counter, recipe: str
) -> Variant:
    """The variant that holds these texts of a round. They have to be `packing.clean`."""
    return Variant(
        packing.pack(smooth, compact, packing.ground(full)),
        counter.count(escape(smooth)),
        counter.count(escape(compact)),
        len(full),
        recipe,
    )


def _tiny_of(full: Sequence[tuple[Message, ...]], counter: Counter) -> TinyVariant:
    from perdure.history.renditions import algorithm

    try:
        text = packing.clean(algorithm.tiny(full, counter))
    except Exception:  # noqa: BLE001 (as above)
        _log.exception("a turn could not be shortened, and is cut")
        whole = packing.clean(algorithm.raw([each for said in full for each in said]))
        text = algorithm.truncate(whole, _TINY, counter)
    return TinyVariant(text, counter.count(escape(text)), sum(map(len, full)), algorithm.RECIPE)


def _weight(messages: Iterable[Message]) -> int:
    """About how many characters there are to work on."""
    total = 0
    for message in messages:
        for part in message.parts:
            if isinstance(part, Text):
                total += len(part.text)
            elif isinstance(part, ToolCall):
                total += len(part.arguments)
            elif isinstance(part, ToolResult):
                total += sum(len(each.text) for each in part.content if isinstance(each, Text))
    return total
