"""Server-sent events from bytes, in whatever pieces they arrive, and back.

Differs from the standard (https://html.spec.whatwg.org/multipage/server-sent-events.html) in two
points: a last event needs no empty line behind it, and lines and events are limited in size.
"""

from __future__ import annotations

import codecs

import msgspec

from perdure.core.errors import BadAnswer

#: Bytes in a line or in the data of an event. An image comes in one line, base64-encoded.
LIMIT = 32 * 2**20


class ServerEvent(msgspec.Struct, frozen=True, gc=False):
    """One event. `event` is ``message`` unless the server named it."""

    event: str
    data: str


def write_event(event: ServerEvent) -> bytes:
    """The event as bytes. Its data is one line, as JSON is."""
    first = "" if event.event == "message" else f"event: {event.event}\n"
    return f"{first}data: {event.data}\n\n".encode()


class EventParser:
    """Takes bytes and gives events. Bytes that are no UTF-8 become U+FFFD.

    `feed` raises `BadAnswer` if a line or event is over the limit; the parser is unusable then.
    """

    def __init__(self, limit: int = LIMIT) -> None:
        self._limit = limit
        self._begun: list[bytes] = []  # of a line whose end has not arrived
        self._size = 0  # of what is begun, line and data
        self._after_return = False  # a CR came last; a LF would belong to it
        self._first = True
        self._name = b""
        self._data: list[bytes] = []

    def feed(self, chunk: bytes) -> list[ServerEvent]:
        if self._after_return and chunk:
            self._after_return = False
            if chunk[0] == 0x0A:
                chunk = chunk[1:]
        end = max(chunk.rfind(b"\n"), chunk.rfind(b"\r")) + 1
        if not end:
            if chunk:
                self._begun.append(chunk)
                self._grow(len(chunk))
            return []
        lines = chunk if end == len(chunk) else chunk[:end]
        self._after_return = end == len(chunk) and lines[-1] == 0x0D
        if self._begun:
            self._size -= sum(map(len, self._begun))
            lines = b"".join((*self._begun, lines))
            self._begun.clear()
        events: list[ServerEvent] = []
        for line in lines.splitlines():
            if line:
                self._read(line)
            elif (event := self._event()) is not None:
                events.append(event)
        if end < len(chunk):
            self._begun.append(chunk[end:])
            self._grow(len(chunk) - end)
        return events

    def close(self) -> list[ServerEvent]:
        if self._begun:
            line = b"".join(self._begun)
            self._begun.clear()
            self._read(line)
        event = self._event()
        return [] if event is None else [event]

    def _read(self, line: bytes) -> None:
        if self._first:
            self._first = False
            line = line.removeprefix(codecs.BOM_UTF8)
        if line.startswith(b"data:"):
            data = line[6:] if line[5:6] == b" " else line[5:]
            self._data.append(data)
            self._grow(len(data))
        elif line.startswith(b"event:"):
            self._name = line[6:].removeprefix(b" ")
        elif line == b"data":
            self._data.append(b"")
        # The rest is a comment, or a field that only browsers know what to do with.

    def _event(self) -> ServerEvent | None:
        name, self._name = self._name, b""
        if not self._data:
            return None
        data = self._data[0] if len(self._data) == 1 else b"\n".join(self._data)
        self._data.clear()
        self._size = 0
        return ServerEvent(
            name.decode("utf-8", "replace") if name else "message", data.decode("utf-8", "replace")
        )

    def _grow(self, size: int) -> None:
        self._size += size
        if self._size > self._limit:
            raise BadAnswer(
                f"An event of the stream is longer than {self._limit} bytes.",
                hint="Ask for less at a time; if the provider sends no events at all, check its"
                " address.",
            )
