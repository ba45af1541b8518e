"""Searching an index by vectors: those of a model are kept in this process, and followed.

What other processes add is seen at the next search: ids only grow. What they replace or remove is
noticed when it is among the nearest, for each of those is looked up before it is returned.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence

import apsw

from perdure.storage.searching import Near, VectorSearch
from perdure.storage.vectors import Vectors, check_lengths


class Nearness:
    """Searches the vectors of one index, as it was made. Used by several threads."""

    def __init__(self, name: str) -> None:
        self._lock = threading.Lock()
        self._models: dict[int, _Model] = {}
        self._model = f'SELECT id, length, held FROM "{name}__models" WHERE name = ?'
        self._name = name

    def search(self, db: apsw.Connection, search: VectorSearch) -> list[Near]:
        """Answer; in a read transaction."""
        row = db.execute(self._model, (search.model,)).get
        if row is None or not row[2]:
            return []
        id, length, held = row
        check_lengths([search.vector], length)
        with self._lock:
            known = self._models.get(id)
            if known is None or known.vectors.length != length:
                known = self._models[id] = _Model(self._name, id, length)
            known.follow(db, held)
            return known.vectors.nearest(
                search.vector, search.limit, lambda ids: known.current(db, ids), search.within
            )


class _Model:
    """The vectors of one model."""

    def __init__(self, name: str, id: int, length: int) -> None:
        self.vectors = Vectors(length)
        self._id = id
        self._last = 0
        self._newest = f'SELECT max(id) FROM "{name}__vectors"'
        self._added = f'SELECT id, place, vector FROM "{name}__vectors" WHERE id > ? AND model = ?'
        self._kept = f'SELECT id FROM "{name}__vectors" WHERE model = ?'
        self._place = f'SELECT place FROM "{name}__vectors" WHERE id = ?'

    def follow(self, db: apsw.Connection, held: int) -> None:
        """Learn what was added, and let go of what is no more if it is much."""
        newest = db.execute(self._newest).get or 0
        if newest > self._last:
            rows = db.execute(self._added, (self._last, self._id)).fetchall()
            if rows:
                self.vectors.add(*zip(*rows, strict=True))
            self._last = newest
        if self.vectors.size > 1.2 * held + 64:
            self.vectors.keep_only({id for (id,) in db.execute(self._kept, (self._id,))})

    def current(self, db: apsw.Connection, ids: Sequence[int]) -> dict[int, int]:
        """Those of some vectors that are still there, each with its place."""
        places = [(id, db.execute(self._place, (id,)).get) for id in ids]
        return {id: place for id, place in places if place is not None}
