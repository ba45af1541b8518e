"""Reads what a damaged bank still holds.

PostgreSQL refuses all rows of a page with a wrong checksum. A superuser may read it anyway; the
checksum of each record then tells which ones are damaged.
"""

from __future__ import annotations

from typing import Any

import psycopg

from perdure.storage.backends.postgres.catalog import FACTS
from perdure.storage.backends.postgres.errors import DAMAGE
from perdure.storage.backends.postgres.links import Connection
from perdure.storage.rows import Row

_TABLE_ONLY = ("enable_indexscan", "enable_indexonlyscan", "enable_bitmapscan")
_WITHIN = "r.ctid >= %s::text::tid AND r.ctid < %s::text::tid"


async def salvage(conn: Connection, table: str, after: str, limit: int) -> list[Row]:
    """Rows in key order; unreadable ones come back empty, with checksum -1."""
    text = f"SELECT {FACTS} FROM {table} AS r WHERE r._key > %s ORDER BY r._key LIMIT %s"
    try:
        return [Row(*row) for row in await conn.rows(text, (after, limit), binary=True)]
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
        text = (
            f"SELECT r._key, r.ctid::text FROM {table} AS r WHERE {_WITHIN} AND r._key > %s"
            " ORDER BY r._key LIMIT %s"
        )
        places, _ = await _readable(conn, text, (after, limit), 0, await _blocks(conn, table))
        return [await _row(conn, table, key, ctid) for key, ctid in sorted(places)[:limit]]


async def unreadable(conn: Connection, table: str) -> list[str]:
    """One sentence for each unreadable block of a table."""
    text = f"SELECT count(r._version) FROM {table} AS r WHERE {_WITHIN}"
    _, broken = await _readable(conn, text, (), 0, await _blocks(conn, table))
    return [f"Block {block} of the table {table} cannot be read: {why}." for block, why in broken]


async def _blocks(conn: Connection, table: str) -> int:
    text = "SELECT pg_relation_size(%s::text::regclass) / current_setting('block_size')::bigint"
    return int(await conn.value(text, (table,)))


async def _readable(
    conn: Connection, text: str, params: tuple[Any, ...], first: int, end: int
) -> tuple[list[tuple[Any, ...]], list[tuple[int, str]]]:
    """The rows of a statement for the blocks [first, end), and which of them cannot be read."""
    if first >= end:
        return [], []
    try:
        async with conn.transaction():
            return await conn.rows(text, (f"({first},0)", f"({end},0)", *params), binary=True), []
    except DAMAGE as exc:
        if end - first == 1:
            return [], [(first, _reason(exc))]
    middle = (first + end) // 2
    rows, broken = await _readable(conn, text, params, first, middle)
    more, also_broken = await _readable(conn, text, params, middle, end)
    return rows + more, broken + also_broken


async def _row(conn: Connection, table: str, key: str, ctid: str) -> Row:
    try:
        async with conn.transaction():
            text = f"SELECT {FACTS} FROM {table} AS r WHERE r.ctid = %s::text::tid"
            return Row(*(await conn.rows(text, (ctid,), binary=True))[0])
    except (*DAMAGE, IndexError):
        return Row(key, b"", "", 0, 0, 0, 0, None, -1)


def _reason(exc: BaseException) -> str:
    if isinstance(exc, psycopg.Error) and exc.diag.message_primary:
        return exc.diag.message_primary
    return str(exc)
