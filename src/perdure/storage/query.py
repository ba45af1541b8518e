"""Queries as values: a closed set of conditions that every backend understands.

A value is always a parameter: user text never becomes SQL. `perdure.storage.finder` builds queries.
"""

from __future__ import annotations

import functools
import operator
from collections.abc import Callable, Collection
from enum import StrEnum
from typing import Any, TypeAlias

import msgspec

#: What a column can hold. NULL sorts below everything else, in every backend.
Scalar: TypeAlias = str | int | float | None

BUILT_IN = ("key", "created", "updated", "version")


class Op(StrEnum):
    """The comparison operators. As in SQL, only EQ and NE ever match NULL."""

    EQ = "="
    NE = "!="
    LT = "<"
    LE = "<="
    GT = ">"
    GE = ">="
    IN = "in"
    PREFIX = "prefix"


class Compare(msgspec.Struct, frozen=True):
    """A column against a value (a tuple of values with `Op.IN`)."""

    column: str
    op: Op
    value: Scalar | tuple[Scalar, ...]


class Tagged(msgspec.Struct, frozen=True):
    """The row carries the tag ``name=value``."""

    name: str
    value: str


class All(msgspec.Struct, frozen=True):
    """Every part holds; true when there is none."""

    parts: tuple[Condition, ...]


class AnyOf(msgspec.Struct, frozen=True):
    """At least one part holds; false when there is none."""

    parts: tuple[Condition, ...]


Condition: TypeAlias = Compare | Tagged | All | AnyOf


class SortOrder(msgspec.Struct, frozen=True):
    """One column of the order of results."""

    column: str
    descending: bool = False


class Query(msgspec.Struct, frozen=True):
    """Which rows of a collection, in which order.

    Results are ordered by `order`, then by key in the direction of the last order column, so every
    order is total. `after` holds those columns' values, key last, of the row behind which the
    results begin: keyset paging, whose cost does not grow with the rows passed.
    """

    collection: str
    where: Condition = All(())
    prefix: str = ""
    order: tuple[SortOrder, ...] = ()
    limit: int | None = None
    offset: int = 0
    after: tuple[Scalar, ...] | None = None

    def total_order(self) -> tuple[SortOrder, ...]:
        for order in self.order:
            if order.column == "key":
                return self.order
        descending = self.order[-1].descending if self.order else False
        return (*self.order, SortOrder("key", descending))

    def columns(self) -> set[str]:
        return {part.column for part in self.order} | columns_of(self.where)


class Figure(StrEnum):
    """What can be computed over a column. Of no values: None, and 0 for COUNT."""

    COUNT = "count"
    SUM = "sum"
    AVG = "avg"
    MIN = "min"
    MAX = "max"


class Summary(msgspec.Struct, frozen=True):
    """Figures over a query's rows, all of them; COUNT of the empty column counts rows."""

    query: Query
    figures: tuple[tuple[Figure, str], ...]
    group: tuple[str, ...] = ()

    def columns(self) -> set[str]:
        figures = {column for _, column in self.figures if column}
        return {*self.group, *figures, *self.query.columns()}


def columns_of(condition: Condition) -> set[str]:
    match condition:
        case Compare(column=column):
            return {column}
        case All(parts=parts) | AnyOf(parts=parts):
            return set[str]().union(*(columns_of(part) for part in parts))
        case _:
            return set()


Columns = Callable[[str], Scalar]
Tags = Collection[tuple[str, str]]


def matches(condition: Condition, columns: Columns, tags: Tags) -> bool:
    match condition:
        case Compare(column, op, value):
            return _compare(columns(column), op, value)
        case Tagged(name, value):
            return (name, value) in tags
        case All(parts):
            return all(matches(part, columns, tags) for part in parts)
        case AnyOf(parts):
            return any(matches(part, columns, tags) for part in parts)


def sort_key(order: tuple[SortOrder, ...], columns: Columns) -> Any:
    return _by_values(order)(tuple(columns(part.column) for part in order))


def is_after(order: tuple[SortOrder, ...], columns: Columns, mark: tuple[Scalar, ...]) -> bool:
    """Whether a row comes after the one whose order values are `mark`."""
    values = tuple(columns(part.column) for part in order)
    return _compare_values(order, values, mark) > 0


_ORDERS: dict[Op, Callable[[Any, Any], bool]] = {
    Op.LT: operator.lt,
    Op.LE: operator.le,
    Op.GT: operator.gt,
    Op.GE: operator.ge,
}


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
    return isinstance(found, str) is isinstance(wanted, str) and _ORDERS[op](found, wanted)


def _order(one: str | float, other: str | float) -> int:
    return (one > other) - (one < other)  # type: ignore[operator]


def _by_values(order: tuple[SortOrder, ...]) -> Callable[[tuple[Scalar, ...]], Any]:
    return functools.cmp_to_key(functools.partial(_compare_values, order))


def _compare_values(
    order: tuple[SortOrder, ...], one: tuple[Scalar, ...], other: tuple[Scalar, ...]
) -> int:
    for part, a, b in zip(order, one, other, strict=True):
        if a is None or b is None:
            difference = (a is not None) - (b is not None)
        else:
            difference = _order(a, b)
        if difference:
            return -difference if part.descending else difference
    return 0
