"""A client of HTTP/1.1 that costs next to nothing: whole requests out, the time of the first byte
of an answer's body, and of its end. One connection, one request at a time.
"""

from __future__ import annotations

import asyncio
from time import perf_counter
from typing import NamedTuple
from urllib.parse import urlsplit

_HEAD_END = b"\r\n\r\n"


class Exchange(NamedTuple):
    """One request and its answer. Seconds from sending it to the first byte of the body, and to
    the end.
    """

    status: int
    first: float
    whole: float
    body: bytes


def request(
    url: str, method: str = "GET", body: bytes = b"", headers: dict[str, str] | None = None
) -> bytes:
    """A whole request, ready to be sent again and again."""
    parts = urlsplit(url)
    path = f"{parts.path}?{parts.query}" if parts.query else parts.path
    lines = [f"{method} {path} HTTP/1.1", f"host: {parts.netloc}"]
    lines += [f"{name}: {value}" for name, value in (headers or {}).items()]
    if body:
        lines += ["content-type: application/json", f"content-length: {len(body)}"]
    return "\r\n".join([*lines, "", ""]).encode() + body


class HttpLane(asyncio.Protocol):
    """A connection that is kept."""

    def __init__(self) -> None:
        self._arrived = bytearray()
        self._first = 0.0
        self._done: asyncio.Future[float] | None = None
        self._transport: asyncio.Transport | None = None

    @classmethod
    async def to(cls, url: str) -> HttpLane:
        parts = urlsplit(url)
        loop = asyncio.get_running_loop()
        _, lane = await loop.create_connection(cls, parts.hostname or "", parts.port or 80)
        return lane

    async def ask(self, sent: bytes) -> Exchange:
        if self._transport is None or self._transport.is_closing():
            raise ConnectionError("The server has closed this connection.")
        self._arrived.clear()
        self._first = 0.0
        self._done = asyncio.get_running_loop().create_future()
        start = perf_counter()
        self._transport.write(sent)
        end = await self._done
        head, _, body = bytes(self._arrived).partition(_HEAD_END)
        return Exchange(int(head[9:12]), self._first - start, end - start, body)

    def close(self) -> None:
        if self._transport is not None:
            self._transport.close()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        self._arrived += data
        end = self._arrived.find(_HEAD_END)
        if end < 0 or self._done is None or self._done.done():
            return
        size = len(self._arrived) - end - len(_HEAD_END)
        if size and not self._first:
            self._first = perf_counter()
        head = bytes(self._arrived[:end]).lower()
        _, found, length = head.partition(b"content-length: ")
        if found:
            complete = size >= int(length.split(b"\r", 1)[0])
        else:
            complete = self._arrived.endswith(b"\r\n0\r\n\r\n")
        if complete:
            self._done.set_result(perf_counter())

    def connection_lost(self, exc: Exception | None) -> None:
        if self._done is not None and not self._done.done():
            self._done.set_exception(
                exc or ConnectionError("closed before the answer was complete")
            )
