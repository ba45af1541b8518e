"""Vectors in this process, compared one by one: exact, and fast enough for some ten thousand.

A vector is signed bytes; what counts is its direction. Who keeps them gives each an *id*, never
used again, and its place. One that was replaced or removed stays until the next `keep_only`: who
searches says which ids are still true.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from typing import TYPE_CHECKING

from perdure.core.errors import InvalidInput
from perdure.storage.searching import Near, Range

if TYPE_CHECKING:
    import numpy as np

#: Rows that are compared at a time: as numbers of four bytes they still fit a processor's cache.
_ROWS = 4_096

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


class Vectors:
    """The vectors of one model. Not for several threads at once."""

    def __init__(self, length: int) -> None:
        import numpy as np

        self.length = length
        self.size = 0
        self._ids = np.empty(0, dtype=np.int64)
        self._places = np.empty(0, dtype=np.int64)
        self._norms = np.empty(0, dtype=np.float32)
        self._matrix = np.empty((0, length), dtype=np.int8)

    def add(self, ids: Sequence[int], places: Sequence[int], vectors: Sequence[bytes]) -> None:
        """Take more of them. All have the length of this."""
        import numpy as np

        start, self.size = self.size, self.size + len(ids)
        if self.size > len(self._ids):
            self._grow(max(self.size, 2 * len(self._ids)))
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
        for name in ("_ids", "_places", "_norms", "_matrix"):
            setattr(self, name, getattr(self, name)[: len(kept)][kept])

    def nearest(
        self, vector: bytes, limit: int, current: Current, within: Sequence[Range] | None = None
    ) -> list[Near]:
        """The nearest of those that are current, best first."""
        check_lengths([vector], self.length)
        ids, places, scores = self._scored(vector, within)
        wanted = limit
        while True:
            best = _best(scores, places, wanted)
            true = current(ids[best].tolist())
            near = [
                Near(place, score)
                for id, place, score in zip(
                    ids[best].tolist(), places[best].tolist(), scores[best].tolist(), strict=True
                )
                if true.get(id) == place
            ]
            if len(near) >= limit or len(best) < wanted:
                return near[:limit]
            wanted *= 4  # some were replaced or removed since

    def _grow(self, capacity: int) -> None:
        import numpy as np

        for name in ("_ids", "_places", "_norms", "_matrix"):
            old = getattr(self, name)
            new = np.empty((capacity, *old.shape[1:]), dtype=old.dtype)
            new[: len(old)] = old
            setattr(self, name, new)

    def _scored(
        self, vector: bytes, within: Sequence[Range] | None
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Ids, places and cosines of all, or of those within the ranges."""
        import numpy as np

        ids, places = self._ids[: self.size], self._places[: self.size]
        norms, matrix = self._norms[: self.size], self._matrix[: self.size]
        if within is not None:
            inside = is_within(places, within).nonzero()[0]
            ids, places = ids[inside], places[inside]
            norms, matrix = norms[inside], matrix[inside]
        query = np.frombuffer(vector, dtype=np.int8).astype(np.float32)
        scores = np.empty(len(ids), dtype=np.float32)
        for start in range(0, len(ids), _ROWS):
            rows = matrix[start : start + _ROWS].astype(np.float32)
            np.matmul(rows, query, out=scores[start : start + _ROWS])
        scores /= np.maximum(norms * np.linalg.norm(query), 1.0)
        return ids, places, scores


def _norms(rows: np.ndarray) -> np.ndarray:
    import numpy as np

    norms: np.ndarray = np.linalg.norm(rows.astype(np.float32), axis=1)
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
