"""What tests of the tiers are given."""

from __future__ import annotations

from typing import Any

import perdure
from perdure import Interaction
from perdure.bank import Bank


def interaction(number: int = 1, agent: str = "router", **fields: Any) -> Interaction:
    given: dict[str, Any] = {
        "id": f"{agent}/{number:08}",
        "agent": agent,
        "agent_version": 1,
        "task": "routing",
        "request": f"Where does invoice {number} go?",
        "response": f"To billing, case {number}.",
        "provider": "openai",
        "model": "gpt-5",
        "cost": 2_000_000_000,
        "latency": 0.5,
        "tokens": perdure.Usage(100, 20),
        "steps": 1,
    }
    return Interaction(**(given | fields))


async def recorded(bank: Bank, *interactions: Interaction) -> None:
    for each in interactions:
        await bank.agent_memory(each.agent).store(each)
