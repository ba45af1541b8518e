"""What a context says of itself, and the bodies that it makes."""

from __future__ import annotations

from typing import Any

import pytest

from perdure.context.context import compose
from perdure.core.errors import InvalidInput
from perdure.core.messages import Message, Text, ToolCall, ToolResult, assistant, user
from perdure.gateway.calls import Tool
from perdure.history.manifest import Injected, Native, RoundId, ShownHistory
from perdure.history.strategies.epoch_planner import LEAD
from perdure.wire import codec
from tests.context.windows import WIRES, Story, encoded, items_of, long_talk, violations

TOOL = {"name": "look", "description": "Looks.", "input_schema": {"type": "object"}}


def long_story(budget: int = 3_000, count: int = 60) -> Story:
    story = Story(budget)
    for turn in long_talk(count):
        story.context(turn[:1])
        story.say(turn)
    return story


def test_system_text_and_tools_stand_where_each_api_wants_them() -> None:
    context = compose(
        ShownHistory(), turn=1, budget=500, prompt=(user("Hi."),), system="Be brief.", tools=[TOOL]
    )
    chat, responses, messages = (encoded(context, wire) for wire in WIRES)
    assert chat["messages"][0] == {"content": "Be brief.", "role": "system"}
    assert chat["tools"][0]["function"]["name"] == "look"
    assert responses["instructions"] == "Be brief."
    assert responses["tools"][0]["name"] == "look"
    assert messages["system"][0]["text"] == "Be brief."
    assert messages["tools"][0]["input_schema"] == {"type": "object"}
    for body in (chat, responses, messages):
        assert list(body) == sorted(body)


def test_system_text_of_the_history_joins_that_of_the_caller() -> None:
    logged = Message("system", (Text("Speak French."),))
    first = Native(RoundId(1), (logged, user("Hi."), assistant("Salut.")), 10, 10)
    context = compose(
        ShownHistory(rounds=(first,)),
        turn=2,
        budget=500,
        prompt=(user("Go on."),),
        system="Be brief.",
    )
    assert context.to_chat()["messages"][0]["content"] == "Be brief.\n\nSpeak French."
    assert context.to_responses()["instructions"] == "Be brief.\n\nSpeak French."
    assert [each["text"] for each in context.to_messages()["system"]] == [
        "Be brief.",
        "Speak French.",
    ]
    for wire in WIRES:
        assert violations(context, wire) == []
        assert str(encoded(context, wire)).count("Speak French.") == 1


def test_what_there_is_none_of_is_left_out() -> None:
    context = compose(ShownHistory(), turn=1, budget=500, prompt=(user("Hi."),))
    assert list(context.to_chat()) == ["messages"]
    assert list(context.to_responses()) == ["input"]
    assert list(context.to_messages()) == ["messages"]


def test_a_tool_that_is_none_is_refused() -> None:
    with pytest.raises(InvalidInput, match="is no tool"):
        compose(ShownHistory(), turn=1, budget=500, tools=[{"nonsense": True}])
    native = Tool("search", native={"messages": {"type": "web_search", "name": "search"}})
    context = compose(ShownHistory(), turn=1, budget=500, prompt=(user("Hi."),), tools=[native])
    assert "tools" not in context.to_chat()
    assert context.to_messages()["tools"][0]["type"] == "web_search"


def test_tokens_are_the_sum_of_all_parts_and_bands_run_from_old_to_new() -> None:
    context = long_story().context((user("Hi."),))
    shown = context.shown
    assert context.tokens == (
        sum(block.element.tokens for block in shown.blocks)
        + sum(native.tokens for native in shown.rounds)
        + sum(each.tokens for each in shown.injected)
        + (context.injection.tokens if context.injection else 0)
        + LEAD
        + context.prompt_tokens
    )
    assert [band.level for band in context.bands] == ["T", "C", "S", "R"]
    assert context.bands[0].first == "T-1.1"
    explained = context.explain()
    assert sum(each.tokens for each in explained) == context.tokens
    assert [each.kind for each in explained[-2:]] == ["injection", "prompt"]
    assert all(each.name.startswith("T-") for each in explained if each.kind != "message")


