"""Listens to an answer on its way to the client, and tells a recorder what it says.

Whether or not anybody records it, what it took is read.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

import msgspec

from perdure.core.errors import PerdureError
from perdure.core.messages import Message, Usage
from perdure.gateway import streams
from perdure.gateway.calls import Delta
from perdure.gateway.providers import CallWire
from perdure.gateway.streams.sse import EventParser
from perdure.server.proxy.client_request import decode_json
from perdure.server.proxy.upstream import unpacker

#: Bytes of an answer without a stream.
_MAX_BODY = 64 * 2**20


class AnswerListener(Protocol):
    """Who is told what an answer says."""

    def grow(self, deltas: list[Delta], /) -> None: ...

    def finish(self, message: Message | None, /) -> None: ...


class AnswerTap:
    """Takes the bytes of one answer. Never raises: what it cannot read is not recorded, and
    `failed` is told.
    """

    def __init__(
        self,
        wire: CallWire,
        content_type: str,
        encoding: str,
        listener: AnswerListener | None,
        failed: Callable[[Exception], None],
    ) -> None:
        self._listener = listener
        self._failed = failed
        self._wire = wire
        self._over = False
        self.usage: Usage | None = None
        #: All of it was read; or why it could not be.
        self.is_complete = False
        self.error: Exception | None = None
        streamed = content_type.partition(";")[0].strip().lower() == "text/event-stream"
        self._parser = EventParser() if streamed else None
        self._decoder = streams.decoder(wire) if streamed else None
        self._body: list[bytes] = []
        self._size = 0
        try:
            self._unpack = unpacker(encoding)
        except PerdureError as exc:
            self._give_up(exc)

    def feed(self, chunk: bytes) -> None:
        if self._over:
            return
        try:
            self._read(self._unpack(chunk))
        except Exception as exc:  # noqa: BLE001  # memory never breaks the agent
            self._give_up(exc)

    def end(self) -> None:
        """The body is complete."""
        if self._over:
            return
        try:
            if self._parser is None or self._decoder is None:
                body = decode_json(b"".join(self._body))
                self._tell(streams.read_answer(self._wire, body).message)
                return
            for event in self._parser.close():
                self._grow(self._decoder.feed(event))
            self._tell(self._decoder.finish().message)
        except Exception as exc:  # noqa: BLE001  # as above
            self._give_up(exc)

    def leave(self) -> None:
        """No more will come, and it is not complete."""
        if not self._over:
            self._finish(None)

    def _read(self, plain: bytes) -> None:
        if self._parser is None or self._decoder is None:
            self._body.append(plain)
            self._size += len(plain)
            if self._size > _MAX_BODY:
                raise MemoryError("The answer is too large to be recorded.")
            return
        for event in self._parser.feed(plain):
            self._grow(self._decoder.feed(event))
        if self._decoder.done:
            # Before the client hears of the end: it may come back at once.
            self._tell(self._decoder.finish().message)

    def _grow(self, deltas: list[Delta]) -> None:
        if deltas and self._listener is not None:
            self._listener.grow(deltas)

    def _tell(self, message: Message) -> None:
        self.usage = message.usage
        self.is_complete = True
        self._finish(message)

    def _give_up(self, exc: Exception) -> None:
        self.error = exc
        self._finish(None)
        if not isinstance(exc, msgspec.DecodeError):
            self._failed(exc)

    def _finish(self, message: Message | None) -> None:
        self._over = True
        if self._listener is not None:
            self._listener.finish(message)
