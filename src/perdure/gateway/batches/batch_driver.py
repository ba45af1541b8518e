"""Takes a batch from one state to the next. One process at a time has it (`jobs`), and whoever lost
it to another writes nothing more (`BatchRecord.owner`).

Each step is recorded before the next begins. That a part is about to be sent is recorded first, so
that after a crash, or a call whose answer never came, the provider's batches are looked through
before it is sent again. Results, costs and budgets are written in one transaction, item by item.
"""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import suppress

import msgspec
from msgspec.structs import replace

from perdure.core.clock import SECOND
from perdure.core.display import plural
from perdure.core.errors import GatewayError, InvalidConfig, RateLimited, Rejected, Unauthorized
from perdure.gateway.attempts import GatewayState
from perdure.gateway.batches.batch_apis import (
    BatchApi,
    RemoteBatch,
    ResultLine,
    SentPart,
    StillUnknown,
    batch_api,
    is_not_there,
    is_refused,
)
from perdure.gateway.batches.batch_records import (
    FINAL,
    BatchItem,
    BatchPart,
    BatchRecord,
    BatchState,
    ItemState,
    number_of,
)
from perdure.gateway.batches.batch_results import BatchResultWriter
from perdure.gateway.batches.owned_batch import PORTION, OwnedBatch, items_of, with_part
from perdure.gateway.calls import Request
from perdure.gateway.catalog import ModelCandidate
from perdure.gateway.provider_keys import require_key
from perdure.gateway.requests import ProviderRequest
from perdure.gateway.response_cache import Mask
from perdure.gateway.transport import Transport
from perdure.storage.store import Store

_log = logging.getLogger(__name__)

#: How often results that lack lines are fetched again before the lines count as lost.
_GAPS = 2
#: How long providers keep results, at least. Microseconds.
_KEPT = 29 * 86_400 * SECOND


class BatchPace(msgspec.Struct, frozen=True):
    """When a batch is looked at again, in seconds."""

    #: After it was sent; each further pause is half as long again, up to the longest.
    first: float = 60.0
    longest: float = 900.0
    #: Until a batch that was created stands in the provider's list at the latest.
    lag: float = 60.0

    def pause(self, count: int) -> float:
        return min(self.first * 1.5 ** min(count, 50), max(self.longest, self.first))


