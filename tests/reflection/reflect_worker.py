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


async def main(url: str, model: str, place: int) -> None:
    left, armed = (place + 1) // 2, False

    async def kill(call: Call, handler: Handler) -> Any:
        nonlocal left
        if not armed or type(call).__name__ not in {"Commit", "Remove"}:
            return await handler(call)
        left -= 1
        if left == 0 and place % 2:
            os.kill(os.getpid(), signal.SIGKILL)
        done = await handler(call)
        if left == 0:
            os.kill(os.getpid(), signal.SIGKILL)
        return done

    provider = ProviderConfig(wire="chat", base_url=model)
    gateway = GatewayConfig(
        providers={"scripted": provider}, models=ModelsConfig(reflect="scripted/oracle"), retries=0
    )
    config = Config(gateway=gateway)
    async with perdure.open(url, config=config, middleware=[kill]) as bank:
        await bank.settle()
        armed = True
        await Reflection(bank.services, lease=0.05).reflect("planner")
        armed = False


asyncio.run(main(sys.argv[1], sys.argv[2], int(sys.argv[3])))
