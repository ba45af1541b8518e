"""Transactions: optimistic, buffered, one round trip.

A transaction collects its writes and remembers the version of everything it read. The commit sends
all of it to the backend, which checks the versions and applies the writes, or refuses. Nothing is
locked meanwhile.

* Reads by key and queries see committed records and the transaction's own writes. If anything it
  read was changed by others, the commit raises `Conflict` and nothing was written.
* Records that others *add* meanwhile, and that a query would have found, are no conflict.
* It reads from the primary, past caches and replicas.
* A transaction that only reads is not checked at the end.
* A cancelled commit is withdrawn or finished before `CancelledError` is raised.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any, Self, TypeVar

import msgspec

from perdure.core.errors import Conflict, InvalidInput, TooLarge, Unsupported
from perdure.storage import codecs, record_keys, record_references
from perdure.storage.adapter import Capability
from perdure.storage.collection import Collection
from perdure.storage.collection_reader import Executor
from perdure.storage.extension import ExtensionChange
from perdure.storage.options import DEFAULT, STRONG, Consistency, Options
from perdure.storage.query import Query, Scalar, Summary, columns_of, is_after, matches, sort_key
from perdure.storage.records import RecordType
from perdure.storage.rows import Batch, Check, Delete, Event, Layout, Put, Row

T = TypeVar("T", bound=msgspec.Struct)
_Place = tuple[str, str]  # collection, key

#: Events carry news, not content.
MAX_EVENT_BYTES = 1024 * 1024


class Transaction:
    """All or nothing, across collections. Made by `Store.transaction`."""

    def __init__(
        self,
        store: Executor,
        commit: Callable[[Batch, Options], Awaitable[list[int]]],
        declared: Mapping[str, RecordType[Any]],
        options: Options,
    ) -> None:
        self._store = store
        self._commit = commit
        self._declared = declared
        self._options = options
        self._writes: dict[_Place, Put | Delete] = {}
        self._seen: dict[_Place, Check] = {}
        self._absent: set[_Place] = set()
        self._events: list[Event] = []
        self._changes: list[ExtensionChange] = []
        self._callbacks: list[Callable[[], None]] = []
        self._versions: list[int] = []
        self._open = False

    async def __aenter__(self) -> Self:
        self._open = True
        return self

    async def __aexit__(self, kind: type[BaseException] | None, *exc: object) -> None:
        self._open = False
        if kind is None and (self._writes or self._events or self._changes):
            batch = Batch(
                tuple(self._writes.values()),
                self._checks(),
                tuple(self._events),
                tuple(self._changes),
            )
            try:
                self._versions = await self._commit(batch, self._options)
            except Conflict as conflict:
                raise record_references.clarified(conflict) from None
        if kind is None:
            for callback in self._callbacks:
                callback()

    def collection(self, cls: type[T]) -> Collection[T]:
        return Collection(self, cls)

    def emit(self, topic: str, payload: object = None, *, key: str = "") -> None:
        """Emitted if and only if this commits; in commit order for each key."""
        self._check_open()
        for text in (topic, key):
            record_keys.check_indexed(text, "topic" if text is topic else "key")
        if not topic:
            raise InvalidInput("An event needs a topic.", hint='Write emit("note.added", …).')
        data = codecs.BY_NAME["msgpack"].encode(payload)
        if len(data) > MAX_EVENT_BYTES:
            raise TooLarge(
                f"The event {topic!r} takes {len(data):,} bytes; {MAX_EVENT_BYTES:,} is the limit.",
                hint="Store the content as a record or an artifact, and send its key.",
            )
        self._events.append(Event(topic, key, data))

    def include(self, *changes: ExtensionChange) -> None:
        """Change the data of an extension, such as search, if and only if this commits."""
        self._check_open()
        self._changes += changes

    def after_commit(self, callback: Callable[[], None]) -> None:
        """Call this after the commit, unless the process dies: use an event if it must run."""
        self._check_open()
        self._callbacks.append(callback)

    def expect(self, collection: str, key: str, version: int, created: int) -> None:
        """The commit fails unless the record still has this version and creation time (in µs)."""
        self._check_open()
        self._seen.setdefault((collection, key), Check(collection, key, version, created))

    def version(self, collection: str, key: str) -> int:
        """The version that a record got by this commit. Only afterwards."""
        return self._versions[list(self._writes).index((collection, key))]

    @asynccontextmanager
    async def savepoint(self) -> AsyncIterator[None]:
        """An error undoes its writes and events; catch it outside, and the rest still commits."""
        self._check_open()
        writes, events, callbacks = dict(self._writes), len(self._events), len(self._callbacks)
        changes = len(self._changes)
        try:
            yield
        except BaseException:
            self._writes = writes
            del self._events[events:]
            del self._changes[changes:]
            del self._callbacks[callbacks:]
            raise

    @property
    def capabilities(self) -> frozenset[Capability]:
        return self._store.capabilities

    def now(self) -> int:
        return self._store.now()

    async def ready(self, declared: RecordType[T], *, make: bool = True) -> RecordType[T] | None:
        self._check_open()
        # That something is not there is checked at the end, and for that the collection must be.
        return await self._store.ready(declared)

    async def read(self, name: str, wanted: Sequence[str], options: Options) -> list[Row | None]:
        self._check_open()
        asked = [key for key in wanted if (name, key) not in self._writes]
        rows = await self._store.read(name, asked, _primary(options)) if asked else []
        for key, row in zip(asked, rows, strict=True):
            self._saw(name, key, row)
        found = dict(zip(asked, rows, strict=True))
        return [
            _as_row(self._writes[name, key], self.now())
            if (name, key) in self._writes
            else found[key]
            for key in wanted
        ]

    async def find(self, query: Query, options: Options) -> list[Row]:
        own = [write for place, write in self._writes.items() if place[0] == query.collection]
        # Each of our writes can hide one row that would have been on the page.
        asked = query
        if own:
            limit = None if query.limit is None else query.limit + query.offset + len(own)
            asked = msgspec.structs.replace(query, limit=limit, offset=0)
        rows = await self._store.find(asked, _primary(options))
        for row in rows:
            self._saw(query.collection, row.key, row)
        if not own:
            return rows
        return self._overlay(query, rows, own, await self._births(query, own, options))

    async def summarize(self, summary: Summary, options: Options) -> list[tuple[Scalar, ...]]:
        if any(collection == summary.query.collection for collection, _ in self._writes):
            raise Unsupported(
                f"This transaction has written to {summary.query.collection!r}, and the database"
                " cannot count what is not committed.",
                hint="Count before you write, or execute the query and count its results.",
            )
        return await self._store.summarize(summary, _primary(options))

    async def write(
        self,
        writes: Sequence[Put | Delete],
        options: Options,
        absent: Sequence[tuple[str, str]] = (),
    ) -> list[int]:
        self._check_open()
        self._absent.update(absent)
        for write in writes:
            place = (write.collection, write.key)
            before = self._writes.get(place)
            if before is not None:
                # Nothing is the right thing to expect of what we have deleted ourselves.
                gone = isinstance(before, Delete) and write.expected == 0
                if write.expected is not None and not gone:
                    raise InvalidInput(
                        f"{write.collection}/{write.key} was already written in this transaction.",
                        hint="Expect a version at the first write only.",
                    )
                write = msgspec.structs.replace(write, expected=before.expected)  # noqa: PLW2901
            self._writes[place] = write
        return [0] * len(writes)

    async def remove(self, query: Query, options: Options) -> int:
        rows = await self.find(query, options)
        await self.write([Delete(query.collection, row.key) for row in rows], options)
        return len(rows)

    def _check_open(self) -> None:
        if not self._open:
            raise InvalidInput(
                "This transaction has ended, or was not begun.",
                hint="Use it inside its `async with` block.",
            )

    def _checks(self) -> tuple[Check, ...]:
        if not self._absent:
            return tuple(self._seen.values())
        # What we write ourselves need not be empty before: the write makes it as it should be.
        absent = {place: Check(*place, 0) for place in self._absent if place not in self._writes}
        # And what must not be there must not, even if this transaction has seen it.
        return tuple({**self._seen, **absent}.values())

    def _saw(self, name: str, key: str, row: Row | None) -> None:
        version, created = (row.version, row.created) if row is not None else (0, 0)
        # The first look counts: a later one that differs means that somebody wrote in between.
        self._seen.setdefault((name, key), Check(name, key, version, created))

    async def _births(
        self, query: Query, own: list[Put | Delete], options: Options
    ) -> dict[str, int]:
        looked_at = {part.column for part in query.order} | columns_of(query.where)
        if "created" not in looked_at:
            return {}
        keys_written = [write.key for write in own]
        rows = await self._store.read(query.collection, keys_written, _primary(options))
        return {row.key: row.created for row in rows if row is not None}

    def _overlay(
        self, query: Query, rows: list[Row], own: list[Put | Delete], births: dict[str, int]
    ) -> list[Row]:
        declared = self._declared[query.collection]
        layout, moment = declared.layout, self.now()
        order = query.total_order()
        hidden = {write.key for write in own}
        entries = [
            (row, _columns(layout, declared.columns(declared.decode(row)), row))
            for row in rows
            if row.key not in hidden
        ]
        for write in own:
            row = _as_row(write, moment, births.get(write.key))
            if row is None or not isinstance(write, Put) or not row.key.startswith(query.prefix):
                continue
            columns = _columns(layout, write.columns, row)
            if not matches(query.where, columns.__getitem__, write.tags):
                continue
            if query.after is None or is_after(order, columns.__getitem__, query.after):
                entries.append((row, columns))
        entries.sort(key=lambda entry: sort_key(order, entry[1].__getitem__))
        end = None if query.limit is None else query.offset + query.limit
        return [row for row, _ in entries[query.offset : end]]


def _primary(options: Options) -> Options:
    if options is DEFAULT:
        return STRONG
    return msgspec.structs.replace(options, consistency=Consistency.STRONG, max_staleness=None)


def _as_row(write: Put | Delete, moment: int, created: int | None = None) -> Row | None:
    if isinstance(write, Delete):
        return None
    return Row(
        write.key,
        write.value,
        write.content_type,
        write.schema,
        0,
        moment if created is None else created,
        moment,
        write.expires,
        0,
    )


def _columns(layout: Layout, values: Sequence[Scalar], row: Row) -> dict[str, Scalar]:
    names = [column.name for column in layout.columns]
    return dict(
        zip(names, values, strict=True),
        key=row.key,
        created=row.created,
        updated=row.updated,
        version=row.version,
    )
