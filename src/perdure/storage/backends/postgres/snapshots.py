"""Snapshots of a bank on a server, taken while others write; and loading them.

A snapshot is a REPEATABLE READ transaction on its own connection. It blocks no writers, only
changes of tables; while it lasts, the server cannot remove deleted rows. Rows are streamed by
COPY.

A bank is filled in one transaction under an exclusive lock that open banks share, so nobody goes
on with layouts or positions of the former bank. (A process whose connections have all broken is
not seen: restart it after its bank was replaced.)
"""

from __future__ import annotations

import secrets
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from contextlib import asynccontextmanager
from typing import Any, TypeVar

import msgspec
from psycopg import errors as pg

from perdure.core.errors import Unavailable
from perdure.storage.adapter import Snapshot
from perdure.storage.backends.postgres.address import PostgresServer, lock_space
from perdure.storage.backends.postgres.catalog import FACTS, PostgresCatalog
from perdure.storage.backends.postgres.errors import translated
from perdure.storage.backends.postgres.extension import PostgresExtension
from perdure.storage.backends.postgres.links import PATIENT, PRESENCE, Connection, PostgresPool
from perdure.storage.rows import Delivered, Layout, Row, RowCopy
from perdure.storage.snapshots import PAGE_BYTES, PAGE_ROWS, closing, tag_pairs

T = TypeVar("T")

_BEGIN = "BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY"
#: How often it is tried again, if tables come or go meanwhile.
_ATTEMPTS = 20
#: The types of `FACTS`, and of the parts of an event.
_FACT_TYPES = ("text", "bytea", "text", "int4", "int8", "int8", "int8", "int8", "int8")
_EVENT_TYPES = ("int8", "text", "text", "bytea", "int8")
_KINDS = {"text": "text", "integer": "int8", "real": "float8"}
_NAMES = "_key, _value, _type, _schema, _version, _created, _updated, _expires, _checksum, _tags"
_BINARY = "FROM STDIN (FORMAT BINARY)"
_SYNC = "SELECT set_config('synchronous_commit', 'on', true)"


@asynccontextmanager
async def take_snapshot(
    links: PostgresPool, server: PostgresServer, moment: int
) -> AsyncIterator[Snapshot]:
    """Without rows that have expired at the moment."""
    with translated(server):  # our own calls only: what the caller raises is not the bank's fault
        conn = await links.connect()
    try:
        with translated(server):
            layouts = await _begin(conn, server)
        yield _Snapshot(conn, server, layouts, moment)
    finally:
        await conn.close()


async def _begin(conn: Connection, server: PostgresServer) -> list[Layout]:
    """Begin the transaction; returns what is in it. Changes of a table are visible in any
    snapshot. So the tables are locked before the first read fixes the moment.
    """
    catalog = PostgresCatalog(conn, server.schema)
    for _ in range(_ATTEMPTS):
        names = await catalog.load()
        await conn.execute(_BEGIN)
        await conn.execute(PATIENT)
        try:
            if names:
                tables = ", ".join(f'{server.schema}."{name}"' for name in names)
                await conn.execute(f"LOCK TABLE {tables} IN ACCESS SHARE MODE")
            layouts = await catalog.complete()
        except pg.UndefinedTable:  # somebody replaced the bank in between
            pass
        else:
            if names.keys() >= {layout.name for layout in layouts}:
                return layouts
        await conn.execute("ROLLBACK")
    raise Unavailable(
        f"The tables of the bank {server.label} change all the time.", hint="Try again later."
    )


class _Snapshot(Snapshot):
    def __init__(
        self, conn: Connection, server: PostgresServer, layouts: Sequence[Layout], moment: int
    ) -> None:
        self._conn = conn
        self._server = server
        self._layouts = {layout.name: layout for layout in layouts}
        self._moment = moment

    async def layouts(self) -> list[Layout]:
        return list(self._layouts.values())

    async def count(self, collection: str) -> int:
        return await self._number(f"SELECT count(*) FROM {self._table(collection)}")

    def entries(self, collection: str) -> AsyncIterator[list[RowCopy]]:
        layout = self._layouts[collection]
        names = "".join(f', r."{column.name}"' for column in layout.columns)
        alive = " WHERE r._expires IS NULL OR r._expires > %s" if layout.expires else ""
        text = f"SELECT {FACTS}, r._tags{names} FROM {self._table(collection)} AS r{alive}"
        types = [*_FACT_TYPES, "text[]", *(_KINDS[column.kind] for column in layout.columns)]
        params = (self._moment,) if alive else ()
        return self._pages(text, params, types, _entry, lambda row: len(row[1]))

    def events(self) -> AsyncIterator[list[Delivered]]:
        table = f"{self._server.schema}.perdure_outbox"
        # By id, as others will read them: per key that is the order of the commits, too.
        text = f"SELECT id, topic, key, payload, at FROM {table} ORDER BY id"
        return self._pages(
            text, (), _EVENT_TYPES, lambda row: Delivered(*row), lambda row: len(row[3])
        )

    async def last_event(self) -> int:
        # Not of the snapshot's moment, which a sequence does not know: a later one does no harm.
        sequence = f"pg_get_serial_sequence('{self._server.schema}.perdure_outbox', 'id')"
        return await self._number(f"SELECT coalesce(pg_sequence_last_value({sequence}), 0)")

    def _table(self, collection: str) -> str:
        return f'{self._server.schema}."{self._layouts[collection].name}"'

    async def _number(self, text: str) -> int:
        with translated(self._server):
            return int(await self._conn.value(text))

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


