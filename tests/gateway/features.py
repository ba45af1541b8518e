"""Requests written twice: as ours, and as the users of the providers' SDKs write them."""

from __future__ import annotations

from typing import Any, NamedTuple

from perdure.core.messages import (
    Media,
    Message,
    Reasoning,
    Text,
    ToolCall,
    ToolResult,
    assistant,
    user,
)
from perdure.gateway.calls import Shape, Tool
from perdure.gateway.providers import CallWire
from perdure.wire.plain import Item

SCHEMA = {
    "type": "object",
    "properties": {"path": {"type": "string"}},
    "required": ["path"],
    "additionalProperties": False,
}
READ = Tool("read", "Reads a file.", SCHEMA, strict=True)
NOW = Tool("now")
SHAPE = Shape(SCHEMA, name="place")
PNG = b"\x89PNG"


class Feature(NamedTuple):
    """The same wish twice. Of those that say the same kind of thing, one at a time."""

    kind: str
    ours: dict[str, Any]
    theirs: dict[CallWire, dict[str, Any]]


_HISTORY = (
    Message("system", (Text("Be brief."),)),
    user("What is in a.py?"),
    Message(
        "assistant",
        (
            Text("I look."),
            ToolCall("call_1", "read", '{"path":"a.py"}'),
            ToolCall("call_2", "now", "{}"),
        ),
    ),
    Message(
        "tool", (ToolResult("call_1", (Text("print(1)"),)), ToolResult("call_2", (Text("7"),)))
    ),
    assistant("A print."),
    user("And b.py?"),
)
_THOUGHT = (
    user("Two and two?"),
    Message(
        "assistant",
        (Reasoning("Hm.", signature="c2ln"), Text("Four."), ToolCall("call_1", "now", "{}")),
        wire="messages",
    ),
    Message("tool", (ToolResult("call_1", (Text("no"),), is_error=True),), wire="messages"),
)

#: Which tool, whether several at once, and how each format says it.
_CHOICES: list[tuple[str, bool | None, Item, Item, Item]] = [
    ("auto", None, {}, {}, {}),
    (
        "auto",
        False,
        {"parallel_tool_calls": False},
        {"parallel_tool_calls": False},
        {"tool_choice": {"type": "auto", "disable_parallel_tool_use": True}},
    ),
    (
        "none",
        None,
        {"tool_choice": "none"},
        {"tool_choice": "none"},
        {"tool_choice": {"type": "none"}},
    ),
    (
        "required",
        None,
        {"tool_choice": "required"},
        {"tool_choice": "required"},
        {"tool_choice": {"type": "any"}},
    ),
    (
        "read",
        None,
        {"tool_choice": {"type": "function", "function": {"name": "read"}}},
        {"tool_choice": {"type": "function", "name": "read"}},
        {"tool_choice": {"type": "tool", "name": "read"}},
    ),
]


def _tools(
    choice: str, parallel: bool | None, chat: Item, responses: Item, messages: Item
) -> Feature:
    return Feature(
        "tools",
        {"tools": (READ, NOW), "tool_choice": choice, "parallel_tools": parallel},
        {
            "chat": {
                "tools": [
                    {
                        "type": "function",
                        "function": {
                            "name": "read",
                            "description": "Reads a file.",
                            "parameters": SCHEMA,
                            "strict": True,
                        },
                    },
                    {
                        "type": "function",
                        "function": {"name": "now", "parameters": NOW.parameters},
                    },
                ],
                **chat,
            },
            "responses": {
                "tools": [
                    {
                        "type": "function",
                        "name": "read",
                        "description": "Reads a file.",
                        "parameters": SCHEMA,
                        "strict": True,
                    },
                    {"type": "function", "name": "now", "parameters": NOW.parameters},
                ],
                **responses,
            },
            "messages": {
                "tools": [
                    {
                        "name": "read",
                        "description": "Reads a file.",
                        "input_schema": SCHEMA,
                        "strict": True,
                    },
                    {"name": "now", "input_schema": NOW.parameters},
                ],
                **messages,
            },
        },
    )


