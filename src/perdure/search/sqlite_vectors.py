"""Search by vectors, which are kept in this process and followed.

Before each search they are brought up to date. New ones have higher ids; removals show in the
count, and are mostly among the newest. If memory differs from what the transaction sees, because
another thread saw more, each result is checked. So nothing is found that was removed before the
search began.

Quick work is done on the event loop, which must not wait for another thread or long reads: then
`Busy` is raised.

Very many vectors get a graph, which `tend` makes step by step; see `vector_graphs`.
"""

from __future__ import annotations

import functools
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import apsw
import msgspec

from perdure.search import sqlite_search_tables as search_tables
from perdure.search import vector_graphs as graphs
from perdure.search.engine import Near, VectorRows, VectorSearch
from perdure.search.vector_matrix import Vectors, check_lengths, vector_rows
from perdure.storage.backends.sqlite.extension import sidecar
from perdure.storage.backends.sqlite.reader import Busy

if TYPE_CHECKING:
    import numpy as np

#: As many vectors are compared one by one, in about two milliseconds; beyond, there is a graph.
EXACT = 200_000
#: Vectors among which one that was removed is looked for first.
_LATELY = 1_000
#: Vectors that are not in the graph, and so are compared one by one as well, before it is extended;
#: or a tenth of it, if that is more.
_BEHIND = 4_000
#: Vectors that may be compared on the event loop, and those that may be read from the bank: a
#: quarter of a millisecond.
_FEW, _FEW_NEW = 10_000, 500
#: Of the vectors in a file, so many are looked for at most, to see whether they are the bank's.
_SAMPLE = 64


class _Row(msgspec.Struct, frozen=True):
    id: int
    length: int
    held: int


class SQLiteVectors:
    """Searches the vectors of one index. Used by several threads."""

    def __init__(self, name: str, made: int, bank: Path | None) -> None:
        #: Where files may be kept: beside the bank, if it is not encrypted.
        self._bank = bank
        self._name = name
        self._made = made
        self._lock = threading.Lock()
        self._tending = threading.Lock()
        self._models: dict[int, _Model] = {}
        self._one = f'SELECT id, length, held FROM "{name}__models" WHERE name = ?'
        self._many = f'SELECT id, length, held FROM "{name}__models" WHERE held > ?'
        self._stored = (
            f'SELECT d.place, v.vector FROM carray(?) AS wanted CROSS JOIN "{name}__documents" AS d'
            f' ON d.place = wanted.value CROSS JOIN "{name}__vectors" AS v ON v.id = d.vector'
            " WHERE v.model = ?"
        )

    def search(
        self, db: apsw.Connection, search: VectorSearch, *, waits: bool = True
    ) -> list[Near]:
        """In a read transaction. Raises `Busy` if it takes long and `waits` is false."""
        found = db.execute(self._one, (search.model,)).get
        if found is None or not found[2]:
            return []
        row = _Row(*found)
        check_lengths([search.vector], row.length)
        if not waits and row.held > _FEW:
            raise Busy
        with self._at_hand(row, waits=waits):
            model, is_exact = self._followed(db, row)
            current = None if is_exact else functools.partial(model.current, db)
            return model.vectors.nearest(search.vector, search.limit, search.within, current)

    def may_be_quick(self, places: int | None = None) -> bool:
        """Whether so many places, or the nearest of all, are worth a try on the event loop; a
        guess.
        """
        sizes = [model.vectors.size for model in tuple(self._models.values())]
        few = (max(sizes, default=0) if places is None else places) <= _FEW
        return few and bool(sizes) and not self._lock.locked()

    def vectors(
        self, db: apsw.Connection, model: str, places: Sequence[int], *, waits: bool = True
    ) -> VectorRows:
        """In a read transaction. Raises `Busy` like `search`."""
        import numpy as np

        found = db.execute(self._one, (model,)).get
        if found is None or not found[2]:
            return vector_rows({}, places)
        row = _Row(*found)
        if row.id in self._models:  # else it is not worth loading all for a few
            with self._at_hand(row, waits=waits):
                known, is_exact = self._followed(db, row)
                if is_exact:
                    return VectorRows(*known.vectors.of_places(np.array(places, dtype=np.int64)))
        if not waits:
            raise Busy
        kept = db.execute(self._stored, (search_tables.numbers(places), row.id))
        return vector_rows(dict(kept), places)

    def tend(self, db: apsw.Connection) -> bool:
        """Do a step of making graphs, where they are due; whether more is left."""
        if not self._tending.acquire(blocking=False):
            return True  # somebody is at it
        try:
            return self._tend(db)
        finally:
            self._tending.release()

    def abandon(self) -> None:
        for model in self._models.values():
            if model.making is not None:
                model.making.end()

    @contextmanager
    def _at_hand(self, row: _Row, *, waits: bool) -> Iterator[None]:
        """Lock the vectors. Unless `waits`, raises `Busy` if another thread has them or more
        than a few would have to be read first.
        """
        if not self._lock.acquire(blocking=waits):
            raise Busy
        try:
            if not waits and not self._is_followed(row):
                raise Busy
            yield
        finally:
            self._lock.release()

    def _is_followed(self, row: _Row) -> bool:
        model = self._models.get(row.id)
        return model is not None and 0 <= row.held - model.vectors.held <= _FEW_NEW

    def _tend(self, db: apsw.Connection) -> bool:
        more = False
        for row in [_Row(*found) for found in db.execute(self._many, (EXACT,))]:
            with self._lock:
                model, _ = self._followed(db, row)
                making = model.making or model.begin()
            if making is not None:
                more = True
                if making.step():
                    with self._lock:
                        is_used = model.finish(making)
                    if is_used:
                        model.save(db, making)
                    making.end()
        return more

    def _followed(self, db: apsw.Connection, row: _Row) -> tuple[_Model, bool]:
        """A model's vectors, up to date, and whether they are exactly those of the bank."""
        model = self._models.get(row.id)
        if model is None or model.vectors.length != row.length:
            model = _Model(self._name, self._made, row, self._bank)
            model.check(db)  # it may be stopped here, by a deadline: then it is not relied on
            self._models[row.id] = model
        return model, model.follow(db, row.held)


