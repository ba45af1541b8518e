"""The choice by the formula of the first design, kept to compare with: ``gateway.selector =
"seed"``.

quality · success / (cost + 0.01) by provider, agent and task, with the quality that its
`assess_quality` guesses from the provider's name. It learns nothing of quality, tries nothing out,
and stays with the cheapest that it knows. Behind the breaker, like every selector.
"""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from perdure.core.errors import PerdureError
from perdure.gateway.calls import CallOptions, indexable
from perdure.gateway.catalog import ModelCandidate
from perdure.gateway.model_selection import CandidateStatus, HealthSelector
from perdure.gateway.outcomes import CANCELLED, Outcome
from perdure.storage.options import DEFAULT
from perdure.storage.store import Store

_PICODOLLARS = 1e12
_MOST_KINDS = 4_096


class _Sums(msgspec.Struct):
    calls: int = 0
    successes: int = 0
    quality: float = 0.0
    dollars: float = 0.0

    def score(self) -> float:
        quality, cost = self.quality / self.calls, self.dollars / self.calls
        return quality * (self.successes / self.calls) / (cost + 0.01)


def assess_quality(provider: str, *, cached: bool = False) -> float:
    """As the first design guesses it."""
    if cached:
        return 0.8
    return {"workersai": 0.7, "anthropic": 0.9}.get(provider, 0.75)


class SeedSelector:
    """See the module. With a store, it begins with the outcomes that are there."""

    def __init__(self, store: Store | None = None) -> None:
        self._store = store
        self._health = HealthSelector()
        self._kinds: dict[tuple[str, str], dict[str, _Sums]] = {}

    async def prepare(self, options: CallOptions) -> None:
        kind = (options.agent, options.task or options.purpose)
        if kind in self._kinds or self._store is None:
            return
        sums = self._kinds[kind] = {}
        if len(self._kinds) > _MOST_KINDS:
            del self._kinds[next(iter(self._kinds))]
        outcomes = self._store.collection(Outcome).query()
        outcomes = outcomes.where("agent", "=", indexable(options.agent))
        outcomes = outcomes.where("task", "=", indexable(options.task))
        try:
            rows = await outcomes.group_by("provider", "success", "cached").aggregate(
                DEFAULT, calls="count", cost="sum cost"
            )
        except PerdureError:
            return  # as at a first start
        for row in rows:
            each = sums.setdefault(row["provider"], _Sums())
            calls = int(row["calls"])
            each.calls += calls
            each.successes += calls if row["success"] else 0
            each.quality += calls * assess_quality(row["provider"], cached=bool(row["cached"]))
            each.dollars += int(row["cost"] or 0) / _PICODOLLARS

    def order(
        self,
        options: CallOptions,
        candidates: list[ModelCandidate],
        statuses: Mapping[str, CandidateStatus],
    ) -> list[ModelCandidate]:
        sums = self._kinds.get((options.agent, options.task or options.purpose), {})

        def rank(candidate: ModelCandidate) -> tuple[int, float]:
            found = sums.get(candidate.provider.name)
            score = found.score() if found is not None and found.calls else 0.0
            return self._health.rank(statuses.get(candidate.name)), -score

        return sorted(candidates, key=rank)

    def note(self, outcome: Outcome) -> None:
        if outcome.error == CANCELLED:
            return
        kind = self._kinds.setdefault((outcome.agent, outcome.task or outcome.purpose), {})
        sums = kind.setdefault(outcome.provider, _Sums())
        sums.calls += 1
        sums.successes += outcome.success
        sums.quality += assess_quality(outcome.provider, cached=outcome.cached)
        sums.dollars += (outcome.cost or 0) / _PICODOLLARS