def test_calls_of_two_rounds_with_the_same_id_are_told_apart() -> None:
    def worked(turn: int) -> Native:
        call = ToolCall("call_1", "shell", "{}")
        done = Message("tool", (ToolResult("call_1", (Text(f"done {turn}"),)),))
        messages = (user("Do."), Message("assistant", (call,)), done, assistant("Done."))
        return Native(RoundId(turn), messages, 10, 10)

    shown = ShownHistory(rounds=tuple(map(worked, range(1, 4))))
    context = compose(shown, turn=4, budget=500, prompt=(user("Go on."),))
    for wire in WIRES:
        assert violations(context, wire) == []
        results = [
            result.text
            for message in codec(wire).decode(items_of(context, wire))
            for result in message.results
        ]
        assert results == ["done 1", "done 2", "done 3"]


def test_a_result_that_comes_late_does_not_change_what_was_sent() -> None:
    call = ToolCall("c1", "shell", "{}")
    asked = Native(RoundId(1), (user("Do."), Message("assistant", (call,))), 10, 10)
    late = (Message("tool", (ToolResult("c1", (Text("late"),)),)), user("Well?"))
    before = compose(ShownHistory(rounds=(asked,)), turn=2, budget=500, prompt=late[1:])
    shown = ShownHistory(rounds=(asked, Native(RoundId(2), (*late, assistant("So.")), 10, 10)))
    after = compose(shown, turn=3, budget=500, prompt=(user("Next."),))
    for wire in WIRES:
        assert violations(after, wire) == []
        sent = items_of(before, wire)[:-1]
        again = items_of(after, wire)[: len(sent)]
        assert [str(item.get("role")) for item in again] == [str(i.get("role")) for i in sent]
        assert "no result was recorded" in str(again)
        assert "late" in str(items_of(after, wire))


# Cache breakpoints --------------------------------------------------------------------------------


def marked(items: list[Any], name: str = "cache_control") -> list[tuple[int, int]]:
    return [
        (at, number)
        for at, item in enumerate(items)
        if isinstance(item.get("content"), list)
        for number, block in enumerate(item["content"])
        if name in block
    ]


def test_anthropic_gets_markers_where_prefixes_end() -> None:
    story = long_story()
    context = story.context((user("Hi."),))
    body = context.to_messages()
    assert "cache_control" in body["system"][-1]
    old = sum(b.element.first < context.shown.rounds[0].place for b in context.shown.blocks)
    items = body["messages"]
    places = marked(items)
    last_reply = max(at for at, item in enumerate(items) if item["role"] == "assistant")
    assert places[0] == (0, old - 1)
    assert places[1][0] == last_reply - 1  # where the last request ended
    assert places[2] == (len(items) - 1, len(items[-1]["content"]) - 1)
    assert len(places) == 3


def test_a_callers_own_markers_do_not_add_up_with_ours() -> None:
    loud = Text("Hi.", native={"messages": {"cache_control": {"type": "ephemeral"}}})
    rounds = tuple(
        Native(RoundId(n), (Message("user", (loud,), wire="messages"), assistant("Ok.")), 9, 9)
        for n in range(1, 9)
    )
    context = compose(ShownHistory(rounds=rounds), turn=9, budget=500, prompt=(user("Go on."),))
    assert str(context.to_messages()).count("cache_control") <= 4


@pytest.mark.parametrize(
    ("model", "takes"),
    [
        ("gpt-5.6", True),
        ("openai/gpt-5.6-sol", True),
        ("gpt-6", True),
        ("gpt-5.5", False),
        ("gpt-5", False),
        ("gpt-4o", False),
        ("claude-opus-5", False),
        ("", False),
    ],
)
def test_openai_gets_markers_from_the_models_on_that_take_them(model: str, takes: bool) -> None:
    context = long_story().context((user("Hi."),), model=model)
    for wire in ("chat", "responses"):
        found = marked(items_of(context, wire), "prompt_cache_breakpoint")
        assert bool(found) is takes
        assert len(found) <= 3
        assert violations(context, wire) == []
    assert "prompt_cache" not in str(context.to_messages())


def test_what_was_handed_out_is_the_callers() -> None:
    context = long_story(count=10).context((user("Hi."),))
    for wire in WIRES:
        before = str(encoded(context, wire))
        body = encoded(context, wire)
        for item in items_of(context, wire) + body["input" if wire == "responses" else "messages"]:
            item.clear()
        assert str(encoded(context, wire)) == before


def test_the_injection_counts_once() -> None:
    note = Injected(1, "note", 7)
    context = compose(
        ShownHistory(injected=(note,)), turn=1, budget=500, prompt=(user("Hi."),), injection=note
    )
    assert context.tokens == 7 + context.prompt_tokens
    assert context.cache_key == compose(ShownHistory(), turn=2, budget=9).cache_key
