"""Answers as the wire formats write them, whole and as streams."""

from __future__ import annotations

import json
from typing import Any


def chat_body(text: str = "Hello.") -> dict[str, Any]:
    return {
        "id": "chatcmpl-1",
        "object": "chat.completion",
        "created": 1_700_000_000,
        "model": "scripted",
        "choices": [
            {
                "index": 0,
                "message": {"role": "assistant", "content": text},
                "finish_reason": "stop",
            }
        ],
        "usage": {"prompt_tokens": 7, "completion_tokens": 3, "total_tokens": 10},
    }


def message_body(text: str = "Hello.") -> dict[str, Any]:
    return {
        "id": "msg_1",
        "type": "message",
        "role": "assistant",
        "model": "scripted",
        "content": [{"type": "text", "text": text}],
        "stop_reason": "end_turn",
        "stop_sequence": None,
        "usage": {"input_tokens": 7, "output_tokens": 3},
    }


def chat_events(text: str = "Hello.") -> bytes:
    """The stream of a Chat Completions answer: a chunk for each word."""
    base = {"id": "chatcmpl-1", "object": "chat.completion.chunk", "model": "scripted"}

    def choice(delta: dict[str, Any], finish: str | None = None) -> dict[str, Any]:
        return {**base, "choices": [{"index": 0, "delta": delta, "finish_reason": finish}]}

    usage = {"prompt_tokens": 7, "completion_tokens": 3, "total_tokens": 10}
    chunks = [
        choice({"role": "assistant", "content": ""}),
        *(choice({"content": word}) for word in _words(text)),
        choice({}, "stop"),
        {**base, "choices": [], "usage": usage},
    ]
    return b"".join(event(chunk) for chunk in chunks) + b"data: [DONE]\n\n"


def message_events(text: str = "Hello.") -> bytes:
    """The stream of an Anthropic Messages answer: a delta for each word."""
    started = {**message_body(), "content": [], "stop_reason": None}
    started["usage"] = {"input_tokens": 7, "output_tokens": 1}
    events: list[dict[str, Any]] = [
        {"type": "message_start", "message": started},
        {"type": "content_block_start", "index": 0, "content_block": {"type": "text", "text": ""}},
        {"type": "ping"},
        *(
            {
                "type": "content_block_delta",
                "index": 0,
                "delta": {"type": "text_delta", "text": word},
            }
            for word in _words(text)
        ),
        {"type": "content_block_stop", "index": 0},
        {
            "type": "message_delta",
            "delta": {"stop_reason": "end_turn", "stop_sequence": None},
            "usage": {"output_tokens": 3},
        },
        {"type": "message_stop"},
    ]
    return b"".join(event(each, name=each["type"]) for each in events)


def event(data: Any, *, name: str = "") -> bytes:
    """One server-sent event."""
    prefix = f"event: {name}\n" if name else ""
    return f"{prefix}data: {json.dumps(data)}\n\n".encode()


def _words(text: str) -> list[str]:
    first, *rest = text.split(" ")
    return [first, *(f" {word}" for word in rest)]
