"""Canonical messages to Responses items."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import takewhile
from typing import Any

from perdure.core.messages import (
    ArtifactPointer,
    Media,
    Message,
    Part,
    Reasoning,
    Text,
    ToolCall,
    ToolResult,
    Unknown,
)
from perdure.wire.arguments import parsed, value_of
from perdure.wire.content import SILENCE, put_content, spoken
from perdure.wire.keep import Group, items_of
from perdure.wire.media import arguments_of, is_image, stand_in, to_base64, to_url
from perdure.wire.notes import fields_of, notes_of
from perdure.wire.plain import Item, verbatim
from perdure.wire.responses.form import CALLS, OUTPUTS, WIRE, side_of, text_type

_SYSTEM = ("system", "developer")
_AUDIO = {"audio/mpeg": "mp3", "audio/mp3": "mp3", "audio/wav": "wav", "audio/x-wav": "wav"}


def split(messages: Iterable[Message]) -> tuple[list[Message], list[Message]]:
    every = list(messages)
    leading = list(takewhile(_stands_outside, every))
    return leading, every[len(leading) :]


def _stands_outside(message: Message) -> bool:
    if message.role == "event" or notes_of(message.native, WIRE).get("place") == "instructions":
        return True
    return message.role in _SYSTEM and message.wire != WIRE


def instructions_of(messages: Sequence[Message]) -> Any:
    if any(notes_of(message.native, WIRE).get("listed") for message in messages):
        return items_of(groups_of(messages))
    said = [message for message in messages if message.role != "event"]
    texts = [
        part.text if isinstance(part, Text) else stand_in(part)
        for message in said
        for part in message.parts
        if isinstance(part, Text | ArtifactPointer | Media)
    ]
    return "\n\n".join(texts) if said else None


def input_of(messages: Sequence[Message]) -> Any:
    if len(messages) == 1 and notes_of(messages[0].native, WIRE).get("place") == "input":
        parts = messages[0].parts
        if not parts:
            return ""
        if len(parts) == 1 and isinstance(parts[0], Text):
            return parts[0].text
    return items_of(groups_of(messages))


def groups_of(messages: Iterable[Message]) -> list[Group]:
    every = list(messages)
    # An output is of its call's kind, also if it came from elsewhere.
    kinds = {
        call.id: CALLS[kind].output
        for message in every
        if message.role == "assistant"
        for call in message.calls
        if (kind := notes_of(call.native, WIRE).get("type")) in CALLS
    }
    return [Group([message], _items(message, kinds)) for message in every]


def _items(message: Message, kinds: dict[str, str]) -> list[Item]:
    if message.role == "event":
        return []
    if message.role == "assistant":
        return _reply(message, kinds)
    items: list[Item] = []
    others: list[Part] = []
    for part in message.parts:
        if isinstance(part, ToolResult):
            items.append(_output(part, kinds, own=message.wire == WIRE))
        elif message.role == "tool" and isinstance(part, Unknown):
            if part.wire == WIRE and side_of(verbatim(part)):
                items.append(verbatim(part))
        else:
            others.append(part)
    said = _spoken(message, others)
    return items if said is None else [*items, said]


def _spoken(message: Message, parts: list[Part]) -> Item | None:
    own = message.wire == WIRE and message.role != "tool"
    role = "user" if message.role == "tool" else message.role
    notes = notes_of(message.native, WIRE) if own else {}
    blocks = spoken(_block(part, role, own=own) for part in parts)
    if not blocks and (message.parts or not own):
        return None  # what it holds has no place here
    item: Item = {"role": role} if notes.get("typeless") else {"type": "message", "role": role}
    _put(item, blocks, notes.get("content"), role)
    if own:
        item.update(fields_of(message.native, WIRE))
    return item


def _put(item: Item, blocks: list[Any], form: str | None, role: str) -> None:
    if form == "text" and len(blocks) == 1 and _is_bare(blocks[0], role):
        item["content"] = blocks[0]["text"]
    else:
        put_content(item, blocks, None if form == "text" else form, string=False, nothing="list")


def _is_bare(block: Any, role: str) -> bool:
    return isinstance(block, dict) and block == {
        "type": text_type(role),
        "text": block.get("text"),
    }


def _reply(message: Message, kinds: dict[str, str]) -> list[Item]:
    own = message.wire == WIRE
    items: list[Item] = []
    speaking: Item | None = None  # the message item that takes up further texts
    for part in message.parts:
        if isinstance(part, Text | ArtifactPointer | Media):
            opening = notes_of(part.native, WIRE).get("item")
            if speaking is None or opening is not None:
                speaking = _opened(opening or {}, part)
                items.append(speaking)
            if isinstance(speaking["content"], list):
                speaking["content"].append(_block(part, "assistant", own=False))
            if opening is not None and opening.get("string"):
                speaking = None
            continue
        item = _reply_item(part, kinds, own=own)
        if item is not None:
            items.append(item)
            speaking = None
    return items


def _opened(opening: Item, part: Text | ArtifactPointer | Media) -> Item:
    item: Item = {"role": "assistant", **opening.get("fields", {})}
    if not opening.get("typeless"):
        item = {"type": "message", **item}
    item["content"] = part.text if opening.get("string") and isinstance(part, Text) else []
    return item


def _reply_item(part: Part, kinds: dict[str, str], *, own: bool) -> Any:
    if isinstance(part, ToolCall):
        return _call(part)
    if isinstance(part, Reasoning):
        return _reasoning(part) if own else None
    if isinstance(part, ToolResult):
        return _output(part, kinds, own=own)
    if isinstance(part, Unknown) and part.wire == WIRE and side_of(verbatim(part)):
        return verbatim(part)
    return None


def _reasoning(part: Reasoning) -> Item:
    fields = fields_of(part.native, WIRE)
    summary = [{"type": "summary_text", "text": text} for text in part.summary]
    item: Item = {"type": "reasoning", "summary": summary, **fields}
    if part.text and "content" not in fields:
        item["content"] = [{"type": "reasoning_text", "text": part.text}]
    if part.encrypted is not None:
        item["encrypted_content"] = part.encrypted
    return item


def _call(call: ToolCall) -> Item:
    kind = notes_of(call.native, WIRE).get("type", "function_call")
    form = CALLS[kind]
    item: Item = {"type": kind, "call_id": call.id}
    if form.name is None:
        item |= {"name": call.name, form.key: arguments_of(call)}
    else:
        item[form.key] = value_of(arguments_of(call), objects=True)
    return item | fields_of(call.native, WIRE)


def _output(result: ToolResult, kinds: dict[str, str], *, own: bool) -> Item:
    notes = notes_of(result.native, WIRE)
    kind = notes.get("type") or ("" if own else kinds.get(result.call)) or "function_call_output"
    item: Item = {"type": kind, OUTPUTS[kind]: result.call}
    how = notes.get("output")
    value = _whole(result, how)
    if value is not None:
        item["output"] = value
    else:
        blocks = spoken(_block(part, "tool", own=own) for part in result.content)
        if how in {None, "text"} and len(blocks) == 1 and blocks[0] == _bare(result):
            item["output"] = blocks[0]["text"]
        else:
            put_content(item, blocks, how, string=False, nothing="empty", name="output")
    return item | fields_of(result.native, WIRE)


def _bare(result: ToolResult) -> Item:
    part = result.content[0]
    words = part.text if isinstance(part, Text) else ""
    if isinstance(part, ArtifactPointer | Media):
        words = stand_in(part)
    return {"type": "input_text", "text": words}


def _whole(result: ToolResult, how: str | None) -> Any:
    if len(result.content) != 1:
        return None
    part = result.content[0]
    if how == "json" and isinstance(part, Text):
        try:
            return parsed(part.text)
        except (ValueError, RecursionError):
            return None
    if how == "screenshot" and isinstance(part, Media):
        place = {"image_url": to_url(part)} if part.file_id is None else {"file_id": part.file_id}
        return {"type": "computer_screenshot", **place, **fields_of(part.native, WIRE)}
    return None


def _block(part: Part, role: str, *, own: bool) -> Any:
    usual = text_type(role)
    if isinstance(part, Text):
        kind = notes_of(part.native, WIRE).get("type", usual)
        key = "refusal" if kind == "refusal" else "text"
        return {"type": kind, key: part.text, **fields_of(part.native, WIRE)}
    if isinstance(part, ArtifactPointer):
        return {"type": usual, "text": stand_in(part)}
    if isinstance(part, Media):
        block = _media(part, own=own) if own or role in {"user", "tool"} else None
        return block or {"type": usual, "text": stand_in(part)}
    if isinstance(part, Unknown) and part.wire == WIRE:
        return verbatim(part)
    return SILENCE


def _media(media: Media, *, own: bool) -> Item | None:
    fields = fields_of(media.native, WIRE)
    url = to_url(media)
    place: Item | None
    if is_image(media):
        kind, place = "input_image", {"image_url": url} if url is not None else None
        if place is not None and not own:
            place["detail"] = "auto"
    elif media.media_type in _AUDIO and media.data is not None:
        inner = {"data": to_base64(media.data), "format": _AUDIO[media.media_type]}
        return {"type": "input_audio", "input_audio": inner, **fields}
    elif media.data is not None:
        kind, place = "input_file", {"file_data": url}
    else:
        kind, place = "input_file", {"file_url": url} if url is not None else None
    if place is None and media.file_id is not None and own:
        place = {"file_id": media.file_id}
    if place is None:
        return None
    name = {"filename": media.filename} if media.filename and kind == "input_file" else {}
    return {"type": kind, **place, **name, **fields}
