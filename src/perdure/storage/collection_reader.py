"""Reading the records of one collection by key: what collections and queries share."""

from __future__ import annotations

from collections.abc import Awaitable, Iterable, Sequence
from datetime import datetime
from typing import Any, Generic, Protocol, TypeVar

import msgspec

from perdure.core import clock
from perdure.storage import record_keys
from perdure.storage.adapter import Capability
from perdure.storage.options import DEFAULT, Options
from perdure.storage.query import Query, Scalar, Summary
from perdure.storage.records import RecordType, type_of
from perdure.storage.rows import Delete, Put, Row

T = TypeVar("T", bound=msgspec.Struct)
R = TypeVar("R", bound=msgspec.Struct)


class Executor(Protocol):
    """Carries out the operations of a collection: the store, or a transaction in it."""

    @property
    def capabilities(self) -> frozenset[Capability]: ...
    async def ready(
        self, declared: RecordType[R], *, make: bool = True
    ) -> RecordType[R] | None: ...
    def now(self) -> int: ...
    async def read(self, name: str, keys: Sequence[str], options: Options) -> list[Row | None]: ...
    async def find(self, query: Query, options: Options) -> list[Row]: ...
    async def summarize(self, summary: Summary, options: Options) -> list[tuple[Scalar, ...]]: ...
    def write(
        self,
        writes: Sequence[Put | Delete],
        options: Options,
        absent: Sequence[tuple[str, str]] = (),
    ) -> Awaitable[list[int]]: ...
    async def remove(self, query: Query, options: Options) -> int: ...


class Stored(msgspec.Struct, Generic[T], frozen=True):
    """A record with its version and times."""

    key: str
    value: T
    version: int
    created_us: int
    updated_us: int
    _related: dict[type, list[Any]] = {}

    @property
    def created(self) -> datetime:
        return clock.to_datetime(self.created_us)

    @property
    def updated(self) -> datetime:
        return clock.to_datetime(self.updated_us)

    def related(self, cls: type[R]) -> list[R]:
        """The records that `QueryBuilder.include` loaded for this one."""
        return self._related.get(cls, [])


class CollectionReader(Generic[T]):
    """The records of one type, to be read."""

    def __init__(self, executor: Executor, cls: type[T]) -> None:
        self._executor = executor
        self._type = type_of(cls)
        self.declared = self._type
        self.name = self._type.name
        self._there = False

    async def get(self, key: str, options: Options = DEFAULT) -> T | None:
        found = await self.fetch(key, options)
        return None if found is None else found.value

    async def fetch(self, key: str, options: Options = DEFAULT) -> Stored[T] | None:
        keys = (record_keys.check(key),)
        if not self._there and not await self.is_there():
            return None
        (row,) = await self._executor.read(self.name, keys, options)
        return None if row is None else self.stored(row)

    async def get_many(self, wanted: Iterable[str], options: Options = DEFAULT) -> list[T | None]:
        checked = record_keys.check_many(wanted)
        if not self._there and not await self.is_there():
            return [None] * len(checked)
        rows = await self._executor.read(self.name, checked, options) if checked else []
        return [None if row is None else self.declared.decode(row) for row in rows]

    async def is_there(self) -> bool:
        """Whether the collection exists. Reading a missing one does not create it."""
        found = await self._executor.ready(self._type, make=False)
        if found is not None:
            self.declared, self._there = found, True
        return found is not None

    @property
    def executor(self) -> Executor:
        return self._executor

    def stored(self, row: Row) -> Stored[T]:
        return Stored(row.key, self.declared.decode(row), row.version, row.created, row.updated)
