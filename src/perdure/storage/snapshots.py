"""Snapshots that no backend makes: held in memory, or wrapped around another one."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from contextlib import asynccontextmanager, suppress
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
    """Ends a generator with the block, and not at some time later: what it holds is let go."""
    try:
        yield pages
    finally:
        close = getattr(pages, "aclose", None)
        if close is not None:
            await close()


def tag_pairs(tags: Iterable[str]) -> tuple[tuple[str, str], ...]:
    """Tags that backends keep as ``name=value``."""
    split = (text.partition("=") for text in tags)
    return tuple([(name, value) for name, _, value in split])


class HeldCollection(msgspec.Struct, frozen=True):
    """A collection with all its rows."""

    layout: Layout
    entries: Sequence[RowCopy]


class HeldSnapshot(Snapshot):
    """A snapshot that is in memory whole: the in-memory backend's, and one for tests."""

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
    """Another snapshot, whose pages are shown to somebody as they pass by.

    `see` gets the name of the collection, "" for events, and the page. The next page is read
    while one is dealt with: reading and writing share the time that either takes. Collections that
    `instead` has are those of `instead`.
    """

    def __init__(
        self,
        inner: Snapshot,
        see: Callable[[str, Sequence[RowCopy | Delivered]], None],
        instead: Snapshot | None = None,
    ) -> None:
        self._inner = inner
        self._see = see
        self._instead: Snapshot = HeldSnapshot([]) if instead is None else instead

    async def layouts(self) -> list[Layout]:
        found = {layout.name: layout for layout in await self._inner.layouts()}
        found |= {layout.name: layout for layout in await self._instead.layouts()}
        return [found[name] for name in sorted(found)]

    async def count(self, collection: str) -> int:
        return await (await self._of(collection)).count(collection)

    async def entries(self, collection: str) -> AsyncIterator[list[RowCopy]]:
        source = await self._of(collection)
        async with closing(_ahead(source.entries(collection))) as pages:
            async for page in pages:
                self._see(collection, page)
                yield page

    async def events(self) -> AsyncIterator[list[Delivered]]:
        async with closing(_ahead(self._inner.events())) as pages:
            async for page in pages:
                self._see("", page)
                yield page

    async def last_event(self) -> int:
        return await self._inner.last_event()

    async def _of(self, collection: str) -> Snapshot:
        names = {layout.name for layout in await self._instead.layouts()}
        return self._instead if collection in names else self._inner


async def _ahead(pages: AsyncIterator[T]) -> AsyncIterator[T]:
    """The same, with the next one under way. Nothing is in flight when it ends."""

    async def following() -> T | None:
        return await anext(pages, None)

    async with closing(pages):
        task = asyncio.create_task(following())
        try:
            while (page := await task) is not None:
                task = asyncio.create_task(following())
                yield page
        finally:
            await _end(task)


async def _end(task: asyncio.Task[T]) -> None:
    """Cancel a task and wait for it; what it raises is of no interest any more."""
    task.cancel()
    while not task.done():
        with suppress(asyncio.CancelledError):
            await asyncio.wait([task])
    if not task.cancelled():
        task.exception()


def _pages(items: Sequence[T]) -> list[list[T]]:
    return [list(items[start : start + PAGE_ROWS]) for start in range(0, len(items), PAGE_ROWS)]
