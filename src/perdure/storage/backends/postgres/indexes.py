"""Builds indexes of tables that are in use.

CREATE INDEX blocks writers; CREATE INDEX CONCURRENTLY does not, but cannot be in a transaction
and leaves an invalid index if interrupted. So one process at a time builds, under an advisory
lock of its connection: an invalid index found under that lock is dropped. Others poll. They do
not wait for the lock: the build waits for all older transactions, theirs included.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from psycopg import errors as pg

from perdure.storage.backends.postgres.address import PostgresServer, lock_space
from perdure.storage.backends.postgres.links import Connection, PostgresPool
from perdure.storage.tables import Built

#: The lock of whoever builds an index.
_BUILDING = 258
#: Seconds between two looks at an index that another process builds.
_PAUSE = 0.1


async def build(
    links: PostgresPool, server: PostgresServer, table: str, wanted: dict[str, Built]
) -> None:
    """Make these indexes complete, while others read and write. Waits for earlier transactions
    everywhere in the database.
    """
    conn = await links.connect()
    try:
        # Neither may end a build of an hour: whoever set them did not think of this.
        await conn.execute("SET statement_timeout = 0")
        await conn.execute("SET lock_timeout = 0")
        for label, definition in wanted.items():
            while not await _is_complete(conn, server.schema, label):
                async with building(conn, server.schema):
                    await _build(conn, server.schema, table, label, definition)
    finally:
        await conn.close()


async def _build(conn: Connection, schema: str, table: str, label: str, definition: Built) -> None:
    if await _is_complete(conn, schema, label):
        return
    await conn.execute(f'DROP INDEX CONCURRENTLY IF EXISTS {schema}."{label}"')
    try:
        await conn.execute(
            f'CREATE INDEX CONCURRENTLY "{label}" ON {schema}."{table}" {definition.sql}'
        )
    except pg.DeadlockDetected:
        return  # with somebody who changes the table: it is tried again


async def _is_complete(conn: Connection, schema: str, label: str) -> bool:
    return (
        await conn.value(
            "SELECT i.indisvalid FROM pg_index AS i JOIN pg_class AS c ON c.oid = i.indexrelid"
            " JOIN pg_namespace AS n ON n.oid = c.relnamespace"
            " WHERE n.nspname = %s AND c.relname = %s",
            (schema, label),
        )
        is True
    )


@asynccontextmanager
async def building(conn: Connection, schema: str) -> AsyncIterator[None]:
    """Keep others from building indexes of the bank."""
    lock = f"({lock_space(schema)}, {_BUILDING})"
    while not await conn.value(f"SELECT pg_try_advisory_lock{lock}"):  # noqa: ASYNC110 (no event)
        await asyncio.sleep(_PAUSE)
    try:
        yield
    finally:
        if not conn.closed:
            await conn.execute(f"SELECT pg_advisory_unlock{lock}")
