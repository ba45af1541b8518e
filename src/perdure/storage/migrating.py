"""Bulk migration: every record is brought to what its type declares now.

Records are migrated when they are read, and stay as they are until they are written. After a bulk
migration no record needs a migration function any more, and each is stored the way new ones are:
with the current schema, by the current serializer, compressed and encrypted where that is asked
for, its columns computed anew. Versions and times of records stay; tags do, too.

Everybody reads and writes meanwhile; `rewriting` tells how, and what becomes of an interruption.
Code that does not know the current schema cannot read a migrated record: it is refused with
`NewerSchema`. What such code still writes is looked for when the rest is done, a few times; what is
left after that is counted, as are records that newer code wrote and that are left alone.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec

from perdure.core.errors import MigrationFailed
from perdure.storage.adapter import Capability, Count, Recode, Row
from perdure.storage.records import RecordType, all_types, type_of
from perdure.storage.rewriting import Failure, Rewritten, rewrite_collection
from perdure.storage.store import Progress, Store

#: How often a collection is gone through, if old code keeps adding to it.
_PASSES = 3


class Migrated(msgspec.Struct, frozen=True):
    """What came of the migration of a collection, or would."""

    collection: str
    #: What its records are brought to.
    schema: int
    content_type: str
    #: How many records there were of each schema version when it began; see `newer`, too.
    found: dict[int, int]
    #: Records that were written anew, or would be.
    migrated: int = 0
    #: Records that could not be, and the first of them by name. They are unchanged.
    failed: int = 0
    failures: tuple[Failure, ...] = ()
    #: Records that code with a newer schema wrote. They are left alone.
    newer: int = 0
    #: Records that old code wrote meanwhile.
    left: int = 0
    #: Whether it went on with what an earlier run had begun; what that did is counted, too.
    resumed: bool = False

    @property
    def is_complete(self) -> bool:
        """Whether no record needs a migration function any more."""
        return not (self.failed or self.left)


async def migrate(
    store: Store,
    cls: type[msgspec.Struct] | None = None,
    *,
    dry_run: bool = False,
    progress: Progress | None = None,
) -> list[Migrated]:
    """Bring the records of this type, or of all types declared here, to what is declared.

    Collections that are not there, or are not declared in this process, are left out. A record
    whose migration function raises is left as it is and named; the others are migrated. Calling it
    again tries only what is not yet as it should be.

    With `dry_run` nothing is written; the functions are run, so that failures are known.

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
    """The types that are declared here, by name; those in use in this store come first."""
    known = {declared.name: declared for declared in all_types()}
    known |= {name: declared.origin for name, declared in store.declared.items()}
    return [known[name] for name in sorted(known)]


class _Migration:
    """Of one collection."""

    def __init__(self, store: Store, declared: RecordType[Any], progress: Progress | None) -> None:
        self._store = store
        self._declared = declared
        self._progress = progress

    async def run(self, *, dry_run: bool) -> Migrated:
        name = self._declared.name
        if dry_run:
            self._declared = await self._store.schemas.bound(self._declared, make=False)
        else:
            self._declared = await self._store.ready(self._declared) or self._declared
            await self._store.put_off_filling(name)
        counts = await self._store.adapter.census(name)
        done = await self._pass(dry_run=dry_run)
        left = 0
        for repeated in range(0 if dry_run else _PASSES):
            left = max(0, self._older(await self._store.adapter.census(name)) - done.failed)
            if not left or repeated == _PASSES - 1:
                break
            again = await self._pass(dry_run=False)
            done = msgspec.structs.replace(
                again, rewritten=done.rewritten + again.rewritten, resumed=done.resumed
            )
        if not dry_run:
            await self._store.declare(self._declared.cls)  # what was not rewritten is filled
        return self._told(counts, done, left)

    async def _pass(self, *, dry_run: bool) -> Rewritten:
        declared = self._declared
        return await rewrite_collection(
            self._store,
            declared.name,
            purpose=f"schema={declared.schema};{declared.content_type}",
            wanted=self._is_wanted,
            remade=self._remade,
            dry_run=dry_run,
            progress=_named(self._progress, f"migrating {declared.name}"),
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

    def _remade(self, row: Row) -> Recode:
        declared = self._declared
        put = declared.encode(declared.decode(row), row.expires, None)
        if put.key != row.key:
            raise MigrationFailed(
                f"{declared.name}/{row.key} would have another key after its migration to schema"
                f" {declared.schema}: {put.key!r}.",
                hint="Mend the migration: it has to leave the key as it is.",
            )
        return Recode(row, put.value, put.content_type, put.checksum, declared.schema, put.columns)

    def _older(self, counts: list[Count]) -> int:
        return sum(count.rows for count in counts if count.schema < self._declared.schema)

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
            done.resumed,
        )


def _plain(content_type: str) -> str:
    """The content type of a value before anything in the chain was done to it."""
    return content_type.partition(";")[0]


def _named(progress: Progress | None, what: str) -> Callable[[str, int, int], None] | None:
    if progress is None:
        return None
    return lambda _, done, total: progress(what, done, total)
