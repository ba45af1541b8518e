"""A codec of the user's own, kept from leaking its errors."""

from __future__ import annotations

from typing import Any, TypeVar

from perdure.core.errors import Corrupted, InvalidValue, PerdureError
from perdure.storage.codecs.codec import Codec

T = TypeVar("T")


class Foreign:
    """Wraps a codec that was registered: what it raises comes out as an error of ours."""

    def __init__(self, codec: Codec) -> None:
        self.codec = codec
        self.content_type = codec.content_type

    def encode(self, value: object) -> bytes:
        try:
            data = self.codec.encode(value)
        except PerdureError:
            raise
        except Exception as exc:  # it is the user's code: anything may come out of it
            raise InvalidValue(
                f"A {type(value).__name__} cannot be stored as {self.content_type}:"
                f" {type(exc).__name__}: {exc}.",
                hint="Mend the value, or the codec that was registered for it.",
            ) from exc
        if not isinstance(data, bytes):
            raise InvalidValue(
                f"The codec of {self.content_type} made {type(data).__name__}, not bytes.",
                hint="Let its encode() return bytes.",
            )
        return data

    def decode(self, data: bytes, type: type[T]) -> T:
        try:
            found = self.codec.decode(data, type)
        except PerdureError:
            raise
        except Exception as exc:  # as above
            raise self._unreadable(exc) from exc
        if not isinstance(found, type):
            raise Corrupted(
                f"The codec of {self.content_type} read a {found.__class__.__name__}, not a"
                f" {type.__name__}.",
                hint="Let its decode() return a value of the type that it is given.",
            )
        return found

    def decode_plain(self, data: bytes) -> Any:
        try:
            return self.codec.decode_plain(data)
        except PerdureError:
            raise
        except Exception as exc:  # as above
            raise self._unreadable(exc) from exc

    def _unreadable(self, exc: Exception) -> Corrupted:
        return Corrupted(
            f"A stored value cannot be read as {self.content_type}: {type(exc).__name__}: {exc}.",
            hint="If the type has changed, add a migration to its declaration.",
        )
