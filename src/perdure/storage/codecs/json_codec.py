"""JSON: the default for records that users declare; any tool and any person reads it."""

from __future__ import annotations

import json
from typing import Any, TypeVar

import msgspec

from perdure.core.errors import Corrupted, InvalidValue
from perdure.storage.codecs.msgpack_codec import is_same
from perdure.storage.codecs.value_codec import undecodable, unencodable

T = TypeVar("T")


class Json:
    """Text that any tool reads. Refuses what JSON would silently turn into something else."""

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
            raise unencodable(value, exc) from exc
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
                raise undecodable(exc) from exc

    def decode_plain(self, data: bytes) -> Any:
        try:
            return json.loads(data)
        except (ValueError, RecursionError) as exc:
            raise undecodable(exc) from exc

    def _same(self, value: object, data: bytes) -> bool:
        """Whether nothing became null: JSON writers do that to NaN and infinities."""
        try:
            return is_same(self.decode(data, type(value)), value)
        except Corrupted:
            return False
