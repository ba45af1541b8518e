"""Vectors in memory: what is packed to be compared faster is found as if it were not."""

from __future__ import annotations

import numpy as np

from perdure.search.vector_matrix import Vectors

_LENGTH, _LIMIT = 32, 25


def _random(count: int, seed: int) -> list[bytes]:
    rows = np.random.default_rng(seed).integers(-127, 128, (count, _LENGTH), dtype=np.int8)
    return [row.tobytes() for row in rows]


def _compared_plainly(known: dict[int, bytes], asked: bytes, first: int, last: int) -> list[int]:
    """Places of the nearest from `first` to `last`, best first."""
    places = [place for place in sorted(known) if first <= place <= last]
    joined = b"".join([known[place] for place in places])
    rows = np.frombuffer(joined, np.int8).reshape(-1, _LENGTH).astype(float)
    query = np.frombuffer(asked, np.int8).astype(float)
    scores = rows @ query / np.linalg.norm(rows, axis=1) / np.linalg.norm(query)
    return [places[row] for row in np.argsort(-scores, kind="stable")[:_LIMIT]]


def _found(vectors: Vectors, asked: bytes, first: int, last: int) -> list[int]:
    return [near.place for near in vectors.nearest(asked, _LIMIT, [(first, last)])]


def test_thousands_are_compared_exactly_while_some_come_and_go() -> None:
    known = dict(enumerate(_random(14_000, seed=1)))
    asked = _random(5, seed=2)
    vectors = Vectors(_LENGTH)

    def check(held: int) -> None:
        there = {place: known[place] for place in range(held) if place not in dropped}
        for one in asked:
            for first, last in ((0, held), (3_000, held - 2_000), (10, 200)):
                assert _found(vectors, one, first, last) == _compared_plainly(
                    there, one, first, last
                )

    dropped = set[int]()
    end = 0
    for more in (100, 4_000, 5_000, 4_900):  # not yet a pack; one, and a few; several
        some = range(end, end + more)
        vectors.add(some, some, [known[place] for place in some])
        end += more
        check(end)
    dropped = set(range(4_050, 4_150)) | {0, end - 1}
    vectors.drop(sorted(dropped))
    check(end)
    vectors.compact()
    check(end)
