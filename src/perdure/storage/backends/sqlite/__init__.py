"""SQLite, through apsw: the default backend.

One writer and several readers per process, any number of processes. `connections` opens the file,
`catalog` makes and changes the tables, `writer` commits, `apply` turns batches into SQL, `reader`
reads, `listing` keeps key order and reads damaged tables, `checkpoint` keeps the
log short and the file small, `snapshots` moves whole banks, `encryption` encrypts the file,
`extension` lets others keep data here.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine, Iterable, Sequence
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any, ClassVar, TypeVar
from urllib.parse import urlsplit

import apsw

from perdure.core.clock import Clock, now
from perdure.core.errors import AccessDenied, InvalidURL
from perdure.storage import record_keys as key_rules
from perdure.storage import registry
from perdure.storage.adapter import Snapshot
from perdure.storage.backends.sql_adapter import SQLAdapter, not_open
from perdure.storage.backends.sql_catalog import SQLCatalog, run_now
from perdure.storage.backends.sqlite import catalog, connections, encryption, listing, snapshots
from perdure.storage.backends.sqlite.apply import SQLiteApplier
from perdure.storage.backends.sqlite.catalog import SQLiteCatalog
from perdure.storage.backends.sqlite.errors import DAMAGE, translated
from perdure.storage.backends.sqlite.extension import SQLiteExtension, remove_sidecars
from perdure.storage.backends.sqlite.reader import SQLiteReader
from perdure.storage.backends.sqlite.writer import SQLiteWriter
from perdure.storage.concurrency import in_thread
from perdure.storage.extension import Extensions
from perdure.storage.options import DEFAULT, STRONG, Options
from perdure.storage.query import All, AnyOf, Compare, Op, Query, Scalar, Summary
from perdure.storage.rows import Batch, Check, Count, Delivered, Fill, Layout, Recode, Row, Size
from perdure.storage.sql import Dialect, Emitter
from perdure.storage.tables import Prepared

T = TypeVar("T")

# CROSS keeps the planner from walking the folders first.
_JOINED = '"{}" AS r CROSS JOIN perdure_folders AS f ON f.id = r._folder'
_EMITTER = Emitter(
    Dialect(
        mark="?",
        key="(f.path || r._name)",
        source=lambda table, key: _JOINED.format(table) if key else f'"{table}" AS r',
        tagged=lambda table: (
            f'r._id IN (SELECT record FROM "{table}__tags"'
            " WHERE tag = (SELECT id FROM perdure_tags WHERE tag = ?))"
        ),
        differs="IS NOT",
        nulls_high=False,
        row_id="_id",
    )
)
_EVERYTHING = All(())
#: The weight of work that is never done on the event loop.
_HEAVY = 2**40
_FACTS = "_value, _type, _schema, _version, _created, _updated, {expires}, _checksum"


class SQLiteAdapter(SQLAdapter):
    """A bank in one file."""

    system: ClassVar[str] = "sqlite"

    def __init__(self, url: str, clock: Clock = now) -> None:
        super().__init__(clock, Extensions(SQLiteExtension))
        address = registry.parse(url)
        if not address.path:
            raise InvalidURL(
                f"The address {url!r} names no file.",
                hint="Write sqlite:///memory.db; for a bank that need not last, memory://.",
            )
        if urlsplit(url).netloc:
            raise InvalidURL(
                f"The address {url!r} has two slashes where a file has three or four.",
                hint="Write sqlite:///folder/memory.db, or sqlite:////folder/… if it is absolute.",
            )
        if unknown := address.options.keys() - {"inline"}:
            raise InvalidURL(
                f"The address {url!r} has an option {min(unknown)!r}, unknown to SQLite banks.",
                hint="The only one is inline=yes or inline=no.",
            )
        self.path = Path(address.path).absolute()
        self._inline = address.flag("inline", default=True)
        self._file_key: bytes | None = None
        self._writer: SQLiteWriter | None = None
        self._reader: SQLiteReader | None = None

    @property
    def file_key(self) -> bytes | None:
        """The key of the whole file, or None for a file in clear. Set it before `initialize`.
        Opening raises `KeyRefused` if it is not the file's, or the file has none, and
        `Unsupported` if this installation cannot use keys.
        """
        return self._file_key

    @file_key.setter
    def file_key(self, key: bytes | None) -> None:
        self._file_key = encryption.check_key(key)

    async def exists(self) -> bool:
        try:
            return self.path.stat().st_size > 0
        except (FileNotFoundError, NotADirectoryError):
            return False
        except OSError as exc:
            raise AccessDenied(
                f"The bank {self.path} cannot be looked at: {exc.strerror}.",
                hint="Check the permissions of its folder.",
            ) from exc

    async def initialize(self) -> None:
        path = str(self.path)
        with translated(path):
            # In a thread: another process that is making the bank may have to be waited for.
            db = await asyncio.to_thread(self._open)
            self._db = db
            self._applier = SQLiteApplier(db, self._clock, self._extensions)
            self._writer = SQLiteWriter(
                db,
                self._applier,
                path,
                inline=self._inline,
                key=self._file_key,
                extensions=self._extensions,
            )
            self._reader = SQLiteReader(self._connect_to_read, path, inline=self._inline)
            self._prepared = {}

    def _open(self) -> apsw.Connection:
        while (db := self._try_to_open()) is None:
            pass  # somebody put another file in the place of the one we waited for
        return db

    def _try_to_open(self) -> apsw.Connection | None:
        path = str(self.path)
        connections.make_file(self.path)
        place = connections.place(self.path)
        marked = encryption.look(self.path, self._file_key)
        try:
            db = self._connect()
        except apsw.NotADBError as exc:
            if place != connections.place(self.path):
                return None
            if marked:
                raise encryption.damaged(self.path) from exc
            raise
        try:
            # First a look, which changes nothing and waits for nobody.
            known = catalog.recognize(db, path)
            connections.use_wal(db, path)
            if place != connections.place(self.path):
                db.close()
                return None
            if not known:
                db.execute("BEGIN IMMEDIATE")
                catalog.create(db, path)
                db.execute("COMMIT")
            self._layouts = run_now(SQLiteCatalog(db).load())
        except BaseException:
            db.close()
            raise
        return db

    def _connect(self) -> apsw.Connection:
        return connections.connect(self.path, self._file_key)

    def _connect_to_read(self) -> apsw.Connection:
        db = connections.connect_to_read(self.path, self._file_key)
        for extension in self._extensions:
            extension.connected(db)
        return db

    async def close(self) -> None:
        if self._writer is None or self._reader is None:
            return
        await self._reader.close()
        for extension in self._extensions:
            extension.close()
        await self._writer.close()
        self._db.close()

    async def _look(self, work: Callable[[SQLCatalog], Coroutine[Any, Any, T]]) -> T:
        return await self.reader.run("catalog", lambda db: run_now(work(SQLiteCatalog(db))))

    async def _change(
        self, work: Callable[[SQLCatalog], Coroutine[Any, Any, T]], *, strong: bool = False
    ) -> T:
        return await self.writer.run(
            lambda applier: run_now(work(SQLiteCatalog(applier.db))), STRONG if strong else DEFAULT
        )

    def _define(self, prepared: Prepared) -> None:
        self._applier.define(prepared.layout, prepared.marked)

    async def _build(self, prepared: Prepared) -> None:
        """One index after another, so that others can write in between. Building one blocks
        writers: about a second for a million rows.
        """
        for label in prepared.unbuilt:
            await self.writer.run(
                lambda applier, label=label: run_now(  # type: ignore[misc]
                    SQLiteCatalog(applier.db).build(prepared.layout, label)
                ),
                weight=_HEAVY,
            )

    async def fill(self, collection: str, fills: Sequence[Fill]) -> None:
        await self.writer.run(lambda applier: applier.fill(collection, list(fills)), weight=_HEAVY)

    async def unfilled(
        self, collection: str, position: str, limit: int
    ) -> tuple[list[str], str] | None:
        """Positions are row ids: rows lie in the file in their order."""
        known = self._prepared[collection]

        def work(db: apsw.Connection) -> tuple[list[str], str]:
            found: dict[int, str] = {}
            for column in known.marked:
                condition = SQLiteCatalog(db).unfilled(column, known.layout.schema)
                text = (
                    f"SELECT r._id, f.path || r._name FROM {_JOINED.format(collection)}"
                    f" WHERE r._id > ? AND {condition} ORDER BY r._id LIMIT ?"
                )
                found |= dict(db.execute(text, (int(position or 0), limit)))
            ids = sorted(found)[:limit]
            return [found[id] for id in ids], str(ids[-1]) if ids else position

        return await self.reader.run(f"unfilled {collection}", work)

    async def get(self, collection: str, keys: Sequence[str], options: Options) -> list[Row | None]:
        layout = self._layout(collection)
        text = f'SELECT {self._facts(layout)} FROM "{collection}" WHERE _folder = ? AND _name = ?'
        moment = self._moment(layout)

        def work(db: apsw.Connection) -> list[Row | None]:
            found: list[Row | None] = []
            for key in keys:
                cut = key.rfind("/") + 1
                folder = self._applier.folders.peek(db, key[:cut])
                if folder is None:
                    found.append(None)
                    continue
                row = db.execute(text, (folder, key[cut:])).get
                found.append(
                    None
                    if row is None
                    or (moment is not None and row[6] is not None and row[6] <= moment)
                    else self._rows(db, "", [(key, *row)])[0]
                )
            return found

        label = text if len(keys) <= 64 else f"{text} -- many"
        return await self.reader.run(label, work, options.deadline)

    async def find(self, query: Query, options: Options) -> list[Row]:
        layout = self._layout(query.collection)
        order = query.total_order()
        moment = self._moment(layout)
        if order[0].column == "key" and query.where == _EVERYTHING and not query.offset:
            return await self.reader.run(
                f"list {query.collection} {query.limit}",
                lambda db: self._list(db, layout, query, moment),
                options.deadline,
            )
        if prefixes := _prefixes(query):
            parts = [Query(query.collection, prefix=prefix) for prefix in prefixes]
            return await self.reader.run(
                f"list {query.collection} prefixes",
                lambda db: [row for part in parts for row in self._list(db, layout, part, moment)],
                options.deadline,
            )
        text, params = _EMITTER.select(
            query, f"f.path || r._name, {self._facts(layout)}", moment, layout.constants()
        )
        return await self.reader.run(
            text,
            lambda db: self._rows(db, "", db.execute(text, params)),
            options.deadline,
        )

    async def summarize(self, summary: Summary, options: Options) -> list[tuple[Scalar, ...]]:
        layout = self._layout(summary.query.collection)
        text, params = _EMITTER.summarize(summary, self._moment(layout), layout.constants())
        return await self.reader.run(
            text, lambda db: list(db.execute(text, params)), options.deadline
        )

    def _list(
        self,
        db: apsw.Connection,
        layout: Layout,
        query: Query,
        moment: int | None,
    ) -> list[Row]:
        """Rows in key order: an index scan within one folder, else a merge of folders."""
        descending = query.total_order()[0].descending
        after = None if query.after is None else str(query.after[-1])
        limit = -1 if query.limit is None else query.limit
        if not limit:
            return []
        facts = self._facts(layout)
        if self._is_one_folder(db, query.prefix):
            text = f'SELECT _name, {facts} FROM "{layout.name}" WHERE _folder = ?'
            size = len(query.prefix)
            params: list[Scalar] = [self._applier.folders.peek(db, query.prefix)]
            if after is not None and after.startswith(query.prefix):
                text += f" AND _name {'<' if descending else '>'} ?"
                params.append(after[size:])
            elif after is not None and (after < query.prefix) == descending:
                return []
            if moment is not None:
                text += " AND (_expires IS NULL OR _expires > ?)"
                params.append(moment)
            text += f" ORDER BY _name {'DESC' if descending else 'ASC'} LIMIT ?"
            params.append(limit)
            return self._rows(db, query.prefix, db.execute(text, params))
        text = (
            f"SELECT f.path || r._name, {facts} FROM {_JOINED.format(layout.name)} WHERE r._id = ?"
        )
        with connections.snapshot(db):
            span = listing.KeySpan(
                query.prefix, after=after, descending=descending, moment=moment or 0
            )
            ids = listing.page(db, layout, span, limit)
            return self._rows(db, "", [db.execute(text, (id,)).get for id in ids])

    def _is_one_folder(self, db: apsw.Connection, prefix: str) -> bool:
        """Whether the keys with this prefix are just the names in one folder."""
        if not prefix.endswith("/") or self._applier.folders.peek(db, prefix) is None:
            return False
        end = key_rules.after_prefix(prefix)
        return (
            db.execute(
                "SELECT 1 FROM perdure_folders WHERE path > ? AND path < ? LIMIT 1", (prefix, end)
            ).get
            is None
        )

    def commit(self, batch: Batch, options: Options) -> Coroutine[Any, Any, list[int]]:
        # Not async itself: every coroutine on this path is paid for by every write.
        return self.writer.commit(batch, options)

    async def recode(
        self, collection: str, recodes: Sequence[Recode], checks: Sequence[Check]
    ) -> int:
        await self._known(collection)
        return await self.writer.run(
            lambda applier: applier.recode(collection, recodes, checks), weight=_HEAVY
        )

    @asynccontextmanager
    async def snapshot(self) -> AsyncIterator[Snapshot]:
        await self._check_open()
        async with snapshots.take_snapshot(self._connect, self.path, self._clock()) as found:
            yield found

    async def _load(self, source: Snapshot, *, replace: bool) -> int:
        moment = None if replace else self._clock()
        count = await snapshots.load_snapshot(
            self._connect, self.path, source, moment, self._extensions
        )
        await in_thread(remove_sidecars, self.path)
        return count

    async def scrub(self) -> None:
        with translated(str(self.path)):
            await self.writer.scrub()

    async def remove(self, query: Query, options: Options) -> int:
        layout = self._layout(query.collection)
        text, params = _EMITTER.delete(query, self._moment(layout), layout.constants())

        def work(applier: SQLiteApplier) -> int:
            applier.db.execute(text, params)
            return applier.db.changes()

        return await self.writer.run(work, options, weight=_HEAVY)

    async def sweep(self, limit: int) -> int:
        expiring = [layout.name for layout in self._layouts.values() if layout.expires]
        moment = self._clock()

        def work(applier: SQLiteApplier) -> int:
            swept = 0
            for name in expiring:
                applier.db.execute(
                    f'DELETE FROM "{name}" WHERE _id IN'
                    f' (SELECT _id FROM "{name}" WHERE _expires <= ? LIMIT ?)',
                    (moment, limit - swept),
                )
                swept += applier.db.changes()
            return swept

        return await self.writer.run(work, weight=_HEAVY)

    async def generation(self) -> int | None:
        return self.writer.data_version()

    def lacks(self, collection: str) -> bool:
        return self.reader.lacks(collection)

    async def identity(self) -> str | None:
        return connections.identity(self.path)

    async def events(self, position: str, limit: int) -> tuple[list[Delivered], str]:
        # Ids are given under the write lock: they become visible in their order.
        text = (
            "SELECT id, topic, key, payload, at FROM perdure_outbox"
            " WHERE id > ? ORDER BY id LIMIT ?"
        )
        found = await self.reader.run(
            f"events {limit}",
            lambda db: [Delivered(*row) for row in db.execute(text, (_place(position), limit))],
        )
        return found, str(found[-1].id) if found else position

    async def trim(self, position: str, before: int) -> int:
        def work(applier: SQLiteApplier) -> int:
            applier.db.execute(
                "DELETE FROM perdure_outbox WHERE id <= ? AND at < ?", (_place(position), before)
            )
            return applier.db.changes()

        return await self.writer.run(work, weight=_HEAVY)

    async def sizes(self) -> list[Size]:
        def work(db: apsw.Connection) -> list[Size]:
            taken: dict[str, int] = {}
            owners = dict(db.execute("SELECT name, tbl_name FROM sqlite_schema"))
            with suppress(apsw.CorruptError):  # the sizes are unknown then, the rows need not be
                for name, size in db.execute("SELECT name, sum(pgsize) FROM dbstat GROUP BY name"):
                    owner = owners.get(name, name).removesuffix("__tags")
                    taken[owner] = taken.get(owner, 0) + size
            return [
                Size(name, listing.count(db, name), taken.get(name))
                for name in run_now(SQLiteCatalog(db).load())
            ]

        return await self.reader.run("sizes", work)

    async def census(self, collection: str) -> list[Count]:
        layout = await self._known(collection)
        text = (
            f'SELECT r._schema, t.name, count(*) FROM "{collection}" AS r'
            " CROSS JOIN perdure_types AS t ON t.id = r._type"
            f"{' WHERE r._expires IS NULL OR r._expires > ?' if layout.expires else ''}"
            " GROUP BY 1, 2 ORDER BY 1, 2"
        )
        params = (self._clock(),) if layout.expires else ()
        return await self.reader.run(
            text, lambda db: [Count(*row) for row in db.execute(text, params)]
        )

    async def inspect(self) -> list[str]:
        def work(_: apsw.Connection) -> list[str]:
            found: list[str] = []
            # On a connection of its own: a used one remembers FTS5's segments, looks whether they
            # are still the same when it searches, but not when it checks, and calls those damaged
            # that another connection has merged since.
            db = connections.connect_to_read(self.path, self._file_key)
            try:
                for (line,) in db.execute("PRAGMA integrity_check(1000)"):
                    found.append(line)  # what was found so far must be kept
                found += catalog.faults(db)
            except DAMAGE as exc:
                found.append(str(exc))
            finally:
                db.close()
            return [line for line in found if line != "ok"]

        return await self.reader.aside(work)

    async def salvage(self, collection: str, after: str, limit: int) -> list[Row]:
        layout = await self._known(collection)
        text = f'SELECT {self._facts(layout)} FROM "{collection}" WHERE _id = ?'

        def work(db: apsw.Connection) -> list[Row]:
            rows = []
            with connections.snapshot(db):
                for key, id in listing.places(db, layout, after, limit):
                    try:
                        rows += self._rows(db, "", [(key, *db.execute(text, (id,)).get)])
                    except DAMAGE:
                        rows.append(Row(key, b"", "", 0, 0, 0, 0, None, -1))
            return rows

        return await self.reader.run(f"salvage {collection}", work)

    def _rows(
        self, db: apsw.Connection, prefix: str, found: Iterable[tuple[Any, ...]]
    ) -> list[Row]:
        """Rows of what was selected: a key without this prefix, and `_FACTS`."""
        rows: list[Row] = []
        types = self._applier.types.texts
        left = allowed = self.reader.left(db)
        for name, value, kind, schema, version, created, updated, expires, checksum in found:
            if type(value) is not bytes:
                raise TypeError(f"{prefix}{name} has a value of another type")
            left -= len(value)
            if left < 0:
                break
            key, form = prefix + name, types.get(kind) or self._applier.types.text(db, kind)
            rows.append(Row(key, value, form, schema, version, created, updated, expires, checksum))
        self.reader.taken(db, allowed - left)
        return rows

    @staticmethod
    def _facts(layout: Layout) -> str:
        return _FACTS.format(expires="_expires" if layout.expires else "NULL")

    async def _check_open(self) -> None:
        await self.reader.run("nothing", lambda _: None)

    @property
    def writer(self) -> SQLiteWriter:
        if self._writer is None:
            raise not_open()
        return self._writer

    @property
    def reader(self) -> SQLiteReader:
        if self._reader is None:
            raise not_open()
        return self._reader


def _prefixes(query: Query) -> list[str]:
    """In order, if all that is asked for are the rows whose keys have one of these; else none.

    SQLite would look at every row: to it, a key is an expression over two columns.
    """
    match query.where:
        case AnyOf(parts) | All((AnyOf(parts),)):
            pass
        case _:
            return []
    if query != Query(query.collection, query.where, order=query.order) or any(
        order.column != "key" or order.descending for order in query.order
    ):
        return []
    found: list[str] = []
    for part in sorted(parts, key=lambda part: str(getattr(part, "value", ""))):
        if not isinstance(part, Compare) or (part.column, part.op) != ("key", Op.PREFIX):
            return []
        if not found or not str(part.value).startswith(found[-1]):
            found.append(str(part.value))
    return found


def _place(position: str) -> int:
    """The event before a position; 0 for the beginning, and for other backends' positions."""
    return int(position) if position.isdecimal() else 0
