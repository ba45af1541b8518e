"""Vectors in this process, compared one by one: exact, and fast enough for some hundred
thousand.

For more there is a *guide*, which finds candidates. A vector is signed bytes; only its direction
counts. The caller gives each an *id*, higher than all before, and its place, and says which are
replaced or removed (`drop`).
"""

from __future__ import annotations

import functools
import importlib.util
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias

from perdure.core.errors import InvalidInput
from perdure.search.engine import Near, Range, VectorRows

if TYPE_CHECKING:
    import numpy as np

#: With a smaller share of all, a guide would lead outside too often.
_BROAD = 0.25
#: With a larger one, all are compared: to pick some out takes longer than to compare them.
_MOST = 0.3
#: Scores of which only the highest is looked at, first.
_BLOCK = 64
_ARRAYS = ("_ids", "_places", "_norms", "_matrix", "_is_held")

Arrays: TypeAlias = "tuple[np.ndarray, np.ndarray, np.ndarray]"
Current = Callable[[Sequence[int]], Collection[int]]


def check_lengths(vectors: Collection[bytes], length: int | None = None) -> int | None:
    """The one length of vectors. Raises `InvalidInput` if they differ from each other or
    `length`.
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


def vector_rows(known: Mapping[int, bytes], places: Sequence[int]) -> VectorRows:
    """The vectors of places, by those that are known. All of them have one length."""
    import numpy as np

    at = [number for number, place in enumerate(places) if place in known]
    joined = b"".join([known[places[number]] for number in at])
    rows = np.frombuffer(joined, dtype=np.int8).reshape(len(at), len(joined) // max(len(at), 1))
    return VectorRows(np.array(at, dtype=np.int64), rows)


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

    def nearest(self, query: np.ndarray, count: int) -> np.ndarray: ...


class Vectors:
    """The vectors of one model. Not thread-safe."""

    def __init__(self, length: int) -> None:
        import numpy as np

        self.length = length
        self.size = self.held = 0
        self.guide: Guide | None = None
        #: The ranges that were asked for last, and which of so many rows lie in them.
        self._asked: tuple[tuple[Range, ...], np.ndarray] = (), np.empty(0, dtype=bool)
        self._ordered = np.empty(0, dtype=np.int64), np.empty(0, dtype=np.int64)
        self._ids = np.empty(0, dtype=np.int64)
        self._places = np.empty(0, dtype=np.int64)
        self._norms = np.empty(0, dtype=np.float32)
        self._matrix = np.empty((0, length), dtype=np.int8)
        self._is_held = np.empty(0, dtype=bool)

    @classmethod
    def of(cls, ids: np.ndarray, places: np.ndarray, matrix: np.ndarray) -> Vectors:
        """From existing arrays, which are not changed."""
        import numpy as np

        made = cls(matrix.shape[1])
        made.size = made.held = len(ids)
        made._ids, made._places = ids, places
        made._norms, made._matrix = _norms(matrix), matrix
        made._is_held = np.ones(len(ids), dtype=bool)
        return made

    def arrays(self) -> Arrays:
        """Ids, places and vectors, by row. Later additions do not change them."""
        return self._ids[: self.size], self._places[: self.size], self._matrix[: self.size]

    def begins_with(self, ids: np.ndarray) -> bool:
        import numpy as np

        return bool(np.array_equal(self._ids[: len(ids)], ids)) and self.size >= len(ids)

    def add(self, ids: Sequence[int], places: Sequence[int], vectors: Sequence[bytes]) -> None:
        """All must have the length of this."""
        import numpy as np

        start, self.size = self.size, self.size + len(ids)
        if self.size > len(self._ids):
            self._grow(self.size + self.size // 2)
        rows = np.frombuffer(b"".join(vectors), dtype=np.int8).reshape(-1, self.length)
        self._ids[start : self.size] = ids
        self._places[start : self.size] = places
        self._matrix[start : self.size] = rows
        self._norms[start : self.size] = _norms(rows)
        self._is_held[start : self.size] = True
        self.held += len(ids)

    def drop(self, ids: Sequence[int] | np.ndarray) -> None:
        """Let go of these, as far as they are here: they are not found any more."""
        import numpy as np

        if self.size and len(ids):
            rows = np.minimum(np.searchsorted(self._ids[: self.size], ids), self.size - 1)
            self._is_held[rows[self._ids[rows] == ids]] = False
            self.held = int(self._is_held[: self.size].sum())

    def compact(self) -> None:
        """Remove dropped rows, and the guide."""
        kept = self._is_held[: self.size]
        for name in _ARRAYS:
            setattr(self, name, getattr(self, name)[: len(kept)][kept])
        self.size = self.held
        self.guide = None
        self._asked = (), kept[:0]
        self._ordered = self._places[:0], self._ids[:0]

    def of_places(self, places: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Indexes of places that have a vector here, and these vectors, by row."""
        import numpy as np

        ordered, row = self._by_place()
        if not self.size:
            return np.empty(0, dtype=np.int64), self._matrix[:0]
        # The last one of a place is the newest.
        at = np.maximum(np.searchsorted(ordered, places, side="right") - 1, 0)
        found = ((ordered[at] == places) & self._is_held[row[at]]).nonzero()[0]
        return found, self._matrix[row[at[found]]]

    def nearest(
        self,
        vector: bytes,
        limit: int,
        within: Sequence[Range] | None = None,
        current: Current | None = None,
    ) -> list[Near]:
        """The nearest, best first; of all, or of those that are `current`."""
        import numpy as np

        check_lengths([vector], self.length)
        query = np.frombuffer(vector, dtype=np.int8)
        inside = self._inside(within)
        share = float(np.count_nonzero(inside)) / max(self.size, 1)
        guide = self.guide if share >= _BROAD else None
        wanted = limit
        while True:
            rows, scores = self._compared(query, guide, wanted, inside, share)
            best = _highest(scores, wanted)
            best = best[np.lexsort((self._places[rows[best]], -scores[best]))][:wanted]
            near = self._near(rows[best], scores[best], current)
            if len(near) >= limit or (guide is None and len(best) < wanted):
                return near[:limit]
            guide = guide if len(best) == wanted else None
            wanted *= 4

    def _near(self, rows: np.ndarray, scores: np.ndarray, current: Current | None) -> list[Near]:
        ids, places = self._ids[rows].tolist(), self._places[rows].tolist()
        there = set(ids if current is None else current(ids))
        found = zip(ids, places, scores.tolist(), strict=True)
        return [Near(place, score) for id, place, score in found if id in there]

    def _inside(self, within: Sequence[Range] | None) -> np.ndarray:
        """Which rows are held and lie in the ranges; the last answer is cached."""
        import numpy as np

        is_held: np.ndarray = self._is_held[: self.size]
        if within is None:
            return is_held
        ranges, inside = self._asked
        if ranges != tuple(within):
            ranges, inside = tuple(within), inside[:0]
        if len(inside) < self.size:
            more = is_within(self._places[len(inside) : self.size], ranges)
            inside = np.concatenate((inside, more))
            self._asked = ranges, inside
        return inside & is_held if self.held < self.size else inside

    def _by_place(self) -> tuple[np.ndarray, np.ndarray]:
        import numpy as np

        places, rows = self._ordered
        if len(places) < self.size:
            new = slice(len(places), self.size)
            places = np.concatenate((places, self._places[new]))
            rows = np.concatenate((rows, np.arange(new.start, new.stop)))
            order = np.argsort(places, kind="stable")  # what is in order already takes no time
            self._ordered = places[order], rows[order]
        return self._ordered

    def _grow(self, capacity: int) -> None:
        import numpy as np

        for name in _ARRAYS:
            old = getattr(self, name)
            new = np.empty((capacity, *old.shape[1:]), dtype=old.dtype)
            new[: len(old)] = old
            setattr(self, name, new)

    def _compared(
        self, query: np.ndarray, guide: Guide | None, wanted: int, inside: np.ndarray, share: float
    ) -> tuple[np.ndarray, np.ndarray]:
        """Rows among which the nearest are, with their cosines. May miss some with a guide."""
        import numpy as np

        if guide is not None:
            near = guide.nearest(query, min(int(wanted * _spare(share)), guide.rows))
            rows = np.concatenate((near, np.arange(guide.rows, self.size)))
            rows = rows[inside[rows]]
        elif share > _MOST:
            scores = self._cosines(query)
            np.copyto(scores, -np.inf, where=~inside)
            rows = _highest(scores, wanted)
            rows = rows[inside[rows]]
            return rows, scores[rows]
        else:
            rows = inside.nonzero()[0]
        return rows, self._cosines(query, rows)

    def _cosines(self, query: np.ndarray, rows: np.ndarray | None = None) -> np.ndarray:
        if rows is None:
            cosines, norms = _products(query, self._matrix[: self.size]), self._norms[: self.size]
        else:
            cosines, norms = _products(query, self._matrix[rows]), self._norms[rows]
        cosines /= norms
        cosines /= _norms(query[None])
        return cosines


