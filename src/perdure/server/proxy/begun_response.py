"""An upstream response of which the beginning was read."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import TYPE_CHECKING, Any

import msgspec

from perdure.gateway.streams.sse import EventParser
from perdure.server.proxy.upstream import unpacker

if TYPE_CHECKING:
    import httpx2

#: Events of Responses that say nothing yet.
_FIRST = frozenset({"response.created", "response.in_progress", "response.queued"})
_FAILED = frozenset({"response.failed", "error"})
#: Seconds for which a stream is held back to see whether it begins with a failure.
_LOOKING = 2.0


class BegunResponse:
    """What was read of a response comes first, then the rest."""

    def __init__(self, response: httpx2.Response) -> None:
        self._response = response
        self._chunks: AsyncIterator[bytes] | None = None
        self._read: list[bytes] = []
        self._next: asyncio.Task[bytes | None] | None = None
        self._broken: Exception | None = None
        self.status = response.status_code
        self.headers = response.headers

    async def read(self) -> bytes:
        """The whole body, as it came, or as much of it as came: `aiter_raw` raises what broke."""
        import httpx2

        try:
            async for chunk in self._iterator():
                self._read.append(chunk)
        except httpx2.HTTPError as exc:
            self._broken = exc
        return b"".join(self._read)

    async def failure(self) -> Any:
        """The error that a stream of Responses begins with; None if it begins otherwise, or does
        not begin for a while.
        """
        import httpx2

        parser, unpack = EventParser(), unpacker(self.headers.get("content-encoding", ""))
        end = asyncio.get_running_loop().time() + _LOOKING
        while True:
            self._next = asyncio.ensure_future(anext(self._iterator(), None))
            left = end - asyncio.get_running_loop().time()
            await asyncio.wait({self._next}, timeout=max(left, 0))
            if not self._next.done():
                return None
            arrived, self._next = self._next, None
            try:
                chunk = arrived.result()
            except httpx2.HTTPError as exc:
                self._broken = exc
                return None
            if chunk is None:
                return None
            self._read.append(chunk)
            for event in parser.feed(unpack(chunk)):
                said = msgspec.json.decode(event.data)
                kind = said.get("type") or event.event
                if kind in _FAILED:
                    return (said.get("response") or said).get("error") or said
                if kind not in _FIRST:
                    return None

    async def aiter_raw(self) -> AsyncIterator[bytes]:
        for chunk in self._read:
            yield chunk
        if self._broken is not None:
            raise self._broken
        if self._next is not None:
            chunk_or_end = await self._next
            self._next = None
            if chunk_or_end is None:
                return
            yield chunk_or_end
        async for chunk in self._iterator():
            yield chunk

    async def chunks(self) -> AsyncIterator[bytes]:
        """Its body without the content encoding."""
        unpack = unpacker(self.headers.get("content-encoding", ""))
        async for chunk in self.aiter_raw():
            yield unpack(chunk)

    async def close(self) -> None:
        if self._next is not None:
            self._next.cancel()
            await asyncio.wait({self._next})
        await self._response.aclose()

    def _iterator(self) -> AsyncIterator[bytes]:
        if self._chunks is None:
            self._chunks = self._response.aiter_raw()
        return self._chunks
