"""The shape of an answer: its schema by name, and in words where a server knows no schemas."""

from __future__ import annotations

import json
from collections.abc import Sequence

from msgspec.structs import replace

from perdure.core.errors import InvalidInput
from perdure.core.messages import Message, Text
from perdure.gateway.calls import Shape
from perdure.wire.rules import is_name

_NAME_LIMIT = 64


def named(shape: Shape) -> Shape:
    """The shape. Raises `InvalidInput` if OpenAI would refuse its name."""
    if not is_name(shape.name, _NAME_LIMIT):
        raise InvalidInput(
            f"{shape.name!r} cannot be the name of a shape.",
            hint=f"Use up to {_NAME_LIMIT} of a-z, A-Z, 0-9, _ and -.",
        )
    return shape


def in_words(messages: Sequence[Message], shape: Shape) -> tuple[Message, ...]:
    """The messages with the schema asked for at their end, where it changes no cached prefix."""
    schema = json.dumps(shape.schema, ensure_ascii=False, separators=(",", ":"))
    words = f"Answer with nothing but JSON that follows this schema:\n{schema}"
    last = messages[-1]
    if last.role != "user":
        return (*messages, Message("user", (Text(words),), injected=True))
    final = last.parts[-1] if last.parts else None
    if isinstance(final, Text) and not final.native:
        parts = (*last.parts[:-1], Text(f"{final.text}\n\n{words}"))
    else:
        parts = (*last.parts, Text(words))
    return (*messages[:-1], replace(last, parts=parts))
