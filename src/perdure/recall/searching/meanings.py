"""What candidates and their surroundings mean: cosines of their vectors with the question's."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from perdure.recall.places import INDEX, PART_BITS, ROUND_BITS, TURN_BITS
from perdure.recall.searching.evidence import STRETCH, Array, Evidence, among, distinct, inside
from perdure.recall.searching.features import Meanings

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

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
    asked = meant.vector
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
    known = _Known(wanted, _unit(_joined(read, len(asked)), len(asked)))
    direction = _unit(asked, len(asked))[0]
    own = _own(evidence, known, direction)
    return Meanings(own, _near(evidence, known, direction, beside), _best_around(evidence, own))


class _Known(NamedTuple):
    """Places in order, and their vectors of length 1; of length 0 where there is none."""

    places: Array
    vectors: Array


def _joined(rows: Sequence[bytes | None], length: int) -> bytes:
    """One behind the other, zeros for what is not there. Those of a model have one length."""
    blank = bytes(length)
    joined = b"".join([row or blank for row in rows])
    return joined if len(joined) == length * len(rows) else bytes(length * len(rows))


def _unit(rows: bytes, length: int) -> Array:
    vectors = np.frombuffer(rows, np.int8).reshape(-1, length).astype(np.float32)
    return _of_length_1(vectors)


def _of_length_1(vectors: Array) -> Array:
    unit: Array = vectors / np.maximum(np.linalg.norm(vectors, axis=1, keepdims=True), 1e-9)
    return unit


def _parts(evidence: Evidence) -> Array:
    """All parts of candidates that have a term."""
    rounds = evidence.parts >> PART_BITS << PART_BITS
    parts: Array = evidence.parts[among(rounds, evidence.places)]
    return parts


def _beside(scope: Scope, evidence: Evidence) -> Array:
    """By candidate, the first rounds of the turns around it; -1 for what has no order."""
    steps = np.array([step for step in range(-_AROUND, _AROUND + 1) if step]) << ROUND_BITS
    first = evidence.places >> ROUND_BITS << ROUND_BITS | 1 << PART_BITS
    ordered = ~among(evidence.places >> TURN_BITS, np.array(scope.groups.alone, np.int64))
    beside: Array = np.where(ordered[:, None], first[:, None] + steps, -1)
    return beside


def _own(evidence: Evidence, known: _Known, asked: Array) -> Array:
    """The best of each candidate's parts."""
    rounds = known.places >> PART_BITS << PART_BITS
    row = np.minimum(np.searchsorted(evidence.places, rounds), evidence.rows - 1)
    mine = evidence.places[row] == rounds
    own = np.zeros(evidence.rows)
    np.maximum.at(own, row[mine], _products(known.vectors, asked)[mine])
    return own


def _products(vectors: Array, asked: Array) -> Array:
    # Not a product of matrices: that would start threads, which costs more than it gains.
    products: Array = np.einsum("ij,j->i", vectors, asked)
    return products


def _near(evidence: Evidence, known: _Known, asked: Array, beside: Array) -> Array:
    """A candidate and the turns around it, taken together."""
    if not len(known.places):
        return np.zeros(evidence.rows)
    wanted = np.vstack([evidence.places, beside.T])
    at = np.minimum(np.searchsorted(known.places, wanted), len(known.places) - 1)
    at[known.places[at] != wanted] = -1  # the last of all, of length 0
    vectors = np.vstack([known.vectors, np.zeros((1, len(asked)), np.float32)])
    total = vectors[at[0]]
    for row in at[1:]:
        total += vectors.take(row, axis=0)
    return _products(_of_length_1(total), asked)


def _best_around(evidence: Evidence, own: Array) -> Array:
    first = np.searchsorted(evidence.axis, evidence.axis - STRETCH)
    last = np.searchsorted(evidence.axis, evidence.axis + STRETCH, side="right")
    # From each first to its last one; what stands between two such stretches is left out.
    bounds = np.column_stack([first, last]).ravel()
    best: Array = np.maximum(np.maximum.reduceat(np.append(own, 0.0), bounds)[::2], 0.0)
    return best
