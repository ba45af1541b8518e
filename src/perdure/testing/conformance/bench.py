"""What a check works with: adapters on the store under test, tables, processes, a clock.

A store under test may be in use. So a check keeps to collections ``perdure_kit_…``, keys of its own
and the year 1970: sweeping and trimming find nothing else. The bench deletes every key it gave out.
"""

from __future__ import annotations

import asyncio
import os
import sys
import uuid
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec

from perdure.core.clock import Clock
from perdure.core.errors import Closed, InvalidInput
from perdure.search.engine import SearchIndex, engine_of
from perdure.storage.adapter import Adapter, Capability
from perdure.storage.options import DEFAULT, Options
from perdure.storage.query import All, Condition, Query, Scalar, SortOrder
from perdure.storage.registry import adapter_for, factory_for
from perdure.storage.rows import (
    Batch,
    Check,
    Column,
    Delete,
    Delivered,
    Event,
    Index,
    Layout,
    Put,
    Row,
)
from perdure.testing.conformance.kit_index import KitIndex
from perdure.testing.manual_clock import ManualClock

COLUMNS = (Column("kind", "text"), Column("size", "integer"), Column("score", "real"))
_INDEXES = (Index(("kind",)), Index(("size",)), Index(("score", "created")))
_EVERYTHING = All(())
_DELETES = 500
_EVENTS = 1_000
#: Seconds within which a committed event must be readable, or a process must answer.
PATIENCE = 20.0


class KitTable:
    """A collection of the kit through one adapter; names are keys below the bench's own."""

    def __init__(self, bench: Bench, adapter: Adapter, layout: Layout) -> None:
        self.bench = bench
        self.adapter = adapter
        self.layout = layout

    def key(self, name: str) -> str:
        return self.bench.key(self.layout.name, name)

    def put(
        self,
        name: str,
        value: bytes = b"value",
        *,
        tags: Sequence[tuple[str, str]] = (),
        expires: int | None = None,
        expected: int | None = None,
        content_type: str = "application/octet-stream",
        schema: int = 1,
        checksum: int = 0,
        **columns: Scalar,
    ) -> Put:
        """Columns that are not named are NULL."""
        return Put(
            self.layout.name,
            self.key(name),
            value,
            content_type,
            schema,
            checksum,
            tuple(columns.get(column.name) for column in self.layout.columns),
            tuple(tags),
            expires,
            expected,
        )

    def delete(self, name: str, expected: int | None = None) -> Delete:
        return Delete(self.layout.name, self.key(name), expected)

    def check(self, name: str, version: int, created: int = 0) -> Check:
        return Check(self.layout.name, self.key(name), version, created)

    async def commit(
        self,
        *writes: Put | Delete,
        checks: Sequence[Check] = (),
        events: Sequence[Event] = (),
        options: Options = DEFAULT,
    ) -> list[int]:
        return await self.adapter.commit(Batch(writes, tuple(checks), tuple(events)), options)

    async def add(self, *writes: Put | Delete) -> None:
        """One commit at a time, the clock ticking: also where batches are not atomic."""
        for write in writes:
            self.bench.clock.tick()
            await self.commit(write)

    async def fill(self, *writes: Put | Delete) -> None:
        """In one batch where batches are atomic, else one by one."""
        if Capability.TRANSACTIONS in self.bench.capabilities:
            await self.commit(*writes)
        else:
            await self.add(*writes)

    async def get(self, name: str, options: Options = DEFAULT) -> Row | None:
        (row,) = await self.adapter.get(self.layout.name, [self.key(name)], options)
        return row

    async def value(self, name: str) -> bytes | None:
        row = await self.get(name)
        return None if row is None else row.value

    async def values(self, names: Sequence[str]) -> list[bytes | None]:
        keys = [self.key(name) for name in names]
        rows = await self.adapter.get(self.layout.name, keys, DEFAULT)
        return [None if row is None else row.value for row in rows]

    def query(self, where: Condition = _EVERYTHING, prefix: str = "", **parts: Any) -> Query:
        return Query(self.layout.name, where, self.bench.root + prefix, **parts)

    async def find(self, query: Query) -> list[str]:
        return [self.name(row) for row in await self.adapter.find(query, DEFAULT)]

    def name(self, row: Row) -> str:
        return row.key.removeprefix(self.bench.root)

    def mark(self, name: str, *values: Scalar) -> tuple[Scalar, ...]:
        """The `after` of a query that is ordered by columns with these values, then by key."""
        return (*values, self.bench.root + name)


