"""Each rule of each provider is noticed when it is broken, and named with its position."""

from __future__ import annotations

from typing import Any

import pytest

from perdure.wire import WIRES, codec

USER = {"role": "user", "content": "Go."}


def _asks(*ids: Any, name: Any = "f", arguments: Any = "{}") -> dict[str, Any]:
    calls = [
        {"id": id, "type": "function", "function": {"name": name, "arguments": arguments}}
        for id in ids
    ]
    return {"role": "assistant", "content": None, "tool_calls": calls}


def _answers(id: Any, content: Any = "x") -> dict[str, Any]:
    return {"role": "tool", "tool_call_id": id, "content": content}


def _uses(*ids: Any, name: Any = "f", given: Any = None) -> dict[str, Any]:
    blocks = [
        {"type": "tool_use", "id": id, "name": name, "input": {} if given is None else given}
        for id in ids
    ]
    return {"role": "assistant", "content": blocks}


def _results(*ids: Any, **more: Any) -> dict[str, Any]:
    blocks = [{"type": "tool_result", "tool_use_id": id, "content": "x", **more} for id in ids]
    return {"role": "user", "content": blocks}


def _says(*blocks: Any, role: str = "assistant") -> dict[str, Any]:
    return {"role": role, "content": list(blocks)}


def _call(id: Any = "a", **more: Any) -> dict[str, Any]:
    return {"type": "function_call", "call_id": id, "name": "f", "arguments": "{}", **more}


def _output(id: Any = "a", **more: Any) -> dict[str, Any]:
    return {"type": "function_call_output", "call_id": id, "output": "x", **more}


TEXT = {"type": "text", "text": "x"}
THOUGHT = {"type": "thinking", "thinking": "Hm.", "signature": "s"}
IMAGE = {"type": "image", "source": {"type": "url", "url": "https://e.org/a.png"}}
REASONING = {"type": "reasoning", "summary": []}

