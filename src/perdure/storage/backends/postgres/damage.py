"""Reads what a damaged bank still holds.

PostgreSQL refuses all rows of a page with a wrong checksum. A superuser may read it anyway; the
checksum of each record then tells which ones are damaged.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import psycopg

from perdure.storage.backends.postgres.catalog import FACTS
from perdure.storage.backends.postgres.errors import DAMAGE, is_lost
from perdure.storage.backends.postgres.links import Connection
from perdure.storage.rows import Row

_TABLE_ONLY = ("enable_indexscan", "enable_indexonlyscan", "enable_bitmapscan")
_WITHIN = "r.ctid >= %s::text::tid AND r.ctid < %s::text::tid"


async def salvage(conn: Connection, table: str, after: str, limit: int) -> list[Row]:
    """Rows in key order; unreadable ones come back empty, with checksum -1."""
    text = f"SELECT {FACTS} FROM {table} AS r WHERE r._key > %s ORDER BY r._key LIMIT %s"
    try:
        return [Row(*row) for row in await _fetch(conn, text, (after, limit))]
    except DAMAGE:
        pass
    async with conn.transaction():
        for setting in _TABLE_ONLY:  # an index may be what is broken
            await conn.execute(f"SET LOCAL {setting} = off")
        try:
            async with conn.transaction():
                await conn.execute("SET LOCAL ignore_checksum_failure = on")
        except psycopg.errors.InsufficientPrivilege:
            pass
        places = await _places(conn, table, (0, await _blocks(conn, table)), after, limit)
        return [await _row(conn, table, key, ctid) for key, ctid in sorted(places)[:limit]]


async def unreadable(conn: Connection, table: str) -> AsyncIterator[str]:
    """One sentence for each unreadable part of a table."""
    async for first, last, reason in _broken(conn, table, 0, await _blocks(conn, table)):
        blocks = f"Block {first}" if last == first else f"Blocks {first} to {last}"
        yield f"{blocks} of the table {table} cannot be read: {reason}."


async def amcheck(conn: Connection, table: str) -> AsyncIterator[str]:
    """What PostgreSQL's own checker finds, where an administrator has installed it."""
    found = await _fetch(
        conn,
        "SELECT quote_ident(n.nspname) FROM pg_extension AS e"
        " JOIN pg_namespace AS n ON n.oid = e.extnamespace WHERE e.extname = 'amcheck'",
        (),
    )
    if not found:
        return
    place = found[0][0]
    trees = await _fetch(
        conn,
        "SELECT i.indexrelid::regclass::text FROM pg_index AS i"
        " JOIN pg_class AS c ON c.oid = i.indexrelid JOIN pg_am AS a ON a.oid = c.relam"
        " WHERE i.indrelid = %s::text::regclass AND a.amname = 'btree'",
        (table,),
    )
    for (tree,) in trees:
        try:
            await conn.execute(f"SELECT {place}.bt_index_check(%s::text::regclass)", (tree,))
        except psycopg.errors.InsufficientPrivilege:
            return
        except DAMAGE as exc:
            yield f"The index {tree} is damaged: {_reason(exc)}."


async def _fetch(conn: Connection, text: str, params: tuple[Any, ...]) -> list[tuple[Any, ...]]:
    cursor = await conn.execute(text, params, binary=True)
    return await cursor.fetchall()


async def _blocks(conn: Connection, table: str) -> int:
    rows = await _fetch(
        conn,
        "SELECT pg_relation_size(%s::text::regclass) / current_setting('block_size')::bigint",
        (table,),
    )
    return int(rows[0][0])


async def _places(
    conn: Connection, table: str, blocks: tuple[int, int], after: str, limit: int
) -> list[tuple[str, str]]:
    """Key and place of the first `limit` readable rows after a key, in blocks [first, end)."""
    first, end = blocks
    if first >= end:
        return []
    text = (
        f"SELECT r._key, r.ctid::text FROM {table} AS r WHERE {_WITHIN} AND r._key > %s"
        " ORDER BY r._key LIMIT %s"
    )
    try:
        async with conn.transaction():
            return await _fetch(conn, text, (f"({first},0)", f"({end},0)", after, limit))
    except DAMAGE:
        if end - first == 1:
            return []
    middle = (first + end) // 2
    below = await _places(conn, table, (first, middle), after, limit)
    return below + await _places(conn, table, (middle, end), after, limit)


async def _row(conn: Connection, table: str, key: str, ctid: str) -> Row:
    try:
        async with conn.transaction():
            text = f"SELECT {FACTS} FROM {table} AS r WHERE r.ctid = %s::text::tid"
            return Row(*(await _fetch(conn, text, (ctid,)))[0])
    except (*DAMAGE, IndexError):
        return Row(key, b"", "", 0, 0, 0, 0, None, -1)


async def _broken(
    conn: Connection, table: str, first: int, end: int
) -> AsyncIterator[tuple[int, int, str]]:
    if first >= end:
        return
    try:
        text = f"SELECT count(r._version) FROM {table} AS r WHERE {_WITHIN}"
        await _fetch(conn, text, (f"({first},0)", f"({end},0)"))
    except DAMAGE as exc:
        if is_lost(exc):
            raise
        if end - first == 1:
            yield first, first, _reason(exc)
            return
        middle = (first + end) // 2
        for low, high in ((first, middle), (middle, end)):
            async for found in _broken(conn, table, low, high):
                yield found


def _reason(exc: BaseException) -> str:
    if isinstance(exc, psycopg.Error) and exc.diag.message_primary:
        return exc.diag.message_primary
    return str(exc)
