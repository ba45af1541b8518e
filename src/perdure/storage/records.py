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

import copy
import enum
import functools
import operator
import re
from collections.abc import Callable, Sequence
from datetime import datetime, timedelta
from typing import Any, Generic, TypeVar

import msgspec

from perdure.core import clock
from perdure.core.errors import (
    Corrupted,
    InvalidRecordType,
    InvalidValue,
    MigrationFailed,
    TooLarge,
)
from perdure.storage import codecs, declarations, record_keys
from perdure.storage.adapter import newer_schema
from perdure.storage.codecs import PROTOBUF, ValueCodec
from perdure.storage.codecs.msgpack_codec import is_same
from perdure.storage.codecs.value_codec import in_words
from perdure.storage.declarations import (
    Compressed,
    Encrypted,
    Indexed,
    Key,
    Tags,
    columns_of,
    indexes_of,
    is_name,
    marked_fields,
    only_key,
    refuse_exposed,
)
from perdure.storage.query import Scalar
from perdure.storage.rows import MAX_VALUE_BYTES, Index, Kind, Layout, Put, Row, checksum

__all__ = [
    "Compressed",
    "Encrypted",
    "Indexed",
    "Key",
    "Migration",
    "RecordType",
    "Tags",
    "record",
    "system_record",
    "type_of",
]

T = TypeVar("T", bound=msgspec.Struct)

Migration = Callable[[dict[str, Any]], dict[str, Any]]


