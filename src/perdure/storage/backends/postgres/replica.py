"""Reads from a streaming replica, where they may be a little old.

The write-ahead log is the clock: a replica that has replayed a position shows everything
acknowledged before the primary reached it. So we keep *marks*: a moment, and the primary's
position then or later. A replica that has replayed a mark is not older than its moment. (The time
of the last replayed transaction would not do: on an idle primary it is old, too.)

- `BOUNDED` reads need a mark that is not older than they may be.
- All reads need what this process has written. After a transaction, the next read goes to the
  primary, which returns its position with the rows: from there on the replica may answer again.
- `STRONG` reads, and Perdure's own collections, do not come here.

A replica returns its position with its rows. It counts for later reads only, since it may be
newer than the rows; if it is not known to be far enough, it is asked first. Otherwise, or if
anything is wrong, the primary answers: a replica never makes a read fail. One in trouble is left
alone for some seconds; then a new connection is tried in the background.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Coroutine, Sequence
from typing import Any, TypeAlias, TypeVar

import msgspec
import psycopg
from psycopg import errors as pg

from perdure.core.errors import InvalidURL, PerdureError
from perdure.storage.backends.postgres.address import PostgresServer
from perdure.storage.backends.postgres.errors import translate
from perdure.storage.backends.postgres.links import Connection, PostgresPool
from perdure.storage.options import Options

T = TypeVar("T")
Rows: TypeAlias = list[tuple[Any, ...]]

#: Seconds for which a replica in trouble is left alone.
REST = 5.0
#: Seconds without an answer after which we ask whether it is still there.
PATIENCE = 1.0
#: Seconds after which the primary is asked in any case: another server may have become it.
MARK_EVERY = 30.0
#: Seconds before a replica that had not come far enough is asked again.
LOOK_AGAIN = 0.05

_log = logging.getLogger(__name__)

# Bytes of log, as a number, and the timeline. A primary that has become a standby has neither.
_MARK = (
    "SELECT CASE WHEN NOT pg_is_in_recovery() THEN (pg_current_wal_lsn() - '0/0')::bigint END,"
    " CASE WHEN NOT pg_is_in_recovery() THEN"
    " ('x' || substr(pg_walfile_name(pg_current_wal_lsn()), 1, 8))::bit(32)::int END"
)
_STATE = "SELECT (pg_last_wal_replay_lsn() - '0/0')::bigint, pg_is_in_recovery()"
_CLUSTER = (
    "SELECT system_identifier, (SELECT oid::bigint FROM pg_database"
    " WHERE datname = current_database()) FROM pg_control_system()"
)
# Who may not see what the receiver does is told the timeline of the last restart point.
_TIMELINE = (
    "SELECT coalesce((SELECT received_tli FROM pg_stat_wal_receiver), min_recovery_end_timeline)"
    " FROM pg_control_recovery() WHERE pg_is_in_recovery()"
)
#: What can be wrong with it.
_TROUBLE = (psycopg.Error, PerdureError)
#: What has not been replayed yet.
_MISSING = (pg.UndefinedTable, pg.UndefinedColumn, pg.InvalidSchemaName)
#: Who makes such a mistake is told by the primary.
_OF_THE_CALLER = (psycopg.DataError, psycopg.ProgrammingError, UnicodeError, OverflowError)


class Unfit(PerdureError):
    """A server that cannot stand in for the primary. Never raised to callers."""


class Stranger(Unfit):
    """… because it never was a replica of it."""


class _Answer(msgspec.Struct, frozen=True):
    """The replica's position, and its rows unless that is not far enough."""

    position: int
    rows: Rows | None


