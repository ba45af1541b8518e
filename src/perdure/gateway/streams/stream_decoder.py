"""What the stream decoders share; and vectors, as OpenAI-compatible APIs send them.

A decoder gathers the body that the answer would have had without a stream, and the wire format's
codec reads it: a stream and a body of the same answer give the same message.
"""

from __future__ import annotations

import json
import sys
from abc import ABC, abstractmethod
from array import array
from collections.abc import Mapping
from typing import Any

import msgspec
from msgspec.structs import replace

from perdure.core.errors import BadAnswer, GatewayError, InvalidInput
from perdure.core.messages import Message, Text, Usage, sound
from perdure.gateway.calls import Delta, Finish, ModelAnswer
from perdure.gateway.provider_errors import from_event
from perdure.gateway.providers import CallWire
from perdure.gateway.streams.sse import ServerEvent
from perdure.wire import codec
from perdure.wire.chat.reading import usage_of
from perdure.wire.media import from_base64
from perdure.wire.notes import notes_of
from perdure.wire.plain import Item

#: What reading an unexpected form may raise. Only needed fields are read.
MISREAD = (
    AttributeError,
    IndexError,
    InvalidInput,
    KeyError,
    RecursionError,
    TypeError,
    ValueError,
)

_decode = msgspec.json.Decoder().decode


class StreamDecoder(ABC):
    """Decodes one answer. Cannot be used again, nor after it raised."""

    wire: CallWire

    def __init__(self, where: str = "") -> None:
        #: Names the model in errors: ``provider/model``.
        self.where = where
        #: The provider has said that this is the end. What comes after it is not looked at.
        self.done = False

    def feed(self, event: ServerEvent) -> list[Delta]:
        """Empty for unknown types. Raises `BadAnswer`, or the error that the event reports."""
        if self.done:
            return []
        data = event.data
        if not data or data.isspace():
            return []  # keeps the connection alive
        if data.startswith("[DONE]"):
            return self._last()
        said = self._parsed(data)
        try:
            return self._take(said, event.event)
        except MISREAD as exc:
            raise self._unreadable("an event", data) from exc

    def so_far(self) -> Message:
        """The message so far, marked as partial. Never raises."""
        try:
            message = message_of(self.wire, self._body())
        except (BadAnswer, *MISREAD):
            message = Message("assistant", wire=self.wire)
        return replace(message, partial=True)

    def body(self) -> Item:
        """What arrived until now, as it would stand in a body without a stream."""
        return self._body()

    def finish(self) -> ModelAnswer:
        """The whole answer. Raises `BadAnswer` if its end never came."""
        if not self._has_ended():
            raise BadAnswer(
                f"The answer{self._of()} has no end.",
                hint="The connection broke, or the server does not keep to its format.",
            )
        try:
            return self.read(self._body())
        except MISREAD as exc:
            raise self._unreadable("the answer", "") from exc

    @abstractmethod
    def _take(self, said: Item, name: str) -> list[Delta]: ...

    @abstractmethod
    def _body(self) -> Item: ...

    @staticmethod
    @abstractmethod
    def read(body: Item) -> ModelAnswer:
        """The answer that a whole body holds."""

    @abstractmethod
    def _has_ended(self) -> bool: ...

    def _last(self) -> list[Delta]:
        """Deltas of ``[DONE]``, in formats that end with it."""
        return []

    def _parsed(self, data: str) -> Item:
        try:
            said = _decode(data)
        except msgspec.DecodeError:
            try:  # half surrogate pairs, which msgspec refuses
                said = json.loads(data)
            except (ValueError, RecursionError) as exc:
                raise self._unreadable("an event", data) from exc
        if not isinstance(said, dict):
            raise self._unreadable("an event", data)
        return said

    def _failed(self, error: Any) -> GatewayError:
        return failed(error, self.where)

    def _unreadable(self, what: str, data: str) -> BadAnswer:
        begin = f": {data[:200]!r}" if data else ""
        return BadAnswer(
            f"The stream{self._of()} holds {what} that cannot be read{begin}.",
            hint="Check that the provider speaks the wire format that it is configured with.",
        )

    def _of(self) -> str:
        return f" of {self.where}" if self.where else ""


