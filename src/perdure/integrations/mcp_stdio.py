"""MCP over stdin and stdout: one JSON message a line.

Requests are answered side by side: a slow search does not hold up a ping. Nothing else may be
printed on stdout while this runs.
"""

from __future__ import annotations

import asyncio
import itertools
import os
import sys
import threading
from typing import Any, BinaryIO

import msgspec

from perdure.integrations.mcp_protocol import (
    INVALID_REQUEST,
    PARSE_ERROR,
    ClientRefused,
    McpConnection,
    McpOffer,
    failure,
)

#: Bytes of a message at most.
_MOST = 16 << 20
#: Seconds that requests have to end when the client has closed its end.
_GRACE = 2.0


class StdioServer:
    """Serves one client until its end of the pipe is closed."""

    def __init__(self, offer: McpOffer, source: BinaryIO, sink: BinaryIO) -> None:
        self._connection = McpConnection(offer, self._ask)
        self._source, self._sink = source, sink
        self._running = dict[Any, asyncio.Task[None]]()
        self._waiting = dict[str, asyncio.Future[dict[str, Any]]]()
        self._numbers = itertools.count(1)

    async def run(self) -> None:
        lines = self._lines()
        while (line := await lines.get()) is not None:
            if line.strip():
                self._take(line)
        if self._running:  # who closes its end may still read
            await asyncio.wait([*self._running.values()], timeout=_GRACE)
        left = [*self._running.values()]
        for task in left:
            task.cancel()
        await asyncio.gather(*left, return_exceptions=True)

    def _lines(self) -> asyncio.Queue[bytes | None]:
        """Lines as they arrive, and None at the end. A thread of its own reads: stdin may be a
        file or a terminal, which the loop cannot wait for. It does not keep the process alive.
        """
        loop, lines = asyncio.get_running_loop(), asyncio.Queue[bytes | None]()

        def read() -> None:
            try:
                while line := self._source.readline(_MOST):
                    loop.call_soon_threadsafe(lines.put_nowait, line)
                loop.call_soon_threadsafe(lines.put_nowait, None)
            except (OSError, ValueError, RuntimeError):  # closed under us: the loop is gone, too
                return

        threading.Thread(target=read, name="perdure-mcp-stdin", daemon=True).start()
        return lines

    def _take(self, line: bytes) -> None:
        try:
            message = msgspec.json.decode(line)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            self._send(failure(None, PARSE_ERROR, "A line is one JSON message."))
            return
        if isinstance(message, dict) and "method" not in message:
            self._answered(message)
        elif isinstance(message, dict) and message.get("method") == "notifications/cancelled":
            params = message.get("params")
            key = params.get("requestId") if isinstance(params, dict) else None
            if isinstance(key, int | str) and (task := self._running.get(key)) is not None:
                task.cancel()
        else:
            self._start(message)

    def _start(self, message: Any) -> None:
        key = message.get("id") if isinstance(message, dict) else None
        if not isinstance(key, int | str):
            key = object()
        elif key in self._running:
            self._send(failure(key, INVALID_REQUEST, "This id is of a request under way."))
            return
        task = asyncio.create_task(self._serve(message))
        self._running[key] = task
        task.add_done_callback(lambda _: self._running.pop(key, None))

    async def _serve(self, message: Any) -> None:
        answer = await self._connection.answer(message)
        if answer is not None:
            self._send(answer)

    async def _ask(self, method: str, params: dict[str, Any]) -> dict[str, Any]:
        id = f"perdure-{next(self._numbers)}"
        self._waiting[id] = asyncio.get_running_loop().create_future()
        self._send({"jsonrpc": "2.0", "id": id, "method": method, "params": params})
        try:
            return await self._waiting[id]
        finally:
            del self._waiting[id]

    def _answered(self, message: dict[str, Any]) -> None:
        future = self._waiting.get(str(message.get("id")))
        if future is None or future.done():
            return
        if isinstance(result := message.get("result"), dict):
            future.set_result(result)
        else:
            future.set_exception(ClientRefused())

    def _send(self, message: dict[str, Any]) -> None:
        """Written at once and whole. A client that does not read has stopped asking, too."""
        try:
            self._sink.write(msgspec.json.encode(message) + b"\n")
            self._sink.flush()
        except (BrokenPipeError, ValueError):
            for task in self._running.values():
                task.cancel()


async def serve_stdio(offer: McpOffer) -> None:
    """Serve the client that started this process. What is printed meanwhile goes to stderr."""
    source = os.fdopen(os.dup(0), "rb")
    sink = os.fdopen(os.dup(1), "wb")
    sys.stdout.flush()
    os.dup2(2, 1)
    await StdioServer(offer, source, sink).run()
