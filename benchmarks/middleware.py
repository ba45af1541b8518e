"""One record of 700 bytes written, and one read by its key, with more and more of the chain.

Each contestant has the middleware of the one before it and one more, on a database of its own; all
take turns. "Idle" tracing is that of a program that has not set OpenTelemetry up; with the SDK,
spans and metrics are made and kept in memory. Audit adds a record to each write, and reads the one
that is written over. Encryption is of everything, with a key for each collection. Records that are
read are drawn from those that a cache holds.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from contextlib import AsyncExitStack

from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from opentelemetry.sdk.trace import SpanProcessor, TracerProvider

from benchmarks import ours
from benchmarks.harness import Block, Contestant, Report, alternate, awaited, ratio, work_folder
from benchmarks.ours import Message
from benchmarks.texts import Texts
from perdure.config.settings import AuditConfig, CacheConfig
from perdure.core.clock import now
from perdure.storage.audit import Audit
from perdure.storage.cache import RowCache
from perdure.storage.compression import Compression
from perdure.storage.encryption import Encryption, MasterKeys
from perdure.storage.metrics import Metrics
from perdure.storage.middleware import Middleware
from perdure.storage.options import STRONG
from perdure.storage.query import Query
from perdure.storage.registry import adapter_for
from perdure.storage.store import Store
from perdure.storage.tracing import Tracing

SIZE = 700
KEPT, BENCH = "kept", "bench"
#: Records that are read, of all that are kept.
HOT = 1_000
_KEY = random.Random(0).randbytes(32)


async def run(report: Report, *, quick: bool) -> None:
    records, rounds, count = (60, 2, 10) if quick else (10_000, 30, 300)
    with work_folder() as folder:
        async with AsyncExitStack() as stack:
            contestants: dict[str, Contestant] = {}
            for name, chain in _chains().items():
                adapter = adapter_for(f"sqlite:///{folder}/{name.replace(' ', '-')}.db")
                store = await stack.enter_async_context(Store(adapter, middleware=chain))
                await _fill(store, records)
                contestants[f"write, {name}"] = _writing(store, count)
                contestants[f"read, {name}"] = _reading(store, records, count)
            tallies = await alternate(contestants, rounds, quick=quick)
    for contestant, tally in tallies.items():
        operation, name = contestant.split(", ")
        if name != "none":
            measured = ratio(tally, tallies[f"{operation}, none"])
            report.ratio(f"{operation}_{name.lower().replace(' ', '_')}", measured)
    report.tallies(tallies)


#: What is added to the chain, one after another.
_STEPS: dict[str, Callable[[], Middleware]] = {
    "metrics": Metrics,
    "tracing idle": Tracing,
    "audit": lambda: Audit(AuditConfig(collections=("*",))),
    "compression": Compression,
    "encryption": lambda: Encryption(MasterKeys(lambda: _KEY), everything=True),
    "cache": lambda: RowCache(CacheConfig(entries=20_000), now),
}


def _chains() -> dict[str, list[Middleware]]:
    """What stands around the backend, contestant by contestant."""
    steps = list(_STEPS)
    chains = {name: [_STEPS[each]() for each in steps[: steps.index(name) + 1]] for name in steps}
    return {"none": [], **chains, "tracing with SDK": [Metrics(), _traced()]}


def _traced() -> Tracing:
    spans = TracerProvider()
    spans.add_span_processor(SpanProcessor())  # the cheapest there is: drops them
    return Tracing(spans, MeterProvider([InMemoryMetricReader()]))


async def _fill(store: Store, records: int) -> None:
    messages = store.collection(Message)
    await ours.fill(messages, KEPT, Texts(1).messages(records, SIZE))
    await _clear(store)
    for number in range(min(HOT, records)):
        await messages.get(_key(number))


def _writing(store: Store, count: int) -> Contestant:
    put = store.collection(Message).put

    async def write(number: int) -> Block:
        block = await awaited(put, ours.messages(BENCH, Texts(number).messages(count, SIZE)))
        await _clear(store)
        return block

    return write


def _reading(store: Store, records: int, count: int) -> Contestant:
    get, hot = store.collection(Message).get, min(HOT, records)

    async def read(number: int) -> Block:
        dice = random.Random(number)
        return await awaited(get, [_key(dice.randrange(hot)) for _ in range(count)])

    return read


def _key(number: int) -> str:
    return f"{KEPT}/{number:08d}"


async def _clear(store: Store) -> None:
    """Remove what a block has written, around the chain: the databases keep their sizes."""
    await store.adapter.remove(Query("messages", prefix=f"{BENCH}/"), STRONG)
    if "perdure_audit" in store.declared:
        await store.adapter.remove(Query("perdure_audit"), STRONG)
