"""The in-memory backend: the reference for all others.

Keeps everything in dictionaries for as long as the adapter lives. Every operation runs without an
await, so it is atomic on its event loop.
"""

from __future__ import annotations

from abc import abstractmethod
from bisect import bisect_left, bisect_right, insort
from collections.abc import AsyncIterator, Iterable, Iterator, Sequence
from contextlib import asynccontextmanager
from itertools import islice
from typing import Any, ClassVar

import msgspec

from perdure.core.clock import Clock, now
from perdure.core.errors import Closed, Conflict
from perdure.storage import record_keys
from perdure.storage.adapter import (
    Adapter,
    Capability,
    Snapshot,
    newer_schema,
    no_collection,
    not_empty,
)
from perdure.storage.extension import Extension, Extensions
from perdure.storage.options import Options
from perdure.storage.query import Figure, Query, Scalar, Summary, is_after, matches, sort_key
from perdure.storage.rows import (
    Batch,
    Check,
    Column,
    Delete,
    Delivered,
    Fill,
    Layout,
    Put,
    Recode,
    Row,
    RowCopy,
    Size,
)
from perdure.storage.snapshots import HeldCollection, HeldSnapshot


class _Entry:
    """A row with the parts of it that queries look at."""

    __slots__ = ("columns", "layout", "row", "tags")

    def __init__(
        self,
        row: Row,
        layout: Layout,
        columns: tuple[Scalar, ...],
        tags: tuple[tuple[str, str], ...],
    ) -> None:
        self.row = row
        self.tags = tags
        self.fill(layout, columns)

    def fill(self, layout: Layout, columns: tuple[Scalar, ...]) -> None:
        """Set the columns to what they are in this layout."""
        self.layout = layout
        names = [column.name for column in layout.columns]
        self.columns = dict(zip(names, columns, strict=True))

    def lacks(self, column: Column, schema: int) -> bool:
        """Whether code wrote it that does not know the column, or computes it otherwise."""
        return column not in self.layout.columns or self.layout.schema < schema

    def column(self, name: str) -> Scalar:
        match name:
            case "key":
                return self.row.key
            case "created":
                return self.row.created
            case "updated":
                return self.row.updated
            case "version":
                return self.row.version
            case _:
                return self.columns.get(name)


class _Collection:
    def __init__(self, layout: Layout) -> None:
        self.layout = layout
        self.entries: dict[str, _Entry] = {}
        self.keys: list[str] = []

    def unfilled(self) -> frozenset[str]:
        """The declared columns that some rows lack."""
        schema = self.layout.schema
        return frozenset(
            column.name
            for column in self.layout.columns
            if any(entry.lacks(column, schema) for entry in self.entries.values())
        )

    def insert(self, entry: _Entry) -> None:
        key = entry.row.key
        if key not in self.entries:
            insort(self.keys, key)
        self.entries[key] = entry

    def drop(self, key: str) -> bool:
        if self.entries.pop(key, None) is None:
            return False
        del self.keys[bisect_left(self.keys, key)]
        return True

    def within(self, prefix: str) -> Iterator[_Entry]:
        first = bisect_left(self.keys, prefix)
        end = record_keys.after_prefix(prefix)
        last = len(self.keys) if end is None else bisect_left(self.keys, end)
        for key in self.keys[first:last]:
            yield self.entries[key]


class MemoryExtension(Extension):
    """What takes part in the commits of a store in memory; see `perdure.storage.extension`."""

    @abstractmethod
    def apply(self, changes: Sequence[Any]) -> None:
        """Apply checked changes. Cannot fail."""

    @abstractmethod
    def clear(self) -> None:
        """Remove everything: the store holds other rows now."""


