"""SQL from queries: an emitter of a closed operator set, for SQLite and PostgreSQL.

System columns begin with an underscore, so they cannot collide with declared ones. A query is split
into its *shape*, whose text is emitted once and cached, and its parameters. Names come from the
registry of collections, never from a caller; every value is a parameter.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import TypeAlias

import msgspec

from perdure.storage import record_keys
from perdure.storage.query import (
    BUILT_IN,
    All,
    AnyOf,
    Compare,
    Condition,
    Figure,
    Op,
    Query,
    Scalar,
    SortOrder,
    Summary,
    Tagged,
)

Params: TypeAlias = list[Scalar]
#: Declared constants of partial indexes: column and value.
Constants: TypeAlias = frozenset[tuple[str, str | int]]
#: A condition without its values: nested tuples of operators, columns and counts.
Shape: TypeAlias = tuple["str | int | Shape", ...]


class Dialect(msgspec.Struct, frozen=True):
    """The differences of the databases. A query's table is called ``r``."""

    mark: str
    #: The key of a row, as an expression.
    key: str
    #: What follows FROM, given a table name and whether the key is needed.
    source: Callable[[str, bool], str]
    #: The condition that row ``r`` of this table carries a tag, with one parameter ``name=value``.
    tagged: Callable[[str], str]
    #: "Is not the same as", NULL being a value like others.
    differs: str
    #: Whether the place of NULLs in an order must be said, because NULLs sort high by default.
    nulls_high: bool
    row_id: str


class _Selection(msgspec.Struct, frozen=True):
    collection: str
    where: Shape
    prefix: int  # 0: none, 1: from below only, 2: from both sides
    expires: bool
    order: tuple[SortOrder, ...]
    after: tuple[bool, ...]  # for each order column, whether the mark is NULL
    limit: bool
    offset: bool


class Emitter:
    """Emits and caches the statements of one dialect."""

    def __init__(self, dialect: Dialect) -> None:
        self._dialect = dialect
        self._select = functools.lru_cache(maxsize=512)(self._emit_select)
        self._summarize = functools.lru_cache(maxsize=512)(self._emit_summary)

    def select(
        self, query: Query, columns: str, moment: int | None, constants: Constants = frozenset()
    ) -> tuple[str, Params]:
        """A SELECT of `columns`; rows that expire by `moment` are left out."""
        selection, params = _describe(query, query.total_order(), moment, constants)
        return self._select(selection, columns), params

    def summarize(
        self, summary: Summary, moment: int | None, constants: Constants = frozenset()
    ) -> tuple[str, Params]:
        query = msgspec.structs.replace(summary.query, order=(), limit=None, offset=0, after=None)
        selection, params = _describe(query, (), moment, constants)
        return self._summarize(selection, summary.figures, summary.group), params

    def delete(
        self, query: Query, moment: int | None, constants: Constants = frozenset()
    ) -> tuple[str, Params]:
        row_id = self._dialect.row_id
        text, params = self.select(query, f"r.{row_id}", moment, constants)
        return f'DELETE FROM "{query.collection}" WHERE {row_id} IN ({text})', params

    def _emit_select(self, selection: _Selection, columns: str) -> str:
        source = self._dialect.source(selection.collection, True)
        text = f"SELECT {columns} FROM {source}{self._where(selection)}"
        if selection.order:
            text += " ORDER BY " + ", ".join(self._direction(part) for part in selection.order)
        if selection.limit:
            text += f" LIMIT {self._dialect.mark}"
        if selection.offset:
            text += f" OFFSET {self._dialect.mark}"
        return text

    def _emit_summary(
        self, selection: _Selection, figures: tuple[tuple[Figure, str], ...], group: tuple[str, ...]
    ) -> str:
        grouped = [self._column(column) for column in group]
        computed = [
            f"{figure.value}({self._column(column) if column else '*'})"
            for figure, column in figures
        ]
        needs_key = "key" in group or selection.prefix > 0 or _mentions_key(selection.where)
        source = self._dialect.source(selection.collection, needs_key)
        text = f"SELECT {', '.join(grouped + computed)} FROM {source}{self._where(selection)}"
        if grouped:
            text += f" GROUP BY {', '.join(grouped)} ORDER BY "
            text += ", ".join(self._direction(SortOrder(column)) for column in group)
        return text

    def _where(self, selection: _Selection) -> str:
        mark, key = self._dialect.mark, self._dialect.key
        parts = []
        if selection.where != ("all",):
            parts.append(self._condition(selection.where, selection.collection))
        if selection.prefix:
            parts.append(f"{key} >= {mark}")
        if selection.prefix == 2:
            parts.append(f"{key} < {mark}")
        if selection.expires:
            parts.append(f"(r._expires IS NULL OR r._expires > {mark})")
        if selection.after:
            parts += self._after(selection.order, selection.after)
        return f" WHERE {' AND '.join(parts)}" if parts else ""

    def _condition(self, shape: Shape, collection: str) -> str:
        mark = self._dialect.mark
        match shape:
            case ("all" | "any" as kind, *parts):
                if not parts:
                    return "1 = 1" if kind == "all" else "1 = 0"
                joint = " AND " if kind == "all" else " OR "
                return f"({joint.join(self._condition(part, collection) for part in parts)})"  # type: ignore[arg-type]
            case ("tagged",):
                return self._dialect.tagged(collection)
            case ("null", str(name)):
                return f"{self._column(name)} IS NULL"
            case ("not null", str(name)):
                return f"{self._column(name)} IS NOT NULL"
            case ("in", str(name), int(count)):
                if not count:
                    return "1 = 0"
                return f"{self._column(name)} IN ({', '.join([mark] * count)})"
            case ("prefix", str(name), int(bounds)):
                text = f"{self._column(name)} >= {mark}"
                return f"({text} AND {self._column(name)} < {mark})" if bounds == 2 else text
            case ("constant", str(name), str(text)):
                return f"{self._column(name)} = {text}"
            case ("!=", str(name)):
                return f"{self._column(name)} {self._dialect.differs} {mark}"
            case (str(op), str(name)):
                return f"{self._column(name)} {op} {mark}"
            case _:
                raise AssertionError(f"not a shape: {shape}")

    def _after(self, order: tuple[SortOrder, ...], nulls: tuple[bool, ...]) -> list[str]:
        """Rows behind a mark: a > x, or a = x and b > y, or …; see `_after_params`."""
        branches = []
        same = ""
        for part, null in zip(order, nulls, strict=True):
            column, mark = self._column(part.column), self._dialect.mark
            if not null:
                beyond = f"{column} < {mark}" if part.descending else f"{column} > {mark}"
                if part.descending and part.column not in _NEVER_NULL:
                    beyond = f"({beyond} OR {column} IS NULL)"
                branches.append(same + beyond)
                same += f"{column} = {mark} AND "
            else:
                if not part.descending:
                    branches.append(f"{same}{column} IS NOT NULL")
                same += f"{column} IS NULL AND "
        text = f"({' OR '.join(branches) if branches else '1 = 0'})"
        first = order[0]
        if (
            len(order) > 1
            and not nulls[0]
            and (not first.descending or first.column in _NEVER_NULL)
        ):
            # Redundant, but it lets the database seek in the index instead of scanning to the mark.
            op = "<=" if first.descending else ">="
            return [f"{self._column(first.column)} {op} {self._dialect.mark}", text]
        return [text]

    def _direction(self, part: SortOrder) -> str:
        text = self._column(part.column) + (" DESC" if part.descending else "")
        if self._dialect.nulls_high and part.column not in _NEVER_NULL:
            text += " NULLS LAST" if part.descending else " NULLS FIRST"
        return text

    def _column(self, name: str) -> str:
        if name == "key":
            return self._dialect.key
        return f"r._{name}" if name in _NEVER_NULL else f'r."{name}"'


