"""Sets of numbers: arrays in order, each number once. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, TypeAlias

import numpy as np

if TYPE_CHECKING:
    from perdure.search.engine import Range

Array: TypeAlias = np.ndarray


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
