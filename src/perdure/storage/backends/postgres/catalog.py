"""The tables of a PostgreSQL bank.

They lie in a schema of their own. Each collection is a table of its own name; system columns begin
with an underscore::

    _key      the key, ordered by code point (COLLATE "C")
    _tags     name=value, in an array
    _value    kept out of line and as it is: values come compressed
    …

Whoever changes tables holds an advisory lock, so any number of processes may start at once.
"""

from __future__ import annotations

import hashlib
import re
import zlib
from typing import Any

import msgspec

from perdure.core.errors import InvalidRecordType, NewerSchema, NotAStore, Unsupported
from perdure.storage.adapter import Layout, Staleness
from perdure.storage.backends.postgres.address import Server
from perdure.storage.backends.postgres.links import Connection
from perdure.storage.sql import literal

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
    name text COLLATE "C" PRIMARY KEY, layout text NOT NULL, stale text NOT NULL);
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
    _key text COLLATE "C" PRIMARY KEY, _type text COLLATE "C" NOT NULL,
    _tags text[] COLLATE "C", {columns}_value bytea NOT NULL)
"""
_KINDS = {"text": "text", "integer": "bigint", "real": "double precision"}
#: An index that we made; a database administrator may have added others.
_OURS = re.compile(r"__[0-9a-f]{10}$").search
#: PostgreSQL cuts longer names off without an error.
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,62}").fullmatch


def lock_space(schema: str) -> int:
    """The first half of our advisory locks; the second is 0 for the catalog, else events."""
    return zlib.crc32(f"perdure {schema}".encode()) - 2**31


async def create(conn: Connection, server: Server) -> int:
    """Make what is missing; accept a bank; refuse anything else. Returns the outbox's era.

    Runs in a transaction of its own.
    """
    await _check_server(conn, server)
    async with conn.transaction():
        if await _meta(conn, server) is None:
            await _lock(conn, server.schema)
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
            await _lock(conn, server.schema)
            await _settle_in(conn, server.schema)
        await conn.execute(
            f"DELETE FROM {server.schema}.perdure_writers WHERE at < now() - interval '7 days'"
        )
        return (await _meta(conn, server) or {})["era"]


async def load(conn: Connection, schema: str) -> dict[str, Layout]:
    """All collections of the bank, as they were last declared."""
    cursor = await conn.execute(f"SELECT layout FROM {schema}.perdure_collections ORDER BY name")
    layouts = [msgspec.json.decode(text, type=Layout) for (text,) in await cursor.fetchall()]
    return {layout.name: layout for layout in layouts}


async def peek(
    conn: Connection, schema: str, layout: Layout
) -> tuple[Layout, frozenset[str]] | None:
    """What `prepare` would return if it would change nothing: no lock is needed then."""
    known = await _known(conn, schema, layout.name)
    if known is None or known[0] != layout or known[1] & {c.name for c in layout.columns}:
        return None
    return layout, frozenset()


async def prepare(conn: Connection, schema: str, layout: Layout) -> tuple[Layout, frozenset[str]]:
    """Bring the table to this layout, and return it with the columns that rows lack.

    The layout returned expires or is tagged if the collection ever did or was. In a transaction.
    """
    _check_names(layout)
    await _lock(conn, schema)
    name, table = layout.name, f'{schema}."{layout.name}"'
    known = await _known(conn, schema, name)
    if known is None:
        columns = "".join(
            f'"{column.name}" {_declared(column.kind)}, ' for column in layout.columns
        )
        await conn.execute(_TABLE.format(table=table, columns=columns))
        await conn.execute(f"ALTER TABLE {table} ALTER COLUMN _value SET STORAGE EXTERNAL")
        await _create_indexes(conn, schema, layout)
        await _remember(conn, schema, layout, frozenset())
        return layout, frozenset()
    before, stale = known
    merged = _merged(layout, before)
    if before == layout and stale.isdisjoint(column.name for column in layout.columns):
        return merged, frozenset()
    present = await _columns(conn, schema, name)
    for column in layout.columns:
        kind = _KINDS[column.kind]
        if present.get(column.name, kind) != kind:
            # With it go the indexes that it is in.
            await conn.execute(f'ALTER TABLE {table} DROP COLUMN "{column.name}"')
            del present[column.name]
        if column.name not in present:
            await conn.execute(
                f'ALTER TABLE {table} ADD COLUMN "{column.name}" {_declared(column.kind)}'
            )
    cursor = await conn.execute(f"SELECT 1 FROM {table} LIMIT 1")
    empty = await cursor.fetchone() is None
    found = Staleness.after(before, stale, layout, empty=empty)
    await _remember(conn, schema, merged, found.stale)
    if not found.missing:
        await _create_indexes(conn, schema, merged)
    return merged, found.missing


async def activate(conn: Connection, schema: str, layout: Layout) -> None:
    """The columns are filled: build the indexes and trust them from now on. In a transaction."""
    await _lock(conn, schema)
    before, stale = await _known(conn, schema, layout.name) or (layout, frozenset[str]())
    merged = _merged(layout, before)
    await _create_indexes(conn, schema, merged)
    await _remember(conn, schema, merged, stale - {column.name for column in layout.columns})


# The server and the system tables ---------------------------------------------------------------


async def _check_server(conn: Connection, server: Server) -> None:
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


async def _lock(conn: Connection, schema: str) -> None:
    await conn.execute(f"SELECT pg_advisory_xact_lock({lock_space(schema)}, 0)")


async def _meta(conn: Connection, server: Server) -> dict[str, int] | None:
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


async def _create(conn: Connection, server: Server) -> None:
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
    """Whether events bear transaction ids that this server has not given out yet.

    So it is after a restore from a dump: they would stay invisible for a long time.
    """
    cursor = await conn.execute(
        f"SELECT 1 FROM {schema}.perdure_outbox"
        " WHERE xid >= pg_snapshot_xmax(pg_current_snapshot()) LIMIT 1"
    )
    return await cursor.fetchone() is not None


async def _settle_in(conn: Connection, schema: str) -> None:
    """Let the events be old here, and positions of the former server be void."""
    await conn.execute(f"UPDATE {schema}.perdure_outbox SET xid = '0'")
    await conn.execute(f"UPDATE {schema}.perdure_meta SET value = value + 1 WHERE name = 'era'")


# Collections --------------------------------------------------------------------------------------


async def _known(conn: Connection, schema: str, name: str) -> tuple[Layout, frozenset[str]] | None:
    cursor = await conn.execute(
        f"SELECT layout, stale FROM {schema}.perdure_collections WHERE name = %s", (name,)
    )
    row = await cursor.fetchone()
    if row is None:
        return None
    stale = frozenset(msgspec.json.decode(row[1], type=list[str]))
    return msgspec.json.decode(row[0], type=Layout), stale


async def _remember(conn: Connection, schema: str, layout: Layout, stale: frozenset[str]) -> None:
    await conn.execute(
        f"INSERT INTO {schema}.perdure_collections VALUES(%s, %s, %s) ON CONFLICT (name)"
        " DO UPDATE SET layout = excluded.layout, stale = excluded.stale",
        (
            layout.name,
            msgspec.json.encode(layout).decode(),
            msgspec.json.encode(sorted(stale)).decode(),
        ),
    )


async def _columns(conn: Connection, schema: str, name: str) -> dict[str, str]:
    """The columns of a table and their types."""
    cursor = await conn.execute(
        "SELECT attname, format_type(atttypid, atttypmod) FROM pg_attribute"
        " WHERE attrelid = to_regclass(%s) AND attnum > 0 AND NOT attisdropped",
        (f'{schema}."{name}"',),
    )
    return dict(await cursor.fetchall())


def _merged(layout: Layout, before: Layout) -> Layout:
    """Rows that were written with an expiry time or tags still have them."""
    return msgspec.structs.replace(
        layout, expires=layout.expires or before.expires, tagged=layout.tagged or before.tagged
    )


async def _create_indexes(conn: Connection, schema: str, layout: Layout) -> None:
    """The declared indexes, and no other: one that is not declared only costs.

    An index is named after its definition, so that a name tells whether it is the right one.
    """
    table = f'{schema}."{layout.name}"'
    wanted: dict[str, str] = {}
    for index in layout.indexes:
        columns = ", ".join(_sorted(column) for column in index.columns)
        where = " AND ".join(f'"{column}" = {literal(value)}' for column, value in index.where)
        definition = f"({columns})" + (f" WHERE {where}" if where else "")
        wanted[_label(layout.name, "_".join(index.columns), definition)] = definition
    if layout.expires:
        definition = "(_expires) WHERE _expires IS NOT NULL"
        wanted[_label(layout.name, "expiry", definition)] = definition
    if layout.tagged:
        wanted[_label(layout.name, "tags", "gin")] = "USING gin (_tags)"
    cursor = await conn.execute(
        "SELECT c.relname FROM pg_index AS i JOIN pg_class AS c ON c.oid = i.indexrelid"
        " WHERE i.indrelid = to_regclass(%s) AND NOT i.indisprimary",
        (table,),
    )
    present = {row[0] for row in await cursor.fetchall() if _OURS(row[0])}
    for label in present - wanted.keys():
        await conn.execute(f'DROP INDEX {schema}."{label}"')
    for label, definition in wanted.items():
        if label not in present:
            text = definition if definition.startswith("USING") else f"USING btree {definition}"
            await conn.execute(f'CREATE INDEX "{label}" ON {table} {text}')


def _label(table: str, words: str, definition: str) -> str:
    digest = hashlib.sha256(f"{table}{definition}".encode()).hexdigest()[:10]
    return f"{f'{table}__{words}'[:50]}__{digest}"


def _sorted(column: str) -> str:
    """A column of an index, with NULL where `sql.Emitter` has it: below everything."""
    if column in ("key", "created", "updated", "version"):
        return f"_{column}"
    return f'"{column}" NULLS FIRST'


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
