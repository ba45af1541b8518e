"""How a conversation looks in a terminal.

    T-12  2026-02-12 16:02 (3 h ago) ───────────────── 2 rounds · 1,234 tokens
      » What did we decide about OAuth?
      ∴ The user wants to know (+12 lines)
      ▸ Bash  git log --oneline -- auth.py → 42 lines, 3.1 KB
      • We decided to rotate refresh tokens.

Control characters are escaped. Prompt tags that leaked into an answer are hidden and counted.
"""

from __future__ import annotations

import json
import re
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

import msgspec
from rich.cells import cell_len, set_cell_size
from rich.text import Text as Line

from perdure.cli import readable, terminal
from perdure.core.messages import (
    ArtifactPointer,
    Media,
    Message,
    Part,
    Reasoning,
    Text,
    ToolCall,
    ToolResult,
    words_of,
)
from perdure.core.turns import Position
from perdure.history import gist, turn_tags
from perdure.history.tool_patterns import json_object

if TYPE_CHECKING:
    from perdure.core.turns import Round, Turn


class PageDetail(msgspec.Struct, frozen=True):
    """Lines shown of each kind. None is all; 0 is one line for it all."""

    prompt: int | None = None
    reply: int | None = None
    aside: int | None = None
    tools: int | None = None
    #: Rounds of a turn, half of them from its end.
    rounds: int | None = None


#: A page of turns; one turn; everything.
PAGE = PageDetail(prompt=8, reply=16, aside=0, tools=0, rounds=10)
TURN = PageDetail(aside=6, tools=12)
FULL = PageDetail()

#: A call with one argument no longer than this is told by its first line.
_SAID_ALREADY = 60
_STATUS_STYLES = {
    "open": "green",
    "partial": "bold yellow",
    "undone": "bold yellow",
    "forgotten": "bold red",
}


