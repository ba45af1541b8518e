"""Concurrency: retries after conflicts, work in threads, and long work in short slices."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import ParamSpec, TypeVar

from perdure.core.errors import Conflict

R = TypeVar("R")

ATTEMPTS = 100


async def back_off(attempt: int) -> None:
    """Pause before a retry: longer each time, with jitter."""
    await asyncio.sleep(random.uniform(0, 0.001 * 2 ** min(attempt, 6)))  # noqa: S311 (no secret)


async def retry_conflicts(body: Callable[[int], Awaitable[R]], *, attempts: int = ATTEMPTS) -> R:
    """Run `body`, again after a pause when it raises `Conflict`; returns its result.

    It gets the attempt's number, from 0. Later attempts should read with `Consistency.STRONG`: a
    cache or replica may lag. The last attempt's `Conflict` is raised.
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
    """`asyncio.to_thread`, which waits for its thread when cancelled: files have one user."""
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
    """Await `breathe` between the small steps of a long computation.

    Not a thread: that holds the interpreter for 5 ms at a time, which delays the event loop, and
    users' migration functions would run in a thread.
    """

    def __init__(self) -> None:
        self._began = time.perf_counter()

    async def breathe(self) -> None:
        if time.perf_counter() - self._began > SLICE:
            await asyncio.sleep(0)
            self._began = time.perf_counter()
