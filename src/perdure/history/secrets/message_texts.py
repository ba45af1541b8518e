"""Finds the texts in messages, each with what precedes it (the key of a JSON value, the option
before an argument): that alone may tell that a value is a secret.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import msgspec

from perdure.core.messages import (
    ArtifactPointer,
    Media,
    Message,
    Part,
    Reasoning,
    Text,
    ToolCall,
    ToolResult,
)

#: In a provider's own data: names that it gave, and what it alone can read. A change voids them.
UNTOUCHED = frozenset(
    {
        "id",
        "call_id",
        "item_id",
        "tool_use_id",
        "tool_call_id",
        "response_id",
        "previous_response_id",
        "file_id",
        "container_id",
        "signature",
        "thought_signature",
        "thoughtSignature",
        "encrypted",
        "encrypted_content",
    }
)
_MAY_BE_JSON = re.compile(r'\s*["{\[]')


def texts_of(messages: Iterable[Message]) -> list[str]:
    texts: list[str] = []
    for message in messages:
        for part in message.parts:
            _add_texts(part, texts)
        if message.native:
            texts += _strings(message.native)
        if message.usage is not None and message.usage.native:
            texts += _strings(message.usage.native)
    return texts


def _add_texts(part: Part, texts: list[str]) -> None:
    if isinstance(part, Text):
        texts.append(part.text)
    elif isinstance(part, ToolResult):
        for inner in part.content:
            _add_texts(inner, texts)
    elif isinstance(part, ToolCall):
        data = decoded(part.arguments)
        texts += [part.arguments] if data is None else _strings(data, untouched=frozenset())
        if part.reference is not None:
            _add_texts(part.reference, texts)
    elif isinstance(part, Reasoning):
        texts.append(part.text)
        texts += part.summary
    elif isinstance(part, ArtifactPointer):
        texts += (part.head, part.filename)
    elif isinstance(part, Media):
        texts += _strings(part.url)
        texts.append(part.filename)
    else:
        texts += _strings(part.data)
        return
    if part.native:
        texts += _strings(part.native)


def _strings(data: Any, untouched: frozenset[str] = UNTOUCHED) -> Iterator[str]:
    waiting: list[tuple[str, Any]] = [("", data)]
    while waiting:
        context, value = waiting.pop()
        if isinstance(value, str):
            if not is_media(value):
                yield after(context, value)
        elif isinstance(value, dict):
            for key, item in value.items():
                yield str(key)
                if not (key in untouched and isinstance(item, str)):
                    waiting.append((named(key), item))
        elif isinstance(value, list | tuple):
            waiting += zip(contexts(value, context), value, strict=True)


def decoded(arguments: str) -> Any:
    """None if they are not JSON, or hold no text."""
    if not _MAY_BE_JSON.match(arguments):
        return None
    try:
        return msgspec.json.decode(arguments)
    except (msgspec.DecodeError, UnicodeEncodeError, RecursionError):
        pass
    try:
        return json.loads(arguments)  # takes NaN and half surrogate pairs, too
    except (ValueError, RecursionError):
        return None


def named(key: Any) -> str:
    return f'{key}": "'


def in_command(value: str) -> str:
    return f" {value} " if value.startswith("--") and len(value) < 40 else ""


def contexts(items: Sequence[Any], context: str) -> Iterator[str]:
    option = ""
    for item in items:
        yield option or context
        option = in_command(item) if isinstance(item, str) else ""


def after(context: str, text: str) -> str:
    """The text in its context. The quote closes what `named` opened."""
    return f'{context}{text}"' if context else text


def is_media(value: str) -> bool:
    return value.startswith("data:") and ";base64," in value[:200]


def as_bytes(text: str) -> bytes:
    return text.encode("utf-8", "surrogatepass")
