"""What the gateway is given: as its callers have it, or refused before anything is sent."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest
from openai.types.chat import ChatCompletionMessage

from perdure.core.errors import InvalidInput
from perdure.core.messages import Message, Text, ToolCall, assistant, user
from perdure.gateway.calls import PURPOSES, CallOptions, Request, Shape, Tool
from perdure.gateway.gateway import Gateway
from perdure.testing import ReceivedRequest, ScriptedModel
from tests.gateway.opened import opened

SCHEMA = {"type": "object", "properties": {"path": {"type": "string"}}}
TOOL = Tool("read", "Reads a file.", SCHEMA)
WRONG: Any = 3
TOLD = {"name": "read", "description": "Reads a file."}


# Requests -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "given",
    [
        "hi",
        user("hi"),
        [user("hi")],
        ("hi",),
        {"role": "user", "content": "hi"},
        [{"role": "user", "content": [{"type": "text", "text": "hi"}]}],
        {"messages": [{"role": "user", "content": "hi"}], "model": "m"},
        (each for each in ["hi"]),
    ],
)
def test_messages_of_all_kinds(given: Any) -> None:
    (message,) = Request(messages=given).messages
    assert (message.role, message.text) == ("user", "hi")


def test_messages_of_a_sdk_and_mixed() -> None:
    said = ChatCompletionMessage(role="assistant", content="Hello.")
    found = Request(messages=["hi", said, user("And?")]).messages
    assert [(each.role, each.text) for each in found] == [
        ("user", "hi"),
        ("assistant", "Hello."),
        ("user", "And?"),
    ]


def test_canonical_messages_stay_as_they_are() -> None:
    messages = (
        user("hi"),
        Message("assistant", (Text("so"), ToolCall("c1", "read", "{}")), model="m"),
        assistant("x"),
    )
    request = Request(messages=messages)
    assert request.messages == messages
    assert msgspec.structs.replace(request, seed=3).messages == messages


@pytest.mark.parametrize(
    "given",
    [
        TOOL,
        {"type": "function", "function": {**TOLD, "parameters": SCHEMA}},
        {"type": "function", "function": {**TOLD, "parameters": SCHEMA, "strict": None}},
        {"type": "function", **TOLD, "parameters": SCHEMA},
        {**TOLD, "input_schema": SCHEMA},
        {**TOLD, "type": "custom", "input_schema": SCHEMA, "cache_control": {"type": "ephemeral"}},
    ],
)
def test_tools_of_all_formats(given: Any) -> None:
    assert Request(messages="hi", tools=[given], tool_choice="read").tools == (TOOL,)


def test_a_tool_may_say_little_or_be_strict() -> None:
    tools: list[dict[str, Any]] = [
        {"type": "function", "function": {"name": "now"}},
        {"type": "function", "name": "now", "parameters": None, "strict": True},
    ]
    assert Request(messages="hi", tools=tools).tools == (Tool("now"), Tool("now", strict=True))


def test_shapes_and_stop_words() -> None:
    assert Request(messages="hi", shape=SCHEMA).shape == Shape(SCHEMA)
    assert Request(messages="hi", shape=Shape(SCHEMA, "file")).shape == Shape(SCHEMA, "file")
    assert Request(messages="hi", stop="END").stop == ("END",)
    assert Request(messages="hi", stop=["a", "b"]).stop == ("a", "b")


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("temperature", "x"),
        ("temperature", True),
        ("top_p", "0.5"),
        ("seed", "a"),
        ("seed", 1.5),
        ("max_tokens", "5"),
        ("reasoning", "huge"),
        ("reasoning", 0.5),
        ("tool_choice", "any"),
        ("tool_choice", {"type": "function", "function": {"name": "read"}}),
        ("parallel_tools", "yes"),
        ("prompt_cache_key", 3),
        ("extra", {"logprobs": True}),
        ("stop", 3),
        ("stop", [3]),
        ("stop", ""),
        ("shape", "json"),
        ("shape", Shape),
        ("tools", "read"),
        ("tools", TOOL),
        ("tools", ["read"]),
        ("tools", [len]),
        ("tools", [{"type": "web_search"}]),
        ("tools", [{"type": "function", "function": {}}]),
        ("tools", [{**TOLD, "input_schema": SCHEMA, "defer_loading": True}]),
    ],
)
def test_what_cannot_be_meant_is_refused_and_the_field_named(field: str, value: Any) -> None:
    with pytest.raises(InvalidInput, match=rf"Request\.{field}") as refused:
        Request(messages="hi", **{field: value})
    assert refused.value.hint


@pytest.mark.parametrize(
    "messages",
    [[], (), 3, None, [3], b"hi", Message("user", WRONG), Message("user", ("hi",)), Message(WRONG)],  # type: ignore[arg-type]
)
def test_what_holds_no_messages_is_refused(messages: Any) -> None:
    with pytest.raises(InvalidInput):
        Request(messages=messages)


@pytest.mark.parametrize(
    ("make", "named"),
    [
        (lambda: Tool(WRONG), r"Tool\.name"),
        (lambda: Tool("a", parameters=WRONG), r"Tool\.parameters"),
        (lambda: Shape(WRONG), r"Shape\.schema"),
        (lambda: Shape({"type": "json_schema", "json_schema": {}}), "response format"),
        (
            lambda: Request(
                messages="hi", tools=[{"type": "function", "name": "a", "parameters": 3}]
            ),
            r"Tool\.parameters",
        ),
    ],
)
def test_tools_and_shapes_are_checked(make: Callable[[], Any], named: str) -> None:
    with pytest.raises(InvalidInput, match=named):
        make()


def test_numbers_may_be_of_other_libraries() -> None:
    class Float(float):
        """As numpy's."""

    assert Request(messages="hi", temperature=Float(0.5), top_p=1).temperature == 0.5


