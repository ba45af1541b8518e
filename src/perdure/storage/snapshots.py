"""Snapshots held in memory, or wrapped around another one."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from contextlib import asynccontextmanager
from typing import TypeVar

import msgspec

from perdure.storage.adapter import Snapshot
from perdure.storage.rows import Delivered, Layout, RowCopy

T = TypeVar("T")

#: A page ends with the row that reaches either.
PAGE_BYTES = 1024 * 1024
PAGE_ROWS = 2_000


@asynccontextmanager
async def closing(pages: AsyncIterator[T]) -> AsyncIterator[AsyncIterator[T]]:
    """Close a generator with the block, so that it releases its resources at once."""
    try:
        yield pages
    finally:
        close = getattr(pages, "aclose", None)
        if close is not None:
            await close()


def tag_pairs(tags: Iterable[str]) -> tuple[tuple[str, str], ...]:
    split = (text.partition("=") for text in tags)
    return tuple([(name, value) for name, _, value in split])


class HeldCollection(msgspec.Struct, frozen=True):
    """A collection with all its rows."""

    layout: Layout
    entries: Sequence[RowCopy]


class HeldSnapshot(Snapshot):
    """A snapshot wholly in memory: the in-memory backend's, and one for tests."""

    def __init__(
        self,
        collections: Sequence[HeldCollection],
        events: Sequence[Delivered] = (),
        last_event: int = 0,
    ) -> None:
        self._collections = {held.layout.name: held for held in collections}
        self._events = events
        self._last_event = max([last_event, *(event.id for event in events)])

    async def layouts(self) -> list[Layout]:
        return [self._collections[name].layout for name in sorted(self._collections)]

    async def count(self, collection: str) -> int:
        return len(self._collections[collection].entries)

    async def entries(self, collection: str) -> AsyncIterator[list[RowCopy]]:
        for page in _pages(self._collections[collection].entries):
            yield page

    async def events(self) -> AsyncIterator[list[Delivered]]:
        for page in _pages(self._events):
            yield page

    async def last_event(self) -> int:
        return self._last_event


class WatchedSnapshot(Snapshot):
    """Reports progress ("copying notes", 2,000, 6,000); `instead` replaces collections.

    `see` gets each page of rows with its collection's name.
    """

    def __init__(
        self,
        inner: Snapshot,
        progress: Callable[[str, int, int], None],
        *,
        see: Callable[[str, Sequence[RowCopy]], None] | None = None,
        instead: Snapshot | None = None,
    ) -> None:
        self._inner = inner
        self._progress = progress
        self._see = see
        self._instead: Snapshot = HeldSnapshot([]) if instead is None else instead

    async def layouts(self) -> list[Layout]:
        found = {layout.name: layout for layout in await self._inner.layouts()}
        found |= {layout.name: layout for layout in await self._instead.layouts()}
        return [found[name] for name in sorted(found)]

    async def count(self, collection: str) -> int:
        return await (await self._of(collection)).count(collection)

    async def entries(self, collection: str) -> AsyncIterator[list[RowCopy]]:
        done, total = 0, await self.count(collection)
        async with closing((await self._of(collection)).entries(collection)) as pages:
            async for page in pages:
                if self._see is not None:
                    self._see(collection, page)
                done += len(page)
                self._progress(f"copying {collection}", done, total)
                yield page

    async def events(self) -> AsyncIterator[list[Delivered]]:
        done = 0
        async with closing(self._inner.events()) as pages:
            async for page in pages:
                done += len(page)
                self._progress("copying events", done, 0)
                yield page

    async def last_event(self) -> int:
        return await self._inner.last_event()

    async def _of(self, collection: str) -> Snapshot:
        names = {layout.name for layout in await self._instead.layouts()}
        return self._instead if collection in names else self._inner


def _pages(items: Sequence[T]) -> list[list[T]]:
    return [list(items[start : start + PAGE_ROWS]) for start in range(0, len(items), PAGE_ROWS)]
