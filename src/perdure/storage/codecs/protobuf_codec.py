"""Protobuf messages for the records of one collection.

Field numbers come from the schema registry, so one codec reads every version of the type, and the
exported .proto file reads what it writes. Plain data comes back as with msgpack: null, absent and
an empty list differ. Three limits: no text with lone surrogates; no data nested more than about
thirty deep; and no ``array_like`` record types.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

import msgspec
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
from google.protobuf.message import DecodeError, EncodeError

from perdure.core.errors import InvalidValue
from perdure.storage.codecs import protobuf_anything
from perdure.storage.codecs.protobuf_fields import (
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
from perdure.storage.codecs.value_codec import PROTOBUF, undecodable, unencodable

if TYPE_CHECKING:
    from google.protobuf.descriptor_pb2 import DescriptorProto
    from google.protobuf.message import Message

T = TypeVar("T")
_Write = Callable[[Any], Any]
_Read = Callable[[Any], Any]
#: What stays as it is on the way to plain data.
_NATIVE = (bytes, bytearray, memoryview, datetime)
_INT64 = range(-(2**63), 2**63)


class Protobuf:
    """Writes and reads the records of a collection; `wires` are the type's current fields."""

    content_type = PROTOBUF

    def __init__(self, numbers: Numbers, wires: Wires) -> None:
        self._message = classes(numbers)
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


def _writers(numbers: Numbers, wires: Wires) -> dict[str, _Write]:
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
    return {"f1": name, "f2": protobuf_anything.pack(value)}


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
    written = protobuf_anything.timestamp(value) if isinstance(value, datetime) else None
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
    ANYTHING: protobuf_anything.pack,
}


class _Known(NamedTuple):
    name: str
    read: _Read | None
    empty: type[list[Any] | dict[Any, Any]]


def _readers(numbers: Numbers) -> dict[str, _Read]:
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
                plain.update((entry.f1, protobuf_anything.unpack(entry.f2)) for entry in value)
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
    """None, if values can be taken as they are."""
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
        return protobuf_anything.unpack
    if item == TIMESTAMP:
        return protobuf_anything.moment
    if item in _SCALARS:
        return None
    name = "" if item == ITSELF else item
    return lambda message: made[name](message)  # noqa: PLW0108 (may not be there yet)


_Field = descriptor_pb2.FieldDescriptorProto
_ONE, _MANY = _Field.LABEL_OPTIONAL, _Field.LABEL_REPEATED
_FIELD_TYPES = {
    "bool": _Field.TYPE_BOOL,
    "bytes": _Field.TYPE_BYTES,
    "double": _Field.TYPE_DOUBLE,
    "int32": _Field.TYPE_INT32,
    "int64": _Field.TYPE_INT64,
    "sint64": _Field.TYPE_SINT64,
    "string": _Field.TYPE_STRING,
    "uint32": _Field.TYPE_UINT32,
    "uint64": _Field.TYPE_UINT64,
}
_PACKAGE = "perdure"
#: The types of the fields of an Anything, which are numbered in this order.
_ANYTHING = (
    "bool",
    "bool",
    "sint64",
    "uint64",
    "string",
    "double",
    "string",
    "bytes",
    TIMESTAMP,
    "string",
    "Anything.List",
    "Anything.Map",
)


def classes(numbers: Numbers) -> type[Message]:
    file = descriptor_pb2.FileDescriptorProto(name="records", package=_PACKAGE, syntax="proto2")
    names = {message: f"M{place}" for place, message in enumerate(numbers)}
    names[ITSELF] = names[""]
    _add_ours(file)
    for message, fields in numbers.items():
        made = file.message_type.add(name=names[message])
        for field in fields:
            _add_field(made, field.number, parse(field.wire), names)
        _add(made, EMPTIES, "uint32", _MANY)
        _add_map(made, BEYOND, Wire(ANYTHING, key="string"), names)
        _add(made, NULLS, "uint32", _MANY)
    pool = descriptor_pool.DescriptorPool()
    pool.AddSerializedFile(file.SerializeToString())
    return message_factory.GetMessageClass(pool.FindMessageTypeByName(f"{_PACKAGE}.{names['']}"))


def _add_ours(file: descriptor_pb2.FileDescriptorProto) -> None:
    anything = file.message_type.add(name=ANYTHING)
    for number, type_ in enumerate(_ANYTHING, 1):
        _add(anything, number, type_, _ONE)
    _add(anything.nested_type.add(name="List"), 1, ANYTHING, _MANY)
    _add(anything.nested_type.add(name="Map"), 1, "Anything.Entry", _MANY)
    entry = anything.nested_type.add(name="Entry")
    _add(entry, 1, ANYTHING, _ONE)
    _add(entry, 2, ANYTHING, _ONE)
    timestamp = file.message_type.add(name="Timestamp")
    _add(timestamp, 1, "int64", _ONE)
    _add(timestamp, 2, "int32", _ONE)


def _add_field(made: DescriptorProto, number: int, wire: Wire, names: dict[str, str]) -> None:
    if wire.key:
        _add_map(made, number, wire, names)
    else:
        item = names.get(wire.item, wire.item)
        _add(made, number, item, _MANY if wire.repeated else _ONE)


def _add_map(made: DescriptorProto, number: int, wire: Wire, names: dict[str, str]) -> None:
    entry = made.nested_type.add(name=f"E{number}")
    _add(entry, 1, wire.key, _ONE)
    _add(entry, 2, names.get(wire.item, wire.item), _ONE)
    _add(made, number, f"{made.name}.{entry.name}", _MANY)


def _add(made: DescriptorProto, number: int, type_: str, label: _Field.Label.ValueType) -> None:
    field = made.field.add(name=f"f{number}", number=number, label=label)
    scalar = _FIELD_TYPES.get(type_)
    if scalar is None:
        field.type = _Field.TYPE_MESSAGE
        field.type_name = f".{_PACKAGE}.{'Timestamp' if type_ == TIMESTAMP else type_}"
        return
    field.type = scalar
    if label == _MANY and type_ not in ("string", "bytes"):
        field.options.packed = True  # what proto3 does by itself
