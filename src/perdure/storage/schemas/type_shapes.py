"""Record types as data: fields and their types, without the class.

A `Description` of each version of a type is stored, to check data, write .proto files and compare
versions without the class. Names are those in the stored data (``rename=`` is followed).
"""

from __future__ import annotations

import re
from collections import Counter
from typing import Any, Literal, TypeAlias, get_args

import msgspec
from msgspec import inspect

#: Limits of `msgspec.Meta`, such as ``{"ge": 0}``.
Limits: TypeAlias = dict[str, int | float | str | bool]

ScalarName: TypeAlias = Literal[
    "anything",
    "None",
    "bool",
    "int",
    "float",
    "str",
    "bytes",
    "datetime",
    "date",
    "time",
    "timedelta",
    "UUID",
    "Decimal",
]


class Scalar(msgspec.Struct, frozen=True, tag="scalar", omit_defaults=True):
    """A single value."""

    name: ScalarName
    limits: Limits = {}

    def __str__(self) -> str:
        return self.name + _limited(self.limits)


class EnumChoice(msgspec.Struct, frozen=True, tag="choice"):
    """One of some values: a Literal, or an enum by its values."""

    values: tuple[str | int | float | None, ...]

    def __str__(self) -> str:
        return " | ".join(repr(value) for value in self.values)


class Many(msgspec.Struct, frozen=True, tag="many", omit_defaults=True):
    """Any number of the same: a list, a set, a tuple of any length."""

    of: Shape
    kind: Literal["list", "set", "tuple"] = "list"
    limits: Limits = {}

    def __str__(self) -> str:
        inside = f"{self.of}, ..." if self.kind == "tuple" else str(self.of)
        return f"{self.kind}[{inside}]{_limited(self.limits)}"


class Several(msgspec.Struct, frozen=True, tag="several", omit_defaults=True):
    """A tuple with a place for each; from `required` on, places may be left out."""

    places: tuple[Shape, ...]
    required: int = -1

    def __str__(self) -> str:
        return f"tuple[{', '.join(map(str, self.places))}]"


class Mapping(msgspec.Struct, frozen=True, tag="mapping", omit_defaults=True):
    """A dict."""

    keys: Shape
    values: Shape
    limits: Limits = {}

    def __str__(self) -> str:
        return f"dict[{self.keys}, {self.values}]{_limited(self.limits)}"


class OneOf(msgspec.Struct, frozen=True, tag="one_of"):
    """A union."""

    options: tuple[Shape, ...]

    def __str__(self) -> str:
        return " | ".join(map(str, self.options))


class Nested(msgspec.Struct, frozen=True, tag="nested"):
    """A struct described in `Description.types`; "" is the record itself."""

    name: str

    def __str__(self) -> str:
        return self.name or "itself"


Shape: TypeAlias = Scalar | EnumChoice | Many | Several | Mapping | OneOf | Nested


class Field(msgspec.Struct, frozen=True, omit_defaults=True):
    """A field; one that is not required has a default, or may be left out."""

    name: str
    shape: Shape
    required: bool = False


class Fields(msgspec.Struct, frozen=True, omit_defaults=True):
    """The fields of a struct."""

    fields: tuple[Field, ...]
    #: Unknown fields are refused.
    closed: bool = False
    #: Written as a list of values, in this order.
    listed: bool = False

    def get(self, name: str) -> Field | None:
        return next((field for field in self.fields if field.name == name), None)


class Description(msgspec.Struct, frozen=True):
    """A record type: the name of its class, its fields, and the structs in it."""

    name: str
    types: dict[str, Fields]

    @property
    def fields(self) -> tuple[Field, ...]:
        return self.types[""].fields


NOTHING = Scalar("None")
ANYTHING = Scalar("anything")


def without_none(shape: Shape) -> tuple[Shape, bool]:
    if isinstance(shape, EnumChoice) and None in shape.values:
        return EnumChoice(tuple(value for value in shape.values if value is not None)), True
    if not isinstance(shape, OneOf):
        return shape, False
    options = [option for option in shape.options if option != NOTHING]
    nullable = len(options) < len(shape.options)
    return (options[0] if len(options) == 1 else OneOf(tuple(options))), nullable


def describe(cls: type[msgspec.Struct]) -> Description:
    return _Reader(cls).description()


_SCALARS: dict[type[inspect.Type], ScalarName] = {
    inspect.NoneType: "None",
    inspect.BoolType: "bool",
    inspect.IntType: "int",
    inspect.FloatType: "float",
    inspect.StrType: "str",
    inspect.BytesType: "bytes",
    inspect.ByteArrayType: "bytes",
    inspect.MemoryViewType: "bytes",
    inspect.DateTimeType: "datetime",
    inspect.DateType: "date",
    inspect.TimeType: "time",
    inspect.TimeDeltaType: "timedelta",
    inspect.UUIDType: "UUID",
    inspect.DecimalType: "Decimal",
}
_MANY: dict[type[inspect.Type], Literal["list", "set", "tuple"]] = {
    inspect.ListType: "list",
    inspect.CollectionType: "list",
    inspect.SetType: "set",
    inspect.FrozenSetType: "set",
    inspect.VarTupleType: "tuple",
}
_WITH_FIELDS = (inspect.StructType, inspect.DataclassType, inspect.TypedDictType)


