"""The bands of a prompt, drawn in the terminal: what is shown, and how much stands behind it."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from rich.console import Console, ConsoleOptions, Group, RenderableType, RenderResult
from rich.table import Table
from rich.text import Text

from perdure.core.levels import LEVELS, Level

if TYPE_CHECKING:
    from perdure.history.manifest import Band

_STYLES: dict[Level, str] = {"R": "green", "S": "cyan", "C": "blue", "T": "magenta"}
_MEANINGS: dict[Level, str] = {
    "R": "raw",
    "S": "smoothed",
    "C": "compressed",
    "T": "tiny",
}
_BLOCK, _PLAIN, _ROOM = "█", {"R": "R", "S": "S", "C": "C", "T": "T"}, "░"
_WIDEST, _NARROWEST = 100, 20


class Bands:
    """Two bars of the same history, oldest at the left: as it is shown, and as it was said.

    Below them a line for each level. A band is never so small that it cannot be seen. `budget` adds
    the room that is left.
    """

    def __init__(self, bands: Sequence[Band], budget: int = 0) -> None:
        self._bands, self._budget = bands, budget

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        """What rich prints."""
        if not self._bands:
            yield Text("No history yet.", style="dim")
            return
        room = max(min(options.max_width - 8, _WIDEST), _NARROWEST)
        # Without colours the bands are told apart by their letters.
        coloured = console.color_system is not None and not console.no_color
        block = coloured and _can_say(console, _BLOCK + _ROOM)
        shown = [(band.level, band.tokens) for band in self._bands]
        said = [(band.level, band.raw) for band in self._bands]
        taken = sum(band.tokens for band in self._bands)
        left = max(self._budget - taken, 0)
        yield Group(
            _bar("shown", shown, room, left, block=block),
            _bar("behind", said, room, 0, block=block),
            Text(""),
            _legend(self._bands),
            Text(_total(self._bands, self._budget), style="dim"),
        )


def _bar(
    title: str, parts: Sequence[tuple[Level, int]], room: int, left: int, *, block: bool
) -> Text:
    whole = sum(tokens for _, tokens in parts) + left
    line = Text(title.ljust(8))
    widths = list(_widths([*(tokens for _, tokens in parts), left], whole, room))
    for (level, _), width in zip(parts, widths, strict=False):
        line.append((_BLOCK if block else _PLAIN[level]) * width, style=_STYLES[level])
    line.append((_ROOM if block else ".") * widths[-1], style="dim")
    return line


def _widths(sizes: Sequence[int], whole: int, room: int) -> Iterator[int]:
    """So many characters for each; those that have any get at least one."""
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
            Text(level, style=f"bold {_STYLES[level]}"),
            _MEANINGS[level],
            of[0].first,
            of[-1].last,
            f"{tokens:,}",
            f"{raw:,}",
            _span(raw, tokens),
        )
    return grid


def _total(bands: Sequence[Band], budget: int) -> str:
    tokens, raw = sum(band.tokens for band in bands), sum(band.raw for band in bands)
    of = f" of {budget:,}" if budget else ""
    return f"{tokens:,}{of} tokens stand for {raw:,}: a span of {_span(raw, tokens)}"


def _span(raw: int, tokens: int) -> str:
    return f"{raw / tokens:,.1f}×" if tokens else "–"


def _can_say(console: Console, signs: str) -> bool:
    try:
        signs.encode(console.encoding or sys.stdout.encoding or "ascii")
    except (UnicodeEncodeError, LookupError):
        return False
    return True
