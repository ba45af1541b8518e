"""Charts of commands: simulated policies, the bands of a prompt."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from rich.console import Console, ConsoleOptions, Group, RenderableType, RenderResult
from rich.table import Table
from rich.text import Text

from perdure.cli import terminal
from perdure.core.levels import LEVELS, Level

if TYPE_CHECKING:
    from perdure.history.manifest import Band
    from perdure.simulation import History, PolicyComparison, PolicyFigures

_POLICY_HEADINGS = (
    "Policy",
    "Cache hits",
    "Cost",
    "Dollars",
    "Rewrites",
    "Span",
    "Covered",
    "Largest",
    "Fill",
    "Known",
)
_WIDEST_POLICY, _NARROWEST_POLICY = 60, 10
_LISTED = 5
_LEVELS = "▁▂▃▄▅▆▇█"
#: For terminals that do not know the others.
_ASCII_LEVELS = "_.-=+*#@"
_BARS, _ASCII_BARS = "█░", "#-"


def show_policies(history: History, compared: PolicyComparison) -> None:
    rows = [_row(name, each) for name, each in compared.policies.items()]
    terminal.listing(_POLICY_HEADINGS, rows, right=len(_POLICY_HEADINGS) - 1)
    for name, each in compared.policies.items():
        if each.prefix_violations:
            terminal.prose(
                f"{name}: {terminal.plural(each.prefix_violations, 'request')} changed what was"
                " sent before, unannounced. This is a defect.",
                "bold red",
            )
        if each.bands:
            terminal.prose(_after_epochs(name, each))
    out = terminal.console()
    margin = max(map(len, compared.policies)) + 2
    room = max(min(out.width - margin - 1, _WIDEST_POLICY), _NARROWEST_POLICY)
    terminal.say()
    _draw_costs(compared, margin, room)
    terminal.say()
    _draw_sizes(compared, margin, room)
    terminal.say()
    terminal.prose(_assumed(compared), "dim")
    for name in dict.fromkeys(history.formats.values()):
        paths = [path for path, its in history.formats.items() if its == name]
        terminal.prose(f"Read as {name}: {_listed_paths(paths)}", "dim")
    if history.unread:
        terminal.prose(
            f"Not read, as nothing in it is known: {_listed_paths(history.unread)}", "yellow"
        )


def _row(name: str, each: PolicyFigures) -> tuple[str, ...]:
    return (
        name,
        f"{each.hit_ratio:.1%}",
        f"{each.cost / 1e6:,.2f}M",
        "unknown" if each.dollars is None else f"${each.dollars:,.2f}",
        f"{each.rewrites:,}",
        f"{each.span:,.1f}",
        f"{each.covered:.0%}",
        f"{each.max_tokens:,}",
        _percent(each.fill_mean),
        _percent(each.known),
    )


def _percent(share: float | None) -> str:
    return "–" if share is None else f"{share:.0%}"


def _after_epochs(name: str, each: PolicyFigures) -> str:
    bands = ", ".join(
        f"{level} {_percent(band.mean)} ({_percent(band.least)} to {_percent(band.most)})"
        for level, band in each.bands.items()
    )
    return (
        f"{name}, right after an epoch: {_percent(each.fill_after_epoch)} full (at least"
        f" {_percent(each.fill_after_epoch_least)}); of the history shown {bands}."
    )


def _draw_costs(compared: PolicyComparison, margin: int, room: int) -> None:
    """A bar for each policy: uncached tokens, then cached ones."""
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


def _draw_sizes(compared: PolicyComparison, margin: int, room: int) -> None:
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
    """At most `room` figures: the last request of each stretch."""
    count = min(len(sizes), room)
    return [sizes[(at + 1) * len(sizes) // count - 1] for at in range(count)]


def _assumed(compared: PolicyComparison) -> str:
    injected = f" and {compared.injection:,} injected" if compared.injection else ""
    return (
        f"{terminal.plural(compared.requests, 'request')} of"
        f" {terminal.plural(compared.turns, 'turn')}, {compared.tokens:,} tokens;"
        f" budget {compared.budget:,}. Assumed: {compared.system:,} tokens of system text and tools"
        f"{injected} in each request, the cache of {compared.prices} never cold, prices of"
        f" {compared.model}. Cost is in millions of plain input tokens; what models write is left"
        f" out, as it is the same for all. Known: of {terminal.plural(compared.old_uses, 'name')}"
        " that came up again after 20 rounds, those that stood in the request."
    )


def _listed_paths(paths: Sequence[str]) -> str:
    shown = ", ".join(terminal.visible(path) for path in paths[:_LISTED])
    more = len(paths) - _LISTED
    return f"{shown} and {more:,} more" if more > 0 else shown


def _signs(wanted: str, plain: str) -> str:
    return wanted if terminal.can_say(wanted) else plain


_LEVEL_STYLES: dict[Level, str] = {"R": "green", "S": "cyan", "C": "blue", "T": "magenta"}
_LEVEL_NAMES: dict[Level, str] = {
    "R": "raw",
    "S": "smoothed",
    "C": "compressed",
    "T": "tiny",
}
_BLOCK, _ROOM = "█", "░"
_WIDEST_BANDS, _NARROWEST_BANDS = 100, 20


class BandChart:
    """Two bars of the same history, oldest at the left: as it is shown, and as it was said.
    Below them a line for each level. No band is invisibly small. `budget` adds the room that
    is left.
    """

    def __init__(self, bands: Sequence[Band], budget: int = 0) -> None:
        self._bands, self._budget = bands, budget

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        if not self._bands:
            yield Text("No history yet.", style="dim")
            return
        room = max(min(options.max_width - 8, _WIDEST_BANDS), _NARROWEST_BANDS)
        # Without colours the bands are told apart by their letters.
        coloured = console.color_system is not None and not console.no_color
        block = coloured and terminal.can_say(_BLOCK + _ROOM, console.encoding)
        shown = [(band.level, band.tokens) for band in self._bands]
        said = [(band.level, band.raw) for band in self._bands]
        taken = sum(band.tokens for band in self._bands)
        left = max(self._budget - taken, 0)
        yield Group(
            _band_bar("shown", shown, room, left, block=block),
            _band_bar("behind", said, room, 0, block=block),
            Text(""),
            _legend(self._bands),
            Text(_bands_in_words(self._bands, self._budget), style="dim"),
        )


def _band_bar(
    title: str, parts: Sequence[tuple[Level, int]], room: int, left: int, *, block: bool
) -> Text:
    whole = sum(tokens for _, tokens in parts) + left
    line = Text(title.ljust(8))
    widths = list(_widths([*(tokens for _, tokens in parts), left], whole, room))
    for (level, _), width in zip(parts, widths, strict=False):
        line.append((_BLOCK if block else level) * width, style=_LEVEL_STYLES[level])
    line.append((_ROOM if block else ".") * widths[-1], style="dim")
    return line


def _widths(sizes: Sequence[int], whole: int, room: int) -> Iterator[int]:
    exact = [size / (whole or 1) * room for size in sizes]
    widths = [max(1, int(each)) if each else 0 for each in exact]
    spare = room - sum(widths)
    by_rest = sorted(range(len(exact)), key=lambda at: widths[at] - exact[at])
    for at in by_rest[: max(spare, 0)]:
        widths[at] += 1 if exact[at] else 0
    while sum(widths) > room and max(widths) > 1:
        widths[widths.index(max(widths))] -= 1
    yield from widths


def _legend(bands: Sequence[Band]) -> RenderableType:
    grid = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
    for heading in ("Level", "", "From", "To"):
        grid.add_column(heading, header_style="bold")
    for heading in ("Tokens", "Raw", "Span"):
        grid.add_column(heading, header_style="bold", justify="right", no_wrap=True)
    for level in reversed(LEVELS):
        of = [band for band in bands if band.level == level]
        if not of:
            continue
        tokens, raw = sum(band.tokens for band in of), sum(band.raw for band in of)
        grid.add_row(
            Text(level, style=f"bold {_LEVEL_STYLES[level]}"),
            _LEVEL_NAMES[level],
            of[0].first,
            of[-1].last,
            f"{tokens:,}",
            f"{raw:,}",
            _span(raw, tokens),
        )
    return grid


def _bands_in_words(bands: Sequence[Band], budget: int) -> str:
    tokens, raw = sum(band.tokens for band in bands), sum(band.raw for band in bands)
    of = f" of {budget:,}" if budget else ""
    return f"{tokens:,}{of} tokens stand for {raw:,}: a span of {_span(raw, tokens)}"


def _span(raw: int, tokens: int) -> str:
    return f"{raw / tokens:,.1f}×" if tokens else "–"
