"""Reads a record declaration: the markers on a struct's fields."""

from __future__ import annotations

import enum
import math
import operator
import re
import types
import typing
from collections.abc import Callable, Iterable, Sequence
from datetime import datetime
from typing import Any, get_args, get_origin

import msgspec

from perdure.core import clock
from perdure.core.errors import InvalidInput, InvalidRecordType, InvalidValue
from perdure.storage import record_keys
from perdure.storage.query import BUILT_IN, Scalar
from perdure.storage.rows import Column, Index, Kind


class Key(msgspec.Struct, frozen=True):
    """Marks the field that is the record's key."""


class Indexed(msgspec.Struct, frozen=True):
    """Marks a field that can be queried and ordered by: it gets a column and an index."""


class Compressed(msgspec.Struct, frozen=True):
    """Marks a field worth compressing: values of this type are stored compressed, whole."""


class Tags(msgspec.Struct, frozen=True):
    """Marks the field, a dict of strings, whose pairs are the record's tags."""


class Encrypted(msgspec.Struct, frozen=True):
    """Marks a field stored only encrypted: it cannot be indexed, and needs a master key."""


is_name = re.compile(r"[a-z][a-z0-9_]{0,47}").fullmatch
_CONSTANT = re.compile(r"[A-Za-z0-9_.-]*").fullmatch

Marked = dict[str, tuple[set[type], Any]]


def marked_fields(cls: type[msgspec.Struct]) -> Marked:
    hints = typing.get_type_hints(cls, include_extras=True)
    marked: Marked = {}
    for field in cls.__struct_fields__:
        hint = hints[field]
        marks: set[type] = set()
        if get_origin(hint) is typing.Annotated:
            hint, *extras = get_args(hint)
            marks = {extra if isinstance(extra, type) else type(extra) for extra in extras}
        if Tags in marks and get_origin(hint) is not dict and hint is not dict:
            raise InvalidRecordType(
                f"{cls.__name__}.{field} is marked Tags, but is no dict of texts.",
                hint="Write: Annotated[dict[str, str], Tags()].",
            )
        marked[field] = (marks, hint)
    return marked


def refuse_exposed(cls: type, marked: Marked, indexes: Sequence[Index]) -> None:
    """Raises `InvalidRecordType` if an encrypted field is also indexed or otherwise in clear."""
    mentioned = {column for index in indexes for column in index.columns}
    mentioned |= {column for index in indexes for column, _ in index.where}
    for field, (marks, _) in marked.items():
        if Encrypted in marks and (marks & {Key, Indexed, Tags} or field in mentioned):
            raise InvalidRecordType(
                f"{cls.__name__}.{field} is marked Encrypted, but keys, indexed fields and tags are"
                " stored in clear.",
                hint="Remove one of the markers; or encrypt the whole file of a SQLite bank, where"
                " everything can be indexed (encryption.whole_file).",
            )


def only_key(cls: type, marked: Marked) -> str:
    found = [field for field, (marks, _) in marked.items() if Key in marks]
    if len(found) != 1 or marked[found[0]][1] is not str:
        raise InvalidRecordType(
            f"{cls.__name__} needs exactly one text field marked Key.",
            hint="Write, for example: id: Annotated[str, Key()].",
        )
    return found[0]


Getter = tuple[Callable[[Any], Any], Callable[[Any], Scalar]]


def columns_of(
    cls: type, marked: Marked, indexes: Sequence[Index]
) -> tuple[tuple[Column, ...], list[Getter]]:
    mentioned = {column for index in indexes for column in index.columns}
    mentioned |= {column for index in indexes for column, _ in index.where}
    found: list[Column] = []
    getters: list[Getter] = []
    for field, (marks, hint) in marked.items():
        if Indexed not in marks and field not in mentioned:
            continue
        if field in BUILT_IN or not is_name(field) or Key in marks:
            if Key in marks and Indexed not in marks:
                continue
            raise InvalidRecordType(
                f"{cls.__name__}.{field} cannot be an indexed field.",
                hint=f"The key always is; {', '.join(BUILT_IN)} are taken: rename the field.",
            )
        kind, convert = column_of(cls, field, hint)
        found.append(Column(field, kind))
        getters.append((operator.attrgetter(field), convert))
    return tuple(found), getters