class BatchDriver:
    """Drives batches of providers that have a batch mode."""

    def __init__(
        self,
        store: Store,
        state: GatewayState,
        transport: Transport,
        *,
        pace: BatchPace,
        build: Callable[[Request, ModelCandidate, BatchRecord], ProviderRequest],
        mask: Mask | None,
    ) -> None:
        self._store = store
        self._state = state
        self._transport = transport
        self._pace = pace
        self._build = build
        self._writer = BatchResultWriter(state, mask)

    async def advance(self, batch: OwnedBatch) -> float | None:
        """Do what can be done now. Returns the seconds until there is more; None: it is over."""
        try:
            candidate = self._state.catalog.find(batch.record.model_name)
            key = await require_key(candidate.provider, self._state.environ)
        except (InvalidConfig, Unauthorized) as exc:
            # Another process may know the provider, and have its key.
            return await self._wait(batch, exc.message)
        try:
            api = batch_api(self._transport, candidate, key)
            pauses = [
                pause
                for at, part in enumerate(batch.record.parts)
                if part.state not in FINAL
                and (pause := await self._step(batch, at, api, candidate)) is not None
            ]
        except GatewayError as exc:
            return await self._wait(batch, exc.message, getattr(exc, "retry_after", None))
        except StillUnknown as exc:
            why = f"Whether it was sent is not known until {exc} has ended."
            pauses = [await self._wait(batch, why)]
        if any(part.state not in FINAL for part in batch.record.parts):
            pause = min(pauses, default=0.0)
            await batch.update(next_look=self._state.clock() + int(pause * SECOND))
            return pause
        await self._end(batch)
        return None

    async def _wait(self, batch: OwnedBatch, why: str, asked: float | None = None) -> float:
        pause = max(self._pace.pause(batch.record.failures), asked or 0.0)
        next_look = self._state.clock() + int(pause * SECOND)
        failures = batch.record.failures + 1
        await batch.update(failures=failures, error=why, next_look=next_look)
        return pause

    # Steps ------------------------------------------------------------------------------------

    async def _step(
        self, batch: OwnedBatch, at: int, api: BatchApi, candidate: ModelCandidate
    ) -> float | None:
        part = batch.record.parts[at]
        if not part.remote:
            pause = await self._send(batch, at, api, candidate)
            if pause is not None or batch.record.parts[at].state in FINAL:
                return pause
            return self._pace.pause(0)
        return await self._look(batch, at, api)

    async def _send(
        self, batch: OwnedBatch, at: int, api: BatchApi, candidate: ModelCandidate
    ) -> float | None:
        part = batch.record.parts[at]
        if part.sending and (pause := await self._recover(batch, at, api)) is not None:
            return pause
        part = batch.record.parts[at]
        if part.remote:
            return None
        lines = await self._lines(batch, part, api, candidate)
        if part.file and len(lines) != part.lines:  # it holds what was forgotten since
            await api.clean_up(part.file)
            part = await batch.update_part(at, file="")
        if not lines:  # cancelled, or forgotten
            await self._close(batch, at, ItemState.CANCELLED, BatchState.CANCELLED)
            return None
        name = self._name(batch.record, at)
        try:
            if not part.file and (file := await api.upload(lines, name)):
                part = await batch.update_part(at, file=file, lines=len(lines))
            begun = self._state.clock()
            await batch.update_part(at, sending=begun, lines=len(lines))
            if await self._has_forgotten(batch, part, lines):
                await batch.update_part(at, sending=0)
                return 0.0  # it is put together anew
            if self._state.clock() - begun > self._pace.lag / 2 * SECOND:
                return 0.0  # the process stood still: somebody else may be looking for it by now
            remote = await api.create(lines, part.file, name)
        except GatewayError as exc:
            if not is_refused(exc):
                raise  # it may be there
            await batch.update_part(at, sending=0)
            if not isinstance(exc, Rejected):
                raise
            await self._refuse(batch, at, exc.message, exc.kind)
            return None
        await self._sent(batch, at, remote.id)
        return None

    async def _lines(
        self, batch: OwnedBatch, part: BatchPart, api: BatchApi, candidate: ModelCandidate
    ) -> list[bytes]:
        lines, gone = list[bytes](), dict[int, ResultLine]()
        if batch.record.cancel:
            return lines
        async for item in self._items(batch.record, part):
            if item.forgotten:
                gone[item.number] = ResultLine(wire_id="", state=ItemState.CANCELLED)
            elif item.state is ItemState.WAITING:
                call = self._build(item.asked(), candidate, batch.record)
                lines.append(api.line(item.wire_id, call))
        await self._writer.write(batch, gone, error="forgotten")
        return lines

    async def _has_forgotten(
        self, batch: OwnedBatch, part: BatchPart, lines: Sequence[bytes]
    ) -> bool:
        """Whether something was forgotten since these lines were written."""
        waiting = 0
        async for item in self._items(batch.record, part):
            waiting += item.state is ItemState.WAITING and not item.forgotten
        return waiting != len(lines)

    async def _recover(self, batch: OwnedBatch, at: int, api: BatchApi) -> float | None:
        """Find what was sent without an answer; seconds to wait if that cannot be told yet."""
        part = batch.record.parts[at]
        known = await self._known()
        found = await api.find(self._name(batch.record, at), known)
        if found:
            await self._sent(batch, at, found[0])
            for twice in found[1:]:
                _log.warning("batch %s was sent twice; %s is cancelled", batch.record.id, twice)
                with suppress(GatewayError):
                    await api.cancel(twice)
            return None
        left = part.sending / SECOND + self._pace.lag - self._state.clock() / SECOND
        if left > 0:
            return min(left, self._pace.first)
        await batch.update_part(at, sending=0)
        return None

    async def _sent(self, batch: OwnedBatch, at: int, remote: str) -> None:
        now = self._state.clock()

        def change(record: BatchRecord) -> BatchRecord:
            found = with_part(record, at, remote=remote, state=BatchState.SENT, sent=now)
            is_all = all(part.state is not BatchState.WRITTEN for part in found.parts)
            state = BatchState.SENT if is_all else found.state
            return replace(found, state=state, failures=0, error="")

        await batch.write(change)

    async def _look(self, batch: OwnedBatch, at: int, api: BatchApi) -> float | None:
        part = batch.record.parts[at]
        if batch.record.cancel and not part.cancelling:
            try:
                await api.cancel(part.remote)
            except GatewayError as exc:
                if not is_refused(exc) or isinstance(exc, RateLimited):
                    raise
            part = await batch.update_part(at, cancelling=True)
        try:
            remote = await api.look(part.remote)
        except GatewayError as exc:
            if not is_not_there(exc):
                raise
            if part.looks == 0 and self._is_young(part):
                return self._pace.pause(0)
            await self._close(batch, at, ItemState.MISSING, BatchState.ENDED, error="gone")
            return None
        if remote.state == "in_progress":
            pause = self._pace.pause(part.looks + 1)

            def change(record: BatchRecord) -> BatchRecord:
                state = BatchState.IN_PROGRESS
                found = with_part(record, at, state=state, looks=part.looks + 1)
                return replace(found, state=state, failures=0, error="")

            await batch.write(change)
            return pause
        if remote.state == "failed":
            return await self._refused_late(batch, at, api, remote)
        return await self._collect(batch, at, api, remote)

    async def _refused_late(
        self, batch: OwnedBatch, at: int, api: BatchApi, remote: RemoteBatch
    ) -> float | None:
        if remote.crowded and not batch.record.cancel:
            await batch.update_part(at, remote="", sending=0, sent=0, state=BatchState.WRITTEN)
            return await self._wait(batch, remote.error)
        await self._refuse(batch, at, remote.error or "The provider refused the batch.", "rejected")
        await api.clean_up(*remote.files, batch.record.parts[at].file)
        return None

    async def _collect(
        self, batch: OwnedBatch, at: int, api: BatchApi, remote: RemoteBatch
    ) -> float | None:
        part = batch.record.parts[at]
        lines = dict[int, ResultLine]()
        try:
            async for line in api.results(remote):
                number = number_of(line.wire_id, batch.record.run)
                if number is not None and number in part.numbers:
                    lines.setdefault(number, line)
                if len(lines) >= PORTION:
                    await self._writer.write(batch, lines)
                    lines = {}
        except GatewayError as exc:
            if not is_not_there(exc):
                raise
            # They may not be there yet, though the batch has ended; or not any more.
            if self._state.clock() - part.sent < _KEPT:
                return await self._wait(batch, exc.message)
        await self._writer.write(batch, lines)
        unfinished = remote.unfinished or ItemState.MISSING
        if unfinished is ItemState.MISSING and part.gaps < _GAPS:
            missing = 0
            async for item in self._items(batch.record, part):
                missing += item.state is ItemState.WAITING
            if missing:
                await batch.update_part(at, gaps=part.gaps + 1)
                return await self._wait(batch, f"The results lack {plural(missing, 'line')}.")
        await self._close(batch, at, unfinished, BatchState.ENDED)
        # What the provider would keep for ever; it has cost what it has cost.
        await api.clean_up(*remote.files, part.file)
        return None

    async def _refuse(self, batch: OwnedBatch, at: int, why: str, kind: str) -> None:
        await self._close(batch, at, ItemState.ERRORED, BatchState.FAILED, error=kind, reason=why)

    async def _close(
        self,
        batch: OwnedBatch,
        at: int,
        left: ItemState,
        state: BatchState,
        *,
        error: str = "",
        reason: str = "",
    ) -> None:
        """End a part: what still waits becomes `left`."""
        part = batch.record.parts[at]
        waiting = list[int]()
        async for item in self._items(batch.record, part):
            if item.state is ItemState.WAITING:
                waiting.append(item.number)
        for begin in range(0, len(waiting), PORTION):
            await self._writer.write(
                batch,
                {
                    number: ResultLine(wire_id="", state=left)
                    for number in waiting[begin : begin + PORTION]
                },
                error=error,
                reason=reason,
            )
        await batch.update_part(at, state=state, error=reason)

    async def _end(self, batch: OwnedBatch) -> None:
        states = {part.state for part in batch.record.parts}
        state = states.pop() if len(states) == 1 else BatchState.ENDED
        if state is BatchState.ENDED and set(batch.record.counts) == {ItemState.CANCELLED}:
            state = BatchState.CANCELLED
        error = next((part.error for part in batch.record.parts if part.error), "")
        now = self._state.clock()
        await batch.update(state=state, ended=now, error=error, failures=0, next_look=0)

    async def _items(self, record: BatchRecord, part: BatchPart) -> AsyncIterator[BatchItem]:
        async for portion in items_of(self._store, record, part.numbers):
            for item in portion:
                yield item

    async def _known(self) -> frozenset[str]:
        """The provider's ids of all batches in the bank."""
        known = set[str]()
        async for record in self._store.collection(BatchRecord).walk():
            known.update(part.remote for part in record.parts if part.remote)
        return frozenset(known)

    def _name(self, record: BatchRecord, at: int) -> SentPart:
        part = record.parts[at]
        since = part.sending or record.written
        return SentPart(record.run, at, part.numbers, since, part.lines)

    def _is_young(self, part: BatchPart) -> bool:
        return self._state.clock() - part.sent < self._pace.lag * SECOND
