"""Who refers to an artifact: records, and whoever else has joined."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable
from typing import Any, Protocol

import msgspec

from perdure.core.errors import Conflict, InvalidInput
from perdure.storage.adapter import STRONG, Delete, Put, Row
from perdure.storage.collection import ATTEMPTS, Collection, Stored, back_off
from perdure.storage.finder import tagged as has_tag
from perdure.storage.records import RecordType, type_of
from perdure.storage.references import (
    TYPES,
    Gather,
    Referring,
    gatherer,
    no_row_of,
    row_key,
    row_of,
)
from perdure.storage.store import Progress, Store

_PAGE = 200
#: Looked at together when one that is still there is enough.
_FEW = 20


class Referrer(msgspec.Struct, frozen=True):
    """Somebody refers to an artifact: a record (``notes/ada/1``), a turn, …"""

    artifact: str
    name: str
    #: What it says about the artifact's size, if it does.
    size: int | None = None


class Source(Protocol):
    """Somewhere outside of records' fields where artifacts are referred to."""

    async def count(self, artifact: str, /) -> int:
        """How many refer to this hash, by the newest state of the store."""

    def of(self, artifact: str, /) -> AsyncIterator[Referrer]:
        """Who refers to this hash."""

    def all(self) -> AsyncIterator[Referrer]:
        """Every reference there is, in any order."""


class References:
    """The references in a store, counted where they are kept. Reads come from the primary."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._rows: Collection[Referring] = store.collection(Referring)
        self._sources: list[Source] = []

    def join(self, source: Source) -> None:
        """Let a room above ours say what it refers to."""
        self._sources.append(source)

    async def of(self, artifact: str) -> list[Referrer]:
        """Everybody who refers to it."""
        found = [_referrer(artifact, row) for row in await self._living(artifact)]
        for source in self._sources:
            found += [referrer async for referrer in source.of(artifact)]
        return found

    async def count(self, artifact: str) -> int:
        """How many refer to it."""
        return len(await self._living(artifact)) + sum(
            [await source.count(artifact) for source in self._sources]
        )

    async def exceed(self, artifact: str, own: int = 0) -> bool:
        """Whether more than `own` refer to it; does not count further than that."""
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
        """Every reference there is."""
        async for page in self._pages():
            for row in await self._with_records([stored.value for stored in page]):
                for artifact in row.hashes:
                    yield _referrer(artifact, row)
        for source in self._sources:
            async for referrer in source.all():
                yield referrer

    async def tidy(self) -> int:
        """Drop the rows of records that were deleted by a query; returns how many there were."""
        dropped = 0
        async for page in self._pages():
            living = {row.id for row in await self._with_records([each.value for each in page])}
            for stored in page:
                if stored.key not in living:
                    dropped += await self._drop(stored)
        return dropped

    async def rebuild(
        self, classes: Iterable[type[msgspec.Struct]], progress: Progress | None = None
    ) -> int:
        """Read all records of these types, and write anew what they refer to where it is not so.

        May be interrupted and repeated; others may write meanwhile. Returns how many were wrong.
        """
        wrong = 0
        for cls in classes:
            gather, declared = gatherer(cls), type_of(cls)
            collection = self._store.collection(cls)
            if gather is None or not await collection.is_there():
                continue
            for companion in TYPES:
                await self._store.ready(companion)
            done, after = 0, None
            while True:
                page = await collection.list(limit=_PAGE, after=after, options=STRONG)
                for stored in page.items:
                    wrong += await self._renew(declared, gather, stored)
                done += len(page.items)
                if progress is not None:
                    progress(f"reading {declared.name}", done, 0)
                after = page.next
                if after is None:
                    break
        return wrong

    # ------------------------------------------------------------------------------------------

    async def _living(self, artifact: str) -> list[Referring]:
        finder = self._rows.query().where(has_tag(artifact, ""))
        return await self._with_records(await finder.values(STRONG))

    async def _with_records(self, rows: list[Referring]) -> list[Referring]:
        """Those whose record is there."""
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
        """Correct the row of one record; whether it was wrong."""
        for attempt in range(ATTEMPTS):
            hashes = gather(stored.value)
            found = await self._rows.get(row_key(declared.name, stored.key), STRONG)
            known = {} if found is None else dict(zip(found.hashes, found.sizes, strict=True))
            if known == hashes:
                return False
            (row,) = await self._store.adapter.get(declared.name, (stored.key,), STRONG)
            if row is None:
                return False
            try:
                async with self._store.transaction() as transaction:
                    transaction.expect(declared.name, stored.key, stored.version, stored.created_us)
                    await transaction.write([_row(declared, row, hashes)], STRONG)
            except Conflict:
                again = await self._store.collection(declared.cls).fetch(stored.key, STRONG)
                if again is None:
                    return False
                stored = again
                await back_off(attempt)
            else:
                return True
        return False


def _row(declared: RecordType[Any], record: Row, hashes: dict[str, int]) -> Put | Delete:
    if not hashes:
        return no_row_of(declared.name, record.key)
    return row_of(declared.name, record.key, hashes, record.expires)


def _referrer(artifact: str, row: Referring) -> Referrer:
    size = dict(zip(row.hashes, row.sizes, strict=True))[artifact]
    return Referrer(artifact, f"{row.collection}/{row.key}", size)
