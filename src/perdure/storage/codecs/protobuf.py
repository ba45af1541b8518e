"""Protobuf messages for the records of one collection.

The numbers of its fields come from the schema registry, so one codec reads what every version of
the type has written, and what it writes can be read with the exported .proto file. Plain data comes
back as msgpack gives it: a field that is null is told from one that is absent, and an empty list
from both. Three things differ: text with lone surrogates is refused; so is data nested more than
about thirty deep; and a record type cannot be ``array_like``.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime
from typing import Any, NamedTuple, TypeVar

import msgspec
from google.protobuf.message import DecodeError, EncodeError

from perdure.core.errors import InvalidValue
from perdure.storage.codecs import anything, messages
from perdure.storage.codecs.codec import undecodable, unencodable
from perdure.storage.codecs.unbound import PROTOBUF
from perdure.storage.schemas.numbering import (
    ANYTHING,
    BEYOND,
    EMPTIES,
    ITSELF,
    NULLS,
    TIMESTAMP,
    Numbers,
    Wire,
    Wires,
    parse,
)

T = TypeVar("T")
_Write = Callable[[Any], Any]
_Read = Callable[[Any], Any]
#: What stays as it is on the way to plain data.
_NATIVE = (bytes, bytearray, memoryview, datetime)
_INT64 = range(-(2**63), 2**63)


class Protobuf:
    """Writes and reads the records of a collection. Made when it is opened.

    `wires` are the fields that the type has now: those are written, each under its number.
    """

    content_type = PROTOBUF

    def __init__(self, numbers: Numbers, wires: Wires) -> None:
        self._message = messages.classes(numbers)
        self._readers = _readers(numbers)
        self._writers = _writers(numbers, wires)

    def encode(self, value: object) -> bytes:
        try:
            plain = msgspec.to_builtins(value, builtin_types=_NATIVE)
            data: bytes = self._message(**self._writers[""](plain)).SerializeToString()
        except UnicodeEncodeError as exc:
            raise InvalidValue(
                "Protobuf cannot hold this value: its text has half a character (a lone"
                " surrogate).",
                hint="Mend it, or declare the record with serializer='msgpack'.",
            ) from exc
        except (_Misfit, TypeError, ValueError, OverflowError, RecursionError, EncodeError) as exc:
            raise unencodable(value, exc) from exc
        return data

    def decode(self, data: bytes, type: type[T]) -> T:
        try:
            return msgspec.convert(self.decode_plain(data), type, str_keys=True)
        except msgspec.ValidationError as exc:
            raise undecodable(exc) from exc

    def decode_plain(self, data: bytes) -> Any:
        try:
            return self._readers[""](self._message.FromString(data))
        except (DecodeError, TypeError, ValueError, OverflowError, RecursionError) as exc:
            raise undecodable(exc) from exc


class _Misfit(Exception):
    """A value is not of the type of its field."""


# Writing ----------------------------------------------------------------------------------------


def _writers(numbers: Numbers, wires: Wires) -> dict[str, _Write]:
    """Message → what turns plain data into its fields, as keyword arguments."""
    made: dict[str, _Write] = {}
    for message, fields in wires.items():
        known = {(each.name, each.wire): each.number for each in numbers.get(message, ())}
        made[message] = _message_writer(
            {
                name: (number, f"f{number}", _writer(parse(wire), made))
                for name, wire in fields.items()
                if (number := known.get((name, wire)))
            }
        )
    return made


def _message_writer(fields: dict[str, tuple[int, str, _Write]]) -> _Write:
    def write(plain: Any) -> dict[str, Any]:
        if type(plain) is not dict:
            raise _Misfit
        written: dict[str, Any] = {}
        nulls: list[int] = []
        empties: list[int] = []
        beyond: list[Any] = []
        for name, value in plain.items():
            found = fields.get(name)
            if found is None:
                beyond.append(_beyond(name, value))
                continue
            number, slot, write_field = found
            if value is None:
                nulls.append(number)
                continue
            try:
                wanted = write_field(value)
            except _Misfit:
                beyond.append(_beyond(name, value))
                continue
            if wanted == []:
                empties.append(number)
            else:
                written[slot] = wanted
        for number, extra in ((EMPTIES, empties), (BEYOND, beyond), (NULLS, nulls)):
            if extra:
                written[f"f{number}"] = extra
        return written

    return write


def _beyond(name: Any, value: Any) -> dict[str, Any]:
    if not isinstance(name, str):
        raise _Misfit
    return {"f1": name, "f2": anything.pack(value)}


def _writer(wire: Wire, made: dict[str, _Write]) -> _Write:
    item = _item_writer(wire.item, made)
    if wire.key:
        key = _item_writer(wire.key, made)
        return lambda value: _entries(value, key, item)
    return (lambda value: _items(value, item)) if wire.repeated else item


def _items(value: Any, item: _Write) -> list[Any]:
    if not isinstance(value, list | tuple):
        raise _Misfit
    return [item(each) for each in value]


def _entries(value: Any, key: _Write, item: _Write) -> list[Any]:
    if type(value) is not dict:
        raise _Misfit
    return [{"f1": key(name), "f2": item(each)} for name, each in value.items()]


def _item_writer(item: str, made: dict[str, _Write]) -> _Write:
    if item in _SCALARS:
        return _SCALARS[item]
    name = "" if item == ITSELF else item
    # Structs may contain each other: its writer may not be there yet.
    return lambda value: made[name](value)  # noqa: PLW0108


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise _Misfit
    return value


def _bytes(value: Any) -> bytes:
    if not isinstance(value, bytes | bytearray | memoryview):
        raise _Misfit
    return bytes(value)


def _bool(value: Any) -> bool:
    if type(value) is not bool:
        raise _Misfit
    return value


def _int64(value: Any) -> int:
    if type(value) is not int or value not in _INT64:
        raise _Misfit
    return value


def _double(value: Any) -> float:
    if type(value) is float:
        return value
    # Whole numbers may stand in for others, if nothing of them is lost.
    if type(value) is not int or abs(value) > 2**53:
        raise _Misfit
    return float(value)


def _time(value: Any) -> dict[str, int]:
    written = anything.timestamp(value) if isinstance(value, datetime) else None
    if written is None:
        raise _Misfit
    return written


_SCALARS: dict[str, _Write] = {
    "string": _text,
    "bytes": _bytes,
    "bool": _bool,
    "int64": _int64,
    "double": _double,
    TIMESTAMP: _time,
    ANYTHING: anything.pack,
}


# Reading ----------------------------------------------------------------------------------------


class _Known(NamedTuple):
    """How to read a field."""

    name: str
    read: _Read | None
    empty: type[list[Any] | dict[Any, Any]]


def _readers(numbers: Numbers) -> dict[str, _Read]:
    """Message → what turns one into plain data."""
    made: dict[str, _Read] = {}
    for message, fields in numbers.items():
        known = {}
        for field in fields:
            wire = parse(field.wire)
            known[field.number] = _Known(
                field.name, _reader(wire, made), dict if wire.key else list
            )
        made[message] = _message_reader(known)
    return made


def _message_reader(known: dict[int, _Known]) -> _Read:
    def read(message: Any) -> dict[str, Any]:
        plain: dict[str, Any] = {}
        for descriptor, value in message.ListFields():
            number = descriptor.number
            field = known.get(number)
            if field is not None:
                plain[field.name] = value if field.read is None else field.read(value)
            elif number == BEYOND:
                plain.update((entry.f1, anything.unpack(entry.f2)) for entry in value)
            else:
                # Numbers that we do not know are of fields that newer code has added.
                found = [known[each] for each in value if each in known]
                if number == NULLS:
                    plain.update((field.name, None) for field in found)
                else:
                    plain.update((field.name, field.empty()) for field in found)
        return plain

    return read


def _reader(wire: Wire, made: dict[str, _Read]) -> _Read | None:
    """None, if a value can be taken as it is."""
    item = _item_reader(wire.item, made)
    if item is None:
        if wire.key:
            return lambda entries: {entry.f1: entry.f2 for entry in entries}
        return list if wire.repeated else None
    if wire.key:
        return lambda entries: {entry.f1: item(entry.f2) for entry in entries}
    return (lambda items: [item(each) for each in items]) if wire.repeated else item


def _item_reader(item: str, made: dict[str, _Read]) -> _Read | None:
    if item == ANYTHING:
        return anything.unpack
    if item == TIMESTAMP:
        return anything.moment
    if item in _SCALARS:
        return None
    name = "" if item == ITSELF else item
    return lambda message: made[name](message)  # noqa: PLW0108 (may not be there yet)
