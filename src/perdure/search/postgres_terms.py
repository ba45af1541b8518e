"""Search by words.

A search counts the documents of each term, then reads terms from the rarest on, as many at a time
as there is room for. The server cuts all other words away, and numbers come as bytes that numpy
reads.

Counting frequent terms in the index would take longer than all the rest: their share, and that of
ranges, is estimated from the planner's statistics, read once a minute.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import msgspec

from perdure.search.engine import MAX_PLACE, Postings, Range, TextFound, TextSearch
from perdure.search.postgres_search_tables import Tables, lexeme, quoted
from perdure.search.vector_matrix import is_within
from perdure.storage.backends.postgres.links import Connection

if TYPE_CHECKING:
    import numpy as np

#: From so many documents on the statistics are used …
MANY = 10_000
#: … for terms with so many …
FREQUENT = 2_000
#: … and for so many seconds.
FRESH = 60.0
#: When most of the index is searched, a term is left out unread if it seems to exceed the room by
#: this factor.
_SURELY = 3.0

# The wanted term gets the weight A, which no other has; then the others are dropped. In binary,
# what is left is 4 bytes, the term, a zero, the number of positions, and each of them in 2 bytes.
_DOCUMENTS = (
    "SELECT w.place, w.start, tsvectorsend(ts_filter(setweight(w.words, 'A', ARRAY[{term}]),"
    " '{{a}}')) AS found FROM {words} AS w WHERE w.words @@ {query}::tsquery{scope}"
)
_BYTES = (
    "SELECT string_agg(int8send(d.place), '') AS places, string_agg(int4send(d.start), '') AS"
    " starts, string_agg(substring(d.found FROM 6 + octet_length({term}) FOR 2), '') AS counts,"
    " string_agg(substring(d.found FROM 8 + octet_length({term})), '') AS positions"
)
_POSITION = 0x3FFF


class RangeCondition:
    """Ranges as an SQL condition."""

    def __init__(self, within: Sequence[Range] | None) -> None:
        self._bounded = within is not None
        self.empty = within is not None and not within
        self.params: tuple[Any, ...] = ()
        if within:
            edges = [edge for first, last in within for edge in (first, min(last, MAX_PLACE) + 1)]
            self.params = (edges[0], edges[-1] - 1, edges)

    def on(self, place: str) -> str:
        """The condition, with the column's name; to be added to others."""
        if not self._bounded:
            return ""
        # The first part is for the planner, who may have an index for it. The second is a binary
        # search: behind an odd number of edges, a place is in a range.
        return f" AND {place} BETWEEN %s AND %s AND width_bucket({place}, %s::bigint[]) %% 2 = 1"


class _Statistics(msgspec.Struct, frozen=True):
    """Statistics of an index at some moment. A small one has none: it is counted."""

    moment: float
    documents: int = 0
    #: Documents with a frequent term, by its lexeme; estimated.
    frequent: dict[str, int] = {}
    #: Places that cut the index into parts of the same size.
    bounds: tuple[int, ...] = ()

    def share(self, within: Sequence[Range] | None) -> float:
        """Roughly the share of documents within the ranges; 0 if unknown."""
        if within is None:
            return 1.0
        if not self.bounds:
            return 0.0
        import numpy as np

        return float(is_within(np.array(self.bounds), within).mean())


class TextReader:
    """Searches one index by words."""

    def __init__(self, tables: Tables) -> None:
        self._tables = tables
        self._statistics = _Statistics(float("-inf"))

    async def search(self, conn: Connection, search: TextSearch) -> TextFound:
        if time.monotonic() - self._statistics.moment > FRESH:
            self._statistics = await self._look(conn)
        words = [lexeme(term) for term in search.terms]
        total, counts = await self._counts(conn, words)
        share = self._statistics.share(search.within)
        found = await _Reading(self._tables, conn, search, share).read(counts)
        return TextFound(total, tuple([Postings(counts[word], *found[word]) for word in words]))

    async def _look(self, conn: Connection) -> _Statistics:
        schema, _, table = self._tables.words.partition(".")
        where = f"FROM pg_stats WHERE schemaname = '{schema}' AND tablename = '{table}' AND attname"
        cursor = await conn.execute(
            f"SELECT (SELECT most_common_elems::text::text[] {where} = 'words'),"
            f" (SELECT most_common_elem_freqs {where} = 'words'),"
            f" (SELECT histogram_bounds::text::bigint[] {where} = 'place'),"
            f" CASE WHEN reltuples >= {MANY} THEN (SELECT count(*) FROM {self._tables.words}"
            " WHERE part = 0) END"
            f" FROM pg_class WHERE oid = '{self._tables.words}'::regclass",
            prepare=False,
        )
        terms, shares, bounds, total = await cursor.fetchone() or (None, None, None, None)
        if not total:
            return _Statistics(time.monotonic())
        # Behind the shares stand the lowest and the highest of them.
        pairs = zip(terms or (), shares or (), strict=False)
        frequent = {term: round(share * total) for term, share in pairs if share * total > FREQUENT}
        return _Statistics(time.monotonic(), total, frequent, tuple(bounds or ()))

    async def _counts(self, conn: Connection, words: Sequence[str]) -> tuple[int, dict[str, int]]:
        known = self._statistics
        unknown = [word for word in dict.fromkeys(words) if word not in known.frequent]
        total = known.documents or f"(SELECT count(*) FROM {self._tables.words} WHERE part = 0)"
        cursor = await conn.execute(
            f"SELECT {total}, ARRAY(SELECT (SELECT count(DISTINCT w.place)"
            f" FROM {self._tables.words} AS w WHERE w.words @@ t.query::tsquery)"
            " FROM unnest(%s::text[]) WITH ORDINALITY AS t(query, n) ORDER BY n)",
            ([quoted(word) for word in unknown],),
            binary=True,
            prepare=False,  # the best plan for a small table is a bad one when it has grown
        )
        documents, counted = await cursor.fetchone() or (0, [])
        counts = dict(zip(unknown, counted, strict=True))
        return documents, {word: counts.get(word, known.frequent.get(word, 0)) for word in words}


