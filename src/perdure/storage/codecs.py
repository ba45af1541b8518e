"""Values to bytes and back.

Each stored value carries the content type of the codec that wrote it, so a collection can change
its codec and still read what it has. Whatever text a value holds comes back as it went in, NUL and
lone surrogates included, though neither msgpack nor strict JSON can carry the latter.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import datetime
from typing import Any, Protocol, TypeVar

import msgspec

from perdure.core.errors import Corrupted, InvalidValue

T = TypeVar("T")

_BAD_TEXT = 1  # extension codes: text with lone surrogates; a map with such keys
_BAD_MAP = 2
_NATIVE = (bytes, bytearray, datetime)  # what msgpack can tell apart from text


class Codec(Protocol):
    """A way to write values. `encode` and `decode` are each other's inverse."""

    content_type: str

    def encode(self, value: object) -> bytes:
        """The bytes of a value. Raises `InvalidValue` if it cannot be written without loss."""

    def decode(self, data: bytes, type: type[T]) -> T:
        """The value of this type. Raises `Corrupted` if the bytes do not hold one."""

    def decode_plain(self, data: bytes) -> Any:
        """The same as dictionaries, lists and scalars: what migrations work on."""


class Msgpack:
    """The default: compact and fast."""

    content_type = "application/msgpack"

    def __init__(self) -> None:
        self._encode = msgspec.msgpack.Encoder().encode
        self._decoders: dict[Any, Callable[[bytes], Any]] = {}

    def encode(self, value: object) -> bytes:
        try:
            return self._encode(value)
        except UnicodeEncodeError:
            return self._encode(_escape(msgspec.to_builtins(value, builtin_types=_NATIVE)))
        except (TypeError, OverflowError, RecursionError) as exc:
            raise _unencodable(value, exc) from exc

    def decode(self, data: bytes, type: type[T]) -> T:
        decode = self._decoders.get(type)
        if decode is None:
            decode = msgspec.msgpack.Decoder(type, ext_hook=_unescape).decode
            self._decoders[type] = decode
        try:
            found: T = decode(data)
        except msgspec.ValidationError:
            try:
                return msgspec.convert(self.decode_plain(data), type)
            except msgspec.ValidationError as exc:
                raise _undecodable(exc) from exc
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as exc:
            raise _undecodable(exc) from exc
        return found

    def decode_plain(self, data: bytes) -> Any:
        try:
            return msgspec.msgpack.decode(data, ext_hook=_unescape)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as exc:
            raise _undecodable(exc) from exc


class Json:
    """For records that people read in the database."""

    content_type = "application/json"

    def encode(self, value: object) -> bytes:
        try:
            data = msgspec.json.encode(value)
        except UnicodeEncodeError:
            data = json.dumps(msgspec.to_builtins(value, str_keys=True)).encode()
            if not self._same(value, data):
                raise InvalidValue(
                    "JSON cannot hold this value: its text has the two halves of a character"
                    " as two characters.",
                    hint="Join them, or declare the record with serializer='msgpack'.",
                ) from None
        except (TypeError, OverflowError, RecursionError) as exc:
            raise _unencodable(value, exc) from exc
        if b"null" in data and not self._same(value, data):
            raise InvalidValue(
                "JSON cannot hold this value: it has a number that is not finite.",
                hint="Replace it, or declare the record with serializer='msgpack'.",
            )
        return data

    def decode(self, data: bytes, type: type[T]) -> T:
        try:
            return msgspec.json.decode(data, type=type)
        except (msgspec.DecodeError, UnicodeDecodeError):
            try:
                return msgspec.convert(self.decode_plain(data), type, str_keys=True)
            except msgspec.ValidationError as exc:
                raise _undecodable(exc) from exc

    def decode_plain(self, data: bytes) -> Any:
        try:
            return json.loads(data)
        except (ValueError, RecursionError) as exc:
            raise _undecodable(exc) from exc

    def _same(self, value: object, data: bytes) -> bool:
        """Whether nothing became null on the way: JSON writers do that to NaN and infinities."""
        try:
            return bool(self.decode(data, type(value)) == value)
        except Corrupted:
            return False


_CODECS: dict[str, Codec] = {}
BY_NAME: dict[str, Codec] = {"msgpack": Msgpack(), "json": Json()}
_CODECS.update({codec.content_type: codec for codec in BY_NAME.values()})


def codec_of(content_type: str) -> Codec:
    """The codec that wrote a value of this type."""
    try:
        return _CODECS[content_type]
    except KeyError:
        raise Corrupted(
            f"A value has the content type {content_type!r}, which nothing here can read.",
            hint="Register the codec that wrote it.",
        ) from None


def _escape(value: Any) -> Any:
    """Plain data in which text that is not valid Unicode is wrapped in extensions."""
    match value:
        case str():
            try:
                value.encode()
            except UnicodeEncodeError:
                return msgspec.msgpack.Ext(_BAD_TEXT, value.encode("utf-8", "surrogatepass"))
            return value
        case dict():
            pairs = [(_escape(key), _escape(item)) for key, item in value.items()]
            if any(isinstance(key, msgspec.msgpack.Ext) for key, _ in pairs):
                return msgspec.msgpack.Ext(_BAD_MAP, msgspec.msgpack.encode(pairs))
            return dict(pairs)
        case list() | tuple():
            return [_escape(item) for item in value]
        case _:
            return value


def _unescape(code: int, data: memoryview) -> Any:
    if code == _BAD_TEXT:
        return bytes(data).decode("utf-8", "surrogatepass")
    if code == _BAD_MAP:
        return dict(msgspec.msgpack.decode(data, ext_hook=_unescape))
    return msgspec.msgpack.Ext(code, bytes(data))


def _unencodable(value: object, exc: Exception) -> InvalidValue:
    return InvalidValue(
        f"A {type(value).__name__} cannot be stored: {exc}.",
        hint="Use the types msgspec supports, and integers below 2**64.",
    )


def _undecodable(exc: Exception) -> Corrupted:
    return Corrupted(
        f"A stored value does not fit its type: {exc}.",
        hint="If the type has changed, add a migration to its declaration.",
    )
