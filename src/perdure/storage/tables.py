"""What the table of a collection holds, and how it comes to hold what is declared now.

Tables are changed while they are in use, also by processes that run another declaration: older
ones, which do not know a column that was added; ones of an older schema, which compute a column in
another way. Their writes leave a column empty, or as it was for another version of the row. So that
this can be seen and mended, a column that is added to a table gets a *mark*: a second column which
tells, row by row, for which version and schema the first was computed::

    (_created + _version) * 1024 + schema

Whoever knows the column sets the mark in the same statement. Where the mark is another one the row
is *unfilled*, and a process that knows the column computes it: see `filling`. A partial index holds
the unfilled rows, so that looking for them costs nothing when there are none. The time of creation
is in it because a row that expired is followed by one that counts its versions anew.

Columns that are there from the start, and that everybody has known since, have no mark and cost
nothing. They get one when somebody opens the collection with a declaration that lacks them.

What is no longer declared is kept for a day, in case it only looks so because old code was started:
a column with its mark, an index. Code that declares it, in that time, says so by `prepare`.

Not guaranteed: a query misses a row, or finds it by an old value, from the moment in which code of
another declaration writes it until it is filled. Fields whose column changes its kind (from number
to text, say) cannot be written by old code meanwhile on PostgreSQL.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import msgspec

from perdure.core.clock import SECOND
from perdure.storage.rows import Column, Index, Kind, Layout

#: Microseconds for which is kept what somebody does not declare.
KEPT = 24 * 60 * 60 * SECOND
#: What fits into 64 bits: schemas, and times for the next hundred years whatever a clock says.
_SCHEMAS = 1024
_TIMES = 2**52 - 1


class Held(msgspec.Struct, frozen=True):
    """A column of a table."""

    kind: Kind
    #: The schema that its values are taken from.
    schema: int
    marked: bool = False
    #: Not every row was filled yet: nobody relies on it.
    stale: bool = False
    #: When it was first missed in a declaration, if it is not in the latest; else 0.
    missed: int = 0


class Built(msgspec.Struct, frozen=True):
    """A database index: its definition, and the declared columns it is over."""

    #: What follows the table's name in CREATE INDEX.
    sql: str
    columns: tuple[str, ...] = ()
    missed: int = 0


class Prepared(msgspec.Struct, frozen=True):
    """A collection as one declaration uses it."""

    #: As declared; but what rows may have, expiry and tags, is in it whether declared or not.
    layout: Layout
    #: Its columns that have a mark.
    marked: tuple[str, ...] = ()
    #: Its columns that have to be filled.
    missing: frozenset[str] = frozenset()
    #: The names of its indexes that have to be built.
    unbuilt: tuple[str, ...] = ()


class TableState(msgspec.Struct, frozen=True):
    """What a table holds. Kept in the store with its collection's `Layout`."""

    columns: dict[str, Held] = {}
    indexes: dict[str, Built] = {}

    @classmethod
    def of(cls, layout: Layout, indexes: Mapping[str, Built]) -> TableState:
        """A table that was made for this layout, with these indexes."""
        columns = {column.name: Held(column.kind, layout.schema) for column in layout.columns}
        return cls(columns, dict(indexes))

    def stale(self) -> frozenset[str]:
        """The columns that not every row holds."""
        return frozenset(name for name, held in self.columns.items() if held.stale)

    def kept_up(self, layout: Layout) -> dict[str, Held]:
        """The columns of a declaration that are of its schema.

        Those of a newer one are none of its business: what it writes there is mended by others.
        """
        mine = {column.name: self.columns[column.name] for column in layout.columns}
        return {name: held for name, held in mine.items() if held.schema == layout.schema}

    def marked(self, layout: Layout) -> tuple[str, ...]:
        """Those columns of a declaration whose marks it sets."""
        return tuple(name for name, held in self.kept_up(layout).items() if held.marked)

    def missing(self, layout: Layout) -> frozenset[str]:
        """Those columns of a declaration that have to be filled."""
        return frozenset(name for name, held in self.kept_up(layout).items() if held.stale)

    def activated(self, layout: Layout) -> TableState:
        """The table when every row holds every column of this declaration."""
        filled = {
            name: msgspec.structs.replace(held, stale=False)
            for name, held in self.kept_up(layout).items()
        }
        return msgspec.structs.replace(self, columns=self.columns | filled)

    def suits(self, prepared: Prepared, indexes: Iterable[str]) -> bool:
        """Whether this is still as it was prepared for a declaration that wants these indexes."""
        layout = prepared.layout
        return (
            all(column.name in self.columns for column in layout.columns)
            and not self.missing(layout)
            and not any(self.columns[column.name].missed for column in layout.columns)
            and all(label in self.indexes and not self.indexes[label].missed for label in indexes)
            and self.marked(layout) == prepared.marked
        )

    def with_index(self, label: str, built: Built) -> TableState:
        return msgspec.structs.replace(self, indexes=self.indexes | {label: built})


