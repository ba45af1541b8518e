"""Long work on the event loop, in slices short enough that nobody notices."""

from __future__ import annotations

import asyncio
import time

#: Seconds of work after which others have their turn.
SLICE = 0.002


class Pace:
    """Await `breathe` between any two small steps of a long work that computes.

    A thread would not do: it holds the interpreter for five milliseconds at a time, against which
    each turn of the event loop would have to wait, and the functions of a user's migrations would
    run where they have never run before.
    """

    def __init__(self) -> None:
        self._began = time.perf_counter()

    async def breathe(self) -> None:
        """Let the event loop run what else is ready, if that was long enough ago."""
        if time.perf_counter() - self._began > SLICE:
            await asyncio.sleep(0)
            self._began = time.perf_counter()