class Process:
    """Another process on the store; see `perdure.testing.conformance.worker`."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self._process = process

    async def line(self) -> str:
        """The next line that it prints. Raises `ChildProcessError`, with its output, if it ends."""
        assert self._process.stdout is not None
        async with asyncio.timeout(PATIENCE):
            line = await self._process.stdout.readline()
            if not line:
                _, said = await self._process.communicate()
                last = said.decode(errors="replace").strip().rpartition("\n")[2]
                raise ChildProcessError(f"the other process ended: {last or 'without a word'}")
        return line.decode().strip()

    async def lines(self, count: int) -> list[str]:
        return [await self.line() for _ in range(count)]

    async def kill(self) -> list[str]:
        """Send SIGKILL. Returns the acknowledgements that were not read yet."""
        if self._process.returncode is None:
            self._process.kill()
        rest, _ = await self._process.communicate()
        # A last line without its end was cut off: it does not count as acknowledged.
        return rest.decode().split("\n")[:-1]


class Bench:
    """What one check works with; closed after it."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.clock = ManualClock()
        #: All keys of this check begin with this.
        self.root = f"kit-{uuid.uuid4().hex[:12]}/"
        self.capabilities = adapter_for(url, self.clock).capabilities
        self._adapters: list[Adapter] = []
        self._processes: list[Process] = []
        self._layouts: dict[str, Layout] = {}
        self._keys: dict[tuple[str, str], None] = {}
        self._emitted = False
        self._indexes: set[str] = set()

    async def open(self, clock: Clock | None = None) -> Adapter:
        """A new initialized adapter. Without `Capability.SHARED` it may be another store."""
        adapter = adapter_for(self.url, clock or self.clock)
        await adapter.initialize()
        self._adapters.append(adapter)
        return adapter

    async def reopen(self, adapter: Adapter) -> Adapter:
        await adapter.close()
        self._adapters.remove(adapter)
        return await self.open()

    async def table(self, adapter: Adapter | None = None) -> KitTable:
        layout = Layout(
            "perdure_kit_rows",
            COLUMNS,
            _INDEXES,
            expires=Capability.TTL in self.capabilities,
            tagged=Capability.TAGS in self.capabilities,
        )
        return await self.prepare(layout, adapter)

    async def plain_table(self, adapter: Adapter | None = None) -> KitTable:
        return await self.prepare(Layout("perdure_kit_plain"), adapter)

    async def prepare(self, layout: Layout, adapter: Adapter | None = None) -> KitTable:
        adapter = adapter or await self.open()
        if await adapter.prepare(layout):
            await adapter.activate(layout)  # rows of a run that was cut off: nobody asks for them
        self._layouts[layout.name] = layout
        return KitTable(self, adapter, layout)

    async def index(
        self, adapter: Adapter | None = None, fields: Sequence[str] = ("title", "body")
    ) -> KitIndex:
        """A search index for this check, erased after it."""
        declared = SearchIndex(f"perdure_{self.root[:-1].replace('-', '_')}", tuple(fields))
        self._indexes.add(declared.name)
        index = KitIndex(adapter or await self.open(), declared)
        index.made = await index.engine.prepare(declared)
        return index

    def key(self, collection: str, name: str) -> str:
        """A key for this check, deleted after it."""
        key = self.root + name
        self._keys[collection, key] = None
        return key

    def event(self, payload: bytes, key: str = "", topic: str = "perdure.kit") -> Event:
        self._emitted = True
        return Event(topic, self.root + key, payload)

    async def end(self, adapter: Adapter) -> str:
        position = ""
        while True:
            events, following = await adapter.events(position, _EVENTS)
            if not events and following == position:
                return position
            position = following

    async def events(
        self, adapter: Adapter, position: str, count: int, limit: int = _EVENTS
    ) -> tuple[list[Delivered], str]:
        """This check's events behind a position; waits until there are `count` of them."""
        found: list[Delivered] = []
        async with asyncio.timeout(PATIENCE):
            while len(found) < count:
                events, position = await adapter.events(position, limit)
                found += [event for event in events if event.key.startswith(self.root)]
                if not events:
                    await asyncio.sleep(0.005)
        return found, position

    async def spawn(self, task: str, tables: Sequence[KitTable], **details: Any) -> Process:
        job = {
            "task": task,
            "url": self.url,
            "factory": _importable(self.url),
            "time": self.clock(),
            "layouts": [msgspec.to_builtins(table.layout) for table in tables],
            **details,
        }
        path = os.pathsep.join(part or str(Path.cwd()) for part in sys.path)
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "perdure.testing.conformance.worker"),
            msgspec.json.encode(job).decode(),
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
            env={**os.environ, "PYTHONPATH": path},
        )
        self._processes.append(Process(process))
        return self._processes[-1]

    async def close(self) -> None:
        try:
            for process in self._processes:
                await process.kill()
            if self._keys or self._emitted or self._indexes:
                await self._clean_with_any()
        finally:
            await self._close_adapters()

    async def _clean_with_any(self) -> None:
        for adapter in self._adapters:
            try:
                await self._clean(adapter)
            except Closed:
                continue
            return
        await self._close_adapters()  # a second one may not be allowed beside them
        await self._clean(await self.open())

    async def _close_adapters(self) -> None:
        while self._adapters:
            await self._adapters.pop().close()

    async def _clean(self, adapter: Adapter) -> None:
        for layout in self._layouts.values():
            await adapter.prepare(layout)
        for index in self._indexes:
            await engine_of(adapter).erase(index)
        deletes = [Delete(*place) for place in self._keys if place[0] in self._layouts]
        size = _DELETES if Capability.TRANSACTIONS in self.capabilities else 1
        for start in range(0, len(deletes), size):
            await adapter.commit(Batch(tuple(deletes[start : start + size])), DEFAULT)
        if self._emitted:
            await adapter.trim(await self.end(adapter), self.clock() + 1)


def _importable(url: str) -> str:
    factory = factory_for(url)
    module, name = getattr(factory, "__module__", ""), getattr(factory, "__qualname__", "")
    if not name or "<" in name or module == "__main__":
        raise InvalidInput(
            f"Another process cannot import {name or factory!r} of the module {module!r}.",
            hint="Register a class or function at the top of a module that can be imported.",
        )
    return f"{module}:{name}"


def by(*columns: str) -> tuple[SortOrder, ...]:
    """An order; a leading minus means descending."""
    return tuple(SortOrder(column.removeprefix("-"), column.startswith("-")) for column in columns)
