"""What a repair does, case by case."""

from __future__ import annotations

import subprocess
import sys

import pytest

from perdure.core.errors import InvalidInput
from perdure.core.messages import (
    Media,
    Message,
    Reasoning,
    Text,
    ToolCall,
    ToolResult,
    Unknown,
    assistant,
    event,
    user,
)
from perdure.wire import codec, repaired
from perdure.wire.pairing import NO_RESULT, ORPHAN
from perdure.wire.repair import FIRST

MODELS = ("chat", "responses", "messages")


def asks(*ids: str, reply: str = "") -> Message:
    return Message("assistant", tuple(ToolCall(id, "shell", "{}") for id in ids), id=reply)


def answers(*ids: str, text: str = "done") -> Message:
    return Message("tool", tuple(ToolResult(id, (Text(text),)) for id in ids))


def _no_result(*ids: str) -> Message:
    parts = tuple(ToolResult(id, (Text(NO_RESULT),), name="shell") for id in ids)
    return Message("tool", parts)


def test_what_is_fit_stays() -> None:
    history = (user("Go."), asks("a", "b"), answers("b"), answers("a"), assistant("Done."))
    assert repaired(history) == history


def test_a_missing_result_is_said_to_be_missing() -> None:
    history = (user("Go."), asks("a", "b"), answers("b"), user("Well?"))
    assert repaired(history) == (
        user("Go."), asks("a", "b"), answers("b"), _no_result("a"), user("Well?"),
    )  # fmt: skip
    assert repaired((user("Go."), asks("a"))) == (user("Go."), asks("a"), _no_result("a"))


def test_results_move_behind_their_calls() -> None:
    history = (user("Go."), asks("a"), user("Hurry."), answers("a"))
    assert repaired(history) == (user("Go."), asks("a"), answers("a"), user("Hurry."))


def test_a_result_before_its_call_moves_too() -> None:
    assert repaired((user("Go."), answers("a"), asks("a"))) == (
        user("Go."), asks("a"), answers("a"),
    )  # fmt: skip


def test_words_between_results_come_after_them() -> None:
    first = Message("tool", (ToolResult("a", (Text("x"),)), Text("Hurry.")))
    fit = repaired((user("Go."), asks("a", "b"), first, answers("b")))
    assert [message.role for message in fit] == ["user", "assistant", "tool", "tool", "user"]
    assert (fit[-1].text, fit[-1].injected) == ("Hurry.", True)


def test_an_orphan_is_a_record() -> None:
    fit = repaired((user("Go."), answers("nobody", text="42"), assistant("So.")))
    assert fit[1] == Message("user", (Text(f"{ORPHAN}\n42"),), injected=True)


def test_an_orphans_picture_is_kept() -> None:
    picture = Media("image/png", data=b"x")
    fit = repaired((Message("tool", (ToolResult("nobody", (picture,)),)),))
    assert fit == (Message("user", (Text(ORPHAN), picture), injected=True),)


def test_a_second_result_is_dropped() -> None:
    history = (user("Go."), asks("a"), answers("a"), answers("a", text="again"), assistant("So."))
    assert repaired(history) == (user("Go."), asks("a"), answers("a"), assistant("So."))


def test_an_id_used_again_is_renamed_with_its_result() -> None:
    history = (user("Go."), asks("a"), answers("a"), asks("a"), answers("a", text="second"))
    fit = repaired(history)
    assert fit[:3] == history[:3]
    new = fit[3].calls[0].id
    assert new.startswith("call_")
    assert fit[4].results == [ToolResult(new, (Text("second"),))]


def test_the_newest_call_of_an_id_is_meant() -> None:
    fit = repaired((user("Go."), asks("a"), user("Again."), asks("a"), answers("a")))
    assert fit[2].results[0].text == NO_RESULT
    assert fit[-1].results[0].text == "done"


def test_two_calls_of_an_id_in_one_reply_are_answered_in_order() -> None:
    both = Message("tool", (ToolResult("", (Text("one"),)), ToolResult("", (Text("two"),))))
    fit = repaired((user("Go."), asks("", ""), both))
    first, second = fit[1].calls
    assert first.id != second.id
    assert [(each.call, each.text) for each in fit[2].results] == [
        (first.id, "one"),
        (second.id, "two"),
    ]


@pytest.mark.parametrize("id", ["", "not legal!", "вызов", "c" * 41])
def test_ids_that_are_refused_are_replaced(id: str) -> None:
    fit = repaired((user("Go."), asks(id), answers(id)))
    new = fit[1].calls[0].id
    assert new == fit[2].results[0].call != id
    assert repaired((user("Go."), asks(id), answers(id))) == fit


def test_lengths_differ_by_target() -> None:
    history = (user("Go."), asks("c" * 50), answers("c" * 50))
    assert repaired(history, "chat") != history
    assert repaired(history, "responses") == history
    assert repaired(history, "messages") == history


def test_new_ids_are_the_same_everywhere() -> None:
    """In another process with another hash seed, and whatever comes after."""
    code = (
        "from perdure.core.messages import *\n"
        "from perdure.wire import repaired\n"
        "m = (user('Go.'), Message('assistant', (ToolCall('', 'shell', '{}'),)))\n"
        "print(repaired(m)[1].calls[0].id)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        check=True,
        env={"PYTHONHASHSEED": "7", "PYTHONPATH": ":".join(filter(None, sys.path))},
    )
    fit = repaired((user("Go."), asks(""), answers(""), user("More."), asks("")))
    assert done.stdout.strip() == fit[1].calls[0].id == "call_db9f4fdfa61b53e29b37e72cc98e00d0"


