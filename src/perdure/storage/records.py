"""Record types, declared once.

    @record("notes", ttl="30d", indexes=[Index(("author", "created"))])
    class Note(msgspec.Struct, frozen=True):
        id: Annotated[str, Key()]
        author: Annotated[str, Indexed()]
        text: Annotated[str, Compressed()]
        labels: Annotated[dict[str, str], Tags()] = {}

The declaration says everything a store has to know: the name of the collection, which field is the
key, what can be queried, what expires, what is compressed. Declared indexes are real columns;
adding one to a collection that has records is a migration, carried out when it is next opened.
"""

from __future__ import annotations

import enum
import operator
import re
import typing
from collections.abc import Callable, Sequence
from datetime import datetime, timedelta
from typing import Any, Generic, TypeVar, get_args, get_origin

import msgspec

from perdure.core import clock
from perdure.core.errors import (
    Corrupted,
    InvalidRecordType,
    InvalidValue,
    MigrationFailed,
    TooLarge,
)
from perdure.storage import codecs, columns, keys
from perdure.storage.adapter import (
    MAX_VALUE_BYTES,
    Column,
    Index,
    Kind,
    Layout,
    Put,
    Row,
    checksum,
    newer_schema,
)
from perdure.storage.query import BUILT_IN, Scalar

T = TypeVar("T", bound=msgspec.Struct)

#: From plain data of one schema version to the next.
Migration = Callable[[dict[str, Any]], dict[str, Any]]


class Key(msgspec.Struct, frozen=True):
    """Marks the field that is the record's key."""


class Indexed(msgspec.Struct, frozen=True):
    """Marks a field that can be queried and ordered by: it gets a column and an index."""


class Compressed(msgspec.Struct, frozen=True):
    """Marks a field that is worth compressing: values of this type are stored compressed, whole."""


class Tags(msgspec.Struct, frozen=True):
    """Marks the field, a dict of strings, whose pairs are the record's tags."""


class Encrypted(msgspec.Struct, frozen=True):
    """Marks a field that may only be stored encrypted. Not honoured yet, and so refused."""


_NAME = re.compile(r"[a-z][a-z0-9_]{0,47}").fullmatch
_CONSTANT = re.compile(r"[A-Za-z0-9_.-]*").fullmatch
_RESERVED = re.compile(r"perdure_|sqlite_|pg_").match


