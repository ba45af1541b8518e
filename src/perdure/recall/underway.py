"""Work that is not waited for any longer than it may take.

A thread that loads a model, a store that hangs, a model that sleeps: none of them ends because
somebody cancels it. Here such work is told to end and left alone; whoever waited goes on at once.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Coroutine
from typing import Any, TypeVar

from perdure.core.errors import PerdureError

T = TypeVar("T")

#: Seconds for work to put its things away when all is closed.
_PATIENCE = 2.0

_log = logging.getLogger(__name__)


class Underway:
    """Tasks that were begun and have not ended. For one event loop."""

    def __init__(self) -> None:
        self._tasks: set[asyncio.Task[Any]] = set()

    def __len__(self) -> int:
        return len(self._tasks)

    def begin(self, work: Coroutine[Any, Any, T], *, awaited: bool = False) -> asyncio.Task[T]:
        """A task that is kept until it ends, whether or not anybody waits for it.

        If nobody asks for its result (`awaited`), a mistake in it is logged.
        """
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        task.add_done_callback(_looked_at if awaited else _logged)
        return task

    async def within(self, work: Coroutine[Any, Any, T], seconds: float) -> T:
        """What `work` returns or raises.

        Raises `TimeoutError` if that takes longer than `seconds`: the work is cancelled then, and
        not waited for. So it is if the caller is cancelled.
        """
        task = self.begin(work, awaited=True)
        try:
            await asyncio.wait({task}, timeout=max(seconds, 0.0))
        finally:
            if not task.done():
                task.cancel()
        if not task.done():
            raise TimeoutError
        return task.result()

    async def close(self) -> None:
        """Cancel everything, and wait a moment for it to end."""
        for task in self._tasks:
            task.cancel()
        if self._tasks:
            await asyncio.wait(set(self._tasks), timeout=_PATIENCE)


def _looked_at(task: asyncio.Task[Any]) -> BaseException | None:
    """What a task failed with: asked for, nobody is warned of an error that came too late."""
    return None if task.cancelled() else task.exception()


def _logged(task: asyncio.Task[Any]) -> None:
    error = _looked_at(task)
    if error is not None and not isinstance(error, PerdureError | TimeoutError):
        _log.warning("What recall did beside others failed.", exc_info=error)
