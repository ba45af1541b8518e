"""Messages of the Vercel AI SDK: UI messages and model messages.

    decode([{"id": "m1", "role": "user", "parts": [{"type": "text", "text": "hi"}]}])
    decode([{"role": "tool", "content": [{"type": "tool-result", …}]}])    # a model message
    decode({"id": "chat", "messages": […]})                                # what `useChat` sends

`encode` writes UI messages, except for what came as a model message. Reasoning is shown, whoever it
came from. Messages without an id are numbered: ``message-0``, …
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from perdure.core.errors import InvalidInput
from perdure.core.messages import Message
from perdure.wire.keep import items_of, kept_items
from perdure.wire.plain import Item, decoded, plain
from perdure.wire.ui.form import PLACE
from perdure.wire.ui.reading import read_messages
from perdure.wire.ui.rules import violations
from perdure.wire.ui.writing import groups_of

__all__ = ["decode", "encode", "encode_body", "violations"]


def decode(items: Any) -> tuple[Message, ...]:
    """Of a list of messages, a body with one, or one message. Raises `InvalidInput`, naming it."""
    if isinstance(items, list | tuple):
        return decoded(list(items), read_messages)
    body = plain(items)
    if isinstance(body, dict):
        if isinstance(body.get("messages"), list):
            return decoded(body["messages"], read_messages)
        if "role" in body:
            return decoded([body], read_messages)
    raise InvalidInput(
        "These are no UI messages.", hint='Pass a list of messages, or a body with "messages".'
    )


def encode(messages: Iterable[Message], *, keep: bool = False) -> list[Item]:
    """With `keep`, so that `decode` gives exactly these messages back."""
    groups = groups_of(messages)
    return kept_items(groups, read_messages, PLACE) if keep else items_of(groups)


def encode_body(messages: Iterable[Message], *, keep: bool = False) -> Item:
    return {"messages": encode(messages, keep=keep)}
