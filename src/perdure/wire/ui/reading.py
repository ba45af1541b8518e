"""The AI SDK's UI messages to canonical messages.

A UI reply holds all its steps, with results inside the calls. It becomes the messages that were
exchanged: the model's, then the tools', step by step. The first has the reply's id, the others a
note that they continue it.
"""

from __future__ import annotations

from typing import Any, cast

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
)
from perdure.wire.arguments import text_of
from perdure.wire.content import Where, no_message
from perdure.wire.keep import decode_kept
from perdure.wire.media import from_base64, from_url
from perdure.wire.notes import NOTES, native, rest
from perdure.wire.plain import Item, kind_of, role_of
from perdure.wire.ui.form import (
    DENIED,
    DYNAMIC,
    NOT_RUN,
    OUTPUTS,
    PLACE,
    STATIC,
    STEP,
    WIRE,
    is_model_message,
)
from perdure.wire.ui.model import read_model_message

_ROLES = frozenset({"system", "user", "assistant"})
_MESSAGE = ("id", "role", "parts")
_TOOL = ("type", "toolCallId", "input", "state")


def read_messages(items: list[Any]) -> tuple[Message, ...]:
    messages: list[Message] = []
    for at, item in enumerate(items):
        where = ("messages", at)
        if not isinstance(item, dict):
            raise no_message(where, item, "A UI message is an object with id, role and parts.")
        if PLACE.find(item) is not None:
            return decode_kept(items, read_messages, PLACE)
        if is_model_message(item):
            messages.append(read_model_message(item, where))
        else:
            messages += _read(item, where)
    return tuple(messages)


def _read(item: Item, where: Where) -> list[Message]:
    role, blocks = role_of(item), item.get("parts")
    if role not in _ROLES or not isinstance(blocks, list):
        raise no_message(
            where, item, "UI messages have a role (system, user, assistant) and parts."
        )
    fields = rest(item, _MESSAGE)
    known = isinstance(item.get("id"), str)
    if not known and "id" in item:
        fields["id"] = item["id"]
    noted = native(WIRE, fields, no_id=None if "id" in item else True)
    name = item["id"] if known else ""
    if role != "assistant":
        parts = tuple(_part(block) for block in blocks)
        return [Message(cast("Role", role), parts, id=name, wire=WIRE, native=noted)]
    steps = _steps(blocks)
    first = Message("assistant", steps[0].parts, id=name, wire=WIRE, native=noted)
    return [first, *steps[1:]]


def _steps(blocks: list[Any]) -> list[Message]:
    on = native(WIRE, {}, goes_on=True)
    messages: list[Message] = []
    parts: list[Part] = []
    results: list[Part] = []
    seen: set[str] = set()

    def close() -> None:
        messages.append(Message("assistant", tuple(parts), wire=WIRE, native=on))
        if results:
            messages.append(Message("tool", tuple(results), wire=WIRE, native=on))
        parts.clear()
        results.clear()

    for block in blocks:
        if parts and isinstance(block, dict) and block.get("type") == STEP:
            close()
        call = _call(block)
        if call is None or call.id in seen:  # two of a name: nobody could tell whose result it is
            parts.append(_part(block))
        else:
            seen.add(call.id)
            parts.append(call)
            result = _result(block, call)
            if result is not None:
                results.append(result)
    if parts or not messages:
        close()
    return messages


def _part(block: Any) -> Part:
    if isinstance(block, dict) and NOTES not in block:
        kind = kind_of(block)
        text = block.get("text")
        if kind == "text" and isinstance(text, str):
            return Text(text, native=native(WIRE, rest(block, ("type", "text"))))
        if kind == "reasoning" and isinstance(text, str):
            return Reasoning(text, native=native(WIRE, rest(block, ("type", "text"))))
        media = _file(block) if kind == "file" else None
        if media is not None:
            return media
    return Unknown(WIRE, block)


def _file(block: Item) -> Media | None:
    url, media_type, name = block.get("url"), block.get("mediaType"), block.get("filename", "")
    if not (isinstance(url, str) and isinstance(media_type, str) and isinstance(name, str)):
        return None
    if not media_type or (not name and "filename" in block):
        return None
    noted = native(WIRE, rest(block, ("type", "url", "mediaType", "filename")))
    media = from_url(url, media_type, name, noted)
    return media if media.media_type == media_type else None


def _call(block: Any) -> ToolCall | None:
    if (
        not isinstance(block, dict)
        or NOTES in block
        or not isinstance(block.get("toolCallId"), str)
    ):
        return None
    kind, state = block.get("type"), block.get("state")
    if not isinstance(kind, str) or not isinstance(state, str):
        return None
    dynamic = kind == DYNAMIC
    name = block.get("toolName") if dynamic else kind.removeprefix(STATIC)
    if not isinstance(name, str) or not (dynamic or kind.startswith(STATIC)):
        return None
    try:
        arguments = text_of(block["input"], objects=False) if "input" in block else ""
    except (TypeError, ValueError, RecursionError):
        return None
    fields = rest(block, (*_TOOL, "toolName") if dynamic else _TOOL)
    has_result = _has_result(block)
    if has_result:
        del fields[OUTPUTS[state]]
    noted = native(
        WIRE,
        fields,
        static=None if dynamic else True,
        state=None if has_result or state == "input-available" else state,
        no_input=None if "input" in block else True,
    )
    return ToolCall(block["toolCallId"], name, arguments, native=noted)


def _has_result(block: Item) -> bool:
    state = block["state"]
    if state == "output-error":
        return isinstance(block.get("errorText"), str)
    return state == "output-available" and "output" in block


def _result(block: Item, call: ToolCall) -> ToolResult | None:
    state = block["state"]
    if state == DENIED:
        approval = block.get("approval")
        reason = approval.get("reason") if isinstance(approval, dict) else None
        text = reason if isinstance(reason, str) and reason else NOT_RUN
        noted = native(WIRE, {}, state=DENIED)
        return ToolResult(call.id, (Text(text),), is_error=True, name=call.name, native=noted)
    if not _has_result(block):
        return None
    value = block[OUTPUTS[state]]
    is_error = state == "output-error"
    if isinstance(value, str):
        content = (Text(value),) if value else ()
        return ToolResult(call.id, content, is_error=is_error, name=call.name)
    content, how = read_output(value)
    noted = native(WIRE, {}, output=how)
    return ToolResult(call.id, content, is_error=is_error, name=call.name, native=noted)


def read_output(value: Any) -> tuple[Any, str]:
    """Of an output that is no string: its parts, if it is content, else JSON as text."""
    if isinstance(value, dict) and value.keys() == {"type", "value"} and value["type"] == "content":
        blocks = value["value"]
        if isinstance(blocks, list) and blocks:
            parts = [_content_part(block) for block in blocks]
            if None not in parts:
                return tuple(parts), "content"
    try:
        return (Text(text_of(value, objects=False)),), "json"
    except (TypeError, ValueError, RecursionError):
        return (Unknown(WIRE, value),), "unknown"


def _content_part(block: Any) -> Text | Media | None:
    if not isinstance(block, dict):
        return None
    if block.keys() == {"type", "text"} and block["type"] == "text":
        return Text(block["text"]) if isinstance(block["text"], str) else None
    if block.keys() == {"type", "data", "mediaType"} and block["type"] == "media":
        data = from_base64(block["data"])
        if data is not None and isinstance(block["mediaType"], str):
            return Media(block["mediaType"], data=data)
    return None
