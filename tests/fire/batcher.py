"""A process that sends a batch and drives it to its end:
``python -m tests.fire.batcher BANK SERVER WIRE MODE COUNT``; see `test_batches`.
"""

from __future__ import annotations

import asyncio
import sys
from typing import Any

from perdure.config import GatewayConfig
from perdure.core.clock import now
from perdure.gateway.batches.batch_driver import BatchPace
from perdure.gateway.calls import CallOptions, Request
from perdure.storage.registry import adapter_for
from perdure.storage.store import Store
from tests.gateway.batching import asked, config_for, driven, finished

KEY = "reflect/1"
OPTIONS = CallOptions(purpose="reflect", agent="planner")
PACE = BatchPace(first=0.01, longest=0.1, lag=2.0)
#: Seconds after which the jobs of a dead process are taken over.
LEASE = 1.0
BUDGET: dict[str, Any] = {"name": "all", "per": "ever", "tokens": 10**6, "dollars": 50.0}


def requests(count: int) -> dict[str, Request]:
    return {f"item {number}": asked(f"q{number}") for number in range(count)}


def config(server: str, wire: Any, mode: str) -> GatewayConfig:
    return config_for(
        server, wire, budgets=[BUDGET], batch=mode == "batch", batch_concurrency=1, retries=0
    )


async def main(url: str, server: str, wire: str, mode: str, count: str) -> None:
    async with (
        Store(adapter_for(url, now), clock=now) as store,
        driven(store, config(server, wire, mode), pace=PACE, lease=LEASE) as gateway,
    ):
        batch = await gateway.batch.submit(requests(int(count)), OPTIONS, key=KEY)
        print("submitted", flush=True)
        await finished(gateway, batch)
        print("ended", flush=True)


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
