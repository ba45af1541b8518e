"""Search an index by words.

FTS5 gives one row per occurrence. Rows are slow to carry over to Python, so a statement
concatenates them and numpy splits them. Each further statement takes a tenth of a millisecond, so
one reads all that will be read anyway. Documents not filed yet are scanned.

Counts decide which terms are read. Counting a frequent one takes milliseconds, so such counts are
cached for a while.
"""

from __future__ import annotations

import itertools
import re
import threading
import time
from collections.abc import Hashable, Sequence
from typing import TYPE_CHECKING

import apsw

from perdure.search.engine import Postings, Range, TextFound, TextSearch
from perdure.search.sqlite_search_tables import OFFSET_BITS, parted
from perdure.search.vector_matrix import is_within

if TYPE_CHECKING:
    import numpy as np

#: A count below this is made anew each time: that takes less than a tenth of a millisecond.
_FREQUENT = 1_000
#: Seconds for which a higher one is remembered.
_FOR = 20.0
#: Counts that are remembered.
_MOST = 10_000
#: With more ranges than this, all that lies between the first and the last is read.
_FEW = 12

#: Microseconds: to look a term up in a range, and then for each occurrence; to pass an occurrence
#: by, and to take it.
_LOOK_UP, _LOOK_AT, _PASS_BY, _TAKE = 40.0, 3.0, 0.15, 0.25

#: Place, field and offset.
_Rows = list[tuple[int, int, int]]
_OFFSET = 2**OFFSET_BITS - 1
#: In front of field and offset: the number of a term among several, from 1 on.
_NUMBER_BITS = 40
_FIELD = 2 ** (_NUMBER_BITS - OFFSET_BITS) - 1
_SPOTS = "perdure_spots"
#: What FTS5 takes for one term.
_TERM = re.compile(r"[a-z0-9_=:./\-\u0080-\U0010ffff]+")


class TermCounts:
    """Cached counts, which may be slightly out of date."""

    def __init__(self) -> None:
        self._known: dict[Hashable, tuple[tuple[int, int], float]] = {}
        self._lock = threading.Lock()

    def get(self, what: Hashable) -> tuple[int, int] | None:
        known = self._known.get(what)
        return None if known is None or known[1] < time.monotonic() else known[0]

    def keep(self, what: Hashable, numbers: tuple[int, int]) -> tuple[int, int]:
        if numbers[0] >= _FREQUENT:
            with self._lock:
                if len(self._known) >= _MOST:
                    self._known.clear()
                self._known[what] = (numbers, time.monotonic() + _FOR)
        return numbers