class MemoryAdapter(Adapter):
    """Everything in this process, nothing on disk."""

    system: ClassVar[str] = "memory"
    capabilities: ClassVar[frozenset[Capability]] = frozenset(
        {
            Capability.VERSIONS,
            Capability.LISTING,
            Capability.TTL,
            Capability.TRANSACTIONS,
            Capability.QUERY,
            Capability.TAGS,
            Capability.AGGREGATE,
            Capability.OUTBOX,
            Capability.ERASURE,
            Capability.SNAPSHOTS,
            Capability.EXTENSIONS,
        }
    )

    def __init__(self, url: str = "memory://", clock: Clock = now) -> None:
        self._clock = clock
        self._extensions: Extensions[MemoryExtension] = Extensions(MemoryExtension)
        self._collections: dict[str, _Collection] = {}
        self._outbox: list[Delivered] = []
        self._last_event = 0
        self._closed = False

    async def initialize(self) -> None:
        self._closed = False

    async def close(self) -> None:
        self._closed = True

    def attach(self, extension: Extension) -> None:
        self._extensions.attach(extension)

    def extension(self, name: str) -> Extension | None:
        return self._extensions.attached.get(name)

    async def prepare(self, layout: Layout, *, make: bool = True) -> frozenset[str]:
        self.check_open()
        known = self._collections.setdefault(layout.name, _Collection(layout))
        known.layout = layout
        return known.unfilled()

    async def fill(self, collection: str, fills: Sequence[Fill]) -> None:
        target = self._collection(collection)
        for fill in fills:
            entry = target.entries.get(fill.key)
            if entry is None or (entry.row.version, entry.row.created) != (
                fill.version,
                fill.created,
            ):
                continue
            entry.fill(target.layout, fill.columns)

    async def unfilled(
        self, collection: str, position: str, limit: int
    ) -> tuple[list[str], str] | None:
        target = self._collection(collection)
        columns, schema = target.layout.columns, target.layout.schema
        later = target.keys[bisect_right(target.keys, position) :]
        lacking = (k for k in later if any(target.entries[k].lacks(c, schema) for c in columns))
        keys = list(islice(lacking, limit))
        return keys, keys[-1] if keys else position

    async def activate(self, layout: Layout) -> None:
        self._collection(layout.name)

    async def get(self, collection: str, keys: Sequence[str], options: Options) -> list[Row | None]:
        target = self._collection(collection)
        return [entry.row if (entry := self._live(target, key)) else None for key in keys]

    async def commit(self, batch: Batch, options: Options) -> list[int]:
        self.check_open()
        for check in batch.checks:
            self._check(check)
        for write in batch.writes:
            self._expect(write)
        parts = self._extensions.parts(batch.changes) if batch.changes else ()
        for extension, changes in parts:
            extension.check(changes)
        versions = [
            self._put(write) if isinstance(write, Put) else self._delete(write)
            for write in batch.writes
        ]
        for event in batch.events:
            self._last_event += 1
            self._outbox.append(
                Delivered(self._last_event, event.topic, event.key, event.payload, self._clock())
            )
        for extension, changes in parts:
            extension.apply(changes)
        return versions

    async def recode(
        self, collection: str, recodes: Sequence[Recode], checks: Sequence[Check]
    ) -> int:
        target = self._collection(collection)
        for check in checks:
            self._check(check)
        done = 0
        for recode in recodes:
            entry, was = target.entries.get(recode.row.key), recode.row
            if entry is None or _identity(entry.row) != _identity(was):
                continue
            schema = entry.row.schema if recode.schema is None else recode.schema
            if entry.row.schema > schema:
                continue
            entry.row = msgspec.structs.replace(
                entry.row,
                value=recode.value,
                content_type=recode.content_type,
                checksum=recode.checksum,
                schema=schema,
            )
            if recode.columns is not None:
                entry.fill(target.layout, recode.columns)
            if recode.tags is not None and target.layout.tagged:
                entry.tags = recode.tags
            done += 1
        return done

    @asynccontextmanager
    async def snapshot(self) -> AsyncIterator[Snapshot]:
        self.check_open()
        moment = self._clock()
        found = [_held(self._collections[name], moment) for name in sorted(self._collections)]
        yield HeldSnapshot(found, list(self._outbox), self._last_event)

    async def load(self, source: Snapshot, *, replace: bool = False) -> int:
        self.check_open()
        if not replace:
            self._check_empty()
        loaded: dict[str, _Collection] = {}
        for layout in await source.layouts():
            target = loaded[layout.name] = _Collection(layout)
            async for page in source.entries(layout.name):
                for entry in page:
                    held = _Entry(entry.row, layout, entry.columns, entry.tags)
                    target.entries[entry.row.key] = held
            target.keys = sorted(target.entries)
        events = [event async for page in source.events() for event in page]
        last = await source.last_event()
        if not replace:
            self._check_empty()  # others of this process may have written meanwhile
        self._collections, self._outbox = loaded, events
        for extension in self._extensions:
            extension.clear()
        self._last_event = max(self._last_event, last)
        return sum(len(target.entries) for target in loaded.values())

    async def scrub(self) -> None:
        self.check_open()  # what is deleted here is nowhere else

    async def find(self, query: Query, options: Options) -> list[Row]:
        order = query.total_order()
        found = list(self._matching(query))
        if order[0].column != "key" or order[0].descending:  # `_matching` goes in key order
            found.sort(key=lambda entry: sort_key(order, entry.column))
        if query.after is not None:
            mark = query.after
            found = [entry for entry in found if is_after(order, entry.column, mark)]
        end = None if query.limit is None else query.offset + query.limit
        return [entry.row for entry in found[query.offset : end]]

    async def summarize(self, summary: Summary, options: Options) -> list[tuple[Scalar, ...]]:
        groups: dict[tuple[Scalar, ...], list[_Entry]] = {} if summary.group else {(): []}
        for entry in self._matching(summary.query):
            group = tuple(entry.column(column) for column in summary.group)
            groups.setdefault(group, []).append(entry)
        ordered = sorted(groups, key=lambda group: [(part is not None, part) for part in group])
        return [
            (*group, *(_figure(kind, column, groups[group]) for kind, column in summary.figures))
            for group in ordered
        ]

    async def remove(self, query: Query, options: Options) -> int:
        target = self._collection(query.collection)
        return sum(target.drop(row.key) for row in await self.find(query, options))

    async def sweep(self, limit: int) -> int:
        self.check_open()
        moment = self._clock()
        swept = 0
        for target in self._collections.values():
            dead = [
                key
                for key, entry in target.entries.items()
                if entry.row.expires is not None and entry.row.expires <= moment
            ][: limit - swept]
            swept += sum(target.drop(key) for key in dead)
        return swept

    async def events(self, position: str, limit: int) -> tuple[list[Delivered], str]:
        self.check_open()
        after = _place(position)
        start = bisect_right(self._outbox, after, key=lambda event: event.id)
        found = self._outbox[start : start + limit]
        return found, str(found[-1].id) if found else position

    async def trim(self, position: str, before: int) -> int:
        self.check_open()
        last = _place(position)
        kept = [event for event in self._outbox if event.id > last or event.at >= before]
        trimmed = len(self._outbox) - len(kept)
        self._outbox = kept
        return trimmed

    async def sizes(self) -> list[Size]:
        self.check_open()
        return [
            Size(name, len(found.entries), sum(len(e.row.value) for e in found.entries.values()))
            for name, found in sorted(self._collections.items())
        ]

    def _check_empty(self) -> None:
        for name, target in self._collections.items():
            if any(self._live(target, key) for key in target.keys):
                raise not_empty(name)
        if self._outbox:
            raise not_empty("")

    def check_open(self) -> None:
        if self._closed:
            raise Closed("This store is closed.", hint="Open it again with perdure.open(…).")

    def _collection(self, name: str) -> _Collection:
        self.check_open()
        try:
            return self._collections[name]
        except KeyError:
            raise no_collection(name) from None

    def _live(self, target: _Collection, key: str) -> _Entry | None:
        entry = target.entries.get(key)
        if entry is None or (entry.row.expires is not None and entry.row.expires <= self._clock()):
            return None
        return entry

    def _matching(self, query: Query) -> Iterable[_Entry]:
        target = self._collection(query.collection)
        moment = self._clock()
        for entry in target.within(query.prefix):
            if entry.row.expires is not None and entry.row.expires <= moment:
                continue
            if matches(query.where, entry.column, entry.tags):
                yield entry

    def _check(self, check: Check) -> None:
        entry = self._live(self._collection(check.collection), check.key)
        found = entry.row.version if entry else 0
        if found != check.version or (entry and entry.row.created != check.created):
            raise Conflict(check.collection, check.key, expected=check.version, found=found)

    def _expect(self, write: Put | Delete) -> None:
        target = self._collection(write.collection)
        entry = self._live(target, write.key)
        found = entry.row.version if entry else 0
        if write.expected is not None and found != write.expected:
            raise Conflict(write.collection, write.key, expected=write.expected, found=found)
        if isinstance(write, Put):
            stored = target.entries.get(write.key)
            if stored is not None and stored.row.schema > write.schema:
                raise newer_schema(write.collection, write.key, stored.row.schema, write.schema)

    def _put(self, put: Put) -> int:
        target = self._collection(put.collection)
        entry = self._live(target, put.key)
        moment = self._clock()
        version = entry.row.version + 1 if entry else 1
        row = Row(
            put.key,
            put.value,
            put.content_type,
            put.schema,
            version,
            entry.row.created if entry else moment,
            moment,
            put.expires,
            put.checksum,
        )
        target.insert(_Entry(row, target.layout, put.columns, put.tags))
        return version

    def _delete(self, delete: Delete) -> int:
        self._collection(delete.collection).drop(delete.key)
        return 0


