"""The wire formats by name."""

from __future__ import annotations

from collections.abc import Iterable
from functools import cache
from importlib import import_module
from typing import Any, Protocol, cast

from perdure.core.errors import InvalidInput
from perdure.core.messages import Message
from perdure.wire.plain import Item

WIRES = ("chat", "responses", "messages", "ui")


class Codec(Protocol):
    """What the module of each wire format offers."""

    def decode(self, items: Any) -> tuple[Message, ...]:
        """Canonical messages of a list, or of a request or response body."""

    def encode(self, messages: Iterable[Message], *, keep: bool = False) -> list[Item]: ...

    def encode_body(self, messages: Iterable[Message], *, keep: bool = False) -> Item: ...

    def violations(self, items: list[Any]) -> list[str]:
        """How these items break the provider's rules, and where; empty if they do not."""


@cache
def codec(wire: str) -> Codec:
    """The module for this wire format. Raises `InvalidInput` if there is none."""
    if wire not in WIRES:
        raise InvalidInput(
            f"{wire!r} is no wire format.", hint=f"The formats are {', '.join(WIRES)}."
        )
    return cast("Codec", import_module(f"perdure.wire.{wire}"))
