"""Reading a declaration: the markers on a struct's fields, and what they come to."""

from __future__ import annotations

import operator
import re
import typing
from collections.abc import Callable, Sequence
from typing import Any, get_args, get_origin

import msgspec

from perdure.core.errors import InvalidRecordType
from perdure.storage import columns
from perdure.storage.layouts import Column, Index
from perdure.storage.query import BUILT_IN, Scalar


class Key(msgspec.Struct, frozen=True):
    """Marks the field that is the record's key."""


class Indexed(msgspec.Struct, frozen=True):
    """Marks a field that can be queried and ordered by: it gets a column and an index."""


class Compressed(msgspec.Struct, frozen=True):
    """Marks a field that is worth compressing: values of this type are stored compressed, whole."""


class Tags(msgspec.Struct, frozen=True):
    """Marks the field, a dict of strings, whose pairs are the record's tags."""


class Encrypted(msgspec.Struct, frozen=True):
    """Marks a field that may only be stored encrypted: values of this type are, whole.

    It cannot be indexed, and without a master key such a type cannot be written.
    """


#: What collections and columns may be called.
is_name = re.compile(r"[a-z][a-z0-9_]{0,47}").fullmatch
_CONSTANT = re.compile(r"[A-Za-z0-9_.-]*").fullmatch

Marked = dict[str, tuple[set[type], Any]]


def marked_fields(cls: type[msgspec.Struct]) -> Marked:
    """Field → (its markers, its bare type)."""
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
    """Raises `InvalidRecordType` if a field is to be encrypted and to be found in clear."""
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
        kind, convert = columns.column_of(cls, field, hint)
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
