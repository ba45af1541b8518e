"""Batches on a store of their own, with a worker, in front of a scripted model."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import msgspec

from perdure.config import GatewayConfig
from perdure.core import clock as clocks
from perdure.core.clock import Clock
from perdure.gateway.batches import BATCHES, RETRIES, TIMEOUT
from perdure.gateway.batches.batch_apis import BatchLimits
from perdure.gateway.batches.batch_driver import BatchPace
from perdure.gateway.batches.batch_records import BatchRecord, BatchResult
from perdure.gateway.calls import Request
from perdure.gateway.gateway import Gateway
from perdure.gateway.providers import CallWire
from perdure.jobs import Runner
from perdure.storage.registry import adapter_for
from perdure.storage.store import Store
from perdure.testing import ScriptedModel
from tests.gateway.opened import QUICK

WIRES: tuple[CallWire, ...] = ("messages", "responses", "chat")
#: Dollars for a million tokens: those of the batch mode are half of it.
PRICE = {"input": 2.0, "output": 10.0}
#: No test waits for it.
FAST = BatchPace(first=0.01, longest=0.05, lag=60.0)
#: For what is to be sent again: a list that lacks it is soon believed.
HASTY = BatchPace(first=0.01, longest=0.05, lag=0.3)
#: Seconds in which any machine gets there.
PATIENCE = 100.0


def asked(text: str) -> Request:
    return Request(messages=text, max_tokens=50)


def config_for(url: str, wire: CallWire = "messages", **changes: Any) -> GatewayConfig:
    provider = {"wire": wire, "base_url": url, "batch": True}
    settings: dict[str, Any] = {
        "providers": {"p": provider | changes.pop("provider", {})},
        "models": {"reflect": "p/m"},
        "prices": {"p/m": PRICE},
        **changes,
    }

    return msgspec.convert(settings, GatewayConfig)


@asynccontextmanager
async def driven(
    store: Store,
    config: GatewayConfig,
    *,
    pace: BatchPace = FAST,
    limits: BatchLimits | None = None,
    lease: float = 30.0,
    mask: Any = None,
    clock: Clock = clocks.now,
) -> AsyncIterator[Gateway]:
    """A gateway whose batches are driven by a worker, as those of a bank are."""
    runner = Runner(store, poll=0.01, lease=lease)
    gateway = Gateway(
        store,
        config,
        jobs=runner,
        environ={},
        backoff=QUICK,
        batch_pace=pace,
        batch_limits=limits,
        mask=mask,
        clock=clock,
    )
    runner.register(BATCHES, gateway.batch.drive, retries=RETRIES, timeout=TIMEOUT)
    await runner.start()
    try:
        yield gateway
    finally:
        await runner.unregister(BATCHES)
        await gateway.close()
        await runner.stop(1.0)


@asynccontextmanager
async def batching(
    model: ScriptedModel, wire: CallWire = "messages", *, url: str = "memory://", **changes: Any
) -> AsyncIterator[Gateway]:
    options = {
        name: changes.pop(name) for name in ("pace", "limits", "lease", "mask") if name in changes
    }
    async with Store(adapter_for(url, clocks.now), clock=clocks.now) as store:
        config = config_for(model.url, wire, **changes)
        async with driven(store, config, **options) as gateway:
            yield gateway


async def finished(gateway: Gateway, batch: BatchRecord | str) -> BatchRecord:
    return await gateway.batch.wait(batch, PATIENCE)


async def results_of(gateway: Gateway, batch: BatchRecord | str) -> dict[str, BatchResult]:
    return {each.custom_id: each async for each in gateway.batch.results(batch)}
