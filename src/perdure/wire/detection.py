"""Which wire format something is written in.

A message is recognised by what only one format has:

=========  =====================================================================================
ui         ``parts``; in a content, blocks such as ``tool-call``, or ``file`` with a ``mediaType``
messages   ``stop_reason``; in a content, blocks such as ``tool_use``, ``image`` with a ``source``,
           or a text with ``citations`` or ``cache_control``
responses  a ``type`` and no role, or ``message`` as type; in a content, ``input_text`` and the like
chat       ``tool_calls``, ``tool_call_id``, …; in a content, blocks such as ``image_url``
=========  =====================================================================================

A message that is the same in several formats (``{"role": "user", "content": "hi"}``) counts as what
the one before, or else after it is; otherwise as chat. A body is recognised by its names:
``choices``; ``input`` or ``output``; ``system``; or else by its messages.
"""

from __future__ import annotations

from typing import Any

from perdure.wire.plain import Item

#: What has no mark of its own is taken for this.
USUAL = "chat"

_BLOCKS = {
    "tool_use": "messages",
    "tool_result": "messages",
    "thinking": "messages",
    "redacted_thinking": "messages",
    "document": "messages",
    "search_result": "messages",
    "server_tool_use": "messages",
    "container_upload": "messages",
    "image_url": "chat",
    "input_audio": "chat",
    "refusal": "chat",
    "input_text": "responses",
    "output_text": "responses",
    "input_image": "responses",
    "input_file": "responses",
    "tool-call": "ui",
    "tool-result": "ui",
    "reasoning": "ui",
    "tool-approval-request": "ui",
    "tool-approval-response": "ui",
}

_CHAT = frozenset(
    {"tool_calls", "tool_call_id", "function_call", "refusal", "audio", "reasoning_content"}
)


def wire_of(item: Item) -> str | None:
    """None if it would be the same in several formats."""
    kind = item.get("type")
    if "role" not in item:
        return "responses" if kind is not None or "id" in item else None
    if "parts" in item:
        return "ui"
    content = item.get("content")
    if isinstance(content, list):
        for block in content:
            found = _block_wire(block)
            if found is not None:
                return "responses" if kind == "message" and found == "chat" else found
    if kind == "message":
        return "messages" if "stop_reason" in item or "usage" in item else "responses"
    if item["role"] == "function" or not _CHAT.isdisjoint(item):
        return "chat"
    if "stop_reason" in item:
        return "messages"
    return "ui" if "providerOptions" in item else None


def _block_wire(block: Any) -> str | None:
    if not isinstance(block, dict):
        return None
    kind = block.get("type")
    if kind == "text":
        if "citations" in block or "cache_control" in block:
            return "messages"
        return "ui" if "providerOptions" in block else None
    if kind == "image":
        return "messages" if "source" in block else "ui"
    if kind == "file":
        return "chat" if "file" in block else "ui"
    if isinstance(kind, str):
        found = _BLOCKS.get(kind)
        return "messages" if found is None and kind.endswith("_tool_result") else found
    return None


def body_wire(body: Item) -> str | None:
    """None if it is neither a request nor a response."""
    if "choices" in body:
        return "chat"
    messages = body.get("messages")
    if isinstance(messages, list):
        if "system" in body:
            return "messages"
        found = (wire_of(item) for item in messages if isinstance(item, dict))
        return next(filter(None, found), USUAL)
    return "responses" if "input" in body or "output" in body else None
