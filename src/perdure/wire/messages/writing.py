"""Canonical messages to Anthropic Messages."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import takewhile
from typing import Any

from perdure.core.messages import (
    Media,
    Message,
    Part,
    Reasoning,
    Text,
    ToolCall,
    ToolResult,
    Unknown,
)
from perdure.wire.arguments import value_of
from perdure.wire.content import SILENCE, put_content, spoken
from perdure.wire.keep import Group, runs_of
from perdure.wire.media import arguments_of, is_image, stand_in, to_base64
from perdure.wire.messages.form import IMAGES, PDF, WIRE, is_string
from perdure.wire.notes import fields_of, notes_of
from perdure.wire.plain import Item, verbatim

_SYSTEM = ("system", "developer")


def split(messages: Iterable[Message]) -> tuple[list[Message], list[Message]]:
    every = list(messages)
    leading = list(takewhile(_stands_outside, every))
    return leading, every[len(leading) :]


def _stands_outside(message: Message) -> bool:
    if message.role == "event":
        return True
    return message.role in _SYSTEM and "place" not in notes_of(message.native, WIRE)


def system_of(messages: Sequence[Message]) -> Any:
    said = [message for message in messages if message.role in _SYSTEM]
    item: Item = {}
    if len(said) == 1 and said[0].wire == WIRE:
        form = notes_of(said[0].native, WIRE).get("content")
        put_content(item, _blocks(said[0], "system"), form, string=True, nothing="list")
    else:
        blocks = [block for message in said for block in _blocks(message, "system")]
        put_content(item, blocks, None, string=True, nothing="null")
    return item["content"]


def system_groups(messages: Iterable[Message]) -> list[Group]:
    """System text as messages, a role that only some models take but that can hold more."""
    return [Group([message], _items([message], "system")) for message in messages]


def groups_of(messages: Iterable[Message]) -> list[Group]:
    """One wire message each, but one for neighbours that hold a reply's results."""
    return [Group(run, _items(run, _role(run[0]))) for run in runs_of(messages, _joins)]


def _joins(message: Message, run: list[Message]) -> bool:
    return message.role == run[0].role == "tool" and message.wire != WIRE and run[0].wire != WIRE


def _role(message: Message) -> str:
    if message.role == "assistant":
        return "assistant"
    if message.role == "system" and "place" in notes_of(message.native, WIRE):
        return "system"
    return "user"  # also for system text in mid-conversation, which few models take as such


def _items(run: list[Message], role: str) -> list[Item]:
    first = run[0]
    if first.role == "event":
        return []
    blocks = [block for message in run for block in _blocks(message, role)]
    if first.wire == WIRE and (blocks or not first.parts):
        item = {"role": role, **fields_of(first.native, WIRE)}
        form = notes_of(first.native, WIRE).get("content")
        put_content(item, blocks, form, string=is_string(role), nothing="list")
        return [item]
    if not blocks:
        return []
    item = {"role": role}
    # Results answer the message before; the API wants them ahead of everything else.
    blocks.sort(key=lambda block: isinstance(block, dict) and block.get("type") != "tool_result")
    put_content(item, blocks, None, string=is_string(role), nothing="list")
    return [item]


def _blocks(message: Message, role: str) -> list[Any]:
    if message.role == "event":
        return []
    own = message.wire == WIRE
    return spoken(_block(part, role, own=own) for part in message.parts)


def _block(part: Part, role: str, *, own: bool) -> Any:
    if isinstance(part, Text):
        # The API refuses blank text, where others do not mind.
        return _text(part) if own or part.text.strip() else SILENCE
    if isinstance(part, ToolResult):
        return _tool_result(part, own=own)
    if isinstance(part, ToolCall):
        return _tool_use(part) if own or role == "assistant" else SILENCE
    if isinstance(part, Reasoning):
        return _thinking(part) if own else SILENCE
    if isinstance(part, Unknown):
        return verbatim(part) if part.wire == WIRE else SILENCE
    if isinstance(part, Media):
        block = _media(part, own=own) if own or role == "user" else None
        return block or {"type": "text", "text": stand_in(part)}
    return {"type": "text", "text": stand_in(part)}


def _text(part: Text) -> Item:
    return {"type": "text", "text": part.text, **fields_of(part.native, WIRE)}


def _tool_use(call: ToolCall) -> Item:
    return {
        "type": "tool_use",
        "id": call.id,
        "name": call.name,
        "input": value_of(arguments_of(call), objects=True),
        **fields_of(call.native, WIRE),
    }


def _tool_result(result: ToolResult, *, own: bool) -> Item:
    item: Item = {"type": "tool_result", "tool_use_id": result.call}
    blocks = spoken(_block(part, "user", own=own) for part in result.content)
    form = notes_of(result.native, WIRE).get("content")
    put_content(item, blocks, form, string=True, nothing="absent")
    item.update(fields_of(result.native, WIRE))
    if result.is_error:
        item["is_error"] = True
    return item


def _thinking(part: Reasoning) -> Item:
    fields = fields_of(part.native, WIRE)
    if part.encrypted is not None:
        return {"type": "redacted_thinking", "data": part.encrypted, **fields}
    item: Item = {"type": "thinking", "thinking": part.text, **fields}
    if part.signature is not None:
        item["signature"] = part.signature
    return item


def _media(media: Media, *, own: bool) -> Item | None:
    kind = "image" if is_image(media) else "document"
    source = _source(media, kind, own=own)
    if source is None:
        return None
    fields = fields_of(media.native, WIRE)
    return {"type": kind, **fields, "source": {**source, **fields.get("source", {})}}


def _source(media: Media, kind: str, *, own: bool) -> Item | None:
    if media.data is not None:
        if own and "source" not in notes_of(media.native, WIRE):
            taken = True
        else:
            taken = media.media_type in IMAGES or media.media_type == PDF
        if taken:
            data = to_base64(media.data)
            return {"type": "base64", "media_type": media.media_type, "data": data}
        return _text_source(media, own=own)
    if media.url is not None:
        taken = own or media.url.startswith(("http:", "https:"))
        taken = taken and (kind == "image" or media.media_type == PDF)
        return {"type": "url", "url": media.url} if taken else None
    if media.file_id is not None and own:
        return {"type": "file", "file_id": media.file_id}
    return None


def _text_source(media: Media, *, own: bool) -> Item | None:
    if not media.media_type.startswith("text/") or media.data is None:
        return None
    try:
        text = media.data.decode()
    except UnicodeDecodeError:
        return None
    if not own and not text.strip():
        return None
    # The API knows one type of text.
    return {"type": "text", "media_type": "text/plain", "data": text}