class TermSearch:
    """Searches one index. Used by several threads."""

    def __init__(self, name: str) -> None:
        self._counts = TermCounts()
        self._all = f'SELECT count(*), 0 FROM "{name}__documents"'
        self._between = f"{self._all} WHERE place BETWEEN ? AND ?"
        self._waiting = f'SELECT place, texts FROM "{name}__fresh" ORDER BY place'
        self._count = (
            f'SELECT c.term, c.doc, c.cnt FROM carray(?) AS wanted CROSS JOIN "{name}__counts" AS c'
            " ON c.term = wanted.value"
        )
        self._found = (
            "SELECT group_concat(doc, ' '), group_concat(at, ' ') FROM"
            f' (SELECT doc, col << {OFFSET_BITS} | "offset" AS at FROM "{name}__found"'
            " WHERE term = ?{within} LIMIT ?)"
        )
        self._found_together = (
            "SELECT group_concat(f.doc, ' '), group_concat("
            f"(wanted.rowid << {_NUMBER_BITS}) | (f.col << {OFFSET_BITS}) | f.\"offset\", ' ')"
            f' FROM carray(?) AS wanted CROSS JOIN "{name}__found" AS f ON f.term = wanted.value'
        )
        self._matches = (
            f'SELECT count(*) FROM "{name}__words"'
            f' WHERE "{name}__words" MATCH ? AND rowid BETWEEN ? AND ?'
        )
        self._matching = (
            f'SELECT {_SPOTS}("{name}__words") FROM "{name}__words"'
            f' WHERE "{name}__words" MATCH ? AND rowid BETWEEN ? AND ?'
        )

    def search(self, db: apsw.Connection, search: TextSearch) -> TextFound:
        documents, _ = self._counted(db, (), self._all)
        terms = sorted(self._terms(db, search.terms), key=lambda term: term.documents)
        scope = _Scope(search.within, documents, self._inside(db, search.within, documents))
        together = self._together(db, terms, scope, search.most)
        found: dict[str, Postings] = {}
        left = search.most
        for number, term in enumerate(terms):
            rows = together.get(term.text)
            if rows is None and number and self._exceeds(db, term, scope, left):
                found[term.text] = Postings(term.documents, _rows([]), complete=False)
                continue
            if rows is None:
                rows = self._occurrences(db, term, scope, left + 1)
            complete = len(rows) <= left
            if not complete:
                rows = rows[: 0 if number else left]
            left -= len(rows)
            found[term.text] = Postings(term.documents, rows, complete)
        return TextFound(documents, tuple(found[term] for term in search.terms))

    def _exceeds(self, db: apsw.Connection, term: _Term, scope: _Scope, left: int) -> bool:
        """Whether a term is known to exceed what is left, so that it need not be read."""
        if scope.least(term) > left:
            return True
        if not scope.is_narrow(term) or scope.likely(term) <= left:
            return False
        # To read them one by one takes ten times as long as to count them. With some allowance:
        # how often it is in a document may differ from one range to another.
        text, asked = self._matches, f'"{term.text}"'
        documents = sum(db.execute(text, (asked, *span)).get for span in scope.within or ())
        return bool(documents * term.times / term.documents > 1.5 * left)

    def _counted(self, db: apsw.Connection, what: tuple[str, ...], text: str) -> tuple[int, int]:
        known = self._counts.get(what)
        if known is not None:
            return known
        return self._counts.keep(what, db.execute(text, what).get or (0, 0))

    def _terms(self, db: apsw.Connection, texts: Sequence[str]) -> list[_Term]:
        known = {text: self._counts.get((text,)) for text in texts if _TERM.fullmatch(text)}
        if new := tuple(text for text, numbers in known.items() if numbers is None):
            for text, documents, times in db.execute(self._count, (apsw.carray(new),)):
                known[text] = self._counts.keep((text,), (documents, times))
        fresh = self._fresh(db, texts)
        return [_Term(text, *(known.get(text) or (0, 0)), fresh[text]) for text in texts]

    def _inside(
        self, db: apsw.Connection, within: Sequence[Range] | None, documents: int
    ) -> int | None:
        """How many documents are within the ranges; None if it does not pay to know."""
        if within is None:
            return documents
        if documents < _FREQUENT:
            return None
        ranges = tuple(within)
        known = self._counts.get(ranges)
        if known is None:
            inside = [db.execute(self._between, each).get[0] for each in ranges]
            known = self._counts.keep(ranges, (sum(inside), 0))
        return min(known[0], documents)

    def _fresh(self, db: apsw.Connection, terms: Sequence[str]) -> dict[str, _Rows]:
        found: dict[str, _Rows] = {term: [] for term in terms}
        for place, texts in db.execute(self._waiting):
            for field, text in enumerate(texts.split("\n")):
                words = text.split(" ")
                if not found.keys().isdisjoint(words):
                    for offset, word in enumerate(words):
                        if word in found:
                            found[word].append((place, field, offset))
        return found

    def _together(
        self, db: apsw.Connection, terms: Sequence[_Term], scope: _Scope, most: int
    ) -> dict[str, np.ndarray]:
        """Occurrences of the rarest terms within the ranges, as far as they fit whole."""
        chosen = []
        for term in terms:
            most -= term.times
            if most < 0:
                break
            if term.is_possible and not scope.is_narrow(term):
                chosen.append(term)
        if not chosen:
            return {}
        texts = apsw.carray(tuple(term.text for term in chosen))
        numbers, rows = _taken_apart(*db.execute(self._found_together, (texts,)).get)
        if scope.within is not None:
            inside = is_within(rows[:, 0], scope.within)
            numbers, rows = numbers[inside], rows[inside]
        bounds = numbers.searchsorted(range(1, len(chosen) + 2)).tolist()
        return {
            term.text: term.with_fresh(_in_order(rows[start:end]), scope)
            for term, (start, end) in zip(chosen, itertools.pairwise(bounds), strict=True)
        }

    def _occurrences(
        self, db: apsw.Connection, term: _Term, scope: _Scope, limit: int
    ) -> np.ndarray:
        """Occurrences of a term within the ranges, in order: all, or the first `limit`."""
        if not term.is_possible:
            return _rows([])
        narrow = scope.is_narrow(term)
        read = self._looked_up if narrow else self._read
        rows = read(db, term, scope, limit)
        if scope.within is not None:
            rows = rows[is_within(rows[:, 0], scope.within)]
        return term.with_fresh(rows, scope)[:limit]

    def _read(self, db: apsw.Connection, term: _Term, scope: _Scope, limit: int) -> np.ndarray:
        spans = _spans(scope.within)
        condition = " OR ".join(["doc BETWEEN ? AND ?"] * len(spans))
        text = self._found.format(within=f" AND ({condition})" if spans else "")
        exact = scope.within is None or len(scope.within) <= len(spans)
        params = (term.text, *itertools.chain.from_iterable(spans), limit if exact else -1)
        return _in_order(_taken_apart(*db.execute(text, params).get)[1])

    def _looked_up(self, db: apsw.Connection, term: _Term, scope: _Scope, limit: int) -> np.ndarray:
        """Occurrences of a term, range by range."""
        import numpy as np

        asked = f'"{term.text}"'
        texts = (
            text
            for first, last in scope.within or ()
            for (text,) in db.execute(self._matching, (asked, first, last))
        )
        some = " ".join(itertools.islice(texts, limit))  # in each it stands at least once
        found = np.fromstring(some, dtype=np.int64, sep=" ")
        return _unpacked(found[0::2], found[1::2])[1]


