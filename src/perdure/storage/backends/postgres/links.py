"""Connections, and retries.

A pool of our own: psycopg_pool hides why a connection fails behind a timeout, and after an outage
waits up to half a minute. Here the caller makes the connection it needs and gets the server's own
reason if that fails.
"""

from __future__ import annotations

import asyncio
import logging
import random
import time
import uuid
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, TypeAlias, TypeVar

import psycopg
from psycopg.adapt import AdaptersMap
from psycopg.pq import TransactionStatus
from psycopg.types.numeric import Int8BinaryDumper, Int8Dumper

from perdure.core.errors import Closed, DeadlineExceeded, Unavailable
from perdure.storage.backends.postgres.address import PostgresServer, lock_space
from perdure.storage.backends.postgres.errors import (
    Interfered,
    is_interference,
    is_lost,
    translated,
)

T = TypeVar("T")
Connection: TypeAlias = psycopg.AsyncConnection[tuple[Any, ...]]

#: Seconds a call waits for a server that has gone away, without a deadline.
PATIENCE = 30.0
#: How often a transaction is run again because others interfered.
TRIES = 20

# psycopg logs each connection that breaks under a pipeline. Whoever configures logging gets to
# see it; without this it would be printed to everybody's stderr.
logging.getLogger("psycopg").addHandler(logging.NullHandler())

#: All integers travel as bigint: one prepared statement, whatever the size of the numbers.
_ADAPTERS = AdaptersMap(psycopg.adapters)
_ADAPTERS.register_dumper(int, Int8Dumper)  # in arrays, which travel as text
_ADAPTERS.register_dumper(int, Int8BinaryDumper)
_ADAPTERS.register_dumper(bool, Int8BinaryDumper)

# Acknowledged writes survive the death of the server too, whatever its default is.
_DURABLE = (
    "SELECT set_config('synchronous_commit', 'local', false)"
    " WHERE current_setting('synchronous_commit') = 'off'"
)
#: The lock that every connection shares, so that whoever fills the bank knows if it is alone.
PRESENCE = 257


class PostgresLink:
    """A connection and its name in the table of writers."""

    __slots__ = ("conn", "ticket", "writer")

    def __init__(self, conn: Connection) -> None:
        self.conn = conn
        self.writer = uuid.uuid4().hex
        self.ticket = 0

    def is_idle(self) -> bool:
        return not self.conn.closed and (
            self.conn.info.transaction_status is TransactionStatus.IDLE
        )


class PostgresPool:
    """Up to `PostgresServer.pool` connections, made when needed. Used from one event loop."""

    def __init__(self, server: PostgresServer) -> None:
        self._server = server
        self._idle: list[PostgresLink] = []
        self._free = asyncio.Semaphore(server.pool)
        self._closed = False
        #: Names under which transactions were begun; see `writer`.
        self.writers: list[str] = []

    async def use(self, work: Callable[[PostgresLink], Awaitable[T]]) -> T:
        async with self._free:
            if self._closed:
                raise Closed("This bank is closed.", hint="Open it again with perdure.open(…).")
            link = self._idle.pop() if self._idle else PostgresLink(await self.connect())
            try:
                return await work(link)
            finally:
                # Whatever was interrupted, or failed inside a transaction, is not used again.
                if link.is_idle() and not self._closed:
                    self._idle.append(link)
                else:
                    await link.conn.close()

    async def patiently(
        self, work: Callable[[PostgresLink], Awaitable[T]], seconds: float = PATIENCE
    ) -> T:
        """`use`, repeated while the server is away or others interfere. Only for work that may
        run again.
        """
        until = time.monotonic() + seconds
        pause, tries = 0.02, 0
        while True:
            try:
                return await self.use(work)
            except (psycopg.Error, Interfered) as exc:
                if is_lost(exc):
                    await self.distrust()
                elif is_interference(exc) and tries < TRIES:
                    tries += 1
                else:
                    raise
                if time.monotonic() + pause > until:
                    raise
            await asyncio.sleep(pause * random.uniform(0.5, 1.0))  # noqa: S311 (no secret)
            pause = min(pause * 2, 0.5)

    async def connect(self) -> Connection:
        """A new connection, beside the pool. Raises `Unavailable` while the bank is being filled
        from a snapshot.
        """
        conn: Connection = await psycopg.AsyncConnection.connect(
            **self._server.parameters, autocommit=True, context=_Context(_ADAPTERS)
        )
        try:
            await conn.execute(_DURABLE)
            await self._be_present(conn)
        except BaseException:
            await conn.close()
            raise
        conn.prepared_max = 256
        return conn

    async def _be_present(self, conn: Connection) -> None:
        cursor = await conn.execute(
            f"SELECT pg_try_advisory_lock_shared({lock_space(self._server.schema)}, {PRESENCE})"
        )
        if await cursor.fetchone() == (False,):
            raise Unavailable(
                f"The bank {self._server.label} is being filled from a backup or another bank.",
                hint="Try again when that is done.",
            )

    async def distrust(self) -> None:
        """One connection broke, so the idle ones probably did, too."""
        idle, self._idle = self._idle, []
        for link in idle:
            await link.conn.close()

    async def close(self) -> None:
        if self._closed:
            return
        for _ in range(self._server.pool):
            await self._free.acquire()
        self._closed = True
        await self.distrust()
        for _ in range(self._server.pool):
            self._free.release()


class _Context:
    def __init__(self, adapters: AdaptersMap) -> None:
        self.adapters = adapters
        self.connection = None


class PostgresReader:
    """Runs statements that change nothing, so that they may run twice. Cancelled or out of time,
    psycopg asks the server to stop the statement.
    """

    def __init__(self, links: PostgresPool, server: PostgresServer) -> None:
        self._links = links
        self._server = server

    async def fetch(
        self, text: str, params: Sequence[Any] = (), deadline: float | None = None
    ) -> list[tuple[Any, ...]]:
        async def work(conn: Connection) -> list[tuple[Any, ...]]:
            cursor = await conn.execute(text, params, binary=True)
            return await cursor.fetchall()

        return await self.run(work, deadline)

    async def run(
        self, work: Callable[[Connection], Awaitable[T]], deadline: float | None = None
    ) -> T:
        async def attempt(link: PostgresLink) -> T:
            return await work(link.conn)

        with translated(self._server):
            try:
                async with asyncio.timeout(deadline):
                    return await self._links.patiently(attempt)
            except TimeoutError as exc:
                raise DeadlineExceeded(
                    "The read did not end in the time allowed.",
                    hint="Allow more time, or ask for less.",
                ) from exc
