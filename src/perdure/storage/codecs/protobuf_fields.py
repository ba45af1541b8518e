"""Fields of protobuf messages: their numbers, and the types they are written as."""

from __future__ import annotations

from typing import NamedTuple, TypeAlias

import msgspec

ANYTHING = "Anything"
TIMESTAMP = "google.protobuf.Timestamp"
#: Stands for the record itself, in a type that contains its own kind.
ITSELF = "."

#: Fields that each message has besides its own: which lists and maps are empty, not absent …
EMPTIES = 2045
#: … values that do not fit their field's type, by the field's name …
BEYOND = 2046
#: … and which fields are null, not absent. These are the last numbers that take two bytes.
NULLS = 2047


class Number(msgspec.Struct, frozen=True):
    """A field of a message, and the schema version and time that it came with."""

    number: int
    name: str
    wire: str
    schema: int
    since: int


#: Message → its fields, in the order of their numbers; "" is the record itself.
Numbers: TypeAlias = dict[str, tuple[Number, ...]]
Wires: TypeAlias = dict[str, dict[str, str]]


class Wire(NamedTuple):
    """A wire type, parsed."""

    item: str
    repeated: bool = False
    #: Of a map.
    key: str = ""


def parse(wire: str) -> Wire:
    if wire.startswith("map<"):
        key, _, item = wire[len("map<") : -1].partition(", ")
        return Wire(item, key=key)
    if wire.startswith("repeated "):
        return Wire(wire.removeprefix("repeated "), repeated=True)
    return Wire(wire)
