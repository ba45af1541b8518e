"""Connections to a PostgreSQL server."""

from __future__ import annotations

import logging
import uuid
from collections.abc import Sequence
from contextlib import AbstractContextManager
from typing import Any, ClassVar

import psycopg
from psycopg.adapt import AdaptersMap
from psycopg.generators import send
from psycopg.pq import TransactionStatus
from psycopg.types.numeric import Int8BinaryDumper, Int8Dumper

from perdure.core.errors import Unavailable
from perdure.storage.backends.postgres.address import PostgresServer, lock_space
from perdure.storage.backends.postgres.errors import (
    ERRORS,
    is_interference,
    is_lost,
    translated,
)
from perdure.storage.backends.server_pool import ServerPool

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
#: Seconds after which the server ends a transaction that waits for its client: a host that was
#: stopped or cut off in one would keep its locks, and everybody else would wait for them.
IDLE = 10.0
# The same for a host that is gone altogether; by itself, a server notices after two hours.
_WATCHFUL = (
    "SELECT set_config('idle_in_transaction_session_timeout', %s, false),"
    " set_config('tcp_keepalives_idle', '5', false),"
    " set_config('tcp_keepalives_interval', '3', false),"
    " set_config('tcp_keepalives_count', '3', false),"
    " set_config('tcp_user_timeout', '15s', false)"
)
#: For a transaction in which the server may wait for us: for rows that we read elsewhere, say.
PATIENT = "SET LOCAL idle_in_transaction_session_timeout = 0"


class Connection(psycopg.AsyncConnection[tuple[Any, ...]]):
    """A connection, with a name in the table of writers; see `writer`."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.writer = uuid.uuid4().hex
        self.ticket = 0
        #: While it has one.
        self.open_pipeline: psycopg.AsyncPipeline | None = None

    async def settle(self) -> None:
        """In a pipeline, wait for the results of all that was sent. A fetch does so, too, but for
        the server the client is still sending then, and not idle in its transaction.
        """
        if self.open_pipeline is not None:
            # psycopg's `sync` stops sending where the socket takes no more, and waits for ever.
            async with self.lock:
                await self.wait(send(self.pgconn))
            await self.open_pipeline.sync()

    async def rows(
        self, text: str, params: Sequence[Any] | None = None, **how: bool
    ) -> list[tuple[Any, ...]]:
        cursor = await self.execute(text, params, **how)
        await self.settle()
        return await cursor.fetchall()

    async def row(
        self, text: str, params: Sequence[Any] | None = None, **how: bool
    ) -> tuple[Any, ...] | None:
        cursor = await self.execute(text, params, **how)
        await self.settle()
        return await cursor.fetchone()

    async def value(self, text: str, params: Sequence[Any] | None = None) -> Any:
        """The first column of the first row; None if there is no row."""
        row = await self.row(text, params)
        return None if row is None else row[0]

    @property
    def is_ready(self) -> bool:
        return not self.closed and self.info.transaction_status is TransactionStatus.IDLE


class PostgresPool(ServerPool[Connection]):
    """Connections to the server of a bank. Cancelled or out of time, psycopg asks the server to
    stop the statement.
    """

    errors: ClassVar[tuple[type[Exception], ...]] = ERRORS

    def __init__(self, server: PostgresServer) -> None:
        super().__init__(server.pool)
        self._server = server
        #: Names under which transactions were begun; see `writer`.
        self.writers: list[str] = []

    def is_lost(self, exc: BaseException) -> bool:
        return is_lost(exc)

    def is_passing(self, exc: BaseException) -> bool:
        return is_interference(exc)

    def translated(self) -> AbstractContextManager[None]:
        return translated(self._server)

    async def fetch(
        self, text: str, params: Sequence[Any] = (), deadline: float | None = None
    ) -> list[tuple[Any, ...]]:
        return await self.run(lambda conn: conn.rows(text, params, binary=True), deadline)

    async def connect(self) -> Connection:
        """A new connection, beside the pool. Raises `Unavailable` while the bank is being filled
        from a snapshot.
        """
        conn = await Connection.connect(
            **self._server.parameters, autocommit=True, context=_Context(_ADAPTERS)
        )
        try:
            await conn.execute(_DURABLE)
            await conn.execute(_WATCHFUL, (f"{round(IDLE * 1_000)}ms",))
            await self._be_present(conn)
        except BaseException:
            await conn.close()
            raise
        conn.prepared_max = 256
        return conn

    async def _be_present(self, conn: Connection) -> None:
        lock = f"pg_try_advisory_lock_shared({lock_space(self._server.schema)}, {PRESENCE})"
        if not await conn.value(f"SELECT {lock}"):
            raise Unavailable(
                f"The bank {self._server.label} is being filled from a backup or another bank.",
                hint="Try again when that is done.",
            )


class _Context:
    def __init__(self, adapters: AdaptersMap) -> None:
        self.adapters = adapters
        self.connection = None
