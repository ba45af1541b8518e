"""Vectors in this process, compared one by one: exact, and fast enough for some ten thousand.

For more there is a *guide*, which leads to some among which the nearest are.

A vector is signed bytes; what counts is its direction. Who keeps them gives each an *id*, higher
than all before, and its place. One that was replaced or removed stays until the next `keep_only`:
who searches says which ids are still true.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from typing import TYPE_CHECKING, Protocol, TypeAlias

from perdure.core.errors import InvalidInput
from perdure.storage.searching import Near, Range

if TYPE_CHECKING:
    import numpy as np

#: With a smaller share of all, a guide would lead outside too often.
_BROAD = 0.25
_ARRAYS = ("_ids", "_places", "_norms", "_matrix")

#: Ids, places and vectors.
Arrays: TypeAlias = "tuple[np.ndarray, np.ndarray, np.ndarray]"
#: Those of some ids that are still true, each with its place.
Current = Callable[[Sequence[int]], dict[int, int]]


def check_lengths(vectors: Collection[bytes], length: int | None = None) -> int | None:
    """The one length that vectors have, which must be `length` if that is known.

    Raises `InvalidInput` if they differ.
    """
    for vector in vectors:
        if length is None:
            length = len(vector)
        if len(vector) != length or not vector:
            raise InvalidInput(
                f"A vector has {len(vector)} numbers; others of its model have {length}.",
                hint="Give vectors of different lengths under different names of their models.",
            )
    return length


def is_within(places: np.ndarray, ranges: Sequence[Range]) -> np.ndarray:
    """Which of the places lie in one of the ranges, which are in order."""
    import numpy as np

    if not ranges:
        return np.zeros(len(places), dtype=bool)
    bounds = np.array(ranges, dtype=np.int64)
    before = np.searchsorted(bounds[:, 0], places, side="right") - 1
    inside: np.ndarray = (before >= 0) & (places <= bounds[before, 1])
    return inside


class Guide(Protocol):
    """A shortcut to the nearest of the first `rows` vectors. It may miss some."""

    rows: int

    def nearest(self, query: np.ndarray, count: int) -> np.ndarray:
        """Rows of vectors near to one, in no particular order."""


class Vectors:
    """The vectors of one model. Not for several threads at once."""

    def __init__(self, length: int) -> None:
        import numpy as np

        self.length = length
        self.size = 0
        self.guide: Guide | None = None
        #: The ranges that were asked for last: with how many rows, which of them, their share.
        self._asked: tuple[int, tuple[Range, ...], np.ndarray, float] | None = None
        self._ids = np.empty(0, dtype=np.int64)
        self._places = np.empty(0, dtype=np.int64)
        self._norms = np.empty(0, dtype=np.float32)
        self._matrix = np.empty((0, length), dtype=np.int8)

    @classmethod
    def of(cls, ids: np.ndarray, places: np.ndarray, matrix: np.ndarray) -> Vectors:
        """Vectors that are in arrays already, which are not changed."""
        made = cls(matrix.shape[1])
        made.size = len(ids)
        made._ids, made._places = ids, places
        made._norms, made._matrix = _norms(matrix), matrix
        return made

    def arrays(self) -> Arrays:
        """Ids, places and vectors, by row. What is added later does not change them."""
        return self._ids[: self.size], self._places[: self.size], self._matrix[: self.size]

    def begins_with(self, ids: np.ndarray) -> bool:
        """Whether the first rows are still these."""
        import numpy as np

        return bool(np.array_equal(self._ids[: len(ids)], ids)) and self.size >= len(ids)

    def of_ids(self, ids: np.ndarray, places: np.ndarray) -> dict[int, bytes]:
        """By place, the vectors of ids with their places, as far as they are here."""
        import numpy as np

        if not self.size:
            return {}
        rows = np.minimum(np.searchsorted(self._ids[: self.size], ids), self.size - 1)
        here = self._ids[rows] == ids
        found = self._matrix[rows[here]].tobytes()
        starts = range(0, len(found), self.length)
        return {
            place: found[start : start + self.length]
            for place, start in zip(places[here].tolist(), starts, strict=True)
        }

    def add(self, ids: Sequence[int], places: Sequence[int], vectors: Sequence[bytes]) -> None:
        """Take more of them. All have the length of this."""
        import numpy as np

        start, self.size = self.size, self.size + len(ids)
        if self.size > len(self._ids):
            self._grow(self.size + self.size // 2)
        rows = np.frombuffer(b"".join(vectors), dtype=np.int8).reshape(-1, self.length)
        self._ids[start : self.size] = ids
        self._places[start : self.size] = places
        self._matrix[start : self.size] = rows
        self._norms[start : self.size] = _norms(rows)

    def keep_only(self, ids: Collection[int]) -> None:
        """Let go of all but these."""
        import numpy as np

        kept = np.isin(self._ids[: self.size], np.fromiter(ids, dtype=np.int64, count=len(ids)))
        self.size = int(kept.sum())
        self.guide = self._asked = None
        for name in _ARRAYS:
            setattr(self, name, getattr(self, name)[: len(kept)][kept])

    def nearest(
        self, vector: bytes, limit: int, current: Current, within: Sequence[Range] | None = None
    ) -> list[Near]:
        """The nearest of those that are current, best first."""
        import numpy as np

        check_lengths([vector], self.length)
        query = np.frombuffer(vector, dtype=np.int8)
        inside, share = self._bounded(within)
        guide = self.guide if share >= _BROAD else None
        wanted = limit
        while True:
            rows = self._rows(query, guide, int(wanted * _spare(share)), inside)
            scores = self._scores(query, rows)
            best = _best(scores, self._places[rows], wanted)
            ids = self._ids[rows[best]].tolist()
            true = current(ids)
            near = [
                Near(true[id], score)
                for id, score in zip(ids, scores[best].tolist(), strict=True)
                if id in true
            ]
            if len(near) >= limit or (guide is None and len(best) < wanted):
                return near[:limit]
            # Some were replaced or removed since, or lie outside.
            guide = guide if len(best) == wanted else None
            wanted *= 4

    def _bounded(self, within: Sequence[Range] | None) -> tuple[np.ndarray | None, float]:
        """Which rows lie in the ranges, and their share; None if there are no bounds.

        Who asks again mostly asks for the same ranges: they are remembered.
        """
        if within is None:
            return None, 1.0
        known = self._asked
        if known is None or known[0] != self.size or known[1] != within:
            inside = is_within(self._places[: self.size], within)
            share = float(inside.sum()) / max(self.size, 1)
            self._asked = known = (self.size, tuple(within), inside, share)
        return known[2], known[3]

    def _grow(self, capacity: int) -> None:
        import numpy as np

        for name in _ARRAYS:
            old = getattr(self, name)
            new = np.empty((capacity, *old.shape[1:]), dtype=old.dtype)
            new[: len(old)] = old
            setattr(self, name, new)

    def _rows(
        self, query: np.ndarray, guide: Guide | None, count: int, inside: np.ndarray | None
    ) -> np.ndarray:
        """Rows among which the nearest are: with a guide some, without one all."""
        import numpy as np

        if guide is None:
            return np.arange(self.size) if inside is None else inside.nonzero()[0]
        near = guide.nearest(query, min(count, guide.rows))
        rows = np.concatenate((near, np.arange(guide.rows, self.size)))
        return rows if inside is None else rows[inside[rows]]

    def _scores(self, query: np.ndarray, rows: np.ndarray) -> np.ndarray:
        """The cosine of each of the rows with the query. All rows are in order."""
        import numpy as np

        matrix = self._matrix[: self.size] if len(rows) == self.size else self._matrix[rows]
        # Not a product of matrices: that would start threads, which costs more than it gains.
        products = np.einsum("ij,j->i", matrix, query, dtype=np.int32, casting="unsafe")
        lengths = self._norms[rows] * _norms(query[np.newaxis])
        scores: np.ndarray = products.astype(np.float32) / lengths
        return scores


def _spare(share: float) -> float:
    """How many to ask a guide for, for each that is wanted: only a share of them is inside."""
    return 1.0 if share >= 1.0 else 1.6 / max(share, _BROAD)


def _norms(rows: np.ndarray) -> np.ndarray:
    """How long vectors are; never 0."""
    import numpy as np

    squares = np.einsum("ij,ij->i", rows, rows, dtype=np.int32, casting="unsafe")
    norms: np.ndarray = np.sqrt(np.maximum(squares, 1)).astype(np.float32)
    return norms


def _best(scores: np.ndarray, places: np.ndarray, count: int) -> np.ndarray:
    """Where the highest scores are, best first; among equal ones the first place."""
    import numpy as np

    if count < len(scores):
        among = np.argpartition(-scores, count - 1)[:count] if count else np.empty(0, dtype=int)
    else:
        among = np.arange(len(scores))
    order: np.ndarray = among[np.lexsort((places[among], -scores[among]))]
    return order
