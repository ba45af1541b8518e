"""A batch that one process drives: every change checks that no other has taken it over."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from typing import Any

from msgspec.structs import replace

from perdure.core.clock import new_id
from perdure.gateway.batches.batch_records import (
    FINAL,
    BatchItem,
    BatchPart,
    BatchRecord,
    ItemState,
    item_key,
)
from perdure.storage.store import Store
from perdure.storage.transaction import Transaction

#: Items that are read, or whose results are written, at once.
PORTION = 100


class LostBatch(Exception):
    """Another process has the batch: nothing more is written here."""


class OwnedBatch:
    """A batch that is driven here, and its changes."""

    def __init__(self, store: Store, record: BatchRecord) -> None:
        self._store = store
        self._lock = asyncio.Lock()
        self.record = record

    @classmethod
    async def take(cls, store: Store, id: str) -> OwnedBatch | None:
        """None if there is nothing left to do about it."""
        token = new_id()

        async def take(transaction: Transaction) -> BatchRecord | None:
            batches = transaction.collection(BatchRecord)
            found = await batches.get(id)
            if found is None or found.state in FINAL:
                return None
            await batches.put(taken := replace(found, owner=token))
            return taken

        record = await store.transact(take)
        return None if record is None else cls(store, record)

    async def update(self, **changes: Any) -> None:
        await self.write(lambda record: replace(record, **changes))

    async def update_part(self, at: int, **changes: Any) -> BatchPart:
        await self.write(lambda record: with_part(record, at, **changes))
        return self.record.parts[at]

    async def write(self, change: Callable[[BatchRecord], BatchRecord]) -> None:
        async def write(transaction: Transaction) -> BatchRecord:
            changed = change(await self.check(transaction))
            await transaction.collection(BatchRecord).put(changed)
            return changed

        await self.commit(write)

    async def commit(self, body: Callable[[Transaction], Awaitable[BatchRecord]]) -> None:
        """A transaction that calls `check` and returns the record as it wrote it."""
        async with self._lock:  # live calls end at the same time
            self.record = await self._store.transact(body)

    async def check(self, transaction: Transaction) -> BatchRecord:
        """The record as it is. Raises `LostBatch`."""
        found = await transaction.collection(BatchRecord).get(self.record.id)
        if found is None or found.owner != self.record.owner:
            raise LostBatch
        return found


async def items_of(
    store: Store, record: BatchRecord, numbers: range | None = None
) -> AsyncIterator[list[BatchItem]]:
    """The items of these numbers, or all, in order; so many at a time."""
    items = store.collection(BatchItem)
    wanted = range(record.items) if numbers is None else numbers
    for begin in range(wanted.start, wanted.stop, PORTION):
        some = range(begin, min(begin + PORTION, wanted.stop))
        found = await items.get_many([item_key(record.run, number) for number in some])
        yield [item for item in found if item is not None]


def with_part(record: BatchRecord, at: int, **changes: Any) -> BatchRecord:
    parts = list(record.parts)
    parts[at] = replace(parts[at], **changes)
    return replace(record, parts=tuple(parts))


def counted(record: BatchRecord, done: Iterable[BatchItem]) -> BatchRecord:
    """The record after these items, which were waiting, are done."""
    counts, cost, unknown = dict(record.counts), record.cost, record.unknown_costs
    for item in done:
        counts[ItemState.WAITING] = counts.get(ItemState.WAITING, 0) - 1
        counts[item.state] = counts.get(item.state, 0) + 1
        cost += item.cost or 0
        unknown += item.cost is None
    counts = {state: count for state, count in counts.items() if count}
    return replace(record, counts=counts, cost=cost, unknown_costs=unknown)
