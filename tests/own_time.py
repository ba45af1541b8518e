"""An event loop with a time of its own, which passes only when nothing else is left to do.

Who sleeps for a minute wakes up at once, a minute later by `loop.time()`. So deadlines are tested
to the millisecond, and the same on any machine. For tests that wait for nothing outside of their
loop: no thread, no network.
"""

from __future__ import annotations

import asyncio
import functools
import heapq
from collections.abc import Callable, Coroutine
from typing import Any, ParamSpec

P = ParamSpec("P")


class OwnTime(asyncio.SelectorEventLoop):
    """The loop; its time begins at 0."""

    # What the standard library's loop has inside, in all versions from 3.11 to 3.14.
    _ready: Any
    _scheduled: list[Any]
    _timer_cancelled_count: int

    def __init__(self) -> None:
        super().__init__()
        self._moment = 0.0

    def time(self) -> float:
        return self._moment

    def _run_once(self) -> None:
        while self._scheduled and self._scheduled[0].cancelled():
            heapq.heappop(self._scheduled)._scheduled = False
            self._timer_cancelled_count -= 1
        if self._scheduled and not self._ready:
            self._moment = max(self._moment, self._scheduled[0].when())
        super()._run_once()  # type: ignore[misc]


def in_own_time(test: Callable[P, Coroutine[Any, Any, None]]) -> Callable[P, None]:
    """Run a test on such a loop."""

    @functools.wraps(test)
    def run(*args: P.args, **kwargs: P.kwargs) -> None:
        with asyncio.Runner(loop_factory=OwnTime) as runner:
            runner.run(test(*args, **kwargs))

    return run
