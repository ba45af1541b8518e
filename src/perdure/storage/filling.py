"""Filling columns: how a collection that is in use gets an index.

When a column is missing, because it was declared since or because its schema grew, every row is
read, migrated and its columns written, a page at a time; then the database's indexes are built and
the column is trusted. Meanwhile records are read and written as ever. Only queries over columns
that are missing wait, in each process that declares them. Whoever is interrupted leaves what it
has filled; the next process that uses the collection goes on.

Processes that run an older declaration can go on, too. What they write lacks the column, and the
store can tell (see `tables`): `Filling.refill` fills those rows, and is to be called every few
seconds. Until then queries by that column miss them, or find them by what was there before.

A row that cannot be read by this code is left out and logged. It is tried again after a minute, and
by the next process.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Protocol

from perdure.core.errors import PerdureError
from perdure.storage.adapter import Adapter
from perdure.storage.concurrency import Pace
from perdure.storage.options import Options
from perdure.storage.records import RecordType
from perdure.storage.row_rewrites import Failure, plain_rows
from perdure.storage.rows import Fill, Row

_log = logging.getLogger(__name__)
#: Rows on a page.
_PAGE = 50
#: Seconds after which rows that could not be filled are tried again.
_AGAIN = 60.0


class Host(Protocol):
    """What is needed of a store."""

    @property
    def adapter(self) -> Adapter: ...
    @property
    def declared(self) -> dict[str, RecordType[Any]]: ...
    async def read(self, name: str, keys: Sequence[str], options: Options) -> list[Row | None]: ...


class _Work:
    """The filling of one collection, under way."""

    def __init__(self, declared: RecordType[Any], missing: frozenset[str]) -> None:
        self.declared = declared
        self.missing = missing
        self.task: asyncio.Task[None] | None = None


class Filling:
    """What a store does about columns that rows lack."""

    def __init__(self, host: Host, progress: Callable[[str, int, int], None] | None) -> None:
        self._host = host
        self._progress = progress
        #: Rows that could not be filled, by collection and key, since this moment.
        self._failed: set[tuple[str, str]] = set()
        self._failed_since = time.monotonic()
        #: Collections with columns that queries cannot rely on yet.
        self.works: dict[str, _Work] = {}

    def begin(self, declared: RecordType[Any], missing: frozenset[str]) -> None:
        """Fill these columns, in the background, if there are any."""
        if missing:
            self._start(_Work(declared, missing))

    async def wait(self, collection: str, columns: Iterable[str] | None = None) -> None:
        """Return when these columns can be relied on; without any, when all can.

        Raises what went wrong with filling them, if it did; the next call tries again.
        """
        while True:
            work = self.works.get(collection)
            if work is None or (columns is not None and work.missing.isdisjoint(columns)):
                return None
            task = work.task
            if task is None or task.done():
                task = self._start(work)
            await asyncio.wait([task])
            if not task.cancelled():  # else it was put off, and is wanted nevertheless
                return task.result()

    async def put_off(self, collection: str) -> None:
        """Leave columns unfilled until somebody asks for them: they may be filled otherwise."""
        work = self.works.get(collection)
        if work is not None and work.task is not None and not work.task.done():
            work.task.cancel()
            await asyncio.wait([work.task])

    async def refill(self) -> int:
        """Fill rows that others have written without our columns; returns how many."""
        if time.monotonic() - self._failed_since >= _AGAIN:
            self._failed.clear()
            self._failed_since = time.monotonic()
        filled = 0
        for name, declared in list(self._host.declared.items()):
            if work := self.works.get(name):
                if work.task is not None and work.task.done() and not work.task.cancelled():
                    await self.wait(name)  # it failed: once more
                continue
            if not declared.layout.columns:
                continue
            adapter = self._host.adapter
            if not await adapter.is_prepared(declared.layout):
                missing = await adapter.prepare(declared.layout)
                self.begin(declared, missing or frozenset())
                await self.wait(name)
            else:
                filled += await self._fill(declared)
        return filled

    async def close(self) -> None:
        """Stop. What was filled stays so."""
        tasks = [work.task for work in self.works.values() if work.task is not None]
        self.works.clear()
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)

    # ------------------------------------------------------------------------------------------

    def _start(self, work: _Work) -> asyncio.Task[None]:
        name = work.declared.name
        self.works[name] = work
        work.task = asyncio.create_task(self._carry_out(work), name=f"filling {name}")
        work.task.add_done_callback(_tell)
        return work.task

    async def _carry_out(self, work: _Work) -> None:
        declared = work.declared
        await self._fill(declared, self._progress)
        await self._host.adapter.activate(declared.layout)
        # What old code has written since its page was filled.
        await self._fill(declared)
        if self.works.get(declared.name) is work:
            del self.works[declared.name]

    async def _fill(
        self,
        declared: RecordType[Any],
        progress: Callable[[str, int, int], None] | None = None,
    ) -> int:
        """Fill the rows that lack a column; returns how many."""
        name, pace = declared.name, Pace()
        filled = seen = 0
        position = ""
        while True:
            keys, position = await self._next(name, position)
            if not keys:
                return filled
            wanted = [key for key in keys if (name, key) not in self._failed]
            fills: list[Fill] = []
            for row in await plain_rows(self._host.read, name, wanted):
                fills += self._filled(declared, row)
                await pace.breathe()
            if fills:
                await self._host.adapter.fill(name, fills)
            self._failed |= {(name, key) for key in wanted} - {(name, fill.key) for fill in fills}
            filled += len(fills)
            seen += len(keys)
            if progress is not None:
                progress(f"indexing {name}", seen, 0)

    async def _next(self, name: str, position: str) -> tuple[list[str], str]:
        adapter = self._host.adapter
        found = await adapter.unfilled(name, position, _PAGE)
        if found is not None:
            return found
        keys = [row.key for row in await adapter.salvage(name, position, _PAGE)]
        return keys, keys[-1] if keys else position

    def _filled(self, declared: RecordType[Any], row: Row | Failure) -> list[Fill]:
        try:
            if isinstance(row, Failure):
                _log.warning("not indexed: %s", row.what)
                return []
            columns = declared.columns(declared.decode(row))
        except PerdureError as exc:
            # It cannot be read by this code, so no query of this code needs to find it.
            _log.warning("not indexed: %s", exc)
            return []
        return [Fill(row.key, row.version, row.created, columns)]


def _tell(task: asyncio.Task[None]) -> None:
    """Log what nobody may be waiting for."""
    if not task.cancelled() and (exc := task.exception()):
        _log.warning("%s failed: %s", task.get_name(), exc)
