"""Classes of protobuf messages, made from the numbers of a collection's fields.

They are made when the collection is opened, without a compiler. Fields are called after their
numbers here, since a name may have had several of them. Maps are the repeated entries that they are
on the wire, so that their order is kept; and presence is explicit, as with proto3's ``optional``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

from perdure.storage.schemas import numbering
from perdure.storage.schemas.numbering import ANYTHING, ITSELF, TIMESTAMP, Numbers, Wire, parse

if TYPE_CHECKING:
    from google.protobuf.descriptor_pb2 import DescriptorProto
    from google.protobuf.message import Message

_Field = descriptor_pb2.FieldDescriptorProto
_ONE, _MANY = _Field.LABEL_OPTIONAL, _Field.LABEL_REPEATED
_SCALARS = {
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
    """The class of a collection's records, with the messages inside it."""
    file = descriptor_pb2.FileDescriptorProto(name="records", package=_PACKAGE, syntax="proto2")
    names = {message: f"M{place}" for place, message in enumerate(numbers)}
    names[ITSELF] = names[""]
    _add_ours(file)
    for message, fields in numbers.items():
        made = file.message_type.add(name=names[message])
        for field in fields:
            _add_field(made, field.number, parse(field.wire), names)
        _add(made, numbering.EMPTIES, "uint32", _MANY)
        _add_map(made, numbering.BEYOND, Wire(ANYTHING, key="string"), names)
        _add(made, numbering.NULLS, "uint32", _MANY)
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
    # As google/protobuf/timestamp.proto has it.
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
    scalar = _SCALARS.get(type_)
    if scalar is None:
        field.type = _Field.TYPE_MESSAGE
        field.type_name = f".{_PACKAGE}.{'Timestamp' if type_ == TIMESTAMP else type_}"
        return
    field.type = scalar
    if label == _MANY and type_ not in ("string", "bytes"):
        field.options.packed = True  # what proto3 does by itself
