"""A process that calls a model: ``python -m tests.fire.caller BANK SERVER``; see `test_gateway`."""

from __future__ import annotations

import asyncio
import sys

from perdure.bank import Bank
from perdure.config import BudgetConfig, Config, GatewayConfig, ModelsConfig, ProviderConfig
from perdure.core.messages import user
from perdure.gateway.calls import CallOptions, Request

LIMIT = 10_000
#: 18 tokens for the words, and what is allowed for the answer.
ASKED = Request(messages=(user("x" * 35),), max_tokens=100)
RESERVED = 118


def config_for(server: str) -> Config:
    return Config(
        gateway=GatewayConfig(
            providers={"p0": ProviderConfig(base_url=server)},
            models=ModelsConfig(chat="p0/m"),
            budgets=(BudgetConfig(name="all", tokens=LIMIT, per="ever"),),
        )
    )


async def main(url: str, server: str) -> None:
    async with Bank(url, config=config_for(server)) as bank:
        # One is answered and settled; then three at the same time, which never are.
        await bank.gateway.complete(ASKED, CallOptions(task="answered"))
        await bank.settle()
        await asyncio.gather(
            *(bank.gateway.complete(ASKED, CallOptions(task="lost")) for _ in range(3))
        )


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
