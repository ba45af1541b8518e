"""Hypothesis strategies for canonical messages.

`histories` makes what a log may come to hold: whatever a client, a crash or another program left
there. `conversations` makes what a well-behaved client would have left.

Most parts are drawn from pools, which are many times faster than making them up, and small enough
for the interesting things to meet: the same id twice, a result elsewhere, reasoning at the end.
"""

from __future__ import annotations

import json
from functools import cache
from itertools import product
from typing import Any

from hypothesis import strategies as st

from perdure.core.messages import (
    ArtifactPointer,
    Media,
    Message,
    Native,
    Part,
    Reasoning,
    Role,
    Text,
    ToolCall,
    ToolResult,
    Unknown,
    Usage,
)

WIRES = ("", "chat", "responses", "messages", "ui")

SAYINGS = (
    "Hello.",
    "",
    " ",
    "\n\t",
    "</T-12> and <T-12-C>",
    "\x00\x1b[31m\u2028\ufeff",
    "👩‍👩‍👧‍👦 \U0001f1f3\U0001f1f4 e\u0301 \u202eabc",
    "def f():\n    return 1\n",
    '{"json": true}',
    "[no result was recorded]",
)
VALUES: tuple[Any, ...] = (
    None,
    True,
    0,
    -1,
    2**64 - 1,
    -(2**63),
    0.1,
    -1e300,
    "",
    "text",
    "🎈\u2028\x00",
    [],
    {},
    [None, [0], {"": ""}],
    {"a": {"b": [1, 2.5, {"c": None}]}, "z": "</T-1>"},
    {"type": "text", "text": "x"},
)
_IDS = ("call_1", "call_2", "toolu_3", "", "not legal!", "c" * 80, "вызов")
_NAMES = ("shell", "read_file", "", "mcp.server/tool", "n" * 140, "työkalu")
_ARGUMENTS = (
    "{}",
    "",
    '{"path": "a.py"}',
    '{"unfinished": ',
    "[1]",
    '"text"',
    "null",
    '{"unparsed_arguments": "x"}',
    '{"n": 1e999, "m": NaN}',
    '{"big": 123456789012345678901234567890}',
)
_ARTIFACT = "sha256:" + "0" * 64

json_values: st.SearchStrategy[Any] = st.sampled_from(VALUES)


@cache
def texts() -> st.SearchStrategy[str]:
    """Text of every kind, blank as well, but no half surrogate pairs."""
    return st.sampled_from(SAYINGS) | st.text(max_size=10)


def _marked(wire: str) -> Native:
    return {wire: {"cache_control": {"type": "ephemeral"}}}


def _texts() -> list[Text]:
    marked = [Text("marked", native=_marked(wire)) for wire in WIRES[1:]]
    return [*map(Text, SAYINGS), *marked]


def _media() -> list[Media]:
    types = ("image/png", "image/*", "application/pdf", "text/plain", "audio/wav", "x/y", "")
    return [
        media
        for kind in types
        for media in (
            Media(kind, data=b"\x00\xffdata"),
            Media(kind, data="grün".encode(), filename="a.bin"),
            Media(kind, url="https://example.org/a", filename="a.bin"),
            Media(kind, url="data:,text"),
            Media(kind, file_id="file_1"),
            Media(kind, artifact=_ARTIFACT, size=5),
        )
    ]


def _references() -> list[ArtifactPointer]:
    return [
        ArtifactPointer(_ARTIFACT, 70_000),
        ArtifactPointer(_ARTIFACT, 70_000, head="It begins…"),
    ]


def _unknowns() -> list[Unknown]:
    """Blocks that nobody knows; some that somebody should have known; some that are none."""
    kinds = ("server_tool_use", "web_search_call", "step-start", "tool_use", "text", "x_output")
    data: list[Any] = [{"type": kind, "id": "item_1", "x": [1]} for kind in kinds]
    data += [{"type": "reasoning", "id": "item_2"}, {"type": "image_url"}, *VALUES]
    return [Unknown(wire, value) for wire, value in product(WIRES[1:], data)]


def _reasonings() -> list[Reasoning]:
    named: list[Native] = [{}, {"responses": {"id": "item_1"}}]
    return [
        Reasoning(text, summary=summary, signature=signature, encrypted=encrypted, native=native)
        for text, summary, signature, encrypted, native in product(
            ("", "Hm…"), ((), ("First.", "Then.")), (None, "sig=="), (None, "gAAA"), named
        )
    ]


def _calls() -> list[ToolCall]:
    calls = [ToolCall(id, "shell", "{}") for id in _IDS]
    calls += [ToolCall("call_1", name, "{}") for name in _NAMES]
    calls += [ToolCall("call_2", "shell", arguments) for arguments in _ARGUMENTS]
    calls += [ToolCall("call_1", "write", reference=reference) for reference in _references()]
    custom: Native = {"responses": {"id": "item_1", "perdure": {"type": "custom_tool_call"}}}
    return [*calls, ToolCall("call_1", "patch", "*** Begin", native=custom)]


