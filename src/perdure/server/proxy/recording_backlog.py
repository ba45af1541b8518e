"""What is still to be recorded, while its requests go on or have ended.

Recording runs beside the requests, and many clients can be faster than the bank. New requests wait
for it then, so that neither the memory nor what a crash would lose grows; but not for long, because
memory never breaks the agent.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Iterator
from contextlib import contextmanager, suppress
from typing import Any

#: Recordings of requests that have ended, from which on new requests wait; and for how many seconds
#: at most.
MOST_BEHIND, LONGEST_WAIT = 64, 5.0
#: Seconds in which, when the proxy is closed, at least one more recording has to end.
PATIENCE = 10.0


class RecordingBacklog:
    """The tasks that record."""

    def __init__(self) -> None:
        self._tasks = set[asyncio.Task[Any]]()
        self._requests = 0
        self._ended = asyncio.Event()

    @property
    def behind(self) -> int:
        """How many recordings outlived their requests."""
        return max(0, len(self._tasks) - self._requests)

    def spawn(self, work: Awaitable[Any]) -> asyncio.Task[Any]:
        """Do something that goes on when its request has ended."""
        task = asyncio.ensure_future(work)
        self._tasks.add(task)
        task.add_done_callback(self._end)
        return task

    @contextmanager
    def request(self) -> Iterator[None]:
        """A request that goes on as long as the block."""
        self._requests += 1
        try:
            yield
        finally:
            self._requests -= 1

    async def catch_up(self) -> None:
        """Wait while too much is behind."""
        with suppress(TimeoutError):
            async with asyncio.timeout(LONGEST_WAIT):
                while self.behind > MOST_BEHIND:
                    self._ended.clear()
                    await self._ended.wait()

    async def close(self) -> None:
        """Wait until everything is recorded, however long that takes, unless nothing moves."""
        while self._tasks:
            done, _ = await asyncio.wait(
                self._tasks, timeout=PATIENCE, return_when=asyncio.FIRST_COMPLETED
            )
            if not done:
                for task in (stuck := list(self._tasks)):
                    task.cancel()
                await asyncio.wait(stuck)

    def _end(self, task: asyncio.Task[Any]) -> None:
        self._tasks.discard(task)
        self._ended.set()
