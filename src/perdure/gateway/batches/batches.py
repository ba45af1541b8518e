"""`gateway.batch`: many requests at once, answered within a day, at half price.

    batch = await gateway.batch.submit({"a": request, "b": request}, options, key="reflect/7")
    batch = await gateway.batch.wait(batch)
    async for result in gateway.batch.results(batch):
        result.custom_id, result.state, result.reply
    await gateway.batch.applied(batch)

A batch is written to the bank before anything is sent, and driven by the bank's worker
(`perdure.jobs`), in whichever process has one. Guaranteed: a crash at any moment loses no request
and no result, and sends nothing twice to a batch mode. Requests and answers stay in the bank until
`applied`, or for 60 days.
"""

from __future__ import annotations

import asyncio
import builtins
import hashlib
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping
from contextlib import suppress
from types import MappingProxyType
from typing import Any

import msgspec
from msgspec.structs import replace

from perdure.core.clock import new_id
from perdure.core.errors import DeadlineExceeded, InvalidInput, NotFound
from perdure.gateway.attempts import GatewayState, estimate_request, longest_answer
from perdure.gateway.batches import BATCHES, RETRIES, TIMEOUT
from perdure.gateway.batches.batch_apis import BatchLimits, limits_of
from perdure.gateway.batches.batch_driver import BatchDriver, BatchPace
from perdure.gateway.batches.batch_records import (
    FINAL,
    BatchItem,
    BatchMode,
    BatchPart,
    BatchRecord,
    BatchResult,
    BatchState,
    ItemState,
    item_key,
)
from perdure.gateway.batches.live_batch import LiveBatches
from perdure.gateway.batches.owned_batch import PORTION, LostBatch, OwnedBatch, items_of
from perdure.gateway.budgets import CallEstimate
from perdure.gateway.calls import (
    CallOptions,
    Reply,
    Request,
    check_options,
    indexable,
    packed,
    to_request,
)
from perdure.gateway.catalog import ModelCandidate
from perdure.gateway.prices import batch_price
from perdure.gateway.provider_keys import require_key
from perdure.gateway.requests import ProviderRequest
from perdure.gateway.response_cache import Mask
from perdure.gateway.transport import Transport
from perdure.jobs import Job, RetryLater, Runner
from perdure.storage.store import Store, join
from perdure.storage.transaction import Transaction

_REFLECT = CallOptions(purpose="reflect")
_NO_SESSIONS: Mapping[str, str] = MappingProxyType({})
#: Seconds between two looks of `wait`, at first and at most.
_FIRST_LOOK, _LONGEST_LOOK = 0.02, 2.0

#: Makes the body of a request for a model, limited if a budget covers it.
Build = Callable[[Request, ModelCandidate, CallOptions], ProviderRequest]