_NEVER_NULL = frozenset(BUILT_IN)
_NULL_TESTS = {Op.EQ: "null", Op.NE: "not null"}


def literal(value: str | int) -> str:
    """A constant of a partial index: a plain word or a number; see `records`."""
    return str(int(value)) if isinstance(value, int) else "'" + value.replace("'", "''") + "'"


def _describe(
    query: Query, order: tuple[SortOrder, ...], moment: int | None, constants: Constants
) -> tuple[_Selection, Params]:
    params: Params = []
    where = _shape(query.where, params, constants)
    prefix = _bounds(query.prefix, params) if query.prefix else 0
    if moment is not None:
        params.append(moment)
    after: tuple[bool, ...] = ()
    if query.after is not None:
        after = tuple(value is None for value in query.after)
        _after_params(order, query.after, params)
    limit = query.limit
    if limit is None and query.offset:
        limit = 2**62  # SQLite takes no OFFSET without a LIMIT
    if limit is not None:
        params.append(limit)
    if query.offset:
        params.append(query.offset)
    selection = _Selection(
        query.collection,
        where,
        prefix,
        moment is not None,
        order,
        after,
        limit is not None,
        query.offset > 0,
    )
    return selection, params


def _shape(condition: Condition, params: Params, constants: Constants) -> Shape:
    match condition:
        case All(parts):
            return ("all", *(_shape(part, params, constants) for part in parts))
        case AnyOf(parts):
            return ("any", *(_shape(part, params, constants) for part in parts))
        case Tagged(name, value):
            params.append(f"{name}={value}")
            return ("tagged",)
        case Compare(column, op, value):
            if isinstance(value, tuple):
                params.extend(value)
                return ("in", column, len(value))
            if value is None:
                return (_NULL_TESTS[op], column) if op in _NULL_TESTS else ("any",)
            if op is Op.EQ and (column, value) in constants:
                # Declared, so it may stand in the text: only then is the partial index used.
                return ("constant", column, literal(value))  # type: ignore[arg-type]
            if op is Op.PREFIX:
                return ("prefix", column, _bounds(str(value), params))
            params.append(value)
            return (op.value, column)


def _bounds(prefix: str, params: Params) -> int:
    params.append(prefix)
    end = record_keys.after_prefix(prefix)
    if end is None:
        return 1
    params.append(end)
    return 2


def _after_params(order: tuple[SortOrder, ...], mark: tuple[Scalar, ...], params: Params) -> None:
    first = order[0]
    if (
        len(order) > 1
        and mark[0] is not None
        and (not first.descending or first.column in _NEVER_NULL)
    ):
        params.append(mark[0])
    same: Params = []
    for part, value in zip(order, mark, strict=True):
        if value is not None:
            params += [*same, value]
            same.append(value)
        elif not part.descending:
            params += same


def _mentions_key(shape: Shape) -> bool:
    return any(_mentions_key(part) if isinstance(part, tuple) else part == "key" for part in shape)
