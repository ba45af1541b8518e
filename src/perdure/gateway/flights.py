"""The calls that are under way, so that closing the gateway can end them."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Protocol, TypeVar

from perdure.core.errors import Closed

R = TypeVar("R")

#: Seconds for a call to put its things away when it is ended.
_PATIENCE = 5.0


class Open(Protocol):
    """Something that stays open between two calls: a stream that is being read."""

    async def close(self) -> None: ...


class Flights:
    """Calls under way. For one event loop."""

    def __init__(self) -> None:
        self._scopes: set[asyncio.Timeout] = set()
        self._open: set[Open] = set()
        self._landed = asyncio.Event()
        self._closed = False

    async def run(self, work: Callable[[], Awaitable[R]], seconds: float | None = None) -> R:
        """What `work` returns.

        Raises `TimeoutError` if that takes longer than `seconds`, and `Closed` if the gateway is
        closed, before or meanwhile. `work` is cancelled then.
        """
        if self._is_closed():
            raise _closed()
        scope = asyncio.timeout(seconds)
        try:
            async with scope:
                self._scopes.add(scope)
                return await work()
        except TimeoutError:
            if scope.expired() and self._is_closed():
                raise _closed() from None
            raise
        finally:
            self._scopes.discard(scope)
            if not self._scopes:
                self._landed.set()

    def keep(self, opened: Open) -> None:
        """Close this too, when all is closed, unless it is dropped before."""
        self._open.add(opened)

    def drop(self, opened: Open) -> None:
        self._open.discard(opened)

    def _is_closed(self) -> bool:
        return self._closed

    async def close(self) -> None:
        """End what is under way, and wait until it has put its things away."""
        self._closed = True
        now = asyncio.get_running_loop().time()
        if self._scopes:
            self._landed.clear()
            for scope in self._scopes:
                if not scope.expired():
                    scope.reschedule(now)
            with suppress(TimeoutError):
                await asyncio.wait_for(self._landed.wait(), _PATIENCE)
        # Nobody reads them at this moment: those who did have just been told.
        while self._open:
            await self._open.pop().close()


def _closed() -> Closed:
    return Closed("The gateway is closed.", hint="Call models while their bank is open.")
