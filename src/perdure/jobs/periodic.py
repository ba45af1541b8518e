"""Work that is repeated while the process lives, such as sweeps and the delivery of events."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from contextlib import suppress

_log = logging.getLogger(__name__)

#: Seconds before work that failed is tried again; doubled with each failure in a row.
FIRST_RETRY = 0.1
LONGEST_RETRY = 60.0


class Periodic:
    """Calls a function at the start, every so many seconds, and when woken.

    It never overlaps itself: woken while it runs, it runs once more afterwards. If it raises, that
    is logged, and it runs again after a pause that doubles with each failure in a row and that
    `wake` does not cut short.
    """

    def __init__(
        self,
        name: str,
        seconds: float,
        function: Callable[[], Awaitable[object]],
        first: float = 0.0,
    ) -> None:
        self.name = name
        #: Runs that ended well, and runs that raised.
        self.runs = 0
        self.failures = 0
        self._seconds = seconds
        self._first = first
        self._function = function
        self._woken = asyncio.Event()
        self._stopping = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        self._task = asyncio.create_task(self._serve(), name=f"perdure-{self.name}")

    def wake(self) -> None:
        """Run at once, or once more if it is running."""
        self._woken.set()

    def stop(self) -> asyncio.Task[None] | None:
        """Let the current run be the last. Returns the task that ends then, if it was started."""
        self._stopping.set()
        self._woken.set()
        return self._task

    async def _serve(self) -> None:
        in_a_row = 0
        if self._first:
            await pause_until(self._woken, self._first)
        while not self._stopping.is_set():
            self._woken.clear()
            try:
                await self._function()
            except (Exception, asyncio.CancelledError) as exc:
                # The outermost loop: one bad run must not end all later ones.
                task = asyncio.current_task()
                if isinstance(exc, asyncio.CancelledError) and task and task.cancelling():
                    raise  # it is this loop that is cancelled, not something inside the function
                self.failures += 1
                pause = min(FIRST_RETRY * 2**in_a_row, LONGEST_RETRY)
                in_a_row = min(in_a_row + 1, 16)
                _log.exception("%s failed; it runs again in %.1f s", self.name, pause)
                await pause_until(self._stopping, pause)
            else:
                self.runs += 1
                in_a_row = 0
                await pause_until(self._woken, self._seconds)


async def pause_until(event: asyncio.Event, seconds: float) -> None:
    with suppress(TimeoutError):
        async with asyncio.timeout(seconds):
            await event.wait()