def _results() -> list[ToolResult]:
    results = [ToolResult(id, (Text("done"),)) for id in _IDS]
    results += [ToolResult("call_1", (Text(text),), is_error=True) for text in SAYINGS]
    for flag in (False, True):
        results += [
            ToolResult("call_2", content, is_error=flag, name="mcp.server/tool")
            for content in (
                (),
                (Text("one"), Text(""), Text("two")),
                *((Text("see"), media) for media in _media()[:12]),
                tuple(_references()),
                (_unknowns()[0], Text("x"), _unknowns()[-1]),
            )
        ]
    results += [
        ToolResult("call_1", native=native)
        for native in (
            _marked("messages"),
            {"messages": {"is_error": False, "perdure": {"content": "empty"}}},
            {"responses": {"perdure": {"output": "null"}}},
        )
    ]
    return results


@cache
def said() -> st.SearchStrategy[Part]:
    """Parts that anyone may say."""
    pool: list[Part] = [*_texts(), *_texts(), *_media(), *_references(), *_unknowns()]
    return st.sampled_from(_texts()) | st.sampled_from(pool) | st.text(max_size=10).map(Text)


@cache
def _parts(role: Role) -> st.SearchStrategy[Part]:
    thoughts: list[Part] = [*_reasonings(), *_calls()]
    anything: list[Part] = [*thoughts, *_results()]
    if role == "assistant":
        return said() | st.sampled_from(_calls()) | st.sampled_from(thoughts)
    if role == "tool":
        return st.sampled_from(_results()) | st.sampled_from(_results()) | said()
    return said() | said() | said() | st.sampled_from(anything)


@cache
def messages(role: Role) -> st.SearchStrategy[Message]:
    """A message of this role, with parts that it should have and with some that it should not."""
    about: list[dict[str, Any]] = [
        {},
        {"id": "msg_1", "model": "m", "usage": Usage(1, 2), "time": 5},
        {"id": "msg_1", "name": "ada", "injected": True},
        {"id": "msg_2", "name": "not <allowed>", "partial": True, "time": 2**50, "ended": 2**51},
    ]
    forms: list[dict[str, Any]] = [{"wire": wire, "native": _marked(wire)} for wire in WIRES[1:]]
    forms += [{"wire": wire} for wire in WIRES] * 2
    odd: list[Native] = [
        {"chat": {"tool_calls": [], "perdure": {"content": "list"}}},
        {"messages": {"perdure": {"content": "null", "place": "list"}}},
        {"responses": {"id": "item_1", "perdure": {"typeless": True, "content": "text"}}},
        {"ui": {"perdure": {"goes_on": True}}},
        {"ui": {"perdure": {"model": True}}},
    ]
    forms += [{"wire": wire, "native": native} for native in odd for wire in native]
    return st.builds(
        lambda parts, more, form: Message(role, tuple(parts), **more, **form),
        st.lists(_parts(role), max_size=4),
        st.sampled_from(about),
        st.sampled_from(forms),
    )


@cache
def histories(max_size: int = 8) -> st.SearchStrategy[tuple[Message, ...]]:
    """Messages as a log may hold them.

    Parallel calls, results that are missing, doubled, elsewhere or nobody's, ids that are not ids,
    blank texts, text of every kind, reasoning anywhere, events, media by bytes, address or
    artifact. All of it can be stored.
    """
    roles: tuple[Role, ...] = (
        "user", "assistant", "tool", "assistant", "tool", "system", "developer", "event",
    )  # fmt: skip
    one = st.one_of([messages(role) for role in roles])
    return st.lists(one, max_size=max_size).map(tuple)


@st.composite
def conversations(draw: st.DrawFn) -> tuple[Message, ...]:
    """Messages as a well-behaved client leaves them: nothing missing, nothing blank, no strangers.

    They come from no wire format, so each is free to lay them out.
    """
    words = _words()
    number = iter(range(1_000))
    out: list[Message] = []
    if draw(st.booleans()):
        out.append(Message("system", (Text(draw(words)),)))
    for _ in range(draw(st.integers(1, 3))):
        prompt: list[Part] = [Text(draw(words))]
        if draw(st.booleans()):
            prompt.append(draw(_PICTURES))
        out.append(Message("user", tuple(prompt)))
        for _ in range(draw(st.integers(0, 2))):
            asked = [
                ToolCall(f"call_{next(number)}", name, draw(_OBJECTS))
                for name in draw(st.lists(_TOOLS, min_size=1, max_size=3))
            ]
            spoken = [Text(text) for text in draw(st.lists(words, max_size=2))]
            out.append(Message("assistant", (*spoken, *asked)))
            out += draw(_answers(asked))
        out.append(Message("assistant", (Text(draw(words)),)))
    return tuple(out)


_TOOLS = st.sampled_from(("shell", "read_file"))
_PICTURES = st.sampled_from(
    (Media("image/png", data=b"\x89PNG"), Media("image/*", url="https://example.org/a.png"))
)
_OBJECTS = st.sampled_from(
    [json.dumps({"path": value, "z": 1, "": value}) for value in VALUES] + ["{}", '{ "a":1 }']
)


@cache
def _words() -> st.SearchStrategy[str]:
    visible = [text for text in SAYINGS if text.strip()]
    return st.sampled_from(visible) | st.text(max_size=10).map(lambda text: f"so: {text}")


@st.composite
def _answers(draw: st.DrawFn, asked: list[ToolCall]) -> list[Message]:
    found: list[Part] = [
        ToolResult(
            call.id,
            tuple(Text(text) for text in draw(st.lists(_words(), max_size=2))),
            is_error=draw(st.booleans()),
        )
        for call in draw(st.permutations(asked))
    ]
    if draw(st.booleans()):
        return [Message("tool", tuple(found))]
    return [Message("tool", (each,)) for each in found]
