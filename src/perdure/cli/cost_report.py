"""What model calls took and cost, as ``perdure costs`` prints it."""

from __future__ import annotations

from datetime import datetime
from enum import StrEnum
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from perdure.gateway.budgets import BudgetStatus
    from perdure.gateway.outcomes import CostRow

_SUMMED = (
    *("calls", "failures", "cancelled", "cached", "input", "output"),
    *("cache_read", "cache_write", "reasoning", "unknown_costs"),
)


class CostGrouping(StrEnum):
    """What calls have in common."""

    AGENT = "agent"
    TASK = "task"
    PROVIDER = "provider"
    MODEL = "model"
    PURPOSE = "purpose"
    DAY = "day"


class SpentCosts(NamedTuple):
    """What was found."""

    by: CostGrouping
    since: datetime
    rows: list[CostRow]
    budgets: list[BudgetStatus]
    #: Microseconds.
    now: int
    #: Whether there is a bank at all.
    has_bank: bool = True

    def total(self) -> dict[str, int]:
        """The figures of all rows together, but for the cost."""
        return {name: sum(getattr(row, name) for row in self.rows) for name in _SUMMED}

    @property
    def cost(self) -> int | None:
        from perdure.gateway import outcomes

        return outcomes.cost_of(self.rows)
