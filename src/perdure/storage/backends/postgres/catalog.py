"""The tables of a PostgreSQL bank, in a schema of their own.

Each collection is a table of its name; system columns begin with an underscore::

    _key      the key, ordered by code point (COLLATE "C")
    _tags     name=value, in an array
    _value    kept out of line and as it is: values come compressed
    …

Changing tables takes an advisory lock, so any number of processes may start at once.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, ClassVar

from perdure.core.errors import InvalidRecordType, NewerSchema, NotAStore, Unsupported
from perdure.storage.backends.postgres.address import PostgresServer, lock_space
from perdure.storage.backends.postgres.links import Connection
from perdure.storage.backends.sql_catalog import SQLCatalog
from perdure.storage.rows import Kind, Layout
from perdure.storage.tables import Built, Prepared

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
    if (
        await conn.value(
            "SELECT 1 FROM pg_class AS c JOIN pg_namespace AS n ON n.oid = c.relnamespace"
            " WHERE n.nspname = %s AND c.relname = 'perdure_meta'",
            (server.schema,),
        )
        is None
    ):
        return None
    return dict(await conn.rows(f"SELECT name, value FROM {server.schema}.perdure_meta"))


async def _create(conn: Connection, server: PostgresServer) -> None:
    row = await conn.row(
        "SELECT (SELECT count(*) FROM pg_class WHERE relnamespace = n.oid)"
        " FROM pg_namespace AS n WHERE nspname = %s",
        (server.schema,),
    )
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
    return (
        await conn.value(
            f"SELECT 1 FROM {schema}.perdure_outbox"
            " WHERE xid >= pg_snapshot_xmax(pg_current_snapshot()) LIMIT 1"
        )
        is not None
    )


async def _settle_in(conn: Connection, schema: str) -> None:
    """Make the events old here, and void positions of the former server."""
    await conn.execute(f"UPDATE {schema}.perdure_outbox SET xid = '0'")
    await conn.execute(f"UPDATE {schema}.perdure_meta SET value = value + 1 WHERE name = 'era'")


class PostgresCatalog(SQLCatalog):
    """The collections of a bank in a schema."""

    mark: ClassVar[str] = "%s"
    differs: ClassVar[str] = "IS DISTINCT FROM"
    row_id: ClassVar[str] = "_key"
    kinds: ClassVar[Mapping[Kind, str]] = {
        "text": 'text COLLATE "C"',
        "integer": "bigint",
        "real": "double precision",
    }

    def __init__(self, conn: Connection, schema: str) -> None:
        self._conn = conn
        self._schema = schema

    async def execute(self, text: str, params: Sequence[Any] = ()) -> None:
        await self._conn.execute(text, params or None)

    async def fetch(self, text: str, params: Sequence[Any] = ()) -> list[Any]:
        return await self._conn.rows(text, params or None)

    def place(self, name: str) -> str:
        return f'{self._schema}."{name}"'

    async def lock(self) -> None:
        await lock(self._conn, self._schema)

    async def prepare(self, layout: Layout, moment: int) -> Prepared:
        _check_names(layout)
        return await super().prepare(layout, moment)

    async def lay_out(self, layout: Layout) -> None:
        _check_names(layout)
        table = self.place(layout.name)
        columns = "".join(f'"{each.name}" {self.kinds[each.kind]}, ' for each in layout.columns)
        await self.execute(_TABLE.format(table=table, columns=columns))
        await self.execute(f"ALTER TABLE {table} ALTER COLUMN _value SET STORAGE EXTERNAL")

    async def clear(self) -> None:
        await self.lock()
        for name in await self.load():
            await self.execute(f"DROP TABLE {self.place(name)}")
        system = f"{self.place('perdure_collections')}, {self.place('perdure_outbox')}"
        await self.execute(f"TRUNCATE {system}")

    def definitions(self, layout: Layout, marked: Iterable[str]) -> dict[str, Built]:
        wanted = super().definitions(layout, marked)
        if layout.tagged:
            text = "USING gin (_tags)"
            wanted[self._label(layout.name, "tags", text)] = Built(text)
        return wanted

    async def _before_change(self) -> None:
        """The transaction is run again when it has waited: others would queue behind it for as
        long as somebody reads the table.
        """
        await self.execute(f"SET LOCAL lock_timeout = {_BRIEFLY}")

    async def _create_key(self, name: str) -> None:
        await self.execute(f"ALTER TABLE {self.place(name)} ADD PRIMARY KEY (_key)")

    def _indexed(self, column: str) -> str:
        if column in ("key", "created", "updated", "version"):
            return f"_{column}"
        return f'"{column}" NULLS FIRST'

    def _label(self, table: str, words: str, definition: str) -> str:
        """It tells one definition from another, and is not cut off by the server."""
        digest = hashlib.sha256(f"{table}{definition}".encode()).hexdigest()[:10]
        return f"{f'{table}__{words}'[:50]}__{digest}"


def _check_names(layout: Layout) -> None:
    for name in (layout.name, *(column.name for column in layout.columns)):
        if not _NAME(name):
            raise InvalidRecordType(
                f"{name!r} cannot be the name of a table or column.",
                hint="Use at most 63 letters, digits and underscores.",
            )
