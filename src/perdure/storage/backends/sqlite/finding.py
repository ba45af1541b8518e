"""Searching an index by words: where terms stand.

FTS5 tells where a term stands, one row for each time. Rows are slow to carry over to Python, so a
statement glues them together, and numpy takes them apart. What is not filed yet is looked through.

How many documents have a term decides what is read and what is left out. To count a frequent one
takes milliseconds, so such counts are remembered for a while.
"""

from __future__ import annotations

import itertools
import re
import threading
import time
from collections.abc import Hashable, Sequence
from typing import TYPE_CHECKING

import apsw

from perdure.storage.backends.sqlite.search_tables import OFFSET_BITS
from perdure.storage.searching import Postings, Range, TextFound, TextSearch
from perdure.storage.vectors import is_within

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
_SPOTS = "perdure_spots"
#: What FTS5 takes for one term.
_TERM = re.compile(r"[a-z0-9_=:./\-\u0080-\U0010ffff]+")


class Counts:
    """Numbers that take a while to find out, and need not be quite up to date."""

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


class Finder:
    """Searches one index, as it was made. Used by several threads."""

    def __init__(self, name: str) -> None:
        self._counts = Counts()
        self._all = f'SELECT count(*), 0 FROM "{name}__documents"'
        self._between = f"{self._all} WHERE place BETWEEN ? AND ?"
        self._waiting = f'SELECT place, texts FROM "{name}__fresh" ORDER BY place'
        self._count = f'SELECT doc, cnt FROM "{name}__counts" WHERE term = ?'
        self._found = (
            "SELECT group_concat(doc, ' '), group_concat(at, ' ') FROM"
            f' (SELECT doc, col << {OFFSET_BITS} | "offset" AS at FROM "{name}__found"'
            " WHERE term = ?{within} LIMIT ?)"
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
        """Answer; in a read transaction."""
        documents, _ = self._counted(db, (), self._all)
        fresh = self._fresh(db, search.terms)
        terms = {term: self._term(db, term, fresh[term]) for term in search.terms}
        scope = _Scope(search.within, documents, self._inside(db, search.within, documents))
        found: dict[str, Postings] = {}
        left = search.most
        for number, term in enumerate(sorted(terms, key=lambda term: terms[term].documents)):
            known = terms[term]
            if number and self._exceeds(db, known, scope, left):
                found[term] = Postings(known.documents, _rows([]), complete=False)
                continue
            rows = self._occurrences(db, known, scope, left + 1)
            complete = len(rows) <= left
            if not complete:
                rows = rows[: 0 if number else left]
            left -= len(rows)
            found[term] = Postings(known.documents, rows, complete)
        return TextFound(documents, tuple(found[term] for term in search.terms))

    def _exceeds(self, db: apsw.Connection, term: _Term, scope: _Scope, left: int) -> bool:
        """Whether a term is known to be there more often: then it need not be read at all."""
        if scope.least(term) > left:
            return True
        if not scope.is_narrow(term) or scope.likely(term) <= left:
            return False
        # To read them one by one takes ten times as long as to count them. With some allowance:
        # how often it is in a document may differ from one range to another.
        text, asked = self._matches, f'"{term.text}"'
        documents = sum(db.execute(text, (asked, *span)).get for span in scope.within or ())
        return bool(documents * term.times / term.documents > 1.5 * left)

    # Counting ---------------------------------------------------------------------------------

    def _counted(self, db: apsw.Connection, what: tuple[str, ...], text: str) -> tuple[int, int]:
        known = self._counts.get(what)
        if known is not None:
            return known
        return self._counts.keep(what, db.execute(text, what).get or (0, 0))

    def _term(self, db: apsw.Connection, term: str, fresh: _Rows) -> _Term:
        documents, times = self._counted(db, (term,), self._count)
        return _Term(term, documents, times, fresh)

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

    # Reading ----------------------------------------------------------------------------------

    def _fresh(self, db: apsw.Connection, terms: Sequence[str]) -> dict[str, _Rows]:
        """Where terms stand in documents that are not filed."""
        found: dict[str, _Rows] = {term: [] for term in terms}
        for place, texts in db.execute(self._waiting):
            for field, text in enumerate(texts.split("\n")):
                words = text.split(" ")
                if not found.keys().isdisjoint(words):
                    for offset, word in enumerate(words):
                        if word in found:
                            found[word].append((place, field, offset))
        return found

    def _occurrences(
        self, db: apsw.Connection, term: _Term, scope: _Scope, limit: int
    ) -> np.ndarray:
        """Where a term stands, within the ranges, in order: all of it, or the first `limit`."""
        import numpy as np

        if not _TERM.fullmatch(term.text):
            return _rows([])  # no document can have it
        narrow = scope.is_narrow(term)
        read = self._looked_up if narrow else self._read
        rows = read(db, term, scope, limit)
        if term.fresh:
            rows = np.concatenate((rows, _rows(term.fresh)))
            rows = rows[np.lexsort((rows[:, 2], rows[:, 1], rows[:, 0]))]
        if scope.within is not None:
            rows = rows[is_within(rows[:, 0], scope.within)]
        return rows[:limit]

    def _read(self, db: apsw.Connection, term: _Term, scope: _Scope, limit: int) -> np.ndarray:
        """All of where a term stands, or all but what is easily left out."""
        spans = _spans(scope.within)
        condition = " OR ".join(["doc BETWEEN ? AND ?"] * len(spans))
        text = self._found.format(within=f" AND ({condition})" if spans else "")
        exact = scope.within is None or len(scope.within) <= len(spans)
        params = (term.text, *itertools.chain.from_iterable(spans), limit if exact else -1)
        return _taken_apart(*db.execute(text, params).get)

    def _looked_up(self, db: apsw.Connection, term: _Term, scope: _Scope, limit: int) -> np.ndarray:
        """Where a term stands, range by range: FTS5 finds its way to each."""
        import numpy as np

        asked = f'"{term.text}"'
        texts = (
            text
            for first, last in scope.within or ()
            for (text,) in db.execute(self._matching, (asked, first, last))
        )
        some = " ".join(itertools.islice(texts, limit))  # in each it stands at least once
        found = np.fromstring(some, dtype=np.int64, sep=" ")
        return _unpacked(found[0::2], found[1::2])


class _Term:
    """A term that is looked for, and how often it is there."""

    def __init__(self, text: str, documents: int, times: int, fresh: _Rows) -> None:
        self.text = text
        self.documents = documents + len({row[0] for row in fresh})
        self.times = times + len(fresh)
        self.fresh = fresh


class _Scope:
    """Where it is looked for, and how much that is of all."""

    def __init__(self, within: Sequence[Range] | None, documents: int, inside: int | None) -> None:
        self.within = within
        #: Not known if there are few: then nothing is to be gained.
        self._inside = inside
        self._documents = max(documents, 1)

    def least(self, term: _Term) -> int:
        """How often a term is there at least."""
        if self._inside is None:
            return 0
        outside = self._documents - self._inside
        return term.documents - outside if outside else term.times

    def likely(self, term: _Term) -> float:
        """How often a term is there, if it is no more frequent there than elsewhere."""
        share = 1.0 if self._inside is None else self._inside / self._documents
        return term.times * share

    def is_narrow(self, term: _Term) -> bool:
        """Whether looking a term up in each range takes less than reading all of it."""
        if self.within is None or self._inside is None:
            return False
        inside = self.likely(term)
        looking_up = len(self.within) * _LOOK_UP + inside * _LOOK_AT
        return looking_up < term.times * _PASS_BY + inside * _TAKE


def register(db: apsw.Connection) -> None:
    """Let a connection do what searching needs. Once for each."""
    db.register_fts5_function(_SPOTS, _spots)


def _spots(found: apsw.FTS5ExtensionApi, *_: object) -> str:
    """Where the term stands in this document: for each time, the place, and field and offset."""
    place = found.rowid
    columns = found.phrase_locations(0)  # the last field's is the first, see `search_tables`
    return " ".join(
        [
            f"{place} {field << OFFSET_BITS | offset}"
            for field, offsets in enumerate(reversed(columns))
            for offset in offsets
        ]
    )


def _spans(within: Sequence[Range] | None) -> list[Range]:
    """Few ranges in which the given ones lie."""
    if within is None:
        return []
    if len(within) <= _FEW:
        return list(within) or [(0, -1)]
    return [(within[0][0], within[-1][1])]


def _taken_apart(places: str | None, spots: str | None) -> np.ndarray:
    """Rows of place, field and offset, from numbers with spaces between them."""
    import numpy as np

    if places is None or spots is None:
        return _rows([])
    return _unpacked(
        np.fromstring(places, dtype=np.int64, sep=" "),
        np.fromstring(spots, dtype=np.int64, sep=" "),
    )


def _unpacked(places: np.ndarray, spots: np.ndarray) -> np.ndarray:
    """Rows of place, field and offset."""
    import numpy as np

    return np.column_stack((places, spots >> OFFSET_BITS, spots & _OFFSET))


def _rows(rows: _Rows) -> np.ndarray:
    import numpy as np

    return np.array(rows, dtype=np.int64).reshape(-1, 3)
