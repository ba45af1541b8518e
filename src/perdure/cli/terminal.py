"""How commands print.

Results go to stdout, everything else to stderr. Colours and progress bars only on a terminal (and
not with NO_COLOR); elsewhere lines are plain and never cut.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Sequence
from itertools import zip_longest
from typing import TYPE_CHECKING, Any

from perdure.core import display
from perdure.core.errors import PerdureError

if TYPE_CHECKING:
    from asyncio import TimerHandle
    from typing import Self

    from rich.console import Console, RenderableType
    from rich.progress import Progress

plural, format_size = display.plural, display.format_size
#: Off a terminal nothing is wrapped or cut.
_ENDLESS = 100_000


def emit(value: Any) -> None:
    import msgspec

    # Escaped, so that it can be written in any encoding and whatever is in a file's name.
    indent = 2 if sys.stdout.isatty() else None
    print(json.dumps(msgspec.to_builtins(value), indent=indent), flush=True)


def complain(error: PerdureError) -> None:
    """Print an error as one line on stderr."""
    line = printable(f"perdure: {error}")
    console(error=True).print(line, style="red", soft_wrap=True)


def described(error: PerdureError) -> dict[str, str]:
    """An error as part of a JSON object."""
    return {"type": type(error).__name__, "message": error.message, "hint": error.hint}


def note(text: str, style: str = "") -> None:
    console(error=True).print(printable(text), style=style or None, soft_wrap=True)


def murmur(text: str) -> None:
    """Print a piece of text, faint, on stderr, without ending the line."""
    from rich.text import Text

    rows = text.replace("\r", "").expandtabs(4).split("\n")
    shown = Text("\n".join(visible(row) for row in rows), style="dim")
    console(error=True).print(shown, soft_wrap=True, end="")


def say(text: str = "", style: str = "") -> None:
    if style:
        console().print(printable(text), style=style, soft_wrap=True)
    else:
        verbatim([printable(text)])


def verbatim(lines: Iterable[str]) -> None:
    """Print lines neither wrapped nor cut; nothing in them steers a terminal. Without rich, whose
    import takes 30 ms.
    """
    for line in lines:
        print(visible(line), flush=True)


def prose(text: str, style: str = "") -> None:
    """Print sentences on stdout, wrapped between words on a terminal."""
    from rich.text import Text

    out = console()
    out.print(Text(printable(text), style=style), soft_wrap=not out.is_terminal)


def table(
    headings: Sequence[str],
    rows: Iterable[Sequence[str]],
    *,
    right: int = 0,
    bars: Sequence[str] = (),
) -> None:
    """Print aligned columns, the last `right` of them flush right, then a bar for each row. No
    lines are drawn.
    """
    from rich.table import Table
    from rich.text import Text

    grid = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), show_header=any(headings))
    for position, heading in enumerate(headings):
        numeric = position >= len(headings) - right
        grid.add_column(
            heading,
            justify="right" if numeric else "left",
            header_style="bold",
            overflow="fold",
            no_wrap=numeric,
        )
    if bars:
        grid.add_column(style="cyan")
    for row, drawn in zip_longest(rows, bars):
        cells = [Text(printable(cell), style=_STYLES.get(cell, "")) for cell in row]
        grid.add_row(*cells, *([drawn] if bars else []))
    render(grid)


def render(picture: RenderableType) -> None:
    """Print what rich draws; off a terminal without blanks at the ends of lines."""
    out = console()
    if out.is_terminal:
        out.print(picture)
        return
    with out.capture() as captured:
        out.print(picture)
    print("\n".join(line.rstrip() for line in captured.get().splitlines()))


def listing(
    headings: Sequence[str],
    rows: Sequence[Sequence[str]],
    *,
    right: int = 0,
    shares: Sequence[float] = (),
) -> None:
    """Print a table if the terminal is wide enough, else some lines for each row, the first
    column whole, fit to be copied. `shares`, from 0 to 1, are drawn as bars.
    """
    from rich.cells import cell_len
    from rich.text import Text

    out = console()
    columns = range(len(headings))
    widest = [max(cell_len(printable(row[at])) for row in (headings, *rows)) for at in columns]
    room = out.width - sum(widest) - 2 * len(widest)
    if room >= (_NARROWEST_BAR if shares else 0):
        bars = [bar(share, min(room, _WIDEST_BAR)) for share in shares]
        table(headings, rows, right=right, bars=bars)
        return
    numeric = len(headings) - right
    for (first, *others), share in zip_longest(rows, shares):
        name = first.lstrip("│├└─ ")
        below = first[: len(first) - len(name)].translate(_TRUNK) + "    "
        cells = [(at, cell) for at, cell in enumerate(others, start=1) if cell]
        facts = [_counted(cell, headings[at]) for at, cell in cells if at >= numeric]
        facts += [_headed(cell, headings[at]) for at, cell in cells if at < numeric]
        width = max(out.width - cell_len(below), 1)
        out.print(Text(printable(first), style="bold"), soft_wrap=True)
        for line in Text(printable(" · ".join(facts)), style="dim").wrap(out, width):
            out.print(Text(below).append_text(line), soft_wrap=True)
        if share:
            drawn = bar(share, min(width, _WIDEST_BAR))
            out.print(Text(below).append(drawn, style="cyan"), soft_wrap=True)


def _headed(cell: str, heading: str) -> str:
    return f"{heading.lower()}: {cell}" if heading else cell


def _counted(count: str, heading: str) -> str:
    if not count[0].isdigit():
        return count
    noun = heading.lower()
    if count == "1":
        noun = f"{noun[:-3]}y" if noun.endswith("ies") else noun.removesuffix("s")
    return f"{count} {noun}"


_WIDEST_BAR, _NARROWEST_BAR = 24, 6
_EIGHTHS = " ▏▎▍▌▋▊▉█"


def bar(share: float, room: int) -> str:
    """A bar of this share of the room; at least a sign of one unless it is 0."""
    if share <= 0:
        return ""
    if not can_say(_EIGHTHS):
        return "#" * max(1, round(share * room))
    full, eighths = divmod(max(1, round(share * room * 8)), 8)
    return "█" * full + _EIGHTHS[eighths].strip()


def can_say(signs: str, encoding: str | None = None) -> bool:
    """Whether stdout, or a stream of another encoding, can show these signs."""
    try:
        signs.encode(encoding or sys.stdout.encoding or "ascii")
    except (UnicodeEncodeError, LookupError):
        return False
    return True


#: The branches of a tree on the line below.
_TRUNK = str.maketrans("├└─", "│  ")
_STYLES = {"ok": "green", "not ok": "bold red", "proven": "green", "failed": "bold red"}


def console(*, error: bool = False) -> Console:
    from rich.console import Console

    stream = sys.stderr if error else sys.stdout
    return Console(
        stderr=error,
        markup=False,
        highlight=False,
        emoji=False,
        width=None if stream.isatty() else _ENDLESS,
    )


def printable(text: str) -> str:
    """The text on one line, control characters escaped."""
    return visible(text.replace("\n", " "))


def lines(text: str) -> list[str]:
    """The lines of any text, control characters escaped."""
    return [visible(line) for line in text.replace("\r\n", "\n").expandtabs(4).split("\n")]


def visible(line: str) -> str:
    """Escape the control characters of a line. Blanks of every kind and emoji joiners stay;
    marks that change the text's direction do not.
    """
    if line.isprintable():
        return line
    return "".join(
        char if char.isprintable() or char in _HARMLESS else repr(char)[1:-1] for char in line
    )


#: Blanks, and the joiner of emojis and of letters in some scripts.
_HARMLESS = frozenset("\u00a0\u1680\u202f\u205f\u3000\u200c\u200d").union(
    chr(code) for code in range(0x2000, 0x200B)
)


#: Seconds after which a bar appears.
PATIENCE = 1.0


class ProgressBar:
    """A progress bar on stderr, for work that takes longer than `PATIENCE` seconds. A
    `perdure.storage.store.Progress`. Silent where stderr is not a terminal.
    """

    def __init__(self, what: str) -> None:
        self._what = what
        self._done, self._total = 0, 0
        self._timer: TimerHandle | None = None
        self._shown: Progress | None = None

    def __call__(self, what: str, done: int, total: int) -> None:
        self._what, self._done, self._total = what, done, total
        self._update()

    def pause(self) -> None:
        """Hide the bar, so that a line can be printed; the next call shows it again."""
        if self._shown is not None:
            self._shown.stop()

    async def __aenter__(self) -> Self:
        if sys.stderr.isatty():
            import asyncio

            self._timer = asyncio.get_running_loop().call_later(PATIENCE, self._show)
        return self

    async def __aexit__(self, *exc: object) -> None:
        self.close()

    def close(self) -> None:
        """Hide the bar for good."""
        if self._timer is not None:
            self._timer.cancel()
        self.pause()

    def _show(self) -> None:
        from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn

        self._shown = Progress(
            SpinnerColumn(),
            TextColumn("{task.description}"),
            BarColumn(),
            TextColumn("{task.fields[count]}"),
            console=console(error=True),
            transient=True,
            # Or rich would catch what is printed on stdout, and print it on stderr.
            redirect_stdout=False,
            redirect_stderr=False,
        )
        self._shown.add_task("", total=None, count="")
        self._update()

    def _update(self) -> None:
        if self._shown is not None:
            (task,) = self._shown.task_ids
            counted = f"{self._done}/{self._total}" if self._total else f"{self._done or ''}"
            self._shown.update(
                task,
                description=printable(self._what),
                completed=self._done,
                total=self._total or None,
                count=counted,
            )
            self._shown.start()
