"""Search indexes on PostgreSQL: tsvector with GIN, and pgvector.

`search_tables` makes the tables, `filing` writes documents inside commits, `postings` searches by
words and `nearness` by meaning. Here is what the adapter offers of it. All reads are answered by
the primary: a search sees whatever was committed before.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Awaitable, Callable, Sequence
from typing import TypeVar

from psycopg import errors as pg

from perdure.core.errors import Corrupted, InvalidInput, PerdureError
from perdure.storage.adapter import Adapter
from perdure.storage.backends.postgres import indexes, search_tables
from perdure.storage.backends.postgres.address import Server
from perdure.storage.backends.postgres.errors import DAMAGE, translated
from perdure.storage.backends.postgres.filing import Filer
from perdure.storage.backends.postgres.links import Connection, Links
from perdure.storage.backends.postgres.nearness import VectorReader
from perdure.storage.backends.postgres.postings import TextReader
from perdure.storage.backends.postgres.reader import Reader
from perdure.storage.backends.postgres.search_tables import Tables
from perdure.storage.backends.postgres.writer import Writer
from perdure.storage.layouts import Layout
from perdure.storage.options import Options
from perdure.storage.searching import (
    Embedding,
    Near,
    SearchIndex,
    SearchState,
    TextFound,
    TextSearch,
    VectorRows,
    VectorSearch,
)

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


class Searches:
    """The search indexes that this process has prepared."""

    def __init__(
        self, server: Server, links: Links, reader: Reader, writer: Writer, filer: Filer
    ) -> None:
        self._server = server
        self._links = links
        self._reader = reader
        self._writer = writer
        self._filer = filer
        self._texts: dict[str, TextReader] = {}

    async def prepare(self, index: SearchIndex) -> bool:
        """See `Adapter.prepare_search`."""
        search_tables.check(index)
        schema = self._server.schema
        found = await self._reader.run(lambda conn: search_tables.known(conn, schema, index.name))
        if found is not None and found.index == index:
            self._use(found)
            return False
        kind = await self._reader.run(search_tables.vector_type)
        tables, made = await self._writer.run(
            lambda conn: search_tables.make(conn, schema, index, kind)
        )
        self._use(tables)
        return made

    def _use(self, tables: Tables) -> None:
        self._filer.define(tables)
        self._texts[tables.index.name] = TextReader(tables)

    async def erase(self, name: str) -> None:
        """See `Adapter.erase_search`."""
        await self._writer.run(
            lambda conn: search_tables.erase(conn, self._server.schema, name), strong=True
        )

    async def search(self, search: TextSearch, options: Options) -> TextFound:
        """See `Adapter.search_text`."""
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

    async def nearest(self, search: VectorSearch, options: Options) -> list[Near]:
        """See `Adapter.search_vectors`."""
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

    async def notes(self, name: str, places: Sequence[int]) -> list[bytes | None]:
        """See `Adapter.notes`."""
        tables = self._filer.tables(name)

        async def work(conn: Connection) -> list[bytes | None]:
            cursor = await conn.execute(
                f"SELECT place, note FROM {tables.words}"
                " WHERE place = ANY(%s::bigint[]) AND part = 0",
                (list(places),),
                binary=True,
                prepare=False,
            )
            found: dict[int, bytes] = dict(await cursor.fetchall())
            return [found.get(place) for place in places]

        return await self._read(tables, work)

    async def places(self, name: str, after: int, limit: int) -> list[int]:
        """See `Adapter.places`."""
        tables = self._filer.tables(name)

        async def work(conn: Connection) -> list[int]:
            cursor = await conn.execute(
                f"SELECT place FROM {tables.words} WHERE place > %s AND part = 0"
                " ORDER BY place LIMIT %s",
                (after, limit),
                binary=True,
                prepare=False,
            )
            return [place for (place,) in await cursor.fetchall()]

        return await self._read(tables, work)

    async def state(self, name: str) -> SearchState:
        """See `Adapter.search_state`."""
        tables = self._filer.tables(name)

        async def work(conn: Connection) -> SearchState:
            fault = await search_tables.fault(conn, tables)
            faults = [fault] if fault else []
            if not await search_tables.finds_its_last(conn, tables):
                faults.append(f"A document of {name!r} is not found by its words.")
            cursor = await conn.execute(f"SELECT count(*) FROM {tables.words} WHERE part = 0")
            row = await cursor.fetchone()
            vectors = await VectorReader(tables).count(conn)
            return SearchState(row[0] if row else 0, vectors, faults=tuple(faults))

        try:
            return await self._read(tables, work)
        except Corrupted as exc:
            return SearchState(faults=(exc.message,))

    async def embed(self, name: str, model: str, embeddings: Sequence[Embedding]) -> int:
        """See `Adapter.embed`."""
        tables = self._filer.tables(name)

        try:
            return await self._writer.run(
                lambda conn: VectorReader(tables).embed(conn, model, embeddings)
            )
        except PerdureError as exc:
            if isinstance(exc.__cause__, _BROKEN):
                raise _corrupted(tables, exc.__cause__) from exc
            raise

    async def vectors(self, name: str, model: str, places: Sequence[int]) -> VectorRows:
        """See `Adapter.vectors`."""
        tables = self._filer.tables(name)
        return await self._read(
            tables, lambda conn: VectorReader(tables).vectors(conn, model, places)
        )

    async def unembedded(self, name: str, model: str, after: int, limit: int) -> list[int]:
        """See `Adapter.unembedded`."""
        tables = self._filer.tables(name)
        return await self._read(
            tables, lambda conn: VectorReader(tables).unembedded(conn, model, after, limit)
        )

    async def tend(self, name: str) -> bool:
        """See `Adapter.tend_search`. The HNSW index of a model is built in one go."""
        tables = self._filer.tables(name)

        async def work(conn: Connection) -> dict[str, indexes.Definition]:
            await search_tables.tidy(conn, tables)
            return await VectorReader(tables).wanted(conn)

        wanted = await self._read(tables, work)
        if wanted:
            table = Layout(tables.vectors.partition(".")[2])
            with translated(self._server):
                await indexes.build(self._links, self._server, table, wanted)
        return False

    async def _read(
        self,
        tables: Tables,
        work: Callable[[Connection], Awaitable[T]],
        deadline: float | None = None,
    ) -> T:
        """What `work` returns. Raises `Corrupted` if the index is not as it was made."""

        async def attempt(conn: Connection) -> T:
            try:
                return await work(conn)
            except _BROKEN as exc:
                raise _corrupted(tables, exc) from exc

        return await self._reader.run(attempt, deadline)


def _corrupted(tables: Tables, exc: BaseException) -> Corrupted:
    said = str(exc).partition("\n")[0]
    return Corrupted(
        f"The search index {tables.index.name!r} is missing or damaged: {said}.", hint=_REBUILD
    )


class Searching(Adapter):
    """The part of the adapter that has search indexes."""

    @abstractmethod
    def _open_searches(self) -> Searches:
        """Raises `Closed` unless the store is open."""

    async def prepare_search(self, index: SearchIndex) -> bool:
        return await self._open_searches().prepare(index)

    async def search_text(self, search: TextSearch, options: Options) -> TextFound:
        return await self._open_searches().search(search, options)

    async def notes(self, index: str, places: Sequence[int]) -> list[bytes | None]:
        return await self._open_searches().notes(index, places)

    async def places(self, index: str, after: int, limit: int) -> list[int]:
        return await self._open_searches().places(index, after, limit)

    async def search_state(self, index: str, *, thorough: bool = False) -> SearchState:
        del thorough  # the server checks its pages as it reads them
        return await self._open_searches().state(index)

    async def erase_search(self, index: str) -> None:
        """Waits for others who use it, but not for long at a time."""
        await self._open_searches().erase(index)

    async def tend_search(self, index: str) -> bool:
        return await self._open_searches().tend(index)

    async def embed(self, index: str, model: str, embeddings: Sequence[Embedding]) -> int:
        return await self._open_searches().embed(index, model, embeddings)

    async def search_vectors(self, search: VectorSearch, options: Options) -> list[Near]:
        return await self._open_searches().nearest(search, options)

    async def vectors(self, index: str, model: str, places: Sequence[int]) -> VectorRows:
        return await self._open_searches().vectors(index, model, places)

    async def unembedded(self, index: str, model: str, after: int, limit: int) -> list[int]:
        return await self._open_searches().unembedded(index, model, after, limit)
