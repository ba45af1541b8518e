"""Searching an index by vectors: those of a model are kept in this process, and followed.

What other processes add is seen at the next search: ids only grow. What they replace or remove is
noticed when it is among the nearest, for each of those is looked up before it is returned. Many
vectors get a graph, which `tend` makes step by step; see `graphs`.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import apsw
import msgspec

from perdure.storage.backends.sqlite import graphs, search_tables
from perdure.storage.searching import Near, VectorSearch
from perdure.storage.vectors import Vectors, check_lengths

if TYPE_CHECKING:
    import numpy as np

#: As many vectors are compared one by one, in about four milliseconds; beyond, there is a graph.
EXACT = 30_000
#: Vectors that are not in the graph, and so are compared one by one as well, before it is extended;
#: or a tenth of it, if that is more.
_BEHIND = 4_000
#: Of the vectors in a file, so many are looked for at most, to see whether they are the bank's.
_SAMPLE = 64


class _Row(msgspec.Struct, frozen=True):
    """What the table of models says of one."""

    id: int
    length: int
    held: int


class Nearness:
    """Searches the vectors of one index, as it was made. Used by several threads."""

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
        wanted = f'FROM carray(?) AS wanted CROSS JOIN "{name}__documents" AS d'
        self._ids = (
            "SELECT group_concat(d.vector, ' '), group_concat(d.place, ' ')"
            f" {wanted} ON d.place = wanted.value WHERE d.vector IS NOT NULL"
        )
        self._stored = (
            f"SELECT d.place, v.vector {wanted} ON d.place = wanted.value CROSS JOIN"
            f' "{name}__vectors" AS v ON v.id = d.vector WHERE v.model = ?'
        )

    def search(self, db: apsw.Connection, search: VectorSearch) -> list[Near]:
        """Answer; in a read transaction."""
        found = db.execute(self._one, (search.model,)).get
        if found is None or not found[2]:
            return []
        row = _Row(*found)
        check_lengths([search.vector], row.length)
        with self._lock:
            model = self._followed(db, row)
            return model.vectors.nearest(
                search.vector, search.limit, lambda ids: model.current(db, ids), search.within
            )

    def vectors(self, db: apsw.Connection, model: str, places: Sequence[int]) -> list[bytes | None]:
        """The vectors of some places; None where there is none. In a read transaction."""
        found = db.execute(self._one, (model,)).get
        if found is None or not found[2]:
            return [None] * len(places)
        row = _Row(*found)
        known = self._models.get(row.id)
        if known is None:  # not worth loading all for a few
            kept = dict(db.execute(self._stored, (search_tables.numbers(places), row.id)))
        else:
            # Glued together: rows are slow to carry over to Python.
            glued: Any = db.execute(self._ids, (search_tables.numbers(places),)).get
            ids, at = map(search_tables.parted, glued)
            with self._lock:
                kept = self._followed(db, row).vectors.of_ids(ids, at)
        return list(map(kept.get, places))

    def tend(self, db: apsw.Connection) -> bool:
        """Do a step of making graphs, where they are due; whether more is left."""
        if not self._tending.acquire(blocking=False):
            return True  # somebody is at it
        try:
            return self._tend(db)
        finally:
            self._tending.release()

    def abandon(self) -> None:
        """Leave to others what was begun."""
        for model in self._models.values():
            if model.making is not None:
                model.making.end()

    def _tend(self, db: apsw.Connection) -> bool:
        more = False
        for row in [_Row(*found) for found in db.execute(self._many, (EXACT,))]:
            with self._lock:
                model = self._followed(db, row)
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

    def _followed(self, db: apsw.Connection, row: _Row) -> _Model:
        """A model's vectors, up to date."""
        model = self._models.get(row.id)
        if model is None or model.vectors.length != row.length:
            model = self._models[row.id] = _Model(self._name, self._made, row, self._bank)
            model.check(db)
        model.follow(db, row.held)
        return model


class _Making:
    """A graph that is being made, over vectors as they were when that began."""

    def __init__(self, vectors: Vectors, claim: graphs.Claim | None) -> None:
        self.over = vectors.arrays()
        self.claim = claim
        self.graph = graphs.Graph.beginning(vectors)

    def step(self) -> bool:
        """Whether that was the last one."""
        if self.claim is not None:
            self.claim.renew()
        matrix: np.ndarray = self.over[2]
        self.graph.extend(matrix)
        return self.graph.rows == len(matrix)

    def end(self) -> None:
        if self.claim is not None:
            self.claim.end()


class _Model:
    """The vectors of one model."""

    def __init__(self, name: str, made: int, row: _Row, bank: Path | None) -> None:
        self.vectors = Vectors(row.length)
        self.making: _Making | None = None
        self._id = row.id
        self._made = made
        self._last = 0
        self._file = None if bank is None else graphs.file_of(bank, name, row.id)
        if self._file is not None and row.held > EXACT:
            found = graphs.read(self._file, made, row.id, row.length)
            if found is not None:
                self.vectors, self._last = found
        self._newest = f'SELECT max(id) FROM "{name}__vectors"'
        self._added = f'SELECT id, place, vector FROM "{name}__vectors" WHERE id > ? AND model = ?'
        self._kept = f'SELECT id FROM "{name}__vectors" WHERE model = ?'
        self._vector = f'SELECT vector FROM "{name}__vectors" WHERE id = ?'
        self._places = (
            f'SELECT v.id, v.place FROM carray(?) AS wanted CROSS JOIN "{name}__vectors" AS v'
            " ON v.id = wanted.value"
        )

    def check(self, db: apsw.Connection) -> None:
        """Let go of what came from a file, if that belongs to another copy of the bank.

        Such as a later one, in whose place an earlier one was put: there, ids meant others.
        """
        ids, _, matrix = self.vectors.arrays()
        for id, vector in zip(ids[:-_SAMPLE:-1].tolist(), matrix[::-1], strict=False):
            kept = db.execute(self._vector, (id,)).get
            if kept is not None:
                if kept == vector.tobytes():
                    return
                break
        self.vectors, self._last = Vectors(self.vectors.length), 0

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
            # Another thread may have seen more than this one: it is not kept, but learned again.
            self._last = newest

    def current(self, db: apsw.Connection, ids: Sequence[int]) -> dict[int, int]:
        """Those of some vectors that are still there, each with its place."""
        return dict(db.execute(self._places, (search_tables.numbers(ids),))) if ids else {}

    def begin(self) -> _Making | None:
        """Start to make a graph, if it is due and no other process is at it."""
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
        """Whether the graph is used from now on: not if vectors were let go of meanwhile."""
        self.making = None
        if not self.vectors.begins_with(making.over[0]):
            return False
        self.vectors.guide = making.graph
        return True

    def save(self, db: apsw.Connection, making: _Making) -> None:
        """Keep the graph in a file. What was removed since must not come back in it."""
        kept = {id for (id,) in db.execute(self._kept, (self._id,))}
        if self._file is not None and kept.issuperset(making.over[0].tolist()):
            graphs.write(self._file, self._made, self._id, making.over, making.graph)
