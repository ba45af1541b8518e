"""Anthropic Messages.

    decode([{"role": "user", "content": "hi"}])
    decode({"system": "Be brief.", "messages": […]})       # a request
    decode({"type": "message", "role": "assistant", …})    # a response: with model and usage

Leading system text is not part of `encode`; `encode_body` puts it into ``system``. A user message
with tool results has the role ``tool``. Response fields such as ``stop_reason`` are kept and not
written.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from perdure.core.errors import InvalidInput
from perdure.core.messages import Message
from perdure.wire.keep import items_of, kept_items
from perdure.wire.messages.reading import read_body, read_messages
from perdure.wire.messages.rules import violations
from perdure.wire.messages.writing import groups_of, split, system_groups, system_of
from perdure.wire.plain import Item, decoded, plain

__all__ = ["decode", "encode", "encode_body", "violations"]


def decode(items: Any) -> tuple[Message, ...]:
    """Of a list of messages, a request or a response. Raises `InvalidInput`, naming the message."""
    if isinstance(items, list | tuple):
        return decoded(list(items), read_messages)
    body = plain(items)
    if isinstance(body, dict):
        if isinstance(body.get("messages"), list):
            return decoded([body], read_body)
        if "role" in body:
            return decoded([body], read_messages)
    raise InvalidInput(
        "This is no Anthropic Messages body.",
        hint='Pass a list of messages, a body with "messages", or a response.',
    )


def encode(messages: Iterable[Message], *, keep: bool = False) -> list[Item]:
    """With `keep`, so that `decode` gives exactly these messages back."""
    system, rest = split(messages)
    if keep:
        return kept_items(system_groups(system) + groups_of(rest), read_messages)
    return items_of(groups_of(rest))


def encode_body(messages: Iterable[Message], *, keep: bool = False) -> Item:
    """``system`` only if there is any, and never with `keep`."""
    if keep:
        return {"messages": encode(messages, keep=True)}
    system, rest = split(messages)
    text = system_of(system)
    body: Item = {} if text is None else {"system": text}
    return body | {"messages": items_of(groups_of(rest))}
