"""Snapshots of a bank in a file, taken while others write; and loading them.

A snapshot is a read transaction on its own connection, in threads. It blocks no writers, but the
write-ahead log cannot start over while it lasts, and grows; checkpointers notice that and do not
insist. At its end it moves the log into the file and, if nobody uses it, cuts it.

A bank is filled in one transaction, alone with the file: it leaves WAL mode, which SQLite allows
only if nobody else has it open, and keeps the lock to the end. So nobody goes on with interned
ids or layouts of the former bank. Pages of an empty file also go to their place at once. After a
kill, the next one to open the file rolls back its journal.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Sequence
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import quote

import apsw

from perdure.core.errors import Unavailable
from perdure.storage.adapter import Snapshot
from perdure.storage.backends.sql_catalog import run_now
from perdure.storage.backends.sqlite import catalog, connections
from perdure.storage.backends.sqlite.apply import Interned
from perdure.storage.backends.sqlite.catalog import SQLiteCatalog
from perdure.storage.backends.sqlite.errors import translated
from perdure.storage.backends.sqlite.extension import SQLiteExtension
from perdure.storage.backends.sqlite.sealed_file import sealed_vfs
from perdure.storage.concurrency import in_thread
from perdure.storage.rows import Delivered, Layout, Row, RowCopy
from perdure.storage.snapshots import PAGE_BYTES, PAGE_ROWS, closing, tag_pairs

T = TypeVar("T")

_ROWS = (
    "SELECT f.path || r._name, r._value, t.name, r._schema, r._version, r._created, r._updated,"
    ' {expires}, r._checksum, r._id{columns} FROM "{table}" AS r'
    # LEFT, so that a row whose key is damaged is noticed rather than left out.
    " LEFT JOIN perdure_folders AS f ON f.id = r._folder"
    " LEFT JOIN perdure_types AS t ON t.id = r._type"
)
_FACTS = 9
_TAGS = (
    'SELECT g.tag FROM "{table}__tags" AS m CROSS JOIN perdure_tags AS g ON g.id = m.tag'
    " WHERE m.record = ?"
)
_EVENTS = "SELECT id, topic, key, payload, at FROM perdure_outbox ORDER BY id"
_LAST = "SELECT seq FROM sqlite_sequence WHERE name = 'perdure_outbox'"
#: Milliseconds that others have to close the bank in.
_PATIENCE = 2_000

Connect = Callable[[], apsw.Connection]


@asynccontextmanager
async def take_snapshot(connect: Connect, path: Path, moment: int) -> AsyncIterator[Snapshot]:
    """Without rows that have expired at the moment."""
    with translated(str(path)):  # our own calls only: what the caller raises is not its fault
        db = await in_thread(connect)
    snapshot = _Snapshot(db, str(path), moment)
    try:
        await snapshot.run(snapshot.begin)
        yield snapshot
    finally:
        await in_thread(snapshot.end)


async def load_snapshot(
    connect: Connect,
    path: Path,
    source: Snapshot,
    moment: int | None,
    extensions: Iterable[SQLiteExtension],
) -> int:
    """Fill a bank that nobody has open: see `Adapter.load`. It has to be empty at the given
    moment; without one, what it holds is replaced.
    """
    return await _fill(lambda: _open_alone(connect, path), path, source, moment, extensions)


async def write_file(path: Path, source: Snapshot, key: bytes | None = None) -> int:
    """Write a new bank, on disk when this returns; nobody may read the file before. With a key,
    it is a `sealed_file`. Returns the number of rows.
    """

    def create(vfs: str | None) -> apsw.Connection:
        connections.make_file(path)
        db = connections.connect(path, vfs=vfs)
        try:
            db.pragma("locking_mode", "EXCLUSIVE")
            db.pragma("journal_mode", "OFF")  # who is interrupted leaves the file
            db.pragma("synchronous", "FULL")
            db.execute("BEGIN EXCLUSIVE")
            catalog.create(db, str(path))
        except BaseException:
            db.close()
            raise
        return db

    with sealed_vfs(key) as vfs:
        count = await _fill(lambda: create(vfs), path, source, None)
    if key is None:  # as it will be when it is opened as a bank, which then changes nothing
        with translated(str(path)):
            db = await in_thread(connections.connect, path)
            await in_thread(connections.use_wal, db, str(path))
            await in_thread(db.close)
    return count


@asynccontextmanager
async def read_file(path: Path, moment: int, key: bytes | None = None) -> AsyncIterator[Snapshot]:
    """Read what `write_file` wrote. Writes nothing, not even beside the file."""
    flags = apsw.SQLITE_OPEN_READONLY | apsw.SQLITE_OPEN_URI
    name = f"file:{quote(str(path))}?immutable=1"
    with sealed_vfs(key) as vfs:
        async with take_snapshot(
            lambda: apsw.Connection(name, flags=flags, vfs=vfs), path, moment
        ) as found:
            yield found


class _Snapshot(Snapshot):
    """Used by one task at a time, and so the connection by one thread at a time."""

    def __init__(self, db: apsw.Connection, path: str, moment: int) -> None:
        self._db = db
        self._path = path
        self._moment = moment
        self._layouts: dict[str, Layout] = {}

    async def layouts(self) -> list[Layout]:
        return list(self._layouts.values())

    async def count(self, collection: str) -> int:
        text = f'SELECT count(*) FROM "{self._layouts[collection].name}"'
        return await self.run(lambda: int(self._db.execute(text).get))

    async def entries(self, collection: str) -> AsyncIterator[list[RowCopy]]:
        rows = self._rows(self._layouts[collection])
        while page := await self.run(lambda: _page(rows, lambda entry: len(entry.row.value))):
            yield page

    async def events(self) -> AsyncIterator[list[Delivered]]:
        events = (Delivered(*row) for row in self._db.execute(_EVENTS))
        while page := await self.run(lambda: _page(events, lambda event: len(event.payload))):
            yield page

    async def last_event(self) -> int:
        return await self.run(lambda: int(self._db.execute(_LAST).get or 0))

    def begin(self) -> None:
        self._db.execute("BEGIN")
        # The first read: from here on nothing changes.
        layouts = run_now(SQLiteCatalog(self._db).complete())
        self._layouts = {layout.name: layout for layout in layouts}

    def end(self) -> None:
        """Release everything. Raises no error: nothing was written."""
        db = self._db
        try:
            with suppress(apsw.Error):  # others are at it, or use the log: they will do it
                if db.in_transaction:
                    db.execute("ROLLBACK")
                db.set_busy_timeout(0)
                db.wal_checkpoint(mode=apsw.SQLITE_CHECKPOINT_PASSIVE)
                db.wal_checkpoint(mode=apsw.SQLITE_CHECKPOINT_TRUNCATE)
        finally:
            db.close(force=True)

    async def run(self, work: Callable[[], T]) -> T:
        with translated(self._path):
            return await in_thread(work)

    def _rows(self, layout: Layout) -> Iterator[RowCopy]:
        db, dead = self._db, self._moment if layout.expires else -1
        names = "".join(f', r."{column.name}"' for column in layout.columns)
        expires = "r._expires" if layout.expires else "NULL"
        tagged = _TAGS.format(table=layout.name) if layout.tagged else ""
        text = _ROWS.format(table=layout.name, expires=expires, columns=names)
        for found in db.execute(text):
            row = Row(*found[:_FACTS])
            if None in (found[0], found[2]) or type(row.value) is not bytes:
                raise ValueError(f"row {found[_FACTS]} of {layout.name} is not a record")
            if row.expires is not None and row.expires <= dead:
                continue
            tags = [text for (text,) in db.execute(tagged, (found[_FACTS],))] if tagged else ()
            yield RowCopy(row, found[_FACTS + 1 :], tag_pairs(tags))


def _page(items: Iterator[T], size_of: Callable[[T], int]) -> list[T]:
    """The next items, bounded in number and bytes; empty at the end."""
    page: list[T] = []
    size = 0
    for item in items:
        page.append(item)
        size += size_of(item)
        if size >= PAGE_BYTES or len(page) >= PAGE_ROWS:
            break
    return page


def _open_alone(connect: Connect, path: Path) -> apsw.Connection:
    db = connect()
    try:
        db.set_busy_timeout(_PATIENCE)
        db.pragma("locking_mode", "EXCLUSIVE")
        db.pragma("journal_mode", "DELETE")
        # Whatever ends the journal is the commit, also its deletion: that is waited for.
        db.pragma("synchronous", "EXTRA")
        db.execute("BEGIN EXCLUSIVE")
    except apsw.BusyError as exc:
        db.close()
        raise Unavailable(
            f"Somebody has the bank {path} open, so it cannot be filled.",
            hint="End the programs that use it, and try again. Nothing was changed.",
        ) from exc
    except BaseException:
        db.close()
        raise
    return db


async def _fill(
    open_: Connect,
    path: Path,
    source: Snapshot,
    moment: int | None,
    extensions: Iterable[SQLiteExtension] = (),
) -> int:
    """Everything in one transaction of a connection, which is closed at the end."""

    async def run(work: Callable[..., T], *args: Any) -> T:
        with translated(str(path)):  # what the source raises is not this bank's fault
            return await in_thread(work, *args)

    db = await run(open_)
    tables = SQLiteCatalog(db)
    try:
        if moment is not None:
            await run(run_now, tables.check_empty(moment))
        await run(run_now, tables.clear())
        for extension in extensions:
            await run(extension.clear, db)
        loader, count = _Loader(db), 0
        for layout in await source.layouts():
            await run(run_now, tables.lay_out(layout))
            async with closing(source.entries(layout.name)) as pages:
                async for page in pages:
                    await run(loader.add, layout, page, count + 1)
                    count += len(page)
            await run(run_now, tables.index(layout))
        async with closing(source.events()) as outbox:
            async for events in outbox:
                await run(_add_events, db, events)
        await run(_count_on, db, await source.last_event())
        await run(db.execute, "COMMIT")
    except BaseException:
        await in_thread(_roll_back, db)
        raise
    finally:
        # Whoever opens the bank next turns the write-ahead log on again.
        await in_thread(db.close, force=True)
    return count


class _Loader:
    """Adds rows to the tables of a bank that is being filled."""

    def __init__(self, db: apsw.Connection) -> None:
        self._db = db
        self._folders = Interned("perdure_folders", "path")
        self._types = Interned("perdure_types", "name")
        self._tags = Interned("perdure_tags", "tag")

    def add(self, layout: Layout, page: Sequence[RowCopy], first: int) -> None:
        """Rows get ids from `first` on."""
        db, rows, tags = self._db, [], []
        for number, entry in enumerate(page, first):
            row = entry.row
            cut = row.key.rfind("/") + 1
            rows.append(
                (
                    number,
                    self._folders.id(db, row.key[:cut]),
                    row.key[cut:],
                    self._types.id(db, row.content_type),
                    row.schema,
                    row.version,
                    row.created,
                    row.updated,
                    row.checksum,
                    *((row.expires,) if layout.expires else ()),
                    *entry.columns,
                    row.value,
                )
            )
            for name, value in set(entry.tags):
                tags.append((number, self._tags.id(db, f"{name}={value}")))
        names = [
            "_id, _folder, _name, _type, _schema, _version, _created, _updated, _checksum",
            *(["_expires"] if layout.expires else []),
            *(f'"{column.name}"' for column in layout.columns),
            "_value",
        ]
        marks = ", ".join("?" * (9 + len(names) - 1))
        db.executemany(f'INSERT INTO "{layout.name}"({", ".join(names)}) VALUES({marks})', rows)
        if tags:
            db.executemany(f'INSERT INTO "{layout.name}__tags"(record, tag) VALUES(?, ?)', tags)


def _add_events(db: apsw.Connection, events: Iterable[Delivered]) -> None:
    db.executemany(
        "INSERT INTO perdure_outbox(id, topic, key, payload, at) VALUES(?, ?, ?, ?, ?)",
        [(event.id, event.topic, event.key, event.payload, event.at) for event in events],
    )


def _count_on(db: apsw.Connection, last: int) -> None:
    """Give out ids above this one and above those given before."""
    known = db.execute("SELECT seq FROM sqlite_sequence WHERE name = 'perdure_outbox'").get
    if known is None:
        db.execute("INSERT INTO sqlite_sequence VALUES('perdure_outbox', ?)", (last,))
    elif known < last:
        db.execute("UPDATE sqlite_sequence SET seq = ? WHERE name = 'perdure_outbox'", (last,))


def _roll_back(db: apsw.Connection) -> None:
    """Raises no error: there was one already, and closing rolls back as well."""
    with suppress(apsw.Error):
        if db.in_transaction:
            db.execute("ROLLBACK")
