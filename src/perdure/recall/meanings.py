"""What candidates and their surroundings mean: cosines of their vectors with the question's."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from perdure.recall.evidence import STRETCH, Array, Evidence, inside
from perdure.recall.features import Meanings
from perdure.recall.places import INDEX, PART_BITS, ROUND_BITS

if TYPE_CHECKING:
    from collections.abc import Collection

    from perdure.recall.scope import Scope
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
    wanted = np.unique(
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
    blank = bytes(len(asked))
    rows = b"".join(row if row is not None and len(row) == len(asked) else blank for row in read)
    known = _Known(wanted, _unit(rows, len(asked)))
    direction = _unit(asked, len(asked))[0]
    own = _own(evidence, known, direction)
    return Meanings(own, _near(evidence, known, direction, beside), _best_around(evidence, own))


class _Known(NamedTuple):
    """Places in order, and their vectors of length 1; of length 0 where there is none."""

    places: Array
    vectors: Array


def _unit(rows: bytes, length: int) -> Array:
    vectors = np.frombuffer(rows, np.int8).reshape(-1, length).astype(np.float32)
    return _of_length_1(vectors)


def _of_length_1(vectors: Array) -> Array:
    unit: Array = vectors / np.maximum(np.linalg.norm(vectors, axis=1, keepdims=True), 1e-9)
    return unit


def _parts(evidence: Evidence) -> Array:
    """All parts of candidates that have a term."""
    rounds = evidence.parts >> PART_BITS << PART_BITS
    parts: Array = evidence.parts[np.isin(rounds, evidence.places)]
    return parts


def _beside(scope: Scope, evidence: Evidence) -> Array:
    """By candidate, the first rounds of the turns around it; -1 for what has no order."""
    steps = np.array([step for step in range(-_AROUND, _AROUND + 1) if step]) << ROUND_BITS
    first = evidence.places >> ROUND_BITS << ROUND_BITS | 1 << PART_BITS
    ordered = np.array([scope.name(place)[0] == "turn" for place in evidence.places.tolist()], bool)
    beside: Array = np.where(ordered[:, None], first[:, None] + steps, -1)
    return beside


def _own(evidence: Evidence, known: _Known, asked: Array) -> Array:
    """The best of each candidate's parts."""
    rounds = known.places >> PART_BITS << PART_BITS
    row = np.minimum(np.searchsorted(evidence.places, rounds), evidence.rows - 1)
    mine = evidence.places[row] == rounds
    own = np.zeros(evidence.rows)
    np.maximum.at(own, row[mine], (known.vectors @ asked)[mine])
    return own


def _near(evidence: Evidence, known: _Known, asked: Array, beside: Array) -> Array:
    """A candidate and the turns around it, taken together."""
    if not len(known.places):
        return np.zeros(evidence.rows)
    total = np.zeros((evidence.rows, len(asked)), np.float32)
    for wanted in (evidence.places, *beside.T):
        at = np.minimum(np.searchsorted(known.places, wanted), len(known.places) - 1)
        total += known.vectors[at] * (known.places[at] == wanted)[:, None]
    near: Array = _of_length_1(total) @ asked
    return near


def _best_around(evidence: Evidence, own: Array) -> Array:
    # A few hundred rows: a square of them is small.
    close = np.abs(evidence.axis[:, None] - evidence.axis[None, :]) <= STRETCH
    best: Array = np.where(close, own[None, :], 0.0).max(axis=1, initial=0.0)
    return best
