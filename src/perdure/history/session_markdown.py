"""A session as a Markdown document for people.

Each turn is a section: the prompt quoted, the reply as it was written, tool calls and reasoning
folded away. All words are kept; signatures, ids and the providers' own fields are not. Leaked
prompt tags are only counted.

Text that is well-behaved Markdown (no HTML, no open fence, no definition that reaches into other
messages) goes in as it is, its headings moved below those of the turns. Anything else is shown
between fences longer than any in it.
"""

from __future__ import annotations

import html
import json
import re
from collections.abc import AsyncIterator, Iterable, Iterator
from functools import cache
from typing import TYPE_CHECKING, Any

import msgspec

from perdure.core.clock import to_datetime
from perdure.core.display import one_line, plural
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
from perdure.core.turns import Turn, is_prompt
from perdure.history import gist, turn_tags
from perdure.history.session_export import ExportSource, OnMissing, resolved
from perdure.history.tool_patterns import json_object

if TYPE_CHECKING:
    from markdown_it import MarkdownIt
    from markdown_it.token import Token

#: Without any of these a text has no headings and nothing that reaches beyond its end.
_remarkable = re.compile(
    r"<|```|~~~|\]:|^[ \t>*+\-\d.)]*(?:#|=+[ \t]*$|-+[ \t]*$)", re.MULTILINE
).search
_TAIL = "perdure"
#: Headings of messages begin below those of turns.
_DOWN = 2
_DEEPEST = 6
_SUMMARY = 160  # What is said on a line that folds something away.
#: Longer texts are shown as they are: reading them as Markdown takes a second a megabyte.
_LONGEST = 200_000


async def markdown(
    session: ExportSource, *, on_missing: OnMissing | None = None
) -> AsyncIterator[str]:
    """The document, section by section. Raises `ArtifactMissing` or `Corrupted` if content cannot
    be read, unless `on_missing` is given: then it is called instead.
    """
    record = session.record
    yield f"# {_escaped(record.id)}\n"
    if record.parent is not None:
        yield f"\nForked from {_escaped(record.parent)} behind T-{record.forked_at}.\n"
    elif record.link is not None:
        yield f"\nStarted by {_escaped(record.link.session)}.\n"
    async for turn in session.read(undone=True):
        rounds = [
            msgspec.structs.replace(
                round,
                messages=tuple(
                    [await resolved(session, message, on_missing) for message in round.messages]
                ),
            )
            for round in turn.rounds
        ]
        yield section(msgspec.structs.replace(turn, rounds=tuple(rounds)))


def section(turn: Turn) -> str:
    turn, leaked = turn_tags.hidden_in(turn)
    facts = [turn.id, f"{to_datetime(turn.started):%Y-%m-%d %H:%M}"]
    if turn.tokens:
        facts.append(plural(turn.tokens, "token"))
    blocks = ["## " + " · ".join(facts)]
    notes = [str(turn.status)] if turn.status != "closed" else []
    notes += [turn.arrival] if turn.arrival else []
    notes += [f"{name}: {value}" for name, value in turn.tags.items()]
    notes += [f"masked: {plural(n, kind.replace('-', ' '))}" for kind, n in turn.masked.items()]
    notes += [turn_tags.told(leaked)] if leaked else []
    if notes:
        blocks.append(f"*{_escaped(', '.join(notes))}*")
    for round in turn.rounds:
        results = [part for message in round.messages for part in message.results]
        for message in round.messages:
            blocks += _message(message, results)
    return "\n" + "\n\n".join(blocks) + "\n"


def _message(message: Message, results: list[ToolResult]) -> Iterator[str]:
    """The blocks of a message. A result stands with its call, and is taken from `results` there."""
    if message.role in {"system", "developer", "event"} or message.injected:
        what = message.name or message.role if message.role == "event" else message.role
        note = "note in the user's name" if message.injected else what
        yield _folded(note, [block for part in message.parts for block in _part(part, results)])
        return
    for part in message.parts:
        if isinstance(part, ToolResult):
            if any(part is result for result in results):  # it has no call here
                yield _folded(f"result of {part.name or part.call}", _result(part))
            continue
        if is_prompt(message):
            yield from (_quoted(block) for block in _part(_without_tabs(part), results))
        else:
            yield from _part(part, results)
    if message.partial:
        yield "*The answer ends here: it was cut off.*"


def _part(part: Part, results: list[ToolResult]) -> Iterator[str]:
    if isinstance(part, Text | ArtifactPointer):
        words = words_of(part)
        if words.strip():
            yield flowing(words)
        if isinstance(part, ArtifactPointer):
            yield _aside(f"{part.artifact}, {part.size:,} bytes")
    elif isinstance(part, Reasoning):
        words = words_of(part)
        if words.strip():
            yield _folded("reasoning", [flowing(words)])
    elif isinstance(part, ToolCall):
        found = next((at for at, each in enumerate(results) if each.call == part.id), None)
        yield _call(part, None if found is None else results.pop(found))
    elif isinstance(part, ToolResult):
        yield from _result(part)
    elif isinstance(part, Media):
        yield _aside(gist.described(part))
    else:
        yield fenced(_json(part.data), "json")


