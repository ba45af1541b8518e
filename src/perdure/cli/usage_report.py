"""``perdure agent stats --by``: calls added up by any fields together, with bars."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from perdure.cli import readable, terminal
from perdure.cli.command_options import CommandSettings, moment_of
from perdure.gateway.prices import dollars
from perdure.learning.analytics import UsageRow, parse_fields, usage

if TYPE_CHECKING:
    from perdure.bank import Bank

_HEADINGS = ("Calls", "Success", "Quality", "Rated", "Seconds", "Each", "Cost")


async def show_usage(
    settings: CommandSettings, bank: Bank, by: str, agent: str | None, since: str
) -> None:
    """Raises `InvalidInput` for fields that calls are not grouped by."""
    from perdure.cli.cost_report import show_budgets
    from perdure.gateway.budgets import EACH

    fields, first = parse_fields(by), moment_of(since)
    rows = await usage(bank.store, fields, since=first, agent=agent)
    budgets = [
        each
        for each in await bank.gateway.budgets()
        if each.budget.agent and agent in (None, each.agent, each.budget.agent)
        if agent is None or each.budget.agent != EACH or each.agent == agent
    ]
    if settings.json:
        terminal.emit({"by": fields, "since": first, "rows": [_plain(row) for row in rows]})
        return
    if not rows:
        terminal.say("No model was called in that time.")
        return
    weights = [row.cost for row in rows]
    if not any(weights):  # where nothing costs anything that is known, calls tell who did the work
        weights = [row.calls for row in rows]
    most = max(weights)
    lines = [(*(value or "-" for value in row.group.values()), *_figures(row)) for row in rows]
    headings = (*(field.capitalize() for field in fields), *_HEADINGS)
    shares = [weight / most for weight in weights]
    terminal.listing(headings, lines, right=len(_HEADINGS), shares=shares)
    if budgets:
        terminal.say()
        show_budgets(budgets, bank.store.now())


def _plain(row: UsageRow) -> dict[str, Any]:
    import msgspec

    return {**msgspec.structs.asdict(row), "dollars": readable.in_dollars(row.cost)}


def _figures(row: UsageRow) -> tuple[str, ...]:
    return (
        f"{row.calls:,}",
        "-" if row.success is None else f"{row.success:.0%}",
        "-" if row.quality is None else f"{row.quality:.2f}",
        f"{row.labels:,}" if row.labels else "-",
        "-" if row.latency is None else f"{row.latency:.1f}",
        "-" if row.average_cost is None else dollars(int(row.average_cost)),
        dollars(row.cost) if row.cost or not row.unknown_costs else "unknown",
    )
