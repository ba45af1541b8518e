"""Doing something again when others wrote first."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable
from typing import TypeVar

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
