"""Reads the messages of Cursor, which it calls bubbles.

Each is something that a person said (type 1), or a piece of a reply (type 2): a thought, words, or
a tool call with its result. A reply ends with its tool call, or with the next prompt.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import msgspec

from perdure.core.clock import SECOND
from perdure.core.messages import Media, Message, Part, Reasoning, Text, ToolCall, ToolResult, Usage
from perdure.importers.importer import PIECE, Say, Step, TranscriptReader, kind, word
from perdure.importers.message_parts import as_json, attachment, count, items, mapping, moment_of
from perdure.importers.transcript_source import moment

_MILLISECOND = SECOND // 1000
_PERSON, _MODEL = 1, 2
#: How a tool call may end; before that it may have no result.
_FAILED = frozenset({"error", "cancelled", "rejected"})
#: Why a record is left out that holds no message.
_LEFT_OUT = {
    "unfinished": "answer that is not finished",
    "missing": "bubble that is not there",
    "outside": "bubble outside of the conversation",
    "tab": "chat of a version before 2024's composer",
}


class CursorReader(TranscriptReader):
    """Reads one conversation."""

    def __init__(self) -> None:
        super().__init__()
        self._reply = ""  # its first bubble; empty: the next one begins a reply

    def read(self, record: Any) -> Iterator[Step]:
        found = mapping(record)
        bubble = mapping(found.get("bubble"))
        if not bubble:
            reasons = [reason for name, reason in _LEFT_OUT.items() if name in found]
            self.skip(reasons[0] if reasons else "no record of Cursor")
        elif bubble.get("type") == _PERSON:
            yield from self._person(bubble)
        elif bubble.get("type") == _MODEL:
            yield from self._model(bubble, word(found.get("model")))
        else:
            self.skip(f"bubble of type {kind(str(bubble.get('type')))}")

    def _person(self, bubble: dict[str, Any]) -> Iterator[Step]:
        text = word(bubble.get("text")) or _rich(bubble.get("richText"))
        parts: list[Part] = [Text(text)] if text else []
        parts += [_image(image) for image in items(bubble.get("images"))]
        self._reply = ""
        if parts:
            yield Say(Message("user", tuple(parts), time=_time(bubble)))
        else:
            self.skip("empty bubble")

    def _model(self, bubble: dict[str, Any], model: str) -> Iterator[Step]:
        parts: list[Part] = []
        for thought in [bubble.get("thinking"), *items(bubble.get("allThinkingBlocks"))]:
            said = thought if isinstance(thought, str) else mapping(thought).get("text")
            if word(said) and Reasoning(word(said)) not in parts:
                parts.append(Reasoning(word(said)))
        if text := word(bubble.get("text")):
            parts.append(Text(text))
        tool = mapping(bubble.get("toolFormerData"))
        results: list[ToolResult] = []
        if word(tool.get("name")) or word(tool.get("toolCallId")):
            call, results = _tool(tool, word(bubble.get("bubbleId")))
            parts.append(call)
        if not parts:
            self.skip("bubble with an error" if bubble.get("errorDetails") else "empty bubble")
            return
        self._reply = self._reply or word(bubble.get("bubbleId")) or "bubble"
        told = word(mapping(bubble.get("modelInfo")).get("modelName")) or model
        yield Say(
            Message(
                "assistant",
                tuple(parts),
                id=f"{PIECE}{self._reply}",
                model="" if told == "default" else told,
                usage=_usage(mapping(bubble.get("tokenCount"))),
                time=_time(bubble),
            )
        )
        if tool:
            self._reply = ""
        if results:
            yield Say(Message("tool", tuple(results), time=_time(bubble)))


def _tool(tool: dict[str, Any], bubble: str) -> tuple[ToolCall, list[ToolResult]]:
    # Some ids are two: the call's, and the item's behind a line's end.
    call = word(tool.get("toolCallId")).partition("\n")[0] or f"call-{bubble}"
    name, status = word(tool.get("name")), word(tool.get("status"))
    given = tool.get("rawArgs") or tool.get("params") or {}
    made = ToolCall(call, name, as_json(given))
    told = tool.get("result") or tool.get("error")
    if not told and status not in _FAILED:
        return made, []
    content = (Text(as_json(told)),) if told else ()
    failed = status in _FAILED or not tool.get("result")
    return made, [ToolResult(call, content, is_error=failed, name=name)]


def _image(image: dict[str, Any]) -> Media | Text:
    """The picture, if it is in the database; else where it was."""
    data = image.get("data")
    if isinstance(data, str) and data:
        url = data if data.startswith("data:") else f"data:image/png;base64,{data}"
        return attachment(url, "image/png")
    where = word(image.get("path")) or word(image.get("url")) or word(image.get("uuid"))
    return attachment(where, "image", where.rpartition("/")[2])


def _rich(text: Any) -> str:
    """The words of a prompt with mentions, in versions that keep them apart: an editor's state."""
    try:
        found = msgspec.json.decode(text) if isinstance(text, str) else text
    except (msgspec.MsgspecError, UnicodeError, RecursionError):
        return ""
    words: list[str] = []
    nodes = [mapping(mapping(found).get("root"))]
    while nodes and len(words) < 100_000:
        node = nodes.pop()
        if isinstance(node.get("text"), str):
            words.append(node["text"])
        nodes += reversed(items(node.get("children")))
    return "".join(words)


def _time(bubble: dict[str, Any]) -> int | None:
    created = bubble.get("createdAt")
    return moment(created) or moment_of(created, _MILLISECOND)


def _usage(tokens: dict[str, Any]) -> Usage | None:
    """Zeroes say that nobody counted."""
    given, made = count(tokens.get("inputTokens")), count(tokens.get("outputTokens"))
    return Usage(input=given, output=made) if given or made else None
