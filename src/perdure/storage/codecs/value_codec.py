"""The codec interface and its errors."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NoReturn, Protocol, TypeVar

from perdure.core.display import with_article
from perdure.core.errors import Corrupted, InvalidValue, PerdureError

T = TypeVar("T")


class ValueCodec(Protocol):
    """A way to write values. `encode` and `decode` are each other's inverse."""

    #: Stored with each value, so that it can be read when the collection has another codec.
    content_type: str

    def encode(self, value: object) -> bytes:
        """Raises `InvalidValue` if the value cannot be written without loss."""

    def decode(self, data: bytes, type: type[T]) -> T:
        """Raises `Corrupted` if the bytes do not hold a value of this type."""

    def decode_plain(self, data: bytes) -> Any:
        """The value as dictionaries, lists and scalars, for migrations."""


def unencodable(value: object, exc: Exception) -> InvalidValue:
    return InvalidValue(
        f"{with_article(type(value).__name__, 'A')} cannot be stored: {exc}.",
        hint="Use the types msgspec supports, and integers below 2**64.",
    )


def undecodable(exc: Exception) -> Corrupted:
    return Corrupted(
        f"A stored value does not fit its type: {in_words(exc)}.",
        hint="If the type has changed, add a migration to its declaration.",
    )


_PLACE = re.compile(r"(.*) - at `(?:\$\.?|key in \$\.?)?(.*)`", re.DOTALL).fullmatch
_MISSING = re.compile(r"Object missing required field `(.*)`").fullmatch


def in_words(exc: BaseException) -> str:
    """The mismatch, with its place first: "address.city: expected str, got int"."""
    found = _PLACE(str(exc))
    what, place = found.groups() if found else (str(exc), "")
    missing = _MISSING(what)
    if missing:
        what, place = "is missing", ".".join(filter(None, [place, missing[1]]))
    elif what.startswith(("Expected ", "Invalid ")):
        what = what[0].lower() + what[1:].replace("`object`", "dict").replace("`array`", "list")
    words = what.replace("`", "")
    return f"{place.replace('[...]', '[…]')}: {words}" if place else words


PROTOBUF = "application/protobuf"


class Unbound:
    """Refuses everything, and says why."""

    content_type = PROTOBUF

    def encode(self, value: object) -> bytes:
        raise InvalidValue(
            f"{with_article(type(value).__name__, 'A')} can be written as protobuf only into a"
            " store, which keeps the numbers of its fields.",
            hint="Write it through store.collection(…).",
        )

    def decode(self, data: bytes, type: type[T]) -> T:
        self._refuse()

    def decode_plain(self, data: bytes) -> Any:
        self._refuse()

    def _refuse(self) -> NoReturn:
        raise Corrupted(
            "A value was written as protobuf, but the numbers of its fields are not known here.",
            hint="Read it through store.collection(…); if it was opened before others began to"
            " write protobuf, open the store again.",
        )


class Foreign:
    """Wraps a registered codec: what it raises becomes an error of ours."""

    def __init__(self, codec: ValueCodec) -> None:
        self.codec = codec
        self.content_type = codec.content_type

    def encode(self, value: object) -> bytes:
        name = with_article(type(value).__name__, "A")
        with _foreign(InvalidValue, f"{name} cannot be stored as {self.content_type}", _WRITING):
            data = self.codec.encode(value)
        if not isinstance(data, bytes):
            raise InvalidValue(
                f"The codec of {self.content_type} made {type(data).__name__}, not bytes.",
                hint="Let its encode() return bytes.",
            )
        return data

    def decode(self, data: bytes, type: type[T]) -> T:
        with _foreign(Corrupted, f"A stored value cannot be read as {self.content_type}", _READING):
            found = self.codec.decode(data, type)
        if not isinstance(found, type):
            raise Corrupted(
                f"The codec of {self.content_type} read a {found.__class__.__name__}, not a"
                f" {type.__name__}.",
                hint="Let its decode() return a value of the type that it is given.",
            )
        return found

    def decode_plain(self, data: bytes) -> Any:
        with _foreign(Corrupted, f"A stored value cannot be read as {self.content_type}", _READING):
            return self.codec.decode_plain(data)


_WRITING = "Mend the value, or the codec that was registered for it."
_READING = "If the type has changed, add a migration to its declaration."


@contextmanager
def _foreign(kind: type[PerdureError], what: str, hint: str) -> Iterator[None]:
    try:
        yield
    except PerdureError:
        raise
    except Exception as exc:  # it is the user's code: anything may come out of it
        raise kind(f"{what}: {type(exc).__name__}: {exc}.", hint=hint) from exc
