"""What was spent, drawn in the terminal: a row and a bar for each group, then the budgets."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from datetime import date, timedelta
from typing import TYPE_CHECKING, NamedTuple

from rich.cells import cell_len
from rich.text import Text

from perdure.cli import moments, money, terminal
from perdure.cli.costs import By, Spent
from perdure.gateway.budgets import EACH
from perdure.gateway.prices import dollars

if TYPE_CHECKING:
    from perdure.gateway.budgets import BudgetStatus
    from perdure.gateway.outcomes import CostRow

_WIDEST_BAR, _NARROWEST_BAR = 24, 6
#: Days without calls are shown between those that had some, unless there are too many.
_MOST_DAYS = 62
_EIGHTHS = " ▏▎▍▌▋▊▉"
_NAMELESS = "(none)"
_HEADINGS = ("Tries", "Failed", "Cancelled", "Cached", "In", "Out", "Cost")
#: A column that few need: it is there if something is in it.
_RARE = _HEADINGS.index("Cancelled")
_IDLE = ("0", *("" for _ in _HEADINGS[1:]))


class Line(NamedTuple):
    """A group: its name, its figures in the order of the headings, and its share of the dearest."""

    name: str
    figures: tuple[str, ...]
    share: float


def show(spent: Spent) -> None:
    """Print the groups, their total, and the budgets."""
    since = moments.absolute(spent.since)
    if spent.rows:
        lines = list(_lines(spent))
        _draw(spent.by.value.capitalize(), lines)
        terminal.say()
        _show_total(spent, since)
    else:
        terminal.prose(f"No model was called {f'since {since}' if spent.has_bank else 'yet'}.")
    if spent.budgets:
        terminal.say()
        _show_budgets(spent)


# Groups -----------------------------------------------------------------------------------------


def _lines(spent: Spent) -> Iterator[Line]:
    # Where nothing costs anything that is known, tokens tell who did the work.
    by_cost = any(row.cost for row in spent.rows)

    def weight(row: CostRow) -> int:
        return (row.cost or 0) if by_cost else row.input + row.output

    most = max(map(weight, spent.rows)) or 1
    before: date | None = None
    for row in spent.rows:
        if spent.by is By.DAY:
            day = date.fromisoformat(row.of)
            for idle in _between(before, day):
                yield Line(idle.isoformat(), _IDLE, 0.0)
            before = day
        yield Line(row.of or _NAMELESS, _figures(row), weight(row) / most)


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


def _draw(heading: str, lines: Sequence[Line]) -> None:
    """A table with bars if there is room for it, else some lines for each group."""
    out = terminal.console()
    kept = [at for at in range(len(_HEADINGS)) if at != _RARE or any(x.figures[at] for x in lines)]
    table = [(heading, *(_HEADINGS[at] for at in kept))]
    table += [(line.name, *(line.figures[at] for at in kept)) for line in lines]
    widths = [
        max(cell_len(terminal.printable(row[at])) for row in table) for at in range(len(kept) + 1)
    ]
    taken = sum(widths) + 2 * len(widths)
    room = min(out.width - taken, _WIDEST_BAR) if out.is_terminal else _WIDEST_BAR
    if room < _NARROWEST_BAR:
        _stack(lines, min(out.width - 4, _WIDEST_BAR))
        return
    for number, row in enumerate(table):
        line = Text(_cell(row[0], widths[0]), style="bold" if number == 0 else "")
        for at in range(1, len(row)):
            line.append("  ")
            line.append(" " * (widths[at] - cell_len(row[at])) + row[at])
        if number:
            line.append("  ")
            line.append(_bar(lines[number - 1].share, room), style="cyan")
        line.rstrip()
        out.print(line, soft_wrap=True)


def _stack(lines: Sequence[Line], room: int) -> None:
    out = terminal.console()
    for line in lines:
        tries, *others, cost = line.figures
        facts = [cost, f"{tries} {'try' if tries == '1' else 'tries'}"]
        facts += [
            f"{figure} {name.lower()}"
            for name, figure in zip(_HEADINGS[1:-1], others, strict=True)
            if figure
        ]
        out.print(Text(terminal.printable(line.name), style="bold"), soft_wrap=True)
        for words in _wrapped([fact for fact in facts if fact], out.width - 4):
            out.print(Text(f"    {words}"), soft_wrap=True)
        bar = _bar(line.share, max(room, 1)).rstrip()
        if bar:
            out.print(Text(f"    {bar}", style="cyan"), soft_wrap=True)


def _wrapped(facts: Sequence[str], room: int) -> Iterator[str]:
    """Facts on as many lines as they need; none is broken."""
    line = ""
    for fact in facts:
        longer = f"{line} · {fact}" if line else fact
        if line and cell_len(longer) > room:
            yield line
            longer = fact
        line = longer
    yield line


def _cell(text: str, width: int) -> str:
    shown = terminal.printable(text)
    return shown + " " * (width - cell_len(shown))


def _bar(share: float, room: int) -> str:
    """A bar of this share of the room. What is not nothing is seen."""
    if share <= 0:
        return ""
    if not _can_say(_EIGHTHS + "█"):
        return "#" * max(1, round(share * room))
    full, eighths = divmod(max(1, round(share * room * 8)), 8)
    return "█" * full + (_EIGHTHS[eighths] if eighths else "")


def _can_say(signs: str) -> bool:
    try:
        signs.encode(sys.stdout.encoding or "ascii")
    except (UnicodeEncodeError, LookupError):
        return False
    return True


def _show_total(spent: Spent, since: str) -> None:
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


# Budgets ----------------------------------------------------------------------------------------


def _show_budgets(spent: Spent) -> None:
    out = terminal.console()
    facts = [
        (each.budget.name, _covers(each), _taken(each), _left(each), _renews(each, spent.now))
        for each in spent.budgets
    ]
    rows = [
        (name, covers, " and ".join(taken), " and ".join(left), renews)
        for name, covers, taken, left, renews in facts
    ]
    table = [("Budget", "For", "Spent", "Left", "Renews"), *rows]
    widths = [max(cell_len(terminal.printable(row[at])) for row in table) for at in range(5)]
    if sum(widths) + 2 * len(widths) <= out.width:
        terminal.table(table[0], rows)
        return
    for name, covers, taken, left, renews in facts:
        out.print(Text(terminal.printable(name), style="bold"), soft_wrap=True)
        said = [f"for {covers}", *(f"{each} spent" for each in taken)]
        said += [*(f"{each} left" for each in left), f"renews {renews}"]
        for words in _wrapped(said, out.width - 4):
            out.print(Text(f"    {terminal.printable(words)}"), soft_wrap=True)


def _covers(standing: BudgetStatus) -> str:
    budget = standing.budget
    what = budget.purpose or "everything"
    if budget.agent == EACH and not standing.agent:
        what += " by no agent"
    elif budget.agent == EACH == standing.agent:
        what += " by each agent"
    elif budget.agent:
        what += f" by {standing.agent or budget.agent}"
    return what if budget.per == "ever" else f"{what}, per {budget.per}"


def _taken(standing: BudgetStatus) -> list[str]:
    """What is spent, and what calls that go on, or whose process died, have reserved."""
    budget, pot = standing.budget, standing.spending
    taken = list[str]()
    if budget.cost is not None:
        held = f" ({dollars(pot.held_cost)} reserved)" if pot.held_cost else ""
        taken.append(f"{dollars(pot.cost)}{held}")
    if budget.tokens is not None:
        held = f" ({pot.held_tokens:,} reserved)" if pot.held_tokens else ""
        taken.append(f"{pot.tokens:,} tokens{held}")
    return taken


def _left(standing: BudgetStatus) -> list[str]:
    budget = standing.budget
    left = list[str]()
    if (cost := standing.cost_left) is not None:
        left.append(f"{money.left(cost)} of {dollars(budget.cost or 0)}")
    if (tokens := standing.tokens_left) is not None:
        left.append(f"{tokens:,} of {budget.tokens:,} tokens")
    return left


def _renews(standing: BudgetStatus, now: int) -> str:
    if standing.renews is None:
        return "never"
    return f"{moments.absolute(standing.renews)} ({moments.ahead(standing.renews, now)})"
