"""A tool call and its result, at a glance: one line for each, for people who read a conversation.

    Bash  ls -la src    →  42 lines, 3.1 KB
    Read  src/app.py    →  failed: File does not exist.

Words only, on one line, of any length: whoever shows them cuts and escapes them.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any

import msgspec

from perdure.core.display import format_size, plural
from perdure.core.messages import ArtifactPointer, Media, Text, ToolCall, ToolResult, Unknown
from perdure.history.excerpt import unwrap
from perdure.history.tool_patterns import json_object

#: Arguments that tell by themselves what a call is about, the most telling first.
_TELLING = (
    *("command", "cmd", "script", "pattern", "query", "file_path", "notebook_path", "path"),
    *("filename", "url", "description", "prompt", "question", "text", "message", "name", "input"),
)
_PLACES = ("path", "glob", "file_path")
#: Of arguments that are no JSON, or only its beginning, a field that can be made out.
_field = re.compile(rf'"({"|".join(_TELLING)})"\s*:\s*"((?:[^"\\]|\\.)*)').search
_files = re.compile(r"^\*\*\* (?:Add|Update|Delete) File: (.+)$", re.MULTILINE).findall
#: A result this short is shown itself.
_SHORT = 80
_LOOKED_AT = 2_000


class ToolOutcome(msgspec.Struct, frozen=True):
    """The result of a call."""

    words: str
    failed: bool = False


def asked(call: ToolCall) -> str:
    text = call.arguments
    if call.reference is not None and not text:
        text = call.reference.head
    given = json_object(text)
    if not given and text.strip() != "{}":
        found = _field(text[:_LOOKED_AT])
        return _script(found[2] if found else text)
    for name in _TELLING:
        words = _words(given.get(name))
        if words and name == "pattern":
            place = next((_words(given[key]) for key in _PLACES if given.get(key)), "")
            return f"{words} in {place}" if place else words
        if words:
            return words
    inner = given.get("action")  # of a local_shell call
    if isinstance(inner, dict) and _words(inner.get("command")):
        return _words(inner["command"])
    return ", ".join(f"{name}: {_brief(value)}" for name, value in given.items())


def came(result: ToolResult) -> ToolOutcome:
    texts = [part.text for part in result.content if isinstance(part, Text)]
    whole = unwrap("\n".join(texts))
    said = "\n".join(whole.texts).strip("\n")
    failed = result.is_error or whole.failed
    first = _line(said.lstrip().partition("\n")[0])
    if failed:
        return ToolOutcome(f"failed: {first}" if first else "failed", failed=True)
    found = list(_counts(result, said))
    if not found:
        return ToolOutcome("nothing")
    if len(found) == 1 and first and "\n" not in said and len(said) <= _SHORT:
        return ToolOutcome(first)
    return ToolOutcome(", ".join(found))


def _counts(result: ToolResult, said: str) -> Iterator[str]:
    moved = [part.size for part in result.content if isinstance(part, ArtifactPointer)]
    length = len(said.encode(errors="replace"))
    if said and not moved:
        yield f"{plural(said.count(chr(10)) + 1, 'line')}, {format_size(length)}"
    elif moved:
        yield format_size(sum(moved) + length)
    media = [part for part in result.content if isinstance(part, Media)]
    if media:
        images = all(part.media_type.startswith("image/") for part in media)
        yield plural(len(media), "image" if images else "file")
    others = sum(isinstance(part, Unknown) for part in result.content)
    if others:
        yield plural(others, "other part")


def described(media: Media) -> str:
    length = len(media.data) if media.data is not None else media.size
    return ", ".join(
        each
        for each in (
            media.media_type or "file",
            format_size(length) if length else "",
            media.filename,
            media.url or media.file_id or "",
        )
        if each
    )


def printed(text: str) -> list[str]:
    """What a tool printed, without the JSON around it; other fields come last."""
    if not text.startswith(("{", "[{")):
        return [text]
    whole = unwrap(text)
    if whole.texts == [text]:
        return [text]
    outputs = [output.strip("\n") for output in whole.texts]
    return [*filter(None, outputs), whole.wrap([""] * len(outputs))]


def _words(value: Any) -> str:
    if isinstance(value, str):
        return _script(value)
    words = spoken_command(value)
    return _script(words) if words is not None else ""


def spoken_command(value: Any) -> str | None:
    """As a person would type it; of ``["bash", "-lc", "ls"]`` the script."""
    if not isinstance(value, list) or not value or not all(isinstance(w, str) for w in value):
        return None
    return value[2] if len(value) == 3 and value[1] in {"-c", "-lc"} else " ".join(value)


def _script(text: str) -> str:
    files = _files(text) if "*** Begin Patch" in text[:200] else []
    return f"apply_patch {', '.join(map(_line, files))}" if files else _line(text)


def _brief(value: Any) -> str:
    if isinstance(value, list):
        return f"[{len(value)}]"
    if isinstance(value, dict):
        return f"{{{len(value)}}}"
    return _line(value) if isinstance(value, str) else json.dumps(value)


def _line(text: str) -> str:
    return " ".join(text[:_LOOKED_AT].split())
