"""The names that turns, rounds and ranges have in a prompt, and the elements that wrap them.

    <T-183-C>…</T-183-C>                             a turn
    <T-183.4-S>…</T-183.4-S>                         a round
    <T-50-through-100-T>…</T-50-through-100-T>       turns, merged into one
    <T-183.1-through-183.40-C>…                      rounds of a long turn

What stands inside is escaped, so that no text can close an element or open another. What a model
writes is never trusted to hold no tags: `hidden_tags` takes them out of views.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from functools import cache
from typing import Any

from msgspec.structs import replace

from perdure.core.display import plural
from perdure.core.levels import Level
from perdure.core.messages import (
    ArtifactPointer,
    Media,
    Message,
    Part,
    Text,
    ToolResult,
    Unknown,
    changed,
)
from perdure.core.turns import Position, Turn

#: Elements of ours besides those of turns; escaped like them.
OURS = ("perdure-board", "perdure-memory", "perdure-note", "perdure-history")

_ID = r"T-\d+(?:\.\d+)?(?:-through-\d+(?:\.\d+)?)?-[RSCT]"
_TAG = rf"</?\s*(?:{_ID}|{'|'.join(OURS)})\b"
# A tag that is not complete could be completed by what follows it in the prompt: so its beginning
# is enough to be escaped.
_begins_tag = re.compile(rf"<(?=[\s/]*(?:T-\d|{'|'.join(OURS)}))", re.IGNORECASE)
_ESCAPED = rf"&lt;(?=[\s/]*(?:T-\d|{'|'.join(OURS)}))"
# What stands behind a name ends with the line: a tag that is never closed hides no other words.
_WHOLE = rf"{_TAG}[^<>\n]*>"
# A line that holds nothing else goes with its tags; from a line with words, one blank beside each
# goes. Each pattern begins where only few places can match: a long run of blanks takes no longer.
_TAG_LINES = rf"^[ \t]*(?:{_WHOLE}[ \t]*)+(?:\r?\n|\Z)"
_TAG_BESIDE = rf"(?:^|(?<=[ \t])){_WHOLE}[ \t]?|{_WHOLE}"


def name_of(first: Position, last: Position) -> str:
    """``T-183``, ``T-183.4``, ``T-50-through-100``, ``T-183.1-through-183.40``."""
    return str(first) if first == last else f"{first}-through-{str(last)[2:]}"


def opening(name: str, level: Level) -> str:
    return f"<{name}-{level}>"


def closing(name: str, level: Level) -> str:
    return f"</{name}-{level}>"


def element(name: str, level: Level, text: str) -> str:
    return f"{opening(name, level)}\n{escape(text)}\n{closing(name, level)}"


def escape(text: str) -> str:
    """Writes ``<`` of everything that looks like a tag of ours as ``&lt;``. Idempotent."""
    return _begins_tag.sub("&lt;", text) if "<" in text else text


def unescape(text: str) -> str:
    """The inverse of `escape`, unless its input held such escapes itself."""
    return _compiled(_ESCAPED).sub("<", text) if "&lt;" in text else text


def without_tags(text: str) -> tuple[str, int]:
    """The text without tags of ours, and how many there were."""
    count = sum(1 for _ in _compiled(_WHOLE).finditer(text)) if "<" in text else 0
    if not count:
        return text, 0
    return _compiled(_TAG_BESIDE).sub("", _compiled(_TAG_LINES).sub("", text)), count


@cache
def _compiled(pattern: str) -> re.Pattern[str]:
    # When first used: most processes never see a tag where none should be.
    return re.compile(pattern, re.IGNORECASE | re.MULTILINE)


def escaped(message: Message) -> Message:
    """The same object if there is nothing to escape, or if a model said it."""
    if message.role == "assistant":
        return message
    return changed(message, parts=tuple(map(_escaped, message.parts)))


def _escaped(part: Any) -> Any:
    if isinstance(part, Text):
        return changed(part, text=escape(part.text))
    if isinstance(part, ToolResult):
        return changed(part, content=tuple(map(_escaped, part.content)))
    if isinstance(part, Unknown):
        data = _escaped_data(part.data)
        return part if data == part.data else replace(part, data=data)
    if isinstance(part, Media) and part.data and part.media_type.startswith("text/"):
        text = part.data.decode(errors="surrogateescape")
        safe = escape(text)
        if safe != text:
            return replace(part, data=safe.encode(errors="surrogateescape"))
    return part


def _escaped_data(data: Any) -> Any:
    if isinstance(data, str):
        return escape(data)
    if isinstance(data, dict):
        return {name: _escaped_data(value) for name, value in data.items()}
    if isinstance(data, list | tuple):
        return [_escaped_data(value) for value in data]
    return data


def hidden_tags(messages: Iterable[Message]) -> tuple[tuple[Message, ...], int]:
    """Takes tags of ours out of models' messages, and counts them. Of content in the artifact
    store, only the head in its pointer is searched.
    """
    shown, count = list[Message](), 0
    for message in messages:
        parts, leaked = _hidden(message) if message.role == "assistant" else ((), 0)
        shown.append(replace(message, parts=parts) if leaked else message)
        count += leaked
    return tuple(shown), count


def hidden_in(turn: Turn) -> tuple[Turn, int]:
    found = [hidden_tags(round.messages) for round in turn.rounds]
    count = sum(leaked for _, leaked in found)
    if not count:
        return turn, 0
    rounds = tuple(
        replace(round, messages=messages)
        for round, (messages, _) in zip(turn.rounds, found, strict=True)
    )
    return replace(turn, rounds=rounds), count


def told(count: int) -> str:
    return f"{plural(count, 'leaked tag')} hidden"


def _hidden(message: Message) -> tuple[tuple[Part, ...], int]:
    parts, count = list[Part](), 0
    for part in message.parts:
        shown: Part = part
        leaked = 0
        if isinstance(part, Text):
            text, leaked = without_tags(part.text)
            shown = changed(part, text=text)
        elif isinstance(part, ArtifactPointer):
            head, leaked = without_tags(part.head)
            shown = changed(part, head=head)
        parts.append(shown)
        count += leaked
    return tuple(parts), count
