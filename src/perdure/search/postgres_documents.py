"""Documents as rows of a search index, written with the rows that they are about.

An append never fails because an index is missing or damaged: its rows are the truth, and an index
can be filled again. The index is marked as incomplete instead.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import psycopg

from perdure.search import postgres_search_tables as search_tables
from perdure.search.engine import Document, Withdrawal, check_document, not_prepared
from perdure.search.postgres_search_tables import Tables, rows_of
from perdure.storage.backends.postgres.extension import LeftOut
from perdure.storage.backends.postgres.links import Connection


class PostgresDocuments:
    """Files documents, inside transactions that the writer began."""

    def __init__(self) -> None:
        self._tables: dict[str, Tables] = {}
        #: Why documents of an index are not filed at present.
        self._broken: dict[str, str] = {}

    def define(self, tables: Tables) -> None:
        self._tables[tables.index.name] = tables
        self._broken.pop(tables.index.name, None)

    def tables(self, name: str) -> Tables:
        """Raises `InvalidInput` if this process has not prepared the index."""
        try:
            return self._tables[name]
        except KeyError:
            raise not_prepared(name) from None

    def check(self, changes: Sequence[Document | Withdrawal]) -> None:
        for change in changes:
            tables = self.tables(change.index)
            if isinstance(change, Document):
                check_document(tables.index, change)

    def begin(
        self, changes: Sequence[Document | Withdrawal], unfiled: str
    ) -> list[IndexParticipant]:
        by_index: dict[str, list[Document | Withdrawal]] = {}
        for change in changes:
            by_index.setdefault(change.index, []).append(change)
        return [
            IndexParticipant(
                self, self.tables(name), own, _lacking(unfiled) or self._broken.get(name, "")
            )
            for name, own in sorted(by_index.items())
        ]

    def give_up(self, changes: Sequence[Document | Withdrawal], reason: str) -> None:
        """Do not write to their indexes again before these are made anew."""
        for change in changes:
            self._broken[change.index] = _lacking(reason)

    async def note(self, conn: Connection, tables: Tables, reason: str) -> None:
        """Mark the index as incomplete, unless it was made anew meanwhile."""
        if await search_tables.blame(conn, tables, reason):
            return
        found = await search_tables.known(conn, tables.schema, tables.index.name)
        if found is None:
            return  # it is not whole: whoever prepares it makes it anew
        self.define(found)
        raise LeftOut("")


class IndexParticipant:
    """The changes that one transaction makes in one index."""

    def __init__(
        self,
        filer: PostgresDocuments,
        tables: Tables,
        changes: Sequence[Document | Withdrawal],
        unfiled: str,
    ) -> None:
        self._filer = filer
        self._tables = tables
        self._unfiled = unfiled
        self._withdrawn: list[Withdrawal] = []
        self._put: dict[int, Document] = {}
        self._cursors: list[psycopg.AsyncCursor[tuple[Any, ...]]] = []
        self._written: psycopg.AsyncCursor[tuple[Any, ...]] | None = None
        for change in changes:
            self._take(change)

    def _take(self, change: Document | Withdrawal) -> None:
        if isinstance(change, Document):
            self._put[change.place] = change
            return
        self._withdrawn.append(change)
        for place in [each for each in self._put if change.first <= each <= change.last]:
            del self._put[place]

    async def send(self, conn: Connection) -> None:
        if self._unfiled:
            return
        if self._withdrawn:
            ranges = (
                [each.first for each in self._withdrawn],
                [each.last for each in self._withdrawn],
            )
            # The words first: whoever adds a vector locks them, so the second sees all vectors.
            for table in (self._tables.words, self._tables.vectors):
                self._cursors.append(await conn.execute(_withdrawal(table), ranges))
        if self._put:
            self._written = await conn.execute(_insertion(self._tables), self._rows(), binary=True)

    async def receive(self, conn: Connection) -> None:
        """Await the results, or have the index marked as incomplete."""
        if self._unfiled:
            await self._filer.note(conn, self._tables, self._unfiled)
            return
        for cursor in self._cursors:
            await cursor.fetchone()
        if self._written is not None and await self._written.fetchone() != (0,):
            await self._clean_up(conn)

    async def _clean_up(self, conn: Connection) -> None:
        """Remove what replaced documents leave behind: vectors, further rows."""
        parts: dict[int, int] = {}
        for place in self._rows()[0]:
            parts[place] = parts.get(place, 0) + 1
        tables, places = self._tables, list(parts)
        await conn.row(
            f"WITH cut AS (DELETE FROM {tables.words} AS w"
            " USING unnest(%s::bigint[], %s::bigint[]) AS d(place, parts)"
            " WHERE w.place = d.place AND w.part >= d.parts RETURNING 1),"
            f" gone AS (DELETE FROM {tables.vectors} WHERE place = ANY(%s::bigint[]) RETURNING 1)"
            " SELECT (SELECT count(*) FROM cut) + (SELECT count(*) FROM gone)",
            (places, list(parts.values()), places),
        )

    def _rows(self) -> tuple[list[Any], ...]:
        rows = [
            (place, part, start, words, None if part else self._put[place].note)
            for place in sorted(self._put)
            for part, (start, words) in enumerate(
                rows_of(self._put[place].texts, self._tables.stride)
            )
        ]
        return tuple(map(list, zip(*rows, strict=True)))


def _lacking(reason: str) -> str:
    said = f"Documents are missing in the search index, because of this: {reason}."
    return said if reason else ""


def _withdrawal(table: str) -> str:
    return (
        f"WITH gone AS (DELETE FROM {table} AS t"
        " USING unnest(%s::bigint[], %s::bigint[]) AS r(first, last)"
        " WHERE t.place BETWEEN r.first AND r.last RETURNING 1) SELECT count(*) FROM gone"
    )


def _insertion(tables: Tables) -> str:
    return (
        f"WITH put AS (INSERT INTO {tables.words}(place, part, start, words, note)"
        " SELECT place, part, start, words::tsvector, note FROM unnest(%s::bigint[], %s::bigint[],"
        " %s::bigint[], %s::text[], %s::bytea[]) AS d(place, part, start, words, note)"
        " ON CONFLICT (place, part) DO UPDATE SET start = excluded.start, words = excluded.words,"
        " note = excluded.note RETURNING xmax) SELECT count(*) FROM put WHERE xmax::text <> '0'"
    )
