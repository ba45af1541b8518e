"""Some pieces of a session's log, and their documents, written in one transaction."""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Sequence
from time import perf_counter

from perdure.history.records import Piece, SessionRecord
from perdure.recall.indexing.documents import document, place_of
from perdure.recall.indexing.embedding import Waiting
from perdure.recall.indexing.groups import Groups
from perdure.recall.indexing.passages import Thread, moments
from perdure.recall.places import INDEX
from perdure.search.engine import engine_of
from perdure.storage.store import Store
from perdure.storage.transaction import Transaction

#: Pieces that are read, and whose documents are written, together.
_STEP = 32
#: Seconds after which others get a turn on the event loop.
_SLICE = 0.004


class Step:
    """Some pieces of a session, and the documents that are missing for them.

    With `anew`, those of these places are written again, and if it is None, all.
    """

    def __init__(
        self,
        store: Store,
        groups: Groups,
        record: SessionRecord,
        after: str,
        thread: Thread,
        *,
        anew: Collection[int] | None,
    ) -> None:
        self._anew = anew
        self._store = store
        self._groups = groups
        self._record = record
        self._after = after
        self._before = thread
        self.thread = thread
        self.pieces: list[Piece] = []
        self.waiting: list[Waiting] = []

    async def take(self, transaction: Transaction) -> None:
        """Read and write. May run again: others may have forgotten what it read."""
        self.waiting = []
        self.thread = Thread(
            self._before.turn, self._before.tags, self._before.fetching, dict(self._before.said)
        )
        pieces = transaction.collection(Piece)
        self.pieces = await pieces.behind(self._after, f"{self._record.id}/", limit=_STEP)
        found = list(moments(self.pieces, self.thread, self._record.facts))
        if not found:
            return
        number = await self._groups.relied_on(transaction, self._record.id)
        if number is None:
            return
        places = [place_of(number, moment) for moment in found]
        there = await self._there(places)
        last = perf_counter()
        for place, moment in zip(places, found, strict=True):
            if place in there:
                continue
            made = moment.passage()
            if made.plain:
                transaction.include(document(place, made))
                self.waiting.append(Waiting(place, made.plain))
            if perf_counter() - last > _SLICE:
                await asyncio.sleep(0)
                last = perf_counter()

    async def _there(self, places: Sequence[int]) -> frozenset[int]:
        """The places that need nothing written."""
        if self._anew is None:
            return frozenset()
        if self._anew:
            return frozenset(places).difference(self._anew)
        notes = await engine_of(self._store.adapter).notes(INDEX.name, places)
        return frozenset(p for p, note in zip(places, notes, strict=True) if note is not None)
