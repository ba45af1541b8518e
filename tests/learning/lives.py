"""Candidates, outcomes and selectors for the tests of learning."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import count
from typing import Any

from perdure.core.clock import SECOND
from perdure.gateway.calls import CallOptions, Complexity
from perdure.gateway.catalog import ModelCandidate
from perdure.gateway.outcomes import Judge, Outcome
from perdure.gateway.providers import Provider
from perdure.learning.learned_memory import LearnedMemory
from perdure.learning.learned_selector import LearnedSelector, SelectionSettings
from perdure.learning.quality_estimates import Tier

PROVIDER = Provider(name="p", base_url="http://127.0.0.1", needs_key=False)
SMALL, MEDIUM, LARGE = (ModelCandidate(PROVIDER, name) for name in ("small", "medium", "large"))
ALL = [SMALL, MEDIUM, LARGE]
_PRICES = {"small": 0.0005, "medium": 0.004, "large": 0.02}
_numbers = count()


class Profiles:
    def tier(self, candidate: ModelCandidate) -> Tier:
        return candidate.model  # type: ignore[return-value]

    def price(self, candidate: ModelCandidate) -> float:
        return _PRICES[candidate.model]

    def complexity(self, options: CallOptions) -> Complexity:
        return options.complexity or "moderate"


class Hands:
    """A clock that is set by hand."""

    def __init__(self) -> None:
        self.seconds = 0.0

    def __call__(self) -> int:
        return int(self.seconds * SECOND)


def selector(
    memory: LearnedMemory | None = None,
    *,
    may_judge: bool = False,
    clock: Hands | None = None,
    **settings: Any,
) -> LearnedSelector:
    return LearnedSelector(
        Profiles,
        memory,
        SelectionSettings(**settings),
        may_judge=lambda: may_judge,
        clock=clock or Hands(),
    )


def outcome(
    candidate: ModelCandidate,
    *,
    agent: str = "router",
    task: str = "triage",
    session: str = "",
    ok: bool = True,
    quality: float | None = None,
    by: Judge = "heuristic",
    error: str = "",
    dollars: float | None = None,
) -> Outcome:
    number = next(_numbers)
    return Outcome(
        id=f"o{number}",
        call=f"c{number}",
        started=number,
        purpose="chat",
        provider="p",
        model=candidate.model,
        agent=agent,
        task=task,
        session=session,
        success=ok,
        error=error if ok or error else "down",
        latency=1.0,
        cost=None if dollars is None else int(dollars * 1e12),
        complexity="moderate",
        quality=quality,
        quality_by=by,
    )


def label(
    learned: LearnedSelector, candidate: ModelCandidate, scores: Iterable[float], **given: str
) -> None:
    for score in scores:
        learned.rate(outcome(candidate, quality=score, by="judge", **given))  # type: ignore[arg-type]


def options(**given: str) -> CallOptions:
    number = next(_numbers)
    return CallOptions(**{"agent": "router", "task": "triage", "call": f"call {number}", **given})  # type: ignore[arg-type]
