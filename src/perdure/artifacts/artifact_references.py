"""References to artifacts, from records and from other sources that joined.

A record's references are noted when it is written through `Collection`. Migrated records whose
type got artifacts later, and copied rows, have no note; `ArtifactReferences.unnoted` finds them.
"""

from __future__ import annotations

import re
from collections.abc import AsyncIterator
from typing import Any, Protocol

import msgspec

from perdure.core.errors import (
    AccessDenied,
    Conflict,
    Corrupted,
    InvalidInput,
    InvalidRecordType,
    KeyRefused,
    NewerSchema,
    PerdureError,
)
from perdure.storage.collection import Collection
from perdure.storage.collection_reader import Stored
from perdure.storage.concurrency import ATTEMPTS, back_off
from perdure.storage.finder import tagged as has_tag
from perdure.storage.options import STRONG
from perdure.storage.record_references import (
    TYPES,
    Gather,
    Referring,
    gatherer,
    row_key,
    write_of,
)
from perdure.storage.records import RecordType, all_types
from perdure.storage.rows import Row
from perdure.storage.store import Progress, Store

_PAGE = 200
#: Looked at together when one that is still there is enough.
_FEW = 20
#: What an artifact's hash looks like in a record, whatever serializer wrote it.
_HASHES = re.compile(rb"sha256:[0-9a-f]{64}")
#: Begins the names of Perdure's own collections.
_OWN = "perdure_"
#: A record that cannot be read here; it is no reason not to look at the others.
_UNREADABLE = (Corrupted, KeyRefused, AccessDenied)
#: A type that is not the one of the collection, or not any more.
_STRANGE = (NewerSchema, InvalidRecordType)


class Referrer(msgspec.Struct, frozen=True):
    """Somebody refers to an artifact: a record (``notes/ada/1``), a turn, …"""

    artifact: str
    name: str
    #: What it says about the artifact's size, if it does.
    size: int | None = None


class ReferenceSource(Protocol):
    """Somewhere outside of records' fields where artifacts are referred to."""

    async def count(self, artifact: str, /) -> int: ...

    def of(self, artifact: str, /) -> AsyncIterator[Referrer]: ...

    def all(self) -> AsyncIterator[Referrer]: ...