class Replica:
    """Answers reads from a replica where allowed, else from the primary. `ended` returns how
    many transactions of this process have ended.
    """

    def __init__(
        self, primary: PostgresPool, server: PostgresServer, ended: Callable[[], int]
    ) -> None:
        self._primary = primary
        self._server = server
        self._links = _ReplicaLinks(server)
        self._ended = ended
        self._marks = ReplicaMarks()
        self._timeline = 0
        #: What this process has written lies before this position, as far as it is known.
        self._own = 0
        self._known = -1
        #: How far the replica was when it was last looked at, and when that was.
        self._position, self._looked = 0, 0.0
        #: How many connections had been made by then.
        self._connected = 0
        self._usable = False
        self._rests_until = 0.0
        self._warned = False
        self._tasks: set[asyncio.Task[Any]] = set()
        #: How many reads the replica has answered.
        self.answered = 0

    async def initialize(self) -> None:
        """Check that the server, if it is there, is a replica of the primary. Raises
        `InvalidURL` if it belongs to another cluster or is in another database.
        """
        self._links.cluster = (await self._primary.fetch(_CLUSTER))[0]
        await self._mark("SELECT 1", (), None)
        try:
            async with asyncio.timeout(2 * PATIENCE):
                await self._links.use(_nothing)
        except Stranger as exc:
            await self._links.close()
            raise InvalidURL(
                f"{self._server.label} is not a replica of the bank's server: {exc}.",
                hint="Let replica= name a streaming replica of the server in the address.",
            ) from None
        except (*_TROUBLE, TimeoutError) as exc:
            self._rest(exc)
        else:
            self._usable = True

    async def fetch(self, text: str, params: Sequence[Any], options: Options) -> Rows:
        if not self._is_usable():
            return await self._primary.fetch(text, params, options.deadline)
        wanted = self._wanted(options)
        if wanted is None:
            return await self._mark(text, params, options.deadline)
        start = time.monotonic()
        if wanted <= self._position or start >= self._looked + LOOK_AGAIN:
            rows = await self._ask(wanted, text, params, options.deadline)
            if rows is not None:
                self.answered += 1
                return rows
        left = options.deadline
        if left is not None:
            left = max(left + start - time.monotonic(), 0.001)
        return await self._primary.fetch(text, params, left)

    async def close(self) -> None:
        for task in self._tasks:
            if not task.cancelling():  # twice, and psycopg would not tell the server to stop
                task.cancel()
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=PATIENCE)
        while self._tasks:
            self._tasks.pop().cancel()
        await self._links.close()

    def _wanted(self, options: Options) -> int | None:
        """The position that the replica needs; None if only a new mark can tell."""
        if self._known != self._ended():
            return None
        age, now = options.max_staleness, time.monotonic()
        if age is None:
            return self._own if self._marks.newest() > now - MARK_EVERY else None
        if self._marks.newest() <= now - age / 2:
            return None  # in time for the replica to come so far, before the next one is needed
        position = self._marks.since(now - age)
        return None if position is None else max(position, self._own)

    async def _mark(self, text: str, params: Sequence[Any], deadline: float | None) -> Rows:
        moment, ended = 0.0, 0

        async def work(conn: Connection) -> tuple[tuple[Any, ...], Rows]:
            nonlocal moment, ended
            moment, ended = time.monotonic(), self._ended()
            return await _with(_MARK, conn, text, params)

        (position, timeline), rows = await self._primary.run(work, deadline)
        if position is not None and timeline >= self._timeline:
            if timeline > self._timeline:
                await self._follow(timeline)
            self._marks.add(moment, position)
            if ended > self._known:
                self._known, self._own = ended, max(position, self._own)
        return rows

    async def _follow(self, timeline: int) -> None:
        """Another server has become the primary: former positions are void. The replica is used
        again when it is known to follow the new one.
        """
        if self._timeline:
            self._usable, self._rests_until = False, 0.0
        self._timeline = self._links.timeline = timeline
        self._marks.clear()
        self._own = self._position = 0
        self._known = -1
        await self._links.distrust()

    async def _ask(
        self, wanted: int, text: str, params: Sequence[Any], deadline: float | None
    ) -> Rows | None:
        """The replica's answer, if it comes within half of the time that there is."""

        async def work(conn: Connection) -> _Answer:
            # The replica may have been restarted, from a backup even, before it was connected to.
            known = self._position if self._connected == self._links.made else 0
            return await self._read(conn, wanted, known, text, params)

        connected, timeline = self._links.made, self._timeline
        task = self._start(self._links.use(work))
        try:
            limit = None if deadline is None else deadline / 2
            if not await self._has_ended(task, limit):
                return None
        finally:
            task.cancel()  # without effect if it has ended; it is not waited for
        try:
            answer = task.result()
        except _MISSING:
            self._looked = time.monotonic()
        except (*_TROUBLE, UnicodeError, OverflowError) as exc:
            if not isinstance(exc, _OF_THE_CALLER) or isinstance(exc, pg.InsufficientPrivilege):
                self._rest(exc)
        else:
            self._looked = time.monotonic()
            if timeline == self._timeline:
                self._position, self._connected = answer.position, connected
                return answer.rows
        return None

    async def _read(
        self, conn: Connection, wanted: int, known: int, text: str, params: Sequence[Any]
    ) -> _Answer:
        try:
            if known < wanted:
                (state,) = await (await conn.execute(_STATE, binary=True)).fetchall()
                if (position := _replayed(*state)) < wanted:
                    return _Answer(position, None)
            state, rows = await _with(_STATE, conn, text, params)
            return _Answer(_replayed(*state), rows)
        except _MISSING:
            raise
        except _TROUBLE:
            await conn.close()  # whatever it was, another connection does not have it
            raise

    async def _has_ended(self, task: asyncio.Task[Any], limit: float | None) -> bool:
        """Wait for an answer for as long as the replica is alive."""
        if limit is not None and limit <= PATIENCE:
            await asyncio.wait([task], timeout=limit)
            return task.done()
        start = time.monotonic()
        while True:
            await asyncio.wait([task], timeout=PATIENCE)
            if task.done():
                return True
            if limit is not None and time.monotonic() - start >= limit:
                return False
            probe = self._start(self._probe())
            both = [task, probe]
            await asyncio.wait(both, timeout=PATIENCE, return_when=asyncio.FIRST_COMPLETED)
            if not probe.done() and not task.done():
                probe.cancel()
                self._rest(TimeoutError("it does not answer"))
                return False

    async def _probe(self) -> None:
        """Ends when the replica has answered anything at all."""
        try:
            conn = await self._links.connect()
        except _TROUBLE:
            return
        await conn.close()

    def _is_usable(self) -> bool:
        if not self._usable and time.monotonic() >= self._rests_until:
            self._rests_until = time.monotonic() + REST
            self._start(self._return())
        return self._usable

    async def _return(self) -> None:
        try:
            async with asyncio.timeout(REST):
                await self._links.use(_nothing)
        except (*_TROUBLE, TimeoutError) as exc:
            _log.debug("The replica %s is not back: %s", self._server.label, self._said(exc))
            return
        self._usable, self._warned = True, False
        _log.info("The replica %s is used again.", self._server.label)

    def _rest(self, exc: BaseException) -> None:
        self._usable, self._rests_until = False, time.monotonic() + REST
        if not self._warned:
            where, said = self._server.label, self._said(exc)
            _log.warning("The replica %s is left alone, the primary answers: %s", where, said)
        self._warned = True
        self._start(self._links.distrust())

    def _said(self, exc: BaseException) -> str:
        if isinstance(exc, psycopg.Error):
            return translate(exc, self._server).message
        return str(exc) or "it does not answer"

    def _start(self, work: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._finished)
        return task

    def _finished(self, task: asyncio.Task[Any]) -> None:
        self._tasks.discard(task)
        if not task.cancelled():
            task.exception()  # seen, even if nobody waits for it any more


