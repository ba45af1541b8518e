"""Simulation: what real conversations would have cost under each way to keep a history.

    history = await read_history([Path("~/.claude/projects")])
    compared = await simulate(history, budget=100_000)
    compared.policies["gradient"].hit_ratio

A transcript is replayed request by request. Each policy says what it would have sent; a model of
the provider's prompt cache says what of it was read and what was written. Token counts are real,
nothing is called and nothing is tuned to a file. docs/simulate.md explains every figure.
"""

from __future__ import annotations

from perdure.simulation.caching import RULES, Block, Cache, Charge, Rules, rules_for
from perdure.simulation.policies import POLICIES, Policy
from perdure.simulation.replay import SYSTEM, Bill, Comparison, Figures, replay, simulate
from perdure.simulation.setting import Request, Setting
from perdure.simulation.transcripts import Call, History, read_history

__all__ = [
    "POLICIES",
    "RULES",
    "SYSTEM",
    "Bill",
    "Block",
    "Cache",
    "Call",
    "Charge",
    "Comparison",
    "Figures",
    "History",
    "Policy",
    "Request",
    "Rules",
    "Setting",
    "read_history",
    "replay",
    "rules_for",
    "simulate",
]
