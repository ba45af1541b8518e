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
import time
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Generic, TypeAlias, TypeVar

import psycopg

from perdure.core.errors import Closed, DeadlineExceeded, PerdureError, Unavailable
from perdure.storage.backends.postgres.address import PostgresServer
from perdure.storage.backends.postgres.errors import Interfered, is_lost, translated
from perdure.storage.backends.postgres.links import PATIENCE, Connection, PostgresLink, PostgresPool

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


class _Job(Generic[T]):
    __slots__ = ("committing", "conn", "expired", "first", "result", "strong", "withdrawn", "work")

    def __init__(self, work: Work[T], first: Statement | None, *, strong: bool) -> None:
        self.work = work
        self.first = first
        self.strong = strong
        self.conn: Connection | None = None
        #: COMMIT was sent, and how it ended is not known yet.
        self.committing = False
        self.expired = False
        self.withdrawn = False
        self.result: list[T] = []

    def check(self) -> None:
        if self.withdrawn or self.expired:
            raise asyncio.CancelledError


class PostgresWriter:
    """Runs transactions. Used from one event loop."""

    def __init__(self, links: PostgresPool, server: PostgresServer) -> None:
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
        self._forget = f"DELETE FROM {table} WHERE id = ANY(%s::text[])"
        self._running: set[asyncio.Task[object]] = set()
        self._closed = False
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
        """Run `work` in a transaction, durable when this returns.

        The statement `first` runs before the transaction gets its id. Cancelled, it is withdrawn
        unless COMMIT was sent, and completed if it was; either way nothing is in flight when
        `CancelledError` is raised. A missed deadline does the same (`DeadlineExceeded`).
        """
        if self._closed:
            raise Closed("This bank is closed.", hint="Open it again with perdure.open(…).")
        job = _Job(work, first, strong=strong)
        try:
            return await self._see_through(job, deadline)
        finally:
            self.ended += 1

    async def _see_through(self, job: _Job[T], deadline: float | None) -> T:
        task = asyncio.create_task(self._carry_out(job))
        self._running.add(task)
        task.add_done_callback(self._running.discard)
        try:
            await asyncio.wait([task], timeout=deadline)
            if not task.done():
                job.expired = True
                await _end(job, task)
        except asyncio.CancelledError:
            job.withdrawn = True
            ending = asyncio.create_task(_end(job, task))
            while not ending.done():
                # Cancelled again: the caller is told as soon as the outcome is certain.
                with contextlib.suppress(asyncio.CancelledError):
                    await asyncio.wait([ending])
            if not task.cancelled():
                task.exception()  # seen
            raise
        return task.result()

    async def close(self) -> None:
        """Finish what was accepted, then remove our rows from perdure_writers."""
        if self._closed:
            return
        self._closed = True
        while self._running:
            await asyncio.wait(self._running)
        names = self._links.writers
        if names:

            async def forget(link: PostgresLink) -> None:
                await link.conn.execute(self._forget, (names,))

            # If the server is away, `catalog.create` removes the rows some day.
            with contextlib.suppress(psycopg.Error):
                await self._links.use(forget)

    async def _carry_out(self, job: _Job[T]) -> T:
        async def attempt(link: PostgresLink) -> T:
            job.check()
            job.result.clear()
            try:
                await self._transact(job, link)
            except psycopg.Error as exc:
                if not (job.committing and is_lost(exc)):
                    job.committing = False
                    job.check()
                    raise
                if not await self._was_committed(link):
                    job.committing = False
                    raise
            return job.result[0]

        try:
            with translated(self._server):
                return await self._links.patiently(attempt)
        except asyncio.CancelledError:
            if job.expired:
                raise DeadlineExceeded(
                    "The write was not ready to commit in the time allowed; nothing was written.",
                    hint="Repeat it, or allow more time.",
                ) from None
            raise

    async def _transact(self, job: _Job[T], link: PostgresLink) -> None:
        conn = link.conn
        if not link.ticket:
            self._links.writers.append(link.writer)
        link.ticket += 1
        job.conn = conn
        try:
            async with conn.pipeline():
                try:
                    await self._run(job, link)
                except asyncio.CancelledError:
                    await conn.close()  # or the end of the pipeline would wait for the server
                    raise
        finally:
            job.conn = None
            if job.withdrawn or job.expired:
                await conn.close()  # a request to cancel may still hit whatever runs next on it
        job.committing = False

    async def _run(self, job: _Job[T], link: PostgresLink) -> None:
        """Everything from BEGIN to COMMIT; leaving the pipeline sends what is left of it."""
        conn = link.conn
        await conn.execute(_BEGIN)
        if job.strong:
            await conn.execute(_STRONG)
        if job.first is not None:
            await conn.execute(*job.first)
        await conn.execute(self._ticket, (link.writer, link.ticket), prepare=True)
        try:
            job.result.append(await job.work(conn))
            job.check()
        except (PerdureError, Interfered):
            await conn.execute("ROLLBACK")
            raise
        job.committing = True
        await conn.execute("COMMIT")

    async def _was_committed(self, link: PostgresLink) -> bool:
        """Whether a broken link's last transaction was committed. Raises `Unavailable` if the
        server does not come back.
        """
        until = time.monotonic() + PATIENCE
        try:
            async with asyncio.timeout(PATIENCE):
                while True:
                    try:
                        conn = await self._links.connect()
                        async with conn:
                            cursor = await conn.execute(self._ask, (link.writer,))
                            row = await cursor.fetchone()
                            return row is not None and row[0] == link.ticket
                    except psycopg.Error as exc:
                        if not is_lost(exc) or time.monotonic() > until:
                            raise
                    await asyncio.sleep(0.1)
        except (psycopg.Error, TimeoutError) as exc:
            raise Unavailable(
                f"The connection to {self._server.label} broke during a commit, and the server did"
                " not come back to tell its outcome: it is unknown whether the write was done.",
                hint="When the server is back, read the record to see.",
            ) from exc


async def _end(job: _Job[T], task: asyncio.Task[T]) -> None:
    """Stop a transaction before its COMMIT; wait for one after it. Cancel requests are repeated:
    between two statements they have no effect.
    """
    tries = 0
    while not task.done() and not job.committing:
        if job.conn is None or tries == _REQUESTS:
            task.cancel()
        else:
            with contextlib.suppress(psycopg.Error):
                await job.conn.cancel_safe(timeout=1.0)
        tries += 1
        await asyncio.wait([task], timeout=0.05)
    await asyncio.wait([task])