def failed(error: Any, where: str) -> GatewayError:
    return from_event(error if isinstance(error, dict) else {"message": str(error)}, where=where)


def shown(text: str) -> str:
    """Text to be shown at once: half a surrogate pair becomes U+FFFD."""
    if text.isascii():
        return text
    whole: str = sound(text)
    return whole


def message_of(wire: CallWire, body: Item) -> Message:
    """The one message in a body, with results of provider-run tools. Raises `BadAnswer`.

    It has no time: it is said now, by our clock, whatever the provider's says.
    """
    try:
        messages = codec(wire).decode(body)
    except InvalidInput as exc:
        raise BadAnswer(
            f"The answer is none of the wire format {wire}: {exc.message}",
            hint="Check that the provider speaks the wire format that it is configured with.",
        ) from exc
    first = next((message for message in messages if message.role == "assistant"), None)
    if first is None:
        return Message("assistant", wire=wire)
    parts = tuple(part for message in messages for part in message.parts)
    return replace(first, parts=parts, time=None)


def answered(message: Message, wire: CallWire, finish: Finish) -> ModelAnswer:
    """Corrects the finish reason: several servers say ``stop`` when they ask for tools, and OpenAI
    when it refuses.
    """
    if finish == "stop":
        if message.calls:
            finish = "tools"
        elif any(_refuses(part, wire) for part in message.parts):
            finish = "filter"
    return ModelAnswer(message, finish)


def _refuses(part: Any, wire: CallWire) -> bool:
    notes = notes_of(part.native, wire) if isinstance(part, Text) else {}
    return "refusal" in (notes.get("field"), notes.get("type"))


def present(item: Mapping[str, Any]) -> Item:
    """The fields that say something: a stream leaves out what a body says as null."""
    return {name: value for name, value in item.items() if value is not None}


Vectors = tuple[tuple[float, ...], ...]


def read(body: dict[str, Any]) -> tuple[Vectors, Usage | None]:
    """The vectors (numbers, or 32-bit floats in base64) in the order of the texts, and the usage.
    Raises `BadAnswer` if one is missing or unreadable, or if lengths differ.
    """
    data = body.get("data")
    if not isinstance(data, list) or not data:
        raise _unreadable("it has no data")
    placed: dict[int, tuple[float, ...]] = {}
    for at, entry in enumerate(data):
        if not isinstance(entry, dict):
            raise _unreadable(f"data[{at}] is no vector")
        index = entry.get("index")
        placed[index if type(index) is int else at] = _vector(entry.get("embedding"), at)
    if sorted(placed) != list(range(len(data))):
        raise _unreadable("not every text has its vector")
    vectors = tuple(placed[at] for at in range(len(data)))
    if len({len(vector) for vector in vectors}) > 1:
        raise _unreadable("its vectors differ in length")
    return vectors, usage_of(body.get("usage"))


def _vector(said: Any, at: int) -> tuple[float, ...]:
    if isinstance(said, str):
        raw = from_base64(said)
        if not raw or len(raw) % 4:
            raise _unreadable(f"data[{at}] holds no 32-bit floats in base64")
        numbers = array("f", raw)
        if sys.byteorder == "big":
            numbers.byteswap()
        return tuple(numbers)
    try:
        vector = msgspec.convert(said, tuple[float, ...])
    except msgspec.ValidationError as exc:
        raise _unreadable(f"data[{at}] is no vector") from exc
    if not vector:
        raise _unreadable(f"data[{at}] is an empty vector")
    return vector


def _unreadable(why: str) -> BadAnswer:
    return BadAnswer(
        f"The answer with embeddings cannot be read: {why}.",
        hint="Check the provider's address, and that the model is one for embeddings.",
    )