def _call(call: ToolCall, result: ToolResult | None) -> str:
    outcome = gist.came(result).words if result is not None else "no result"
    blocks = list(_arguments(call))
    if result is not None:
        blocks += _result(result)
    return _folded(f"{call.name}: {gist.asked(call)} → {outcome}", blocks)


def _arguments(call: ToolCall) -> Iterator[str]:
    if call.reference is not None:
        yield from _part(call.reference, [])
        if not call.arguments:
            return
    given = json_object(call.arguments)
    if not given:
        if call.arguments.strip() not in {"", "{}"}:
            yield fenced(call.arguments)
        return
    long, short = dict[str, str](), dict[str, Any]()
    for name, value in given.items():
        words = gist.spoken_command(value)
        if isinstance(value, str) and "\n" in value:
            long[name] = value
        elif words is not None and len(value) == 3 and words == value[2]:  # bash -lc …
            long[f"{name}: {' '.join(value[:-1])}"] = words
        else:
            short[name] = value
    if short:
        yield fenced(_json(short), "json")
    for name, text in long.items():
        yield _aside(name)
        yield fenced(text)


def _result(result: ToolResult) -> Iterator[str]:
    yield "**Failed**" if result.is_error else "**Result**"
    for part in result.content:
        if isinstance(part, Text):
            yield from map(fenced, gist.printed(part.text))
        else:
            yield from _part(part, [])


def flowing(text: str) -> str:
    """As it was written if it cannot break the document, else between fences."""
    text = _one_kind_of_newline(text).strip("\n")
    if not _remarkable(text):
        return text
    tokens = _tokens(text) if len(text) <= _LONGEST else None
    if tokens is None:
        return fenced(text, "markdown")
    lines = text.split("\n")
    for token in tokens:
        if token.type == "heading_open" and token.map is not None:
            first, end = token.map
            if token.markup in {"=", "-"}:  # underlined
                lines[end - 1] = ""
            level = min(int(token.tag[1]) + _DOWN, _DEEPEST)
            words = lines[first].strip().lstrip("#") if token.markup[:1] == "#" else lines[first]
            lines[first] = f"{'#' * level} {words.strip()}"
    return "\n".join(lines)


def fenced(text: str, language: str = "text") -> str:
    text = _one_kind_of_newline(text)
    longest = max((len(run) for run in re.findall(r"`+", text)), default=0)
    fence = "`" * max(3, longest + 1)
    return f"{fence}{language}\n{text}\n{fence}"


def _tokens(text: str) -> list[Token] | None:
    """The top-level structure of a text; None if it could reach beyond its end."""
    env: dict[str, Any] = {}
    found = _reader().parse(f"{text}\n\n{_TAIL}", env)
    if len(found) < 3 or found[-3].type != "paragraph_open" or found[-2].content != _TAIL:
        return None  # something is left open
    if found[-3].level or env.get("references") or any(_reaches_out(token) for token in found):
        return None
    return found


def _reaches_out(token: Token) -> bool:
    if token.type in {"html_block", "html_inline"}:
        return True
    if token.type == "heading_open" and (token.level or _takes_lines(token) > 1):
        return True  # a heading in a list or a quote, or one of several lines: rare
    return any(_reaches_out(child) for child in token.children or ())


def _takes_lines(token: Token) -> int:
    first, end = token.map or (0, 0)
    return end - first - (token.markup in {"=", "-"})


@cache
def _reader() -> MarkdownIt:
    from markdown_it import MarkdownIt

    return MarkdownIt("commonmark")


def _folded(summary: str, blocks: Iterable[str]) -> str:
    words = one_line(summary, _SUMMARY)
    inner = "\n\n".join(blocks)
    return (
        f"<details>\n<summary>{html.escape(_printable(words))}</summary>\n\n{inner}\n\n</details>"
    )


def _without_tabs(part: Part) -> Part:
    """Behind the sign of a quote a tab is narrower, and what it indents something else."""
    if isinstance(part, Text) and "\t" in part.text:
        return Text(part.text.expandtabs(4))
    return part


def _quoted(block: str) -> str:
    return "\n".join(f"> {line}" if line else ">" for line in block.split("\n"))


def _aside(words: str) -> str:
    return f"*{_escaped(words)}*"


def _escaped(words: str) -> str:
    return re.sub(r"([\\`*_\[\]<>#&|~])", r"\\\1", " ".join(_printable(words).split()))


def _printable(words: str) -> str:
    return "".join(char if char.isprintable() else " " for char in words)


def _one_kind_of_newline(text: str) -> str:
    return text.replace("\r\n", "\n").replace("\r", "\n")


def _json(value: Any) -> str:
    return json.dumps(msgspec.to_builtins(value, str_keys=True), indent=2, ensure_ascii=False)
