"""What model calls took and cost, as ``perdure costs`` prints it."""

from __future__ import annotations

from datetime import date, datetime, timedelta
from typing import NamedTuple

from perdure.cli import readable, terminal
from perdure.gateway.budgets import EACH, BudgetStatus
from perdure.gateway.outcomes import CostRow, cost_of
from perdure.gateway.prices import dollars

_SUMMED = (
    *("calls", "failures", "cancelled", "cached", "input", "output"),
    *("cache_read", "cache_write", "reasoning", "unknown_costs"),
)
#: Days without calls are shown between those that had some, unless there are too many.
_MOST_DAYS = 62
_HEADINGS = ("Tries", "Failed", "Cancelled", "Cached", "In", "Out", "Cost")
#: A column that few need: it is there if something is in it.
_RARE = _HEADINGS.index("Cancelled")
_IDLE = ("0", *("" for _ in _HEADINGS[1:]))


class SpentCosts(NamedTuple):
    """What model calls took and cost."""

    by: str
    since: datetime
    rows: list[CostRow]
    budgets: list[BudgetStatus]
    #: Microseconds.
    now: int
    #: Whether there is a bank at all.
    has_bank: bool

    def total(self) -> dict[str, int]:
        """The figures of all rows together, but for the cost."""
        return {name: sum(getattr(row, name) for row in self.rows) for name in _SUMMED}

    @property
    def cost(self) -> int | None:
        return cost_of(self.rows)


def show_costs(spent: SpentCosts) -> None:
    since = readable.absolute_time(spent.since)
    if spent.rows:
        _draw_groups(spent)
        terminal.say()
        _show_total(spent, since)
    else:
        terminal.prose(f"No model was called {f'since {since}' if spent.has_bank else 'yet'}.")
    if spent.budgets:
        terminal.say()
        show_budgets(spent.budgets, spent.now)


def show_budgets(budgets: list[BudgetStatus], now: int) -> None:
    rows = [
        (each.budget.name, _covers(each), _taken(each), _left(each), _renews(each, now))
        for each in budgets
    ]
    terminal.listing(("Budget", "For", "Spent", "Left", "Renews"), rows)


def _draw_groups(spent: SpentCosts) -> None:
    """A line for each group: its name, its figures, and its share of the dearest as a bar."""
    # Where nothing costs anything that is known, tokens tell who did the work.
    by_cost = any(row.cost for row in spent.rows)
    weights = [(row.cost or 0) if by_cost else row.input + row.output for row in spent.rows]
    most = max(weights) or 1
    lines = list[tuple[str, ...]]()
    shares = list[float]()
    before: date | None = None
    for row, weight in zip(spent.rows, weights, strict=True):
        if spent.by == "day":
            day = date.fromisoformat(row.of)
            idle = _between(before, day)
            lines += [(each.isoformat(), *_IDLE) for each in idle]
            shares += [0.0] * len(idle)
            before = day
        lines.append((row.of or "(none)", *_figures(row)))
        shares.append(weight / most)
    headings: tuple[str, ...] = (spent.by.capitalize(), *_HEADINGS)
    if not any(line[_RARE + 1] for line in lines):
        headings, *lines = ((*line[: _RARE + 1], *line[_RARE + 2 :]) for line in (headings, *lines))
    terminal.listing(headings, lines, right=len(headings) - 1, shares=shares)


def _between(before: date | None, day: date) -> list[date]:
    gap = 0 if before is None else (day - before).days - 1
    if before is None or gap > _MOST_DAYS:
        return []
    return [before + timedelta(days=number) for number in range(1, gap + 1)]


def _figures(row: CostRow) -> tuple[str, ...]:
    return (
        f"{row.calls:,}",
        f"{row.failures:,}" if row.failures else "",
        f"{row.cancelled:,}" if row.cancelled else "",
        f"{row.cached:,}" if row.cached else "",
        f"{row.input:,}",
        f"{row.output:,}",
        _cost(row),
    )


def _cost(row: CostRow) -> str:
    if row.cost is None:
        return "unknown"
    if row.unknown_costs:
        return f"{dollars(row.cost)} and {row.unknown_costs:,} unknown"
    return "free" if row.is_free else dollars(row.cost)


def _show_total(spent: SpentCosts, since: str) -> None:
    total, cost = spent.total(), spent.cost
    facts = [_tries(total["calls"])]
    if total["failures"]:
        facts.append(f"{total['failures']:,} failed")
    if total["cancelled"]:
        facts.append(f"{total['cancelled']:,} cancelled")
    if total["cached"]:
        facts.append(f"{total['cached']:,} cached")
    facts.append(f"{total['input']:,} tokens in, {total['output']:,} out")
    if total["cache_read"]:
        facts.append(f"{total['cache_read']:,} of them read from a provider's cache")
    if cost is not None:
        is_free = not cost and any(row.is_free for row in spent.rows)
        facts.append("free" if is_free and not total["unknown_costs"] else dollars(cost))
    terminal.prose(f"Since {since}: {', '.join(facts)}.", "bold")
    if total["unknown_costs"]:
        besides = "" if cost is None else "besides, "
        words = f"{besides}the cost of {_tries(total['unknown_costs'])} is unknown"
        terminal.prose(
            f"{words[0].upper()}{words[1:]}: the model has no price, the provider did not say what"
            " it took, or the answer broke off. Prices can be set in gateway.prices.",
            "yellow",
        )


def _tries(count: int) -> str:
    return "1 try" if count == 1 else f"{count:,} tries"


def _covers(status: BudgetStatus) -> str:
    budget = status.budget
    what = budget.purpose or "everything"
    if budget.agent == EACH and not status.agent:
        what += " by no agent"
    elif budget.agent == EACH == status.agent:
        what += " by each agent"
    elif budget.agent:
        what += f" by {status.agent or budget.agent}"
    return what if budget.per == "ever" else f"{what}, per {budget.per}"


def _taken(status: BudgetStatus) -> str:
    """What is spent, and what open or abandoned calls have reserved."""
    budget, spending = status.budget, status.spending
    taken = list[str]()
    if budget.cost is not None:
        held = f" ({dollars(spending.held_cost)} reserved)" if spending.held_cost else ""
        taken.append(f"{dollars(spending.cost)}{held}")
    if budget.tokens is not None:
        held = f" ({spending.held_tokens:,} reserved)" if spending.held_tokens else ""
        taken.append(f"{spending.tokens:,} tokens{held}")
    return " and ".join(taken)


def _left(status: BudgetStatus) -> str:
    budget = status.budget
    left = list[str]()
    if (cost := status.cost_left) is not None:
        left.append(f"{readable.budget_left(cost)} of {dollars(budget.cost or 0)}")
    if (tokens := status.tokens_left) is not None:
        left.append(f"{tokens:,} of {budget.tokens:,} tokens")
    return " and ".join(left)


def _renews(status: BudgetStatus, now: int) -> str:
    if status.renews is None:
        return "never"
    return f"{readable.absolute_time(status.renews)} ({readable.time_ahead(status.renews, now)})"
