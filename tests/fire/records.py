"""What the tests under fire write, and what they expect to find again.

Everything follows from a key, so that a test knows what a process that is dead meant to write.
"""

from __future__ import annotations

import random
import zlib
from typing import Annotated

import msgspec

import perdure


@perdure.record("fire_entries")
class Entry(msgspec.Struct, frozen=True):
    id: Annotated[str, perdure.Key()]
    number: Annotated[int, perdure.Indexed()]
    text: Annotated[str, perdure.Compressed()]


@perdure.record("fire_mirrors")
class Mirror(msgspec.Struct, frozen=True):
    """Written together with an entry of the same key, or not at all."""

    id: Annotated[str, perdure.Key()]
    text: str


@perdure.record("fire_counters")
class Counter(msgspec.Struct, frozen=True):
    id: Annotated[str, perdure.Key()]
    value: int


@perdure.record("fire_papers")
class Paper(msgspec.Struct, frozen=True):
    """Refers to an artifact that is written in the same transaction."""

    id: Annotated[str, perdure.Key()]
    artifact: str


def increment(counter: Counter | None, key: str) -> Counter:
    return Counter(key, (counter.value if counter else 0) + 1)


def text_of(key: str) -> str:
    """A text that belongs to the key: most are short, some take several pages."""
    length = zlib.crc32(key.encode()) % 1_000
    return f"{key} " * (length if length > 950 else length // 20 + 1)


def entry(key: str, number: int = 0) -> Entry:
    return Entry(key, number, text_of(key))


def mirror(key: str) -> Mirror:
    return Mirror(key, text_of(key)[::-1])


def content_of(key: str) -> bytes:
    """An artifact that is a row of the bank: below 64 KB, and not to be compressed."""
    dice = random.Random(key)
    return dice.randbytes(dice.randrange(1, 20_000))