class RecordType(Generic[T]):
    """What a declaration comes to: how to take a record apart and put it together again."""

    def __init__(
        self,
        cls: type[T],
        name: str,
        *,
        ttl: str | timedelta | float | None,
        indexes: Sequence[Index],
        migrations: Sequence[Migration],
        serializer: str,
    ) -> None:
        self.cls = cls
        self.name = name
        self.schema = len(migrations) + 1
        self.ttl = None if ttl is None else clock.duration(ttl)
        self._migrations = tuple(migrations)
        codec = codecs.BY_NAME[serializer]
        self._encode = codec.encode
        self._decode = codec.decode
        self._content_type = codec.content_type
        marked = _marked_fields(cls)
        self.key_field = _only_key(cls, marked)
        self.compressed = any(Compressed in marks for marks, _ in marked.values())
        self._key = operator.attrgetter(self.key_field)
        tags = [field for field, (marks, _) in marked.items() if Tags in marks]
        self._tags = operator.attrgetter(tags[0]) if tags else None
        declared, self._columns = _columns(cls, marked, indexes)
        self.layout = Layout(
            name,
            declared,
            _indexes(cls, marked, declared, indexes),
            expires=ttl is not None,
            tagged=bool(tags),
            schema=self.schema,
        )
        #: Columns whose numbers are times.
        self.times = {"created", "updated"} | {
            field for field, (_, hint) in marked.items() if columns.is_time(hint)
        }
        self.kinds: dict[str, Kind] = {column.name: column.kind for column in declared}

    def key(self, record: T) -> str:
        """The record's key, checked."""
        return keys.check(self._key(record))

    def columns(self, record: T) -> tuple[Scalar, ...]:
        """The values of the declared columns, in the order of the layout."""
        return tuple([convert(get(record)) for get, convert in self._columns])

    def encode(self, record: T, expires: int | None, expected: int | None) -> Put:
        """The write that stores the record."""
        if type(record) is not self.cls:
            raise InvalidValue(
                f"The collection {self.name!r} holds {self.cls.__name__},"
                f" not {type(record).__name__}.",
                hint="Use the collection of that type.",
            )
        key = keys.check(self._key(record))
        value = self._encode(record)
        self._check_readable(key, value)
        if len(value) > MAX_VALUE_BYTES:
            raise TooLarge(
                f"{self.name}/{key} takes {len(value):,} bytes; {MAX_VALUE_BYTES:,} is the limit.",
                hint="Keep the large part as an artifact (bank.artifacts) and refer to it.",
            )
        content_type = self._content_type
        return Put(
            self.name,
            key,
            value,
            content_type,
            self.schema,
            checksum(key, content_type, self.schema, value),
            self.columns(record) if self._columns else (),
            () if self._tags is None else columns.tag_pairs(self._tags(record)),
            expires,
            expected,
        )

    def _check_readable(self, key: str, value: bytes) -> None:
        """Structs do not check what they are made of: what could not be read is not written."""
        try:
            self._decode(value, self.cls)
        except Corrupted as exc:
            raise InvalidValue(
                f"{self.name}/{key} has a field of another type than {self.cls.__name__} declares:"
                f" {exc.__cause__}.",
                hint="Use a value of the declared type.",
            ) from exc

    def decode(self, row: Row) -> T:
        """The record of a row, brought to the current schema."""
        codec = codecs.codec_of(row.content_type)
        if row.schema == self.schema:
            try:
                return codec.decode(row.value, self.cls)
            except Corrupted as exc:
                name = f"{self.name}/{row.key}"
                raise Corrupted(f"{name}: {exc.message}", hint=exc.hint, record=name) from exc
        if row.schema > self.schema:
            raise newer_schema(self.name, row.key, row.schema, self.schema)
        plain = codec.decode_plain(row.value)
        step = row.schema
        try:
            for step in range(row.schema, self.schema):
                plain = self._migrations[step - 1](plain)
            # JSON has no keys but text.
            return msgspec.convert(plain, self.cls, str_keys="json" in row.content_type)
        except Exception as exc:  # it is the user's function: anything may come out of it
            raise MigrationFailed(
                f"{self.name}/{row.key} could not be brought from schema {step} to"
                f" {self.schema}: {type(exc).__name__}: {exc}.",
                hint="Mend the migration; the stored record is unchanged.",
            ) from exc

    def field(self, name: str) -> str:
        """The column of a field: the key field is called "key" in queries' inner form."""
        return "key" if name == self.key_field else name

    def comparable(self, column: str, value: object) -> Scalar:
        """A caller's value to compare a column with: times with times, and so on."""
        if column in self.times and value is not None and not isinstance(value, datetime):
            raise InvalidValue(
                f"{self.name}.{column} holds times, and cannot be compared with {value!r}.",
                hint="Compare it with an aware datetime, such as datetime.now(UTC).",
            )
        return self.scalar(column, value)

    def scalar(self, column: str, value: object) -> Scalar:
        """A value as a column of this kind holds it."""
        kind: Kind = "text" if column == "key" else self.kinds.get(column, "integer")
        if isinstance(value, enum.Enum):
            value = value.value
        if isinstance(value, datetime):
            value = clock.from_datetime(value)
        fits = {
            "text": isinstance(value, str),
            "integer": isinstance(value, int | float),
            "real": isinstance(value, int | float),
        }[kind]
        if value is not None and not fits:
            raise InvalidValue(
                f"{self.name}.{column} holds {_HOLDS[kind]}, and cannot be compared with"
                f" {value!r}.",
                hint="Compare it with a value of its own type.",
            )
        if isinstance(value, str):
            return keys.check_indexed(value, column)
        if isinstance(value, bool):
            return int(value)
        if isinstance(value, int):
            return columns.integer(value, column)
        return columns.real(value, column)  # type: ignore[arg-type]


_HOLDS = {"text": "text", "integer": "whole numbers or times", "real": "numbers"}
_types: dict[type, RecordType[Any]] = {}


def record(
    name: str,
    *,
    ttl: str | timedelta | float | None = None,
    indexes: Sequence[Index] = (),
    migrations: Sequence[Migration] = (),
    serializer: str = "msgpack",
) -> Callable[[type[T]], type[T]]:
    """Declare a frozen struct as the record type of the collection `name`.

    `ttl` lets records expire ("30d", a timedelta, seconds). `indexes` adds indexes over several
    fields or over ``created`` and ``updated``. `migrations` is the list of functions that upgrade
    plain data, one version each: a type's schema version is one more than their number.

    Raises `InvalidRecordType` if the declaration cannot work.
    """
    if not isinstance(name, str):
        raise InvalidRecordType(
            "A record needs the name of its collection.", hint='Write @perdure.record("notes").'
        )
    if _RESERVED(name):
        raise InvalidRecordType(
            f"The name {name!r} is reserved.", hint="Begin it with something else."
        )
    return _declare(name, ttl, indexes, migrations, serializer)