class Batches:
    """Batches of one bank. Made by the gateway, as `gateway.batch`."""

    def __init__(  # noqa: PLR0917 (the parts of the gateway that it works with)
        self,
        store: Store,
        state: GatewayState,
        transport: Transport,
        jobs: Runner | None,
        order: Callable[[CallOptions], Awaitable[list[ModelCandidate]]],
        build: Build,
        complete: Callable[[Request, CallOptions], Awaitable[Reply]],
        *,
        mask: Mask | None = None,
        enabled: bool = True,
        concurrency: int = 4,
        pace: BatchPace | None = None,
        limits: BatchLimits | None = None,
    ) -> None:
        self._store = store
        self._batches, self._items = store.collection(BatchRecord), store.collection(BatchItem)
        self._state = state
        self._jobs = jobs
        self._order = order
        self._build = build
        self._mask = mask
        self._enabled = enabled
        self._limits = limits
        pace = pace or BatchPace()
        self._driver = BatchDriver(
            store,
            state,
            transport,
            pace=pace,
            build=lambda request, candidate, record: build(request, candidate, record.options),
            mask=mask,
        )
        self._live = LiveBatches(
            store, state.ledger, complete, pace=pace, concurrency=concurrency, mask=mask
        )

    async def submit(
        self,
        requests: Mapping[str, Any],
        options: CallOptions = _REFLECT,
        *,
        key: str = "",
        sessions: Mapping[str, str] = _NO_SESSIONS,
    ) -> BatchRecord:
        """Write a batch of requests, by the caller's ids, and have it sent.

        It goes to the first model for the purpose; live, if its provider has no batch mode. The
        same `key` again gives the batch that is there. `sessions` tells whose words a request
        holds, if not those of `options.session`, for `forget` and costs. Secrets are masked, in
        what is sent too: it lies in the bank.

        Raises `BudgetReached` if not all of it fits: nothing is sent then; `NoModel`,
        `Unauthorized` if the provider's key is missing; `InvalidInput` for no requests, or a key
        that stands for others.
        """
        options = check_options(options)
        jobs = self._worker()
        asked = {id: self._masked(to_request(each)) for id, each in _checked(requests).items()}
        candidate = (await self._order(options))[0]
        mode: BatchMode = "batch" if self._enabled and candidate.provider.batch else "live"
        if mode == "batch":
            await require_key(candidate.provider, self._state.environ)
        run = new_id()
        items, sizes, assumed = list[BatchItem](), list[int](), 0
        costs = list[int | None]()
        digest = hashlib.blake2b(candidate.name.encode(), digest_size=16)
        for number, (custom_id, request) in enumerate(asked.items()):
            call = self._build(request, candidate, options)
            answer = _longest_answer(call, candidate)
            assumed += 0 if request.max_tokens else answer
            estimate = self._estimate(candidate, mode, request, answer)
            costs.append(estimate.cost)
            content = packed(request)
            digest.update(custom_id.encode("utf-8", "replace") + b"\x00" + content)
            sizes.append(len(msgspec.json.encode(call.body)) + len(custom_id) + 200)
            items.append(
                BatchItem(
                    id=item_key(run, number),
                    custom_id=custom_id,
                    request=content,
                    agent=indexable(options.agent),
                    session=indexable(sessions.get(custom_id, options.session)),
                    tokens=estimate.tokens,
                    reserved=estimate.cost or 0,
                )
            )
        record = BatchRecord(
            id=_key_hash(key) if key else run,
            run=run,
            written=self._store.now(),
            state=BatchState.WRITTEN,
            mode=mode,
            options=options,
            provider=candidate.provider.name,
            model=candidate.model,
            parts=_parts(sizes, self._limits or limits_of(candidate)) if mode == "batch" else (),
            items=len(items),
            counts={ItemState.WAITING: len(items)},
            digest=digest.hexdigest(),
            agent=indexable(options.agent),
        )
        if key and (there := await self._batches.get(record.id)) is not None:
            return _same(there, record, key)

        async def write(transaction: Transaction) -> BatchRecord:
            batches = transaction.collection(BatchRecord)
            if (there := await batches.get(record.id)) is not None:
                return _same(there, record, key)
            holds = await self._state.ledger.reserve_many(
                transaction,
                options,
                [(item.tokens, cost) for item, cost in zip(items, costs, strict=True)],
                model=candidate.name,
                assumed=assumed,
            )
            await batches.put(written := replace(record, holds=holds))
            await jobs.enqueue(transaction, BATCHES, record.id, key=record.id)
            return written

        try:
            # Before the record, which makes them count: one transaction could not hold them all.
            for begin in range(0, len(items), PORTION):
                await self._items.put_many(items[begin : begin + PORTION])
            return await self._store.transact(write)
        finally:
            # Also if it is cancelled, when it may be there all the same.
            there = await self._batches.get(record.id)
            if there is None or there.run != run:
                await self._items.delete_many(item.id for item in items)

    async def estimate(
        self, requests: Iterable[Request], options: CallOptions = _REFLECT, *, live: bool = False
    ) -> builtins.list[CallEstimate]:
        """What `submit` would reserve for each request; or a call for each of them, if `live`.

        Raises `NoModel`.
        """
        options = check_options(options)
        candidate = (await self._order(options))[0]
        is_batch = self._enabled and candidate.provider.batch and not live
        mode: BatchMode = "batch" if is_batch else "live"
        found = builtins.list[CallEstimate]()
        for request in requests:
            answer = _longest_answer(self._build(request, candidate, options), candidate)
            found.append(self._estimate(candidate, mode, request, answer))
        return found

    async def get(self, batch: BatchRecord | str) -> BatchRecord:
        """As it is in the bank. Raises `NotFound`."""
        id = batch.id if isinstance(batch, BatchRecord) else batch
        found = await self._batches.get(id)
        if found is None:
            raise NotFound(f"There is no batch {id!r}.", hint="`perdure batches` lists them.")
        return found

    async def by_key(self, key: str) -> BatchRecord | None:
        """The one that was submitted with this key, whatever its requests."""
        return await self._batches.get(_key_hash(key))

    async def list(
        self, *, limit: int = 100, agent: str | None = None
    ) -> builtins.list[BatchRecord]:
        """The newest first; of one agent, if named."""
        finder = self._batches.query().order_by("-written").limit(limit)
        if agent is not None:
            finder = finder.where("agent", "=", indexable(agent))
        return await finder.values()

    async def find(self, beginning: str) -> BatchRecord:
        """The one whose id begins so. Raises `NotFound`, or `InvalidInput` if there are several."""
        found = await self._batches.query().prefix(beginning).limit(2).values()
        if len(found) > 1:
            raise InvalidInput(
                f"Several batches begin with {beginning!r}.", hint="Write more of the id."
            )
        return found[0] if found else await self.get(beginning)

    async def poll(self, batch: BatchRecord | str) -> BatchRecord:
        """Have the worker look at it now, without waiting for that. Returns it as it is."""
        record = await self.get(batch)
        if record.state not in FINAL:
            await self._worker().enqueue(None, BATCHES, record.id, key=record.id)
        return record

    async def wait(
        self,
        batch: BatchRecord | str,
        timeout: float | None = None,  # noqa: ASYNC109
    ) -> BatchRecord:
        """Wait until it has ended, whichever process drives it. Raises `DeadlineExceeded` after
        `timeout` seconds; the batch goes on.
        """
        pause = _FIRST_LOOK
        try:
            async with asyncio.timeout(timeout):
                while (record := await self.get(batch)).state not in FINAL:
                    await asyncio.sleep(pause)
                    pause = min(pause * 1.5, _LONGEST_LOOK)
        except TimeoutError:
            raise DeadlineExceeded(
                "The batch has not ended in the time allowed.",
                hint="It goes on: wait again, or look at it with `perdure batches`.",
            ) from None
        return record

    async def results(self, batch: BatchRecord | str) -> AsyncIterator[BatchResult]:
        """What became of each request, in the order in which they were given; also before the end,
        as far as it is known.
        """
        record = await self.get(batch)
        async for portion in items_of(self._store, record):
            for item in portion:
                yield BatchResult.of(item)

    async def cancel(self, batch: BatchRecord | str) -> BatchRecord:
        """Want no more of it. What the provider has done by then is charged for, and kept."""
        record, jobs = await self.get(batch), self._worker()

        async def cancel(transaction: Transaction) -> BatchRecord:
            batches = transaction.collection(BatchRecord)
            found = await batches.get(record.id) or record
            if found.state in FINAL or found.cancel:
                return found
            await batches.put(cancelled := replace(found, cancel=True))
            await jobs.enqueue(transaction, BATCHES, record.id, key=record.id)
            return cancelled

        return await self._store.transact(cancel)

    async def applied(
        self, batch: BatchRecord | str, transaction: Transaction | None = None
    ) -> BatchRecord:
        """Say that the results were used, in the transaction that used them; deletes requests and
        answers a moment later. Raises `InvalidInput` if it has not ended.
        """
        record, jobs = await self.get(batch), self._worker()

        async def apply(transaction: Transaction) -> BatchRecord:
            batches = transaction.collection(BatchRecord)
            found = await batches.get(record.id) or record
            if found.state not in FINAL:
                raise InvalidInput(
                    f"The batch {found.id!r} has not ended: it is {found.state}.",
                    hint="Wait for it, or cancel it.",
                )
            await batches.put(applied := replace(found, state=BatchState.APPLIED))
            await jobs.enqueue(transaction, BATCHES, record.id, key=record.id)
            return applied

        return await join(self._store if transaction is None else transaction, apply)

    async def drive(self, job: Job) -> None:
        """The handler of its jobs. Raises `RetryLater` while there is more to come."""
        batch = await OwnedBatch.take(self._store, str(job.payload))
        if batch is None:
            record = await self._batches.get(str(job.payload))
            if record is not None and record.state is BatchState.APPLIED:
                await self._empty(record)
            return
        driver = self._live if batch.record.mode == "live" else self._driver
        with suppress(LostBatch):
            pause = await driver.advance(batch)
            if pause is not None:
                raise RetryLater(pause, batch.record.error or f"It is {batch.record.state}.")

    async def _empty(self, record: BatchRecord) -> None:
        async for portion in items_of(self._store, record):
            await self._items.put_many(replace(item, request=b"", answer=b"") for item in portion)

    def _estimate(
        self, candidate: ModelCandidate, mode: BatchMode, request: Request, answer: int
    ) -> CallEstimate:
        asked, name = estimate_request(request), candidate.provider.name
        cost = self._state.prices.estimate(name, candidate.model, asked, answer)
        return CallEstimate(asked + answer, batch_price(cost) if mode == "batch" else cost)

    def _masked(self, request: Request) -> Request:
        if self._mask is None or (masked := self._mask(request.messages)) == request.messages:
            return request
        return replace(request, messages=masked)

    def _worker(self) -> Runner:
        if self._jobs is None:
            raise InvalidInput(
                "This gateway has no worker, which batches need.",
                hint="Use that of a bank, bank.gateway, or give it jobs=Runner(store).",
            )
        if not self._jobs.handles(BATCHES):
            self._jobs.register(BATCHES, self.drive, retries=RETRIES, timeout=TIMEOUT)
        return self._jobs