class Plan(msgspec.Struct, frozen=True):
    """What to do with a table so that it suits a declaration."""

    #: As it is afterwards; indexes that are still to be built are not in it.
    table: TableState
    #: Columns to add; those to remove before, with their marks, because they have another kind.
    add: tuple[Column, ...] = ()
    replace: tuple[str, ...] = ()
    #: Columns whose mark is to be added.
    mark: tuple[str, ...] = ()
    #: Indexes to drop, before anything else.
    drop: tuple[str, ...] = ()

    def wanting(self, before: TableState, wanted: Mapping[str, Built], moment: int) -> Plan:
        """The same, if the declaration wants these indexes, by name."""
        now = self.table.columns
        gone = {name for name, held in now.items() if _is_over(held.missed, moment)}
        # An index of rows that are unfilled would be filled with all rows when the schema grows.
        gone |= {name for name, held in before.columns.items() if held.schema < now[name].schema}
        kept: dict[str, Built] = {}
        drop: list[str] = []
        for label, built in before.indexes.items():
            over = set(built.columns)
            if label in wanted:
                missed = 0
                bad = built.sql != wanted[label].sql or not over.isdisjoint(self.replace)
            else:
                missed = built.missed or moment
                bad = _is_over(missed, moment) or not over.isdisjoint({*gone, *self.replace})
            if bad:
                drop.append(label)
            else:
                kept[label] = msgspec.structs.replace(built, missed=missed)
        table = msgspec.structs.replace(self.table, indexes=kept)
        return msgspec.structs.replace(self, table=table, drop=tuple(drop))


def plan(before: TableState, layout: Layout, moment: int, *, empty: bool) -> Plan:
    """How to bring the columns of a table to a declaration; `Plan.wanting` adds its indexes.

    In an `empty` one there is nothing to fill.
    """
    declared = {column.name for column in layout.columns}
    columns = {
        name: known if name in declared else _missed(known, moment)
        for name, known in before.columns.items()
    }
    add, replace = [], []
    for column in layout.columns:
        known = columns.get(column.name)
        if known is None or known.kind != column.kind:
            add.append(column)
            replace += [column.name] if known is not None else []
            columns[column.name] = Held(column.kind, layout.schema, marked=True, stale=not empty)
        else:
            columns[column.name] = _declared(known, layout.schema, empty=empty)
    mark = tuple(
        name
        for name, held in columns.items()
        if held.marked
        and (name in replace or name not in before.columns or not before.columns[name].marked)
    )
    return Plan(TableState(columns, before.indexes), tuple(add), tuple(replace), mark)


def _declared(held: Held, schema: int, *, empty: bool) -> Held:
    """A column that is there and declared."""
    if held.schema < schema:
        held = msgspec.structs.replace(held, schema=schema, marked=True, stale=True)
    return msgspec.structs.replace(held, stale=held.stale and not empty, missed=0)


def _missed(held: Held, moment: int) -> Held:
    """A column that is not declared: others may go on using it, but it is no longer kept up."""
    missed = held.missed or moment
    stale = held.stale or not held.marked or _is_over(missed, moment)
    return msgspec.structs.replace(held, marked=True, stale=stale, missed=missed)


def _is_over(missed: int, moment: int) -> bool:
    return bool(missed) and moment - missed > KEPT


def as_declared(layout: Layout, before: Layout) -> Layout:
    """A declaration, and what rows have though it is not declared: an expiry or tags."""
    return msgspec.structs.replace(
        layout, expires=layout.expires or before.expires, tagged=layout.tagged or before.tagged
    )


def merged(before: Layout, layout: Layout, table: TableState) -> Layout:
    """The layout of a table for those who look at all of it, not only at what they declare."""
    declared = {column.name for column in layout.columns}
    others = tuple(
        Column(name, held.kind) for name, held in table.columns.items() if name not in declared
    )
    kept = tuple(index for index in before.indexes if index not in layout.indexes)
    return msgspec.structs.replace(
        as_declared(layout, before),
        columns=layout.columns + others,
        indexes=layout.indexes + tuple(index for index in kept if _is_kept(index, table)),
        schema=max(layout.schema, before.schema),
    )


def _is_kept(index: Index, table: TableState) -> bool:
    return any(set(built.columns) == columns_of(index) for built in table.indexes.values())


def columns_of(index: Index) -> set[str]:
    """The declared columns that an index needs."""
    named = {*index.columns, *(name for name, _ in index.where)}
    return named - {"created", "updated", "key", "version"}


# As SQL -------------------------------------------------------------------------------------------


def mark_of(column: str) -> str:
    """The name of a column's mark. No declared column begins with an underscore."""
    return f'"_filled_{column}"'


def mark(schema: int, created: str = "_created", version: str = "_version") -> str:
    """What the mark of a row's columns has to be."""
    return f"(({created} + {version}) & {_TIMES}) * {_SCHEMAS} + {schema % _SCHEMAS}"


def first_mark(schema: int, created: int) -> int:
    """The same for the first version of a row."""
    return ((created + 1) & _TIMES) * _SCHEMAS + schema % _SCHEMAS
