"""``perdure costs``: tokens and costs of model calls, and what the budgets have left."""

from __future__ import annotations

from datetime import datetime
from typing import TYPE_CHECKING, Annotated, Any

import typer

from perdure.cli import terminal
from perdure.cli.command_options import CommandSettings, common_options
from perdure.cli.cost_report import CostGrouping, SpentCosts
from perdure.cli.terminal import ProgressBar
from perdure.core.errors import InvalidInput

if TYPE_CHECKING:
    from perdure.config import Config
    from perdure.gateway.budgets import BudgetStatus

SINCE = "30d"


@common_options()
async def costs(
    settings: CommandSettings,
    *,
    by: Annotated[
        CostGrouping, typer.Option("--by", help="What calls are grouped by.")
    ] = CostGrouping.MODEL,
    since: Annotated[
        str, typer.Option("--since", metavar="TIME", help="From then on: 2026-02-12, 30d.")
    ] = SINCE,
) -> None:
    """Show what model calls took and cost, and what the budgets have left.

    A cost that is not known is named as such, and never counted as zero. Exits with 0 also if there
    is no bank: no model was called then.
    """
    first = _moment(since)
    spent = await _costs(settings, by, first)
    if settings.json:
        terminal.emit(_described(spent))
    else:
        from perdure.cli import charts

        charts.show_costs(spent)


def _moment(since: str) -> datetime:
    from perdure.core import clock

    try:
        return clock.to_datetime(clock.moment(since, clock.now()))
    except InvalidInput as exc:
        raise typer.BadParameter(str(exc), param_hint="--since") from exc


async def _costs(settings: CommandSettings, by: CostGrouping, since: datetime) -> SpentCosts:
    from perdure.cli import model_commands
    from perdure.gateway import outcomes
    from perdure.gateway.gateway import Gateway

    config = settings.load()
    with ProgressBar("adding up"):
        async with model_commands.any_bank(settings) as bank:
            now = bank.store.now()
            gateway = Gateway(bank.store, config.gateway)
            try:
                rows = await outcomes.summary(bank.store, by.value, since)
                budgets = _with_untouched(await gateway.budgets(), config, now)
            finally:
                await gateway.close()
    if by is not CostGrouping.DAY:  # the dearest first, then the busiest
        rows.sort(key=lambda row: (-(row.cost or 0), -row.input - row.output, -row.calls, row.of))
    return SpentCosts(by, since, rows, budgets, now, has_bank=bank.url != model_commands.NOWHERE)


def _with_untouched(standings: list[BudgetStatus], config: Config, now: int) -> list[BudgetStatus]:
    """Adds the per-agent budgets that nobody has used yet."""
    from perdure.gateway.budgets import Budget, BudgetPeriod, BudgetStatus

    found = list[BudgetStatus]()
    for budget in map(Budget.configured, config.gateway.budgets):
        own = [each for each in standings if each.budget.name == budget.name]
        if not own:
            period, renews = budget.period(now)
            pot = BudgetPeriod(id=f"{budget.name}/{period}", agent=budget.agent)
            own = [
                BudgetStatus(
                    budget=budget, agent=pot.agent, period=period, renews=renews, spending=pot
                )
            ]
        found += own
    return found


def _described(spent: SpentCosts) -> dict[str, Any]:
    import msgspec

    return {
        "by": spent.by.value,
        "since": spent.since,
        "rows": [_priced(msgspec.structs.asdict(row), row.cost) for row in spent.rows],
        "total": _priced(spent.total(), spent.cost),
        "budgets": [_budget(standing) for standing in spent.budgets],
    }


def _priced(figures: dict[str, Any], cost: int | None) -> dict[str, Any]:
    from perdure.cli import readable

    return {**figures, "cost": cost, "dollars": readable.in_dollars(cost)}


def _budget(standing: BudgetStatus) -> dict[str, Any]:
    from perdure.core import clock
    from perdure.gateway.budgets import EACH

    budget, pot = standing.budget, standing.spending
    return {
        "name": budget.name,
        "purpose": budget.purpose or None,
        "agent": standing.agent if budget.agent == EACH else budget.agent or None,
        "per": budget.per,
        "period": standing.period,
        "renews": None if standing.renews is None else clock.to_datetime(standing.renews),
        "tokens": _limit(budget.tokens, pot.tokens, pot.held_tokens, standing.tokens_left),
        "cost": _limit(budget.cost, pot.cost, pot.held_cost, standing.cost_left),
    }


def _limit(limit: int | None, spent: int, held: int, left: int | None) -> dict[str, int] | None:
    """None if it is not limited. Costs are in picodollars."""
    if limit is None or left is None:
        return None
    return {"limit": limit, "spent": spent, "reserved": held, "left": left}
