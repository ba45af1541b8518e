"""Stores with a cache, as the tests of caches open them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Annotated, Any

import msgspec

from perdure.config.settings import CacheConfig
from perdure.core.clock import Clock, now
from perdure.storage.adapter import Adapter
from perdure.storage.cache import RowCache
from perdure.storage.middleware import Middleware
from perdure.storage.options import DEFAULT, Options
from perdure.storage.records import Indexed, Key, record
from perdure.storage.registry import adapter_for
from perdure.storage.store import Store


@record("things")
class Thing(msgspec.Struct, frozen=True):
    id: Annotated[str, Key()]
    n: Annotated[int, Indexed()] = 0


@record("fleeting", ttl=10)
class Fleeting(msgspec.Struct, frozen=True):
    id: Annotated[str, Key()]


class Cached:
    """A store with a cache, and shorthands for one collection of it."""

    def __init__(self, store: Store, cache: RowCache) -> None:
        self.store = store
        self.cache = cache
        self.things = store.collection(Thing)

    async def put(self, n: int, key: str = "a", options: Options = DEFAULT) -> int:
        return await self.things.put(Thing(key, n), options)

    async def get(self, options: Options = DEFAULT, key: str = "a") -> int | None:
        found = await self.things.get(key, options)
        return None if found is None else found.n

    @property
    def hits(self) -> int:
        return self.cache.stats.hits

    @property
    def misses(self) -> int:
        return self.cache.stats.misses

    @property
    def shared(self) -> Any:
        assert self.cache._shared is not None
        return self.cache._shared


@asynccontextmanager
async def opened(
    place: str | Adapter,
    *,
    clock: Clock = now,
    above: Sequence[Middleware] = (),
    below: Sequence[Middleware] = (),
    **config: Any,
) -> AsyncIterator[Cached]:
    """A store with a cache, at an address or on an adapter; `config` is that of the cache."""
    cache = RowCache(CacheConfig(**({"entries": 100} | config)), clock)
    adapter = adapter_for(place, clock) if isinstance(place, str) else place
    store = Store(adapter, middleware=[*above, cache, *below], clock=clock)
    async with store:
        yield Cached(store, cache)


async def until(condition: Callable[[], bool], seconds: float = 100.0) -> None:
    """Wait until it is so."""
    async with asyncio.timeout(seconds):
        while not condition():  # noqa: ASYNC110  # nothing tells when it is so
            await asyncio.sleep(0.002)
