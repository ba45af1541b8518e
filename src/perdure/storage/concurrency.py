"""Working beside others: repeating what conflicted, work in threads, and in short slices."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import ParamSpec, TypeVar

from perdure.core.errors import Conflict

R = TypeVar("R")

#: How often a change is repeated when others keep writing first.
ATTEMPTS = 100


async def back_off(attempt: int) -> None:
    """Let others finish before a change is repeated: longer each time, and not all at once."""
    await asyncio.sleep(random.uniform(0, 0.001 * 2 ** min(attempt, 6)))  # noqa: S311 (no secret)


async def retry_conflicts(body: Callable[[int], Awaitable[R]], *, attempts: int = ATTEMPTS) -> R:
    """What `body` returns. It is run again, after a pause, when it raises `Conflict`.

    It gets the number of the attempt, from 0: what made the first one conflict may not have reached
    a cache or a replica, so later ones should read with `Consistency.STRONG`. The last attempt's
    `Conflict` is raised.
    """
    for attempt in range(attempts - 1):
        try:
            return await body(attempt)
        except Conflict:
            await back_off(attempt)
    return await body(attempts - 1)


P = ParamSpec("P")
T = TypeVar("T")


async def in_thread(work: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    """`asyncio.to_thread`; but cancelled, it waits for the thread before it raises.

    So a connection or file is used by one thread at a time, and closed when none uses it.
    """
    task = asyncio.create_task(asyncio.to_thread(work, *args, **kwargs))
    try:
        return await asyncio.shield(task)
    except asyncio.CancelledError:
        while not task.done():
            with suppress(asyncio.CancelledError):
                await asyncio.wait([task])
        if not task.cancelled():
            task.exception()  # seen
        raise


#: Seconds of work after which others have their turn.
SLICE = 0.002


class Pace:
    """Await `breathe` between any two small steps of a long work that computes.

    A thread would not do: it holds the interpreter for five milliseconds at a time, against which
    each turn of the event loop would have to wait, and the functions of a user's migrations would
    run where they have never run before.
    """

    def __init__(self) -> None:
        self._began = time.perf_counter()

    async def breathe(self) -> None:
        """Let the event loop run what else is ready, if that was long enough ago."""
        if time.perf_counter() - self._began > SLICE:
            await asyncio.sleep(0)
            self._began = time.perf_counter()
