"""Rows and operations on them: the plain values that cross the border to a backend."""

from __future__ import annotations

import zlib
from collections.abc import Collection
from typing import Literal, TypeAlias

import msgspec

from perdure.storage.extension import ExtensionChange
from perdure.storage.query import Scalar

#: Values above this are refused; they belong in the artifact store.
MAX_VALUE_BYTES = 16 * 1024 * 1024


class Row(msgspec.Struct, frozen=True, gc=False):
    """A stored row. Times are microseconds since 1970."""

    key: str
    value: bytes
    content_type: str
    schema: int
    version: int
    created: int
    updated: int
    expires: int | None
    checksum: int


class Put(msgspec.Struct, frozen=True, gc=False):
    """Write a row, new or not; checksum 0 is computed by the store. Columns as in `Layout`."""

    collection: str
    key: str
    value: bytes
    content_type: str
    schema: int
    checksum: int = 0
    columns: tuple[Scalar, ...] = ()
    tags: tuple[tuple[str, str], ...] = ()
    expires: int | None = None
    expected: int | None = None


def checksum(key: str, content_type: str, schema: int, value: bytes) -> int:
    """A row's checksum: over the value and everything needed to read it."""
    return zlib.crc32(value, zlib.crc32(f"{key}\0{content_type}\0{schema}".encode()))


class Delete(msgspec.Struct, frozen=True, gc=False):
    """Remove a row; no error if there is none, unless one was expected."""

    collection: str
    key: str
    expected: int | None = None


class Check(msgspec.Struct, frozen=True, gc=False):
    """The commit fails unless this row has this version (0: is absent) and creation time."""

    collection: str
    key: str
    version: int
    created: int = 0


class Event(msgspec.Struct, frozen=True):
    """An event, delivered to subscribers if and only if its transaction commits."""

    topic: str
    key: str
    payload: bytes


class Batch(msgspec.Struct, frozen=True):
    """All writes of one commit, all or nothing, at most one per key. Checks come first."""

    writes: tuple[Put | Delete, ...] = ()
    checks: tuple[Check, ...] = ()
    events: tuple[Event, ...] = ()
    changes: tuple[ExtensionChange, ...] = ()


class Delivered(msgspec.Struct, frozen=True):
    """A stored event. `id` is unique and, per key, grows in commit order."""

    id: int
    topic: str
    key: str
    payload: bytes
    at: int


class Fill(msgspec.Struct, frozen=True):
    """New column values for a row of this version and creation time, which stay."""

    key: str
    version: int
    created: int
    columns: tuple[Scalar, ...]


class Recode(msgspec.Struct, frozen=True):
    """New bytes for a row of the same version, creation time and checksum.

    With `schema`, `columns` and `tags` it is also brought to a newer schema; without, they stay.
    The store computes a checksum of 0.
    """

    row: Row
    value: bytes
    content_type: str
    checksum: int = 0
    schema: int | None = None
    #: In the order of `Layout.columns`.
    columns: tuple[Scalar, ...] | None = None
    #: All that it is to have. A collection without tags takes no notice of them.
    tags: tuple[tuple[str, str], ...] | None = None

    @property
    def new_schema(self) -> int:
        return self.row.schema if self.schema is None else self.schema


class RowCopy(msgspec.Struct, frozen=True, gc=False):
    """A row with everything that belongs to it: what a backup holds."""

    row: Row
    columns: tuple[Scalar, ...] = ()
    tags: tuple[tuple[str, str], ...] = ()


class Size(msgspec.Struct, frozen=True):
    """Rows of a collection, and bytes with its indexes where the backend can tell."""

    collection: str
    rows: int
    bytes: int | None


class Count(msgspec.Struct, frozen=True):
    """How many rows of a collection have this schema and this content type."""

    schema: int
    content_type: str
    rows: int


Kind: TypeAlias = Literal["text", "integer", "real"]


class Column(msgspec.Struct, frozen=True):
    """A declared index field: a real column in the table."""

    name: str
    kind: Kind


class Index(msgspec.Struct, frozen=True):
    """An index over columns; with `where`, only of rows whose columns equal the constants."""

    columns: tuple[str, ...]
    where: tuple[tuple[str, str | int], ...] = ()


class Layout(msgspec.Struct, frozen=True):
    """The columns and indexes of a collection in a backend."""

    name: str
    columns: tuple[Column, ...] = ()
    indexes: tuple[Index, ...] = ()
    expires: bool = False
    tagged: bool = False
    #: The schema version whose records the columns are taken from. When it grows, every column has
    #: to be filled again: a migration may have changed what it holds.
    schema: int = 1

    def constants(self) -> frozenset[tuple[str, str | int]]:
        return frozenset(pair for index in self.indexes for pair in index.where)

    def without(self, columns: Collection[str]) -> Layout:
        kept = tuple(
            index
            for index in self.indexes
            if not {*index.columns, *(name for name, _ in index.where)} & set(columns)
        )
        held = tuple(column for column in self.columns if column.name not in columns)
        return msgspec.structs.replace(self, columns=held, indexes=kept)
