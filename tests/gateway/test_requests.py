"""What is asked, as each wire format says it."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from msgspec.structs import replace

from perdure import wire
from perdure.core.errors import InvalidInput, NoModel, Unauthorized
from perdure.core.messages import (
    ArtifactPointer,
    Media,
    Message,
    Part,
    Reasoning,
    Text,
    ToolCall,
    ToolResult,
    assistant,
    event,
    user,
)
from perdure.gateway import requests
from perdure.gateway.calls import Effort, Request, Shape, Tool
from perdure.gateway.providers import CallWire, Habits, Provider
from tests.wire.strategies import conversations, histories

WIRES: tuple[CallWire, ...] = ("chat", "responses", "messages")
each_wire = pytest.mark.parametrize("wire_name", WIRES)

SCHEMA = {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]}
SHAPE = Shape(SCHEMA, name="count")
SHELL = Tool("shell", "Runs a command.", {"type": "object", "properties": {}}, strict=True)
SEARCH = Tool("search", native={"responses": {"type": "web_search"}})
PNG = b"\x89PNG"
ARTIFACT = "sha256:" + "0" * 64


def provider(wire_name: CallWire, **habits: Any) -> Provider:
    return Provider(
        name="p", wire=wire_name, base_url="http://127.0.0.1:1/v1", habits=Habits(**habits)
    )


def body(
    wire_name: CallWire,
    *messages: Message,
    model: str = "m",
    stream: bool = False,
    habits: dict[str, Any] | None = None,
    **fields: Any,
) -> dict[str, Any]:
    request = Request(messages=messages or (user("hi"),), **fields)
    call = requests.build(request, provider(wire_name, **(habits or {})), model, stream=stream)
    json.dumps(call.body)  # it can be sent
    return call.body


# Messages --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("wire_name", "expected"),
    [
        (
            "chat",
            {
                "messages": [
                    {"role": "system", "content": "Be brief."},
                    {"role": "user", "content": "hi"},
                ]
            },
        ),
        (
            "responses",
            {
                "instructions": "Be brief.",
                "input": [
                    {
                        "type": "message",
                        "role": "user",
                        "content": [{"type": "input_text", "text": "hi"}],
                    }
                ],
                "store": False,
                "include": ["reasoning.encrypted_content"],
            },
        ),
        (
            "messages",
            {
                "system": "Be brief.",
                "messages": [{"role": "user", "content": "hi"}],
                "max_tokens": 8_192,
            },
        ),
    ],
)
def test_a_small_request_is_small(wire_name: CallWire, expected: dict[str, Any]) -> None:
    said = body(wire_name, Message("system", (Text("Be brief."),)), user("hi"))
    assert said == {"model": "m", **expected}


def whole(part: Any) -> Any:
    """The part, with what is kept elsewhere put in its place."""
    if isinstance(part, ArtifactPointer):
        return Text("content")
    if isinstance(part, Media) and part.artifact:
        return replace(part, artifact=None, data=b"content")
    if isinstance(part, ToolCall) and part.reference:
        return replace(part, reference=None, arguments="{}")
    if isinstance(part, ToolResult):
        return replace(part, content=tuple(whole(inner) for inner in part.content))
    return part


def going_on(history: tuple[Message, ...]) -> tuple[Message, ...]:
    """Nothing kept elsewhere, and a prompt at the end that every format can show."""
    said = [
        replace(message, parts=tuple(whole(part) for part in message.parts)) for message in history
    ]
    return (*said, assistant("So it is."), user("Go on."))


any_history = (histories() | conversations()).map(going_on)


@each_wire
@given(history=any_history)
def test_any_history_can_be_sent(wire_name: CallWire, history: tuple[Message, ...]) -> None:
    said = body(wire_name, *history)
    items = said["input"] if wire_name == "responses" else said["messages"]
    assert wire.codec(wire_name).violations(items) == []
    assert json.dumps(body(wire_name, *history)) == json.dumps(said)


@each_wire
@pytest.mark.parametrize(
    "part",
    [
        ArtifactPointer(ARTIFACT, 9),
        Media("image/png", artifact=ARTIFACT, size=9),
        ToolResult("c1", (Text("x"), ArtifactPointer(ARTIFACT, 9))),
        ToolResult("c1", (Media("image/png", artifact=ARTIFACT),)),
        ToolCall("c1", "shell", reference=ArtifactPointer(ARTIFACT, 9)),
    ],
)
def test_what_stands_for_content_elsewhere_cannot_be_sent(wire_name: CallWire, part: Part) -> None:
    with pytest.raises(InvalidInput, match=r"messages\[1\] holds a reference .*session.resolve"):
        body(wire_name, user("hi"), Message("user", (part,)))


@each_wire
def test_there_must_be_something_to_answer(wire_name: CallWire) -> None:
    for messages in [(Message("system", (Text("x"),)),), (event("compacted"),), (user(" "),)]:
        with pytest.raises(InvalidInput, match="no message to answer"):
            body(wire_name, *messages)


def test_reasoning_goes_back_to_its_own_model_only() -> None:
    def thinking(model: str) -> bool:
        thought = Message(
            "assistant",
            (Reasoning("Hm.", signature="s"), Text("Yes.")),
            model="claude-sonnet-4-5-20250929",
            wire="messages",
        )
        said = body("messages", user("a"), thought, user("b"), model=model)
        return said["messages"][1]["content"][0]["type"] == "thinking"

    assert thinking("claude-sonnet-4-5")
    assert thinking("anthropic/claude-sonnet-4-5")
    assert not thinking("claude-opus-4-5")
    assert not thinking("claude-sonnet-4")


# Images ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("wire_name", "media", "block"),
    [
        (
            "chat",
            Media("image/png", data=PNG),
            {"type": "image_url", "image_url": {"url": "data:image/png;base64,iVBORw=="}},
        ),
        (
            "chat",
            Media("image/png", url="https://x.example/a.png"),
            {"type": "image_url", "image_url": {"url": "https://x.example/a.png"}},
        ),
        (
            "chat",
            Media("application/pdf", file_id="file_1"),
            {"type": "file", "file": {"file_id": "file_1"}},
        ),
        (
            "responses",
            Media("image/png", data=PNG),
            {
                "type": "input_image",
                "image_url": "data:image/png;base64,iVBORw==",
                "detail": "auto",
            },
        ),
        (
            "responses",
            Media("image/png", file_id="file_1"),
            {"type": "input_image", "file_id": "file_1"},
        ),
        (
            "messages",
            Media("image/png", data=PNG),
            {
                "type": "image",
                "source": {"type": "base64", "media_type": "image/png", "data": "iVBORw=="},
            },
        ),
        (
            "messages",
            Media("image/png", url="https://x.example/a.png"),
            {"type": "image", "source": {"type": "url", "url": "https://x.example/a.png"}},
        ),
        (
            "messages",
            Media("image/png", file_id="file_1"),
            {"type": "image", "source": {"type": "file", "file_id": "file_1"}},
        ),
    ],
)
def test_images(wire_name: CallWire, media: Media, block: dict[str, Any]) -> None:
    said = body(wire_name, Message("user", (Text("What is it?"), media)))
    items = said["input"] if wire_name == "responses" else said["messages"]
    assert items[0]["content"][1] == block


def test_a_prompt_that_cannot_be_shown_is_not_sent() -> None:
    picture = Message("user", (Media("image/png", file_id="file_1"),))
    with pytest.raises(NoModel, match="cannot show this image/png"):
        body("chat", picture)
    with pytest.raises(NoModel, match="cannot show this audio/wav"):
        body("messages", Message("user", (Media("audio/wav", data=b"x"),)))
    # Of what was seen before, a word is enough.
    said = body("chat", picture, assistant("A cat."), user("Which colour?"))
    assert said["messages"][0]["content"] == "[image/png, file_1]"


# Tools -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("wire_name", "tool"),
    [
        (
            "chat",
            {
                "type": "function",
                "function": {
                    "name": "shell",
                    "description": "Runs a command.",
                    "parameters": SHELL.parameters,
                    "strict": True,
                },
            },
        ),
        (
            "responses",
            {
                "type": "function",
                "name": "shell",
                "description": "Runs a command.",
                "parameters": SHELL.parameters,
                "strict": True,
            },
        ),
        (
            "messages",
            {
                "name": "shell",
                "description": "Runs a command.",
                "input_schema": SHELL.parameters,
                "strict": True,
            },
        ),
    ],
)
def test_tools(wire_name: CallWire, tool: dict[str, Any]) -> None:
    said = body(wire_name, tools=(SHELL,))
    assert said["tools"] == [tool]
    assert "tool_choice" not in said
    bare = body(wire_name, tools=(Tool("now"),))["tools"][0]
    assert "strict" not in json.dumps(bare)
    assert "description" not in json.dumps(bare)


@pytest.mark.parametrize(
    ("wire_name", "choice", "parallel", "expected"),
    [
        ("chat", "none", None, "none"),
        ("chat", "required", None, "required"),
        ("chat", "shell", None, {"type": "function", "function": {"name": "shell"}}),
        ("responses", "required", True, "required"),
        ("responses", "shell", None, {"type": "function", "name": "shell"}),
        ("responses", "search", None, {"type": "web_search"}),
        ("messages", "none", False, {"type": "none"}),
        ("messages", "auto", False, {"type": "auto", "disable_parallel_tool_use": True}),
        ("messages", "required", True, {"type": "any"}),
        ("messages", "required", False, {"type": "any", "disable_parallel_tool_use": True}),
        ("messages", "shell", None, {"type": "tool", "name": "shell"}),
    ],
)
def test_choices_of_tools(
    wire_name: CallWire, choice: str, parallel: bool | None, expected: Any
) -> None:
    said = body(wire_name, tools=(SHELL, SEARCH), tool_choice=choice, parallel_tools=parallel)
    assert said["tool_choice"] == expected
    if wire_name != "messages":
        assert said.get("parallel_tool_calls") == parallel


def test_a_tool_of_another_format_is_left_out() -> None:
    assert body("responses", tools=(SEARCH,))["tools"] == [{"type": "web_search"}]
    assert "tools" not in body("chat", tools=(SEARCH,), parallel_tools=True)
    for choice in ("search", "required"):
        with pytest.raises(NoModel):
            body("chat", tools=(SEARCH,), tool_choice=choice)


@each_wire
@pytest.mark.parametrize(
    ("tools", "choice"),
    [
        ((), "required"),
        ((), "shell"),
        ((SHELL,), "other"),
        ((SHELL, SHELL), "auto"),
        ((Tool("a b"),), "auto"),
        ((Tool("x" * 129),), "auto"),
    ],
)
def test_tools_that_make_no_sense(wire_name: CallWire, tools: tuple[Tool], choice: str) -> None:
    with pytest.raises(InvalidInput):
        body(wire_name, tools=tools, tool_choice=choice)


# Shapes ----------------------------------------------------------------------------------------


def test_shapes_by_schema() -> None:
    schema = {"name": "count", "schema": SCHEMA, "strict": True}
    assert body("chat", shape=SHAPE)["response_format"] == {
        "type": "json_schema",
        "json_schema": schema,
    }
    assert body("responses", shape=SHAPE)["text"] == {"format": {"type": "json_schema", **schema}}
    said = body("messages", shape=SHAPE, reasoning="high", model="claude-opus-5")
    assert said["output_config"] == {
        "effort": "high",
        "format": {"type": "json_schema", "schema": SCHEMA},
    }


@pytest.mark.parametrize(
    ("wire_name", "habit", "said"),
    [
        ("chat", "object", {"response_format": {"type": "json_object"}}),
        ("chat", "words", {}),
        ("responses", "object", {"text": {"format": {"type": "json_object"}}}),
        ("responses", "words", {}),
        ("messages", "object", {}),
        ("messages", "words", {}),
    ],
)
def test_shapes_in_words(wire_name: CallWire, habit: str, said: dict[str, Any]) -> None:
    found = body(wire_name, shape=SHAPE, habits={"shape": habit})
    plain = body(wire_name)
    assert {**plain, **said}.keys() == found.keys()
    assert said.items() <= found.items()
    text = json.dumps(found)
    assert "follows this schema" in text
    assert "integer" in text


def test_a_schema_in_words_stands_at_the_end() -> None:
    ask = (user("a"), assistant("b"))
    calls = Message("assistant", (ToolCall("c1", "shell", "{}"),))
    result = Message("tool", (ToolResult("c1", (Text("1"),)),))
    said = body("chat", *ask, user("c"), shape=SHAPE, habits={"shape": "words"})
    assert said["messages"][-1]["content"].startswith("c\n\nAnswer with nothing but JSON")
    after = body("chat", user("a"), calls, result, shape=SHAPE, habits={"shape": "words"})
    assert [item["role"] for item in after["messages"]][-2:] == ["tool", "user"]
    assert body("messages", shape=Shape(SCHEMA, strict=False)).keys() == body("messages").keys()


def test_a_shape_has_a_name_that_a_provider_takes() -> None:
    for wire_name in ("chat", "responses"):
        with pytest.raises(InvalidInput, match="name of a shape"):
            body(wire_name, shape=Shape(SCHEMA, name="a b"))


# Reasoning -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("reasoning", "word"),
    [
        ("none", "none"),
        ("minimal", "minimal"),
        ("high", "high"),
        (0, "none"),
        (1_000, "minimal"),
        (4_000, "low"),
        (9_000, "medium"),
        (100_000, "high"),
    ],
)
def test_reasoning_in_words(reasoning: Effort | int, word: str) -> None:
    assert body("chat", reasoning=reasoning)["reasoning_effort"] == word
    assert body("responses", reasoning=reasoning)["reasoning"] == {"effort": word}
    for wire_name in WIRES:
        quiet = body(wire_name, reasoning=reasoning, habits={"effort": "none"})
        assert quiet == body(wire_name, habits={"effort": "none"})


def test_reasoning_as_an_object() -> None:
    habits = {"effort": "reasoning"}
    assert body("chat", reasoning="low", habits=habits)["reasoning"] == {"effort": "low"}
    assert body("chat", reasoning=3_000, habits=habits)["reasoning"] == {"max_tokens": 3_000}
    assert body("chat", reasoning=0, habits=habits)["reasoning"] == {"effort": "none"}


@each_wire
def test_reasoning_that_is_no_word(wire_name: CallWire) -> None:
    with pytest.raises(InvalidInput, match="says nothing about reasoning"):
        body(wire_name, reasoning="very much")


OLD, NEW = "claude-sonnet-4-5", "claude-opus-5-5"


@pytest.mark.parametrize(
    ("model", "fields", "expected"),
    [
        (OLD, {"reasoning": "medium"}, {"thinking": 10_000, "max_tokens": 18_192}),
        (OLD, {"reasoning": 2_000}, {"thinking": 2_000, "max_tokens": 10_192}),
        (OLD, {"reasoning": 5}, {"thinking": 1_024, "max_tokens": 9_216}),
        (OLD, {"reasoning": "high", "max_tokens": 6_000}, {"thinking": 3_000, "max_tokens": 6_000}),
        (OLD, {"reasoning": "high", "max_tokens": 1_500}, {"max_tokens": 1_500}),
        (OLD, {"reasoning": 2_000, "max_tokens": 2_001}, {"thinking": 2_000, "max_tokens": 2_001}),
        (OLD, {"reasoning": "none"}, {"thinking": "disabled", "max_tokens": 8_192}),
        ("kimi-k2", {"reasoning": "minimal"}, {"thinking": 1_024, "max_tokens": 9_216}),
        (NEW, {"reasoning": "medium"}, {"thinking": "adaptive", "effort": "medium"}),
        (NEW, {"reasoning": "minimal"}, {"thinking": "adaptive", "effort": "low"}),
        (NEW, {"reasoning": 50_000, "max_tokens": 10}, {"thinking": "adaptive", "effort": "high"}),
        (NEW, {"reasoning": "none"}, {"thinking": "disabled"}),
        ("claude-fable-5-1", {"reasoning": "none"}, {"effort": "low"}),
        (NEW, {"reasoning": "high", "tools": (SHELL,), "tool_choice": "shell"}, {"effort": "high"}),
        (OLD, {"reasoning": "high", "tools": (SHELL,), "tool_choice": "required"}, {}),
    ],
)
def test_thinking_at_anthropic(model: str, fields: Any, expected: dict[str, Any]) -> None:
    said = body("messages", model=model, **fields)
    thinking = said.get("thinking", {})
    found = {
        "thinking": thinking.get("budget_tokens") or thinking.get("type"),
        "effort": said.get("output_config", {}).get("effort"),
        "max_tokens": said["max_tokens"],
    }
    usual = {"thinking": None, "effort": None}
    usual["max_tokens"] = expected.get("max_tokens", fields.get("max_tokens", 8_192))
    assert found == {**usual, **expected}
    assert thinking.get("budget_tokens", 0) < said["max_tokens"]


def test_thinking_needs_room() -> None:
    with pytest.raises(InvalidInput, match="Of 2000 tokens for an answer, 2000 cannot"):
        body("messages", model=OLD, reasoning=2_000, max_tokens=2_000)


def test_a_reply_that_began_without_thinking_goes_on_without() -> None:
    def thinks(*parts: Part) -> bool:
        reply = Message("assistant", (*parts, ToolCall("c1", "shell", "{}")), wire="messages")
        result = Message("tool", (ToolResult("c1", (Text("1"),)),), wire="messages")
        ask = (user("a"), reply, result)
        return "thinking" in body("messages", *ask, model=OLD, reasoning="low")

    assert not thinks()
    assert thinks(Reasoning("Hm.", signature="s"))
    assert thinks(Reasoning(encrypted="s"))


# Everything else -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("wire_name", "model", "fields", "expected"),
    [
        ("chat", "m", {}, {"temperature": 1.5, "top_p": 0.5}),
        ("chat", "gpt-5.5", {}, {}),
        ("chat", "openai/gpt-5", {}, {}),
        ("chat", "gpt-5-chat-latest", {}, {"temperature": 1.5, "top_p": 0.5}),
        ("chat", "gpt-5.5", {"reasoning": "none"}, {"temperature": 1.5, "top_p": 0.5}),
        ("responses", "o3", {}, {}),
        ("responses", "gpt-4.1", {}, {"temperature": 1.5, "top_p": 0.5}),
        ("messages", OLD, {}, {"temperature": 1.0}),
        ("messages", OLD, {"reasoning": "low"}, {}),
        ("messages", OLD, {"reasoning": "none"}, {"temperature": 1.0}),
        ("messages", "claude-sonnet-4-6", {}, {"temperature": 1.0}),
        ("messages", "claude-sonnet-4-6", {"reasoning": "low"}, {}),
        ("messages", "claude-opus-4-7", {}, {}),
        ("messages", NEW, {"reasoning": "none"}, {}),
        ("messages", "kimi-k2", {}, {"temperature": 1.0, "top_p": 0.5}),
    ],
)
def test_temperature(
    wire_name: CallWire, model: str, fields: Any, expected: dict[str, float]
) -> None:
    said = body(wire_name, model=model, temperature=1.5, top_p=0.5, **fields)
    assert {name: said[name] for name in ("temperature", "top_p") if name in said} == expected


def test_limits_stops_seeds_and_keys() -> None:
    fields: Any = {"max_tokens": 7, "seed": 3, "prompt_cache_key": "k"}
    habits = {"prompt_cache_key": True}
    chat = body("chat", **fields, stop=("END",), habits=habits)
    assert chat["max_completion_tokens"] == 7
    assert (chat["stop"], chat["seed"], chat["prompt_cache_key"]) == (["END"], 3, "k")
    old = body("chat", **fields, habits={"max_tokens_field": "max_tokens", "seed": False})
    assert old["max_tokens"] == 7
    assert "seed" not in old
    assert "prompt_cache_key" not in old
    responses = body("responses", **fields, habits=habits)
    assert responses["max_output_tokens"] == 16
    assert responses["prompt_cache_key"] == "k"
    assert "seed" not in responses
    messages = body("messages", **fields, stop=("END",), habits=habits)
    assert messages["max_tokens"] == 7
    assert messages["stop_sequences"] == ["END"]
    assert not {"seed", "prompt_cache_key"} & messages.keys()


def test_stop_words_are_not_ignored() -> None:
    with pytest.raises(NoModel, match="stop words"):
        body("responses", stop=("END",))


@each_wire
def test_a_limit_is_a_number_of_tokens(wire_name: CallWire) -> None:
    with pytest.raises(InvalidInput, match="max_tokens is 0"):
        body(wire_name, max_tokens=0)


def test_streams_are_asked_for() -> None:
    for wire_name in WIRES:
        assert "stream" not in body(wire_name)
        assert body(wire_name, stream=True)["stream"] is True
    assert body("chat", stream=True)["stream_options"] == {"include_usage": True}
    assert "stream_options" not in body("chat", stream=True, habits={"stream_usage": False})


@each_wire
def test_extra_fields_come_last(wire_name: CallWire) -> None:
    extra = {wire_name: {"model": "other", "user": "u"}, "elsewhere": {"x": 1}}
    said = body(wire_name, extra=extra)
    assert said["model"] == "other"
    assert said["user"] == "u"
    assert "x" not in said


def test_nothing_is_kept_at_the_provider_unless_asked() -> None:
    item = {"id": "rs_1", "type": "reasoning", "summary": [], "encrypted_content": "e"}
    lost = {"id": "rs_2", "type": "reasoning", "summary": []}
    call = {"id": "fc_1", "type": "function_call", "call_id": "c", "name": "f", "arguments": "{}"}
    output = {"type": "function_call_output", "call_id": "c", "output": "1"}
    search = {"id": "mcp_1", "type": "mcp_call", "name": "x"}
    history = wire.decode([{"role": "user", "content": "hi"}, item, lost, call, output, search])
    said = body("responses", *history)
    assert said["store"] is False
    assert [entry.get("id") for entry in said["input"]] == [None, None, None, None, "mcp_1"]
    assert said["input"][1]["encrypted_content"] == "e"
    kept = body("responses", *history, extra={"responses": {"store": True}})
    assert [entry.get("id") for entry in kept["input"]] == [
        None,
        "rs_1",
        "rs_2",
        "fc_1",
        None,
        "mcp_1",
    ]
    assert "include" not in kept


def test_the_role_of_instructions() -> None:
    ask = (
        Message("system", (Text("a"),)),
        user("b"),
        Message("developer", (Text("c"),)),
        user("d"),
    )
    for role in ("system", "developer"):
        said = body("chat", *ask, habits={"instructions": role})
        assert [item["role"] for item in said["messages"]] == [role, "user", role, "user"]


def test_neighbours_are_joined_where_templates_need_it() -> None:
    picture = Message("user", (Text("e"), Media("image/png", data=PNG)))
    calls = Message("assistant", (Text("g"), ToolCall("c1", "f", "{}")))
    result = Message("tool", (ToolResult("c1", (Text("1"),)),))
    said = body(
        "chat",
        Message("system", (Text("a"),)),
        Message("system", (Text("b"),)),
        assistant("c"),
        user("d"),
        picture,
        Message("system", (Text("h"),)),
        assistant("f"),
        calls,
        result,
        user("i"),
        habits={"alternate": True},
    )["messages"]
    assert [item["role"] for item in said] == [
        "system",
        "user",
        "assistant",
        "user",
        "assistant",
        "tool",
        "user",
    ]
    assert said[0]["content"] == "a\n\nb"
    assert said[1]["content"] == "[the conversation begins with a reply]"
    assert [block.get("text") for block in said[3]["content"]] == ["d", "e", None, "h"]
    assert said[4]["content"] == "f\n\ng"
    assert said[4]["tool_calls"][0]["id"] == "c1"


@given(history=any_history)
def test_joined_neighbours_are_still_sound(history: tuple[Message, ...]) -> None:
    said = body("chat", *history, habits={"alternate": True})["messages"]
    assert wire.codec("chat").violations(said) == []
    roles = [item["role"] for item in said]
    begin = 1 if roles[0] == "system" else 0
    assert "system" not in roles[begin:]
    assert roles[begin] == "user"


def test_paths_and_headers() -> None:
    request = Request(messages=(user("hi"),))
    found = {name: requests.build(request, provider(name), "m", stream=False) for name in WIRES}
    assert {name: call.path for name, call in found.items()} == {
        "chat": "/chat/completions",
        "responses": "/responses",
        "messages": "/messages",
    }
    assert found["messages"].headers == {"anthropic-version": "2023-06-01"}
    for model, version in {
        OLD: "2023-06-01",
        NEW: "2026-10-21",
        "x/claude-opus-4-7": "2026-10-21",
    }.items():
        call = requests.build(request, provider("messages"), model, stream=False)
        assert call.headers == {"anthropic-version": version}
    assert found["chat"].headers == found["responses"].headers == {}


# Embeddings and keys ---------------------------------------------------------------------------


def test_embeddings() -> None:
    call = requests.build_embeddings(["a", "b"], provider("chat"), "m")
    assert (call.path, call.body) == ("/embeddings", {"model": "m", "input": ["a", "b"]})
    for texts in ([], [""], ["a", ""]):
        with pytest.raises(InvalidInput):
            requests.build_embeddings(texts, provider("chat"), "m")
    without = Provider(name="x", base_url="http://127.0.0.1:1", embeddings="")
    with pytest.raises(NoModel, match="x has no embeddings"):
        requests.build_embeddings(["a"], without, "m")


def test_keys_stand_where_the_format_wants_them() -> None:
    assert requests.authorization(provider("chat"), "k") == {"authorization": "Bearer k"}
    assert requests.authorization(provider("responses"), " k\n") == {"authorization": "Bearer k"}
    assert requests.authorization(provider("messages"), "k") == {"x-api-key": "k"}
    assert requests.authorization(provider("chat"), "") == {}
    for key in ("a\nb", "ключ"):
        with pytest.raises(Unauthorized) as raised:
            requests.authorization(provider("chat"), key)
        assert key not in str(raised.value)


@pytest.mark.parametrize(
    ("model", "asked", "word", "sealed"),
    [
        ("gpt-4o", "low", None, False),
        ("gpt-4.1-mini", "none", None, False),
        ("gpt-5-chat-latest", "high", None, False),
        ("gpt-5.2-chat-latest", "high", None, False),
        ("o3", "minimal", "low", True),
        ("o4-mini", "none", "low", True),
        ("gpt-5", "none", "minimal", True),
        ("gpt-5-mini", "minimal", "minimal", True),
        ("gpt-5.1", "none", "none", True),
        ("gpt-5.6", "minimal", "low", True),
        ("openai/gpt-5.1", "high", "high", True),
        ("unheard-of", "minimal", "minimal", True),
    ],
)
def test_openai_models_are_told_to_think_in_words_that_they_know(
    model: str, asked: Effort, word: str | None, sealed: bool
) -> None:
    request = Request(messages=(user("Hello."),), reasoning=asked)
    openai = Provider(name="openai", wire="responses", base_url="https://x/v1")
    body = requests.build(request, openai, model, stream=False).body
    assert body.get("reasoning", {}).get("effort") == word
    assert ("include" in body) == sealed
    plain = Provider(name="openai-chat", base_url="https://x/v1")
    assert requests.build(request, plain, model, stream=False).body.get("reasoning_effort") == word
