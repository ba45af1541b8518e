"""The choice by a fixed table: small models for simple tasks, large ones for complex ones.

``gateway.selector = "table"``. It learns nothing; behind the breaker, like every selector.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from perdure.gateway.calls import CallOptions, Complexity
from perdure.gateway.catalog import ModelCandidate
from perdure.gateway.model_selection import CandidateStatus, HealthSelector
from perdure.learning.model_profiles import ModelProfiles
from perdure.learning.quality_estimates import Tier

#: Tiers by complexity, the best first.
TABLE: dict[Complexity, tuple[Tier, ...]] = {
    "simple": ("small", "medium", "large"),
    "moderate": ("medium", "large", "small"),
    "complex": ("large", "medium", "small"),
}


class TableSelector:
    """See the module. Models of one tier stay in the configured order."""

    def __init__(self, profiles: Callable[[], ModelProfiles]) -> None:
        self._profiles = profiles
        self._health = HealthSelector()

    def order(
        self,
        options: CallOptions,
        candidates: list[ModelCandidate],
        statuses: Mapping[str, CandidateStatus],
    ) -> list[ModelCandidate]:
        profiles = self._profiles()
        tiers = TABLE[profiles.complexity(options)]

        def rank(candidate: ModelCandidate) -> tuple[int, int]:
            place = tiers.index(profiles.tier(candidate))
            return self._health.rank(statuses.get(candidate.name)), place

        return sorted(candidates, key=rank)
