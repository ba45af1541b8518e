"""Reflects in a process of its own, until nothing is new; may be killed at its nth write: half of
the times before it is done, else after it. Started by `tests.fire.zygote`.
"""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Callable, Coroutine
from typing import Any

import perdure
from perdure.bank import Bank
from perdure.config import Config, GatewayConfig, ModelsConfig, ProviderConfig
from perdure.core.errors import Conflict
from perdure.gateway.batches.batch_driver import BatchPace
from perdure.gateway.providers import CallWire
from perdure.reflection.reflection import Reflection
from perdure.storage.middleware import Call, Commit, Handler, Remove

#: Seconds, of those that are killed.
_LEASE = 0.05
_LEASES = "perdure_reflection_leases"


async def reflect(
    tell: Callable[[str], None], url: str, server: str, wire: str, place: int
) -> None:
    """Is killed at the nth place; never, if that is 0."""
    left, armed = (place + 1) // 2, False

    async def kill(call: Call, handler: Handler) -> Any:
        nonlocal left
        if not armed or not _is_step(call):
            return await handler(call)
        left -= 1
        is_it = left == 0  # others are written meanwhile
        if is_it and place % 2:
            os.kill(os.getpid(), signal.SIGKILL)
        done = await handler(call)
        if is_it:
            os.kill(os.getpid(), signal.SIGKILL)
        return done

    async with perdure.open(url, config=config(server, wire), middleware=[kill]) as bank:
        await bank.settle()
        hasten(bank)
        armed = True
        await until_nothing_is_new(Reflection(bank.services, lease=_LEASE if place else 60.0))
        armed = False
        if place and left <= 0:  # it dies behind a write that takes longer than all the rest
            os.kill(os.getpid(), signal.SIGKILL)
    tell("done")


def _is_step(call: Call) -> bool:
    """Whether something is written; how often a lease is renewed meanwhile, only the clock says."""
    if isinstance(call, Commit):
        return any(write.collection != _LEASES for write in call.batch.writes)
    return isinstance(call, Remove)


async def until_nothing_is_new(reflection: Reflection) -> None:
    """Raises `TimeoutError` if there is always something new."""
    async with asyncio.timeout(60):
        while True:
            try:
                if not await reflection.reflect("planner"):
                    return
            except Conflict:  # another process reflects
                await asyncio.sleep(0.05)


def config(server: str, wire: str) -> Config:
    """Live, or by the batch mode of a wire."""
    batch: CallWire | None = None if wire == "live" else wire  # type: ignore[assignment]
    provider = ProviderConfig(wire=batch or "chat", base_url=server, batch=batch is not None)
    gateway = GatewayConfig(
        providers={"scripted": provider},
        models=ModelsConfig(reflect="scripted/oracle"),
        retries=0,
        batch_poll=0.02,
    )
    return Config(gateway=gateway)


def hasten(bank: Bank) -> None:
    """Nobody waits long for a job of who was killed, or for a batch that was perhaps sent."""
    bank.jobs._engine.lease = 0.5
    bank.gateway.batch._driver._pace = BatchPace(first=0.02, longest=0.05, lag=0.6)


TASKS: dict[str, Callable[..., Coroutine[Any, Any, None]]] = {"reflect": reflect}
