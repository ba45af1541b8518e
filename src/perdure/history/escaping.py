"""Messages whose text cannot be taken for an element of ours; see `history.tags`.

What a model said is never touched: it would learn to write escapes, and thoughts are signed. In all
that others said, what looks like a tag of ours is escaped wherever a model may read it: texts,
results, documents, blocks of unknown kinds. A view: the log keeps what was said.

Escapes take tokens: who counts what is sent counts this view.
"""

from __future__ import annotations

from typing import Any

from msgspec.structs import replace

from perdure.core.messages import Media, Message, Text, ToolResult, Unknown
from perdure.history.tags import escape


def escaped(message: Message) -> Message:
    """The message; the same object if there is nothing to escape, or if a model said it."""
    if message.role == "assistant":
        return message
    parts = tuple(map(_escaped, message.parts))
    if all(new is old for new, old in zip(parts, message.parts, strict=True)):
        return message
    return replace(message, parts=parts)


def _escaped(part: Any) -> Any:
    if isinstance(part, Text):
        text = escape(part.text)
        return part if text == part.text else replace(part, text=text)
    if isinstance(part, ToolResult):
        content = tuple(map(_escaped, part.content))
        if all(new is old for new, old in zip(content, part.content, strict=True)):
            return part
        return replace(part, content=content)
    if isinstance(part, Unknown):
        data = _escaped_data(part.data)
        return part if data == part.data else replace(part, data=data)
    if isinstance(part, Media) and part.data and part.media_type.startswith("text/"):
        text = part.data.decode(errors="surrogateescape")
        safe = escape(text)
        if safe != text:
            return replace(part, data=safe.encode(errors="surrogateescape"))
    return part


def _escaped_data(data: Any) -> Any:
    if isinstance(data, str):
        return escape(data)
    if isinstance(data, dict):
        return {name: _escaped_data(value) for name, value in data.items()}
    if isinstance(data, list | tuple):
        return [_escaped_data(value) for value in data]
    return data
