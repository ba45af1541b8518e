"""What worker processes with caches do; see `zygote`."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Coroutine
from typing import Any, TypeAlias

# Imported before the first fork.
import valkey.asyncio  # noqa: F401

from perdure.storage.options import DEFAULT, STRONG, Options, bounded
from tests.storage.caching import Thing, opened

Tell: TypeAlias = Callable[[str], None]

#: The key that everybody reads, and the one that ends it.
KEY, STOP = "watched", "stop"


def options_of(level: str) -> Options:
    """``eventual``, ``strong``, or the seconds of a bounded read."""
    match level:
        case "eventual":
            return DEFAULT
        case "strong":
            return STRONG
        case seconds:
            return bounded(float(seconds))


async def watch(tell: Tell, url: str, level: str, shared: str) -> None:
    """Read a record until there is one that says "stop".

    Tells of each read when it began, by the clock that all processes have, and what it found; in
    the end how many were answered from where.
    """
    options = options_of(level)
    async with opened(url, shared=shared) as bank:
        await bank.get(options, KEY)
        tell("ready")
        until = time.monotonic()
        while time.monotonic() < until or await bank.get(STRONG, STOP) is None:
            if time.monotonic() >= until:
                until = time.monotonic() + 0.1
            start = time.monotonic()
            found = await bank.get(options, KEY)
            tell(f"{start} {found or 0}")
            await asyncio.sleep(0.001)
        stats = bank.cache.stats
        tell(f"{stats.hits} {stats.shared_hits} {stats.misses}")


async def count_up(tell: Tell, url: str, shared: str) -> None:
    """Write growing numbers, until there is a record that says "stop".

    Tells each number, and when it was acknowledged.
    """
    async with opened(url, shared=shared) as bank:
        await bank.get(DEFAULT, KEY)
        tell("ready")
        number = 0
        while await bank.get(STRONG, STOP) is None:
            number += 1
            await bank.put(number, KEY)
            tell(f"{time.monotonic()} {number}")
            assert await bank.get(DEFAULT, KEY) == number, "one reads what one has written"
            await asyncio.sleep(0.01)


async def stop(url: str) -> None:
    """Let everybody end."""
    async with opened(url) as bank:
        await bank.things.put(Thing(STOP))


TASKS: dict[str, Callable[..., Coroutine[Any, Any, None]]] = {
    "watch": watch,
    "count_up": count_up,
}
