"""Snapshots that no backend makes: held in memory, or wrapped around another one."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from typing import TypeVar

import msgspec

from perdure.storage.adapter import Snapshot
from perdure.storage.layouts import Layout
from perdure.storage.rows import Delivered, Entry

T = TypeVar("T")

_PAGE = 1_000


@asynccontextmanager
async def closing(pages: AsyncIterator[T]) -> AsyncIterator[AsyncIterator[T]]:
    """Ends a generator with the block, and not at some time later: what it holds is let go."""
    try:
        yield pages
    finally:
        close = getattr(pages, "aclose", None)
        if close is not None:
            await close()


class HeldCollection(msgspec.Struct, frozen=True):
    """A collection with all its rows."""

    layout: Layout
    entries: Sequence[Entry]


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

    async def entries(self, collection: str) -> AsyncIterator[list[Entry]]:
        for page in _pages(self._collections[collection].entries):
            yield page

    async def events(self) -> AsyncIterator[list[Delivered]]:
        for page in _pages(self._events):
            yield page

    async def last_event(self) -> int:
        return self._last_event

    def holds_the_same_as(self, other: HeldSnapshot) -> bool:
        """Whether the rows of both are equal; events are not looked at."""
        return self._collections == other._collections


class WatchedSnapshot(Snapshot):
    """Another snapshot, whose pages are shown to somebody as they pass by.

    `see` gets the name of the collection, "" for events, and the page. The next page is read
    while one is dealt with: reading and writing share the time that either takes.
    """

    def __init__(
        self, inner: Snapshot, see: Callable[[str, Sequence[Entry | Delivered]], None]
    ) -> None:
        self._inner = inner
        self._see = see

    async def layouts(self) -> list[Layout]:
        return await self._inner.layouts()

    async def count(self, collection: str) -> int:
        return await self._inner.count(collection)

    async def entries(self, collection: str) -> AsyncIterator[list[Entry]]:
        async with closing(_ahead(self._inner.entries(collection))) as pages:
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


class OverlaidSnapshot(Snapshot):
    """A snapshot in which some collections are those of another one."""

    def __init__(self, under: Snapshot, over: Snapshot) -> None:
        self._under = under
        self._over = over

    async def layouts(self) -> list[Layout]:
        found = {layout.name: layout for layout in await self._under.layouts()}
        found |= {layout.name: layout for layout in await self._over.layouts()}
        return [found[name] for name in sorted(found)]

    async def count(self, collection: str) -> int:
        return await (await self._of(collection)).count(collection)

    async def entries(self, collection: str) -> AsyncIterator[list[Entry]]:
        async with closing((await self._of(collection)).entries(collection)) as pages:
            async for page in pages:
                yield page

    def events(self) -> AsyncIterator[list[Delivered]]:
        return self._under.events()

    async def last_event(self) -> int:
        return await self._under.last_event()

    async def _of(self, collection: str) -> Snapshot:
        names = {layout.name for layout in await self._over.layouts()}
        return self._over if collection in names else self._under


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
    return [list(items[start : start + _PAGE]) for start in range(0, len(items), _PAGE)]
