"""What a format cannot say goes along in a field that only Perdure reads."""

from __future__ import annotations

import copy
from typing import Any

import pytest
from hypothesis import given

from perdure.core.errors import InvalidInput
from perdure.core.messages import Message, Reasoning, Text, ToolCall, ToolResult, assistant, user
from perdure.wire import WIRES, codec
from perdure.wire.keep import applied, difference
from tests.wire.strategies import json_values

TURN = (
    user("Go."),
    Message("assistant", (Reasoning("Hm."), ToolCall("a", "f", '{ "x": 1 }')), model="m", time=5),
    Message("tool", (ToolResult("a", (Text("no such file " * 99),), is_error=True),)),
    assistant("So."),
)


@given(json_values, json_values)
def test_a_difference_applied_gives_the_other(old: Any, new: Any) -> None:
    change = difference(old, new)
    if change is None:
        assert repr(old) == repr(new)
    else:
        assert repr(_sorted(applied(old, change))) == repr(_sorted(new))


def _sorted(value: Any) -> Any:
    return dict(sorted(value.items())) if isinstance(value, dict) else value


def test_the_field_stands_in_the_first_message_of_a_group() -> None:
    items = codec("chat").encode(TURN, keep=True)
    assert [sorted(item) for item in items] == [
        ["content", "perdure", "role"],
        ["content", "perdure", "role", "tool_calls"],
        ["content", "perdure", "role", "tool_call_id"],
        ["content", "perdure", "role"],
    ]
    shown = codec("ui").encode(TURN, keep=True)
    assert ["perdure" in item["metadata"] for item in shown] == [True, True]


def test_only_what_cannot_be_said_is_in_it() -> None:
    for wire in WIRES:
        items = codec(wire).encode(TURN, keep=True)
        assert str(items).count("no such file " * 99) == 1


def test_a_body_keeps_as_well() -> None:
    system = Message("system", (Text("Be brief."),), time=5)
    for wire in WIRES:
        body = codec(wire).encode_body((system, *TURN), keep=True)
        assert codec(wire).decode(body) == (system, *TURN)


def test_what_came_from_here_needs_nothing() -> None:
    items = codec("chat").encode(TURN)
    assert codec("chat").encode(codec("chat").decode(items), keep=True) == items


def test_neighbours_stay_apart() -> None:
    replies = (assistant("One."), assistant("Two."), assistant("Three."))
    for wire in WIRES:
        assert codec(wire).decode(codec(wire).encode(replies, keep=True)) == replies


def test_messages_that_say_nothing_ride_along() -> None:
    silent = Message("assistant", (Reasoning("Hm."),), wire="responses")
    for wire in WIRES:
        for messages in ((silent,), (silent, user("Hi")), (user("Hi"), silent), ()):
            assert codec(wire).decode(codec(wire).encode(messages, keep=True)) == messages


def test_metadata_of_the_application_stays() -> None:
    for metadata in ({}, {"at": 5}, "words", None):
        said = {"id": "m", "role": "user", "parts": [{"type": "text", "text": "x"}]}
        item = {**said, "metadata": metadata}
        (message,) = codec("ui").decode([item])
        timed = Message("user", message.parts, id="m", time=5, wire="ui", native=message.native)
        (kept,) = codec("ui").encode([timed], keep=True)
        assert codec("ui").decode([kept]) == (timed,)
        assert codec("ui").encode(codec("ui").decode([kept])) == [item]


@pytest.mark.parametrize(
    "field",
    [
        5,
        "x",
        {},
        {"items": 0},
        {"items": 9},
        {"items": 1, "change": 5},
        {"items": 1, "change": {"list": [7]}},
        {"items": 1, "change": {"to": 5}},
        {"items": 1, "change": {"list": [{"of": 0, "in": {"in": {"nothing": {"to": 1}}}}]}},
        {"items": 1, "change": {"list": [{"of": 0, "in": {"set": {"role": "narrator"}}}]}},
    ],
)
def test_a_field_that_does_not_fit_is_refused(field: Any) -> None:
    item = {"role": "user", "content": "Hi", "perdure": copy.deepcopy(field)}
    with pytest.raises(InvalidInput, match="perdure"):
        codec("chat").decode([item])


def test_marks_put_on_what_was_encoded_do_not_reach_the_messages() -> None:
    block = {"type": "server_tool_use", "id": "s", "name": "web_search", "input": {}}
    messages = codec("messages").decode([{"role": "assistant", "content": [block]}])
    before = copy.deepcopy(messages)
    (item,) = codec("messages").encode(messages)
    item["content"][0]["cache_control"] = {"type": "ephemeral"}
    item["mark"] = True
    assert messages == before
    assert "cache_control" not in block
