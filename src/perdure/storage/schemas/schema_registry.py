"""The schema registry of a store.

A type is registered before its collection is first written: one small record in
``perdure_schemas``, read once per collection and process, and written only if something is new.
Perdure's own types are not registered. Reading a collection writes nothing.

Schemas hold field names, limits and enum values, but no data. They bypass the middleware chain (not
encrypted, compressed or cached), so that they can be read before anything else is set up.
"""

from __future__ import annotations

import copy
import functools
from collections.abc import Callable, Iterator, Mapping
from datetime import datetime
from typing import Any, TypeVar

import msgspec

from perdure.core.display import install_hint
from perdure.core.errors import (
    Corrupted,
    InvalidInput,
    InvalidRecordType,
    MigrationFailed,
    PerdureError,
    SchemaMismatch,
    Unsupported,
)
from perdure.storage import codecs
from perdure.storage.adapter import Adapter, Capability, newer_schema, require
from perdure.storage.codecs import PROTOBUF, ValueCodec
from perdure.storage.codecs.protobuf_fields import Numbers, Wires
from perdure.storage.codecs.value_codec import in_words
from perdure.storage.collection_reader import Executor
from perdure.storage.concurrency import retry_conflicts
from perdure.storage.declarations import is_name
from perdure.storage.options import DEFAULT, STRONG
from perdure.storage.query import Query, SortOrder
from perdure.storage.records import RecordType, all_types, type_of
from perdure.storage.rows import Batch, Row, checksum
from perdure.storage.schemas import schema_records, type_shapes
from perdure.storage.schemas.schema_comparison import SchemaComparison, compare
from perdure.storage.schemas.schema_records import Schema, Version
from perdure.storage.schemas.schema_validation import (
    FieldProblem,
    check_description,
    find_problems,
)
from perdure.storage.schemas.type_shapes import Description

T = TypeVar("T", bound=msgspec.Struct)
_SCHEMAS = type_of(Schema)
_PAGE = 500
#: What stays as it is on the way to plain data.
_NATIVE = (bytes, bytearray, memoryview, datetime)
Progress = Callable[[str, int, int], None]