def _entry(row: tuple[Any, ...]) -> RowCopy:
    return RowCopy(Row(*row[:9]), row[10:], tag_pairs(row[9] or ()))


class BankLoader:
    """Loads a snapshot. `links` is a pool of its own, without any other connection."""

    def __init__(
        self,
        links: PostgresPool,
        server: PostgresServer,
        moment: int,
        extensions: Iterable[PostgresExtension],
    ) -> None:
        self._extensions = extensions
        self._links = links
        self._server = server
        self._schema = server.schema
        self._moment = moment

    async def load(self, source: Snapshot, *, replace: bool) -> int:
        with translated(self._server):
            conn = await self._links.connect()
            async with conn:
                await conn.execute("BEGIN ISOLATION LEVEL READ COMMITTED READ WRITE")
                await conn.execute(_SYNC)
                await conn.execute(PATIENT)
                await self._be_alone(conn)
                if not replace:
                    await PostgresCatalog(conn, self._schema).check_empty(self._moment)
                await self._begin_era(conn)
                count = await self._fill(conn, source)
                await conn.execute("COMMIT")
            return count

    async def _be_alone(self, conn: Connection) -> None:
        lock = f"pg_try_advisory_xact_lock({lock_space(self._schema)}, {PRESENCE})"
        if not await conn.value(f"SELECT {lock}"):
            raise Unavailable(
                f"Somebody has the bank {self._server.label} open, so it cannot be filled.",
                hint="End the programs that use it, and try again. Nothing was changed.",
            )

    async def _begin_era(self, conn: Connection) -> None:
        """Void the positions of other banks and servers: no two loads have the same era."""
        era = secrets.randbits(62)
        text = f"UPDATE {self._schema}.perdure_meta SET value = {era} WHERE name = 'era'"
        await conn.execute(text)

    async def _fill(self, conn: Connection, source: Snapshot) -> int:
        catalog = PostgresCatalog(conn, self._schema)
        await catalog.clear()
        for extension in self._extensions:
            await extension.clear(conn)
        count = 0
        for layout in await source.layouts():
            await catalog.lay_out(layout)
            count += await self._rows(conn, source, layout)
            await catalog.index(layout)
            await conn.execute(f"ANALYZE {catalog.place(layout.name)}")
        await self._events(conn, source)
        return count

    async def _rows(self, conn: Connection, source: Snapshot, layout: Layout) -> int:
        columns = "".join(f', "{column.name}"' for column in layout.columns)
        text = f'COPY {self._schema}."{layout.name}"({_NAMES}{columns})'
        types = [*_FACT_TYPES, "text[]", *(_KINDS[column.kind] for column in layout.columns)]
        count = 0
        async with conn.cursor() as cursor, cursor.copy(f"{text} {_BINARY}") as copy:
            copy.set_types(types)
            async with closing(source.entries(layout.name)) as pages:
                async for page in pages:
                    for entry in page:
                        await copy.write_row(_values(entry))
                    count += len(page)
        return count

    async def _events(self, conn: Connection, source: Snapshot) -> None:
        table = f"{self._schema}.perdure_outbox"
        text = f"COPY {table}(id, topic, key, payload, at) {_BINARY}"
        async with conn.cursor() as cursor, cursor.copy(text) as copy:
            copy.set_types(_EVENT_TYPES)
            async with closing(source.events()) as outbox:
                async for page in outbox:
                    for event in page:
                        await copy.write_row(msgspec.structs.astuple(event))
        # Ids given later are higher than those of the source, and than those given here before.
        last = f"coalesce(pg_sequence_last_value(pg_get_serial_sequence('{table}', 'id')), 0)"
        await conn.execute(
            f"SELECT setval(pg_get_serial_sequence('{table}', 'id'),"
            f" greatest({last}, {await source.last_event()}, 1))"
        )


def _values(entry: RowCopy) -> tuple[Any, ...]:
    tags = sorted({f"{name}={value}" for name, value in entry.tags}) or None
    return *msgspec.structs.astuple(entry.row), tags, *entry.columns
