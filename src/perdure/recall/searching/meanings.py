"""What candidates and their surroundings mean: cosines of their vectors with the question's."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from perdure.recall.places import INDEX, PART_BITS, ROUND_BITS, TURN_BITS
from perdure.recall.searching.evidence import STRETCH, Array, Evidence
from perdure.recall.searching.features import Meanings
from perdure.recall.searching.sets import among, distinct, inside

if TYPE_CHECKING:
    from collections.abc import Collection

    from perdure.recall.scoping.scope import Scope
    from perdure.storage.store import Store


#: Turns on each side whose vectors are a candidate's surroundings.
_AROUND = 2


class Meant(NamedTuple):
    """What a question means, by an embedder's model, and the places that are near to it."""

    model: str
    vector: bytes
    nearest: Collection[int]


async def meanings(store: Store, scope: Scope, evidence: Evidence, meant: Meant) -> Meanings:
    """Cosines of candidates with what is meant."""
    beside = _beside(scope, evidence)
    wanted = distinct(
        np.concatenate(
            [
                evidence.places,
                _parts(evidence),
                np.array(list(meant.nearest), np.int64),
                beside.ravel(),
            ]
        )
    )
    wanted = wanted[inside(scope.ranges, wanted)]
    read = await store.adapter.vectors(INDEX.name, meant.model, wanted.tolist())
    if not len(read.at):
        nothing = np.zeros(evidence.rows)
        return Meanings(nothing, nothing, nothing)
    known = _Known(wanted[read.at], *_compared(read.rows, np.frombuffer(meant.vector, np.int8)))
    own = _own(evidence, known)
    return Meanings(own, _near(evidence, known, beside), _best_around(evidence, own))


class _Known(NamedTuple):
    """Places that have a vector, in order. The last row of the others is zeros: for no place."""

    places: Array
    #: Of length 1.
    vectors: Array
    #: With what is meant.
    cosines: Array


def _compared(rows: Array, asked: Array) -> tuple[Array, Array]:
    """Vectors of length 1, and their cosines; then zeros."""
    vectors = np.zeros((len(rows) + 1, len(asked)), np.float32)
    vectors[:-1] = rows
    vectors *= 1 / np.maximum(_lengths(vectors), 1e-9)[:, None]
    direction = asked.astype(np.float32)
    direction /= np.maximum(_lengths(direction[None]), 1e-9)
    # Not a product of matrices: that would start threads, which costs more than it gains.
    return vectors, np.einsum("ij,j->i", vectors, direction)


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
    own = np.zeros(evidence.rows)
    np.maximum.at(own, row[mine], known.cosines[:-1][mine])
    return own


def _near(evidence: Evidence, known: _Known, beside: Array) -> Array:
    """A candidate and the turns around it, taken together."""
    wanted = np.vstack([evidence.places, beside.T])
    at = np.minimum(np.searchsorted(known.places, wanted), len(known.places) - 1)
    at[known.places[at] != wanted] = -1
    total = known.vectors[at[0]]
    for row in at[1:]:
        total += known.vectors.take(row, axis=0)
    near: Array = known.cosines[at].sum(axis=0) / np.maximum(_lengths(total), 1e-9)
    return near


def _best_around(evidence: Evidence, own: Array) -> Array:
    first = np.searchsorted(evidence.axis, evidence.axis - STRETCH)
    last = np.searchsorted(evidence.axis, evidence.axis + STRETCH, side="right")
    # From each first to its last one; what stands between two such stretches is left out.
    bounds = np.column_stack([first, last]).ravel()
    best: Array = np.maximum(np.maximum.reduceat(np.append(own, 0.0), bounds)[::2], 0.0)
    return best
