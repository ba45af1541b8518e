"""A round that is too large, shown in part."""

from __future__ import annotations

import json

from hypothesis import given
from hypothesis import strategies as st

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
from perdure.core.tokens import count_messages, o200k
from perdure.history.reduce_messages import reduced
from perdure.wire import codec, repaired
from tests.wire.strategies import conversations, histories

COUNTER = o200k()


def lines(count: int, word: str = "line") -> str:
    return "\n".join(f"{word} {number} of the output" for number in range(count))


def a_round(*outputs: str, prompt: str = "Look at it.") -> tuple[Message, ...]:
    calls = tuple(ToolCall(f"c{n}", "shell", '{"command": "ls"}') for n in range(len(outputs)))
    results = tuple(ToolResult(f"c{n}", (Text(text),)) for n, text in enumerate(outputs))
    return user(prompt), Message("assistant", (Text("I look."), *calls)), Message("tool", results)


def test_what_fits_is_not_touched() -> None:
    whole = a_round(lines(5))
    assert reduced(whole, "T-12.3", 10_000, COUNTER) == whole


def test_the_largest_output_goes_first_and_says_where_the_whole_is() -> None:
    whole = a_round(lines(3), lines(2_000))
    view = reduced(whole, "T-12.3", 500, COUNTER)
    assert count_messages(COUNTER, view) <= 500
    small, large = view[2].results
    assert small == whole[2].results[0]
    assert large.text.startswith("line 0")
    assert large.text.rstrip().endswith("1999 of the output")
    assert "T-12.3" in large.text
    assert view[:2] == whole[:2]


def test_that_it_failed_stays() -> None:
    text = f"{lines(500)}\nTraceback (most recent call last):\nValueError: no\n{lines(500)}"
    result = ToolResult("c0", (Text(text),), is_error=True)
    whole = (*a_round("x")[:2], Message("tool", (result,)))
    view = reduced(whole, "T-12.3", 400, COUNTER)
    assert view[2].results[0].is_error
    assert "ValueError: no" in view[2].results[0].text


def test_pictures_in_results_are_named() -> None:
    picture = Media("image/png", data=b"x" * 300_000)
    whole = (*a_round("x")[:2], Message("tool", (ToolResult("c0", (picture,)),)))
    view = reduced(whole, "T-12.3", 200, COUNTER)
    assert view[2].results[0].text == "[image/png: left out; the whole is in T-12.3]"


def test_then_arguments_which_stay_json() -> None:
    arguments = json.dumps({"path": "a.py", "content": lines(2_000), "list": list(range(5_000))})
    call = ToolCall("c0", "write", arguments)
    whole = (
        user("Write it."),
        Message("assistant", (Reasoning("Hm.", signature="s"), Text("So."), call)),
        Message("tool", (ToolResult("c0", (Text("done"),)),)),
    )
    view = reduced(whole, "T-12.3", 200, COUNTER)
    assert count_messages(COUNTER, view) <= 200
    (small,) = view[1].calls
    said = json.loads(small.arguments)
    assert said["path"] == "a.py"
    assert "T-12.3" in said["content"]
    assert view[1].parts[0] == Text("So.")  # a thought cannot be cut, only left out
    assert view[2] == whole[2]


def test_then_what_the_model_said_and_never_the_prompt() -> None:
    whole = (user(lines(100, "wish")), assistant(lines(2_000)))
    prompt = count_messages(COUNTER, whole[:1])
    view = reduced(whole, "T-12.3", prompt + 200, COUNTER)
    assert count_messages(COUNTER, view) <= prompt + 200
    assert view[0] == whole[0]
    assert "T-12.3" in view[1].text
    least = reduced(whole, "T-12.3", 10, COUNTER)
    assert least[0] == whole[0]
    assert count_messages(COUNTER, least) < prompt + 60


@given(st.lists(st.integers(0, 300), min_size=1, max_size=4), st.integers(150, 2_000))
def test_the_cap_holds_where_it_can(sizes: list[int], cap: int) -> None:
    whole = a_round(*(lines(size) for size in sizes))
    view = reduced(whole, "T-1.1", cap, COUNTER)
    if cap >= count_messages(COUNTER, whole[:2]) + 60 * len(sizes):
        assert count_messages(COUNTER, view) <= cap
    assert view == reduced(whole, "T-1.1", cap, COUNTER)
    assert len(view) == len(whole)


@given(histories() | conversations(), st.integers(0, 60))
def test_nothing_is_invented_or_torn_apart(messages: tuple[Message, ...], cap: int) -> None:
    view = reduced(messages, "T-1.1", cap, COUNTER)
    assert [m.role for m in view] == [m.role for m in messages]
    for before, after in zip(messages, view, strict=True):
        assert [c.id for c in before.calls] == [c.id for c in after.calls]
        assert [r.call for r in before.results] == [r.call for r in after.results]
        for old, new in zip(before.calls, after.calls, strict=True):
            try:
                json.loads(old.arguments)
            except ValueError:
                continue
            json.loads(new.arguments)
    for wire in ("chat", "responses", "messages"):
        assert codec(wire).violations(codec(wire).encode(repaired(view, wire))) == []
