"""A process that spends: ``python -m tests.gateway.spender URL TASK``; see `test_ledger`."""

from __future__ import annotations

import asyncio
import sys

from perdure.core.clock import now
from perdure.core.errors import BudgetReached
from perdure.gateway.budgets import Budget
from perdure.gateway.calls import CallOptions
from perdure.gateway.ledger import Ledger
from perdure.storage.registry import adapter_for
from perdure.storage.store import Store

#: So many calls of so many tokens are allowed, among all processes.
ALLOWED, TOKENS = 60, 10
BUDGETS = (
    Budget(name="shared", per="ever", tokens=ALLOWED * TOKENS),
    Budget(name="each", agent="*", per="ever", cost=10**12),
)


def tell(line: str) -> None:
    print(line, flush=True)


async def spend(ledger: Ledger) -> None:
    """Call, three at a time, until the budget is reached; tells how many calls were allowed."""
    granted = 0

    async def lane(agent: str) -> None:
        nonlocal granted
        while True:
            try:
                held = await ledger.reserve(CallOptions(agent=agent), TOKENS, 7)
            except BudgetReached:
                return
            granted += 1
            await ledger.settle(held, TOKENS, 5)

    await asyncio.gather(*(lane(agent) for agent in "abc"))
    tell(str(granted))


async def die(ledger: Ledger) -> None:
    """Settle one call, leave another open, and go on until killed."""
    held = await ledger.reserve(CallOptions(agent="a"), TOKENS, 7)
    await ledger.settle(held, 3, 5)
    await ledger.reserve(CallOptions(agent="a"), TOKENS, 7)
    tell("open")
    while True:
        held = await ledger.reserve(CallOptions(agent="a"), 1, 0)
        await ledger.settle(held, 0, 0)
        tell("settled")


async def main(url: str, task: str) -> None:
    async with Store(adapter_for(url, now), clock=now) as store:
        ledger = Ledger(store, BUDGETS)
        await ledger.status()  # it is open, and has its tables
        tell("ready")
        sys.stdin.readline()
        await {"spend": spend, "die": die}[task](ledger)


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