class RecordType(Generic[T]):
    """A declaration, ready to encode and decode records."""

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
        self.serializer = serializer
        #: The type as it was declared; one that is bound to a store knows more.
        self.origin = self
        codec = codecs.BY_NAME[serializer]
        self._encode = codec.encode
        self._decode = codec.decode
        self._content_type = codec.content_type
        self._codec_of: Callable[[str], ValueCodec] = codecs.codec_of
        marked = marked_fields(cls)
        refuse_exposed(cls, marked, indexes)
        self.key_field = only_key(cls, marked)
        self.compressed = any(Compressed in marks for marks, _ in marked.values())
        self.encrypted = any(Encrypted in marks for marks, _ in marked.values())
        self._key = operator.attrgetter(self.key_field)
        tags = [field for field, (marks, _) in marked.items() if Tags in marks]
        self._tags = operator.attrgetter(tags[0]) if tags else None
        declared, self._columns = columns_of(cls, marked, indexes)
        self.layout = Layout(
            name,
            declared,
            indexes_of(cls, marked, declared, indexes),
            expires=ttl is not None,
            tagged=bool(tags),
            schema=self.schema,
        )
        #: Columns whose numbers are times.
        self.times = {"created", "updated"} | {
            field for field, (_, hint) in marked.items() if declarations.is_time(hint)
        }
        self.kinds: dict[str, Kind] = {column.name: column.kind for column in declared}

    @property
    def is_own(self) -> bool:
        return self.name.startswith("perdure_")

    @property
    def content_type(self) -> str:
        return self._content_type

    def bound(self, protobuf: Callable[[], ValueCodec]) -> RecordType[T]:
        """This type with the message numbers of a store; the codec is made when needed."""
        bound = copy.copy(self)
        bound._bind(functools.cache(protobuf))  # noqa: SLF001 (it is one of us)
        return bound

    def _bind(self, protobuf: Callable[[], ValueCodec]) -> None:
        if self.serializer == "protobuf":
            self._encode, self._decode = protobuf().encode, protobuf().decode
        self._codec_of = lambda kind: protobuf() if kind == PROTOBUF else codecs.codec_of(kind)

    def key(self, record: T) -> str:
        return record_keys.check(self._key(record))

    def columns(self, record: T) -> tuple[Scalar, ...]:
        return tuple([convert(get(record)) for get, convert in self._columns])

    def encode(self, record: T, expires: int | None, expected: int | None) -> Put:
        if type(record) is not self.cls:
            raise InvalidValue(
                f"The collection {self.name!r} holds {self.cls.__name__},"
                f" not {type(record).__name__}.",
                hint="Use the collection of that type.",
            )
        key = record_keys.check(self._key(record))
        value = self._encode(record)
        self._check_readable(key, value, record)
        if len(value) > MAX_VALUE_BYTES:
            raise TooLarge(
                f"{self.name}/{key} takes {len(value):,} bytes; {MAX_VALUE_BYTES:,} is the limit.",
                hint="Keep the large part as an artifact (bank.artifacts) and refer to it.",
            )
        content_type = self._content_type
        tags = None if self._tags is None else self._tags(record)
        return Put(
            self.name,
            key,
            value,
            content_type,
            self.schema,
            checksum(key, content_type, self.schema, value),
            self.columns(record) if self._columns else (),
            declarations.tag_pairs(tags) if tags else (),
            expires,
            expected,
        )

    def _check_readable(self, key: str, value: bytes, record: T) -> None:
        """Refuse what could not be read back: structs do not check their own values."""
        try:
            found = self._decode(value, self.cls)
        except Corrupted as exc:
            cause = exc.__cause__
            if not isinstance(cause, msgspec.ValidationError):
                raise InvalidValue(
                    f"{self.name}/{key} could not be read again: {exc.message}",
                    hint="Mend the value, or declare the record with another serializer.",
                ) from exc
            raise InvalidValue(
                f"{self.name}/{key} has a field of another type than {self.cls.__name__} declares:"
                f" {in_words(cause)}.",
                hint="Use a value of the declared type.",
            ) from exc
        if self.serializer == "json" and not is_same(found, record):
            raise InvalidValue(
                f"{self.name}/{key} would come back from JSON with other values: it has bytes, a"
                " time or the like where its type does not say so.",
                hint=f"Declare the type of that field in {self.cls.__name__} instead of Any; or"
                ' declare the record with serializer="msgpack".',
            )

    def decode(self, row: Row) -> T:
        """The record of a row, migrated to the current schema.

        Raises `Corrupted` if it does not fit the type, `NewerSchema` if newer code wrote it, and
        `MigrationFailed` if it cannot be migrated; each names the record.
        """
        try:
            codec = self._codec_of(row.content_type)
            if row.schema == self.schema:
                return codec.decode(row.value, self.cls)
            if row.schema < self.schema:
                plain = codec.decode_plain(row.value)
                return self.migrate(plain, row.schema, f"{self.name}/{row.key}")[1]
        except Corrupted as exc:
            name = f"{self.name}/{row.key}"
            raise Corrupted(f"{name}: {exc.message}", hint=exc.hint, record=name) from exc
        raise newer_schema(self.name, row.key, row.schema, self.schema)

    def decode_all(self, rows: Sequence[Row]) -> list[T]:
        """The records of rows: see `decode`."""
        decode, cls, form, schema = self._decode, self.cls, self._content_type, self.schema
        try:
            return [
                decode(row.value, cls)
                if row.content_type == form and row.schema == schema
                else self.decode(row)
                for row in rows
            ]
        except Corrupted:
            return [self.decode(row) for row in rows]  # which says whose it is

    def migrate(self, plain: Any, schema: int, what: str) -> tuple[Any, T]:
        """Plain data of an older schema as it is now, and the record that it makes.

        Raises `MigrationFailed`, naming `what`.
        """
        step, upto = schema, schema + 1
        try:
            for step in range(schema, self.schema):
                upto = step + 1
                plain = self._migrations[step - 1](plain)
            step = schema
            # JSON has no keys but text.
            return plain, msgspec.convert(plain, self.cls, str_keys=True)
        except Exception as exc:  # it is the user's function: anything may come out of it
            raise MigrationFailed(
                f"{what} could not be brought from schema {step} to {upto}:"
                f" {type(exc).__name__}: {exc}.",
                hint="Mend the migration; the stored record is unchanged.",
            ) from exc

    def can_index(self, field: str) -> bool:
        """Whether marking this field `Indexed` would be accepted."""
        if field in ("created", "updated"):
            return True
        marks, hint = marked_fields(self.cls).get(field, ({Encrypted}, None))
        return Encrypted not in marks and declarations.is_indexable(hint)

    def field(self, name: str) -> str:
        """The column of a field; the key field's column is "key"."""
        return "key" if name == self.key_field else name

    def comparable(self, column: str, value: object) -> Scalar:
        if column in self.times and value is not None and not isinstance(value, datetime):
            raise InvalidValue(
                f"{self.name}.{column} holds times, and cannot be compared with {value!r}.",
                hint="Compare it with an aware datetime, such as datetime.now(UTC).",
            )
        return self.scalar(column, value)

    def scalar(self, column: str, value: object) -> Scalar:
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
            return record_keys.check_indexed(value, column)
        if isinstance(value, bool):
            return int(value)
        if isinstance(value, int):
            return declarations.integer(value, column)
        return declarations.real(value, column)  # type: ignore[arg-type]


