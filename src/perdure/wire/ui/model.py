"""The AI SDK's model messages (``CoreMessage``, later ``ModelMessage``): role and content.

Unlike UI messages they have no ``parts``. What came as one goes back as one.
"""

from __future__ import annotations

from typing import Any, cast

from perdure.core.messages import (
    ArtifactPointer,
    Media,
    Message,
    Part,
    Reasoning,
    Role,
    Text,
    ToolCall,
    ToolResult,
    Unknown,
)
from perdure.wire.arguments import parsed, text_of, value_of
from perdure.wire.content import (
    SILENCE,
    Where,
    content_of,
    no_message,
    put_content,
    spoken,
    usual_form,
)
from perdure.wire.media import IMAGE, arguments_of, from_base64, is_image, stand_in, to_base64
from perdure.wire.notes import NOTES, fields_of, native, notes_of, rest
from perdure.wire.plain import Item, kind_of, role_of, verbatim
from perdure.wire.ui.form import NOT_RUN, WIRE

_ROLES = frozenset({"system", "user", "assistant", "tool"})
_ERRORS = {"error-text": "text", "error-json": "json"}


def read_model_message(item: Item, where: Where) -> Message:
    role = role_of(item)
    if role not in _ROLES or "content" not in item:
        raise no_message(where, item, "Model messages have a role and a content.")
    parts, form = content_of(item, where, _part)
    usual = usual_form(parts, string=True, nothing="list")
    noted = native(
        WIRE, rest(item, ("role", "content")), model=True, content=None if form == usual else form
    )
    return Message(cast("Role", role), tuple(parts), wire=WIRE, native=noted)


def _part(block: Any) -> Part:
    if isinstance(block, dict) and NOTES not in block:
        kind, text = kind_of(block), block.get("text")
        if kind == "text" and isinstance(text, str):
            return Text(text, native=native(WIRE, rest(block, ("type", "text"))))
        if kind == "reasoning" and isinstance(text, str):
            return Reasoning(text, native=native(WIRE, rest(block, ("type", "text"))))
        part: Part | None = None
        if kind == "tool-call":
            part = _call(block)
        elif kind == "tool-result":
            part = _result(block)
        elif kind in {"image", "file"}:
            part = _media(block, kind)
        if part is not None:
            return part
    return Unknown(WIRE, block)


def _call(block: Item) -> ToolCall | None:
    key = "input" if "input" in block else "args"  # as it was called before version 5
    call, name = block.get("toolCallId"), block.get("toolName")
    if not isinstance(call, str) or not isinstance(name, str) or key not in block:
        return None
    try:
        arguments = text_of(block[key], objects=False)
    except (TypeError, ValueError, RecursionError):
        return None
    fields = rest(block, ("type", "toolCallId", "toolName", key))
    noted = native(WIRE, fields, key=None if key == "input" else key)
    return ToolCall(call, name, arguments, native=noted)


def _result(block: Item) -> ToolResult | None:
    call, name, output = block.get("toolCallId"), block.get("toolName"), block.get("output")
    if not (isinstance(call, str) and isinstance(name, str) and isinstance(output, dict)):
        return None
    kind, value = kind_of(output), output.get("value")
    fields = rest(block, ("type", "toolCallId", "toolName", "output"))
    left = rest(output, ("type", "value"))
    if left:
        fields["output"] = left
    said = _ERRORS.get(kind, kind)
    content: Any
    if said == "text" and isinstance(value, str):
        content = (Text(value),)
    elif said == "json" and "value" in output:
        try:
            content = (Text(text_of(value, objects=False)),)
        except (TypeError, ValueError, RecursionError):
            return None
    elif kind == "content" and isinstance(value, list):
        content = tuple(_content_part(each) for each in value)
    elif kind == "execution-denied" and "value" not in output:
        reason = output.get("reason")
        content = (Text(reason if isinstance(reason, str) and reason else NOT_RUN),)
    else:
        return None
    return ToolResult(
        call,
        content,
        is_error=kind in _ERRORS or kind == "execution-denied",
        name=name,
        native=native(WIRE, fields, output=None if said == "text" else kind),
    )


