"""Positions of rounds: what is said next stands next.

What stands around a candidate is a window of positions. A turn has one, as a rule. But a turn of a
coding agent may have a hundred rounds: it would be the surroundings of each of them, and none would
stand out. So each round has a position of its own, and the turns behind it are pushed aside. How
many rounds a turn has is known as far as their terms were found.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

import numpy as np

from perdure.recall.places import PART_BITS, ROUND_BITS

if TYPE_CHECKING:
    from perdure.search.engine import Range

Array: TypeAlias = np.ndarray

_NUMBERS = (1 << ROUND_BITS - PART_BITS) - 1


class Positions(NamedTuple):
    """Turns that have several rounds, in order, and how many rounds they have too many."""

    turns: Array
    #: The running sum, of the turns before.
    pushed: Array

    @classmethod
    def of(cls, axis: Array, places: Array) -> Positions:
        """From places where something was found, and the turns that they belong to."""
        number = _number(places)
        later = number > 1
        turns, at = np.unique(axis[later], return_inverse=True)
        last = np.ones(len(turns), np.int64)
        np.maximum.at(last, at, number[later])
        return cls(turns, np.concatenate([[0], np.cumsum(last - 1)]))

    def __call__(self, axis: Array, places: Array) -> Array:
        """The positions of rounds, of turns that may be others than those that are known."""
        positions: Array = self.first(axis)
        if len(self.turns):
            positions += _number(places) - 1
        return positions

    def first(self, axis: Array) -> Array:
        """The positions of turns: of their first rounds."""
        pushed: Array = axis + self.pushed[np.searchsorted(self.turns, axis)]
        return pushed

    def has_several(self, axis: Array) -> Array:
        """Which turns have several rounds: a flag for each."""
        at = np.searchsorted(self.turns, axis)
        flags: Array = self.pushed[np.minimum(at + 1, len(self.turns))] > self.pushed[at]
        flags &= np.append(self.turns, -1)[at] == axis
        return flags


def _number(places: Array) -> Array:
    number: Array = np.maximum(places >> PART_BITS & _NUMBERS, 1)
    return number


def distinct(values: Array) -> Array:
    """Each value once, in order."""
    # `np.unique` puts numbers into a hash table first, which takes ten times as long.
    ordered = np.sort(values)
    is_new = np.ones(len(ordered), bool)
    np.not_equal(ordered[1:], ordered[:-1], out=is_new[1:])
    return ordered[is_new]


def numbered(values: Array) -> tuple[Array, Array]:
    """Each value once, in order; and of all values, which of these they are."""
    once = distinct(values)
    return once, np.searchsorted(once, values)


def among(values: Array, known: Array) -> Array:
    """Which values are among those that are `known`, which are in order: a flag for each."""
    if not len(known):
        return np.zeros(len(values), bool)
    at = np.minimum(np.searchsorted(known, values), len(known) - 1)
    flags: Array = known[at] == values
    return flags


def inside(ranges: Sequence[Range], places: Array) -> Array:
    """Which places lie in one of the ranges: a flag for each."""
    if not ranges:
        return np.zeros(len(places), bool)
    bounds = np.array(ranges, np.int64)
    at = np.searchsorted(bounds[:, 0], places, side="right") - 1
    lies: Array = (at >= 0) & (places <= bounds[np.maximum(at, 0), 1])
    return lies
