"""What records refer to: content that is kept outside of them, under its hash.

A record of a type that can hold a `Reference` (an `Artifact`, say) in any of its fields is written
together with one row more, which lists the references in it. It lies under the record's collection
and key, so a write of the record just replaces it and a deletion deletes it: nothing needs to be
read first. Its tags are the hashes, so "who refers to this?" is one look at an index. It expires
with its record. What deletes records by a query leaves their rows behind; whoever counts references
looks whether the record is still there.

Content that nothing refers to may be deleted. So that nobody begins to refer to it at the same
moment, it is *condemned* first: a row in another collection, and a commit that refers to content
with such a row is refused. Whoever then counts the references sees all that will ever be. See
`perdure.artifacts.artifact_collector`.

Only values whose type is declared count: a hash in a field of text, or an `Artifact` in a field
declared as `Any`, is not seen. Backends without transactions or tags keep no references.
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

#: What a backend must have, so that references are kept.
NEEDED = frozenset({Capability.TRANSACTIONS, Capability.TAGS, Capability.TTL})


class Reference(msgspec.Struct, frozen=True):
    """Base of values that stand for content which is kept elsewhere."""

    hash: str
    size: int


# A time to live, so that rows may expire: each one does when its record does, and else never.
@system_record("references", ttl="1d")
class Referring(msgspec.Struct, frozen=True, array_like=True):
    """A record refers to these."""

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
    """Content that is being deleted, or was: nobody may begin to refer to it.

    Storing the content again removes the row.
    """

    id: Annotated[str, Key()]  # the hash
    #: Who condemned it: no two have the same.
    token: str
    #: It has been deleted.
    gone: bool = False


_REFERRING, _CONDEMNED = type_of(Referring), type_of(Condemned)
CONDEMNED = _CONDEMNED.name
#: The collections that belong to references.
TYPES: tuple[RecordType[Any], ...] = (_REFERRING, _CONDEMNED)

#: The references in a record: hash → size.
Gather = Callable[[Any], dict[str, int]]


@cache
def gatherer(cls: type[msgspec.Struct]) -> Gather | None:
    """What finds the references in records of a type, or None if they cannot hold any."""
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


def row_of(collection: str, key: str, hashes: Mapping[str, int], expires: int | None) -> Put:
    """The write that keeps what a record refers to."""
    row = Referring(
        row_key(collection, key), collection, key, dict.fromkeys(hashes, ""), (*hashes.values(),)
    )
    return _REFERRING.encode(row, expires, None)


def writes_of(puts: Iterable[Put], records: Iterable[Any], gather: Gather) -> list[Put | Delete]:
    """The writes that keep the references of records up to date."""
    writes: list[Put | Delete] = []
    for put, record in zip(puts, records, strict=True):
        if hashes := gather(record):
            writes.append(row_of(put.collection, put.key, hashes, put.expires))
        else:
            writes.append(no_row_of(put.collection, put.key))
    return writes


def no_row_of(collection: str, key: str) -> Delete:
    """The write that forgets what a record referred to."""
    return Delete(_REFERRING.name, row_key(collection, key))


def row_key(collection: str, key: str) -> str:
    """The key of the row: a hash stands for a record's key that would make it too long."""
    whole = f"{collection}/{key}"
    if len(whole.encode()) <= MAX_KEY_BYTES:
        return whole
    return f"{collection}/#{hashlib.sha256(key.encode()).hexdigest()}"


def clarified(exc: Conflict) -> Conflict:
    """The error, in words, for a commit that refers to condemned content; any other, as it is."""
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


# ------------------------------------------------------------------------------------------------


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
