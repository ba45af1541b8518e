"""Canonical messages to Chat Completions."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
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
from perdure.wire.arguments import value_of
from perdure.wire.chat.form import AUDIO, REASONING, WIRE, media_kind, nothing
from perdure.wire.content import SILENCE, put_content, spoken
from perdure.wire.keep import Group
from perdure.wire.media import arguments_of, stand_in, to_base64, to_url
from perdure.wire.notes import fields_of, notes_of
from perdure.wire.plain import Item, verbatim

#: What the API lets a speaker be called.
_speaker = re.compile(r"[^\s<|\\/>]{1,64}").fullmatch


def groups_of(messages: Iterable[Message]) -> list[Group]:
    return [Group([message], _items(message)) for message in messages]


def _items(message: Message) -> list[Item]:
    if message.role == "event":
        return []
    own = message.wire == WIRE
    results = [_result_item(result, message, own=own) for result in message.results]
    others = [part for part in message.parts if not isinstance(part, ToolResult)]
    if message.role != "tool":
        said = _spoken_item(message, message.role, others, own=own)
    else:  # words that came with the results are the user's
        said = _spoken_item(message, "user", others, own=False)
    if said is None:
        return results
    return [said, *results] if message.role == "assistant" else [*results, said]


def _spoken_item(message: Message, role: str, parts: Sequence[Part], *, own: bool) -> Item | None:
    item: Item = {"role": role}
    fields = fields_of(message.native, WIRE) if own else {}
    if role == "assistant":
        fields, parts = _aside(fields, parts, own=own)
    blocks = spoken(_block(part, role, own=own) for part in parts)
    if not blocks and not fields and (message.parts or not own):
        return None  # what it holds has no place here
    form = notes_of(message.native, WIRE).get("content") if own else None
    put_content(item, blocks, form, string=True, nothing=nothing(role))
    item.update(fields)
    if message.name and (own or (role == message.role and _speaker(message.name))):
        item["name"] = message.name
    return item


def _aside(fields: Item, parts: Sequence[Part], *, own: bool) -> tuple[Item, list[Part]]:
    fields = dict(fields)
    said: list[Part] = []
    calls: list[Item] = []
    for part in parts:
        notes = {} if isinstance(part, Unknown) else notes_of(part.native, WIRE)
        place = notes.get("field")
        if isinstance(part, Reasoning):
            if own:
                name = place or REASONING[0]
                fields[name] = "\n".join(filter(None, (fields.get(name), part.text)))
        elif isinstance(part, ToolCall):
            if place == "function_call" and not part.id and not calls:
                fields[place] = {"name": part.name, "arguments": arguments_of(part)}
            else:
                calls.append(_call_item(part, notes))
        elif isinstance(part, Text) and place == "refusal" and "refusal" not in fields:
            fields["refusal"] = part.text
        elif isinstance(part, Text) and place == "audio" and "audio" in fields:
            pass  # said already, by the sound
        else:
            said.append(part)
    if calls:
        fields["tool_calls"] = calls
    return fields, said


def _call_item(call: ToolCall, notes: Item) -> Item:
    fields = fields_of(call.native, WIRE)
    kind = notes.get("type", "function")
    arguments: Any = arguments_of(call)
    if notes.get("object"):
        arguments = value_of(arguments, objects=True)
    said = {"name": call.name, ("arguments" if kind == "function" else "input"): arguments}
    return {"id": call.id, "type": kind, **fields, kind: {**said, **fields.get(kind, {})}}


def _result_item(result: ToolResult, message: Message, *, own: bool) -> Item:
    notes = notes_of(message.native, WIRE) if own else {}
    has = notes.get("has", ())
    # The older kind of result has no id, and gets none unless a repair gave it one.
    item: Item = {"role": "tool" if result.call else notes.get("role", "tool")}
    if result.call or "tool_call_id" in has or not own:
        item["tool_call_id"] = result.call
    if own and (result.name or "name" in has):
        item["name"] = result.name
    blocks = spoken(_block(part, "tool", own=own) for part in result.content)
    put_content(item, blocks, notes.get("content"), string=True, nothing="empty")
    if own:
        item.update(fields_of(message.native, WIRE))
    return item


def _block(part: Part, role: str, *, own: bool) -> Any:
    if isinstance(part, Text):
        kind = notes_of(part.native, WIRE).get("type", "text")
        return {"type": kind, kind: part.text, **fields_of(part.native, WIRE)}
    if isinstance(part, Unknown):
        return verbatim(part) if part.wire == WIRE else SILENCE
    if isinstance(part, ArtifactPointer):
        return {"type": "text", "text": stand_in(part)}
    if isinstance(part, Media):
        block = _media_block(part, own=own) if own or role == "user" else None
        return block or {"type": "text", "text": stand_in(part)}
    return SILENCE


def _media_block(media: Media, *, own: bool) -> Item | None:
    fields = fields_of(media.native, WIRE)
    kind, url = media_kind(media), to_url(media)
    inner: Item
    if kind == "image_url" and url is not None:
        inner = {"url": url}
    elif kind == "input_audio" and media.data is not None and media.media_type in AUDIO:
        inner = {"data": to_base64(media.data), "format": AUDIO[media.media_type]}
    elif kind == "file" and media.data is not None:
        inner = {"file_data": url}
    elif kind == "file" and media.file_id is not None and own:
        inner = {"file_id": media.file_id}
    else:
        return None
    if kind == "file" and media.filename:
        inner["filename"] = media.filename
    return {"type": kind, **fields, kind: {**inner, **fields.get(kind, {})}}
