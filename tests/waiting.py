"""Waiting for what another task, or another process, brings about."""

from __future__ import annotations

import asyncio
from collections.abc import Callable


async def until(condition: Callable[[], object]) -> None:
    """Wait until a condition holds; `TimeoutError` after a time in which any machine gets there."""
    async with asyncio.timeout(100):
        while not condition():  # noqa: ASYNC110  # there is no event to wait for
            await asyncio.sleep(0.001)
