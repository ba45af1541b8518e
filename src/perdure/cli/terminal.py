"""How commands print.

Results go to stdout, everything else to stderr. Colours and progress bars only on a terminal (and
not with NO_COLOR); elsewhere lines are plain and never cut.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

from perdure.core import display
from perdure.core.errors import PerdureError

if TYPE_CHECKING:
    from asyncio import TimerHandle
    from types import TracebackType
    from typing import Self

    from rich.console import Console
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


def note(text: str) -> None:
    console(error=True).print(printable(text), soft_wrap=True)


def aside(text: str) -> None:
    """Print a faint message beside the result, on stderr."""
    console(error=True).print(printable(text), style="dim", soft_wrap=True)


def murmur(text: str) -> None:
    """Print a piece of text, faint, on stderr, without ending the line."""
    from rich.text import Text

    rows = text.replace("\r", "").expandtabs(4).split("\n")
    shown = Text("\n".join(visible(row) for row in rows), style="dim")
    console(error=True).print(shown, soft_wrap=True, end="")


def say(text: str = "", style: str = "") -> None:
    console().print(printable(text), style=style or None, soft_wrap=True)


def prose(text: str, style: str = "") -> None:
    """Print sentences on stdout, wrapped between words on a terminal."""
    from rich.text import Text

    out = console()
    out.print(Text(printable(text), style=style), soft_wrap=not out.is_terminal)


def table(headings: Sequence[str], rows: Iterable[Sequence[str]], *, right: int = 0) -> None:
    """Print aligned columns, the last `right` of them flush right. No lines are drawn."""
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
    for row in rows:
        grid.add_row(*(Text(printable(cell), style=_STYLES.get(cell, "")) for cell in row))
    out = console()
    if out.is_terminal:
        out.print(grid)
        return
    with out.capture() as captured:
        out.print(grid)
    print("\n".join(line.rstrip() for line in captured.get().splitlines()))


def listing(headings: Sequence[str], rows: Sequence[Sequence[str]], *, right: int = 0) -> None:
    """Print a table if the terminal is wide enough, else two lines for each row, the first
    column whole, fit to be copied.
    """
    from rich.cells import cell_len
    from rich.text import Text

    out = console()
    widest = [max(cell_len(row[at]) for row in (headings, *rows)) for at in range(len(headings))]
    if sum(widest) + 2 * len(widest) <= out.width:
        table(headings, rows, right=right)
        return
    numeric = len(headings) - right
    for first, *others in rows:
        name = first.lstrip("│├└─ ")
        trunk = first[: len(first) - len(name)].translate(_TRUNK)
        cells = list(enumerate(others, start=1))
        facts = [_counted(cell, headings[at]) for at, cell in cells if at >= numeric]
        facts += [cell for at, cell in cells if cell and at < numeric]
        below = Text(f"{trunk}    {' · '.join(map(visible, facts))}", style="dim")
        below.truncate(out.width, overflow="ellipsis")
        out.print(Text(visible(first), style="bold"), soft_wrap=True)
        out.print(below, soft_wrap=True)


def _counted(count: str, heading: str) -> str:
    noun = heading.lower()
    return f"{count} {noun.removesuffix('s') if count == '1' else noun}"


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
    return "".join(
        char if char.isprintable() or char == " " else repr(char)[1:-1]
        for char in " ".join(text.split("\n"))
    )


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

    def __enter__(self) -> Self:
        if sys.stderr.isatty():
            import asyncio

            self._timer = asyncio.get_running_loop().call_later(PATIENCE, self._show)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self.pause()

    def _show(self) -> None:
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, SpinnerColumn, TextColumn

        self._shown = Progress(
            SpinnerColumn(),
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            console=console(error=True),
            transient=True,
            # Or rich would catch what is printed on stdout, and print it on stderr.
            redirect_stdout=False,
            redirect_stderr=False,
        )
        self._shown.add_task("", total=None)
        self._update()

    def _update(self) -> None:
        if self._shown is not None:
            (task,) = self._shown.task_ids
            self._shown.update(
                task,
                description=printable(self._what),
                completed=self._done,
                total=self._total or None,
            )
            self._shown.start()
