"""What a codec is, and what goes wrong with one."""

from __future__ import annotations

import re
from typing import Any, Protocol, TypeVar

from perdure.core.errors import Corrupted, InvalidValue

T = TypeVar("T")


class Codec(Protocol):
    """A way to write values. `encode` and `decode` are each other's inverse."""

    #: Stored with each value, so that it can be read when the collection has another codec.
    content_type: str

    def encode(self, value: object) -> bytes:
        """The bytes of a value. Raises `InvalidValue` if it cannot be written without loss."""

    def decode(self, data: bytes, type: type[T]) -> T:
        """The value of this type. Raises `Corrupted` if the bytes do not hold one."""

    def decode_plain(self, data: bytes) -> Any:
        """The same as dictionaries, lists and scalars: what migrations work on."""


def unencodable(value: object, exc: Exception) -> InvalidValue:
    """The error for a value that a codec cannot write."""
    return InvalidValue(
        f"A {type(value).__name__} cannot be stored: {exc}.",
        hint="Use the types msgspec supports, and integers below 2**64.",
    )


def undecodable(exc: Exception) -> Corrupted:
    """The error for bytes that do not hold a value of the type."""
    return Corrupted(
        f"A stored value does not fit its type: {in_words(exc)}.",
        hint="If the type has changed, add a migration to its declaration.",
    )


_PLACE = re.compile(r"(.*) - at `(?:\$\.?|key in \$\.?)?(.*)`", re.DOTALL).fullmatch
_MISSING = re.compile(r"Object missing required field `(.*)`").fullmatch


def in_words(exc: BaseException) -> str:
    """What does not fit, with its place first: "address.city: expected str, got int"."""
    found = _PLACE(str(exc))
    what, place = found.groups() if found else (str(exc), "")
    missing = _MISSING(what)
    if missing:
        what, place = "is missing", ".".join(filter(None, [place, missing[1]]))
    elif what.startswith(("Expected ", "Invalid ")):
        what = what[0].lower() + what[1:].replace("`object`", "dict").replace("`array`", "list")
    words = what.replace("`", "")
    return f"{place.replace('[...]', '[…]')}: {words}" if place else words
