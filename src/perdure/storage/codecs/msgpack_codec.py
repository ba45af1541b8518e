"""MessagePack: compact and fast; what Perdure's own records are written in."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime
from typing import Any, TypeVar

import msgspec

from perdure.storage.codecs.value_codec import undecodable, unencodable

T = TypeVar("T")

_BAD_TEXT = 1  # extension codes: text with lone surrogates; a map with such keys
_BAD_MAP = 2
_NATIVE = (bytes, bytearray, datetime)  # what msgpack can tell apart from text


class Msgpack:
    """Any text comes back as it went in, lone surrogates included."""

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
            raise unencodable(value, exc) from exc

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
                raise undecodable(exc) from exc
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as exc:
            raise undecodable(exc) from exc
        return found

    def decode_plain(self, data: bytes) -> Any:
        try:
            return msgspec.msgpack.decode(data, ext_hook=_unescape)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as exc:
            raise undecodable(exc) from exc


def is_same(one: object, other: object) -> bool:
    """Whether two values are one to msgpack, which takes tuples and sets for lists."""
    return one == other or Msgpack().encode(one) == Msgpack().encode(other)


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
