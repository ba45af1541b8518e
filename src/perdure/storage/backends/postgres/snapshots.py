"""A bank on a server as it was at one moment, read while others write.

A snapshot is a REPEATABLE READ transaction on a connection of its own. It keeps nobody from
writing; but whoever declares a type that changes a table waits until it ends. While it lasts, the
server cannot remove rows that were deleted or overwritten since. The rows come by COPY, as a
stream: the server sends no more than is taken.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Any, TypeVar

from psycopg import errors as pg

from perdure.core.errors import Unavailable
from perdure.storage.adapter import Snapshot
from perdure.storage.backends.postgres import catalog
from perdure.storage.backends.postgres.address import Server
from perdure.storage.backends.postgres.catalog import FACTS
from perdure.storage.backends.postgres.errors import translated
from perdure.storage.backends.postgres.links import Connection, Links
from perdure.storage.layouts import Layout
from perdure.storage.rows import Delivered, Entry, Row
from perdure.storage.snapshots import closing

T = TypeVar("T")

#: A page ends with the row that reaches either.
PAGE_BYTES = 1024 * 1024
PAGE_ROWS = 2_000

_BEGIN = "BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY"
#: How often it is tried again, if tables come or go meanwhile.
_ATTEMPTS = 20
#: The types of `FACTS`, and of the parts of an event.
FACT_TYPES = ("text", "bytea", "text", "int4", "int8", "int8", "int8", "int8", "int8")
EVENT_TYPES = ("int8", "text", "text", "bytea", "int8")
KINDS = {"text": "text", "integer": "int8", "real": "float8"}


@asynccontextmanager
async def taken(links: Links, server: Server, moment: int) -> AsyncIterator[Snapshot]:
    """A snapshot of the bank; rows that have expired at the moment are left out."""
    with translated(server):  # our own calls only: what the caller raises is not the bank's fault
        conn = await links.connect()
    try:
        with translated(server):
            layouts = await _begin(conn, server)
        yield _Snapshot(conn, server, layouts, moment)
    finally:
        await conn.close()


async def _begin(conn: Connection, server: Server) -> list[Layout]:
    """Begin the transaction; returns what is in it.

    A change of a table (a column that gets another type, say) is seen by everybody at once,
    whatever their snapshot. So the tables are locked first, before the first read fixes the
    moment: nobody changes them from then on.
    """
    for _ in range(_ATTEMPTS):
        names = await catalog.load(conn, server.schema)
        await conn.execute(_BEGIN)
        try:
            if names:
                tables = ", ".join(f'{server.schema}."{name}"' for name in names)
                await conn.execute(f"LOCK TABLE {tables} IN ACCESS SHARE MODE")
            # The first read: from here on nothing changes.
            declared = await catalog.declared(conn, server.schema)
        except pg.UndefinedTable:  # somebody replaced the bank in between
            declared = []
        else:
            if names.keys() >= {layout.name for layout, _ in declared}:
                return [layout.without(stale) for layout, stale in declared]
        await conn.execute("ROLLBACK")
    raise Unavailable(
        f"The tables of the bank {server.label} change all the time.", hint="Try again later."
    )


class _Snapshot(Snapshot):
    def __init__(
        self, conn: Connection, server: Server, layouts: Sequence[Layout], moment: int
    ) -> None:
        self._conn = conn
        self._server = server
        self._layouts = {layout.name: layout for layout in layouts}
        self._moment = moment

    async def layouts(self) -> list[Layout]:
        return list(self._layouts.values())

    async def count(self, collection: str) -> int:
        return await self._number(f"SELECT count(*) FROM {self._table(collection)}")

    async def entries(self, collection: str) -> AsyncIterator[list[Entry]]:
        layout = self._layouts[collection]
        names = "".join(f', r."{column.name}"' for column in layout.columns)
        alive = " WHERE r._expires IS NULL OR r._expires > %s" if layout.expires else ""
        text = f"SELECT {FACTS}, r._tags{names} FROM {self._table(collection)} AS r{alive}"
        types = [*FACT_TYPES, "text[]", *(KINDS[column.kind] for column in layout.columns)]
        params = (self._moment,) if alive else ()
        async with closing(
            self._pages(text, params, types, _entry, lambda row: len(row[1]))
        ) as pages:
            async for page in pages:
                yield page

    async def events(self) -> AsyncIterator[list[Delivered]]:
        table = f"{self._server.schema}.perdure_outbox"
        # By id, as others will read them: per key that is the order of the commits, too.
        text = f"SELECT id, topic, key, payload, at FROM {table} ORDER BY id"
        async with closing(
            self._pages(text, (), EVENT_TYPES, lambda row: Delivered(*row), lambda row: len(row[3]))
        ) as pages:
            async for page in pages:
                yield page

    async def last_event(self) -> int:
        # Not of the snapshot's moment, which a sequence does not know: a later one does no harm.
        sequence = f"pg_get_serial_sequence('{self._server.schema}.perdure_outbox', 'id')"
        return await self._number(f"SELECT coalesce(pg_sequence_last_value({sequence}), 0)")

    # ------------------------------------------------------------------------------------------

    def _table(self, collection: str) -> str:
        return f'{self._server.schema}."{self._layouts[collection].name}"'

    async def _number(self, text: str) -> int:
        with translated(self._server):
            cursor = await self._conn.execute(text)
            row = await cursor.fetchone()
            return int(row[0]) if row else 0

    async def _pages(
        self,
        text: str,
        params: Sequence[Any],
        types: Sequence[str],
        make: Callable[[tuple[Any, ...]], T],
        size_of: Callable[[tuple[Any, ...]], int],
    ) -> AsyncIterator[list[T]]:
        page: list[T] = []
        size = 0
        with translated(self._server):
            async with (
                self._conn.cursor() as cursor,
                cursor.copy(f"COPY ({text}) TO STDOUT (FORMAT BINARY)", params) as copy,
            ):
                copy.set_types(types)
                async for row in copy.rows():
                    page.append(make(row))
                    size += size_of(row)
                    if size >= PAGE_BYTES or len(page) >= PAGE_ROWS:
                        yield page
                        page, size = [], 0
        if page:
            yield page


def _entry(row: tuple[Any, ...]) -> Entry:
    pairs = (text.partition("=") for text in row[9] or ())
    return Entry(Row(*row[:9]), row[10:], tuple([(name, value) for name, _, value in pairs]))