class _Reading:
    def __init__(self, tables: Tables, conn: Connection, search: TextSearch, share: float) -> None:
        self._tables = tables
        self._conn = conn
        self._scope = RangeCondition(search.within)
        self._everywhere = search.within is None
        self._share = share
        self._left = search.most
        #: The rarest word, which may be cut off.
        self._rarest = ""
        self._found: dict[str, tuple[np.ndarray, bool]] = {}

    async def read(self, counts: dict[str, int]) -> dict[str, tuple[np.ndarray, bool]]:
        waiting = sorted(counts, key=counts.__getitem__)
        self._rarest = waiting[0] if waiting else ""
        while waiting:
            chosen = self._choose(waiting, counts)
            if chosen == [self._rarest] and counts[self._rarest] > self._left:
                self._keep(self._rarest, await self._read_start(self._rarest))
            elif chosen:
                for word, rows in zip(chosen, await self._read_all(chosen), strict=True):
                    self._keep(word, rows)
        return self._found

    def _choose(self, waiting: list[str], counts: dict[str, int]) -> list[str]:
        """Next words to read, as many as there is surely room for; takes them from `waiting`."""
        chosen: list[str] = []
        room = self._left
        while waiting and (not chosen or counts[waiting[0]] <= room):
            word = waiting.pop(0)
            if not counts[word] or self._scope.empty:
                self._found[word] = _rows(None, 1), True
            elif word != self._rarest and self._is_too_much(counts[word]):
                self._found[word] = _rows(None, 1), False
            else:
                chosen.append(word)
                room -= counts[word]
        return chosen

    def _is_too_much(self, count: int) -> bool:
        """Whether a word surely exceeds the room, so that it need not be read."""
        if self._everywhere:
            return count > self._left
        return self._share > 1 / 2 and count * self._share > _SURELY * self._left

    def _keep(self, word: str, rows: np.ndarray) -> None:
        complete = len(rows) <= self._left
        if not complete:
            rows = rows[: self._left if word == self._rarest else 0]
        self._found[word] = rows, complete
        self._left -= len(rows)

    async def _read_all(self, words: Sequence[str]) -> list[np.ndarray]:
        rows = await self._conn.rows(
            "SELECT s.* FROM unnest(%s::text[], %s::text[]) WITH ORDINALITY AS t(term, query, n)"
            f" CROSS JOIN LATERAL ({self._text('t.term', 't.query')} LIMIT %s) AS d) AS s"
            " ORDER BY t.n",
            (
                list(words),
                [quoted(word) for word in words],
                *self._scope.params,
                self._left + 1,
            ),
            binary=True,
            prepare=False,
        )
        return [_rows(row, self._tables.stride) for row in rows]

    async def _read_start(self, word: str) -> np.ndarray:
        """The first occurrences of a word that has too many, ordered by place."""
        # The word is no column here, so the planner knows how frequent it is: it walks along the
        # places then, instead of collecting all of them and sorting.
        text = self._text("%s::text", "%s")
        row = await self._conn.row(
            f"{text} ORDER BY w.place, w.part LIMIT %s) AS d",
            (word, word, word, quoted(word), *self._scope.params, self._left + 1),
            binary=True,
            prepare=False,
        )
        return _rows(row, self._tables.stride)

    def _text(self, term: str, query: str) -> str:
        documents = _DOCUMENTS.format(
            term=term, query=query, words=self._tables.words, scope=self._scope.on("w.place")
        )
        return f"{_BYTES.format(term=term)} FROM ({documents}"


def _rows(data: Sequence[bytes | None] | None, stride: int) -> np.ndarray:
    """Place, field and offset of each occurrence, in this order."""
    import numpy as np

    places, starts, counts, positions = data or (None,) * 4
    if places is None or starts is None or counts is None or positions is None:
        return np.empty((0, 3), dtype=np.int64)
    repeated = np.frombuffer(counts, dtype=">u2")
    standing = (np.frombuffer(positions, dtype=">u2") & _POSITION).astype(np.int64) - 1
    rows = np.empty((len(standing), 3), dtype=np.int64)
    rows[:, 0] = np.repeat(np.frombuffer(places, dtype=">i8"), repeated)
    rows[:, 1] = standing // stride
    rows[:, 2] = standing % stride + np.repeat(np.frombuffer(starts, dtype=">i4"), repeated)
    order = np.lexsort((rows[:, 2], rows[:, 1], rows[:, 0]))
    return rows[order]
