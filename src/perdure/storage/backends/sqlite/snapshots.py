"""A bank in a file as it was at one moment, read while others write.

A snapshot is a read transaction on a connection of its own, in threads. It keeps nobody from
writing. But the write-ahead log cannot start over while it lasts: what is written meanwhile makes
the log grow by as much. The checkpointers of all processes notice that somebody reads behind them
and do not insist. When the snapshot ends, it moves the log into the file itself and, if nobody is
using it at that moment, cuts it; else the next checkpoint of a writer lets it start over.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, suppress
from typing import Any, TypeVar

import apsw

from perdure.storage.adapter import Snapshot
from perdure.storage.backends.sqlite import catalog
from perdure.storage.backends.sqlite.errors import translated
from perdure.storage.layouts import Layout
from perdure.storage.rows import Delivered, Entry, Row
from perdure.storage.threads import in_thread

T = TypeVar("T")

#: A page ends with the row that reaches either.
PAGE_BYTES = 1024 * 1024
PAGE_ROWS = 2_000

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


@asynccontextmanager
async def taken(
    connect: Callable[[], apsw.Connection], path: str, moment: int
) -> AsyncIterator[Snapshot]:
    """A snapshot of the bank; rows that have expired at the moment are left out."""
    with translated(path):  # our own calls only: what the caller raises is not the bank's fault
        db = await in_thread(connect)
    snapshot = _Snapshot(db, path, moment)
    try:
        await snapshot.run(snapshot.begin)
        yield snapshot
    finally:
        await in_thread(snapshot.end)


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

    async def entries(self, collection: str) -> AsyncIterator[list[Entry]]:
        rows = self._rows(self._layouts[collection])
        while page := await self.run(lambda: _page(rows, lambda entry: len(entry.row.value))):
            yield page

    async def events(self) -> AsyncIterator[list[Delivered]]:
        events = (Delivered(*row) for row in self._db.execute(_EVENTS))
        while page := await self.run(lambda: _page(events, lambda event: len(event.payload))):
            yield page

    async def last_event(self) -> int:
        return await self.run(lambda: int(self._db.execute(_LAST).get or 0))

    # ------------------------------------------------------------------------------------------

    def begin(self) -> None:
        self._db.execute("BEGIN")
        self._layouts = {  # the first read: from here on nothing changes
            layout.name: layout.without(stale) for layout, stale in catalog.declared(self._db)
        }

    def end(self) -> None:
        """Let go of everything. No error: nothing was written, and nothing can be lost."""
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

    def _rows(self, layout: Layout) -> Iterator[Entry]:
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
            tags = _pairs(db.execute(tagged, (found[_FACTS],))) if tagged else ()
            yield Entry(row, found[_FACTS + 1 :], tags)


def _pairs(tags: Iterator[tuple[Any, ...]]) -> tuple[tuple[str, str], ...]:
    split = (text.partition("=") for (text,) in tags)
    return tuple([(name, value) for name, _, value in split])


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
