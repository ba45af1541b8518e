"""Simulation: what real conversations would have cost under each way to keep a history.

    history = await read_history([Path("~/.claude/projects")])
    compared = await simulate(history, budget=100_000)
    compared.policies["gradient"].hit_ratio

A transcript is replayed request by request. Each policy says what it would have sent; a model of
the provider's prompt cache says what of it was read and what was written. Token counts are real,
nothing is called and nothing is tuned to a file. docs/simulate.md explains every figure.
"""

from __future__ import annotations

from perdure.simulation.history_policies import POLICIES, Policy
from perdure.simulation.policy_replay import (
    SYSTEM,
    Bill,
    PolicyComparison,
    PolicyFigures,
    replay,
    simulate,
)
from perdure.simulation.prompt_cache import (
    RULES,
    CacheBlock,
    Charge,
    Rules,
    SimulatedCache,
    rules_for,
)
from perdure.simulation.replay_input import (
    Call,
    History,
    ReplaySetting,
    SimulatedRequest,
    read_history,
)
from perdure.simulation.window_figures import BandShare, WindowFigures

__all__ = [
    "POLICIES",
    "RULES",
    "SYSTEM",
    "BandShare",
    "Bill",
    "CacheBlock",
    "Call",
    "Charge",
    "History",
    "Policy",
    "PolicyComparison",
    "PolicyFigures",
    "ReplaySetting",
    "Rules",
    "SimulatedCache",
    "SimulatedRequest",
    "WindowFigures",
    "read_history",
    "replay",
    "rules_for",
    "simulate",
]
