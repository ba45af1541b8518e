"""Filling the index from what it is about, where documents are missing or all are made anew.

What `pending_turns` does not know of: turns of a killed process, and of a bank that is older than
the index, or was restored from a backup, which has none; those that were written while recall was
switched off; an index that was damaged. Walking goes on beside
appends and searches, in small transactions, each of which fails if what it read was forgotten
meanwhile. It can be killed at any place, and repeated: what is there is not written again, unless
all is to be made anew, and then each document takes the place of the one before it.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Mapping, Sequence
from time import perf_counter
from typing import Annotated

import msgspec

from perdure.core.errors import Conflict, PerdureError
from perdure.history.log_records import SessionRecord, TurnPiece
from perdure.recall.indexing.groups import Groups
from perdure.recall.indexing.passage_vectors import Embeddings, Waiting
from perdure.recall.indexing.passages import (
    Thread,
    document,
    is_readable,
    moments,
    place_of,
)
from perdure.recall.memory_records import Memory
from perdure.recall.places import INDEX, spot, turns
from perdure.recall.references.layers import LayerRecord
from perdure.search.engine import Range, Withdrawal, engine_of
from perdure.storage.adapter import Capability
from perdure.storage.options import STRONG, Options
from perdure.storage.record_keys import numbered
from perdure.storage.records import Key, system_record
from perdure.storage.store import Progress, Store
from perdure.storage.transaction import Transaction

#: What `passages` and `words` make of a turn. Another number, and all documents are made anew when
#: a bank is next opened.
RECIPE = 3
#: No recipe: what is in the index may be of any.
_NONE = 0
#: Pieces, sessions, and places of the index that are read together otherwise.
_PAGE, _SESSIONS, _PLACES = 128, 100, 1_000
#: Turns without a wanted place between two that are read together.
_GAP = 8
_STATE = "index"

_log = logging.getLogger(__name__)


@system_record("recall_filling")
class FillState(msgspec.Struct, frozen=True):
    """Whether the index was filled from everything that was there when it was made."""

    id: Annotated[str, Key()] = _STATE
    recipe: int = RECIPE
    complete: bool = False


class Difference(msgspec.Struct):
    """How the index differs from the log, for one session: places."""

    expected: int = 0
    #: Passages without a document, or with one whose note cannot be read.
    missing: list[int] = []
    #: Documents of what is not in the log.
    orphans: list[int] = []


class Filler:
    """Walks through the log of a store, and through the index beside it."""

    def __init__(self, store: Store, groups: Groups) -> None:
        self._store = store
        self._groups = groups
        self._sessions = store.collection(SessionRecord)
        self._pieces = store.collection(TurnPiece)

    async def state(self) -> FillState | None:
        """How far the index was filled; None if nobody has ever begun."""
        return await self._store.collection(FillState).get(_STATE, STRONG)

    async def begin(self, *, anew: bool = False) -> int:
        """Say that the index is not complete; returns what `finish` asks for.

        If all is to be made anew, and this process is killed, the next begins with that again. What
        was complete before stays so: each document is there until another takes its place.
        """
        state = await self.state() or FillState()
        begun = (
            FillState(recipe=_NONE, complete=state.complete)
            if anew
            else FillState(recipe=state.recipe)
        )
        return await self._store.collection(FillState).put(begun)

    async def finish(self, begun: int) -> bool:
        """Say that the index is complete; False if others have begun since.

        They may have erased what was filled in; they say when they are done.
        """
        try:
            await self._store.collection(FillState).put(
                FillState(complete=True), Options(expected=begun)
            )
        except Conflict:
            return False
        return True

    async def has_nothing(self) -> bool:
        """Whether there is nothing yet that an index could lack. Memories and layers count."""
        memories, layers = self._store.collection(Memory), self._store.collection(LayerRecord)
        queries = (self._pieces.query(), memories.query(), layers.query())
        return not any([await query.exists() for query in queries])

    async def blot_out(self) -> None:
        """There is no index any more, and nothing of what it held is to be left in any file.

        If that cannot be done now, it is tried again when the bank is next opened.
        """
        try:
            if Capability.ERASURE in self._store.capabilities:
                await self._store.adapter.scrub()
            await self._store.collection(FillState).delete(_STATE)
        except PerdureError as exc:
            _log.warning("words of turns may still be in the bank's files, in clear: %s", exc)

    # Writing ----------------------------------------------------------------------------------

    async def fill(
        self, embeddings: Embeddings, progress: Progress | None = None, *, anew: bool = False
    ) -> int:
        """Write what is missing of every session, or all of it; returns how many documents."""
        total = await self._pieces.query().count() if progress else 0
        done = written = 0
        async for record in self.sessions():
            async for step in self._session(record, embeddings, anew=anew):
                pieces, documents = len(step.pieces), len(step.waiting)
                done, written = done + pieces, written + documents
                if progress is not None:
                    progress("indexing", done, max(total, done))
        return written

    async def fill_session(
        self, record: SessionRecord, embeddings: Embeddings, *, first: int = 0
    ) -> int:
        """Write what is missing of a session from a turn on; returns the last turn looked at."""
        last = 0
        async for step in self._session(record, embeddings, first=first):
            last = step.pieces[-1].turn
        return last

    async def remove_orphans(self) -> int:
        """Withdraw documents of what is not there any more; returns how many."""
        removed = 0
        for number in await self.strays():
            removed += len(await self._places(number))
            await self._withdraw([turns(number)])
        async for _, found in self.compared():
            removed += len(found.orphans)
            await self._withdraw([(place, place) for place in found.orphans])
        return removed

    # Reading ----------------------------------------------------------------------------------

    async def sessions(self) -> AsyncIterator[SessionRecord]:
        """Every session, archived ones too."""
        after = ""
        while page := await self._sessions.behind(after, limit=_SESSIONS, options=STRONG):
            for record in page:
                yield record
            after = page[-1].id

    async def compared(self) -> AsyncIterator[tuple[SessionRecord, Difference]]:
        """How the index differs from the log, session by session."""
        async for record in self.sessions():
            number = (await self._groups.all()).get(record.id)
            yield record, await self._difference(record, number)

    async def strays(self) -> list[int]:
        """Numbers of groups that hold documents, and have no name: nobody can find them."""
        found, after = list[int](), -1
        while places := await engine_of(self._store.adapter).places(INDEX.name, after, 1):
            number = spot(places[0]).group
            # The name is looked for after the document: it was there before.
            if number not in await self._groups.names():
                found.append(number)
            after = turns(number)[1]
        return found

    async def count_strays(self) -> int:
        """How many documents such groups have."""
        return sum([len(await self._places(number)) for number in await self.strays()])

    async def texts(self, places: Sequence[int]) -> Mapping[int, str]:
        """What is to be embedded for places of turns, as far as the log has it."""
        names = await self._groups.names()
        wanted, found = frozenset(places), dict[int, str]()
        for number, first, last in _stretches(places):
            name = names.get(number)
            if name is None or name.startswith(" "):
                continue
            thread = Thread()
            async for pieces in self._turns(name, first, last):
                for moment in moments(pieces, thread, {}):
                    place = place_of(number, moment)
                    if place in wanted and (plain := moment.plain()):
                        found[place] = plain
        return found

    # ------------------------------------------------------------------------------------------

    async def _session(
        self,
        record: SessionRecord,
        embeddings: Embeddings,
        *,
        first: int = 0,
        anew: bool = False,
    ) -> AsyncIterator[FillStep]:
        """Steps that were taken: what is missing from a turn on, or all of it."""
        thread, after = Thread(), f"{record.id}/{numbered(first) if first else ''}"
        while True:
            step = FillStep(self._store, self._groups, record, after, thread, anew=anew)
            await self._store.transact(step.take)
            if not step.pieces:
                return
            if step.waiting:
                embeddings.add(step.waiting)
                await embeddings.make_room()
            yield step
            if len(step.pieces) < _STEP:
                return
            after, thread = step.pieces[-1].id, step.thread
            await asyncio.sleep(0)

    async def _difference(self, record: SessionRecord, number: int | None) -> Difference:
        thread, expected = Thread(), dict[int, None]()
        async for pieces in self._turns(record.id):
            for moment in moments(pieces, thread, {}):
                if moment.plain():
                    expected[place_of(number or 0, moment)] = None
        if number is None:
            return Difference(len(expected), list(expected))
        there = await self._places(number)
        missing = await self._unreadable([*expected])
        orphans = sorted(there.keys() - expected.keys())
        # What was written, or forgotten, since the log was read looks like either.
        if missing:
            missing = [p for p in await self._still_missing(missing) if p in expected]
        if orphans:
            known = await self.texts(orphans)
            orphans = [place for place in orphans if place not in known]
        return Difference(len(expected), missing, orphans)

    async def _still_missing(self, places: Sequence[int]) -> list[int]:
        absent = await self._unreadable(places)
        return list(await self.texts(absent)) if absent else []

    async def _unreadable(self, places: Sequence[int]) -> list[int]:
        """Those of some places that have no document, or one whose note cannot be read."""
        found = list[int]()
        for start in range(0, len(places), _PLACES):
            some = places[start : start + _PLACES]
            notes = await engine_of(self._store.adapter).notes(INDEX.name, some)
            found += [
                place
                for place, note in zip(some, notes, strict=True)
                if note is None or not is_readable(note)
            ]
        return found

    async def _places(self, number: int) -> dict[int, None]:
        """The places of a group that hold a document."""
        first, last = turns(number)
        found, after = dict[int, None](), first - 1
        while page := await engine_of(self._store.adapter).places(INDEX.name, after, _PLACES):
            found.update(dict.fromkeys(place for place in page if place <= last))
            after = page[-1]
            if after > last:
                break
        return found

    async def _withdraw(self, ranges: Sequence[Range]) -> None:
        if ranges:
            async with self._store.transaction() as transaction:
                transaction.include(*(Withdrawal(INDEX.name, *each) for each in ranges))

    async def _turns(
        self, session: str, first: int = 0, last: int | None = None
    ) -> AsyncIterator[list[TurnPiece]]:
        """The pieces of a session's own turns, some at a time."""
        prefix = f"{session}/"
        after, end = prefix + numbered(first), prefix + numbered(last + 1) if last else ""
        while page := await self._pieces.behind(after, prefix, limit=_PAGE, options=STRONG):
            yield [piece for piece in page if not end or piece.id < end]
            after = page[-1].id
            if end and after >= end:
                return


