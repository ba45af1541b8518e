"""Turns that are appended and not in the index yet: written there when nobody writes.

An append only notes in memory what it added. Idle work of the runner writes the documents a moment
later; a recall does not wait for that: it first writes what this process has pending, and what the
marks of other processes name (`history.turn_log`). So a turn is found from the moment it is
written. The mark of an append stays until its documents are there: whoever finds the mark of a
process that was killed reads the turns again.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from typing import NamedTuple

from perdure.core.errors import Corrupted
from perdure.history.log_records import Owned, SessionRecord, TurnPiece, agent_of
from perdure.history.turn_log import TURNS, Written
from perdure.history.turn_reader import TurnReader
from perdure.jobs import GoOn, PendingMark, Runner
from perdure.recall.indexing.groups import Groups
from perdure.recall.indexing.index_filler import Filler
from perdure.recall.indexing.passage_vectors import Embeddings, Waiting, always
from perdure.recall.indexing.passages import (
    Moment,
    Thread,
    about,
    document,
    fetching_calls,
    moments,
    place_of,
    time_of,
)
from perdure.recall.places import INDEX
from perdure.search.engine import engine_of
from perdure.storage.store import Store
from perdure.storage.transaction import Transaction

#: Appends that wait in memory at most; what is more is read again from the log.
_MOST = 4_096
#: Appends, and rounds of them, whose documents are written in one transaction.
_TOGETHER, _ROUNDS = 16, 64
#: Marks of other processes that one question follows at most.
_FOLLOWED = 16
#: What the runner, and a mark, call this work.
_WORK = "indexing turns"
#: Seconds in which what waits is written before the bank is closed.
_CLOSING = 2.0
#: Sessions whose open turn is remembered.
_REMEMBERED = 10_000

_log = logging.getLogger(__name__)


class PendingTurns:
    """What this process is still to index. For one event loop."""

    def __init__(
        self,
        store: Store,
        reader: TurnReader,
        jobs: Runner,
        *,
        groups: Groups,
        filler: Filler,
        embeddings: Embeddings,
        prepared: Callable[[], Awaitable[None]],
    ) -> None:
        self._store, self._jobs, self._groups = store, jobs, groups
        self._filler, self._embeddings, self._prepared = filler, embeddings, prepared
        self._threads = OpenTurns(reader)
        self._waiting: deque[Written] = deque()
        #: Sessions whose turns have to be read from the log, and from which turn on.
        self._unread: dict[str, tuple[SessionRecord, int]] = {}
        #: Of sessions that others write to: the store's generation when they were last read.
        self._followed: dict[tuple[str, int], int | None] = {}
        self._lock = asyncio.Lock()
        self._wake = jobs.idle(_WORK, self._work, covers=TURNS, closing=_CLOSING)

    def __len__(self) -> int:
        return len(self._waiting) + len(self._unread)

    def note(self, written: Written) -> None:
        """Index what was appended, before long. See `TurnLog.listen`; `index_now` has the rest."""
        if written.bulk:
            return
        if len(self._waiting) < _MOST:
            self._waiting.append(written)
            self._wake()
        else:
            self.missed(written.session, written.first, written.last)

    def missed(self, record: SessionRecord, first: int, last: int) -> None:
        """Index turns that a process left a mark about, as far as they are not there."""
        del last
        known = self._unread.get(record.id, (record, first))
        self._unread[record.id] = record, min(first, known[1])
        self._wake()

    async def index_now(self, transaction: Transaction, written: Written) -> None:
        """Index one of many appends of an importer in its own transaction: it leaves no mark."""
        number = await self._groups.relied_on(transaction, written.session.id)
        if number is None:
            return
        waiting = list[Waiting]()
        for moment in await self._threads.added(written, number):
            made = moment.passage()
            if made.plain:
                place = place_of(number, moment)
                transaction.include(document(place, made))
                waiting.append(Waiting(place, made.plain))
        transaction.after_commit(lambda: self._embeddings.add(waiting))

    async def write(self, go_on: GoOn = always) -> None:
        """Write what waits, some at a time, until it is told to stop."""
        if not self and not self._lock.locked():  # what is taken out is not yet there
            return
        await self._prepared()
        async with self._lock:
            while self._waiting:
                await self._write_some()
                if not go_on():
                    return
            while self._unread:
                await self._read_one()
                if not go_on():
                    return

    async def catch_up(self, record: SessionRecord) -> None:
        """Write what waits here, and what others have marked: this session's turns first.

        At most `_FOLLOWED` marks are followed; the others when somebody asks again.
        """
        await self.write()
        generation = await self._store.adapter.generation()
        marks = [mark for mark in await self._jobs.marks(TURNS) if _WORK not in mark.done]
        known = self._followed = {
            _named(mark): self._followed[_named(mark)]
            for mark in marks
            if _named(mark) in self._followed
        }
        new = [m for m in marks if generation is None or known.get(_named(m)) != generation]
        new.sort(key=lambda mark: (*_distance(mark, record), _named(mark) in known))
        for mark in new[:_FOLLOWED]:
            await self._follow(mark, record)
            known.pop(_named(mark), None)
            known[_named(mark)] = generation

    # ------------------------------------------------------------------------------------------

    async def _work(self, go_on: GoOn) -> bool:
        await self.write(go_on)
        return bool(self)

    async def _write_some(self) -> None:
        some = [self._waiting.popleft()]
        rounds = len(some[0].rounds)
        while self._waiting and len(some) < _TOGETHER and rounds < _ROUNDS:
            some.append(self._waiting.popleft())
            rounds += len(some[-1].rounds)
        try:
            await self._index(some)
        except BaseException:
            self._waiting.extendleft(reversed(some))
            self._wake()
            raise

    async def _index(self, appends: Sequence[Written]) -> None:
        waiting = list[Waiting]()

        async def take(transaction: Transaction) -> None:
            waiting[:] = await self._documents(transaction, appends)

        try:
            await self._store.transact(take)
        except Corrupted as exc:
            if len(appends) == 1:
                _log.warning("A turn of %s cannot be indexed: %s", appends[0].session.id, exc)
                return
            for each in appends:  # the others are sound
                await self._index([each])
        else:
            self._embeddings.add(waiting)

    async def _documents(
        self, transaction: Transaction, appends: Sequence[Written]
    ) -> list[Waiting]:
        """Index appends. The commit fails, and this is repeated, if one is forgotten meanwhile."""
        found = list[tuple[int, Moment]]()
        own = [piece for written in appends for piece in written.pieces]
        stored = await transaction.collection(TurnPiece).get_many([piece.id for piece in own])
        # A session that was forgotten and made anew has other pieces of the same ids.
        there = {
            piece.id
            for piece, found_now in zip(own, stored, strict=True)
            if found_now is not None and not found_now.forgotten and found_now.link == piece.link
        }
        for written in appends:
            if not there.intersection(piece.id for piece in written.pieces):
                continue  # nothing is remembered of it either
            number = await self._groups.relied_on(transaction, written.session.id)
            if number is None:
                continue
            gone = {piece.turn for piece in written.pieces if piece.id not in there}
            found += [
                (place_of(number, moment), moment)
                for moment in await self._threads.added(written, number)
                if moment.round.turn not in gone
            ]
        # Others who recalled meanwhile may have written them: to do it again costs their vectors.
        notes = await engine_of(self._store.adapter).notes(
            INDEX.name, [place for place, _ in found]
        )
        waiting = list[Waiting]()
        for (place, moment), note in zip(found, notes, strict=True):
            if note is None and (made := moment.passage()).plain:
                transaction.include(document(place, made))
                waiting.append(Waiting(place, made.plain))
            await self._jobs.breathe()
        return waiting

    async def _read_one(self) -> None:
        _, (record, first) = self._unread.popitem()
        try:
            await self._fill(record, first)
        except BaseException:
            self.missed(record, first, first)
            raise

    async def _fill(self, record: SessionRecord, first: int) -> None:
        try:
            await self._filler.fill_session(record, self._embeddings, first=first)
        except Corrupted as exc:
            _log.warning("The turns of %s cannot all be indexed: %s", record.id, exc)

    async def _follow(self, mark: PendingMark, asking: SessionRecord) -> None:
        """Write what a mark of another process names, as far as that did not do it itself."""
        record: SessionRecord | None = asking
        if mark.key != asking.id:
            record = await self._store.collection(SessionRecord).get(mark.key)
        if record is not None:
            await self._fill(record, max(mark.first, record.forked_at + 1))


def _named(mark: PendingMark) -> tuple[str, int]:
    return mark.key, mark.first


def _distance(mark: PendingMark, record: SessionRecord) -> tuple[bool, bool]:
    return mark.key != record.id, agent_of(mark.key) != record.agent


class _OpenTurn(NamedTuple):
    """What is known of a session's open turn: as of so many pieces, in the group of this number.

    Another process may have written more of it, or the session anew.
    """

    group: int
    pieces: int
    thread: Thread


class OpenTurns:
    """What is remembered of the open turns of sessions, so that they need not be read again."""

    def __init__(self, reader: TurnReader) -> None:
        self._reader = reader
        self._known: dict[str, _OpenTurn] = {}

    async def added(self, written: Written, group: int) -> list[Moment]:
        """What an append added to which rounds."""
        thread = await self._before(written, group)
        times, tags = dict[int, int](), dict[int, dict[str, str]]()
        for piece in written.pieces:
            times.setdefault(piece.turn, piece.time)
            if piece.tags:
                tags[piece.turn] = piece.tags
        found = list[Moment]()
        for round in written.rounds:
            if round.turn != thread.turn:
                thread.turn, thread.tags, thread.fetching = round.turn, {}, frozenset()
            thread.tags = tags.get(round.turn, thread.tags)
            found.append(
                Moment(
                    round,
                    time_of(round.messages, times[round.turn]),
                    about(written.session.facts, thread.tags),
                    thread.fetching,
                )
            )
            thread.fetching |= fetching_calls(round.messages)
        name = written.session.id
        self._known.pop(name, None)
        self._known[name] = _OpenTurn(group, written.head.pieces, thread)
        if len(self._known) > _REMEMBERED:
            del self._known[next(iter(self._known))]
        return found

    async def _before(self, written: Written, group: int) -> Thread:
        """What is known of the turn that an append goes on with; nothing, if it opens one."""
        first = written.rounds[0]
        name = written.session.id
        if first.round == 1 and first.before == 0:
            return Thread()
        known = self._known.get(name)
        before = written.head.pieces - len(written.pieces)
        if known is not None and (known.group, known.pieces) == (group, before):
            thread = known.thread
            if thread.turn == first.turn:
                return Thread(thread.turn, thread.tags, thread.fetching)
        # Begun or gone on with by another process, or before this one was started.
        thread, own = Thread(), {piece.id for piece in written.pieces}
        pieces = await self._reader.pieces(Owned(name, first.turn, first.turn))
        earlier = (piece for piece in pieces if piece.id < min(own))
        deque(moments(earlier, thread, {}), maxlen=0)
        return thread
