"""Protobuf where no store is at hand.

Which number a field has is kept in the store, so messages can only be written and read by a codec
that is bound to a collection of one (`perdure.storage.codecs.protobuf.Protobuf`). This one stands
in its place until then.
"""

from __future__ import annotations

from typing import Any, NoReturn, TypeVar

from perdure.core.errors import Corrupted, InvalidValue

T = TypeVar("T")

#: The content type of messages.
PROTOBUF = "application/protobuf"


class Unbound:
    """Refuses everything, and says why."""

    content_type = PROTOBUF

    def encode(self, value: object) -> bytes:
        raise InvalidValue(
            f"A {type(value).__name__} can be written as protobuf only into a store, which keeps"
            " the numbers of its fields.",
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
