"""A way to a server that can be cut and slowed down."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import Self

_PIECE = 1 << 16


class TCPRelay:
    """Passes bytes on from a port of its own. An async context manager.

    Cut, it passes nothing on, and nobody is told, as in a network that is divided. What was sent
    arrives when it is healed; but a connection that was cut for `dead_after` seconds is dropped,
    as it would be by the keepalives of both ends.
    """

    def __init__(
        self,
        port: int,
        *,
        host: str = "127.0.0.1",
        listen: str = "127.0.0.1",
        dead_after: float = 15.0,
    ) -> None:
        self._host, self._to, self._listen = host, port, listen
        self._dead_after = dead_after
        self._open = asyncio.Event()
        self._open.set()
        self._tasks: set[asyncio.Task[None]] = set()
        #: Seconds for which each piece is held back.
        self.delay = 0.0

    async def __aenter__(self) -> Self:
        self._server = await asyncio.start_server(self._serve, self._listen, 0)
        self.port: int = self._server.sockets[0].getsockname()[1]
        return self

    async def __aexit__(self, *exc: object) -> None:
        self._server.close()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def cut(self) -> None:
        self._open.clear()

    def heal(self) -> None:
        self._open.set()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        writers = [writer]
        try:
            with suppress(OSError, TimeoutError, asyncio.CancelledError):
                await self._way()
                there, here = await asyncio.open_connection(self._host, self._to)
                writers.append(here)
                await self._both_ways((reader, here), (there, writer))
        finally:
            for each in writers:
                each.transport.abort()

    async def _both_ways(self, *ways: tuple[asyncio.StreamReader, asyncio.StreamWriter]) -> None:
        """Until one end has gone: the other is told when its connection is closed."""
        tasks = [asyncio.create_task(self._pass(*way)) for way in ways]
        try:
            await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def _pass(self, source: asyncio.StreamReader, sink: asyncio.StreamWriter) -> None:
        while data := await source.read(_PIECE):
            if self.delay:
                await asyncio.sleep(self.delay)
            await self._way()
            sink.write(data)
            await sink.drain()

    async def _way(self) -> None:
        async with asyncio.timeout(self._dead_after):
            await self._open.wait()