def _content_part(block: Any) -> Text | Media | Unknown:
    if isinstance(block, dict):
        if block.keys() == {"type", "text"} and isinstance(block["text"], str):
            return Text(block["text"])
        if block.keys() == {"type", "data", "mediaType"} and isinstance(block["mediaType"], str):
            data = from_base64(block["data"])
            if data is not None and block["type"] in {"media", "image-data", "file-data"}:
                noted = native(WIRE, {}, type=block["type"])
                return Media(block["mediaType"], data=data, native=noted)
    return Unknown(WIRE, block)


def _media(block: Item, kind: str) -> Media | None:
    key = "image" if kind == "image" else "data"
    value, media_type = block.get(key), block.get("mediaType", "")
    name = block.get("filename", "")
    if not (isinstance(value, str) and isinstance(media_type, str) and isinstance(name, str)):
        return None
    typed = "mediaType" in block
    if (typed and not media_type) or (not name and "filename" in block):
        return None
    media_type = media_type or (IMAGE if kind == "image" else "")
    noted = native(
        WIRE,
        rest(block, ("type", key, "mediaType", "filename")),
        type=kind,
        untyped=None if typed else True,
    )
    if value.startswith(("http:", "https:", "data:")):
        return Media(media_type, url=value, filename=name, native=noted)
    data = from_base64(value)
    return None if data is None else Media(media_type, data=data, filename=name, native=noted)


def write_model_message(message: Message) -> Item:
    role = "system" if message.role == "developer" else message.role
    item: Item = {"role": role}
    blocks = spoken(_block(part) for part in message.parts)
    notes = notes_of(message.native, WIRE)
    put_content(item, blocks, notes.get("content"), string=True, nothing="list")
    return item | fields_of(message.native, WIRE)


def _block(part: Part) -> Any:
    if isinstance(part, Unknown):
        return verbatim(part) if part.wire == WIRE else SILENCE
    fields, notes = fields_of(part.native, WIRE), notes_of(part.native, WIRE)
    if isinstance(part, Text | Reasoning):
        kind = "text" if isinstance(part, Text) else "reasoning"
        return {"type": kind, "text": part.text, **fields}
    if isinstance(part, ToolCall):
        value = value_of(arguments_of(part), objects=False)
        named = {"toolCallId": part.id, "toolName": part.name}
        return {"type": "tool-call", **named, notes.get("key", "input"): value, **fields}
    if isinstance(part, ToolResult):
        named = {"toolCallId": part.call, "toolName": part.name}
        output = _output(part, notes.get("output")) | fields.get("output", {})
        return {"type": "tool-result", **named, **fields, "output": output}
    if isinstance(part, ArtifactPointer):
        return {"type": "text", "text": stand_in(part)}
    return _media_block(part, fields, notes)


def _media_block(media: Media, fields: Item, notes: Item) -> Item:
    value = media.url if media.data is None else to_base64(media.data)
    if value is None:
        return {"type": "text", "text": stand_in(media)}
    kind = notes.get("type") or ("image" if is_image(media) else "file")
    item: Item = {"type": kind, ("image" if kind == "image" else "data"): value}
    if not notes.get("untyped"):
        item["mediaType"] = media.media_type or "application/octet-stream"
    if media.filename:
        item["filename"] = media.filename
    return item | fields


def _output(result: ToolResult, how: str | None) -> Item:
    only = result.content[0] if len(result.content) == 1 else None
    if isinstance(only, Text):
        if how == "execution-denied":
            return {"type": how}
        if how in {"json", "error-json"}:
            try:
                return {"type": how, "value": parsed(only.text)}
            except (ValueError, RecursionError):
                pass
    if how != "content" and (result.is_error or isinstance(only, Text) or not result.content):
        kind = "error-text" if result.is_error else "text"
        return {"type": kind, "value": only.text if isinstance(only, Text) else result.text}
    value = spoken(_content_block(part) for part in result.content)
    return {"type": "content", "value": value}


def _content_block(part: Text | Media | ArtifactPointer | Unknown) -> Any:
    if isinstance(part, Text):
        return {"type": "text", "text": part.text}
    if isinstance(part, Unknown):
        return verbatim(part) if part.wire == WIRE else SILENCE
    if isinstance(part, Media) and part.data is not None:
        kind = notes_of(part.native, WIRE).get("type", "media")
        return {"type": kind, "data": to_base64(part.data), "mediaType": part.media_type}
    return {"type": "text", "text": stand_in(part)}
