"""References from records to content that is stored elsewhere under its hash.

A record whose type can hold a `Reference` (such as an `Artifact`) is written together with a row
that lists its references, under the record's collection and key: a write replaces it, a deletion
deletes it, it expires with its record. Its tags are the hashes, so "what refers to this?" is one
index lookup. Deleting by query leaves these rows behind; whoever counts references checks that the
record exists.

Unreferenced content may be deleted. It is *condemned* first, by a row in another collection:
commits that refer to it are refused from then on, so a count of references is final. See
`perdure.artifacts.artifact_collector`.

Only declared types count: a hash in a text field, or an `Artifact` in a field of type `Any`, is not
seen. Backends without transactions or tags keep no references.
"""

from __future__ import annotations

import hashlib
import operator
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import cache
from typing import Annotated, Any

import msgspec

from perdure.core.errors import Conflict
from perdure.storage.adapter import Capability
from perdure.storage.record_keys import MAX_KEY_BYTES
from perdure.storage.records import Key, RecordType, Tags, system_record, type_of
from perdure.storage.rows import Delete, Put

NEEDED = frozenset({Capability.TRANSACTIONS, Capability.TAGS, Capability.TTL})


class Reference(msgspec.Struct, frozen=True):
    """Base of values that stand for content stored elsewhere."""

    hash: str
    size: int


# A time to live, so that rows may expire: each one does when its record does, and else never.
@system_record("references", ttl="1d")
class Referring(msgspec.Struct, frozen=True, array_like=True):
    """The references of one record."""

    id: Annotated[str, Key()]  # collection/key
    collection: str
    key: str
    #: Hash → nothing; as tags, they can be looked for.
    hashes: Annotated[dict[str, str], Tags()]
    #: What the record says about their sizes, in the same order.
    sizes: tuple[int, ...]


#: A condemned hash may be referred to again after this time, even if nobody stored it anew.
CONDEMNED_FOR = "30d"
#: The same for what was forgotten, and whose hash must not be told for long.
CONDEMNED_BRIEFLY = "1d"


@system_record("condemned", ttl=CONDEMNED_FOR)
class Condemned(msgspec.Struct, frozen=True, array_like=True):
    """Content that is being deleted: new references are refused. Storing it again ends that."""

    id: Annotated[str, Key()]  # the hash
    #: Who condemned it: no two have the same.
    token: str
    gone: bool = False


_REFERRING, _CONDEMNED = type_of(Referring), type_of(Condemned)
CONDEMNED = _CONDEMNED.name
TYPES: tuple[RecordType[Any], ...] = (_REFERRING, _CONDEMNED)

Gather = Callable[[Any], dict[str, int]]


@cache
def gatherer(cls: type[msgspec.Struct]) -> Gather | None:
    """A function that finds the references in a record; None if the type cannot hold any."""
    import msgspec.inspect

    getters = [
        operator.attrgetter(field.name)
        for field in msgspec.inspect.type_info(cls).fields  # type: ignore[attr-defined]
        if _can_refer(field.type, set())
    ]
    if not getters:
        return None

    def gather(record: Any) -> dict[str, int]:
        return {
            reference.hash: reference.size
            for get in getters
            for reference in _references(get(record))
        }

    return gather


def write_of(
    collection: str, key: str, hashes: Mapping[str, int], expires: int | None
) -> Put | Delete:
    """What makes a record's row list these hashes; without any, there is no row."""
    if not hashes:
        return no_row_of(collection, key)
    row = Referring(
        row_key(collection, key), collection, key, dict.fromkeys(hashes, ""), (*hashes.values(),)
    )
    return _REFERRING.encode(row, expires, None)


def writes_of(puts: Iterable[Put], records: Iterable[Any], gather: Gather) -> list[Put | Delete]:
    return [
        write_of(put.collection, put.key, gather(record), put.expires)
        for put, record in zip(puts, records, strict=True)
    ]


def no_row_of(collection: str, key: str) -> Delete:
    return Delete(_REFERRING.name, row_key(collection, key))


def row_key(collection: str, key: str) -> str:
    """The key of the row; a hash replaces a record's key that would make it too long."""
    whole = f"{collection}/{key}"
    if len(whole.encode()) <= MAX_KEY_BYTES:
        return whole
    return f"{collection}/#{hashlib.sha256(key.encode()).hexdigest()}"


def clarified(exc: Conflict) -> Conflict:
    """A clearer error for a commit that refers to condemned content; others unchanged."""
    if exc.collection != CONDEMNED:
        return exc
    return Conflict(
        exc.collection,
        exc.key,
        expected=exc.expected,
        found=exc.found,
        message=f"{exc.key} was deleted, or is being deleted, since nothing referred to it.",
        hint="Put its content again, then repeat this.",
    )


def _can_refer(info: Any, seen: set[type]) -> bool:
    """Whether a value of this type (see `msgspec.inspect`) can hold a reference."""
    cls = getattr(info, "cls", None)
    if isinstance(cls, type):
        if issubclass(cls, Reference):
            return True
        if cls in seen:
            return False
        seen.add(cls)
    return any(_can_refer(inner, seen) for inner in _inner_types(info))


def _inner_types(info: Any) -> Iterator[Any]:
    for name in ("item_type", "key_type", "value_type", "type"):
        if isinstance(inner := getattr(info, name, None), msgspec.Struct):
            yield inner
    for name in ("item_types", "types"):
        yield from getattr(info, name, ())
    for field in getattr(info, "fields", ()):
        yield field.type


def _references(value: Any) -> Iterator[Reference]:
    if isinstance(value, Reference):
        yield value
    elif isinstance(value, dict):
        for key, inner in value.items():
            yield from _references(key)
            yield from _references(inner)
    elif isinstance(value, list | tuple | set | frozenset):
        for inner in value:
            yield from _references(inner)
    elif isinstance(value, msgspec.Struct):
        for field in value.__struct_fields__:
            yield from _references(getattr(value, field))
    elif hasattr(value, "__dataclass_fields__"):
        for field in value.__dataclass_fields__:
            yield from _references(getattr(value, field))