def _products(query: np.ndarray, matrix: np.ndarray) -> np.ndarray:
    import numpy as np

    if not len(matrix):
        return np.empty(0, dtype=np.float32)
    # Much faster than numpy, which has no product of bytes, and without starting threads.
    products: np.ndarray = np.asarray(_cdist()(query[None], matrix, metric="dot"))[0]
    return products.astype(np.float32)


@functools.cache
def _cdist() -> Any:
    # It comes with usearch, whose newer versions bring numkong instead.
    name = "simsimd" if importlib.util.find_spec("simsimd") else "numkong"
    return importlib.import_module(name).cdist


def _spare(share: float) -> float:
    """How many candidates to ask a guide for per wanted one: only a share is inside."""
    return 1.0 if share >= 1.0 else 1.6 / max(share, _BROAD)


def _norms(rows: np.ndarray) -> np.ndarray:
    import numpy as np

    squares = np.einsum("ij,ij->i", rows, rows, dtype=np.int32, casting="unsafe")
    norms: np.ndarray = np.sqrt(np.maximum(squares, 1)).astype(np.float32)
    return norms


def _highest(scores: np.ndarray, count: int) -> np.ndarray:
    """Where the highest scores are: `count`, and perhaps some more."""
    import numpy as np

    blocks = len(scores) // _BLOCK
    if not 0 < count < blocks:
        return np.arange(len(scores) if count else 0)
    # As many blocks have one that is as high as the last of their highest: no need to sort all.
    tops = scores[: blocks * _BLOCK].reshape(blocks, _BLOCK).max(axis=1)
    least = np.partition(tops, blocks - count)[blocks - count]
    found: np.ndarray = (scores >= least).nonzero()[0]
    return found
