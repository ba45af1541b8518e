"""Conditions and orders evaluated in Python.

The in-memory backend answers queries with this, and a transaction uses it to show its own,
not yet committed writes. It is the definition that SQL has to agree with.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Collection
from typing import Any

from perdure.storage.query import All, AnyOf, Compare, Condition, Op, Order, Scalar, Tagged

#: Gives a column's value of the row in question.
Columns = Callable[[str], Scalar]
Tags = Collection[tuple[str, str]]


def matches(condition: Condition, columns: Columns, tags: Tags) -> bool:
    """Whether a row satisfies the condition."""
    match condition:
        case Compare(column, op, value):
            return _compare(columns(column), op, value)
        case Tagged(name, value):
            return (name, value) in tags
        case All(parts):
            return all(matches(part, columns, tags) for part in parts)
        case AnyOf(parts):
            return any(matches(part, columns, tags) for part in parts)


def sort_key(order: tuple[Order, ...], columns: Columns) -> Any:
    """Something to sort rows by; NULL is the smallest value."""
    return _by_values(order)(tuple(columns(part.column) for part in order))


def is_after(order: tuple[Order, ...], columns: Columns, mark: tuple[Scalar, ...]) -> bool:
    """Whether a row stands behind the row whose order values are `mark`."""
    values = tuple(columns(part.column) for part in order)
    return _compare_values(order, values, mark) > 0


def _compare(found: Scalar, op: Op, wanted: Scalar | tuple[Scalar, ...]) -> bool:
    if op is Op.EQ:
        return found == wanted
    if op is Op.NE:
        return found != wanted
    if isinstance(wanted, tuple):
        return found is not None and found in wanted
    if found is None or wanted is None:
        return False
    if op is Op.PREFIX:
        return isinstance(found, str) and found.startswith(str(wanted))
    if isinstance(found, str) or isinstance(wanted, str):
        if not (isinstance(found, str) and isinstance(wanted, str)):
            return False
        difference = _order(found, wanted)
    else:
        difference = _order(found, wanted)
    match op:
        case Op.LT:
            return difference < 0
        case Op.LE:
            return difference <= 0
        case Op.GT:
            return difference > 0
        case _:
            return difference >= 0


def _order(one: str | float, other: str | float) -> int:
    return (one > other) - (one < other)  # type: ignore[operator]


def _by_values(order: tuple[Order, ...]) -> Callable[[tuple[Scalar, ...]], Any]:
    return functools.cmp_to_key(functools.partial(_compare_values, order))


def _compare_values(
    order: tuple[Order, ...], one: tuple[Scalar, ...], other: tuple[Scalar, ...]
) -> int:
    for part, a, b in zip(order, one, other, strict=True):
        if a is None or b is None:
            difference = (a is not None) - (b is not None)
        else:
            difference = _order(a, b)
        if difference:
            return -difference if part.descending else difference
    return 0
