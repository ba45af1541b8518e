"""OpenAI Chat Completions and compatible servers.

    decode([{"role": "user", "content": "hi"}])
    decode({"messages": […]})                   # a request
    decode({"choices": […], "usage": {…}})      # a response: the reply, with model and usage

Reasoning (``reasoning_content`` or ``reasoning``) goes back to this format only. Tool messages hold
text only: images in a result become a line that names them.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from perdure.core.errors import InvalidInput
from perdure.core.messages import Message
from perdure.wire.chat.reading import read_messages, read_response
from perdure.wire.chat.rules import violations
from perdure.wire.chat.writing import groups_of
from perdure.wire.keep import items_of, kept_items
from perdure.wire.plain import Item, decoded, plain

__all__ = ["decode", "encode", "encode_body", "violations"]


def decode(items: Any) -> tuple[Message, ...]:
    """Of a list of messages, a request or a response. Raises `InvalidInput`, naming the message."""
    if isinstance(items, list | tuple):
        return decoded(list(items), read_messages)
    body = plain(items)
    if isinstance(body, dict):
        if isinstance(body.get("messages"), list):
            return decoded(body["messages"], read_messages)
        if "choices" in body:
            return decoded([body], read_response)
        if "role" in body:
            return decoded([body], read_messages)
    raise InvalidInput(
        "This is no Chat Completions body.",
        hint='Pass a list of messages, or a body with "messages" or "choices".',
    )


def encode(messages: Iterable[Message], *, keep: bool = False) -> list[Item]:
    """With `keep`, so that `decode` gives exactly these messages back."""
    groups = groups_of(messages)
    return kept_items(groups, read_messages) if keep else items_of(groups)


def encode_body(messages: Iterable[Message], *, keep: bool = False) -> Item:
    return {"messages": encode(messages, keep=keep)}
