"""Waiting to be told to stop."""

from __future__ import annotations

import asyncio
import signal

_SIGNALS = (signal.SIGINT, signal.SIGTERM)


class StopSignals:
    """`wait` ends by `stop`, SIGINT or SIGTERM. A second signal ends the process at once."""

    def __init__(self) -> None:
        self._asked = asyncio.Event()

    def stop(self) -> None:
        self._asked.set()

    def listen(self) -> None:
        """From now on signals are heard; before this, they end the process."""
        loop = asyncio.get_running_loop()
        for number in _SIGNALS:
            loop.add_signal_handler(number, self._signalled)

    async def wait(self) -> None:
        await self._asked.wait()

    def _signalled(self) -> None:
        for number in _SIGNALS:
            asyncio.get_running_loop().remove_signal_handler(number)
            signal.signal(number, signal.SIG_DFL)
        self.stop()