class _Term:
    """A term of the search, and its counts."""

    def __init__(self, text: str, documents: int, times: int, fresh: _Rows) -> None:
        self.text = text
        self.documents = documents + len({row[0] for row in fresh})
        self.times = times + len(fresh)
        self._fresh = fresh

    @property
    def is_possible(self) -> bool:
        return _TERM.fullmatch(self.text) is not None

    def with_fresh(self, rows: np.ndarray, scope: _Scope) -> np.ndarray:
        import numpy as np

        if not self._fresh:
            return rows
        more = _rows(self._fresh)
        if scope.within is not None:
            more = more[is_within(more[:, 0], scope.within)]
        rows = np.concatenate((rows, more))
        return rows[np.lexsort((rows[:, 2], rows[:, 1], rows[:, 0]))]


class _Scope:
    """The ranges searched, and their share of all documents."""

    def __init__(self, within: Sequence[Range] | None, documents: int, inside: int | None) -> None:
        self.within = within
        self._inside = inside
        self._documents = max(documents, 1)

    def least(self, term: _Term) -> int:
        """The least number of occurrences of a term."""
        if self._inside is None:
            return 0
        outside = self._documents - self._inside
        return term.documents - outside if outside else term.times

    def likely(self, term: _Term) -> float:
        """The expected number of occurrences, if they are spread evenly."""
        share = 1.0 if self._inside is None else self._inside / self._documents
        return term.times * share

    def is_narrow(self, term: _Term) -> bool:
        """Whether reading each range is cheaper than reading the whole term."""
        if self.within is None or self._inside is None:
            return False
        inside = self.likely(term)
        looking_up = len(self.within) * _LOOK_UP + inside * _LOOK_AT
        return looking_up < term.times * _PASS_BY + inside * _TAKE


def register(db: apsw.Connection) -> None:
    db.register_fts5_function(_SPOTS, _spots)


def _spots(found: apsw.FTS5ExtensionApi, *_: object) -> str:
    """Where the term stands in this document: for each time, the place, and field and offset."""
    place = found.rowid
    columns = found.phrase_locations(0)  # the last field's is the first, see `_in_order`
    return " ".join(
        [
            f"{place} {field << OFFSET_BITS | offset}"
            for field, offsets in enumerate(reversed(columns))
            for offset in offsets
        ]
    )


def _spans(within: Sequence[Range] | None) -> list[Range]:
    if within is None:
        return []
    if len(within) <= _FEW:
        return list(within) or [(0, -1)]
    return [(within[0][0], within[-1][1])]


def _taken_apart(places: str | None, spots: str | None) -> tuple[np.ndarray, np.ndarray]:
    return _unpacked(parted(places), parted(spots))


def _unpacked(places: np.ndarray, spots: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    import numpy as np

    field = spots >> OFFSET_BITS & _FIELD
    return spots >> _NUMBER_BITS, np.column_stack((places, field, spots & _OFFSET))


def _in_order(rows: np.ndarray) -> np.ndarray:
    """Sort rows by field within each place: FTS5 gives the last field first, see
    `sqlite_search_tables`.
    """
    import numpy as np

    place, field = rows[:, 0], rows[:, 1]
    another = place[1:] != place[:-1]
    if not (~another & (field[1:] < field[:-1])).any():
        return rows
    key = np.zeros(len(rows), dtype=np.int64)
    np.cumsum(another, out=key[1:])
    return rows[np.argsort(key * (int(field.max()) + 1) + field, kind="stable")]


def _rows(rows: _Rows) -> np.ndarray:
    import numpy as np

    return np.array(rows, dtype=np.int64).reshape(-1, 3)