class _ReplicaLinks(PostgresPool):
    """Connections to a server that is known to replicate the primary."""

    def __init__(self, server: PostgresServer) -> None:
        super().__init__(server)
        #: The cluster and the database of the primary, and the timeline it is on.
        self.cluster: tuple[Any, ...] = ()
        self.timeline = 0
        self.made = 0

    async def connect(self) -> Connection:
        conn = await super().connect()
        try:
            await self._verify(conn)
        except BaseException:
            await conn.close()
            raise
        self.made += 1
        return conn

    async def _verify(self, conn: Connection) -> None:
        cluster = await (await conn.execute(_CLUSTER)).fetchone()
        if cluster is None or cluster[0] != self.cluster[0]:
            raise Stranger("it belongs to another cluster")
        if cluster != self.cluster:
            raise Stranger("the address names another database")
        follows = await (await conn.execute(_TIMELINE)).fetchone()
        if follows is None:
            raise Unfit("it is not a replica, or has been promoted")
        if follows[0] != self.timeline:
            raise Unfit("it does not follow the present primary")


def _replayed(position: int | None, follows: bool) -> int:  # noqa: FBT001  # as it comes
    """The replica's position. Raises `Unfit` if it was none when the statement began."""
    if not follows or position is None:
        raise Unfit("it has been promoted")
    return position


async def _with(
    facts: str, conn: Connection, text: str, params: Sequence[Any]
) -> tuple[tuple[Any, ...], Rows]:
    """Two facts about the server, and the rows of a statement. (A pipeline takes five times as
    long.)
    """
    whole = (
        f"SELECT facts.*, rows.* FROM ({facts}) AS facts(one, two)"
        f" LEFT JOIN LATERAL (SELECT true, found.* FROM ({text}) AS found) AS rows ON true"
    )
    rows = await (await conn.execute(whole, params, binary=True)).fetchall()
    return rows[0][:2], [row[3:] for row in rows if row[2]]


async def _nothing(conn: Connection) -> None: ...


class ReplicaMarks:
    """Moments, and positions that the primary had reached by then or later."""

    def __init__(self) -> None:
        self._marks: list[tuple[float, int]] = []

    def add(self, moment: float, position: int) -> None:
        """Add a mark; concurrent ones may come in any order."""
        marks = [*self._marks, (moment, position)]
        marks.sort()
        # The older, the farther apart: a few dozen reach back for hours.
        kept = marks[:1]
        for index in range(1, len(marks) - 1):
            if marks[index + 1][0] - kept[-1][0] >= (moment - marks[index][0]) / 4:
                kept.append(marks[index])
        self._marks = [*kept, *marks[1:][-1:]][-100:]

    def newest(self) -> float:
        return self._marks[-1][0] if self._marks else float("-inf")

    def since(self, moment: float) -> int | None:
        """The lowest known position that shows everything from before this moment."""
        return next((position for at, position in self._marks if at >= moment), None)

    def clear(self) -> None:
        self._marks = []
