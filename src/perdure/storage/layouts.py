"""How a collection is laid out in a backend: its columns and indexes."""

from __future__ import annotations

from collections.abc import Collection
from typing import Literal, TypeAlias

import msgspec

Kind: TypeAlias = Literal["text", "integer", "real"]


class Column(msgspec.Struct, frozen=True):
    """A declared index field: a real column in the table."""

    name: str
    kind: Kind


class Index(msgspec.Struct, frozen=True):
    """A database index over columns, in this order; ``created`` and ``updated`` are columns too.

    `where` makes it partial: only rows whose columns equal the given constants are in it.
    """

    columns: tuple[str, ...]
    where: tuple[tuple[str, str | int], ...] = ()


class Layout(msgspec.Struct, frozen=True):
    """How a collection is laid out in a backend."""

    name: str
    columns: tuple[Column, ...] = ()
    indexes: tuple[Index, ...] = ()
    #: Rows may carry an expiry time.
    expires: bool = False
    #: Rows may carry tags.
    tagged: bool = False
    #: The schema version whose records the columns are taken from. When it grows, every column has
    #: to be filled again: a migration may have changed what it holds.
    schema: int = 1

    def constants(self) -> frozenset[tuple[str, str | int]]:
        """The column values that partial indexes are made for."""
        return frozenset(pair for index in self.indexes for pair in index.where)

    def without(self, columns: Collection[str]) -> Layout:
        """The layout without these columns, and without the indexes that need them."""
        kept = tuple(
            index
            for index in self.indexes
            if not {*index.columns, *(name for name, _ in index.where)} & set(columns)
        )
        held = tuple(column for column in self.columns if column.name not in columns)
        return msgspec.structs.replace(self, columns=held, indexes=kept)


class Staleness(msgspec.Struct, frozen=True):
    """Which columns of a collection cannot be trusted, and which of them are wanted."""

    stale: frozenset[str]
    missing: frozenset[str]

    @classmethod
    def after(
        cls, before: Layout, stale: frozenset[str], layout: Layout, *, empty: bool
    ) -> Staleness:
        """What changes when a collection goes from one layout to another.

        A column that is no longer declared becomes stale: code that does not know it does not
        maintain it, and code that declares it again has to fill it again.
        """
        held = {column for column in before.columns if column.name not in stale}
        if before.schema < layout.schema:
            held = set()
        wanted = {column.name for column in layout.columns}
        dropped = {column.name for column in held} - wanted
        missing = {column.name for column in layout.columns if column not in held}
        if empty:
            missing = set()
        remaining = (stale | dropped | missing) - (wanted - missing)
        return cls(frozenset(remaining), frozenset(missing))
