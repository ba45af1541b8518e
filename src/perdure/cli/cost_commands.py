"""``perdure costs``: tokens and costs of model calls, and what the budgets have left."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, Literal, TypeAlias

import typer

from perdure.cli import readable, terminal
from perdure.cli.command_options import CommandSettings, moment_of
from perdure.cli.model_commands import any_gateway
from perdure.cli.terminal import ProgressBar
from perdure.core import clock

if TYPE_CHECKING:
    from perdure.cli.cost_report import SpentCosts
    from perdure.config import GatewayConfig
    from perdure.gateway.budgets import BudgetStatus

#: As in `perdure.gateway.outcomes`, which takes time to load.
CostGrouping: TypeAlias = Literal["agent", "task", "provider", "model", "purpose", "day"]


async def costs(
    settings: CommandSettings,
    *,
    by: Annotated[CostGrouping, typer.Option("--by", help="What calls are grouped by.")] = "model",
    since: Annotated[
        str, typer.Option("--since", metavar="TIME", help="From then on: 2026-02-12, 30d.")
    ] = "30d",
) -> None:
    """Show what model calls took and cost, and what the budgets have left.

    A cost that is not known is named as such, and never counted as zero. Exits with 0 also if there
    is no bank: no model was called then.
    """
    from perdure.cli.cost_report import SpentCosts, show_costs
    from perdure.gateway import outcomes
    from perdure.storage.adapter import Capability

    first = moment_of(since)
    async with ProgressBar("adding up"), any_gateway(settings) as gateway:
        rows = await outcomes.summary(gateway.store, by, first)
        now = gateway.store.now()
        budgets = _with_untouched(await gateway.budgets(), gateway.config, now)
    if by != "day":  # the dearest first, then the busiest
        rows.sort(key=lambda row: (-(row.cost or 0), -row.input - row.output, -row.calls, row.of))
    has_bank = Capability.DURABLE in gateway.store.adapter.capabilities
    spent = SpentCosts(by, first, rows, budgets, now, has_bank)
    if settings.json:
        terminal.emit(_described(spent))
    else:
        show_costs(spent)


def _with_untouched(
    found: list[BudgetStatus], config: GatewayConfig, now: int
) -> list[BudgetStatus]:
    """Adds the per-agent budgets that nobody has used yet."""
    from perdure.gateway.budgets import Budget, BudgetPeriod, BudgetStatus

    listed = list[BudgetStatus]()
    for budget in map(Budget.configured, config.budgets):
        period, renews = budget.period(now)
        untouched = BudgetStatus(
            budget=budget,
            agent=budget.agent,
            period=period,
            renews=renews,
            spending=BudgetPeriod(id=f"{budget.name}/{period}", agent=budget.agent),
        )
        listed += [each for each in found if each.budget.name == budget.name] or [untouched]
    return listed


def _described(spent: SpentCosts) -> dict[str, Any]:
    import msgspec

    return {
        "by": spent.by,
        "since": spent.since,
        "rows": [_priced(msgspec.structs.asdict(row), row.cost) for row in spent.rows],
        "total": _priced(spent.total(), spent.cost),
        "budgets": [_budget(each) for each in spent.budgets],
    }


def _priced(figures: dict[str, Any], cost: int | None) -> dict[str, Any]:
    return {**figures, "cost": cost, "dollars": readable.in_dollars(cost)}


def _budget(status: BudgetStatus) -> dict[str, Any]:
    from perdure.gateway.budgets import EACH

    budget, spending = status.budget, status.spending
    return {
        "name": budget.name,
        "purpose": budget.purpose or None,
        "agent": status.agent if budget.agent == EACH else budget.agent or None,
        "per": budget.per,
        "period": status.period,
        "renews": None if status.renews is None else clock.to_datetime(status.renews),
        "tokens": _limit(budget.tokens, spending.tokens, spending.held_tokens, status.tokens_left),
        "cost": _limit(budget.cost, spending.cost, spending.held_cost, status.cost_left),
    }


def _limit(limit: int | None, spent: int, held: int, left: int | None) -> dict[str, int] | None:
    """None if it is not limited. Costs are in picodollars."""
    if limit is None or left is None:
        return None
    return {"limit": limit, "spent": spent, "reserved": held, "left": left}
