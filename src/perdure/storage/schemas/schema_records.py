"""The stored schema of a collection: every version of its type, and its field numbers."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime
from typing import Annotated

import msgspec

from perdure.core import clock
from perdure.core.errors import InvalidRecordType, NewerSchema
from perdure.storage.codecs.protobuf_fields import (
    ANYTHING,
    EMPTIES,
    ITSELF,
    NULLS,
    TIMESTAMP,
    Number,
    Numbers,
    Wires,
)
from perdure.storage.records import Key, RecordType, system_record
from perdure.storage.rows import Index
from perdure.storage.schemas import type_shapes
from perdure.storage.schemas.type_shapes import (
    Description,
    EnumChoice,
    Many,
    Mapping,
    Nested,
    Scalar,
    ScalarName,
    Shape,
    without_none,
)

_OURS = range(EMPTIES, NULLS + 1)
#: Kept by protobuf for itself.
_THEIRS = range(19_000, 20_000)
_MOST = 2**29 - 1


def wires(description: Description) -> Wires:
    return {
        name: {field.name: _wire(field.shape) for field in fields.fields}
        for name, fields in description.types.items()
    }


def extended(numbers: Numbers, wanted: Wires, schema: int, now: int) -> Numbers:
    """Numbers also for new fields; the same object if all have one."""
    added = {
        message: tuple(_new(numbers.get(message, ()), fields, schema, now))
        for message, fields in wanted.items()
    }
    if all(message in numbers and not new for message, new in added.items()):
        return numbers
    merged = {message: (*numbers.get(message, ()), *new) for message, new in added.items()}
    return {**numbers, **merged}


def _new(
    known: tuple[Number, ...], fields: dict[str, str], schema: int, now: int
) -> Iterator[Number]:
    held = {(each.name, each.wire) for each in known}
    number = max((each.number for each in known), default=0)
    for name, wire in fields.items():
        if (name, wire) not in held:
            number += 1
            while number in _OURS or number in _THEIRS:
                number += 1
            if number > _MOST:
                raise InvalidRecordType(
                    "A message has no number left for another field.",
                    hint="Declare the type under another name.",
                )
            yield Number(number, name, wire, schema, now)


_WIRES: dict[ScalarName, str] = {
    "anything": ANYTHING,
    "None": ANYTHING,
    "bool": "bool",
    "int": "int64",
    "float": "double",
    "str": "string",
    "bytes": "bytes",
    "datetime": TIMESTAMP,
    # The rest is text, in the forms of ISO 8601 and RFC 9562.
    "date": "string",
    "time": "string",
    "timedelta": "string",
    "UUID": "string",
    "Decimal": "string",
}
_KEYS = ("string", "int64", "bool")


def _wire(shape: Shape) -> str:
    shape, _ = without_none(shape)
    match shape:
        case Many():
            return f"repeated {_item(shape.of)}"
        case Mapping():
            key = _item(shape.keys)
            return f"map<{key}, {_item(shape.values)}>" if key in _KEYS else ANYTHING
        case _:
            return _item(shape)


def _item(shape: Shape) -> str:
    match without_none(shape):
        case Scalar(name), False:
            return _WIRES[name]
        case EnumChoice(values), False:
            kinds = {type(value) for value in values}
            return (
                {str: "string", int: "int64"}.get(kinds.pop(), ANYTHING)
                if len(kinds) == 1
                else ANYTHING
            )
        case Nested(name), False:
            return name or ITSELF
        case _:
            return ANYTHING


class Version(msgspec.Struct, frozen=True, omit_defaults=True):
    """A record type as it was declared from some time on.

    A schema version may occur several times: fields with a default, indexes and the serializer can
    change without a migration.
    """

    schema: int
    serializer: str
    description: Description
    #: When it was first declared here, or declared again after another.
    since_us: int
    indexes: tuple[Index, ...] = ()
    #: Microseconds that records live, if they expire.
    ttl: int | None = None

    @property
    def since(self) -> datetime:
        return clock.to_datetime(self.since_us)

    def same_as(self, other: Version) -> bool:
        return msgspec.structs.replace(self, since_us=0) == msgspec.structs.replace(
            other, since_us=0
        )


@system_record("schemas")
class Schema(msgspec.Struct, frozen=True, omit_defaults=True):
    """The schema of a collection: its versions, oldest first."""

    collection: Annotated[str, Key()]
    versions: tuple[Version, ...] = ()
    #: Of the fields of protobuf messages, if the collection ever had them.
    numbers: Numbers = {}

    @property
    def current(self) -> Version:
        return self.versions[-1]

    def check_not_newer(self, declared: RecordType[msgspec.Struct]) -> None:
        """Raises `NewerSchema` if the collection is ahead of the type."""
        if self.versions and self.current.schema > declared.schema:
            raise NewerSchema(
                f"The collection {self.collection!r} has schema version {self.current.schema};"
                f" {declared.cls.__name__} is declared with version {declared.schema}.",
                hint="Use the newer declaration, with all its migrations; nothing was changed.",
            )

    def declaring(self, declared: RecordType[msgspec.Struct], now: int) -> Schema:
        """The schema with this type as current version. Raises as `check_not_newer` does."""
        self.check_not_newer(declared)
        description = type_shapes.describe(declared.cls)
        version = Version(
            declared.schema,
            declared.serializer,
            description,
            now,
            declared.layout.indexes,
            declared.ttl,
        )
        numbers = self.numbers
        if declared.serializer == "protobuf":
            numbers = extended(numbers, wires(description), declared.schema, now)
        is_current = bool(self.versions) and self.current.same_as(version)
        if is_current and numbers is self.numbers:
            return self
        # Two programs that take turns do not make the history longer each time.
        before = [each for each in self.versions if not each.same_as(version)]
        kept = self.versions if is_current else (*before, version)
        return Schema(self.collection, kept, numbers)
