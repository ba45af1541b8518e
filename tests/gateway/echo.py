"""A loopback server that remembers what it was sent and answers with what it was given."""

from __future__ import annotations

import asyncio
import json
from types import TracebackType
from typing import Any, NamedTuple, Self


class Seen(NamedTuple):
    path: str
    headers: dict[str, str]
    body: dict[str, Any]


class Echo:
    """``async with Echo() as echo``; `url` is its address, `seen` what it was sent."""

    def __init__(self) -> None:
        self.seen: list[Seen] = []
        self.url = ""
        self._answer = b"{}"
        self._kind = "application/json"
        self._server: asyncio.Server | None = None

    def answer(self, body: dict[str, Any] | bytes) -> None:
        """From now on: this JSON, or these bytes as a stream of events."""
        if isinstance(body, bytes):
            self._answer, self._kind = body, "text/event-stream; charset=utf-8"
        else:
            self._answer, self._kind = json.dumps(body).encode(), "application/json"

    async def __aenter__(self) -> Self:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        port = self._server.sockets[0].getsockname()[1]
        self.url = f"http://127.0.0.1:{port}"
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        assert self._server is not None
        self._server.close()
        await self._server.wait_closed()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
        first, *lines = head.rstrip().split("\r\n")
        headers = {
            name.lower(): value.strip()
            for name, _, value in (line.partition(":") for line in lines)
        }
        body = await reader.readexactly(int(headers["content-length"]))
        self.seen.append(Seen(first.split()[1], headers, json.loads(body)))
        writer.write(
            f"HTTP/1.1 200 OK\r\ncontent-type: {self._kind}\r\nconnection: close\r\n"
            f"content-length: {len(self._answer)}\r\n\r\n".encode()
            + self._answer
        )
        await writer.drain()
        writer.close()
        await writer.wait_closed()
