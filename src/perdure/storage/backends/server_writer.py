"""Writes on a server, of which it is known whether they were done when the caller goes on."""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Coroutine
from contextlib import suppress
from typing import Any, TypeVar

from perdure.core.errors import Closed, DeadlineExceeded

T = TypeVar("T")


class WriteJob:
    """A write under way."""

    __slots__ = ("expired", "sent", "withdrawn")

    def __init__(self) -> None:
        #: It, or its COMMIT, was sent, and how it ended is not known yet.
        self.sent = False
        self.expired = False
        self.withdrawn = False

    def check(self) -> None:
        """Raises `CancelledError` if the caller has gone, unless it may be done already."""
        if not self.sent and (self.withdrawn or self.expired):
            raise asyncio.CancelledError


class ServerWriter(ABC):
    """Carries out writes. Used from one event loop."""

    def __init__(self) -> None:
        self._running: set[asyncio.Task[Any]] = set()
        self._closed = False

    @abstractmethod
    async def _end(self, job: Any, task: asyncio.Task[Any]) -> None:
        """Stop a write that was not sent; wait for one that was."""

    @abstractmethod
    async def _forget(self) -> None:
        """Remove what the server keeps about this writer, if it can be reached."""

    async def _see_through(
        self, job: WriteJob, work: Coroutine[Any, Any, T], deadline: float | None
    ) -> T:
        """Carry out a write.

        Cancelled, it is withdrawn unless it was sent, and completed if it was; either way nothing
        is in flight when `CancelledError` is raised. A missed deadline does the same
        (`DeadlineExceeded`).
        """
        if self._closed:
            work.close()
            raise Closed("This store is closed.", hint="Open it again.")
        task = asyncio.create_task(work)
        self._running.add(task)
        task.add_done_callback(self._running.discard)
        try:
            await asyncio.wait([task], timeout=deadline)
            if not task.done():
                job.expired = True
                await self._end(job, task)
        except asyncio.CancelledError:
            job.withdrawn = True
            ending = asyncio.create_task(self._end(job, task))
            while not ending.done():
                # Cancelled again: the caller is told as soon as the outcome is certain.
                with suppress(asyncio.CancelledError):
                    await asyncio.wait([ending])
            if not task.cancelled():
                task.exception()  # seen
            raise
        if job.expired and task.cancelled():
            raise DeadlineExceeded(
                "The write was not ready in the time allowed; nothing was written.",
                hint="Repeat it, or allow more time.",
            )
        return task.result()

    async def close(self) -> None:
        """Finish what was accepted."""
        if not self._closed:
            self._closed = True
            while self._running:
                await asyncio.wait(self._running)
            await self._forget()
