"""What is known of a model before it is called: its tier, and the price of a typical call."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

from perdure.gateway.calls import CallOptions, Complexity
from perdure.gateway.catalog import ModelCandidate, ModelCatalog
from perdure.gateway.prices import Prices
from perdure.learning.quality_estimates import Tier

#: Tokens of a typical call: the price of a model is that of such a call.
_INPUT, _OUTPUT = 1_500, 500
#: Dollars of a typical call below which a model counts as small, and as medium.
_SMALL, _MEDIUM = 0.002, 0.012
_PICODOLLARS = 1e12


class ModelProfiles(Protocol):
    """What a selector asks about models and tasks. Must be quick and not raise."""

    def tier(self, candidate: ModelCandidate) -> Tier: ...

    def price(self, candidate: ModelCandidate) -> float:
        """Dollars of a typical call; 0 where that is unknown or nothing."""

    def complexity(self, options: CallOptions) -> Complexity: ...


class CatalogProfiles:
    """By the configuration: `learning.tiers` comes first, then the price says the tier. A model
    without a price counts as small.
    """

    def __init__(self, catalog: ModelCatalog, prices: Prices, tiers: Mapping[str, Tier]) -> None:
        self._catalog = catalog
        self._prices = prices
        self._tiers = tiers

    def tier(self, candidate: ModelCandidate) -> Tier:
        named = self._tiers.get(candidate.name)
        if named is not None:
            return named
        price = self.price(candidate)
        return "small" if price < _SMALL else "medium" if price < _MEDIUM else "large"

    def price(self, candidate: ModelCandidate) -> float:
        provider = candidate.provider.name
        found = self._prices.estimate(provider, candidate.model, _INPUT, _OUTPUT)
        return (found or 0) / _PICODOLLARS

    def complexity(self, options: CallOptions) -> Complexity:
        return self._catalog.complexity(options)