def test_tools_get_names_that_are_taken() -> None:
    call = Message("assistant", (ToolCall("a", "mcp.server/tool", "{}"),))
    assert repaired((user("Go."), call, answers("a")))[1].calls[0].name == "mcp_server_tool"
    call = Message("assistant", (ToolCall("a", "", "{}"),))
    assert repaired((user("Go."), call, answers("a")))[1].calls[0].name == "unnamed"


def test_blank_texts_go_and_so_do_empty_messages() -> None:
    history = (user("Go."), user(" \n"), Message("assistant", (Text(""), Text("So."))), user(""))
    assert repaired(history) == (user("Go."), assistant("So."))


def test_reasoning_that_led_to_nothing_goes() -> None:
    thought = Reasoning("Hm.", signature="s")
    history = (
        user("Go."),
        Message("assistant", (thought, Text("So."), thought), wire="messages"),
        Message("assistant", (thought,), wire="messages"),
        Message("user", (thought, Text("Well?"))),
    )
    assert repaired(history) == (
        user("Go."),
        Message("assistant", (thought, Text("So.")), wire="messages"),
        user("Well?"),
    )


def test_pieces_of_a_reply_are_joined_where_they_must_be() -> None:
    thought = Message("assistant", (Reasoning("Hm.", signature="s"),), id="m", wire="messages")
    said = Message("assistant", (Text("So."),), id="m", wire="messages")
    (_, joined) = repaired((user("Go."), thought, said), "messages")
    assert joined.parts == (*thought.parts, *said.parts)
    first, second = asks("a", reply="m"), asks("b", reply="m")
    history = (user("Go."), first, second, answers("a"), answers("b"))
    assert repaired(history, "messages") == history
    assert repaired(history, "responses") == history
    (_, joined, *rest) = repaired(history, "chat")
    assert [call.id for call in joined.calls] == ["a", "b"]
    assert rest == [answers("a"), answers("b")]


def test_a_user_speaks_first_to_anthropic() -> None:
    history = (Message("system", (Text("Be brief."),)), assistant("Welcome."), user("Hi"))
    assert repaired(history, "chat") == history
    fit = repaired(history, "messages")
    assert fit == (history[0], Message("user", (Text(FIRST),), injected=True), *history[1:])
    assert repaired(fit, "messages") == fit


def test_an_error_holds_text_only() -> None:
    picture = ToolResult("a", (Media("image/png", data=b"x"),), is_error=True)
    fit = repaired((user("Go."), asks("a"), Message("tool", (picture,))), "messages")
    assert fit[2].results[0].text == "[image/png, 1 bytes, not shown]"


def test_an_item_is_not_sent_twice() -> None:
    items = [
        {"type": "reasoning", "id": "rs_1", "summary": []},
        {"type": "function_call", "id": "fc_1", "call_id": "a", "name": "f", "arguments": "{}"},
        {"type": "function_call_output", "call_id": "a", "output": "x"},
    ]
    twice = codec("responses").decode(items) * 2
    fit = codec("responses").encode(repaired(twice, "responses"))
    assert [item.get("id") for item in fit] == ["rs_1", "fc_1", None, None, None]
    assert codec("responses").violations(fit) == []


def test_a_custom_call_gets_a_result_of_its_kind() -> None:
    call = {"type": "custom_tool_call", "call_id": "a", "name": "patch", "input": "*** Begin"}
    fit = repaired(codec("responses").decode([{"role": "user", "content": "Go."}, call]))
    assert codec("responses").encode(fit)[-1] == {
        "type": "custom_tool_call_output",
        "call_id": "a",
        "output": NO_RESULT,
    }


def test_the_older_functions_become_tools() -> None:
    history = codec("chat").decode(
        [
            {"role": "user", "content": "Go."},
            {
                "role": "assistant",
                "content": None,
                "function_call": {"name": "f", "arguments": "{}"},
            },
            {"role": "function", "name": "f", "content": "ok"},
        ]
    )
    items = codec("chat").encode(repaired(history, "chat"))
    assert items[2]["role"] == "tool"
    assert items[2]["tool_call_id"] == items[1]["tool_calls"][0]["id"]


def test_a_form_that_would_be_refused_is_laid_out_afresh() -> None:
    history = codec("chat").decode(
        [
            {"role": "user", "content": "Go."},
            {"role": "assistant", "content": "So.", "tool_calls": []},
        ]
    )
    assert codec("chat").violations(codec("chat").encode(history)) != []
    assert codec("chat").encode(repaired(history)) == [
        {"role": "user", "content": "Go."},
        {"role": "assistant", "content": "So."},
    ]


def test_strangers_that_break_the_rules_go() -> None:
    good = Unknown("messages", {"type": "server_tool_use", "id": "s"})
    bad = Unknown("messages", {"type": "tool_use", "id": "s"})
    fit = repaired((user("Go."), Message("assistant", (good, bad, Text("So.")))))
    assert fit[1].parts == (good, Text("So."))


def test_events_stay_where_they_are() -> None:
    mark = event("compacted")
    history = (mark, user("Go."), asks("a"), mark, answers("a"), mark)
    for wire in (None, *MODELS):
        assert repaired(history, wire) == history


def test_only_formats_of_models_can_be_repaired_for() -> None:
    with pytest.raises(InvalidInput, match="ui"):
        repaired((), "ui")
