"""A collection's messages as a .proto file, for programs that are not Perdure."""

from __future__ import annotations

import re
from collections.abc import Collection

from perdure.core import clock
from perdure.core.errors import InvalidInput
from perdure.storage.codecs.protobuf_anything import PROTO
from perdure.storage.codecs.protobuf_fields import (
    ANYTHING,
    BEYOND,
    EMPTIES,
    ITSELF,
    NULLS,
    TIMESTAMP,
    Number,
    parse,
)
from perdure.storage.schemas import schema_records
from perdure.storage.schemas.schema_records import Schema, Version

_HEAD = """\
// The collection {collection!r} of a Perdure store, schema version {schema}.
//
// A number is never given to another field: reserved ones are of fields that are gone. Three fields
// stand in every message: perdure_nulls has the numbers of fields that are null rather than absent,
// perdure_empties those of lists and maps that are empty rather than absent, and perdure_beyond
// values that do not fit their field, such as numbers beyond 64 bits, by its name.
syntax = "proto3";

package {package};

import "google/protobuf/timestamp.proto";
"""
_OURS = {
    "perdure_empties": ("repeated uint32", EMPTIES),
    "perdure_beyond": (f"map<string, {ANYTHING}>", BEYOND),
    "perdure_nulls": ("repeated uint32", NULLS),
}


def to_proto(schema: Schema) -> str:
    """The .proto file of the last version with messages; numbers of former ones are reserved.

    Raises `InvalidInput` if the collection never had messages.
    """
    version = next((each for each in reversed(schema.versions) if _writes(each)), None)
    if version is None:
        raise InvalidInput(
            f"{schema.collection!r} was never written as protobuf.",
            hint="Declare its type with serializer='protobuf'.",
        )
    return _File(schema, version).text()


def _writes(version: Version) -> bool:
    return version.serializer == "protobuf"


class _File:
    def __init__(self, schema: Schema, version: Version) -> None:
        self._schema = schema
        self._version = version
        self._package = f"perdure.{schema.collection}"
        self._wires = schema_records.wires(version.description)
        root = _word(version.description.name)
        self._names = {"": root, ITSELF: root}
        taken = {root, ANYTHING}
        for message in filter(None, self._wires):
            name = message if message not in taken else f"{message}_{len(taken)}"
            taken.add(name)
            self._names[message] = name

    def text(self) -> str:
        head = _HEAD.format(
            collection=self._schema.collection,
            schema=self._version.schema,
            package=self._package,
        )
        text = "\n".join([head, *map(self._message, self._wires), PROTO])
        names = {self._schema.collection, *self._names.values()}
        names |= {name for fields in self._wires.values() for name in fields}
        # Names are looked up from the inside out: something called google would hide Google's.
        return text.replace(TIMESTAMP, f".{TIMESTAMP}") if "google" in names else text

    def _message(self, message: str) -> str:
        wires = self._wires[message]
        known = self._schema.numbers.get(message, ())
        current = [each for each in known if wires.get(each.name) == each.wire]
        gone = [each for each in known if wires.get(each.name) != each.wire]
        names = _field_names(current)
        lines = [f"message {self._names[message]} {{"]
        lines += [f"  reserved {each.number};  // {_history(each)}" for each in gone]
        for each in current:
            wire = self._type(each.wire, names.values())
            told = each.schema > 1 or names[each.number] != each.name
            since = f"  // {_plain(each.name)}, {_since(each)}" if told else ""
            lines.append(f"  {wire} {names[each.number]} = {each.number};{since}")
        for name, (wire, number) in _OURS.items():
            lines.append(f"  {self._type(wire, names.values())} {name} = {number};")
        return "\n".join([*lines, "}", ""])

    def _type(self, wire: str, fields: Collection[str]) -> str:
        item, repeated, key = parse(wire)
        if item in self._names or item == ANYTHING:
            item = self._names.get(item, item)
            # A field of the same name would hide the message.
            if item in fields or item[0].islower():
                item = f".{self._package}.{item}"
        if key:
            return f"map<{key}, {item}>"
        return f"{'repeated' if repeated else 'optional'} {item}"


def _field_names(fields: list[Number]) -> dict[int, str]:
    """Number → a name that protoc takes: names must also differ in JSON."""
    taken = {_json(name) for name in _OURS}
    names: dict[int, str] = {}
    for field in fields:
        name = _word(field.name)
        while _json(name) in taken:
            name = f"{name}_{field.number}"
        taken.add(_json(name))
        names[field.number] = name
    return names


def _word(text: str) -> str:
    word = re.sub(r"\W", "_", text, flags=re.ASCII)
    return word if re.match(r"[A-Za-z]", word) else f"f_{word}"


def _json(name: str) -> str:
    return name.replace("_", "").lower()


def _since(field: Number) -> str:
    return f"since schema version {field.schema} ({clock.to_datetime(field.since):%Y-%m-%d})"


def _history(field: Number) -> str:
    return f"{_plain(field.name)}: {field.wire}, {_since(field)}"


def _plain(name: str) -> str:
    """A name that cannot end its comment."""
    return name if name.isprintable() else ascii(name)