def _stretches(places: Sequence[int]) -> list[tuple[int, int, int]]:
    """Groups and their turns from first to last that hold these places, which are in order."""
    found = list[tuple[int, int, int]]()
    for at in map(spot, places):
        if found and found[-1][0] == at.group and at.turn - found[-1][2] <= _GAP:
            found[-1] = (at.group, found[-1][1], max(at.turn, found[-1][2]))
        else:
            found.append((at.group, at.turn, at.turn))
    return found


#: Pieces that are read, and whose documents are written, together.
_STEP = 32
#: Seconds after which others get a turn on the event loop.
_SLICE = 0.004


class FillStep:
    """Some pieces of a session, and the documents that are missing for them.

    With `anew`, those that are there are written again.
    """

    def __init__(
        self,
        store: Store,
        groups: Groups,
        record: SessionRecord,
        after: str,
        thread: Thread,
        *,
        anew: bool,
    ) -> None:
        self._anew = anew
        self._store = store
        self._groups = groups
        self._record = record
        self._after = after
        self._before = thread
        self.thread = thread
        self.pieces: list[TurnPiece] = []
        self.waiting: list[Waiting] = []

    async def take(self, transaction: Transaction) -> None:
        """Read and write. May run again: others may have forgotten what it read."""
        self.waiting = []
        self.thread = Thread(
            self._before.turn, self._before.tags, self._before.fetching, dict(self._before.said)
        )
        pieces = transaction.collection(TurnPiece)
        self.pieces = await pieces.behind(self._after, f"{self._record.id}/", limit=_STEP)
        found = list(moments(self.pieces, self.thread, self._record.facts))
        if not found:
            return
        known = (await self._groups.all()).get(self._record.id)
        there = frozenset[int]()
        if known is not None:
            there = await self._there([place_of(known, moment) for moment in found])
            if len(there) == len(found):
                return
        number = await self._groups.relied_on(transaction, self._record.id)
        if number is None:
            return
        places = [place_of(number, moment) for moment in found]
        if number != known:
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
        if self._anew:
            return frozenset()
        notes = await engine_of(self._store.adapter).notes(INDEX.name, places)
        return frozenset(p for p, note in zip(places, notes, strict=True) if note is not None)
