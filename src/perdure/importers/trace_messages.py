"""Messages in traces: of OpenTelemetry's GenAI conventions, of LangChain, or of an API."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from perdure.core.messages import (
    Media,
    Message,
    Part,
    Reasoning,
    Role,
    Text,
    ToolCall,
    ToolResult,
    Usage,
)
from perdure.importers.importer import kind, word
from perdure.importers.message_parts import as_json, attachment, count, items, mapping
from perdure.importers.transcript_source import Broken, decode
from perdure.wire import decode as decode_wire
from perdure.wire.media import from_base64

_ROLES: dict[str, Role] = {
    "system": "system",
    "developer": "developer",
    "user": "user",
    "human": "user",
    "humanmessage": "user",
    "assistant": "assistant",
    "ai": "assistant",
    "model": "assistant",
    "aimessage": "assistant",
    "tool": "tool",
    "function": "tool",
    "toolmessage": "tool",
    "functionmessage": "tool",
    "systemmessage": "system",
}


def listed(value: Any) -> list[Any]:
    """A list of messages, which may be JSON in a string, or in a list of their own."""
    if isinstance(value, str):
        try:
            value = decode(value.encode("utf-8", "replace"))
        except Broken:
            return [value] if value else []
    if isinstance(value, dict):
        value = value.get("messages", [value])
    if not isinstance(value, list):
        return []
    return [each for one in value for each in (one if isinstance(one, list) else [one])]


def messages_of(
    item: Any, role: str = "user", skip: Callable[[str], object] = str
) -> tuple[Message, ...]:
    """Of one message in any form; of words, with that role. What is not known is told to `skip`.
    Raises `InvalidInput`.
    """
    if isinstance(item, str):
        return (Message(_ROLES.get(role, "user"), (Text(item),)),) if item else ()
    found = mapping(item)
    if isinstance(found.get("parts"), list):
        return (_conventional(found, role, skip),)
    if "kwargs" in found or "role" not in found:
        told = _told_by(found, role)
        if told not in _ROLES:
            skip(f"message: {kind(told)}")
            return ()
        found = _of_langchain(found, _ROLES[told])
    return decode_wire({name: value for name, value in found.items() if value is not None})


def _conventional(message: dict[str, Any], role: str, skip: Callable[[str], object]) -> Message:
    parts = [_part(each, skip) for each in message["parts"]]
    found = _ROLES.get(word(message.get("role")).lower(), _ROLES[role])
    if found == "user" and parts and all(isinstance(part, ToolResult) for part in parts):
        found = "tool"
    name = word(message.get("name"))
    return Message(found, tuple(part for part in parts if part is not None), name=name)


def _part(part: Any, skip: Callable[[str], object]) -> Part | None:
    found = mapping(part)
    what, content = word(found.get("type")), found.get("content")
    media_type = word(found.get("mime_type")) or word(found.get("modality"))
    if isinstance(part, str):
        return Text(part)
    if what in {"tool_call", "server_tool_call"}:
        given = found.get("arguments", found.get("server_tool_call", {}))
        return ToolCall(word(found.get("id")), word(found.get("name")), as_json(given))
    if what in {"tool_call_response", "server_tool_call_response"}:
        names = ("response", "result", "server_tool_call_response")
        told = next((found[name] for name in names if found.get(name) is not None), "")
        return ToolResult(word(found.get("id")), (Text(as_json(told)),))
    if what == "reasoning":
        return Reasoning(word(content))
    if what == "blob" and (data := from_base64(content)) is not None:
        return Media(media_type, data=data)
    if what == "uri":
        return attachment(word(found.get("uri")), media_type)
    if what == "file":
        return Media(media_type, file_id=word(found.get("file_id")))
    if isinstance(content, str) or isinstance(found.get("text"), str):
        return Text(word(content) or word(found.get("text")))
    skip(f"part: {kind(what)}")
    return None


def _told_by(message: dict[str, Any], role: str) -> str:
    """LangChain's messages are constructors, or say their type."""
    class_name = message["id"][-1] if isinstance(message.get("id"), list) and message["id"] else ""
    type_name = word(_fields(message).get("type")) or word(message.get("type"))
    return str(class_name or type_name or role).lower().removesuffix("chunk")


def _fields(message: dict[str, Any]) -> dict[str, Any]:
    return mapping(message.get("kwargs")) or mapping(message.get("data")) or message


def _of_langchain(message: dict[str, Any], role: Role) -> dict[str, Any]:
    """As an API would have it."""
    kwargs = _fields(message)
    calls = [_call(call) for call in items(kwargs.get("tool_calls")) if "args" in call]
    calls = calls or items(mapping(kwargs.get("additional_kwargs")).get("tool_calls"))
    content = kwargs.get("content", kwargs.get("text"))
    if calls and isinstance(content, list):
        content = [each for each in content if mapping(each).get("type") != "tool_use"]
    content = _plain(content)
    return {
        "role": role,
        "content": content if content or not calls else None,
        "tool_calls": calls or None,
        "tool_call_id": word(kwargs.get("tool_call_id")) or None,
        "name": word(kwargs.get("name")) or None,
    }


def _call(call: dict[str, Any]) -> dict[str, Any]:
    given = {"name": word(call.get("name")), "arguments": as_json(call.get("args", {}))}
    return {"id": word(call.get("id")), "type": "function", "function": given}


def _plain(content: Any) -> Any:
    """Blocks of nothing but text are one string: then every API's form is the same."""
    if isinstance(content, list) and all(
        isinstance(each, str) or (mapping(each).get("type") == "text") for each in content
    ):
        return "\n".join(
            each if isinstance(each, str) else word(each.get("text")) for each in content
        )
    return content


def usage_of(found: dict[str, Any]) -> Usage | None:
    """Under any of the names that conventions gave them."""

    def first(*names: str) -> int | None:
        counts = (count(_number(found.get(name))) for name in names)
        return next((each for each in counts if each is not None), None)

    usage = Usage(
        input=first("input_tokens", "prompt_tokens"),
        output=first("output_tokens", "completion_tokens"),
        cache_read=first("cache_read.input_tokens", "cache_read_input_tokens", "cache_read"),
        cache_write=first("cache_creation.input_tokens", "cache_creation_input_tokens"),
        reasoning=first("reasoning.output_tokens", "reasoning_tokens", "reasoning"),
    )
    return None if usage == Usage() else usage


def _number(value: Any) -> Any:
    return int(value) if isinstance(value, str) and value.isdigit() else value


def system_of(value: Any) -> Iterator[str]:
    """Instructions beside the messages: words, or parts of them."""
    for each in listed(value):
        text = each if isinstance(each, str) else mapping(each).get("content")
        if isinstance(text, str) and text:
            yield text
