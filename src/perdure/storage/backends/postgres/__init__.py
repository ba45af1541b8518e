"""PostgreSQL, through psycopg 3. Any number of processes and machines.

`address` reads the URL, `links` pools connections and reads, `catalog` makes and changes the
tables, `writer` commits, `apply` turns batches into SQL, `replica` reads from a replica, `outbox`
orders events, `damage` reads damaged tables, `snapshots` moves whole banks, `extension` lets
others keep data.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Coroutine, Iterator, Sequence
from contextlib import asynccontextmanager
from decimal import Decimal
from functools import partial
from typing import Any, ClassVar, TypeVar

import msgspec

from perdure.core.clock import Clock, now
from perdure.core.display import install_hint
from perdure.core.errors import UnknownBackend
from perdure.storage.adapter import Snapshot
from perdure.storage.backends.sql_adapter import SQLAdapter, not_open
from perdure.storage.backends.sql_catalog import SQLCatalog
from perdure.storage.extension import Extensions
from perdure.storage.options import Consistency, Options
from perdure.storage.query import Figure, Query, Scalar, Summary
from perdure.storage.rows import Batch, Check, Count, Delivered, Fill, Recode, Row, Size
from perdure.storage.sql import Dialect, Emitter
from perdure.storage.tables import Prepared

try:
    import psycopg
except ImportError as exc:
    raise UnknownBackend(
        "PostgreSQL banks need psycopg, which is not installed or cannot be loaded.",
        hint=install_hint("postgres"),
    ) from exc

from perdure.storage.backends.postgres import address, catalog, damage, indexes, snapshots
from perdure.storage.backends.postgres.address import PostgresServer
from perdure.storage.backends.postgres.apply import PostgresApplier
from perdure.storage.backends.postgres.catalog import FACTS, PostgresCatalog
from perdure.storage.backends.postgres.errors import DAMAGE, is_starting, translated
from perdure.storage.backends.postgres.extension import LeftOut, PostgresExtension
from perdure.storage.backends.postgres.links import Connection, PostgresPool
from perdure.storage.backends.postgres.outbox import Outbox
from perdure.storage.backends.postgres.replica import Replica
from perdure.storage.backends.postgres.writer import PostgresWriter

T = TypeVar("T")

#: Collections of Perdure itself: what reads them relies on the newest.
OWN = "perdure_"
#: Seconds `initialize` waits for a server that is starting.
START = 10.0


class PostgresAdapter(SQLAdapter):
    """A bank in a schema of a PostgreSQL database."""

    system: ClassVar[str] = "postgresql"

    def __init__(self, url: str, clock: Clock = now) -> None:
        super().__init__(clock, Extensions(PostgresExtension))
        self.server = address.parse(url)
        self._schema = self.server.schema
        self._emitter = Emitter(_dialect(self._schema))
        self._writer: PostgresWriter | None = None
        self._reader: PostgresPool | None = None
        self._replica: Replica | None = None

    async def exists(self) -> bool:
        text = f"SELECT to_regclass('{self._schema}.perdure_meta') IS NOT NULL"
        links = PostgresPool(self.server)
        with translated(self.server):
            try:
                return bool(await links.use(lambda conn: conn.value(text)))
            finally:
                await links.close()

    async def initialize(self) -> None:
        links = PostgresPool(self.server)
        with translated(self.server):
            try:
                era = await self._create(links)
            except BaseException:
                await links.close()
                raise
        self._outbox = Outbox(self._schema, era)
        self._applier = PostgresApplier(self._schema, self._outbox, self._extensions, self._clock)
        self._writer = PostgresWriter(links, self.server)
        self._reader = links
        self._prepared = {}
        if self.server.replica is not None:
            await self._use_replica(self.server.replica, self._writer, links)

    async def _create(self, links: PostgresPool) -> int:
        """Make the tables; waits for a starting server, but not for an unreachable one."""

        async def work(conn: Connection) -> int:
            era = await catalog.create(conn, self.server)
            self._layouts = await PostgresCatalog(conn, self._schema).load()
            return era

        try:
            return await links.use(work)
        except psycopg.OperationalError as exc:
            if not is_starting(exc):
                raise
            return await links.patiently(work, START)

    async def _use_replica(
        self, server: PostgresServer, writer: PostgresWriter, reader: PostgresPool
    ) -> None:
        replica = Replica(reader, server, lambda: writer.ended)
        try:
            await replica.initialize()
        except BaseException:
            await self.close()
            raise
        self._replica = replica

    async def close(self) -> None:
        if self._replica is not None:
            await self._replica.close()
        if self._writer is not None and self._reader is not None:
            await self._writer.close()
            await self._reader.close()

    async def _look(self, work: Callable[[SQLCatalog], Coroutine[Any, Any, T]]) -> T:
        return await self.reader.run(lambda conn: work(PostgresCatalog(conn, self._schema)))

    async def _change(
        self, work: Callable[[SQLCatalog], Coroutine[Any, Any, T]], *, strong: bool = False
    ) -> T:
        """Waits for concurrent users of a table that is to be changed, but not for long at a
        time.
        """
        return await self.writer.run(
            lambda conn: work(PostgresCatalog(conn, self._schema)), strong=strong
        )

    def _define(self, prepared: Prepared) -> None:
        self._applier.define(prepared.layout, prepared.marked)

    async def _build(self, prepared: Prepared) -> None:
        """Blocks nobody, but waits for all earlier transactions, however long."""
        if not prepared.unbuilt:
            return
        layout = prepared.layout
        wanted = await self._look(lambda catalog: catalog.unbuilt(layout))
        with translated(self.server):
            await indexes.build(self.reader, self.server, layout.name, wanted)
        await self._change(lambda catalog: catalog.built(layout, wanted))

    async def fill(self, collection: str, fills: Sequence[Fill]) -> None:
        self._layout(collection)
        await self.writer.run(lambda conn: self._applier.fill(conn, collection, fills))

    async def unfilled(
        self, collection: str, position: str, limit: int
    ) -> tuple[list[str], str] | None:
        """Positions are keys."""
        known = self._prepared[collection]

        async def work(catalog: SQLCatalog) -> set[str]:
            found: set[str] = set()
            for column in known.marked:
                rows = await catalog.fetch(
                    f"SELECT _key FROM {self._table(collection)} WHERE _key > %s"
                    f" AND {catalog.unfilled(column, known.layout.schema)} ORDER BY _key LIMIT %s",
                    (position, limit),
                )
                found |= {row[0] for row in rows}
            return found

        keys = sorted(await self._look(work))[:limit]
        return keys, keys[-1] if keys else position

    async def get(self, collection: str, keys: Sequence[str], options: Options) -> list[Row | None]:
        moment = self._moment(self._layout(collection))
        text = f"SELECT {FACTS} FROM {self._table(collection)} AS r WHERE "
        params: list[Any]
        if len(keys) == 1:
            text, params = f"{text}r._key = %s", [keys[0]]
        else:
            text, params = f"{text}r._key = ANY(%s::text[])", [list(keys)]
        if moment is not None:
            text += " AND (r._expires IS NULL OR r._expires > %s)"
            params.append(moment)
        rows = await self._fetch(collection, text, params, options)
        found = {row[0]: Row(*row) for row in rows}
        return [found.get(key) for key in keys]

    async def find(self, query: Query, options: Options) -> list[Row]:
        layout = self._layout(query.collection)
        moment = self._moment(layout)
        text, params = self._emitter.select(query, FACTS, moment, layout.constants())
        rows = await self._fetch(query.collection, text, params, options)
        return [Row(*row) for row in rows]

    async def summarize(self, summary: Summary, options: Options) -> list[tuple[Scalar, ...]]:
        layout = self._layout(summary.query.collection)
        moment = self._moment(layout)
        # The average of integers comes rounded to a decimal: take it apart, and divide here.
        parts: list[tuple[Figure, str]] = []
        for figure, column in summary.figures:
            split = (Figure.SUM, Figure.COUNT) if figure is Figure.AVG else (figure,)
            parts += [(part, column) for part in split]
        whole = msgspec.structs.replace(summary, figures=tuple(parts))
        text, params = self._emitter.summarize(whole, moment, layout.constants())
        rows = await self._fetch(layout.name, text, params, options)
        size = len(summary.group)
        return [(*row[:size], *_figures(summary, row[size:])) for row in rows]

    async def _fetch(
        self, collection: str, text: str, params: Sequence[Any], options: Options
    ) -> list[tuple[Any, ...]]:
        """The rows, from the replica if there is one and the options allow it."""
        reader = self.reader
        if (
            self._replica is None
            or options.consistency is Consistency.STRONG
            or collection.startswith(OWN)
        ):
            return await reader.fetch(text, params, options.deadline)
        return await self._replica.fetch(text, params, options)

    @property
    def replicated(self) -> bool:
        return self._replica is not None

    async def identity(self) -> str | None:
        text = (
            "SELECT system_identifier, (SELECT oid FROM pg_database"
            f" WHERE datname = current_database()), '{self._schema}.perdure_meta'::regclass::oid,"
            f" (SELECT value FROM {self._schema}.perdure_meta WHERE name = 'era')"
            " FROM pg_control_system()"
        )
        (row,) = await self.reader.fetch(text)
        return f"postgresql:{':'.join(map(str, row))}"

    async def commit(self, batch: Batch, options: Options) -> list[int]:
        for part in (*batch.writes, *batch.checks):
            self._layout(part.collection)
        writer = self.writer
        if batch.changes:
            self._extensions.check(batch.changes)
        left_out = ""
        while True:
            try:
                versions = await writer.run(
                    partial(self._applier.apply, batch=batch, left_out=left_out),
                    first=self._outbox.locks(batch.events) if batch.events else None,
                    strong=options.consistency is Consistency.STRONG,
                    deadline=options.deadline,
                )
            except LeftOut as exc:
                left_out = exc.reason
                continue
            if left_out:
                for extension, changes in self._extensions.parts(batch.changes):
                    extension.give_up(changes, left_out)
            return versions

    async def recode(
        self, collection: str, recodes: Sequence[Recode], checks: Sequence[Check]
    ) -> int:
        await self._known(collection)
        for check in checks:
            self._layout(check.collection)
        return await self.writer.run(
            lambda conn: self._applier.recode(conn, collection, recodes, checks)
        )

    @asynccontextmanager
    async def snapshot(self) -> AsyncIterator[Snapshot]:
        await self._check_open()
        async with snapshots.take_snapshot(self.reader, self.server, self._clock()) as found:
            yield found

    async def _load(self, source: Snapshot, *, replace: bool) -> int:
        loader = snapshots.BankLoader(
            PostgresPool(self.server), self.server, self._clock(), self._extensions
        )
        return await loader.load(source, replace=replace)

    async def scrub(self) -> None:
        """VACUUM: deleted rows leave the tables, unless an open transaction still sees them.
        Bytes can remain in the server's files until the space is used again; VACUUM FULL
        would remove these, but lock everybody out.
        """

        async def work(conn: Connection) -> None:
            names = [*await PostgresCatalog(conn, self._schema).load(), "perdure_outbox"]
            await conn.execute(f"VACUUM {', '.join(self._table(name) for name in names)}")
            for extension in self._extensions:
                await extension.scrub(conn)

        await self.reader.run(work)

    async def remove(self, query: Query, options: Options) -> int:
        layout = self._layout(query.collection)
        moment = self._moment(layout)
        text, params = self._emitter.select(query, "r._key", moment, layout.constants())
        return await self.writer.run(
            lambda conn: self._delete(conn, query.collection, f"{text} FOR UPDATE", params),
            strong=options.consistency is Consistency.STRONG,
            deadline=options.deadline,
        )

    async def sweep(self, limit: int) -> int:
        moment = self._clock()
        expiring = [layout.name for layout in self._layouts.values() if layout.expires]

        async def work(conn: Connection) -> int:
            swept = 0
            for name in expiring:
                text = (
                    f"SELECT r._key FROM {self._table(name)} AS r WHERE r._expires <= %s"
                    " LIMIT %s FOR UPDATE SKIP LOCKED"
                )
                swept += await self._delete(conn, name, text, [moment, limit - swept])
            return swept

        return await self.writer.run(work)

    async def _delete(
        self, conn: Connection, collection: str, text: str, params: Sequence[Any]
    ) -> int:
        """Delete the rows whose keys the SELECT locks."""
        count: int = await conn.value(
            f"WITH doomed AS MATERIALIZED ({text}), gone AS"
            f" (DELETE FROM {self._table(collection)} AS t USING doomed"
            " WHERE t._key = doomed._key RETURNING 1) SELECT count(*) FROM gone",
            params,
        )
        return count

    async def events(self, position: str, limit: int) -> tuple[list[Delivered], str]:
        return await self.reader.run(lambda conn: self._outbox.read(conn, position, limit))

    async def trim(self, position: str, before: int) -> int:
        return await self.writer.run(lambda conn: self._outbox.trim(conn, position, before))

    async def sizes(self) -> list[Size]:
        async def work(conn: Connection) -> list[Size]:
            found = []
            for name in await PostgresCatalog(conn, self._schema).load():
                table = self._table(name)
                size = f"pg_total_relation_size('{table}')"
                try:
                    cursor = await conn.execute(f"SELECT count(*), {size} FROM {table}")
                except DAMAGE:  # the statistics have to do, so that `verify` can go on
                    cursor = await conn.execute(
                        f"SELECT greatest(reltuples, 0)::bigint, {size} FROM pg_class"
                        f" WHERE oid = '{table}'::regclass"
                    )
                found += [Size(name, *row) for row in await cursor.fetchall()]
            return found

        return await self.reader.run(work)

    async def census(self, collection: str) -> list[Count]:
        layout = await self._known(collection)
        alive = " WHERE r._expires IS NULL OR r._expires > %s" if layout.expires else ""
        rows = await self.reader.fetch(
            f"SELECT r._schema, r._type, count(*) FROM {self._table(collection)} AS r{alive}"
            " GROUP BY 1, 2 ORDER BY 1, 2",
            (self._clock(),) if layout.expires else (),
        )
        return [Count(*row) for row in rows]

    async def inspect(self) -> list[str]:
        async def work(conn: Connection) -> list[str]:
            faults = []
            for name in await PostgresCatalog(conn, self._schema).load():
                faults += await damage.unreadable(conn, self._table(name))
            return faults

        return await self.reader.run(work)

    async def salvage(self, collection: str, after: str, limit: int) -> list[Row]:
        await self._known(collection)
        table = self._table(collection)
        return await self.reader.run(lambda conn: damage.salvage(conn, table, after, limit))

    def _table(self, collection: str) -> str:
        return f'{self._schema}."{collection}"'

    async def _check_open(self) -> None:
        await self.reader.fetch("SELECT 1")

    @property
    def writer(self) -> PostgresWriter:
        if self._writer is None:
            raise not_open()
        return self._writer

    @property
    def reader(self) -> PostgresPool:
        if self._reader is None:
            raise not_open()
        return self._reader


def _dialect(schema: str) -> Dialect:
    return Dialect(
        mark="%s",
        key="r._key",
        source=lambda table, _: f'{schema}."{table}" AS r',
        tagged=lambda _: "r._tags @> ARRAY[%s]::text[]",
        differs="IS DISTINCT FROM",
        nulls_high=True,
        row_id="_key",
    )


def _figures(summary: Summary, parts: Sequence[Any]) -> Iterator[Scalar]:
    rest = iter(parts)
    for figure, _ in summary.figures:
        value = next(rest)
        if isinstance(value, Decimal):
            value = int(value)  # a sum of integers, which may be too long for one
        if figure is Figure.AVG:
            count = next(rest)
            value = value / count if count else None
        yield value
