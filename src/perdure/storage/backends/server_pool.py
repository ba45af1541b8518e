"""Connections to a server, and retries.

A pool of our own: psycopg_pool hides why a connection fails behind a timeout, and after an outage
waits up to half a minute; Valkey's client repeats commands on its own account, and gives up at once
when the server is away. Here the caller makes the connection it needs and gets the server's own
reason if that fails.
"""

from __future__ import annotations

import asyncio
import random
import time
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable
from contextlib import AbstractContextManager
from typing import ClassVar, Generic, Protocol, TypeVar

from perdure.core.errors import Closed, DeadlineExceeded

T = TypeVar("T")

#: Seconds a call waits for a server that has gone away, without a deadline.
PATIENCE = 30.0


class ServerLink(Protocol):
    """A connection."""

    @property
    def is_ready(self) -> bool:
        """Whether it can be used, as far as is known."""

    async def close(self) -> None: ...


L = TypeVar("L", bound=ServerLink)


class ServerPool(ABC, Generic[L]):
    """Up to `size` connections, made when needed. Used from one event loop."""

    #: What its connections raise.
    errors: ClassVar[tuple[type[Exception], ...]]

    def __init__(self, size: int) -> None:
        self._size = size
        self._idle: list[L] = []
        self._free = asyncio.Semaphore(size)
        self._closed = False

    @abstractmethod
    async def connect(self) -> L:
        """A new connection, beside the pool."""

    @abstractmethod
    def is_lost(self, exc: BaseException) -> bool:
        """Whether the connection is lost or failed, and another attempt may succeed."""

    @abstractmethod
    def is_passing(self, exc: BaseException) -> bool:
        """Whether the server is there, has done nothing, and may do it when asked again."""

    @abstractmethod
    def translated(self) -> AbstractContextManager[None]:
        """Turns `errors` into Perdure's."""

    async def run(self, work: Callable[[L], Awaitable[T]], deadline: float | None = None) -> T:
        """Run `work`, which changes nothing and may run again. Raises `DeadlineExceeded`, or
        after `PATIENCE` without a server `Unavailable`.
        """
        with self.translated():
            try:
                async with asyncio.timeout(deadline):
                    return await self.patiently(work)
            except TimeoutError as exc:
                raise DeadlineExceeded(
                    "The read did not end in the time allowed.",
                    hint="Allow more time, or ask for less.",
                ) from exc

    async def patiently(
        self,
        work: Callable[[L], Awaitable[T]],
        seconds: float | None = None,
        *,
        away: bool = True,
    ) -> T:
        """`use`, repeated while the server is not ready and, unless it may not be `away`, cannot
        be reached. Only for work that may run again.
        """
        until = time.monotonic() + (PATIENCE if seconds is None else seconds)
        pause = 0.01
        while True:
            try:
                return await self.use(work)
            except self.errors as exc:
                lost = self.is_lost(exc)
                if lost:
                    await self.distrust()
                again = away if lost else self.is_passing(exc)
                if not again or time.monotonic() + pause > until:
                    raise
            await asyncio.sleep(pause * random.uniform(0.5, 1.0))  # noqa: S311 (no secret)
            pause = min(pause * 2, 0.5)

    async def use(self, work: Callable[[L], Awaitable[T]]) -> T:
        """Run `work` once, on a connection that nobody else has meanwhile."""
        async with self._free:
            if self._closed:
                raise Closed("This store is closed.", hint="Open it again.")
            link = await self._take()
            try:
                return await work(link)
            finally:
                # Whatever was interrupted, or failed inside a transaction, is not used again.
                if link.is_ready and not self._closed:
                    self._idle.append(link)
                else:
                    await link.close()

    async def _take(self) -> L:
        while self._idle:
            link = self._idle.pop()
            if link.is_ready:
                return link
            await link.close()
        return await self.connect()

    async def distrust(self) -> None:
        """One connection broke, so the idle ones probably did, too."""
        idle, self._idle = self._idle, []
        for link in idle:
            await link.close()

    async def close(self) -> None:
        if self._closed:
            return
        for _ in range(self._size):
            await self._free.acquire()
        self._closed = True
        await self.distrust()
        for _ in range(self._size):
            self._free.release()
