"""Vectors, as OpenAI's API and its many likenesses answer with them."""

from __future__ import annotations

import sys
from array import array
from typing import Any

import msgspec

from perdure.core.errors import BadAnswer
from perdure.core.messages import Usage
from perdure.wire.chat.reading import usage_of
from perdure.wire.media import from_base64

Vectors = tuple[tuple[float, ...], ...]


def read(body: dict[str, Any]) -> tuple[Vectors, Usage | None]:
    """The vectors in the order of the texts, and what they took.

    A vector is a list of numbers, or 32-bit floats in base64. Raises `BadAnswer` if one is missing
    or cannot be read, or if they differ in length.
    """
    data = body.get("data")
    if not isinstance(data, list) or not data:
        raise _unreadable("it has no data")
    placed: dict[int, tuple[float, ...]] = {}
    for at, entry in enumerate(data):
        if not isinstance(entry, dict):
            raise _unreadable(f"data[{at}] is no vector")
        index = entry.get("index")
        placed[index if type(index) is int else at] = _vector(entry.get("embedding"), at)
    if sorted(placed) != list(range(len(data))):
        raise _unreadable("not every text has its vector")
    vectors = tuple(placed[at] for at in range(len(data)))
    if len({len(vector) for vector in vectors}) > 1:
        raise _unreadable("its vectors differ in length")
    return vectors, usage_of(body.get("usage"))


def _vector(said: Any, at: int) -> tuple[float, ...]:
    if isinstance(said, str):
        raw = from_base64(said)
        if not raw or len(raw) % 4:
            raise _unreadable(f"data[{at}] holds no 32-bit floats in base64")
        numbers = array("f", raw)
        if sys.byteorder == "big":
            numbers.byteswap()
        return tuple(numbers)
    try:
        vector = msgspec.convert(said, tuple[float, ...])
    except msgspec.ValidationError as exc:
        raise _unreadable(f"data[{at}] is no vector") from exc
    if not vector:
        raise _unreadable(f"data[{at}] is an empty vector")
    return vector


def _unreadable(why: str) -> BadAnswer:
    return BadAnswer(
        f"The answer with embeddings cannot be read: {why}.",
        hint="Check the provider's address, and that the model is one for embeddings.",
    )
