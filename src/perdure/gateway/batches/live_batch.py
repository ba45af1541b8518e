"""Batches of providers without a batch mode: the same, by live calls, so many at a time.

Each call reserves for itself, as calls do; what the batch reserved for it is released just before.
A call that was under way when the process died is made again: its answer is lost, and what it
reserved counts as spent.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from msgspec.structs import replace

from perdure.core.clock import SECOND
from perdure.core.errors import BudgetReached, DeadlineExceeded, GatewayError, InvalidInput
from perdure.gateway.batches.batch_driver import BatchPace
from perdure.gateway.batches.batch_records import (
    BatchItem,
    BatchRecord,
    BatchState,
    ItemState,
)
from perdure.gateway.batches.owned_batch import OwnedBatch, counted, items_of
from perdure.gateway.calls import CallOptions, ModelAnswer, Reply, Request, packed
from perdure.gateway.ledger import Ledger
from perdure.gateway.response_cache import Mask
from perdure.storage.store import Store
from perdure.storage.transaction import Transaction

#: How often an item is asked, also by processes that died meanwhile.
_ATTEMPTS = 3


class LiveBatches:
    """Drives batches by live calls."""

    def __init__(
        self,
        store: Store,
        ledger: Ledger,
        complete: Callable[[Request, CallOptions], Awaitable[Reply]],
        *,
        pace: BatchPace,
        concurrency: int,
        mask: Mask | None,
    ) -> None:
        self._store = store
        self._ledger = ledger
        self._complete = complete
        self._pace = pace
        self._concurrency = concurrency
        self._mask = mask

    async def advance(self, batch: OwnedBatch) -> float | None:
        """Ask for all that waits. Returns the seconds until the rest is tried again; None: it is
        over.
        """
        if batch.record.state is BatchState.WRITTEN:
            await batch.update(state=BatchState.IN_PROGRESS)
        room = asyncio.Semaphore(self._concurrency)

        async def ask(item: BatchItem) -> None:
            async with room:
                await self._ask(batch, item)

        async for portion in items_of(self._store, batch.record):
            try:
                async with asyncio.TaskGroup() as group:
                    for item in portion:
                        if item.state is ItemState.WAITING:
                            group.create_task(ask(item))
            except ExceptionGroup as errors:
                raise errors.exceptions[0] from None
        if batch.record.counts.get(ItemState.WAITING):
            pause = self._pace.pause(batch.record.failures)
            next_look = self._store.now() + int(pause * SECOND)
            await batch.update(failures=batch.record.failures + 1, next_look=next_look)
            return pause
        only_cancelled = set(batch.record.counts) == {ItemState.CANCELLED}
        state = BatchState.CANCELLED if only_cancelled else BatchState.ENDED
        await batch.update(state=state, ended=self._store.now(), error="", failures=0, next_look=0)
        return None

    async def _ask(self, batch: OwnedBatch, item: BatchItem) -> None:
        """Afterwards it waits only if it is to be tried again later."""
        record = batch.record
        if record.cancel or not item.request:
            gone = replace(item, state=ItemState.CANCELLED, cost=0, request=b"")
            await self._write(batch, [(item, gone)], release=True)
            return
        if item.attempts >= _ATTEMPTS:
            reason = item.reason or "The process ended each time before the answer came."
            failed = replace(item, state=ItemState.ERRORED, error=item.error or "interrupted")
            await self._write(batch, [(item, replace(failed, reason=reason, request=b""))])
            return
        begun = replace(item, attempts=item.attempts + 1, tokens=0, reserved=0)
        await self._write(batch, [(item, begun)], release=True)
        options = replace(record.options, agent=item.agent, session=item.session)
        try:
            reply = await self._complete(item.asked(), options)
        except (GatewayError, DeadlineExceeded, InvalidInput) as exc:
            kind = exc.kind if isinstance(exc, GatewayError) else "error"
            failed = replace(begun, error=kind, reason=exc.message)
            is_final = isinstance(exc, BudgetReached | InvalidInput) or not _may_pass(exc)
            if is_final:
                failed = replace(failed, state=ItemState.ERRORED, request=b"", cost=0)
            await self._write(batch, [(begun, failed)])
            return
        message = reply.message
        if self._mask is not None:
            (message,) = self._mask((message,))
        answer = packed(ModelAnswer(message, reply.finish))
        done = replace(
            begun,
            state=ItemState.SUCCEEDED,
            request=b"",
            answer=answer,
            provider=reply.provider,
            model=reply.model,
            cost=reply.cost,
            outcome=reply.outcome,
            error="",
            reason="",
        )
        await self._write(batch, [(begun, done)])

    async def _write(
        self,
        batch: OwnedBatch,
        changes: list[tuple[BatchItem, BatchItem]],
        *,
        release: bool = False,
    ) -> None:
        """Replace items, in one transaction; with `release`, what was reserved for them is free.
        Those that were forgotten meanwhile keep nothing that was said.
        """

        async def write(transaction: Transaction) -> BatchRecord:
            record = await batch.check(transaction)
            items = transaction.collection(BatchItem)
            found = await items.get_many([before.id for before, _ in changes])
            new = [
                replace(after, request=b"", answer=b"", forgotten=True)
                if there is None or there.forgotten
                else after
                for (_, after), there in zip(changes, found, strict=True)
            ]
            await items.put_many(new)
            if release:
                held = [before.reservation(record.holds) for before, _ in changes]
                free = [(each, 0, 0) for each in held if each.tokens or each.cost]
                await self._ledger.settle_many(transaction, free)
            done = [item for item in new if item.state is not ItemState.WAITING]
            record = counted(record, done)
            await transaction.collection(BatchRecord).put(record)
            return record

        await batch.commit(write)


def _may_pass(exc: Exception) -> bool:
    """Whether it may succeed when it is tried again much later."""
    if isinstance(exc, DeadlineExceeded):
        return True
    errors = getattr(exc, "errors", None) or (exc,)
    return any(isinstance(each, GatewayError) and each.retryable for each in errors)
