"""The indexes of a collection, built while it is in use.

CREATE INDEX blocks writers; CREATE INDEX CONCURRENTLY does not, but cannot be in a transaction
and leaves an invalid index if interrupted. So one process at a time builds, under an advisory
lock of its connection: an invalid index found under that lock is dropped. Others poll. They do
not wait for the lock: the build waits for all older transactions, theirs included.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Iterable

import msgspec
from psycopg import errors as pg

from perdure.storage import tables
from perdure.storage.backends.postgres.address import PostgresServer, lock_space
from perdure.storage.backends.postgres.links import Connection, PostgresPool
from perdure.storage.rows import Layout
from perdure.storage.sql import literal

#: The lock of whoever builds an index.
BUILDING = 258
#: Seconds between two looks at an index that another process builds.
_PAUSE = 0.1


class PostgresIndex(msgspec.Struct, frozen=True):
    """The part of CREATE INDEX after the table's name, and the indexed columns."""

    text: str
    columns: tuple[str, ...] = ()


def definitions(layout: Layout, marked: Iterable[str]) -> dict[str, PostgresIndex]:
    """The indexes of a declaration, named after their definitions, so that a name identifies it."""
    wanted: dict[str, PostgresIndex] = {}

    def want(words: str, text: str, columns: Iterable[str] = ()) -> None:
        wanted[_label(layout.name, words, text)] = PostgresIndex(text, tuple(sorted(columns)))

    for index in layout.indexes:
        columns = ", ".join(_sorted(column) for column in index.columns)
        where = " AND ".join(f'"{column}" = {literal(value)}' for column, value in index.where)
        text = f"USING btree ({columns})" + (f" WHERE {where}" if where else "")
        want("_".join(index.columns), text, tables.columns_of(index))
    for column in marked:
        condition = unfilled(column, layout.schema)
        want(f"unfilled_{column}", f"USING btree (_key) WHERE {condition}", [column])
    if layout.expires:
        want("expiry", "USING btree (_expires) WHERE _expires IS NOT NULL")
    if layout.tagged:
        want("tags", "USING gin (_tags)")
    return wanted


def unfilled(column: str, schema: int) -> str:
    """The condition of rows written by code that does not know this column."""
    return f"{tables.mark_of(column)} IS DISTINCT FROM {tables.mark(schema)}"


async def build(
    links: PostgresPool, server: PostgresServer, layout: Layout, wanted: dict[str, PostgresIndex]
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
                if not await _try_lock(conn, server.schema):
                    await asyncio.sleep(_PAUSE)
                    continue
                try:
                    await _build(conn, server.schema, layout.name, label, definition)
                finally:
                    if not conn.closed:
                        await _unlock(conn, server.schema)
    finally:
        await conn.close()


async def _build(
    conn: Connection, schema: str, table: str, label: str, definition: PostgresIndex
) -> None:
    if await _is_complete(conn, schema, label):
        return
    await conn.execute(f'DROP INDEX CONCURRENTLY IF EXISTS {schema}."{label}"')
    try:
        await conn.execute(
            f'CREATE INDEX CONCURRENTLY "{label}" ON {schema}."{table}" {definition.text}'
        )
    except pg.DeadlockDetected:
        return  # with somebody who changes the table: it is tried again


async def _is_complete(conn: Connection, schema: str, label: str) -> bool:
    cursor = await conn.execute(
        "SELECT i.indisvalid FROM pg_index AS i JOIN pg_class AS c ON c.oid = i.indexrelid"
        " JOIN pg_namespace AS n ON n.oid = c.relnamespace"
        " WHERE n.nspname = %s AND c.relname = %s",
        (schema, label),
    )
    return await cursor.fetchone() == (True,)


async def _try_lock(conn: Connection, schema: str) -> bool:
    cursor = await conn.execute(f"SELECT pg_try_advisory_lock({lock_space(schema)}, {BUILDING})")
    return await cursor.fetchone() == (True,)


async def _unlock(conn: Connection, schema: str) -> None:
    await conn.execute(f"SELECT pg_advisory_unlock({lock_space(schema)}, {BUILDING})")


def _label(table: str, words: str, definition: str) -> str:
    digest = hashlib.sha256(f"{table}{definition}".encode()).hexdigest()[:10]
    return f"{f'{table}__{words}'[:50]}__{digest}"


def _sorted(column: str) -> str:
    if column in ("key", "created", "updated", "version"):
        return f"_{column}"
    return f'"{column}" NULLS FIRST'