class ConversationPage:
    """Prints turns, or messages as they come; files in `folder` are shown without it."""

    def __init__(self, detail: PageDetail, now: int, folder: str = "") -> None:
        self._detail = detail
        self._now = now
        self._folder = folder.rstrip("/")
        self._arriving = False  # The answer of the turn that is shown.
        self._sheet = Sheet()
        self._marks = self._sheet.marks

    def turn(self, turn: Turn) -> None:
        turn, leaked = turn_tags.hidden_in(turn)
        self._heading(turn, leaked)
        self._arriving = turn.writer == "alive"
        rounds, most = turn.rounds, self._detail.rounds
        if most is not None and len(rounds) > most + 1:
            half = most // 2
            self._rounds(rounds[:half])
            self._passed_over(turn, rounds[half:-half])
            self._rounds(rounds[-half:])
        else:
            self._rounds(rounds)
        if turn.status == "forgotten":
            self._sheet.line("    What was said in it was forgotten.", "dim")
        elif turn.status == "partial":
            self._sheet.line(f"    {turn.arrival.capitalize()}.", "yellow")
        self._sheet.blank()

    def announce(self, turn: int, time: int) -> None:
        self._sheet.blank()
        self._sheet.spread(self._title(f"T-{turn}", time), "")

    def footer(self, facts: Sequence[str]) -> None:
        self._sheet.line(terminal.visible(f" {self._marks.dot} ".join(facts)), "dim")

    def _heading(self, turn: Turn, leaked: int) -> None:
        facts = [terminal.plural(len(turn.rounds), "round")] if len(turn.rounds) > 1 else []
        if turn.tokens is not None and turn.status != "forgotten":
            facts.append(terminal.plural(turn.tokens, "token"))
        id = turn.id
        if len(turn.rounds) == 1 and turn.rounds[0].number > 1:  # that one was asked for
            id = f"{id}.{turn.rounds[0].number}"
        left = self._title(id, turn.started)
        if turn.status in _STATUS_STYLES:
            left.append(f"  {turn.status}", style=_STATUS_STYLES[turn.status])
        for name, value in turn.tags.items():
            left.append(f"  {terminal.visible(f'{name}={value}')}", style="magenta")
        if turn.masked:
            count = sum(turn.masked.values())
            left.append(f"  {terminal.plural(count, 'secret')} masked", style="yellow")
        if leaked:
            left.append(f"  {turn_tags.told(leaked)}", style="yellow")
        self._sheet.spread(left, f" {self._marks.dot} ".join(facts))

    def _title(self, id: str, time: int) -> Line:
        ago = readable.relative_time(time, self._now)
        return Line.assemble(
            (id, "bold"), f"  {readable.absolute_time(time)}", (f" ({ago})", "dim")
        )

    def _rounds(self, rounds: Sequence[Round]) -> None:
        for round in rounds:
            results = [part for message in round.messages for part in message.results]
            for message in round.messages:
                self._message(message, results)

    def _passed_over(self, turn: Turn, rounds: Sequence[Round]) -> None:
        """A line for hidden rounds: how many, and what was done in them."""
        calls = Counter(
            call.name for round in rounds for message in round.messages for call in message.calls
        )
        first = Position(turn.number, rounds[0].number)
        tools = ", ".join(f"{count} {name}" for name, count in calls.most_common(4))
        if len(calls) > 4:
            tools += f", {sum(count for _, count in calls.most_common()[4:])} others"
        words = f"{len(rounds):,} more rounds, from {first} to .{rounds[-1].number}"
        words += f": {tools}" if tools else ""
        self._sheet.fit(
            Line(f"  {self._marks.note}", "yellow"),
            Line(terminal.visible(words), "yellow"),
            Line(),
            gap=" ",
        )

    def message(self, message: Message) -> None:
        (shown,), leaked = turn_tags.hidden_tags((message,))
        self._message(shown, None)
        if leaked:
            self._sheet.line(f"    ({turn_tags.told(leaked)})", "yellow")

    def _message(self, message: Message, results: list[ToolResult] | None) -> None:
        for part in message.parts:
            if isinstance(part, ToolCall):
                self._call(part, results)
            elif isinstance(part, ToolResult):
                if results is None:
                    self._outcome(part)
                elif any(part is result for result in results):  # its call is not in this round
                    self._outcome(part, of=part.name or part.call)
            elif isinstance(part, Reasoning):
                words = words_of(part)
                self._words(self._marks.reasoning, words, "dim italic", self._detail.aside)
            else:
                self._said(message, part)
        if message.role == "event" and not message.parts:
            self._said(message, Text(""))
        if message.partial and not self._arriving:
            self._sheet.line("    (cut off)", "yellow")

    def _said(self, message: Message, part: Part) -> None:
        """Text, an image or a file; the role decides its style."""
        detail, marks, role = self._detail, self._marks, message.role
        words = "\n".join(_shown(part))
        if role == "event":
            words = f"{message.name}: {words}" if words else message.name
            self._words(marks.event, words, "blue", detail.aside)
        elif role in {"system", "developer"} or message.injected:
            self._words(marks.note, words, "dim", detail.aside)
        elif role == "user":
            self._words(marks.user, words, "cyan", detail.prompt)
        else:
            self._words(marks.assistant, words, "", detail.reply)

    def _call(self, call: ToolCall, results: list[ToolResult] | None) -> None:
        at = next((n for n, each in enumerate(results or ()) if each.call == call.id), None)
        result = results.pop(at) if results is not None and at is not None else None
        head = Line(f"  {self._marks.call} {terminal.visible(call.name)}", style="magenta")
        tail = Line()
        if result is not None:
            tail = self._came(result)
        elif results is not None:
            tail = Line(f" {self._marks.arrow} no result", style="yellow")
        self._sheet.fit(head, Line(self._nearby(terminal.visible(gist.asked(call)))), tail)
        if self._detail.tools != 0:
            self._inner(_readable(call.arguments))
            if call.reference is not None:
                self._inner("\n".join(_shown(call.reference)))
            if result is not None:
                self._content(result)

    def _outcome(self, result: ToolResult, of: str = "") -> None:
        head = Line(f"  {self._marks.call} {terminal.visible(of)}" if of else "   ", "magenta")
        self._sheet.fit(head, Line(), self._came(result))
        if self._detail.tools != 0:
            self._content(result)

    def _came(self, result: ToolResult) -> Line:
        outcome = gist.came(result)
        words = self._nearby(terminal.visible(outcome.words))
        style = "red" if outcome.failed else "green"
        return Line(f" {self._marks.arrow} {words}", style=style)

    def _content(self, result: ToolResult) -> None:
        said = [each for part in result.content for each in _shown(part)]
        words = "\n".join(line for each in said for line in gist.printed(each))
        self._inner(words, self._marks.arrow, "dim red" if result.is_error else "dim")

    def _inner(self, words: str, mark: str = " ", style: str = "dim") -> None:
        if words.strip():
            rows = terminal.lines(self._nearby(words.strip("\n")))
            self._sheet.block(mark, rows, style, self._detail.tools, depth=6)

    def _words(self, mark: str, words: str, style: str, limit: int | None) -> None:
        rows = terminal.lines(words.strip("\n"))
        if not words.strip():
            return
        if limit == 0:
            self._sheet.folded(mark, [row for row in rows if row.strip()], style)
        else:
            self._sheet.block(mark, rows, style, limit)

    def _nearby(self, words: str) -> str:
        """Paths without the folder that the agent worked in."""
        return words.replace(f"{self._folder}/", "") if self._folder else words


