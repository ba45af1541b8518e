"""What candidates and their surroundings mean: cosines of their vectors with the question's."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from perdure.recall.places import INDEX, PART_BITS, ROUND_BITS, TURN_BITS
from perdure.recall.searching.cues import without
from perdure.recall.searching.evidence import Array, Evidence
from perdure.recall.searching.features import Meanings
from perdure.recall.searching.rounds import among, distinct, inside
from perdure.recall.words import terms
from perdure.search.engine import engine_of

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Collection, Sequence

    from perdure.recall.scoping.scope import Scope
    from perdure.search.engine import VectorRows
    from perdure.storage.store import Store


#: Turns on each side whose vectors are a candidate's surroundings.
_AROUND = 2
#: Characters of a question beyond which a name or two change nothing.
_SHORT = 1_000


class Meant(NamedTuple):
    """What a question means, by an embedder's model, and the places that are near to it."""

    model: str
    vector: bytes
    nearest: Collection[int]
    #: Embeds another question, in less than a millisecond; None if that would take longer.
    embed: Callable[[Sequence[str]], Awaitable[list[bytes]]] | None = None
    #: The same without the names of who speaks, where it is known: see `without`.
    nameless: bytes = b""

    async def without(self, text: str, names: Collection[str]) -> Meant:
        """What is meant but for the names of who speaks: they stand where others address them.

        `text` is the question. If nothing but names is asked, they are what is meant.
        """
        left = without(text[:_SHORT], names)
        if self.embed is None or len(text) > _SHORT or left == text or not terms(left):
            return self
        [nameless] = await self.embed([left])
        return self._replace(nameless=nameless)


class VectorsRead(NamedTuple):
    """Places, in order, and the vectors that some of them have."""

    places: Array
    found: VectorRows

    def only(self, places: Array) -> tuple[Array, Array]:
        """Those of these places that have a vector, and the vectors."""
        there = self.places[self.found.at]
        is_wanted = among(there, places)
        return there[is_wanted], self.found.rows[is_wanted]


def compared_places(scope: Scope, evidence: Evidence, meant: Meant) -> Array:
    """The places whose vectors `meanings` looks at, in order."""
    near: Array = distinct(
        np.concatenate(
            [
                evidence.places,
                _parts(evidence),
                np.array(list(meant.nearest), np.int64),
                _beside(scope, evidence).ravel(),
            ]
        )
    )
    seen: Array = near[inside(scope.ranges, near)]
    return seen


async def meanings(
    store: Store, scope: Scope, evidence: Evidence, meant: Meant, read: VectorsRead | None = None
) -> Meanings:
    """Cosines of candidates with what is meant. `read` are vectors that are there already."""
    wanted = compared_places(scope, evidence, meant)
    if read is None or not among(wanted, read.places).all():
        engine = engine_of(store.adapter)
        found = await engine.vectors(INDEX.name, meant.model, wanted.tolist())
        read = VectorsRead(wanted, found)
    places, rows = read.only(wanted)
    if not len(places):
        nothing = np.zeros(evidence.rows)
        return Meanings(nothing, nothing, 0.0)
    vectors, beside = _directions(rows), _beside(scope, evidence)
    known = _Known(places, vectors, _compared(vectors, meant.vector))
    own = _own(evidence, known)
    likeness = float(own.max(initial=0.0))
    if meant.nameless:
        known = known._replace(cosines=_compared(vectors, meant.nameless))
        own = _own(evidence, known)
    return Meanings(own, _near(evidence, known, beside), likeness)


class _Known(NamedTuple):
    """Places that have a vector, in order. The last row of the others is zeros: for no place."""

    places: Array
    #: Of length 1.
    vectors: Array
    #: With what is meant.
    cosines: Array


def _directions(rows: Array) -> Array:
    """Vectors of length 1; then zeros."""
    vectors = np.zeros((len(rows) + 1, rows.shape[1]), np.float32)
    vectors[:-1] = rows
    vectors *= 1 / np.maximum(_lengths(vectors), 1e-9)[:, None]
    return vectors


def _compared(vectors: Array, asked: bytes) -> Array:
    """Cosines with what is asked."""
    vector = np.frombuffer(asked, np.int8).astype(np.float32)
    direction = vector / np.maximum(_lengths(vector[None]), 1e-9)
    # Not a product of matrices: that would start threads, which costs more than it gains.
    cosines: Array = np.einsum("ij,j->i", vectors, direction)
    return cosines


def _lengths(vectors: Array) -> Array:
    lengths: Array = np.sqrt(np.einsum("ij,ij->i", vectors, vectors))
    return lengths


def _parts(evidence: Evidence) -> Array:
    """All parts of candidates that have a term."""
    rounds = evidence.parts >> PART_BITS << PART_BITS
    parts: Array = evidence.parts[among(rounds, evidence.places)]
    return parts


def _beside(scope: Scope, evidence: Evidence) -> Array:
    """By candidate, the first rounds of the turns around it; -1 for what has no order.

    Of a turn that has several rounds, those around the candidate.
    """
    steps = np.array([step for step in range(-_AROUND, _AROUND + 1) if step])
    first = evidence.places >> ROUND_BITS << ROUND_BITS | 1 << PART_BITS
    around = first[:, None] + (steps << ROUND_BITS)
    several = evidence.positions.has_several(evidence.axis)
    around[several] = evidence.places[several, None] + (steps << PART_BITS)
    ordered = ~among(evidence.places >> TURN_BITS, np.array(scope.groups.alone, np.int64))
    beside: Array = np.where(ordered[:, None], around, -1)
    return beside


def _own(evidence: Evidence, known: _Known) -> Array:
    """The best of each candidate's parts."""
    rounds = known.places >> PART_BITS << PART_BITS
    row = np.minimum(np.searchsorted(evidence.places, rounds), evidence.rows - 1)
    mine = evidence.places[row] == rounds
    own, has = np.zeros(evidence.rows), np.zeros(evidence.rows, bool)
    np.maximum.at(own, row[mine], known.cosines[:-1][mine])
    has[row[mine]] = True
    return _or_average(own, has)


def _or_average(cosines: Array, is_known: Array) -> Array:
    """Where no vector is known yet, the average, which speaks neither for nor against."""
    if is_known.any():
        cosines[~is_known] = cosines[is_known].mean()
    return cosines


def _near(evidence: Evidence, known: _Known, beside: Array) -> Array:
    """A candidate and the turns around it, taken together."""
    wanted = np.vstack([evidence.places, beside.T])
    at = np.minimum(np.searchsorted(known.places, wanted), len(known.places) - 1)
    at[known.places[at] != wanted] = -1
    total = known.vectors[at[0]]
    for row in at[1:]:
        total += known.vectors.take(row, axis=0)
    lengths = _lengths(total)
    near: Array = known.cosines[at].sum(axis=0) / np.maximum(lengths, 1e-9)
    return _or_average(near, lengths > 0)
