"""A provider that tells its limits is never asked for more, however many calls wait."""

from __future__ import annotations

import asyncio
import time

import pytest

from tests.gateway.faulty import JSON, Exchange, FaultyServer, chat, respond
from tests.gateway.opened import opened, provider


class Limited:
    """Answers so many calls in any window of time, and refuses the rest."""

    def __init__(self, allowed: int, window: float) -> None:
        self._allowed = allowed
        self._window = window
        self._granted: list[float] = []
        self.refused = 0

    async def __call__(self, exchange: Exchange) -> None:
        now = time.perf_counter()
        self._granted = [moment for moment in self._granted if moment > now - self._window]
        has_room = len(self._granted) < self._allowed
        if has_room:
            self._granted.append(now)
        reset = int((self._granted[0] + self._window - now) * 1_000) + 20
        told = {
            "x-ratelimit-remaining-requests": str(self._allowed - len(self._granted)),
            "x-ratelimit-reset-requests": f"{reset}ms",
        }
        if has_room:
            await chat(headers=told)(exchange)
        else:
            self.refused += 1
            error = {"message": "Rate limit reached", "code": "rate_limit_exceeded"}
            await respond({"error": error}, 429, {**JSON, **told})(exchange)


@pytest.mark.parametrize(("concurrency", "calls"), [(1, 8), (8, 20), (64, 60)])
async def test_a_limit_is_kept_by_many_calls_at_once(concurrency: int, calls: int) -> None:
    limited = Limited(allowed=6, window=0.15)
    async with FaultyServer() as server:
        server.script(always=limited)
        async with opened(provider(server, concurrency=concurrency)) as gateway:
            await gateway.complete("x")  # the first answer tells
            replies = await asyncio.gather(*(gateway.complete("x") for _ in range(calls)))
    assert len(replies) == calls
    assert limited.refused == 0