FEATURES = [
    Feature(
        "messages",
        {"messages": (user("hi"),)},
        {
            "chat": {"messages": [{"role": "user", "content": "hi"}]},
            "responses": {
                "input": [
                    {
                        "type": "message",
                        "role": "user",
                        "content": [{"type": "input_text", "text": "hi"}],
                    }
                ]
            },
            "messages": {"messages": [{"role": "user", "content": "hi"}]},
        },
    ),
    Feature(
        "messages",
        {"messages": _HISTORY},
        {
            "chat": {
                "messages": [
                    {"role": "developer", "content": "Be brief."},
                    {"role": "user", "content": "What is in a.py?"},
                    {
                        "role": "assistant",
                        "content": "I look.",
                        "tool_calls": [
                            {
                                "id": "call_1",
                                "type": "function",
                                "function": {"name": "read", "arguments": '{"path":"a.py"}'},
                            },
                            {
                                "id": "call_2",
                                "type": "function",
                                "function": {"name": "now", "arguments": "{}"},
                            },
                        ],
                    },
                    {"role": "tool", "tool_call_id": "call_1", "content": "print(1)"},
                    {"role": "tool", "tool_call_id": "call_2", "content": "7"},
                    {"role": "assistant", "content": "A print."},
                    {"role": "user", "content": "And b.py?"},
                ]
            },
            "responses": {
                "instructions": "Be brief.",
                "input": [
                    {
                        "type": "message",
                        "role": "user",
                        "content": [{"type": "input_text", "text": "What is in a.py?"}],
                    },
                    {
                        "type": "message",
                        "role": "assistant",
                        "content": [{"type": "output_text", "text": "I look."}],
                    },
                    {
                        "type": "function_call",
                        "call_id": "call_1",
                        "name": "read",
                        "arguments": '{"path":"a.py"}',
                    },
                    {
                        "type": "function_call",
                        "call_id": "call_2",
                        "name": "now",
                        "arguments": "{}",
                    },
                    {"type": "function_call_output", "call_id": "call_1", "output": "print(1)"},
                    {"type": "function_call_output", "call_id": "call_2", "output": "7"},
                    {
                        "type": "message",
                        "role": "assistant",
                        "content": [{"type": "output_text", "text": "A print."}],
                    },
                    {
                        "type": "message",
                        "role": "user",
                        "content": [{"type": "input_text", "text": "And b.py?"}],
                    },
                ],
            },
            "messages": {
                "system": "Be brief.",
                "messages": [
                    {"role": "user", "content": "What is in a.py?"},
                    {
                        "role": "assistant",
                        "content": [
                            {"type": "text", "text": "I look."},
                            {
                                "type": "tool_use",
                                "id": "call_1",
                                "name": "read",
                                "input": {"path": "a.py"},
                            },
                            {"type": "tool_use", "id": "call_2", "name": "now", "input": {}},
                        ],
                    },
                    {
                        "role": "user",
                        "content": [
                            {
                                "type": "tool_result",
                                "tool_use_id": "call_1",
                                "content": "print(1)",
                            },
                            {"type": "tool_result", "tool_use_id": "call_2", "content": "7"},
                        ],
                    },
                    {"role": "assistant", "content": [{"type": "text", "text": "A print."}]},
                    {"role": "user", "content": "And b.py?"},
                ],
            },
        },
    ),
    Feature(
        "messages",
        {
            "messages": (
                Message(
                    "user",
                    (
                        Text("Which?"),
                        Media("image/png", data=PNG),
                        Media("image/*", url="https://example.org/a.png"),
                    ),
                ),
            )
        },
        {
            "chat": {
                "messages": [
                    {
                        "role": "user",
                        "content": [
                            {"type": "text", "text": "Which?"},
                            {
                                "type": "image_url",
                                "image_url": {"url": "data:image/png;base64,iVBORw=="},
                            },
                            {
                                "type": "image_url",
                                "image_url": {"url": "https://example.org/a.png"},
                            },
                        ],
                    }
                ]
            },
            "responses": {
                "input": [
                    {
                        "type": "message",
                        "role": "user",
                        "content": [
                            {"type": "input_text", "text": "Which?"},
                            {
                                "type": "input_image",
                                "image_url": "data:image/png;base64,iVBORw==",
                                "detail": "auto",
                            },
                            {
                                "type": "input_image",
                                "image_url": "https://example.org/a.png",
                                "detail": "auto",
                            },
                        ],
                    }
                ]
            },
            "messages": {
                "messages": [
                    {
                        "role": "user",
                        "content": [
                            {"type": "text", "text": "Which?"},
                            {
                                "type": "image",
                                "source": {
                                    "type": "base64",
                                    "media_type": "image/png",
                                    "data": "iVBORw==",
                                },
                            },
                            {
                                "type": "image",
                                "source": {"type": "url", "url": "https://example.org/a.png"},
                            },
                        ],
                    }
                ]
            },
        },
    ),
    Feature(
        "messages",
        {"messages": _THOUGHT},
        {
            "messages": {
                "messages": [
                    {"role": "user", "content": "Two and two?"},
                    {
                        "role": "assistant",
                        "content": [
                            {"type": "thinking", "thinking": "Hm.", "signature": "c2ln"},
                            {"type": "text", "text": "Four."},
                            {"type": "tool_use", "id": "call_1", "name": "now", "input": {}},
                        ],
                    },
                    {
                        "role": "user",
                        "content": [
                            {
                                "type": "tool_result",
                                "tool_use_id": "call_1",
                                "content": "no",
                                "is_error": True,
                            }
                        ],
                    },
                ]
            }
        },
    ),
    *(_tools(*choice) for choice in _CHOICES),
    Feature(
        "shape",
        {"shape": SHAPE},
        {
            "chat": {
                "response_format": {
                    "type": "json_schema",
                    "json_schema": {"name": "place", "schema": SCHEMA, "strict": True},
                }
            },
            "responses": {
                "text": {
                    "format": {
                        "type": "json_schema",
                        "name": "place",
                        "schema": SCHEMA,
                        "strict": True,
                    }
                }
            },
            "messages": {"output_config": {"format": {"type": "json_schema", "schema": SCHEMA}}},
        },
    ),
    Feature(
        "max_tokens",
        {"max_tokens": 9_000},
        {
            "chat": {"max_completion_tokens": 9_000},
            "responses": {"max_output_tokens": 9_000},
            "messages": {"max_tokens": 9_000},
        },
    ),
    # Anthropic's SDK has no word for it any more, though some of its models take it.
    Feature(
        "temperature",
        {"temperature": 0.25},
        {
            "chat": {"temperature": 0.25},
            "responses": {"temperature": 0.25},
            "messages": {"extra_body": {"temperature": 0.25}},
        },
    ),
    Feature(
        "stop",
        {"stop": ("END", "\n\n")},
        {"chat": {"stop": ["END", "\n\n"]}, "messages": {"stop_sequences": ["END", "\n\n"]}},
    ),
    Feature("seed", {"seed": 7}, {"chat": {"seed": 7}, "responses": {}, "messages": {}}),
    Feature(
        "key",
        {"prompt_cache_key": "k"},
        {"chat": {"prompt_cache_key": "k"}, "responses": {"prompt_cache_key": "k"}, "messages": {}},
    ),
    Feature(
        "reasoning",
        {"reasoning": "low"},
        {"chat": {"reasoning_effort": "low"}, "responses": {"reasoning": {"effort": "low"}}},
    ),
    Feature(
        "extra",
        {
            "extra": {
                "chat": {"user": "u"},
                "responses": {"user": "u"},
                "messages": {"metadata": {"user_id": "u"}},
            }
        },
        {
            "chat": {"user": "u"},
            "responses": {"user": "u"},
            "messages": {"metadata": {"user_id": "u"}},
        },
    ),
    Feature(
        "stream",
        {},
        {
            "chat": {"stream": True, "stream_options": {"include_usage": True}},
            "responses": {"stream": True},
            "messages": {"stream": True},
        },
    ),
]
#: What goes with every request of ours.
ALWAYS: dict[CallWire, dict[str, Any]] = {
    "chat": {},
    "responses": {"store": False, "include": ["reasoning.encrypted_content"]},
    "messages": {"max_tokens": 8_192},
}