class _Making:
    """A graph in the making, over the vectors as they were at its start."""

    def __init__(self, vectors: Vectors, claim: graphs.Claim | None) -> None:
        self.over = vectors.arrays()
        self.claim = claim
        self.graph = graphs.Graph.beginning(vectors)

    def step(self) -> bool:
        if self.claim is not None:
            self.claim.renew()
        matrix: np.ndarray = self.over[2]
        self.graph.extend(matrix)
        return self.graph.rows == len(matrix)

    def end(self) -> None:
        if self.claim is not None:
            self.claim.end()


class _Model:
    def __init__(self, name: str, made: int, row: _Row, bank: Path | None) -> None:
        self.vectors = Vectors(row.length)
        self.making: _Making | None = None
        self._id = row.id
        self._made = made
        self._last = 0
        self._file = None if bank is None else sidecar(bank, name, row.id)
        if self._file is not None and row.held > EXACT:
            found = graphs.read(self._file, made, row.id, row.length)
            if found is not None:
                self.vectors, self._last = found
        # The highest id that ever was, not the highest that is left.
        self._newest = f"SELECT seq FROM sqlite_sequence WHERE name = '{name}__vectors'"
        self._added = f'SELECT id, place, vector FROM "{name}__vectors" WHERE id > ? AND model = ?'
        self._kept = (
            f"SELECT group_concat(id, ' ') FROM \"{name}__vectors\" WHERE id >= ? AND model = ?"
        )
        self._vector = f'SELECT vector FROM "{name}__vectors" WHERE id = ?'
        self._there = (
            f'SELECT v.id FROM carray(?) AS wanted CROSS JOIN "{name}__vectors" AS v'
            " ON v.id = wanted.value"
        )

    def check(self, db: apsw.Connection) -> None:
        """Drop what came from a file of another copy of the bank, where ids may mean other
        vectors.
        """
        ids, _, matrix = self.vectors.arrays()
        for id, vector in zip(ids[:-_SAMPLE:-1].tolist(), matrix[::-1], strict=False):
            kept = db.execute(self._vector, (id,)).get
            if kept is not None:
                if kept == vector.tobytes():
                    return
                break
        self.vectors, self._last = Vectors(self.vectors.length), 0

    def follow(self, db: apsw.Connection, held: int) -> bool:
        """Load additions and drop removals; False if another thread saw a later state, which is
        kept.
        """
        import numpy as np

        newest = db.execute(self._newest).get or 0
        if newest > self._last:
            rows = db.execute(self._added, (self._last, self._id)).fetchall()
            if rows:
                self.vectors.add(*zip(*rows, strict=True))
            self._last = newest
        if newest < self._last:
            return False
        ids = self.vectors.arrays()[0]
        for some in (ids[-_LATELY:], ids):
            if self.vectors.held > held:
                self.vectors.drop(np.setdiff1d(some, self._ids_from(db, int(some[0]))))
        if self.vectors.size > 1.2 * self.vectors.held + 64:
            self.vectors.compact()
        return self.vectors.held == held

    def _ids_from(self, db: apsw.Connection, first: int) -> np.ndarray:
        return search_tables.parted(db.execute(self._kept, (first, self._id)).get)

    def current(self, db: apsw.Connection, ids: Sequence[int]) -> set[int]:
        found = db.execute(self._there, (search_tables.numbers(ids),)) if ids else ()
        return {id for (id,) in found}

    def begin(self) -> _Making | None:
        """Start to make a graph, if it is due and no other process does so."""
        guide, size = self.vectors.guide, self.vectors.size
        if guide is not None and size - guide.rows <= max(_BEHIND, guide.rows // 10):
            return None
        claim = None
        if self._file is not None:
            claim = graphs.Claim.made(self._file)
            if claim is None:
                return None
        self.making = _Making(self.vectors, claim)
        return self.making

    def finish(self, making: _Making) -> bool:
        self.making = None
        if not self.vectors.begins_with(making.over[0]):
            return False
        self.vectors.guide = making.graph
        return True

    def save(self, db: apsw.Connection, making: _Making) -> None:
        """Save the graph to a file, without what was removed since."""
        kept = set(self._ids_from(db, 0).tolist())
        if self._file is not None and kept.issuperset(making.over[0].tolist()):
            graphs.write(self._file, self._made, self._id, making.over, making.graph)
