"""The tables of a PostgreSQL bank, in a schema of their own.

Each collection is a table of its name; system columns begin with an underscore::

    _key      the key, ordered by code point (COLLATE "C")
    _tags     name=value, in an array
    _value    kept out of line and as it is: values come compressed
    …

Changing tables takes an advisory lock, so any number of processes may start at once.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any

import msgspec

from perdure.core.clock import Clock
from perdure.core.errors import InvalidRecordType, NewerSchema, NotAStore, Unsupported
from perdure.storage import tables
from perdure.storage.backends.postgres import indexes
from perdure.storage.backends.postgres.address import PostgresServer, lock_space
from perdure.storage.backends.postgres.apply import PostgresApplier
from perdure.storage.backends.postgres.errors import translated
from perdure.storage.backends.postgres.indexes import PostgresIndex, definitions, unfilled
from perdure.storage.backends.postgres.links import Connection, PostgresPool, PostgresReader
from perdure.storage.backends.postgres.writer import PostgresWriter
from perdure.storage.rows import Layout
from perdure.storage.tables import Built, Plan, Prepared, TableState

#: The parts of a `Row`, in its order.
FACTS = (
    "r._key, r._value, r._type, r._schema, r._version, r._created, r._updated, r._expires,"
    " r._checksum"
)
#: Raised when these tables change; a newer one than ours is refused.
FORMAT = 1
#: pg_snapshot and xid8, which the outbox needs, came with PostgreSQL 13.
_OLDEST = 130_000

_SYSTEM = """
CREATE TABLE {schema}.perdure_meta(name text PRIMARY KEY, value bigint NOT NULL);
CREATE TABLE {schema}.perdure_collections(
    name text COLLATE "C" PRIMARY KEY, layout text NOT NULL, held text NOT NULL);
CREATE TABLE {schema}.perdure_writers(
    id text PRIMARY KEY, ticket bigint NOT NULL, at timestamptz NOT NULL DEFAULT now());
CREATE TABLE {schema}.perdure_outbox(
    id bigint GENERATED ALWAYS AS IDENTITY,
    xid xid8 NOT NULL DEFAULT pg_current_xact_id(),
    at bigint NOT NULL, topic text NOT NULL, key text NOT NULL, payload bytea NOT NULL,
    PRIMARY KEY(xid, id));
INSERT INTO {schema}.perdure_meta VALUES('format', {format}), ('era', 1);
"""
_TABLE = """
CREATE TABLE {table}(
    _version bigint NOT NULL, _created bigint NOT NULL, _updated bigint NOT NULL,
    _expires bigint, _checksum bigint NOT NULL, _schema integer NOT NULL,
    _key text COLLATE "C" NOT NULL, _type text COLLATE "C" NOT NULL,
    _tags text[] COLLATE "C", {columns}_value bytea NOT NULL)