_RESERVED = re.compile(r"perdure_|sqlite_|pg_").match
_HOLDS = {"text": "text", "integer": "whole numbers or times", "real": "numbers"}
_types: dict[type, RecordType[Any]] = {}


def record(
    name: str,
    *,
    ttl: str | timedelta | float | None = None,
    indexes: Sequence[Index] = (),
    migrations: Sequence[Migration] = (),
    serializer: str = "json",
) -> Callable[[type[T]], type[T]]:
    """Declare a frozen struct as the record type of the collection `name`.

    `ttl` lets records expire ("30d", a timedelta, seconds). `indexes` adds indexes over several
    fields or over ``created`` and ``updated``. `migrations` lists functions that upgrade plain
    data, one version each: the schema version is one more than their number. `serializer` is
    ``json``, ``msgpack`` (smaller, and any value keeps its type), ``protobuf`` or one of your own.

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
    """Like `record`, for Perdure's own types with reserved names."""
    return _declare(f"perdure_{name}", ttl, indexes, migrations, "msgpack")


def _declare(
    name: str,
    ttl: str | timedelta | float | None,
    indexes: Sequence[Index],
    migrations: Sequence[Migration],
    serializer: str,
) -> Callable[[type[T]], type[T]]:
    if not is_name(name) or "__" in name:
        raise InvalidRecordType(
            f"{name!r} cannot be the name of a collection.",
            hint="Use up to 48 lower-case letters, digits and single underscores.",
        )
    if serializer not in codecs.BY_NAME:
        raise InvalidRecordType(
            f"There is no serializer {serializer!r}.",
            hint=f"Use one of {', '.join(codecs.BY_NAME)}, or register yours before:"
            " perdure.storage.codecs.register(name, codec).",
        )
    if not all(callable(each) for each in migrations):
        raise InvalidRecordType(
            f"The migrations of {name!r} are not functions.",
            hint="Give a list of functions, one for each version: migrations=[add_language].",
        )
    if not all(isinstance(each, Index) for each in indexes):
        raise InvalidRecordType(
            f"The indexes of {name!r} are not all of type Index.",
            hint='Write: indexes=[Index(("author", "created"))].',
        )

    def declare(cls: type[T]) -> type[T]:
        if not _is_frozen_struct(cls):
            raise InvalidRecordType(
                f"{cls.__name__} is not a frozen msgspec struct.",
                hint=f"Write: class {cls.__name__}(msgspec.Struct, frozen=True).",
            )
        if serializer == "protobuf" and cls.__struct_config__.array_like:
            raise InvalidRecordType(
                f"{cls.__name__} is written as a list (array_like), which protobuf cannot do.",
                hint="Leave array_like out, or use another serializer.",
            )
        _types[cls] = RecordType(
            cls, name, ttl=ttl, indexes=indexes, migrations=migrations, serializer=serializer
        )
        return cls

    return declare


def _is_frozen_struct(cls: type) -> bool:
    return issubclass(cls, msgspec.Struct) and cls.__struct_config__.frozen


def all_types() -> list[RecordType[Any]]:
    return list({declared.name: declared for declared in _types.values()}.values())


def type_of(cls: type[T]) -> RecordType[T]:
    try:
        return _types[cls]
    except (KeyError, TypeError):
        raise InvalidRecordType(
            f"{getattr(cls, '__name__', repr(cls))} is not declared as a record type.",
            hint='Decorate it with @perdure.record("name").',
        ) from None
