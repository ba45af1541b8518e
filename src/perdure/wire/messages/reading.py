"""Anthropic Messages to canonical messages."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

from msgspec.structs import replace

from perdure.core.messages import (
    Media,
    Message,
    Part,
    Reasoning,
    Role,
    Text,
    ToolCall,
    ToolResult,
    Unknown,
    Usage,
)
from perdure.wire.arguments import text_of
from perdure.wire.content import Where, content_of, count, no_message, usual_form
from perdure.wire.keep import KEPT, decode_kept
from perdure.wire.media import IMAGE, from_base64, is_image
from perdure.wire.messages.form import PDF, PLAIN, WIRE, is_string
from perdure.wire.notes import NOTES, native, rest
from perdure.wire.plain import Item, kind_of, role_of

_ROLES = frozenset({"user", "assistant", "system"})
_MESSAGE = ("role", "content")
#: Fields of a response that have a canonical place, or none worth keeping.
_RESPONSE = (*_MESSAGE, "id", "type", "model", "usage")


def read_body(bodies: list[Item]) -> tuple[Message, ...]:
    (body,) = bodies
    messages = read_messages(body["messages"])
    if body.get("system") is None:
        return messages
    parts, form = content_of(body, ("the body", 0), _part, "system")
    return (
        _noted(Message("system", tuple(parts), wire=WIRE), "system", parts, form, {}),
        *messages,
    )


def read_messages(items: list[Any]) -> tuple[Message, ...]:
    messages: list[Message] = []
    for at, item in enumerate(items):
        if isinstance(item, dict) and KEPT in item:
            return decode_kept(items, read_messages)
        messages.append(_message(item, ("messages", at)))
    return tuple(messages)


def _message(item: Any, where: Where) -> Message:
    role = role_of(item)
    if role not in _ROLES:
        raise no_message(where, item, "Anthropic roles are user, assistant and system.")
    parts, form = content_of(item, where, _part)
    if len(item) == 2 and role != "system" and form == _usual(role, parts):
        return Message(_canonical(role, parts), tuple(parts), wire=WIRE)
    if _is_response(item):
        message = Message(
            cast("Role", role),
            tuple(parts),
            id=item["id"] if isinstance(item.get("id"), str) else "",
            model=item["model"] if isinstance(item.get("model"), str) else "",
            usage=usage_of(item.get("usage")),
            wire=WIRE,
        )
        said = rest(item, _RESPONSE)
        return _noted(message, role, parts, form, {}, response=said or None)
    message = Message(_canonical(role, parts), tuple(parts), wire=WIRE)
    # In the list, unlike a body's own system text, which stands outside of it.
    place = "list" if role == "system" else None
    return _noted(message, role, parts, form, rest(item, _MESSAGE), place=place)


def _usual(role: str, parts: list[Part]) -> str:
    return usual_form(parts, string=is_string(role), nothing="list")


def _noted(
    message: Message, role: str, parts: list[Part], form: str, fields: Item, **notes: Any
) -> Message:
    noted = None if form == _usual(role, parts) else form
    kept = native(WIRE, fields, content=noted, **notes)
    return replace(message, native=kept) if kept else message


def _canonical(role: str, parts: list[Part]) -> Role:
    if role == "user" and any(type(part) is ToolResult for part in parts):
        return "tool"
    return cast("Role", role)


def _is_response(item: Item) -> bool:
    return item["role"] == "assistant" and (item.get("type") == "message" or "stop_reason" in item)


def usage_of(usage: Any) -> Usage | None:
    """Input includes what came from the cache."""
    if not isinstance(usage, dict):
        return None
    fresh = count(usage, "input_tokens")
    read = count(usage, "cache_read_input_tokens")
    written = count(usage, "cache_creation_input_tokens")
    return Usage(
        input=None if fresh is None else fresh + (read or 0) + (written or 0),
        output=count(usage, "output_tokens"),
        cache_read=read,
        cache_write=written,
        reasoning=count(usage, "output_tokens_details", "thinking_tokens"),
        native=usage,
    )


# Blocks.


def _part(block: Any) -> Part:
    if isinstance(block, dict) and NOTES not in block:
        read = _BLOCKS.get(kind_of(block))
        part = read(block) if read is not None else None
        if part is not None:
            return part
    return Unknown(WIRE, block)


def _text(block: Item) -> Part | None:
    if not isinstance(block.get("text"), str):
        return None
    if len(block) == 2:
        return Text(block["text"])
    return Text(block["text"], native=native(WIRE, rest(block, ("type", "text"))))


def _thinking(block: Item) -> Part | None:
    text, signature = block.get("thinking"), block.get("signature")
    if not isinstance(text, str) or not (isinstance(signature, str) or "signature" not in block):
        return None
    fields = rest(block, ("type", "thinking", "signature"))
    return Reasoning(text, signature=signature, native=native(WIRE, fields))


def _redacted(block: Item) -> Part | None:
    if not isinstance(block.get("data"), str):
        return None
    fields = rest(block, ("type", "data"))
    return Reasoning(encrypted=block["data"], native=native(WIRE, fields))


def _tool_use(block: Item) -> Part | None:
    call, name, value = block.get("id"), block.get("name"), block.get("input")
    if not (isinstance(call, str) and isinstance(name, str) and isinstance(value, dict)):
        return None
    try:
        arguments = text_of(value, objects=True)
    except (TypeError, ValueError, RecursionError):
        return None
    if len(block) == 4:
        return ToolCall(call, name, arguments)
    fields = rest(block, ("type", "id", "name", "input"))
    return ToolCall(call, name, arguments, native=native(WIRE, fields))


def _tool_result(block: Item) -> Part | None:
    call, content = block.get("tool_use_id"), block.get("content")
    if not isinstance(call, str) or not isinstance(content, str | list | None):
        return None
    parts, form = content_of(block, ("content", 0), _part)
    if any(isinstance(part, Reasoning | ToolCall | ToolResult) for part in parts):
        return None
    fields = rest(block, ("type", "tool_use_id", "content"))
    is_error = fields.get("is_error") is True
    if is_error:
        del fields["is_error"]
    usual = usual_form(parts, string=True, nothing="absent")
    noted = native(WIRE, fields, content=None if form == usual else form)
    return ToolResult(call, cast("Any", tuple(parts)), is_error=is_error, native=noted)


def _media(block: Item) -> Part | None:
    kind, source = block["type"], block.get("source")
    media_type = IMAGE if kind == "image" else ""
    if not isinstance(source, dict):
        return None
    fields = rest(block, ("type", "source"))
    form, note = source.get("type"), None
    media: Media | None = None
    if form == "base64" and isinstance(source.get("media_type"), str):
        known = {"type", "media_type", "data"}
        data = from_base64(source.get("data"))
        media = None if data is None else Media(source["media_type"], data=data)
    elif form == "text" and isinstance(source.get("data"), str):
        known = {"type", "media_type", "data"}
        note = "text"
        is_plain = source.get("media_type") == PLAIN
        media = Media(PLAIN, data=source["data"].encode()) if is_plain else None
    elif form == "url" and isinstance(source.get("url"), str):
        known = {"type", "url"}
        media = Media(media_type or PDF, url=source["url"])
    elif form == "file" and isinstance(source.get("file_id"), str):
        known = {"type", "file_id"}
        media = Media(media_type, file_id=source["file_id"])
    else:
        return None
    if media is None or is_image(media) != (kind == "image"):
        return None
    if len(source) > len(known):
        fields["source"] = rest(source, known)
    return replace(media, native=native(WIRE, fields, source=note))


_BLOCKS: dict[str, Callable[[Item], Part | None]] = {
    "text": _text,
    "thinking": _thinking,
    "redacted_thinking": _redacted,
    "tool_use": _tool_use,
    "tool_result": _tool_result,
    "image": _media,
    "document": _media,
}
