"""Canonical messages to the AI SDK's UI messages."""

from __future__ import annotations

from collections.abc import Iterable
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
from perdure.wire.content import SILENCE, spoken
from perdure.wire.keep import Group, runs_of
from perdure.wire.media import arguments_of, stand_in, to_base64, to_url
from perdure.wire.notes import fields_of, notes_of
from perdure.wire.plain import Item, verbatim
from perdure.wire.ui.form import DENIED, DYNAMIC, STATIC, STEP, WIRE
from perdure.wire.ui.model import write_model_message


def groups_of(messages: Iterable[Message]) -> list[Group]:
    """One UI message for each user message, and one for all the steps of a reply."""
    used: set[str] = set()
    return [Group(run, _items(run, used)) for run in runs_of(messages, _joins)]


def _joins(message: Message, run: list[Message]) -> bool:
    said = [before for before in run if before.role != "event"]
    if not said or said[0].role not in {"assistant", "tool"} or _is_model(said[0]):
        return False
    if message.role not in {"assistant", "tool"} or _is_model(message) or _user_parts(said[-1]):
        return False
    if message.wire == WIRE:
        return "goes_on" in notes_of(message.native, WIRE)
    return message.role == "tool" or said[-1].role == "tool" or _is_piece(message, said[-1])


def _is_piece(message: Message, before: Message) -> bool:
    return message.role == before.role == "assistant" and message.id == before.id != ""


def _is_model(message: Message) -> bool:
    return "model" in notes_of(message.native, WIRE)


def _user_parts(message: Message) -> list[Part]:
    if message.role != "tool":
        return []
    return [
        part for part in message.parts if not isinstance(part, ToolResult | ToolCall | Reasoning)
    ]


def _items(run: list[Message], used: set[str]) -> list[Item]:
    said = [message for message in run if message.role != "event"]
    if not said:
        return []
    first = said[0]
    if _is_model(first):
        return [write_model_message(first)]
    if first.role not in {"assistant", "tool"}:
        parts = spoken(_block(part) for part in first.parts)
        role = "user" if first.role == "user" else "system"
        return [_item(first, role, parts, used)] if parts or first.wire == WIRE else []
    parts = _reply(said)
    items = []
    if parts or (first.wire == WIRE and not first.parts):
        items.append(_item(first, "assistant", parts, used))
    # Only the last message of a run may have such, or there would be two runs.
    others = spoken(_block(part) for part in _user_parts(said[-1]))
    if others:
        items.append({"id": _new_id("", used), "role": "user", "parts": others})
    return items


def _item(message: Message, role: str, parts: list[Item], used: set[str]) -> Item:
    notes = notes_of(message.native, WIRE)
    if message.wire != WIRE or "goes_on" in notes or message.role == "tool":
        return {"id": _new_id(message.id, used), "role": role, "parts": parts}
    used.add(message.id)
    item: Item = {"id": message.id, "role": role, "parts": parts}
    if "no_id" in notes:
        del item["id"]
    return item | fields_of(message.native, WIRE)


def _new_id(name: str, used: set[str]) -> str:
    if not name or name in used:
        name = f"{name or 'message'}-{len(used)}"
    while name in used:
        name += "-"
    used.add(name)
    return name


def _reply(messages: list[Message]) -> list[Item]:
    parts: list[Item] = []
    waiting: dict[str, Item] = {}
    reply = ""  # which the last parts are a piece of
    for message in messages:
        if message.role == "assistant" and message.wire != WIRE:
            if parts and not (reply and message.id == reply):
                parts.append({"type": STEP})
            reply = message.id
        for part in message.parts:
            if isinstance(part, ToolCall):
                waiting[part.id] = _call(part)
                parts.append(waiting[part.id])
            elif isinstance(part, ToolResult):
                call = waiting.pop(part.call, None)
                if call is None:  # its call is not here; the part must say both
                    call = {"type": DYNAMIC, "toolName": part.name, "toolCallId": part.call}
                    call["input"] = {}
                    parts.append(call)
                _put_result(call, part)
            elif message.role == "assistant":
                parts += spoken([_block(part)])
    return parts


def _call(call: ToolCall) -> Item:
    notes = notes_of(call.native, WIRE)
    if notes.get("static"):
        item: Item = {"type": f"{STATIC}{call.name}"}
    else:
        item = {"type": DYNAMIC, "toolName": call.name}
    item |= {"toolCallId": call.id, "state": notes.get("state", "input-available")}
    if not notes.get("no_input"):
        item["input"] = value_of(arguments_of(call), objects=False)
    return item | fields_of(call.native, WIRE)


def _put_result(call: Item, result: ToolResult) -> None:
    if notes_of(result.native, WIRE).get("state") == DENIED and call.get("state") == DENIED:
        return
    value = output_of(result)
    if result.is_error:
        call |= {"state": "output-error", "errorText": value if isinstance(value, str) else ""}
        if not isinstance(value, str):
            call["errorText"] = result.text
    else:
        call |= {"state": "output-available", "output": value}


def output_of(result: ToolResult) -> Any:
    how = notes_of(result.native, WIRE).get("output")
    parts = result.content
    if not parts:
        return ""
    if len(parts) == 1:
        part = parts[0]
        if how == "json" and isinstance(part, Text):
            try:
                return parsed(part.text)
            except (ValueError, RecursionError):
                return part.text
        if how == "unknown" and isinstance(part, Unknown):
            return verbatim(part)
        if isinstance(part, Text) and how != "content":
            return part.text
    return {"type": "content", "value": [block for part in parts for block in _content(part)]}


def _content(part: Text | Media | ArtifactPointer | Unknown) -> list[Item]:
    if isinstance(part, Text):
        return [{"type": "text", "text": part.text}]
    if isinstance(part, Media) and part.data is not None:
        data = to_base64(part.data)
        return [{"type": "media", "data": data, "mediaType": part.media_type}]
    if isinstance(part, Unknown):
        return []
    return [{"type": "text", "text": stand_in(part)}]


def _block(part: Part) -> Any:
    if isinstance(part, Text):
        return {"type": "text", "text": part.text, **fields_of(part.native, WIRE)}
    if isinstance(part, Reasoning):
        text = part.text or "\n\n".join(part.summary)
        if not text and WIRE not in part.native:
            return SILENCE
        return {"type": "reasoning", "text": text, **fields_of(part.native, WIRE)}
    if isinstance(part, Unknown):
        return verbatim(part) if part.wire == WIRE else SILENCE
    if isinstance(part, Media):
        url = to_url(part)
        if url is not None:
            item: Item = {
                "type": "file",
                "mediaType": part.media_type or "application/octet-stream",
            }
            if part.filename:
                item["filename"] = part.filename
            return item | {"url": url} | fields_of(part.native, WIRE)
        return {"type": "text", "text": stand_in(part)}
    if isinstance(part, ArtifactPointer):
        return {"type": "text", "text": stand_in(part)}
    return SILENCE
