"""OpenAI Responses: lists of items.

    decode([{"role": "user", "content": "hi"}, {"type": "function_call", …}])
    decode({"instructions": "Be brief.", "input": "hi"})    # a request
    decode({"object": "response", "output": […], …})        # a response: with model and usage

`encode` writes system text as items; `encode_body` makes leading system text the instructions.
Reasoning goes back to this format only.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from perdure.core.errors import InvalidInput
from perdure.core.messages import Message
from perdure.wire.keep import items_of, kept_items
from perdure.wire.plain import Item, decoded, plain
from perdure.wire.responses.reading import read_body, read_items, read_response
from perdure.wire.responses.rules import violations
from perdure.wire.responses.writing import groups_of, input_of, instructions_of, split

__all__ = ["decode", "encode", "encode_body", "violations"]


def decode(items: Any) -> tuple[Message, ...]:
    """Of a list of items, a request or a response. Raises `InvalidInput`, naming the item."""
    if isinstance(items, list | tuple):
        return decoded(list(items), read_items)
    body = plain(items)
    if isinstance(body, dict):
        if "output" in body and ("model" in body or body.get("object") == "response"):
            return decoded([body], read_response)
        if "input" in body and "type" not in body:
            return decoded([body], read_body)
        if "type" in body or "role" in body:
            return decoded([body], read_items)
    raise InvalidInput(
        "This is no Responses body.",
        hint='Pass a list of items, a body with "input", or a response with "output".',
    )


def encode(messages: Iterable[Message], *, keep: bool = False) -> list[Item]:
    """With `keep`, so that `decode` gives exactly these messages back."""
    groups = groups_of(messages)
    return kept_items(groups, read_items) if keep else items_of(groups)


def encode_body(messages: Iterable[Message], *, keep: bool = False) -> Item:
    """``instructions`` only if there are any, and never with `keep`."""
    if keep:
        return {"input": encode(messages, keep=True)}
    system, rest = split(messages)
    text = instructions_of(system)
    body: Item = {} if text is None else {"instructions": text}
    return body | {"input": input_of(rest)}