def _shown(part: Part) -> Iterator[str]:
    if isinstance(part, Text):
        yield part.text
    elif isinstance(part, ArtifactPointer):
        if part.head:
            yield f"{part.head}…"
        yield f"[{terminal.format_size(part.size)} in the artifact store: {part.artifact[:19]}…]"
    elif isinstance(part, Media):
        yield f"[{gist.described(part)}]"
    elif isinstance(part, ToolCall | ToolResult | Reasoning):
        yield words_of(part)
    else:
        yield _as_json(part.data)


def _readable(arguments: str) -> str:
    """Arguments with a line for each field; nothing if one line said it."""
    given = json_object(arguments)
    if not given and arguments.strip() != "{}":
        return arguments
    if len(given) <= 1 and len(arguments) <= _SAID_ALREADY and "\\n" not in arguments:
        return ""
    return "\n".join(_field(name, value) for name, value in given.items())


def _field(name: str, value: Any) -> str:
    words = value if isinstance(value, str) else gist.spoken_command(value)
    if words is None:
        words = _as_json(value)
    return f"{name}:\n{words}" if "\n" in words else f"{name}: {words}"


def _as_json(value: Any) -> str:
    return json.dumps(msgspec.to_builtins(value, str_keys=True), ensure_ascii=False)


#: Longer lines are tiring to read.
_WIDEST = 120
_NARROWEST = 20
_INDENT = 4
#: A longer line is left to the terminal: wrapping a megabyte takes seconds.
_LONGEST = 20_000
#: Where the words of a list's item begin: what is wrapped goes on below them.
_item = re.compile(r" {0,12}(?:[-*+•] {1,3}|\d{1,3}[.)] {1,2})?").match


class PageMarks(msgspec.Struct, frozen=True):
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
_ASCII = PageMarks(">", "*", "~", "+", "-", "#", "->", "...", "-", "|")


class Sheet:
    """Prints lines on stdout, from text that is already escaped."""

    def __init__(self) -> None:
        self._out = terminal.console()
        self.width = min(self._out.width, _WIDEST) if self._out.is_terminal else None
        marks = PageMarks()
        can_say = terminal.can_say("".join(msgspec.structs.astuple(marks)))
        self.marks = marks if can_say else _ASCII

    def line(self, words: str | Line, style: str = "") -> None:
        line = Line(words, style=style) if isinstance(words, str) else words
        line.rstrip()
        self._out.print(line, soft_wrap=True)

    def blank(self) -> None:
        self._out.print()

    def block(
        self, mark: str, rows: list[str], style: str, limit: int | None, *, depth: int = _INDENT
    ) -> None:
        """Lines after a mark, wrapped; beyond the limit only counted."""
        shown, left = self._wrapped(rows, depth, limit)
        indent = " " * depth
        for number, row in enumerate(shown):
            start = f"{mark} ".rjust(depth) if number == 0 else indent
            self.line(Line.assemble((start, style), (row, style)))
        if left:
            self.line(f"{indent}{self.marks.more} {terminal.plural(left, 'more line')}", "dim")

    def folded(self, mark: str, rows: list[str], style: str) -> None:
        tail = Line()
        if len(rows) > 1:
            count = terminal.plural(len(rows) - 1, "line")
            tail.append(f" (+{count})", style=style)
        self.fit(Line(f"  {mark}", style=style), Line(rows[0], style=style), tail, gap=" ")

    def fit(self, head: Line, middle: Line, tail: Line, *, gap: str = "  ") -> None:
        """Three things on one line: the middle is cut first, then the tail."""
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

    def spread(self, left: Line, right: str) -> None:
        line = left.copy()
        if self.width is None:
            line.append(f"  {right}" if right else "")
        else:
            room = self.width - left.cell_len - cell_len(right) - (2 if right else 1)
            line.append(f" {self.marks.rule * max(room, 1)}", style="dim")
            line.append(f" {right}" if right else "", style="dim")
        self.line(line)

    def _cut(self, text: Line, room: int) -> None:
        """Cut a text to fit; a path keeps its end."""
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
        """The first `limit` lines, wrapped, and how many are left (not wrapped: slow)."""
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
        """Wrap a line; list items continue below their words."""
        width = max((self.width or 0) - depth, _NARROWEST)
        if len(row) > _LONGEST or len(row) * 2 <= width or cell_len(row) <= width:
            return [row]
        hanging = _item(row)
        indent = " " * (hanging.end() if hanging is not None else 0)
        first = Line(row).wrap(self._out, width)[0].plain
        rest = Line(row[len(first) :].lstrip(" "))
        room = max(width - len(indent), _NARROWEST)
        return [first, *(indent + each.plain for each in rest.wrap(self._out, room))]