CHAT: list[tuple[list[Any], str]] = [
    ([5], "messages[0]: a message is an object"),
    ([{"role": "narrator", "content": "x"}], "messages[0]: a message is an object"),
    ([{"role": "user"}], "messages[0]: a content is a string"),
    ([_says(role="user")], "messages[0]: a content is a string"),
    ([_says("x", role="user")], "messages[0.content.0]: a block is an object"),
    ([_says({"type": "text"}, role="user")], "messages[0.content.0]: a text is a string"),
    ([USER, {"role": "assistant", "content": None}], "messages[1]: a reply has a content"),
    ([_says({"type": "refusal", "refusal": "x"}, role="user")], "no refusal blocks"),
    ([_says({"type": "image_url", "image_url": {}})], "no image_url blocks"),
    ([USER, {**_asks(), "content": "x"}], "messages[1]: tool_calls is a list of at least one"),
    ([USER, _asks("a", arguments={}), _answers("a")], "messages[1]: a call's arguments are text"),
    ([USER, _asks("a", name="a.b"), _answers("a")], "messages[1]: the tool's name 'a.b'"),
    ([USER, _asks("a" * 41), _answers("a" * 41)], "1 to 40 characters"),
    ([USER, _asks("a", "a"), _answers("a")], "messages[1]: two calls have the id 'a'"),
    ([USER, _asks("a")], "messages[2]: the results of a are missing"),
    ([USER, _asks("a", "b"), _answers("a"), USER], "messages[3]: comes before the results of b"),
    ([USER, _answers("a")], "messages[1]: answers 'a', which is no open call"),
    ([USER, _asks("a"), _answers("a"), _answers("a")], "messages[3]: answers 'a'"),
    ([USER, _asks("a"), USER, _answers("a")], "messages[2]: comes before"),
    ([USER, _asks("a"), _answers("a", None)], "messages[2]: a content is a string"),
    ([{**USER, "perdure": {}}], "`perdure` is no field of the API"),
]
MESSAGES: list[tuple[list[Any], str]] = [
    ([{"role": "tool", "content": "x"}], "messages[0]: a message is an object"),
    ([{"role": "assistant", "content": "x"}], "messages[0]: the first message is a user's"),
    ([{"role": "user", "content": ""}], "messages[0]: a text is not blank"),
    ([_says({"type": "text", "text": " \n"}, role="user")], "messages[0]: a text is not blank"),
    ([_says(role="user")], "messages[0]: a content is a string or a list"),
    ([_says({}, role="user")], "messages[0]: a block is an object with a type"),
    ([USER, _says(TEXT, THOUGHT)], "messages[1]: the last block of a reply is not thinking"),
    ([USER, _says({"type": "thinking", "thinking": "x"}, TEXT)], "thinking has its signature"),
    ([_says(THOUGHT, TEXT, role="user")], "messages[0]: only a reply has thinking blocks"),
    ([USER, _says(IMAGE)], "messages[1]: only a user's message has image blocks"),
    ([_says({"type": "image"}, role="user")], "messages[0]: image has a source"),
    ([USER, _uses("a!"), _results("a!")], "messages[1]: the call's id 'a!'"),
    ([USER, _uses("a", name=""), _results("a")], "messages[1]: the tool's name ''"),
    ([USER, _uses("a", given=[]), _results("a")], "messages[1]: a call's input is an object"),
    ([USER, _uses("a", "a"), _results("a")], "messages[1]: two calls have the id 'a'"),
    (
        [USER, _uses("a"), _results("a"), _uses("a"), _results("a")],
        "messages[3]: two calls have the id 'a'",
    ),
    ([USER, _uses("a")], "messages[2]: the results of a are missing"),
    ([USER, _uses("a"), USER], "messages[2]: the results of a are missing"),
    ([USER, _uses("a", "b"), _results("a")], "messages[2]: the results of b are missing"),
    ([USER, _results("a")], "messages[1]: answers 'a', which is no open call"),
    ([USER, _uses("a"), _results("a", "a")], "messages[2]: answers 'a'"),
    ([USER, _uses("a"), USER, _results("a")], "messages[3]: results come before anything else"),
    ([USER, _uses("a"), _results("a", content=5)], "messages[2]: a result's content is a string"),
    (
        [USER, _uses("a"), _results("a", content=[IMAGE], is_error=True)],
        "messages[2]: a result that is an error holds text only",
    ),
    ([USER, _says(TEXT), {"role": "system", "content": "x"}], "system text follows a user's turn"),
    ([{**USER, "perdure": {}}], "`perdure` is no field of the API"),
]
RESPONSES: list[tuple[list[Any], str]] = [
    ([5], "input[0]: an item is an object"),
    ([{}], "input[0]: an item has a type or a role"),
    ([{"role": "tool", "content": "x"}], "input[0]: a message has one of the roles"),
    ([{"role": "user", "content": []}], "input[0]: a content is a string"),
    ([_says({"type": "output_text", "text": "x"}, role="user")], "no output_text blocks"),
    ([_says({"type": "input_text", "text": "x"})], "no input_text blocks"),
    ([_says({"type": "input_text"}, role="user")], "input[0]: a text is a string"),
    ([REASONING], "input[0]: reasoning is followed by what it led to"),
    ([REASONING, USER], "input[0]: reasoning is followed by what it led to"),
    ([{"type": "reasoning"}, _call(), _output()], "input[0]: reasoning has a summary"),
    ([_call()], "input[1]: the outputs of a are missing"),
    ([_output()], "input[0]: answers 'a', which is no open call"),
    ([_call(), _output(), _output()], "input[2]: answers 'a'"),
    ([_call(), _call(), _output()], "input[1]: two calls have the call_id 'a'"),
    ([_call("a" * 65), _output("a" * 65)], "1 to 64 characters"),
    ([_call(name="a b"), _output()], "input[0]: the tool's name 'a b'"),
    ([_call(arguments={}), _output()], "input[0]: a function_call has its arguments"),
    ([_call(), _output(output=None)], "input[1]: an output is a string or a list of blocks"),
    ([_call(), _output(output=[5])], "input[1]: a block is an object with a type"),
    (
        [_call(), {"type": "custom_tool_call_output", "call_id": "a", "output": "x"}],
        "input[1]: a custom_tool_call_output does not answer such a call",
    ),
    ([{**USER, "id": "m"}, {**USER, "id": "m"}], "input[1]: two items have the id 'm'"),
    ([{**USER, "perdure": {}}], "`perdure` is no field of the API"),
]
UI: list[tuple[list[Any], str]] = [
    ([5], "messages[0]: a message is an object"),
    ([{"role": "user", "parts": []}], "messages[0]: a message has an id"),
    ([{"id": "m", "role": "tool", "parts": []}], "messages[0]: a role is one of"),
    ([{"id": "m", "role": "user", "parts": 5}], "messages[0]: parts is a list"),
    ([{"id": "m", "role": "user", "parts": [{"type": "text"}]}], "messages[0]: a text has a text"),
    ([{"id": "m", "role": "user", "parts": [{"type": "file"}]}], "a file has a url"),
    ([{"id": "m", "role": "user", "parts": [5]}], "messages[0]: a part is an object with a type"),
    ([{"id": "m", "role": "assistant", "parts": [{"type": "tool-f"}]}], "has a toolCallId"),
    (
        [{"id": "m", "role": "assistant", "parts": [{"type": "tool-f", "state": "output-error"}]}],
        "messages[0]: output-error comes with errorText",
    ),
    ([{"id": "m", "role": "user", "parts": []}] * 2, "messages[1]: two messages have the id 'm'"),
    ([{"role": "user", "content": 5}], "messages[0]: a content is a string or a list of parts"),
    (
        [{"id": "m", "role": "user", "parts": [], "metadata": {"perdure": {}}}],
        "messages[0]: the metadata is the application's",
    ),
]
CASES = {"chat": CHAT, "responses": RESPONSES, "messages": MESSAGES, "ui": UI}


@pytest.mark.parametrize(
    ("wire", "items", "said"),
    [(wire, items, said) for wire, cases in CASES.items() for items, said in cases],
)
def test_a_broken_rule_is_named(wire: str, items: list[Any], said: str) -> None:
    found = codec(wire).violations(items)
    assert any(said in each for each in found), found


@pytest.mark.parametrize("wire", WIRES)
def test_an_empty_list_breaks_none(wire: str) -> None:
    assert codec(wire).violations([]) == []
