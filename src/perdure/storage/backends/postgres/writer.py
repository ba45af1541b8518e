"""Transactions whose outcome is always known.

A connection can break during COMMIT. So every transaction writes its number, the *ticket*, into
its connection's row of perdure_writers. Read over a new connection, that row holds the ticket if
and only if the transaction was committed; reading waits while that is undecided.

`pg_xact_status` would not do: after a crash an id whose commit had not reached the disk is given
to another transaction, and our lost one is called committed.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Generic, TypeAlias, TypeVar

import psycopg

from perdure.core.errors import PerdureError, Unavailable
from perdure.storage.backends.postgres.address import PostgresServer
from perdure.storage.backends.postgres.errors import Interfered, is_lost
from perdure.storage.backends.postgres.links import Connection, PostgresPool
from perdure.storage.backends.server_pool import PATIENCE
from perdure.storage.backends.server_writer import ServerWriter, WriteJob

T = TypeVar("T")
Statement: TypeAlias = tuple[str, Sequence[Any]]
#: Runs inside a transaction, in a pipeline; it may run several times, until one commits.
#: It should have fetched its last result when it returns, to be withdrawable until then.
Work = Callable[[Connection], Awaitable[T]]

_BEGIN = "BEGIN ISOLATION LEVEL READ COMMITTED READ WRITE"
_STRONG = (
    "SELECT set_config('synchronous_commit', 'on', true)"
    " WHERE current_setting('synchronous_commit') IN ('off', 'local', 'remote_write')"
)
#: How often the server is asked to stop a statement before its connection is given up.
_REQUESTS = 40


class _Job(WriteJob, Generic[T]):
    __slots__ = ("conn", "first", "result", "strong", "work")

    def __init__(self, work: Work[T], first: Statement | None, *, strong: bool) -> None:
        super().__init__()
        self.work = work
        self.first = first
        self.strong = strong
        self.conn: Connection | None = None
        self.result: list[T] = []


class PostgresWriter(ServerWriter):
    """Runs transactions."""

    def __init__(self, links: PostgresPool, server: PostgresServer) -> None:
        super().__init__()
        table = f"{server.schema}.perdure_writers"
        self._links = links
        self._server = server
        self._ticket = (
            f"INSERT INTO {table}(id, ticket) VALUES(%s, %s)"
            " ON CONFLICT (id) DO UPDATE SET ticket = excluded.ticket, at = now()"
        )
        # An update that changes nothing waits for whoever is writing the row.
        self._ask = (
            f"INSERT INTO {table} AS w (id, ticket) VALUES(%s, 0)"
            " ON CONFLICT (id) DO UPDATE SET ticket = w.ticket RETURNING ticket"
        )
        self._forget_writers = f"DELETE FROM {table} WHERE id = ANY(%s::text[])"
        #: How many transactions have ended, whatever came of them; see `replica`.
        self.ended = 0

    async def run(
        self,
        work: Work[T],
        *,
        first: Statement | None = None,
        strong: bool = False,
        deadline: float | None = None,
    ) -> T:
        """Run `work` in a transaction, durable when this returns. The statement `first` runs
        before the transaction gets its id. See `ServerWriter` for deadlines and cancelling.
        """
        job = _Job(work, first, strong=strong)
        try:
            return await self._see_through(job, self._carry_out(job), deadline)
        finally:
            self.ended += 1

    async def _forget(self) -> None:
        names = self._links.writers
        if names:
            # If the server is away, `catalog.create` removes the rows some day.
            with contextlib.suppress(psycopg.Error):
                await self._links.use(lambda conn: conn.execute(self._forget_writers, (names,)))

    async def _carry_out(self, job: _Job[T]) -> T:
        async def attempt(conn: Connection) -> T:
            job.check()
            job.result.clear()
            try:
                await self._transact(job, conn)
            except psycopg.Error as exc:
                if not (job.sent and is_lost(exc)):
                    job.sent = False
                    job.check()
                    raise
                if not await self._was_committed(conn):
                    job.sent = False
                    raise
            return job.result[0]

        with self._links.translated():
            return await self._links.patiently(attempt)

    async def _transact(self, job: _Job[T], conn: Connection) -> None:
        if not conn.ticket:
            self._links.writers.append(conn.writer)
        conn.ticket += 1
        job.conn = conn
        try:
            async with conn.pipeline() as conn.open_pipeline:
                try:
                    await self._run(job, conn)
                except asyncio.CancelledError:
                    await conn.close()  # or the end of the pipeline would wait for the server
                    raise
        finally:
            job.conn = conn.open_pipeline = None
            if job.withdrawn or job.expired:
                await conn.close()  # a request to cancel may still hit whatever runs next on it
        job.sent = False

    async def _run(self, job: _Job[T], conn: Connection) -> None:
        """Everything from BEGIN to COMMIT; leaving the pipeline sends what is left of it."""
        await conn.execute(_BEGIN)
        if job.strong:
            await conn.execute(_STRONG)
        if job.first is not None:
            await conn.execute(*job.first)
        await conn.execute(self._ticket, (conn.writer, conn.ticket), prepare=True)
        try:
            job.result.append(await job.work(conn))
            job.check()
        except (PerdureError, Interfered):
            await conn.execute("ROLLBACK")
            raise
        job.sent = True
        await conn.execute("COMMIT")

    async def _was_committed(self, broken: Connection) -> bool:
        """Whether the last transaction of a broken connection was committed. Raises `Unavailable`
        if the server does not come back.
        """
        try:
            async with asyncio.timeout(PATIENCE):
                while True:
                    try:
                        conn = await self._links.connect()
                        async with conn:
                            ticket = await conn.value(self._ask, (broken.writer,))
                            return bool(ticket == broken.ticket)
                    except psycopg.Error as exc:
                        if not is_lost(exc):
                            raise
                    await asyncio.sleep(0.1)
        except (psycopg.Error, TimeoutError) as exc:
            raise Unavailable(
                f"The connection to {self._server.label} broke during a commit, and the server did"
                " not come back to tell its outcome: it is unknown whether the write was done.",
                hint="When the server is back, read the record to see.",
            ) from exc

    async def _end(self, job: _Job[Any], task: asyncio.Task[Any]) -> None:
        """Stop a transaction before its COMMIT; wait for one after it. Cancel requests are
        repeated: between two statements they have no effect.
        """
        tries = 0
        while not task.done() and not job.sent:
            if job.conn is None or tries == _REQUESTS:
                task.cancel()
            else:
                with contextlib.suppress(psycopg.Error):
                    await job.conn.cancel_safe(timeout=1.0)
            tries += 1
            await asyncio.wait([task], timeout=0.05)
        await asyncio.wait([task])