class _Reader:
    def __init__(self, cls: type[msgspec.Struct]) -> None:
        root = inspect.type_info(cls)
        assert isinstance(root, inspect.StructType)  # noqa: S101 (of a struct)
        self._root = root
        met: dict[Any, Any] = {cls: root}
        _gather(root, met)
        self._names = _names([each for each in met if each != cls])
        self._names[cls] = ""
        self._met = met

    def description(self) -> Description:
        types = {self._names[cls]: self._fields(info) for cls, info in self._met.items()}
        return Description(self._root.cls.__name__, dict(sorted(types.items())))

    def _fields(self, info: Any) -> Fields:
        fields = [
            Field(field.encode_name, self._shape(field.type), field.required)
            for field in info.fields
        ]
        if getattr(info, "tag_field", None) is not None:
            fields.insert(0, Field(info.tag_field, EnumChoice((info.tag,))))
        closed = getattr(info, "forbid_unknown_fields", False)
        return Fields(tuple(fields), closed, getattr(info, "array_like", False))

    def _shape(self, info: inspect.Type) -> Shape:
        if (scalar := _SCALARS.get(type(info))) is not None:
            return Scalar(scalar, _limits(info))
        if (kind := _MANY.get(type(info))) is not None:
            return Many(self._shape(info.item_type), kind, _limits(info))  # type: ignore[attr-defined]
        match info:
            case inspect.Metadata():
                return self._shape(info.type)
            case inspect.EnumType():
                return EnumChoice(_in_order(member.value for member in info.cls))
            case inspect.LiteralType():
                return EnumChoice(_in_order(info.values))
            case inspect.DictType():
                return Mapping(
                    self._shape(info.key_type), self._shape(info.value_type), _limits(info)
                )
            case inspect.TupleType():
                return Several(tuple(self._shape(item) for item in info.item_types))
            case inspect.UnionType():
                return OneOf(tuple(self._shape(option) for option in info.types))
            case inspect.StructType(array_like=True) if info is not self._root:
                tag = () if info.tag_field is None else (EnumChoice((info.tag,)),)
                return self._places(info.fields, tag)
            case inspect.NamedTupleType():
                return self._places(info.fields, ())
            case _ if isinstance(info, _WITH_FIELDS):
                return Nested(self._names[info.cls])
        return ANYTHING

    def _places(self, fields: tuple[inspect.Field, ...], first: tuple[Shape, ...]) -> Several:
        """A struct that is written as a list. One inside itself is not followed."""
        required = sum(field.required for field in fields)
        shapes = [
            ANYTHING if _is_listed(field.type) else self._shape(field.type) for field in fields
        ]
        return Several((*first, *shapes), len(first) + required)


def _is_listed(info: inspect.Type) -> bool:
    found: dict[Any, Any] = {}
    _gather(info, found, listed=True)
    return bool(found)


_INSIDE = ("type", "item_type", "key_type", "value_type")


def _gather(info: Any, met: dict[Any, Any], *, listed: bool = False) -> None:
    """Class → its type info, for every struct inside a type; `listed`: those written as lists."""
    stack, seen = [info], set()
    while stack:
        each = stack.pop()
        if id(each) in seen:
            continue
        seen.add(id(each))
        is_list = isinstance(each, inspect.NamedTupleType) or getattr(each, "array_like", False)
        if isinstance(each, _WITH_FIELDS) and not is_list and not listed:
            met.setdefault(each.cls, each)
        if is_list and listed:
            met.setdefault(each.cls, each)
        inner = [getattr(each, name, None) for name in _INSIDE]
        stack.extend(each for each in inner if isinstance(each, inspect.Type))
        stack.extend(reversed(getattr(each, "types", ()) or getattr(each, "item_types", ())))
        stack.extend(field.type for field in reversed(getattr(each, "fields", ())))


#: What a message of an exported file cannot be called, or is already.
_TAKEN = re.compile(r"Anything|string|bytes|bool|int64|double|\d.*|").fullmatch


def _names(classes: list[Any]) -> dict[Any, str]:
    named = {cls: _word(_title(cls)) for cls in classes}
    for title in (lambda cls: f"{cls.__module__}.{_title(cls)}", None):
        shared = {name for name, count in Counter(named.values()).items() if count > 1}
        for number, (cls, name) in enumerate(list(named.items()), 1):
            if name in shared:
                named[cls] = f"{name}_{number}" if title is None else _word(title(cls))
    return {cls: f"T_{name}" if _TAKEN(name) else name for cls, name in named.items()}


def _title(cls: Any) -> str:
    """The name of a class with its parameters: ``Box[int]`` is Box_int."""
    name = str(getattr(cls, "__name__", cls))
    return "_".join([name, *(_title(each) for each in get_args(cls))])


def _word(text: str) -> str:
    return re.sub(r"\W+", "_", text, flags=re.ASCII).strip("_")


def _in_order(values: Any) -> tuple[Any, ...]:
    return tuple(sorted(values, key=lambda value: (type(value).__name__, str(value))))


_LIMITS = ("gt", "ge", "lt", "le", "multiple_of", "pattern", "min_length", "max_length", "tz")


def _limits(info: inspect.Type) -> Limits:
    found = {name: getattr(info, name, None) for name in _LIMITS}
    return {name: limit for name, limit in found.items() if limit is not None}


def _limited(limits: Limits) -> str:
    return f" ({', '.join(f'{name} {limit}' for name, limit in limits.items())})" if limits else ""
