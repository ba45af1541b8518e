"""Bulk migration: rewrites every record as its type declares it now.

Records are migrated when read, and stay as stored until written. After a bulk migration each is
stored as new ones are: current schema, serializer, compression, encryption, columns, tags and
references. Versions and times stay.

Reads and writes go on meanwhile; see `row_rewrites`, also for interruptions. Code with an older
schema cannot read a migrated record (`NewerSchema`). What such code still writes is migrated in a
few further passes; the rest is counted, as are records of newer code, which are left alone.

Content is never without a reference: until a record is rewritten, both its old and its new
references count.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import msgspec

from perdure.core.errors import Conflict, MigrationFailed
from perdure.storage import record_references
from perdure.storage.adapter import Capability
from perdure.storage.options import DEFAULT, STRONG
from perdure.storage.records import RecordType, all_types, type_of
from perdure.storage.row_rewrites import Failure, Rewritten, rewrite_collection
from perdure.storage.rows import Batch, Check, Count, Delete, Put, Recode, Row
from perdure.storage.store import Progress, Store

_PASSES = 3


class Migrated(msgspec.Struct, frozen=True):
    """The result of migrating a collection, or of a dry run."""

    collection: str
    schema: int
    content_type: str
    #: How many records there were of each schema version when it began; see `newer`, too.
    found: dict[int, int]
    migrated: int = 0
    #: Records that could not be, and the first of them by name. They are unchanged.
    failed: int = 0
    failures: tuple[Failure, ...] = ()
    #: Records that code with a newer schema wrote. They are left alone.
    newer: int = 0
    #: Records that are not as they should be, because old code wrote them meanwhile.
    left: int = 0

    @property
    def is_complete(self) -> bool:
        """Whether every record is as declared, but for those of newer code."""
        return not (self.failed or self.left)


async def migrate(
    store: Store,
    cls: type[msgspec.Struct] | None = None,
    *,
    dry_run: bool = False,
    progress: Progress | None = None,
) -> list[Migrated]:
    """Rewrite the records of this type, or of all declared types, as declared now.

    Collections that are missing or not declared in this process are left out. A record whose
    migration function raises is left as it is and named. A repeated call tries only what is left.
    With `dry_run` the functions run, but nothing is written.

    Raises `Unsupported` if the backend cannot rewrite rows.
    """
    store.require(Capability.TRANSACTIONS)
    store.require(Capability.LISTING)
    there = {size.collection for size in await store.adapter.sizes()}
    wanted = _declared(store) if cls is None else [type_of(cls)]
    return [
        await _Migration(store, declared, progress).run(dry_run=dry_run)
        for declared in wanted
        if declared.name in there
    ]


def _declared(store: Store) -> list[RecordType[Any]]:
    known = {declared.name: declared for declared in all_types()}
    known |= {name: declared.origin for name, declared in store.declared.items()}
    return [known[name] for name in sorted(known)]


class _Migration:
    def __init__(self, store: Store, declared: RecordType[Any], progress: Progress | None) -> None:
        self._store = store
        self._declared = declared
        self._progress = progress
        self._references = _References.of(store, declared)

    async def run(self, *, dry_run: bool) -> Migrated:
        name = self._declared.name
        if dry_run:
            self._declared = await self._store.schemas.bound(self._declared, make=False)
        else:
            self._declared = await self._store.ready(self._declared) or self._declared
            await self._store.put_off_filling(name)
            if self._references is not None:
                await self._references.make()
        counts = await self._store.adapter.census(name)
        if dry_run:
            return self._told(counts, await self._pass(dry_run=True), 0)
        done, left = await self._until_none_is_left()
        await self._store.declare(self._declared.cls)  # what was not rewritten is filled
        return self._told(counts, done, left)

    async def _until_none_is_left(self) -> tuple[Rewritten, int]:
        done = await self._pass(dry_run=False)
        for _ in range(_PASSES):
            again = await self._pass(dry_run=False)
            done = msgspec.structs.replace(again, rewritten=done.rewritten + again.rewritten)
            if not (again.rewritten or again.passed_over):
                return done, 0
        return done, (await self._pass(dry_run=True)).rewritten

    async def _pass(self, *, dry_run: bool) -> Rewritten:
        declared = self._declared
        kept = None if dry_run else self._references

        async def write(recodes: Sequence[Recode]) -> tuple[int, list[Failure]]:
            if kept is not None:
                return await kept.write(recodes)
            if dry_run:
                return len(recodes), []
            return await self._store.rewrite(declared.name, recodes), []

        return await rewrite_collection(
            self._store.adapter,
            declared.name,
            wanted=self._is_wanted,
            read=self._store.read,
            remade=partial(self._remade, note=kept.note if kept else None),
            write=write,
            what="migrating",
            progress=self._progress,
        )

    def _is_wanted(self, row: Row) -> bool:
        declared = self._declared
        if row.expires is not None and row.expires <= self._store.now():
            return False
        if row.schema != declared.schema:
            return row.schema < declared.schema
        return _plain(row.content_type) != declared.content_type or self._store.is_due(
            declared, row
        )

    def _remade(self, row: Row, note: Callable[[str, Any], None] | None) -> Recode:
        declared = self._declared
        record = declared.decode(row)
        put = declared.encode(record, row.expires, None)
        if put.key != row.key:
            raise MigrationFailed(
                f"{declared.name}/{row.key} would have another key after its migration to schema"
                f" {declared.schema}: {put.key!r}.",
                hint="Mend the migration: it has to leave the key as it is.",
            )
        if note is not None:
            note(row.key, record)
        return Recode(
            row,
            put.value,
            put.content_type,
            put.checksum,
            declared.schema,
            put.columns,
            put.tags if declared.layout.tagged else None,
        )

    def _told(self, counts: list[Count], done: Rewritten, left: int) -> Migrated:
        declared = self._declared
        found: dict[int, int] = {}
        for count in counts:
            found[count.schema] = found.get(count.schema, 0) + count.rows
        return Migrated(
            declared.name,
            declared.schema,
            declared.content_type,
            found,
            done.rewritten,
            done.failed,
            done.failures,
            sum(rows for schema, rows in found.items() if schema > declared.schema),
            left,
        )


class _References:
    def __init__(self, store: Store, collection: str, gather: record_references.Gather) -> None:
        self._store = store
        self._collection = collection
        self._gather = gather
        self._found: dict[str, dict[str, int]] = {}

    @classmethod
    def of(cls, store: Store, declared: RecordType[Any]) -> _References | None:
        """None if these records cannot hold references, or the backend keeps none."""
        type_: type[msgspec.Struct] = declared.cls
        gather = record_references.gatherer(type_)
        if gather is None or not store.capabilities >= record_references.NEEDED:
            return None
        return cls(store, declared.name, gather)

    async def make(self) -> None:
        for declared in record_references.TYPES:
            await self._store.ready(declared)

    def note(self, key: str, record: Any) -> None:
        self._found[key] = self._gather(record)

    async def write(self, recodes: Sequence[Recode]) -> tuple[int, list[Failure]]:
        """Rewrite records: first add the new references, then drop the old ones."""
        after, self._found = self._found, {}
        before = await self._kept(recodes)
        more = {key: before[key] | hashes for key, hashes in after.items() if key in before}
        changed = [each for each in recodes if more[each.row.key] != before[each.row.key]]
        dropped, failures = await self._commit(changed, more)
        sound = [each for each in recodes if each.row.key not in dropped]
        written = await self._store.rewrite(self._collection, sound) if sound else 0
        # One that was passed over may still be as it was: it keeps what it referred to.
        if written == len(sound):
            fewer = [each for each in sound if after[each.row.key] != more[each.row.key]]
            await self._commit(fewer, after)
        return written, failures

    async def _kept(self, recodes: Sequence[Recode]) -> dict[str, dict[str, int]]:
        keys = [recode.row.key for recode in recodes]
        places = [record_references.row_key(self._collection, key) for key in keys]
        rows = await self._store.collection(record_references.Referring).get_many(places, STRONG)
        return {
            key: {} if row is None else dict(zip(row.hashes, row.sizes, strict=True))
            for key, row in zip(keys, rows, strict=True)
        }

    async def _commit(
        self, recodes: Sequence[Recode], wanted: Mapping[str, dict[str, int]]
    ) -> tuple[set[str], list[Failure]]:
        if not recodes:
            return set(), []
        try:
            await self._store.commit(self._batch(recodes, wanted), DEFAULT)
        except Conflict as exc:
            if len(recodes) > 1:
                one_by_one = [await self._commit([each], wanted) for each in recodes]
                dropped = {key for keys, _ in one_by_one for key in keys}
                return dropped, [failure for _, failures in one_by_one for failure in failures]
            key = recodes[0].row.key
            is_gone = exc.collection == record_references.CONDEMNED
            return {key}, [
                Failure(key, record_references.clarified(exc).message)
            ] if is_gone else []
        return set(), []

    def _batch(self, recodes: Sequence[Recode], wanted: Mapping[str, dict[str, int]]) -> Batch:
        writes: list[Put | Delete] = []
        checks: dict[Check, None] = {}
        for recode in recodes:
            row, hashes = recode.row, wanted[recode.row.key]
            writes.append(
                record_references.write_of(self._collection, row.key, hashes, row.expires)
            )
            # Whoever has changed the record since has kept its references, too.
            checks[Check(self._collection, row.key, row.version, row.created)] = None
            checks |= dict.fromkeys(
                Check(record_references.CONDEMNED, hash_, 0) for hash_ in hashes
            )
        return Batch(tuple(writes), tuple(checks))


def _plain(content_type: str) -> str:
    return content_type.partition(";")[0]