def _longest_answer(call: ProviderRequest, candidate: ModelCandidate) -> int:
    return longest_answer(call.body) or candidate.provider.habits.default_max_tokens


def _checked(requests: object) -> Mapping[str, Any]:
    if not isinstance(requests, Mapping) or not all(isinstance(id, str) for id in requests):
        raise InvalidInput(
            "A batch is a mapping of ids to requests.", hint='Give {"first": Request(…), …}.'
        )
    if not requests:
        raise InvalidInput("There are no requests to send.", hint="Give at least one.")
    return requests


def _same(there: BatchRecord, wanted: BatchRecord, key: str) -> BatchRecord:
    if there.digest != wanted.digest:
        raise InvalidInput(
            f"The key {key!r} stands for another batch, with other requests.",
            hint="Use a key of its own for each batch.",
        )
    return there


def _key_hash(key: str) -> str:
    return hashlib.blake2b(key.encode("utf-8", "replace"), digest_size=16).hexdigest()


def _parts(sizes: Iterable[int], limits: BatchLimits) -> tuple[BatchPart, ...]:
    """Runs of items, each within what may be sent at once."""
    parts = list[BatchPart]()
    first = count = held = 0
    for number, size in enumerate(sizes):
        if count and (count >= limits.requests or held + size > limits.bytes):
            parts.append(BatchPart(first=first, count=count))
            first, count, held = number, 0, 0
        count, held = count + 1, held + size
    return (*parts, BatchPart(first=first, count=count))
