"""Waiting for what another task, or another process, brings about."""

from __future__ import annotations

import asyncio
from collections.abc import Callable


async def until(condition: Callable[[], object]) -> None:
    async with asyncio.timeout(20):
        while not condition():  # noqa: ASYNC110  # there is no event to wait for
            await asyncio.sleep(0.001)
