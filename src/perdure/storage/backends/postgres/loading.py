"""Filling a bank from a snapshot: everything in one transaction, alone with the bank.

Whoever has the bank open shares a lock; the loader wants it for itself. So nobody goes on with
layouts or positions of a bank that is no longer there. (A process whose connections have all broken
is not seen: it should be started again after its bank was replaced.)
"""

from __future__ import annotations

import secrets
from collections.abc import Iterable
from typing import Any

import psycopg

from perdure.core.errors import Unavailable
from perdure.storage.adapter import Snapshot, not_empty
from perdure.storage.backends.postgres import catalog
from perdure.storage.backends.postgres.address import Server, lock_space
from perdure.storage.backends.postgres.errors import is_lost, translated
from perdure.storage.backends.postgres.extension import PostgresExtension
from perdure.storage.backends.postgres.links import PRESENCE, Connection, Links
from perdure.storage.backends.postgres.snapshots import EVENT_TYPES, FACT_TYPES, KINDS
from perdure.storage.extension import Extensions
from perdure.storage.layouts import Layout
from perdure.storage.rows import Delivered, Entry
from perdure.storage.snapshots import closing

_FACTS = "_key, _value, _type, _schema, _version, _created, _updated, _expires, _checksum"
_SYNC = "SELECT set_config('synchronous_commit', 'on', true)"


class Loader:
    """Takes over a snapshot. `links` is a pool of its own, without any other connection."""

    def __init__(
        self,
        links: Links,
        server: Server,
        moment: int,
        extensions: Extensions[PostgresExtension],
    ) -> None:
        self._extensions = extensions
        self._links = links
        self._server = server
        self._schema = server.schema
        self._moment = moment

    async def load(self, source: Snapshot, *, replace: bool) -> int:
        """See `Adapter.load`."""
        with translated(self._server):
            conn = await self._links.connect()
            async with conn:
                await conn.execute("BEGIN ISOLATION LEVEL READ COMMITTED READ WRITE")
                await conn.execute(_SYNC)
                await self._be_alone(conn)
                if not replace:
                    await self._check_empty(conn)
                era = await self._begin_era(conn)
                count = await self._fill(conn, source)
                await self._commit(conn, era)
            return count

    async def _be_alone(self, conn: Connection) -> None:
        lock = f"pg_try_advisory_xact_lock({lock_space(self._schema)}, {PRESENCE})"
        if not await _first(conn, f"SELECT {lock}"):
            raise Unavailable(
                f"Somebody has the bank {self._server.label} open, so it cannot be filled.",
                hint="End the programs that use it, and try again. Nothing was changed.",
            )

    async def _check_empty(self, conn: Connection) -> None:
        for layout in (await catalog.load(conn, self._schema)).values():
            text = (
                f'SELECT 1 FROM {self._schema}."{layout.name}"'
                f" WHERE _expires IS NULL OR _expires > {self._moment} LIMIT 1"
            )
            if await _first(conn, text):
                raise not_empty(layout.name)
        if await _first(conn, f"SELECT 1 FROM {self._schema}.perdure_outbox LIMIT 1"):
            raise not_empty("")

    async def _begin_era(self, conn: Connection) -> int:
        """Void the positions of other banks and servers: no two loads have the same era."""
        era = secrets.randbits(62)
        text = f"UPDATE {self._schema}.perdure_meta SET value = {era} WHERE name = 'era'"
        await conn.execute(text)
        return era

    async def _fill(self, conn: Connection, source: Snapshot) -> int:
        await catalog.clear(conn, self._schema)
        for extension in self._extensions:
            await extension.clear(conn)
        count = 0
        for layout in await source.layouts():
            await catalog.lay_out(conn, self._schema, layout)
            count += await self._rows(conn, source, layout)
            await catalog.index(conn, self._schema, layout)
        await self._events(conn, source)
        return count

    async def _rows(self, conn: Connection, source: Snapshot, layout: Layout) -> int:
        columns = "".join(f', "{column.name}"' for column in layout.columns)
        text = f'COPY {self._schema}."{layout.name}"({_FACTS}, _tags{columns})'
        types = [*FACT_TYPES, "text[]", *(KINDS[column.kind] for column in layout.columns)]
        count = 0
        async with conn.cursor() as cursor, cursor.copy(f"{text} {_BINARY}") as copy:
            copy.set_types(types)
            async with closing(source.entries(layout.name)) as pages:
                async for page in pages:
                    for row in _values(page):
                        await copy.write_row(row)
                    count += len(page)
        return count

    async def _events(self, conn: Connection, source: Snapshot) -> None:
        table = f"{self._schema}.perdure_outbox"
        text = f"COPY {table}(id, topic, key, payload, at) {_BINARY}"
        async with conn.cursor() as cursor, cursor.copy(text) as copy:
            copy.set_types(EVENT_TYPES)
            async with closing(source.events()) as outbox:
                async for page in outbox:
                    for event in page:
                        await copy.write_row(_event(event))
        # Ids given later are higher than those of the source, and than those given here before.
        last = f"coalesce(pg_sequence_last_value(pg_get_serial_sequence('{table}', 'id')), 0)"
        await conn.execute(
            f"SELECT setval(pg_get_serial_sequence('{table}', 'id'),"
            f" greatest({last}, {await source.last_event()}, 1))"
        )

    async def _commit(self, conn: Connection, era: int) -> None:
        try:
            await conn.execute("COMMIT")
        except psycopg.Error as exc:
            if not is_lost(exc) or not await self._has_begun(era):
                raise

    async def _has_begun(self, era: int) -> bool:
        """Whether a transaction whose connection broke was committed."""
        conn = await self._links.connect()
        async with conn:
            text = f"SELECT value FROM {self._schema}.perdure_meta WHERE name = 'era'"
            return bool(await _first(conn, text) == era)


_BINARY = "FROM STDIN (FORMAT BINARY)"


def _values(page: Iterable[Entry]) -> Iterable[tuple[Any, ...]]:
    for entry in page:
        row = entry.row
        yield (
            row.key,
            row.value,
            row.content_type,
            row.schema,
            row.version,
            row.created,
            row.updated,
            row.expires,
            row.checksum,
            sorted({f"{name}={value}" for name, value in entry.tags}) or None,
            *entry.columns,
        )


def _event(event: Delivered) -> tuple[Any, ...]:
    return event.id, event.topic, event.key, event.payload, event.at


async def _first(conn: Connection, text: str) -> Any:
    """The first value of the first row, if there is one."""
    cursor = await conn.execute(text)
    row = await cursor.fetchone()
    return None if row is None else row[0]
