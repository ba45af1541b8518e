"""Search indexes on PostgreSQL: tsvector with GIN, and pgvector.

`postgres_search_tables` makes the tables, `postgres_documents` writes inside commits,
`postgres_terms` searches by words and `postgres_vectors` by meaning. Reads go to the primary: a
search sees whatever was committed before.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import TypeVar

import msgspec
from psycopg import errors as pg

from perdure.core.errors import Corrupted, InvalidInput, PerdureError
from perdure.search import postgres_search_tables as search_tables
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
from perdure.search.postgres_documents import PostgresDocuments
from perdure.search.postgres_search_tables import Tables
from perdure.search.postgres_terms import TextReader
from perdure.search.postgres_vectors import VectorReader
from perdure.storage.backends.postgres import PostgresAdapter, indexes
from perdure.storage.backends.postgres.errors import DAMAGE, translated
from perdure.storage.backends.postgres.extension import Participant, PostgresExtension
from perdure.storage.backends.postgres.links import Connection
from perdure.storage.options import DEFAULT, Options
from perdure.storage.tables import Built

T = TypeVar("T")

_REBUILD = "Run `perdure index rebuild`; what it is made from is not affected."
#: What is raised by an index that is not as it was made.
_BROKEN = (
    pg.UndefinedTable,
    pg.UndefinedColumn,
    pg.UndefinedFunction,
    pg.UndefinedObject,
    pg.WrongObjectType,
    *DAMAGE,
)


class PostgresSearch(SearchEngine, PostgresExtension):
    """Search indexes in the schema of the bank."""

    def __init__(self, adapter: PostgresAdapter) -> None:
        self._adapter = adapter
        self._schema = adapter.server.schema
        self._filer = PostgresDocuments()
        self._texts: dict[str, TextReader] = {}

    async def prepare(self, index: SearchIndex) -> bool:
        search_tables.check(index)
        schema = self._schema
        found = await self._adapter.reader.run(
            lambda conn: search_tables.known(conn, schema, index.name)
        )
        if found is not None and found.index == index:
            self._use(found)
            return False
        kind = await self._adapter.reader.run(search_tables.vector_type)
        tables, made = await self._adapter.writer.run(
            lambda conn: search_tables.make(conn, schema, index, kind)
        )
        self._use(tables)
        return made

    def _use(self, tables: Tables) -> None:
        self._filer.define(tables)
        self._texts[tables.index.name] = TextReader(tables)

    async def erase(self, index: str) -> None:
        """Waits for concurrent users, but not for long at a time."""
        await self._adapter.writer.run(
            lambda conn: search_tables.erase(conn, self._schema, index), strong=True
        )

    async def search_text(self, search: TextSearch, options: Options = DEFAULT) -> TextFound:
        tables = self._filer.tables(search.index)
        if search.most < 0 or len(set(search.terms)) < len(search.terms):
            raise InvalidInput(
                "A search by words has the same term twice, or asks for less than nothing.",
                hint="Give different terms, and 0 or more for `most`.",
            )

        async def work(conn: Connection) -> TextFound:
            await self._check(conn, tables)
            return await self._texts[search.index].search(conn, search)

        return await self._read(tables, work, options.deadline)

    async def search_vectors(self, search: VectorSearch, options: Options = DEFAULT) -> list[Near]:
        tables = self._filer.tables(search.index)

        async def work(conn: Connection) -> list[Near]:
            await self._check(conn, tables)
            return await VectorReader(tables).nearest(conn, search)

        return await self._read(tables, work, options.deadline)

    async def _check(self, conn: Connection, tables: Tables) -> None:
        """Raises `Corrupted` if the index is known to lack documents."""
        fault = await search_tables.fault(conn, tables)
        if fault:
            raise Corrupted(fault, hint=_REBUILD)

    async def notes(self, index: str, places: Sequence[int]) -> list[bytes | None]:
        tables = self._filer.tables(index)
        return await self._read(tables, lambda conn: _notes(conn, tables, places))

    async def places(self, index: str, after: int, limit: int) -> list[int]:
        tables = self._filer.tables(index)

        async def work(conn: Connection) -> list[int]:
            rows = await conn.rows(
                f"SELECT place FROM {tables.words} WHERE place > %s AND part = 0"
                " ORDER BY place LIMIT %s",
                (after, limit),
                binary=True,
                prepare=False,
            )
            return [place for (place,) in rows]

        return await self._read(tables, work)

    async def state(self, index: str, *, thorough: bool = False) -> SearchState:
        del thorough  # the server checks its pages as it reads them
        tables = self._filer.tables(index)

        async def work(conn: Connection) -> SearchState:
            fault = await search_tables.fault(conn, tables)
            faults = [fault] if fault else []
            if not await search_tables.finds_its_last(conn, tables):
                faults.append(f"A document of {index!r} is not found by its words.")
            row = await conn.row(f"SELECT count(*) FROM {tables.words} WHERE part = 0")
            vectors = await VectorReader(tables).count(conn)
            return SearchState(row[0] if row else 0, vectors, faults=tuple(faults))

        try:
            return await self._read(tables, work)
        except Corrupted as exc:
            return SearchState(faults=(exc.message,))

    async def embed(self, index: str, model: str, embeddings: Sequence[Embedding]) -> int:
        tables = self._filer.tables(index)

        try:
            return await self._adapter.writer.run(
                lambda conn: VectorReader(tables).embed(conn, model, embeddings)
            )
        except PerdureError as exc:
            if isinstance(exc.__cause__, _BROKEN):
                raise _corrupted(tables, exc.__cause__) from exc
            raise

    async def vectors(
        self, index: str, model: str, places: Sequence[int], noted: Sequence[int] = ()
    ) -> VectorRows:
        tables = self._filer.tables(index)

        async def work(conn: Connection) -> VectorRows:
            found = await VectorReader(tables).vectors(conn, model, places)
            return msgspec.structs.replace(found, notes=await _notes(conn, tables, noted))

        return await self._read(tables, work)

    async def unembedded(self, index: str, model: str, after: int, limit: int) -> list[int]:
        tables = self._filer.tables(index)
        return await self._read(
            tables, lambda conn: VectorReader(tables).unembedded(conn, model, after, limit)
        )

    async def tend(self, index: str) -> bool:
        """The HNSW index of a model is built in one go."""
        tables = self._filer.tables(index)

        async def work(conn: Connection) -> dict[str, Built]:
            await search_tables.tidy(conn, tables)
            return await VectorReader(tables).wanted(conn)

        wanted = await self._read(tables, work)
        if wanted:
            table = tables.vectors.partition(".")[2]
            with translated(self._adapter.server):
                await indexes.build(self._adapter.reader, self._adapter.server, table, wanted)
        return False

    def check(self, changes: Sequence[Document | Withdrawal]) -> None:
        self._filer.check(changes)

    def take_part(
        self, changes: Sequence[Document | Withdrawal], left_out: str
    ) -> Sequence[Participant]:
        return self._filer.begin(changes, left_out)

    def give_up(self, changes: Sequence[Document | Withdrawal], reason: str) -> None:
        self._filer.give_up(changes, reason)

    async def scrub(self, conn: Connection) -> None:
        """The index over words is built anew."""
        await search_tables.scrub(conn, self._schema)

    async def clear(self, conn: Connection) -> None:
        await search_tables.clear(conn, self._schema)

    async def _read(
        self,
        tables: Tables,
        work: Callable[[Connection], Awaitable[T]],
        deadline: float | None = None,
    ) -> T:
        """Run `work`. Raises `Corrupted` if the index is not as it was made."""

        async def attempt(conn: Connection) -> T:
            try:
                return await work(conn)
            except _BROKEN as exc:
                raise _corrupted(tables, exc) from exc

        return await self._adapter.reader.run(attempt, deadline)


async def _notes(conn: Connection, tables: Tables, places: Sequence[int]) -> list[bytes | None]:
    if not places:
        return []
    rows = await conn.rows(
        f"SELECT place, note FROM {tables.words} WHERE place = ANY(%s::bigint[]) AND part = 0",
        (list(places),),
        binary=True,
        prepare=False,
    )
    found: dict[int, bytes] = dict(rows)
    return [found.get(place) for place in places]


def _corrupted(tables: Tables, exc: BaseException) -> Corrupted:
    said = str(exc).partition("\n")[0]
    return Corrupted(
        f"The search index {tables.index.name!r} is missing or damaged: {said}.", hint=_REBUILD
    )
