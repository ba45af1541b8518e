"""Cursors: where a page ended, as a string to hand out.

A cursor holds the order values of one row and a fingerprint of the collection and order it belongs
to, so that one from another query is refused instead of giving a wrong page.
"""

from __future__ import annotations

import base64
import binascii
import zlib

import msgspec

from perdure.core.errors import InvalidQuery
from perdure.storage.query import Order, Scalar


def seal(collection: str, order: tuple[Order, ...], mark: tuple[Scalar, ...]) -> str:
    """The cursor of a row."""
    packed = msgspec.msgpack.encode((_fingerprint(collection, order), mark))
    return base64.urlsafe_b64encode(packed).decode().rstrip("=")


def open(collection: str, order: tuple[Order, ...], cursor: str) -> tuple[Scalar, ...]:
    """The order values in a cursor.

    Raises `InvalidQuery` if it does not belong to this collection and order.
    """
    try:
        packed = base64.urlsafe_b64decode(cursor + "=" * (-len(cursor) % 4))
        fingerprint, mark = msgspec.msgpack.decode(packed, type=tuple[int, tuple[Scalar, ...]])
    except (binascii.Error, ValueError, msgspec.MsgspecError):
        fingerprint, mark = -1, ()
    if fingerprint != _fingerprint(collection, order) or len(mark) != len(order):
        raise InvalidQuery(
            "The cursor does not belong to this query.",
            hint="Use one from a page of the same collection in the same order.",
        )
    return mark


def _fingerprint(collection: str, order: tuple[Order, ...]) -> int:
    parts = (f"{part.column} {part.descending}" for part in order)
    return zlib.crc32(" ".join((collection, *parts)).encode())
