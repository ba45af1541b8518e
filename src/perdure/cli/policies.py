"""Policies compared, drawn in the terminal: a table, what each costs, and how requests grew."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING

from rich.text import Text

from perdure.cli import terminal

if TYPE_CHECKING:
    from perdure.simulation import Comparison, Figures, History

_HEADINGS = ("Policy", "Cache hits", "Cost", "Dollars", "Rewrites", "Span", "Covered", "Largest")
_WIDEST_BAR, _NARROWEST_BAR = 60, 10
#: Paths that are named.
_LISTED = 5
_LEVELS = "▁▂▃▄▅▆▇█"
#: For terminals that do not know the others.
_ASCII_LEVELS = "_.-=+*#@"
_BARS, _ASCII_BARS = "█░", "#-"


def show(history: History, compared: Comparison) -> None:
    """Print the table, the charts, what was read, and what was assumed."""
    rows = [_row(name, each) for name, each in compared.policies.items()]
    terminal.listing(_HEADINGS, rows, right=len(_HEADINGS) - 1)
    for name, each in compared.policies.items():
        if each.prefix_violations:
            terminal.prose(
                f"{name}: {terminal.plural(each.prefix_violations, 'request')} changed what was"
                " sent before, unannounced. This is a defect.",
                "bold red",
            )
    out = terminal.console()
    margin = max(map(len, compared.policies)) + 2
    room = max(min(out.width - margin - 1, _WIDEST_BAR), _NARROWEST_BAR)
    terminal.say()
    _draw_costs(compared, margin, room)
    terminal.say()
    _draw_sizes(compared, margin, room)
    terminal.say()
    terminal.prose(_assumed(compared), "dim")
    for name in dict.fromkeys(history.formats.values()):
        paths = [path for path, its in history.formats.items() if its == name]
        terminal.prose(f"Read as {name}: {_listed(paths)}", "dim")
    if history.unread:
        terminal.prose(f"Not read, as nothing in it is known: {_listed(history.unread)}", "yellow")


def _row(name: str, each: Figures) -> tuple[str, ...]:
    return (
        name,
        f"{each.hit_ratio:.1%}",
        f"{each.cost / 1e6:,.2f}M",
        "unknown" if each.dollars is None else f"${each.dollars:,.2f}",
        f"{each.rewrites:,}",
        f"{each.span:,.1f}",
        f"{each.covered:.0%}",
        f"{each.max_tokens:,}",
    )


def _draw_costs(compared: Comparison, margin: int, room: int) -> None:
    """A bar for each policy: what was new to the cache, then what was read from it."""
    out, signs = terminal.console(), _signs(_BARS, _ASCII_BARS)
    terminal.say(f"Cost: {signs[0]} what was new to the cache, {signs[1]} what was read from it")
    dearest = max((each.cost for each in compared.policies.values()), default=0) or 1
    for name, each in compared.policies.items():
        length = each.cost / dearest * room
        fresh = round(each.fresh_cost / each.cost * length) if each.cost else 0
        line = Text(name.ljust(margin))
        line.append(signs[0] * fresh, style="cyan")
        line.append(signs[1] * max(round(length) - fresh, 0), style="cyan")
        line.rstrip()
        out.print(line, soft_wrap=True)


def _draw_sizes(compared: Comparison, margin: int, room: int) -> None:
    """A line for each policy: its requests from the first to the last, by size."""
    out, levels = terminal.console(), _signs(_LEVELS, _ASCII_LEVELS)
    limited = [each.max_tokens for name, each in compared.policies.items() if name != "unlimited"]
    most = max([compared.budget, *limited])
    terminal.say(f"Tokens in each request, from the first to the last; full height is {most:,}")
    for name, each in compared.policies.items():
        shown = _columns(each.sizes, room)
        heights = (min(size * len(levels) // most, len(levels) - 1) for size in shown)
        line = Text(name.ljust(margin))
        line.append("".join(levels[height] for height in heights), style="cyan")
        out.print(line, soft_wrap=True)


def _columns(sizes: Sequence[int], room: int) -> list[int]:
    """So many figures, or fewer: the last request of each stretch of them."""
    count = min(len(sizes), room)
    return [sizes[(at + 1) * len(sizes) // count - 1] for at in range(count)]


def _assumed(compared: Comparison) -> str:
    injected = f" and {compared.injection:,} injected" if compared.injection else ""
    return (
        f"{terminal.plural(compared.requests, 'request')} of"
        f" {terminal.plural(compared.turns, 'turn')}, {compared.tokens:,} tokens;"
        f" budget {compared.budget:,}. Assumed: {compared.system:,} tokens of system text and tools"
        f"{injected} in each request, the cache of {compared.prices} never cold, prices of"
        f" {compared.model}. Cost is in millions of plain input tokens; what models write is left"
        " out, as it is the same for all."
    )


def _listed(paths: Sequence[str]) -> str:
    shown = ", ".join(terminal.visible(path) for path in paths[:_LISTED])
    more = len(paths) - _LISTED
    return f"{shown} and {more:,} more" if more > 0 else shown


def _signs(wanted: str, plain: str) -> str:
    try:
        wanted.encode(sys.stdout.encoding or "ascii")
    except (UnicodeEncodeError, LookupError):
        return plain
    return wanted
