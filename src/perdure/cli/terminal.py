"""How commands print.

Results go to stdout, everything else to stderr. Colours and progress bars appear on a terminal only
(and not with NO_COLOR); elsewhere lines are plain and as long as they need to be.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

from perdure.core.errors import PerdureError

if TYPE_CHECKING:
    from rich.console import Console

_UNITS = ("B", "KB", "MB", "GB", "TB")
#: Off a terminal nothing is wrapped or cut.
_ENDLESS = 100_000


def emit(value: Any) -> None:
    """Print one JSON object on stdout. Structs become objects."""
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
    """Print a message beside the result, on stderr."""
    console(error=True).print(printable(text), soft_wrap=True)


def say(text: str = "", style: str = "") -> None:
    """Print a line of the result, on stdout."""
    console().print(printable(text), style=style or None, soft_wrap=True)


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


_STYLES = {"ok": "green", "not ok": "bold red", "proven": "green", "failed": "bold red"}


def console(*, error: bool = False) -> Console:
    """Where rich prints: stdout, or stderr."""
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
    """The text on one line, with nothing in it that could steer a terminal."""
    return "".join(
        char if char.isprintable() or char == " " else repr(char)[1:-1]
        for char in " ".join(text.split("\n"))
    )


def size(count: float) -> str:
    """A number of bytes, for people: ``1.4 MB``."""
    for unit in _UNITS:
        if count < 1_000 or unit == _UNITS[-1]:
            return f"{count:.0f} {unit}" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1_000
    raise AssertionError("unreachable")


def plural(count: int, noun: str) -> str:
    """``1 record``, ``2,000 records``."""
    return f"{count:,} {noun}" if count == 1 else f"{count:,} {noun}s"