class SchemaRegistry:
    """The current and former schemas of a store's record types: `Store.schemas`."""

    def __init__(self, store: Executor, adapter: Adapter) -> None:
        self._store = store
        self._adapter = adapter
        self._there = False

    async def register(self, cls: type[msgspec.Struct]) -> Schema:
        """Prepare the type's collection for writing, with its version as the current one.

        The first write does that by itself. Raises `NewerSchema`, having changed nothing, if the
        collection has a newer version, and `InvalidRecordType` for a type of Perdure's own.
        """
        declared = type_of(cls)
        if declared.is_own:
            raise InvalidRecordType(
                f"{declared.name!r} is a collection of Perdure's own.",
                hint="Register record types of yours.",
            )
        await self._store.ready(declared)
        return await self.describe(declared.name)

    async def register_description(
        self, collection: str, description: Description, schema: int = 1
    ) -> Schema:
        """Register a type of which there is no class here, such as one of another program: data
        can be validated against it from then on.

        A new `schema` number may change anything, the same one only what older data fit as well.
        Raises `InvalidRecordType` for another change, for a name of Perdure's own and for a type
        that is declared here, and `NewerSchema` for a number below the current one.
        """
        if collection.startswith("perdure_") or not is_name(collection):
            raise InvalidRecordType(
                f"{collection!r} cannot be the collection of a type of yours.",
                hint="Use small letters, digits and underscores; not beginning with perdure_.",
            )
        if any(declared.name == collection for declared in all_types()):
            raise InvalidRecordType(
                f"The type of {collection!r} is declared in this process.",
                hint="Its class says what it is: register that.",
            )
        check_description(description)

        async def register(_: int) -> Schema:
            found, version = await self._read(collection) or (Schema(collection), 0)
            if found.versions and found.current.schema > schema:
                raise newer_schema(collection, "the type", found.current.schema, schema)
            if found.versions and found.current.schema == schema:
                if found.current.description == description:
                    return found
                compared = compare(found.current.description, description)
                if compared.needs_migration:
                    raise InvalidRecordType(
                        f"{collection!r} would need a migration: {compared.changes[0]}.",
                        hint=f"Register it as schema {schema + 1}.",
                    )
            made = Version(schema, "json", description, self._store.now())
            wanted = Schema(collection, (*found.versions, made), found.numbers)
            await self._is_there(make=True)
            put = _SCHEMAS.encode(wanted, None, version)
            await self._adapter.commit(Batch((put,)), DEFAULT)
            return wanted

        return await retry_conflicts(register)

    async def describe(self, collection: str) -> Schema:
        """The schema of a collection with its versions. `InvalidInput` if never written."""
        found = await self._read(collection)
        if found is None:
            raise InvalidInput(
                f"No schema is known of a collection {collection!r}.",
                hint="A type is registered when its collection is first written to.",
            )
        return found[0]

    async def collections(self) -> list[str]:
        names: list[str] = []
        while await self._is_there():
            after = (names[-1],) if names else None
            query = Query(_SCHEMAS.name, order=(SortOrder("key"),), limit=_PAGE, after=after)
            rows = await self._adapter.find(query, STRONG)
            names += [row.key for row in rows]
            if len(rows) < _PAGE:
                break
        return names

    async def problems(
        self, what: str | type[msgspec.Struct], data: dict[str, Any] | bytes | msgspec.Struct
    ) -> list[FieldProblem]:
        """Every place where data does not fit a collection or a type; empty if it fits.

        Name the collection if its class is not at hand: the stored description is used then. Bytes
        are read with the current serializer.

        Raises `InvalidInput` if the collection is unknown, and `Corrupted` for unreadable bytes.
        """
        if isinstance(what, str):
            description = (await self.describe(what)).current.description
            return find_problems(description, await self._plain(what, data))
        description = type_shapes.describe(what)
        plain = await self._plain(what, data)
        found = find_problems(description, plain)
        return found or list(_refused(what, plain))

    async def validate(
        self, what: str | type[msgspec.Struct], data: dict[str, Any] | bytes | msgspec.Struct
    ) -> None:
        """Raises `SchemaMismatch`, which names the places, if data does not fit; see `problems`."""
        found = await self.problems(what, data)
        if found:
            name = what if isinstance(what, str) else what.__name__
            raise SchemaMismatch(
                f"The data does not fit {name}: {'; '.join(map(str, found))}.",
                hint="Mend the data, or add a migration if it is older than the type.",
                field=found[0].field,
            )

    def migrate(
        self, what: str | type[msgspec.Struct], data: Mapping[str, Any], from_version: int
    ) -> dict[str, Any]:
        """Plain data of an older version of a type as the type has it now. Nothing is stored.

        Name the collection or give its class, which must be declared in this process. Raises
        `MigrationFailed` if the data cannot be migrated or do not fit in the end, `NewerSchema` for
        a version that the type does not have yet, and `InvalidInput`.
        """
        declared = declared_as(what) if isinstance(what, str) else type_of(what)
        if type(from_version) is not int or from_version < 1:
            raise InvalidInput(
                f"{from_version!r} is no version of a schema.", hint="Versions begin at 1."
            )
        if from_version > declared.schema:
            raise newer_schema(declared.name, "data", from_version, declared.schema)
        plain = copy.deepcopy(dict(data))  # migrations may change what they are given
        found: dict[str, Any] = declared.migrate(plain, from_version, f"Data of {declared.name}")[0]
        return found

    async def migrated(
        self, collection: str, data: Mapping[str, Any], from_version: int
    ) -> dict[str, Any]:
        """`migrate`, also for a type of which only the description is registered: there is no
        function for it, so data come back as they are if they fit the current version. Raises
        `MigrationFailed` if they do not.
        """
        declared = [each for each in all_types() if each.name == collection and not each.is_own]
        if declared:
            return self.migrate(declared[0].cls, data, from_version)
        current = (await self.describe(collection)).current
        if type(from_version) is not int or from_version < 1:
            raise InvalidInput(
                f"{from_version!r} is no version of a schema.", hint="Versions begin at 1."
            )
        if from_version > current.schema:
            raise newer_schema(collection, "data", from_version, current.schema)
        if problems := find_problems(current.description, dict(data)):
            raise MigrationFailed(
                f"Data of {collection} do not fit schema {current.schema}, and no migration is"
                f" declared here: {'; '.join(map(str, problems))}.",
                hint="Mend the data, or import the module that declares the type.",
            )
        return dict(data)

    def compare(
        self, old: Description | type[msgspec.Struct], new: Description | type[msgspec.Struct]
    ) -> SchemaComparison:
        return compare(old, new)

    async def proto(self, collection: str) -> str:
        """The .proto file, for ``protoc --decode=perdure.notes.Note``. `InvalidInput` if none."""
        from perdure.storage.schemas.proto_files import to_proto

        return to_proto(await self.describe(collection))

    async def check(self, collection: str, progress: Progress | None = None) -> Checked:
        """Compare records with the stored schema; older versions are only counted."""
        from perdure.storage.row_rewrites import Failure, plain_rows

        schema = await self.describe(collection)
        codec_of = reader_of(schema)
        checked = Checked(collection, schema.current.schema)
        after = ""
        while page := await self._adapter.salvage(collection, after, _PAGE):
            after = page[-1].key
            for row in await plain_rows(self._store.read, collection, [row.key for row in page]):
                if isinstance(row, Failure):
                    checked.note(row.key, [row.what])
                else:
                    checked.count(row, schema.current, codec_of)
            if progress is not None:
                progress(f"checking {collection}", checked.records, 0)
        return checked

    async def _plain(
        self,
        what: str | type[msgspec.Struct],
        data: dict[str, Any] | bytes | msgspec.Struct,
    ) -> Any:
        if isinstance(data, msgspec.Struct):
            return msgspec.to_builtins(data, builtin_types=_NATIVE)
        if not isinstance(data, bytes):
            return data
        if isinstance(what, str):
            schema = await self.describe(what)
            serializer = schema.current.serializer
        else:
            declared = type_of(what)
            schema, serializer = await self._known(declared), declared.serializer
        return reader_of(schema)(codecs.BY_NAME[serializer].content_type).decode_plain(data)

    async def bound(self, declared: RecordType[T], *, make: bool = False) -> RecordType[T]:
        """The type bound to this store, registered before writing. May raise `NewerSchema`."""
        if declared.is_own:
            return declared
        schema = await (self._registered(declared) if make else self._known(declared))
        if not schema.numbers:
            return declared
        wires = schema_records.wires(type_shapes.describe(declared.cls))
        return declared.bound(functools.partial(protobuf, schema.numbers, wires))

    async def _known(self, declared: RecordType[Any]) -> Schema:
        schema, _ = await self._read(declared.name) or (Schema(declared.name), 0)
        # Numbers that are not kept yet do no harm: nothing is stored before they are.
        return schema.declaring(declared, self._store.now())

    async def _registered(self, declared: RecordType[Any]) -> Schema:
        can_check = Capability.VERSIONS in self._adapter.capabilities
        if declared.serializer == "protobuf":
            require(self._adapter, Capability.VERSIONS)  # two may give numbers at the same time

        async def register(_: int) -> Schema:
            schema, version = await self._read(declared.name) or (Schema(declared.name), 0)
            wanted = schema.declaring(declared, self._store.now())
            if wanted is schema:
                return schema
            await self._is_there(make=True)
            put = _SCHEMAS.encode(wanted, None, version if can_check else None)
            await self._adapter.commit(Batch((put,)), DEFAULT)
            return wanted

        return await retry_conflicts(register)

    async def _read(self, collection: str) -> tuple[Schema, int] | None:
        if not await self._is_there():
            return None
        # From the primary: a number that another has given must not be given again.
        (row,) = await self._adapter.get(_SCHEMAS.name, [collection], STRONG)
        if row is None:
            return None
        if row.checksum != checksum(row.key, row.content_type, row.schema, row.value):
            raise Corrupted(
                f"The schema of {collection!r} is damaged: its checksum does not fit.",
                hint="Restore it from a backup.",
                record=f"{_SCHEMAS.name}/{collection}",
            )
        return _SCHEMAS.decode(row), row.version

    async def _is_there(self, *, make: bool = False) -> bool:
        if not self._there:
            self._there = await self._adapter.prepare(_SCHEMAS.layout, make=make) is not None
        return self._there