# Who asks -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("field", "value", "hint"),
    [
        ("purpose", "chatt", ", ".join(PURPOSES)),
        ("purpose", ["chat"], ", ".join(PURPOSES)),
        ("complexity", "hard", "simple, moderate, complex"),
        ("deadline", -1.0, ""),
        ("deadline", float("nan"), ""),
        ("deadline", "5s", ""),
        ("agent", 3, ""),
        ("session", SimpleNamespace(id="s"), ""),
        ("task", None, ""),
        ("model", ("a/b",), ""),
        ("cache", "no", ""),
    ],
)
def test_who_asks_is_checked(field: str, value: Any, hint: str) -> None:
    with pytest.raises(InvalidInput, match=rf"CallOptions\.{field} cannot be") as refused:
        CallOptions(**{field: value})
    assert hint in refused.value.hint


def test_what_is_refused_is_not_shown_in_full() -> None:
    name: Any = ["x" * 1_000]
    with pytest.raises(InvalidInput) as refused:
        CallOptions(agent=name)
    assert len(str(refused.value)) < 200


# The gateway ----------------------------------------------------------------------------------


@pytest.fixture
async def model() -> AsyncIterator[ScriptedModel]:
    async with ScriptedModel("Hello.") as model:
        yield model


@pytest.fixture
async def gateway(model: ScriptedModel) -> AsyncIterator[Gateway]:
    async with opened(model) as gateway:
        yield gateway


async def test_what_was_given_in_other_forms_is_sent(
    model: ScriptedModel, gateway: Gateway
) -> None:
    asked = Request(
        messages={"role": "user", "content": "hi"},
        tools=[{**TOLD, "input_schema": SCHEMA}],
        shape=SCHEMA,
        stop="END",
    )
    assert (await gateway.complete(asked)).text == "Hello."
    async with gateway.stream(asked) as stream:
        assert (await stream.finish()).text == "Hello."

    def told(sent: ReceivedRequest) -> Any:
        return sent.prompt, sent.body["tools"][0]["function"]["name"], sent.body["stop"]

    assert [told(sent) for sent in model.requests] == [("hi", "read", ["END"])] * 2


@pytest.mark.parametrize("ask", ["planner", None, {"agent": "planner"}])
async def test_who_asks_must_be_an_ask(model: ScriptedModel, gateway: Gateway, ask: Any) -> None:
    with pytest.raises(InvalidInput, match="CallOptions"):
        await gateway.complete("hi", ask)
    with pytest.raises(InvalidInput, match="CallOptions"):
        gateway.stream("hi", ask)
    with pytest.raises(InvalidInput, match="CallOptions"):
        await gateway.embed(["hi"], ask)
    assert not model.requests


async def test_who_embeds_need_not_say_so(gateway: Gateway) -> None:
    made = await gateway.embed(["hi"], CallOptions(agent="planner"))
    assert len(made.vectors) == 1
    (row,) = await gateway.costs("purpose")
    assert row.of == "embed"
    with pytest.raises(InvalidInput, match="for judge"):
        await gateway.embed(["hi"], CallOptions(purpose="judge"))


@pytest.mark.parametrize(
    ("texts", "said"),
    [
        ("hi", "wants a list of texts"),
        ([], "nothing to embed"),
        ([3], r"texts\[0\] is a int"),
        (["hi", None], r"texts\[1\]"),
        (3, "wants a list of texts"),
        (b"hi", "wants a list of texts"),
    ],
)
async def test_what_cannot_be_embedded(
    model: ScriptedModel, gateway: Gateway, texts: Any, said: str
) -> None:
    with pytest.raises(InvalidInput, match=said):
        await gateway.embed(texts)
    assert not model.requests


async def test_feedback_is_a_number_about_an_outcome(gateway: Gateway) -> None:
    reply = await gateway.complete("hi")
    given: Any
    for given in ("good", None, 1.5, float("nan")):
        with pytest.raises(InvalidInput, match="score"):
            await gateway.feedback(reply.outcome, given)
    given = reply
    with pytest.raises(InvalidInput, match="`outcome` of a reply"):
        await gateway.feedback(given, 1)
    await gateway.feedback(reply.outcome, 1)


async def test_costs_are_asked_for_by_moments(gateway: Gateway) -> None:
    span: Any = "7d"
    with pytest.raises(InvalidInput, match="since cannot be '7d'"):
        await gateway.costs("day", since=span)
    with pytest.raises(InvalidInput, match="until cannot be"):
        await gateway.costs("day", until=span)


async def test_a_purpose_that_there_is_not(gateway: Gateway) -> None:
    assert gateway.has("chat")
    purpose: Any
    for purpose in ("chatt", None, ["chat"]):
        with pytest.raises(InvalidInput, match="chat, compress"):
            gateway.has(purpose)
