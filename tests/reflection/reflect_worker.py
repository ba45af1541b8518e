"""Reflects, and is killed at its nth write: half of the times before it is done, else after it."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from typing import Any

import perdure
from perdure.config import Config, GatewayConfig, ModelsConfig, ProviderConfig
from perdure.reflection.reflection import Reflection
from perdure.storage.middleware import Call, Handler


async def main(url: str, model: str, place: int, *, batch: bool) -> None:
    left, armed = (place + 1) // 2, False

    async def kill(call: Call, handler: Handler) -> Any:
        nonlocal left
        if not armed or type(call).__name__ not in {"Commit", "Remove"}:
            return await handler(call)
        left -= 1
        is_it = left == 0  # others are written meanwhile
        if is_it and place % 2:
            os.kill(os.getpid(), signal.SIGKILL)
        done = await handler(call)
        if is_it:
            os.kill(os.getpid(), signal.SIGKILL)
        return done

    provider = ProviderConfig(wire="messages" if batch else "chat", base_url=model, batch=batch)
    gateway = GatewayConfig(
        providers={"scripted": provider},
        models=ModelsConfig(reflect="scripted/oracle"),
        retries=0,
        batch_poll=0.02,
    )
    config = Config(gateway=gateway)
    async with perdure.open(url, config=config, middleware=[kill]) as bank:
        await bank.settle()
        bank.jobs._lease = 0.5  # so that nobody waits long for a job of the killed
        armed = True
        await Reflection(bank.services, lease=0.05).reflect("planner")
        armed = False


asyncio.run(main(sys.argv[1], sys.argv[2], int(sys.argv[3]), batch=bool(sys.argv[4])))