def _held(found: _Collection, moment: int) -> HeldCollection:
    """A copy of the rows that have not expired; rows are values, so copying the list is enough."""
    alive = [
        entry
        for entry in found.entries.values()
        if entry.row.expires is None or entry.row.expires > moment
    ]
    # Rows keep what they were written with, though it may no longer be declared.
    layout = msgspec.structs.replace(
        found.layout.without(found.unfilled()),
        expires=found.layout.expires or any(entry.row.expires for entry in alive),
        tagged=found.layout.tagged or any(entry.tags for entry in alive),
    )
    names = [column.name for column in layout.columns]
    entries = [
        RowCopy(entry.row, tuple([entry.columns.get(name) for name in names]), entry.tags)
        for entry in alive
    ]
    return HeldCollection(layout, entries)


def _place(position: str) -> int:
    """The event before a position; 0 for the beginning, and for other backends' positions."""
    return int(position) if position.isdecimal() else 0


def _identity(row: Row) -> tuple[int, int, int]:
    return row.version, row.created, row.checksum


def _figure(kind: Figure, column: str, entries: list[_Entry]) -> Scalar:
    if kind is Figure.COUNT and not column:
        return len(entries)
    values = [value for entry in entries if (value := entry.column(column)) is not None]
    if kind is Figure.COUNT:
        return len(values)
    if not values:
        return None
    compute: Any = {Figure.MIN: min, Figure.MAX: max, Figure.SUM: sum, Figure.AVG: _mean}[kind]
    figure: Scalar = compute(values)
    return figure


def _mean(values: list[Any]) -> Any:
    return sum(values) / len(values)
