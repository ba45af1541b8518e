"""What an append put off, done in the background: documents that were brief are written whole.

An append is found by its words at once. What takes long to find in the work of tools, see
`tool_text`, is added when nothing has been appended for a moment, before the document gets its
vector. So what was put off by a process that died is found among the documents without one.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Iterable, Iterator, Sequence
from typing import NamedTuple

from perdure.history.log_records import SessionRecord, TurnPiece
from perdure.history.turn_log import Written
from perdure.recall.indexing.embedding import Waiting
from perdure.recall.indexing.groups import Groups
from perdure.recall.indexing.passages import (
    Moment,
    Thread,
    brief_among,
    document,
    moments,
    place_of,
)
from perdure.storage.store import Store
from perdure.storage.transaction import Transaction

#: Appends that wait in memory at most, and that are completed in one transaction.
_MOST, _TOGETHER = 4_096, 16


class Brief(NamedTuple):
    """What an append wrote, some of it briefly."""

    session: SessionRecord
    #: What was known of its turn before it.
    thread: Thread
    pieces: tuple[str, ...]
    #: Of the documents that are brief.
    places: frozenset[int]


def brief(written: Written, before: Thread, places: Iterable[int]) -> Brief:
    """What is to be known of an append to complete its documents."""
    first = written.rounds[0]
    thread = Thread(before.turn, before.tags, before.fetching, {first.round: first.before})
    pieces = sorted(piece.id for piece in written.pieces)
    return Brief(written.session, thread, tuple(pieces), frozenset(places))


class Completing:
    """Completes what appends of this process wrote briefly."""

    def __init__(self, store: Store, groups: Groups) -> None:
        self._store, self._groups = store, groups
        self._waiting: deque[Brief] = deque()

    def add(self, append: Brief) -> bool:
        """Complete it before long; False if too many wait. Nothing is lost then, only slower."""
        if len(self._waiting) >= _MOST:
            return False
        self._waiting.append(append)
        return True

    async def complete(self) -> AsyncIterator[list[Waiting]]:
        """Write what waits, some at a time; what can be embedded then."""
        while self._waiting:
            some = [self._waiting.popleft() for _ in range(min(_TOGETHER, len(self._waiting)))]
            step = _Step(self._store, self._groups, some)
            try:
                await self._store.transact(step.take)
            except asyncio.CancelledError:  # not what it is about: whoever goes on has it again
                self._waiting.extendleft(reversed(some))
                raise
            yield step.waiting


class _Step:
    """Some appends, completed in one transaction. Nothing is written for what was forgotten."""

    def __init__(self, store: Store, groups: Groups, appends: Sequence[Brief]) -> None:
        self._store, self._groups, self._appends = store, groups, appends
        self.waiting: list[Waiting] = []

    async def take(self, transaction: Transaction) -> None:
        """Read and write. May run again: others may have forgotten what it read."""
        self.waiting = []
        pieces = transaction.collection(TurnPiece)
        for append in self._appends:
            number = await self._groups.relied_on(transaction, append.session.id)
            if number is None:
                continue
            places = await brief_among(self._store, [*append.places])
            there = [piece for id in append.pieces if (piece := await pieces.get(id)) is not None]
            for moment in _moments(append, there):
                place = place_of(number, moment)
                if place in places:
                    made = moment.passage()
                    transaction.include(document(place, made))
                    self.waiting.append(Waiting(place, made.plain))
                    await asyncio.sleep(0)


def _moments(append: Brief, pieces: Sequence[TurnPiece]) -> Iterator[Moment]:
    before = append.thread
    thread = Thread(before.turn, before.tags, before.fetching, dict(before.said))
    return moments(pieces, thread, append.session.facts)
