"""Where a command writes what people said: lines laid out to the width of the terminal.

Off a terminal there is no width: nothing is wrapped, cut to fit or pushed to the right.
"""

from __future__ import annotations

import re
import sys

import msgspec
from rich.cells import cell_len, set_cell_size
from rich.text import Text

from perdure.cli import terminal

#: Longer lines are tiring to read.
_WIDEST = 120
_NARROWEST = 20
_INDENT = 4
#: A longer line is left to the terminal: wrapping a megabyte takes seconds.
_LONGEST = 20_000
#: Where the words of a list's item begin: what is wrapped goes on below them.
_item = re.compile(r" {0,12}(?:[-*+•] {1,3}|\d{1,3}[.)] {1,2})?").match


class Marks(msgspec.Struct, frozen=True):
    """The signs in front of what is said."""

    user: str = "»"
    assistant: str = "•"
    reasoning: str = "∴"
    call: str = "▸"
    note: str = "⋯"
    event: str = "◆"
    arrow: str = "→"
    more: str = "…"
    rule: str = "─"
    dot: str = "·"


#: For terminals that do not know the others.
_ASCII = Marks(">", "*", "~", "+", "-", "#", "->", "...", "-", "|")


class Sheet:
    """Prints lines on stdout. Words given to it are already free of what steers a terminal."""

    def __init__(self) -> None:
        self._out = terminal.console()
        self.width = min(self._out.width, _WIDEST) if self._out.is_terminal else None
        self.marks = Marks() if _can_say(Marks()) else _ASCII

    def line(self, words: str | Text, style: str = "") -> None:
        """Words on a line, however long."""
        line = Text(words, style=style) if isinstance(words, str) else words
        line.rstrip()
        self._out.print(line, soft_wrap=True)

    def blank(self) -> None:
        self._out.print()

    def block(
        self, mark: str, rows: list[str], style: str, limit: int | None, *, depth: int = _INDENT
    ) -> None:
        """Lines behind a mark, wrapped; of more than the limit, the first ones and a count."""
        shown, left = self._wrapped(rows, depth, limit)
        indent = " " * depth
        for number, row in enumerate(shown):
            start = f"{mark} ".rjust(depth) if number == 0 else indent
            self.line(Text.assemble((start, style), (row, style)))
        if left:
            self.line(f"{indent}{self.marks.more} {terminal.plural(left, 'more line')}", "dim")

    def folded(self, mark: str, rows: list[str], style: str) -> None:
        """The first of some lines behind a mark, and how many there are."""
        tail = Text()
        if len(rows) > 1:
            count = terminal.plural(len(rows) - 1, "line")
            tail.append(f" (+{count})", style=style)
        self.fit(Text(f"  {mark}", style=style), Text(rows[0], style=style), tail, gap=" ")

    def fit(self, head: Text, middle: Text, tail: Text, *, gap: str = "  ") -> None:
        """Three things on one line: the middle gives way, and if it is long, the tail."""
        line, middle, tail = head.copy(), middle.copy(), tail.copy()
        if self.width is not None:
            room = max(self.width - head.cell_len - len(gap), _NARROWEST)
            if middle.cell_len + tail.cell_len > room:
                self._cut(tail, max(room // 2, room - middle.cell_len))
                self._cut(middle, room - tail.cell_len)
        if middle:
            line.append(gap).append_text(middle)
        line.append_text(tail)
        self.line(line)

    def spread(self, left: Text, right: str) -> None:
        """Words at both ends of a line, and a rule between them."""
        line = left.copy()
        if self.width is None:
            line.append(f"  {right}" if right else "")
        else:
            room = self.width - left.cell_len - cell_len(right) - (2 if right else 1)
            line.append(f" {self.marks.rule * max(room, 1)}", style="dim")
            line.append(f" {right}" if right else "", style="dim")
        self.line(line)

    def _cut(self, text: Text, room: int) -> None:
        """Make a text fit; a path keeps its end, which tells more than its beginning."""
        if text.cell_len <= room:
            return
        plain, more = text.plain, self.marks.more
        room = max(room - cell_len(more), 0)
        if "/" in plain and " " not in plain.strip():
            end = plain
            while cell_len(end) > room:
                end = end[max((cell_len(end) - room) // 2, 1) :]
            text.plain = more + end
        else:
            text.plain = set_cell_size(plain, room).rstrip() + more

    def _wrapped(self, rows: list[str], depth: int, limit: int | None) -> tuple[list[str], int]:
        """So many lines, wrapped, and how many are left: those are not wrapped to be counted."""
        if self.width is None:
            limit = None if limit is None or len(rows) <= limit + 1 else limit
            return rows[:limit], 0 if limit is None else len(rows) - limit
        wrapped = list[str]()
        most = sys.maxsize if limit is None else limit + 1  # a count of one would take its place
        for taken, row in enumerate(rows):
            if len(wrapped) > most:
                return wrapped[:limit], len(wrapped) - most + 1 + len(rows) - taken
            wrapped += self._wrap(row if limit is None else row[:_LONGEST], depth)
        if len(wrapped) > most:
            return wrapped[:limit], len(wrapped) - most + 1
        return wrapped, 0

    def _wrap(self, row: str, depth: int) -> list[str]:
        """A line as lines that fit; what is wrapped in a list goes on below its words."""
        width = max((self.width or 0) - depth, _NARROWEST)
        if len(row) > _LONGEST or len(row) * 2 <= width or cell_len(row) <= width:
            return [row]
        hanging = _item(row)
        indent = " " * (hanging.end() if hanging is not None else 0)
        first = Text(row).wrap(self._out, width)[0].plain
        rest = Text(row[len(first) :].lstrip(" "))
        room = max(width - len(indent), _NARROWEST)
        return [first, *(indent + each.plain for each in rest.wrap(self._out, room))]


def _can_say(marks: Marks) -> bool:
    """Whether stdout can show these marks."""
    try:
        "".join(msgspec.structs.astuple(marks)).encode(sys.stdout.encoding or "ascii")
    except (UnicodeEncodeError, LookupError):
        return False
    return True