def system_record(
    name: str,
    *,
    ttl: str | timedelta | float | None = None,
    indexes: Sequence[Index] = (),
    migrations: Sequence[Migration] = (),
) -> Callable[[type[T]], type[T]]:
    """Declare a record type of Perdure's own: like `record`, in the reserved names."""
    return _declare(f"perdure_{name}", ttl, indexes, migrations, "msgpack")


def _declare(
    name: str,
    ttl: str | timedelta | float | None,
    indexes: Sequence[Index],
    migrations: Sequence[Migration],
    serializer: str,
) -> Callable[[type[T]], type[T]]:
    if not _NAME(name) or "__" in name:
        raise InvalidRecordType(
            f"{name!r} cannot be the name of a collection.",
            hint="Use up to 48 lower-case letters, digits and single underscores.",
        )
    if serializer not in codecs.BY_NAME:
        raise InvalidRecordType(
            f"There is no serializer {serializer!r}.",
            hint=f"Use one of {', '.join(codecs.BY_NAME)}.",
        )

    def declare(cls: type[T]) -> type[T]:
        if not _is_frozen_struct(cls):
            raise InvalidRecordType(
                f"{cls.__name__} is not a frozen msgspec struct.",
                hint=f"Write: class {cls.__name__}(msgspec.Struct, frozen=True).",
            )
        _types[cls] = RecordType(
            cls, name, ttl=ttl, indexes=indexes, migrations=migrations, serializer=serializer
        )
        return cls

    return declare


def _is_frozen_struct(cls: type) -> bool:
    return issubclass(cls, msgspec.Struct) and cls.__struct_config__.frozen


def type_of(cls: type[T]) -> RecordType[T]:
    """The declaration of a record class."""
    try:
        return _types[cls]
    except (KeyError, TypeError):
        raise InvalidRecordType(
            f"{getattr(cls, '__name__', repr(cls))} is not declared as a record type.",
            hint='Decorate it with @perdure.record("name").',
        ) from None


# Reading a declaration -------------------------------------------------------------------------

_Marked = dict[str, tuple[set[type], Any]]


def _marked_fields(cls: type[msgspec.Struct]) -> _Marked:
    """Field → (its markers, its bare type)."""
    hints = typing.get_type_hints(cls, include_extras=True)
    marked: _Marked = {}
    for field in cls.__struct_fields__:
        hint = hints[field]
        marks: set[type] = set()
        if get_origin(hint) is typing.Annotated:
            hint, *extras = get_args(hint)
            marks = {extra if isinstance(extra, type) else type(extra) for extra in extras}
        if Encrypted in marks:
            raise InvalidRecordType(
                f"{cls.__name__}.{field} is marked Encrypted, but encryption is not available yet.",
                hint="Remove the marker, or keep the field elsewhere: it would be stored plain.",
            )
        marked[field] = (marks, hint)
    return marked


def _only_key(cls: type, marked: _Marked) -> str:
    found = [field for field, (marks, _) in marked.items() if Key in marks]
    if len(found) != 1 or marked[found[0]][1] is not str:
        raise InvalidRecordType(
            f"{cls.__name__} needs exactly one text field marked Key.",
            hint="Write, for example: id: Annotated[str, Key()].",
        )
    return found[0]


_Getter = tuple[Callable[[Any], Any], Callable[[Any], Scalar]]


def _columns(
    cls: type, marked: _Marked, indexes: Sequence[Index]
) -> tuple[tuple[Column, ...], list[_Getter]]:
    mentioned = {column for index in indexes for column in index.columns}
    mentioned |= {column for index in indexes for column, _ in index.where}
    found: list[Column] = []
    getters: list[_Getter] = []
    for field, (marks, hint) in marked.items():
        if Indexed not in marks and field not in mentioned:
            continue
        if field in BUILT_IN or not _NAME(field) or Key in marks:
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


def _indexes(
    cls: type, marked: _Marked, fields: tuple[Column, ...], declared: Sequence[Index]
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
