"""Search indexes in a SQLite bank: FTS5, and vectors that are kept in this process.

`sqlite_search_tables` makes the tables, `sqlite_documents` writes, `sqlite_terms` searches by
words and `sqlite_vectors` by vectors. Each search runs in a thread, in one read transaction.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import closing
from pathlib import Path
from typing import TypeVar

import apsw
import msgspec

from perdure.core.errors import Corrupted
from perdure.search import sqlite_search_tables as search_tables
from perdure.search.engine import (
    Document,
    Embedding,
    Near,
    SearchEngine,
    SearchIndex,
    SearchState,
    TextFound,
    TextSearch,
    VectorRows,
    VectorSearch,
    Withdrawal,
)
from perdure.search.sqlite_documents import SQLiteDocuments, weight
from perdure.search.sqlite_terms import TermSearch, register
from perdure.search.sqlite_vectors import SQLiteVectors
from perdure.storage.backends.sqlite import SQLiteAdapter, checkpoint, connections
from perdure.storage.backends.sqlite.apply import SQLiteApplier
from perdure.storage.backends.sqlite.extension import SQLiteExtension, remove_sidecars
from perdure.storage.concurrency import in_thread
from perdure.storage.options import DEFAULT, STRONG, Options

T = TypeVar("T")

#: The weight of work that is never done on the event loop.
_HEAVY = 2**40


class _Open:
    def __init__(self, name: str, made: int, bank: Path | None) -> None:
        self.made = made
        self.finder = TermSearch(name)
        self.nearness = SQLiteVectors(name, made, bank)


class SQLiteSearch(SearchEngine, SQLiteExtension):
    """Search indexes in the file of the bank."""

    def __init__(self, adapter: SQLiteAdapter) -> None:
        self._adapter = adapter
        self._filing = SQLiteDocuments()
        self._opened: dict[str, _Open] = {}

    async def prepare(self, index: SearchIndex) -> bool:
        known = await self._adapter.reader.run(
            "search index", lambda db: search_tables.entry(db, index.name)
        )
        made = False
        if known is None or known.fields != index.fields:
            made = await self._adapter.writer.run(
                lambda applier: search_tables.make(applier.db, index), STRONG
            )
        self._filing.define(self._adapter.writer.db, index)
        return made

    async def erase(self, index: str) -> None:
        await self._adapter.writer.run(
            lambda applier: search_tables.drop(applier.db, index), STRONG, weight=_HEAVY
        )
        self._opened.pop(index, None)
        await in_thread(remove_sidecars, self._adapter.path, index)

    async def state(self, index: str, *, thorough: bool = False) -> SearchState:
        self._check_prepared(index)

        def look(db: apsw.Connection) -> SearchState:
            with connections.snapshot(db):  # others write meanwhile, and its numbers must agree
                return search_tables.state(db, index)

        state = await self._adapter.reader.aside(look)
        if not thorough or state.faults:
            return state
        return msgspec.structs.replace(state, faults=await in_thread(self._inspected, index))

    def _inspected(self, index: str) -> tuple[str, ...]:
        """Faults of the words; on its own connection, see `SQLiteAdapter.inspect`."""
        with closing(connections.connect_to_read(self._adapter.path, self._adapter.file_key)) as db:
            return search_tables.inspected(db, index)

    async def tend(self, index: str) -> bool:
        self._check_prepared(index)

        def work(applier: SQLiteApplier) -> bool:
            writer = self._filing.index_writer(applier.db, index)
            with search_tables.blamed(index):
                return writer.file() or writer.merge()

        try:
            if await self._adapter.writer.run(work, weight=_HEAVY):
                return True
        except Corrupted as exc:
            await self._mark(index, exc)
            return False
        try:
            if await self._search(index, lambda db, known: known.nearness.tend(db)):
                return True
        except Corrupted:
            return False  # whoever searches is told
        if await self._adapter.reader.run("free pages", checkpoint.is_due):
            await in_thread(checkpoint.shrink, self._adapter.path, self._adapter.file_key)
        return False

    async def search_text(self, search: TextSearch, options: Options = DEFAULT) -> TextFound:
        return await self._search(
            search.index, lambda db, known: known.finder.search(db, search), options
        )

    async def notes(self, index: str, places: Sequence[int]) -> list[bytes | None]:
        return await self._read(index, "notes", lambda db: _notes(db, index, places))

    async def places(self, index: str, after: int, limit: int) -> list[int]:
        text = f'SELECT place FROM "{index}__documents" WHERE place > ? ORDER BY place LIMIT ?'
        return await self._read(
            index, "places", lambda db: [place for (place,) in db.execute(text, (after, limit))]
        )

    async def embed(self, index: str, model: str, embeddings: Sequence[Embedding]) -> int:
        self._check_prepared(index)
        if not embeddings:
            return 0

        def work(applier: SQLiteApplier) -> int:
            search_tables.sound(applier.db, index)
            with search_tables.blamed(index):
                return self._filing.index_writer(applier.db, index).embed(model, embeddings)

        return await self._adapter.writer.run(work, weight=_HEAVY)

    async def search_vectors(self, search: VectorSearch, options: Options = DEFAULT) -> list[Near]:
        known, reader = self._opened.get(search.index), self._adapter.reader
        return await self._search(
            search.index,
            lambda db, known: known.nearness.search(db, search, waits=reader.may_wait(db)),
            options,
            quick=f"nearest {search.index}" if known and known.nearness.may_be_quick() else "",
        )

    async def vectors(
        self, index: str, model: str, places: Sequence[int], noted: Sequence[int] = ()
    ) -> VectorRows:
        def work(db: apsw.Connection, known: _Open) -> VectorRows:
            found = known.nearness.vectors(db, model, places, waits=reader.may_wait(db))
            return msgspec.structs.replace(found, notes=_notes(db, index, noted))

        known, reader = self._opened.get(index), self._adapter.reader
        is_quick = known is not None and known.nearness.may_be_quick(len(places))
        return await self._search(index, work, quick=f"vectors {index}" if is_quick else "")

    async def unembedded(self, index: str, model: str, after: int, limit: int) -> list[int]:
        return await self._read(
            index,
            "unembedded",
            lambda db: search_tables.unembedded(db, index, model, after, limit),
        )

    def check(self, changes: Sequence[Document | Withdrawal]) -> None:
        self._filing.check(self._adapter.writer.db, changes)

    def weight(self, change: Document | Withdrawal) -> int:
        return weight(change)

    def apply(self, db: apsw.Connection, changes: Sequence[Document | Withdrawal]) -> None:
        self._filing.check(db, changes)
        self._filing.change(db, changes)

    def is_to_blame(self, error: Exception) -> bool:
        return isinstance(error, search_tables.FAULTY)

    def connected(self, db: apsw.Connection) -> None:
        register(db)

    def scrub(self, db: apsw.Connection) -> None:
        for name in search_tables.names(db):
            search_tables.rewrite(db, name)

    def clear(self, db: apsw.Connection) -> None:
        search_tables.drop_all(db)

    def close(self) -> None:
        for known in self._opened.values():
            known.nearness.abandon()
        self._opened.clear()

    async def _read(self, index: str, label: str, work: Callable[[apsw.Connection], T]) -> T:
        self._check_prepared(index)

        def blamed(db: apsw.Connection) -> T:
            with search_tables.blamed(index):
                return work(db)

        return await self._adapter.reader.run(f"{label} {index}", blamed)

    async def _search(
        self,
        index: str,
        work: Callable[[apsw.Connection, _Open], T],
        options: Options = DEFAULT,
        *,
        quick: str = "",
    ) -> T:
        """Run longer work in one read transaction; if `quick`, try it on the event loop
        (`SQLiteReader.run`).
        """
        self._check_prepared(index)

        def blamed(db: apsw.Connection) -> T:
            with search_tables.blamed(index), connections.snapshot(db):
                return work(db, self._look_up(db, index))

        reader = self._adapter.reader
        try:
            if quick:
                return await reader.run(quick, blamed, options.deadline)
            return await reader.aside(blamed, options.deadline)
        except Corrupted as exc:
            if isinstance(exc.__cause__, search_tables.DAMAGED):
                await self._mark(index, exc)
            raise

    async def _mark(self, index: str, exc: Corrupted) -> None:
        """Record damage so that it is repaired. In its own transaction: FTS5 may fail once more
        at the end of the one that failed.
        """
        said = str(exc.__cause__ or exc.message)
        await self._adapter.writer.run(lambda applier: search_tables.mark(applier.db, index, said))

    def _look_up(self, db: apsw.Connection, index: str) -> _Open:
        made = search_tables.sound(db, index).made
        known = self._opened.get(index)
        if known is None or known.made != made:
            known = self._opened[index] = _Open(index, made, self._beside)
        return known

    def _check_prepared(self, index: str) -> None:
        self._filing.index_writer(self._adapter.writer.db, index)

    @property
    def _beside(self) -> Path | None:
        """The bank's path, for files beside it; None if it is encrypted."""
        return self._adapter.path if self._adapter.file_key is None else None


def _notes(db: apsw.Connection, index: str, places: Sequence[int]) -> list[bytes | None]:
    if not places:
        return []
    # One statement: to begin one for each of hundreds takes ten times as long.
    text = (
        f'SELECT d.note FROM carray(?) AS wanted LEFT JOIN "{index}__documents" AS d'
        " ON d.place = wanted.value"
    )
    return [note for (note,) in db.execute(text, (search_tables.numbers(places),))]
