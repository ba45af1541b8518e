"""Filling a bank from a snapshot: everything in one transaction, alone with the file.

The loader leaves the write-ahead log for as long as it works, because only so can it be alone:
SQLite lets a database leave that mode only if nobody else has it open, and the lock is not given
back until the end. So nobody goes on with interned ids or layouts of a bank that is no longer
there. It also costs less: pages of an empty file go to their place at once, not to the log first.
A process that is killed leaves a rollback journal, and the next one to open the file rolls back.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import ParamSpec, TypeVar

import apsw

from perdure.core.errors import Unavailable
from perdure.storage.adapter import Snapshot, not_empty
from perdure.storage.backends.sqlite import catalog, connections
from perdure.storage.backends.sqlite.errors import translated
from perdure.storage.backends.sqlite.extension import SQLiteExtension
from perdure.storage.extension import Extensions
from perdure.storage.layouts import Layout
from perdure.storage.rows import Delivered, Entry
from perdure.storage.snapshots import closing
from perdure.storage.threads import in_thread

P = ParamSpec("P")
T = TypeVar("T")

#: Milliseconds that others have to close the bank in.
_PATIENCE = 2_000


class Loader:
    """Takes over a snapshot. Nobody of this process may have the file open, either."""

    def __init__(
        self,
        path: Path,
        moment: int,
        key: bytes | None,
        extensions: Extensions[SQLiteExtension],
    ) -> None:
        self._path = path
        self._extensions = extensions
        self._key = key
        self._moment = moment

    async def load(self, source: Snapshot, *, replace: bool) -> int:
        """See `Adapter.load`."""
        db = await self._run(self._open)
        try:
            count = await self._fill(db, source, replace=replace)
            await self._run(db.execute, "COMMIT")
        except BaseException:
            await in_thread(_roll_back, db)
            raise
        finally:
            # Whoever opens the bank next turns the write-ahead log on again.
            await in_thread(db.close, force=True)
        return count

    async def _run(self, work: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Work of ours, in a thread: what the source raises is not this bank's fault."""
        with translated(str(self._path)):
            return await in_thread(work, *args, **kwargs)

    def _open(self) -> apsw.Connection:
        db = connections.connect(self._path, self._key)
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
                f"Somebody has the bank {self._path} open, so it cannot be filled.",
                hint="End the programs that use it, and try again. Nothing was changed.",
            ) from exc
        except BaseException:
            db.close()
            raise
        return db

    async def _fill(self, db: apsw.Connection, source: Snapshot, *, replace: bool) -> int:
        if not replace:
            await self._run(self._check_empty, db)
        await self._run(self._clear, db)
        texts = _Texts(db)
        count = 0
        for layout in await source.layouts():
            table = _Table(db, layout, texts)
            await self._run(catalog.lay_out, db, layout)
            async with closing(source.entries(layout.name)) as pages:
                async for page in pages:
                    await self._run(table.add, page)
                    count += len(page)
            await self._run(catalog.index, db, layout)
        async with closing(source.events()) as outbox:
            async for events in outbox:
                await self._run(_add_events, db, events)
        await self._run(_count_on, db, await source.last_event())
        return count

    def _clear(self, db: apsw.Connection) -> None:
        catalog.clear(db)
        for extension in self._extensions:
            extension.clear(db)

    def _check_empty(self, db: apsw.Connection) -> None:
        for layout in catalog.load(db).values():
            alive = " WHERE _expires IS NULL OR _expires > ?" if layout.expires else ""
            text = f'SELECT 1 FROM "{layout.name}"{alive} LIMIT 1'
            if db.execute(text, (self._moment,) if alive else ()).get is not None:
                raise not_empty(layout.name)
        if db.execute("SELECT 1 FROM perdure_outbox LIMIT 1").get is not None:
            raise not_empty("")


class _Texts:
    """Interned texts of an empty bank: ids are given out here, and rows are written with them."""

    def __init__(self, db: apsw.Connection) -> None:
        self._db = db
        self._ids: dict[str, dict[str, int]] = {"folders": {}, "types": {}, "tags": {}}
        self._fresh: dict[str, list[tuple[int, str]]] = {name: [] for name in self._ids}

    def id(self, table: str, text: str) -> int:
        ids = self._ids[table]
        known = ids.get(text)
        if known is None:
            known = ids[text] = len(ids) + 1
            self._fresh[table].append((known, text))
        return known

    def write(self) -> None:
        for table, fresh in self._fresh.items():
            self._db.executemany(f"INSERT INTO perdure_{table} VALUES(?, ?)", fresh)
            fresh.clear()


class _Table:
    """One collection that is being filled."""

    def __init__(self, db: apsw.Connection, layout: Layout, texts: _Texts) -> None:
        self._db = db
        self._texts = texts
        self._expires = layout.expires
        self._ids = itertools.count(1)
        names = [
            "_id, _folder, _name, _type, _schema, _version, _created, _updated, _checksum",
            *(["_expires"] if layout.expires else []),
            *(f'"{column.name}"' for column in layout.columns),
            "_value",
        ]
        marks = ", ".join("?" * (9 + len(names) - 1))
        self._insert = f'INSERT INTO "{layout.name}"({", ".join(names)}) VALUES({marks})'
        self._tag = f'INSERT INTO "{layout.name}__tags"(record, tag) VALUES(?, ?)'

    def add(self, page: Sequence[Entry]) -> None:
        rows, tags = [], []
        intern = self._texts.id
        for entry in page:
            row, number = entry.row, next(self._ids)
            cut = row.key.rfind("/") + 1
            rows.append(
                (
                    number,
                    intern("folders", row.key[:cut]),
                    row.key[cut:],
                    intern("types", row.content_type),
                    row.schema,
                    row.version,
                    row.created,
                    row.updated,
                    row.checksum,
                    *((row.expires,) if self._expires else ()),
                    *entry.columns,
                    row.value,
                )
            )
            for name, value in set(entry.tags):
                tags.append((number, intern("tags", f"{name}={value}")))
        self._texts.write()
        self._db.executemany(self._insert, rows)
        if tags:
            self._db.executemany(self._tag, tags)


def _add_events(db: apsw.Connection, events: Iterable[Delivered]) -> None:
    db.executemany(
        "INSERT INTO perdure_outbox(id, topic, key, payload, at) VALUES(?, ?, ?, ?, ?)",
        [(event.id, event.topic, event.key, event.payload, event.at) for event in events],
    )


def _count_on(db: apsw.Connection, last: int) -> None:
    """Give ids behind this one from now on, and behind those that this bank gave before."""
    known = db.execute("SELECT seq FROM sqlite_sequence WHERE name = 'perdure_outbox'").get
    if known is None:
        db.execute("INSERT INTO sqlite_sequence VALUES('perdure_outbox', ?)", (last,))
    elif known < last:
        db.execute("UPDATE sqlite_sequence SET seq = ? WHERE name = 'perdure_outbox'", (last,))


def _roll_back(db: apsw.Connection) -> None:
    """No error: there was one already, and closing rolls back as well."""
    with suppress(apsw.Error):
        if db.in_transaction:
            db.execute("ROLLBACK")