"""
_KEY = "ALTER TABLE {table} ADD PRIMARY KEY (_key)"
_KINDS = {"text": "text", "integer": "bigint", "real": "double precision"}
#: Milliseconds to wait for a table that is to be changed.
_BRIEFLY = 300
#: PostgreSQL cuts longer names off without an error.
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,62}").fullmatch


async def create(conn: Connection, server: PostgresServer) -> int:
    """Make what is missing, in a transaction of its own; returns the outbox's era. Refuses
    anything but a bank.
    """
    await _check_server(conn, server)
    async with conn.transaction():
        if await _meta(conn, server) is None:
            await lock(conn, server.schema)
            if await _meta(conn, server) is None:
                await _create(conn, server)
        found = await _meta(conn, server) or {}
        if found["format"] > FORMAT:
            raise NewerSchema(
                f"The bank {server.label} has format {found['format']};"
                f" this version reads up to {FORMAT}.",
                hint="Upgrade Perdure. The bank was left untouched.",
            )
        if await _moved(conn, server.schema):
            await lock(conn, server.schema)
            await _settle_in(conn, server.schema)
        await conn.execute(
            f"DELETE FROM {server.schema}.perdure_writers WHERE at < now() - interval '7 days'"
        )
        return (await _meta(conn, server) or {})["era"]


async def load(conn: Connection, schema: str) -> dict[str, Layout]:
    cursor = await conn.execute(f"SELECT layout FROM {schema}.perdure_collections ORDER BY name")
    layouts = [msgspec.json.decode(text, type=Layout) for (text,) in await cursor.fetchall()]
    return {layout.name: layout for layout in layouts}


async def declared(conn: Connection, schema: str) -> list[tuple[Layout, frozenset[str]]]:
    """All collections, by name, each with the columns that not every row has."""
    found = []
    for name in await load(conn, schema):
        layout, table = await known(conn, schema, name) or (Layout(name), TableState())
        lacking = await _unfilled(conn, f'{schema}."{name}"', table, table.columns)
        found.append((layout, table.stale() | lacking))
    return found


async def _unfilled(
    conn: Connection, place: str, table: TableState, columns: Iterable[str]
) -> frozenset[str]:
    """Those of the columns that somebody who does not know them has left out in some row."""
    found = set()
    for column in columns:
        held = table.columns[column]
        if held.marked and not held.stale:  # then its index of such rows is there
            condition = unfilled(column, held.schema)
            cursor = await conn.execute(f"SELECT 1 FROM {place} WHERE {condition} LIMIT 1")
            found |= {column} if await cursor.fetchone() else set()
    return frozenset(found)


async def peek(
    conn: Connection, schema: str, layout: Layout, moment: int
) -> tuple[bool, Prepared | None]:
    """Whether the collection was made, and what `prepare` would return if it changed nothing: no
    lock is needed then.
    """
    found = await known(conn, schema, layout.name)
    if found is None:
        return False, None
    before, table = found
    asked = tables.as_declared(layout, before)
    planned, wanted = _planned(table, asked, moment, empty=False)
    if (
        planned.table != table
        or not wanted.keys() <= table.indexes.keys()
        or table.missing(layout)
        or (asked.expires, asked.tagged) != (before.expires, before.tagged)
    ):
        return True, None
    marked = table.marked(layout)
    lacking = await _unfilled(conn, f'{schema}."{layout.name}"', table, marked)
    return True, Prepared(asked, marked, lacking)


async def prepare(conn: Connection, schema: str, layout: Layout, moment: int) -> Prepared:
    """Bring the table to this layout, but for its values and indexes. In a transaction. The lock
    timeout is short, and the transaction run again: long waits for a reader would block
    everybody else behind us.
    """
    _check_names(layout)
    await lock(conn, schema)
    name, place = layout.name, f'{schema}."{layout.name}"'
    found = await known(conn, schema, name)
    if found is None:
        await _create_table(conn, schema, layout)
        await conn.execute(_KEY.format(table=place))
        made = await _create_indexes(conn, schema, layout)
        await _remember(conn, schema, layout, TableState.of(layout, made))
        return Prepared(layout)
    before, table = found
    asked = tables.as_declared(layout, before)
    cursor = await conn.execute(f"SELECT 1 FROM {place} LIMIT 1")
    empty = await cursor.fetchone() is None
    planned, wanted = _planned(table, asked, moment, empty=empty)
    await _change(conn, schema, name, planned)
    await _remember(conn, schema, tables.merged(before, layout, planned.table), planned.table)
    marked = planned.table.marked(layout)
    return Prepared(
        asked,
        marked,
        planned.table.missing(layout) | await _unfilled(conn, place, planned.table, marked),
        tuple(label for label in wanted if label not in planned.table.indexes),
    )


async def built(conn: Connection, schema: str, layout: Layout, labels: Iterable[str]) -> None:
    """Indexes that `prepare` named are complete. In a transaction."""
    await lock(conn, schema)
    found = await known(conn, schema, layout.name)
    if found is not None:
        before, table = found
        wanted = definitions(layout, table.marked(layout))
        for label in labels:
            if label in wanted:
                table = table.with_index(label, Built(wanted[label].text, wanted[label].columns))
        await _remember(conn, schema, before, table)


async def activate(conn: Connection, schema: str, layout: Layout) -> None:
    """The columns are filled: trust them from now on. In a transaction."""
    await lock(conn, schema)
    found = await known(conn, schema, layout.name)
    if found is not None:
        before, table = found
        if (activated := table.activated(layout)) != table:
            await _remember(conn, schema, before, activated)


def _planned(
    table: TableState, layout: Layout, moment: int, *, empty: bool
) -> tuple[Plan, dict[str, PostgresIndex]]:
    planned = tables.plan(table, layout, moment, empty=empty)
    wanted = definitions(layout, planned.table.marked(layout))
    texts = {label: each.text for label, each in wanted.items()}
    return planned.wanting(table, texts, moment), wanted


async def _change(conn: Connection, schema: str, name: str, planned: Plan) -> None:
    changes = [f'DROP COLUMN "{column}"' for column in planned.replace]
    changes += [f"DROP COLUMN IF EXISTS {tables.mark_of(column)}" for column in planned.replace]
    changes += [f'ADD COLUMN "{new.name}" {_declared(new.kind)}' for new in planned.add]
    changes += [f"ADD COLUMN {tables.mark_of(column)} bigint" for column in planned.mark]
    if planned.drop or changes:
        await conn.execute(f"SET LOCAL lock_timeout = {_BRIEFLY}")
    for label in planned.drop:
        await conn.execute(f'DROP INDEX IF EXISTS {schema}."{label}"')
    for change in changes:
        await conn.execute(f'ALTER TABLE {schema}."{name}" {change}')


async def lay_out(conn: Connection, schema: str, layout: Layout) -> None:
    """Make the table of a collection that is not there, without indexes. In a transaction."""
    _check_names(layout)
    await _create_table(conn, schema, layout)


async def index(conn: Connection, schema: str, layout: Layout) -> None:
    table = f'{schema}."{layout.name}"'
    await conn.execute(_KEY.format(table=table))
    made = await _create_indexes(conn, schema, layout)
    await _remember(conn, schema, layout, TableState.of(layout, made))
    await conn.execute(f"ANALYZE {table}")


async def clear(conn: Connection, schema: str) -> None:
    """Remove every collection and event. In a transaction."""
    await lock(conn, schema)
    for name in await load(conn, schema):
        await conn.execute(f'DROP TABLE {schema}."{name}"')
    await conn.execute(f"TRUNCATE {schema}.perdure_collections, {schema}.perdure_outbox")


async def _check_server(conn: Connection, server: PostgresServer) -> None:
    if conn.info.server_version < _OLDEST:
        raise Unsupported(
            f"The server of {server.label} is PostgreSQL {conn.info.server_version // 10_000}.",
            hint="Use PostgreSQL 13 or later.",
        )
    encoding = conn.info.parameter_status("server_encoding")
    if encoding != "UTF8":
        raise Unsupported(
            f"The database {server.label} has the encoding {encoding}.",
            hint="Make one with CREATE DATABASE … ENCODING 'UTF8' TEMPLATE template0.",
        )


async def lock(conn: Connection, schema: str) -> None:
    """Keep others from changing tables until the transaction ends."""
    await conn.execute(f"SELECT pg_advisory_xact_lock({lock_space(schema)}, 0)")


async def _meta(conn: Connection, server: PostgresServer) -> dict[str, int] | None:
    # Not with to_regclass: what it has not found once it may not find again before the transaction
    # ends, though somebody made it while we waited for the lock.
    cursor = await conn.execute(
        "SELECT 1 FROM pg_class AS c JOIN pg_namespace AS n ON n.oid = c.relnamespace"
        " WHERE n.nspname = %s AND c.relname = 'perdure_meta'",
        (server.schema,),
    )
    if await cursor.fetchone() is None:
        return None
    cursor = await conn.execute(f"SELECT name, value FROM {server.schema}.perdure_meta")
    return dict(await cursor.fetchall())


async def _create(conn: Connection, server: PostgresServer) -> None:
    cursor = await conn.execute(
        "SELECT (SELECT count(*) FROM pg_class WHERE relnamespace = n.oid)"
        " FROM pg_namespace AS n WHERE nspname = %s",
        (server.schema,),
    )
    row = await cursor.fetchone()
    if row is None:
        await conn.execute(f"CREATE SCHEMA {server.schema}")
    elif row[0]:
        raise NotAStore(
            f"The schema {server.schema} of {server.label} holds tables of another program.",
            hint="Name another with ?schema=…; it was left untouched.",
        )
    await conn.execute(_SYSTEM.format(schema=server.schema, format=FORMAT))


async def _moved(conn: Connection, schema: str) -> bool:
    """Whether events bear transaction ids that this server has not given out yet, as after a
    restore from a dump: they would stay invisible for a long time.
    """
    cursor = await conn.execute(
        f"SELECT 1 FROM {schema}.perdure_outbox"
        " WHERE xid >= pg_snapshot_xmax(pg_current_snapshot()) LIMIT 1"
    )
    return await cursor.fetchone() is not None


async def _settle_in(conn: Connection, schema: str) -> None:
    """Make the events old here, and void positions of the former server."""
    await conn.execute(f"UPDATE {schema}.perdure_outbox SET xid = '0'")
    await conn.execute(f"UPDATE {schema}.perdure_meta SET value = value + 1 WHERE name = 'era'")


async def known(conn: Connection, schema: str, name: str) -> tuple[Layout, TableState] | None:
    """The layout of a collection, and what its table holds; None if it was not made."""
    cursor = await conn.execute(
        f"SELECT layout, held FROM {schema}.perdure_collections WHERE name = %s", (name,)
    )
    row = await cursor.fetchone()
    if row is None:
        return None
    layout, table = row
    return msgspec.json.decode(layout, type=Layout), msgspec.json.decode(table, type=TableState)


async def _remember(conn: Connection, schema: str, layout: Layout, table: TableState) -> None:
    await conn.execute(
        f"INSERT INTO {schema}.perdure_collections VALUES(%s, %s, %s) ON CONFLICT (name)"
        " DO UPDATE SET layout = excluded.layout, held = excluded.held",
        (
            layout.name,
            msgspec.json.encode(layout).decode(),
            msgspec.json.encode(table).decode(),
        ),
    )


async def _create_table(conn: Connection, schema: str, layout: Layout) -> None:
    table = f'{schema}."{layout.name}"'
    columns = "".join(f'"{column.name}" {_declared(column.kind)}, ' for column in layout.columns)
    await conn.execute(_TABLE.format(table=table, columns=columns))
    await conn.execute(f"ALTER TABLE {table} ALTER COLUMN _value SET STORAGE EXTERNAL")


async def _create_indexes(conn: Connection, schema: str, layout: Layout) -> dict[str, Built]:
    wanted = definitions(layout, ())
    for label, definition in wanted.items():
        await conn.execute(f'CREATE INDEX "{label}" ON {schema}."{layout.name}" {definition.text}')
    return {label: Built(each.text, each.columns) for label, each in wanted.items()}


def _declared(kind: str) -> str:
    return _KINDS[kind] + (' COLLATE "C"' if kind == "text" else "")


def _check_names(layout: Layout) -> None:
    names: list[Any] = [layout.name, *(column.name for column in layout.columns)]
    for name in names:
        if not _NAME(name):
            raise InvalidRecordType(
                f"{name!r} cannot be the name of a table or column.",
                hint="Use at most 63 letters, digits and underscores.",
            )


class PostgresUpkeep:
    """Prepares tables, and remembers which this process has prepared."""

    def __init__(
        self,
        server: PostgresServer,
        links: PostgresPool,
        writer: PostgresWriter,
        applier: PostgresApplier,
        clock: Clock,
    ) -> None:
        self._server = server
        self._schema = server.schema
        self._links = links
        self._reader = PostgresReader(links, server)
        self._writer = writer
        self._applier = applier
        self._clock = clock
        self._prepared: dict[str, Prepared] = {}

    async def prepare(self, layout: Layout, *, make: bool) -> Prepared | None:
        moment, schema = self._clock(), self._schema
        is_there, known = await self._reader.run(lambda conn: peek(conn, schema, layout, moment))
        if known is None:
            if not make and not is_there:
                return None
            known = await self._writer.run(lambda conn: prepare(conn, schema, layout, moment))
        self._applier.define(known.layout, known.marked)
        self._prepared[layout.name] = known
        if not known.missing:
            await self._build(known)
        return known

    async def is_prepared(self, layout: Layout) -> bool:
        prepared = self._prepared.get(layout.name)
        if prepared is None:
            return False
        found = await self._reader.run(lambda conn: known(conn, self._schema, layout.name))
        wanted = indexes.definitions(prepared.layout, prepared.marked)
        return found is not None and found[1].suits(prepared, wanted)

    async def unfilled(self, collection: str, position: str, limit: int) -> tuple[list[str], str]:
        """Positions are keys."""
        known = self._prepared[collection]
        found: set[str] = set()
        for column in known.marked:
            rows = await self._reader.fetch(
                f'SELECT _key FROM {self._schema}."{collection}" WHERE _key > %s'
                f" AND {indexes.unfilled(column, known.layout.schema)} ORDER BY _key LIMIT %s",
                (position, limit),
            )
            found |= {row[0] for row in rows}
        keys = sorted(found)[:limit]
        return keys, keys[-1] if keys else position

    async def activate(self, layout: Layout) -> None:
        await self._build(self._prepared[layout.name])
        await self._writer.run(lambda conn: activate(conn, self._schema, layout), strong=True)

    async def _build(self, known: Prepared) -> None:
        if not known.unbuilt:
            return
        wanted = indexes.definitions(known.layout, known.marked)
        chosen = {label: wanted[label] for label in known.unbuilt}
        with translated(self._server):
            await indexes.build(self._links, self._server, known.layout, chosen)
        await self._writer.run(lambda conn: built(conn, self._schema, known.layout, chosen))
