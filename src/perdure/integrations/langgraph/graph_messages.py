"""LangChain messages ↔ canonical ones."""

from __future__ import annotations

from typing import Any

from langchain_core.messages import (
    AIMessage,
    BaseMessage,
    ChatMessage,
    FunctionMessage,
    HumanMessage,
    SystemMessage,
    ToolMessage,
)

from perdure.core.messages import Media, Message, Part, Role, Text, ToolCall, ToolResult, Usage
from perdure.integrations.framework_messages import (
    arguments_text,
    fold,
    is_plain,
    parts_of,
    unfold,
)

WIRE = "langchain"
#: Those whose form says all of them. Others, chunks and classes of the user, stay in the state.
_CLASSES: dict[str, type[BaseMessage]] = {
    "human": HumanMessage,
    "ai": AIMessage,
    "tool": ToolMessage,
    "system": SystemMessage,
    "function": FunctionMessage,
    "chat": ChatMessage,
}
_ROLES: dict[str, Role] = {
    "ai": "assistant",
    "tool": "tool",
    "function": "tool",
    "system": "system",
}


def is_messages(value: Any) -> bool:
    """Whether a channel's value is a list of messages that can be turns."""
    return isinstance(value, list) and bool(value) and all(map(_is_known, value))


def has_messages(value: Any) -> bool:
    """Whether there is a message somewhere in a value, so that the value copies words."""
    if isinstance(value, dict):
        return any(map(has_messages, value.values()))
    if isinstance(value, list | tuple | set):
        return any(map(has_messages, value))
    return isinstance(value, BaseMessage)


def to_canonical(message: BaseMessage) -> Message | None:
    """None if its form is no plain data."""
    form = message.model_dump()
    if not is_plain(form):
        return None
    parts: list[Part] = parts_of(message.content)
    role: Role = _ROLES.get(message.type, "user")
    usage = None
    if isinstance(message, AIMessage):
        parts += [
            ToolCall(call["id"] or "", call["name"], arguments_text(call["args"]))
            for call in message.tool_calls
        ]
        usage = _usage(message.usage_metadata)
    elif isinstance(message, ToolMessage):
        content = tuple(part for part in parts if isinstance(part, Text | Media))
        failed = message.status == "error"
        name = message.name or ""
        parts = [ToolResult(message.tool_call_id, content, is_error=failed, name=name)]
    elif isinstance(message, FunctionMessage):
        parts = [ToolResult("", tuple(p for p in parts if isinstance(p, Text)), name=message.name)]
    elif isinstance(message, ChatMessage) and message.role in {"assistant", "system", "developer"}:
        role = message.role
    said = Message(role, tuple(parts), id=message.id or "", usage=usage)
    return fold(said, WIRE, form)


def from_canonical(message: Message) -> BaseMessage | None:
    """None for a message that came another way."""
    form = unfold(message, WIRE)
    return None if form is None else _CLASSES[form["type"]].model_validate(form)


def _is_known(message: Any) -> bool:
    return isinstance(message, BaseMessage) and _CLASSES.get(message.type) is type(message)


def _usage(found: Any) -> Usage | None:
    if not found:
        return None
    details = found.get("input_token_details") or {}
    return Usage(
        input=found.get("input_tokens"),
        output=found.get("output_tokens"),
        cache_read=details.get("cache_read"),
        cache_write=details.get("cache_creation"),
    )