def indexes_of(
    cls: type, marked: Marked, fields: tuple[Column, ...], declared: Sequence[Index]
) -> tuple[Index, ...]:
    known = {column.name for column in fields}
    for index in declared:
        unknown = {*index.columns, *(c for c, _ in index.where)} - known - {"created", "updated"}
        if unknown or not index.columns or len(index.columns) > 4:
            raise InvalidRecordType(
                f"{cls.__name__} declares an index over {', '.join(index.columns) or 'nothing'}"
                f"{', ' + ', '.join(sorted(unknown)) + ' not being a field' if unknown else ''}.",
                hint="Name one to four fields of the type, or created or updated.",
            )
        if not all(isinstance(value, int) or _CONSTANT(value) for _, value in index.where):
            raise InvalidRecordType(
                f"{cls.__name__} declares a partial index with a constant that is no plain word.",
                hint="Use letters, digits, '_', '.' and '-', or a whole number.",
            )
    # An index serves its first column as well as one of that column alone would.
    leading = {index.columns[0] for index in declared if not index.where}
    single = [
        Index((field,))
        for field, (marks, _) in marked.items()
        if Indexed in marks and field not in leading
    ]
    return (*single, *declared)


_INT64 = range(-(2**63), 2**63)


def column_of(cls: type, field: str, hint: Any) -> tuple[Kind, Callable[[Any], Scalar]]:
    kinds = _kinds(hint)
    if not is_indexable(hint):
        raise InvalidRecordType(
            f"{cls.__name__}.{field} has a type that cannot be indexed.",
            hint="Index text, whole numbers, numbers, booleans, datetimes, enums, or their | None.",
        )
    kind: Kind = kinds.pop()  # type: ignore[assignment]  # None was refused above

    def convert(value: Any) -> Scalar:
        if value is None:
            return None
        if isinstance(value, enum.Enum):
            value = value.value
        if kind == "text":
            if not isinstance(value, str):
                raise _misfit(value, field, "text")
            return record_keys.check_indexed(value, field)
        if kind == "real":
            return real(value, field)
        if isinstance(value, datetime):
            return _moment(value, field)
        return integer(value, field)

    return kind, convert


def is_indexable(hint: Any) -> bool:
    kinds = _kinds(hint)
    return len(kinds) == 1 and None not in kinds


def _kinds(hint: Any) -> set[Kind | None]:
    options = [hint]
    if get_origin(hint) in (typing.Union, types.UnionType):
        options = [option for option in get_args(hint) if option is not type(None)]
    return {_scalar_kind(option) for option in options}


def is_time(hint: Any) -> bool:
    return hint is datetime or datetime in get_args(hint)


def _scalar_kind(hint: Any) -> Kind | None:
    if get_origin(hint) is typing.Literal:
        kinds = {_scalar_kind(type(value)) for value in get_args(hint)}
        return kinds.pop() if len(kinds) == 1 else None
    if not isinstance(hint, type):
        return None
    if issubclass(hint, enum.Enum):
        kinds = {_scalar_kind(type(member.value)) for member in hint}
        return kinds.pop() if len(kinds) == 1 else None
    if issubclass(hint, str):
        return "text"
    if issubclass(hint, int | datetime):
        return "integer"
    return "real" if issubclass(hint, float) else None


def integer(value: int, field: str) -> int:
    if not isinstance(value, int):  # in a range, anything else would be looked for one by one
        raise _misfit(value, field, "a whole number")
    if int(value) not in _INT64:
        raise InvalidValue(
            f"{value} in indexed field {field!r} does not fit in 64 bits.",
            hint="Index a smaller number, or its text.",
        )
    return int(value)


def real(value: float | None, field: str) -> float | None:
    if value is not None and not isinstance(value, int | float):
        raise _misfit(value, field, "a number")
    if value is not None and math.isnan(value):
        raise InvalidValue(
            f"Indexed field {field!r} is not a number (NaN), which has no place in an order.",
            hint="Use None.",
        )
    return None if value is None else float(value)


def _misfit(value: object, field: str, wanted: str) -> InvalidValue:
    return InvalidValue(
        f"{value!r} in indexed field {field!r} is not {wanted}.", hint="Use a value of its type."
    )


def _moment(value: datetime, field: str) -> int:
    try:
        return clock.from_datetime(value)
    except InvalidInput as exc:
        raise InvalidValue(f"Indexed field {field!r}: {exc.message}", hint=exc.hint) from None


def tag_pairs(tags: Iterable[tuple[str, str]] | dict[str, str]) -> tuple[tuple[str, str], ...]:
    pairs = tuple(tags.items() if isinstance(tags, dict) else tags)
    for name, value in pairs:
        if not isinstance(name, str) or not isinstance(value, str) or not name or "=" in name:
            raise InvalidValue(
                f"{name!r}: {value!r} cannot be a tag.",
                hint="A tag is a name without '=' and a value, both text.",
            )
        record_keys.check_indexed(f"{name}={value}", "tags")
    return pairs