def declared_as(name: str) -> RecordType[Any]:
    """The type of a collection. Raises `InvalidInput` if this process does not declare it."""
    for declared in all_types():
        if declared.name == name:
            return declared
    raise InvalidInput(
        f"No type is declared here for a collection {name!r}.",
        hint="Import the module that declares it.",
    )


def _refused(cls: type[msgspec.Struct], plain: Any) -> Iterator[FieldProblem]:
    """What only the class refuses, such as in its `__post_init__`."""
    try:
        msgspec.convert(plain, cls, str_keys=True)
    except msgspec.ValidationError as exc:
        yield FieldProblem("", in_words(exc))


_MOST_NAMED = 100


class Checked(msgspec.Struct):
    """The result of checking a collection."""

    collection: str
    schema: int
    records: int = 0
    versions: dict[int, int] = {}
    #: Records that do not fit, or cannot be read; and what is wrong with the first of them, by key.
    unfit: int = 0
    problems: dict[str, list[str]] = {}

    def count(self, row: Row, current: Version, codec_of: Callable[[str], ValueCodec]) -> None:
        self.records += 1
        self.versions[row.schema] = self.versions.get(row.schema, 0) + 1
        if row.schema != current.schema:
            return
        try:
            plain = codec_of(row.content_type).decode_plain(row.value)
        except PerdureError as exc:
            self.note(row.key, [exc.message])
        else:
            self.note(row.key, [str(each) for each in find_problems(current.description, plain)])

    def note(self, key: str, problems: list[str]) -> None:
        self.unfit += bool(problems)
        if problems and len(self.problems) < _MOST_NAMED:
            self.problems[key] = problems


def reader_of(schema: Schema) -> Callable[[str], ValueCodec]:
    messages = functools.cache(functools.partial(protobuf, schema.numbers, {}))
    if not schema.numbers:
        return codecs.codec_of
    return lambda kind: messages() if kind == PROTOBUF else codecs.codec_of(kind)


def protobuf(numbers: Numbers, wires: Wires) -> ValueCodec:
    """The codec of a collection's messages. `Unsupported` if protobuf is not installed."""
    try:
        from perdure.storage.codecs.protobuf_codec import Protobuf
    except ImportError as exc:
        raise Unsupported(
            "The serializer 'protobuf' needs protobuf.", hint=install_hint("protobuf")
        ) from exc
    return Protobuf(numbers, wires)