class ArtifactReferences:
    """The references in a store. Reads come from the primary."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._rows: Collection[Referring] = store.collection(Referring)
        self._sources: list[ReferenceSource] = []

    def join(self, source: ReferenceSource) -> None:
        self._sources.append(source)

    async def of(self, artifact: str) -> list[Referrer]:
        found = [_referrer(artifact, row) for row in await self._living(artifact)]
        for source in self._sources:
            found += [referrer async for referrer in source.of(artifact)]
        return found

    async def count(self, artifact: str) -> int:
        return len(await self._living(artifact)) + sum(
            [await source.count(artifact) for source in self._sources]
        )

    async def exceed(self, artifact: str, own: int = 0) -> bool:
        """Whether more than `own` refer to it; counts no further than that."""
        found = sum([await source.count(artifact) for source in self._sources])
        finder, last = self._rows.query().where(has_tag(artifact, "")).limit(_FEW), None
        while found <= own:
            page = await finder.page(after=last, options=STRONG)
            found += len(await self._with_records(page.values))
            last = page.next
            if last is None:
                break
        return found > own

    async def all(self) -> AsyncIterator[Referrer]:
        async for page in self._pages():
            for row in await self._with_records([stored.value for stored in page]):
                for artifact in row.hashes:
                    yield _referrer(artifact, row)
        for source in self._sources:
            async for referrer in source.all():
                yield referrer

    async def tidy(self) -> int:
        """Drop the rows of records deleted by a query; returns how many."""
        dropped = 0
        async for page in self._pages():
            living = {row.id for row in await self._with_records([each.value for each in page])}
            for stored in page:
                if stored.key not in living:
                    dropped += await self._drop(stored)
        return dropped

    async def unnoted(self, *, mend: bool, progress: Progress | None = None) -> set[str]:
        """Hashes in records that have no reference row; reads all records that may hold
        artifacts.
        With `mend`, records of declared types get their rows first. Of other types that had, or
        may have had, a field for artifacts, everything counts that looks like a hash: better too
        many than too few.
        """
        known: dict[str, type[msgspec.Struct]] = {each.name: each.cls for each in all_types()}
        known |= {name: declared.cls for name, declared in self._store.declared.items()}
        found = set[str]()
        for name in [size.collection for size in await self._store.adapter.sizes()]:
            cls = known.get(name)
            gather = None if cls is None else gatherer(cls)
            if cls is not None and gather is not None:
                collection = self._store.collection(cls)
                try:
                    if await collection.is_there():
                        found |= await self._left(collection, gather, progress, mend=mend)
                        continue
                except _STRANGE:
                    pass
            if not name.startswith(_OWN) and await self._may_refer(name):
                async for rows in self._read(name, progress):
                    for row in rows:
                        found |= _looking_like_hashes(row)
        return found

    async def _left(
        self,
        collection: Collection[Any],
        gather: Gather,
        progress: Progress | None,
        *,
        mend: bool,
    ) -> set[str]:
        """References of a type's records without a row, after mending."""
        left = set[str]()
        declared = collection.declared.origin
        if mend:
            for companion in TYPES:
                await self._store.ready(companion)
        async for stored, hashes in self._wrong(collection, gather, progress):
            if stored is None or not mend or not await self._renew(declared, gather, stored):
                left |= hashes
        return left

    async def _may_refer(self, name: str) -> bool:
        """Whether any known version of a collection's type can refer to artifacts."""
        try:
            schema = await self._store.schemas.describe(name)
        except InvalidInput:
            return True
        return any(
            {"hash", "size"} <= {field.name for field in fields.fields}
            for version in schema.versions
            for fields in version.description.types.values()
        )

    async def _wrong(
        self, collection: Collection[Any], gather: Gather, progress: Progress | None
    ) -> AsyncIterator[tuple[Stored[Any] | None, set[str]]]:
        """Records whose row is wrong, each with the missing references.
        A record that cannot be decoded is None; whatever looks like a hash in it is a reference.
        """
        async for rows in self._read(collection.name, progress):
            keys = [row_key(collection.name, row.key) for row in rows]
            notes = await self._rows.get_many(keys, STRONG)
            for row, note in zip(rows, notes, strict=True):
                told = set[str]() if note is None else set(note.hashes)
                try:
                    stored = collection.stored(row)
                except PerdureError:
                    if left := _looking_like_hashes(row) - told:
                        yield None, left
                    continue
                hashes = gather(stored.value)
                if hashes != _sizes(note):
                    yield stored, hashes.keys() - told

    async def _read(self, name: str, progress: Progress | None) -> AsyncIterator[list[Row]]:
        done, after = 0, ""
        # It reads what is damaged, too, and what another process made since this one began.
        while page := await self._store.adapter.salvage(name, after, _PAGE):
            yield await self._plain(name, [row.key for row in page])
            after = page[-1].key
            done += len(page)
            if progress is not None:
                progress(f"reading {name}", done, 0)

    async def _plain(self, name: str, keys: list[str]) -> list[Row]:
        try:
            return [row for row in await self._store.read(name, keys, STRONG) if row is not None]
        except _UNREADABLE:
            if len(keys) == 1:
                return []
        return [row for key in keys for row in await self._plain(name, [key])]

    async def _living(self, artifact: str) -> list[Referring]:
        finder = self._rows.query().where(has_tag(artifact, ""))
        return await self._with_records(await finder.values(STRONG))

    async def _with_records(self, rows: list[Referring]) -> list[Referring]:
        by_collection: dict[str, list[Referring]] = {}
        for row in rows:
            by_collection.setdefault(row.collection, []).append(row)
        living: list[Referring] = []
        for collection, group in by_collection.items():
            # Not through the chain: their content is of no interest, and may need a key.
            keys = [row.key for row in group]
            try:
                found = await self._store.adapter.get(collection, keys, STRONG)
            except InvalidInput:  # no such collection, as far as this process knows
                sizes = await self._store.adapter.sizes()
                if any(size.collection == collection for size in sizes):
                    living += group  # it was made since: better too many than too few
                continue
            living += [row for row, record in zip(group, found, strict=True) if record is not None]
        return living

    async def _pages(self) -> AsyncIterator[list[Stored[Referring]]]:
        after = None
        while True:
            page = await self._rows.list(limit=_PAGE, after=after, options=STRONG)
            yield page.items
            after = page.next
            if after is None:
                return

    async def _drop(self, stored: Stored[Referring]) -> bool:
        # Whoever writes the record again writes this row again, too, and then it is another.
        try:
            async with self._store.transaction() as transaction:
                transaction.expect(self._rows.name, stored.key, stored.version, stored.created_us)
                await transaction.collection(Referring).delete(stored.key)
        except Conflict:
            return False
        return True

    async def _renew(self, declared: RecordType[Any], gather: Gather, stored: Stored[Any]) -> bool:
        for attempt in range(ATTEMPTS):
            hashes = gather(stored.value)
            found = await self._rows.get(row_key(declared.name, stored.key), STRONG)
            if _sizes(found) == hashes:
                return False
            (row,) = await self._store.adapter.get(declared.name, (stored.key,), STRONG)
            if row is None:
                return False
            try:
                async with self._store.transaction() as transaction:
                    transaction.expect(declared.name, stored.key, stored.version, stored.created_us)
                    write = write_of(declared.name, row.key, hashes, row.expires)
                    await transaction.write([write], STRONG)
            except Conflict:
                again = await self._store.collection(declared.cls).fetch(stored.key, STRONG)
                if again is None:
                    return False
                stored = again
                await back_off(attempt)
            else:
                return True
        return False


def _sizes(row: Referring | None) -> dict[str, int]:
    return {} if row is None else dict(zip(row.hashes, row.sizes, strict=True))


def _looking_like_hashes(row: Row) -> set[str]:
    return {found.decode() for found in _HASHES.findall(row.value)}


def _referrer(artifact: str, row: Referring) -> Referrer:
    return Referrer(artifact, f"{row.collection}/{row.key}", _sizes(row)[artifact])
