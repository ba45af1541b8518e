"""The one door: `wire.decode` takes whatever holds messages."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from types import MappingProxyType
from typing import Any

import msgspec
import pytest

from perdure.core.errors import InvalidInput
from perdure.core.messages import Message, Text, ToolCall, ToolResult, assistant, user
from perdure.wire import WIRES, codec, decode
from tests.wire.bodies import VALID, named

HI = {"role": "user", "content": "Hi"}


def test_a_string_is_a_prompt() -> None:
    assert decode("Hi") == (user("Hi"),)


def test_canonical_messages_pass_through() -> None:
    messages = (user("Hi"), assistant("Hello."))
    assert decode(messages[0]) == messages[:1]
    assert decode(messages) == messages
    assert decode(message for message in messages) == messages


#: The same in several formats, so it does not matter which is found.
AMBIGUOUS = {("messages", "strings"), ("messages", "neighbours"), ("responses", "easy")}


@pytest.mark.parametrize(("wire", "name"), named(VALID))
def test_the_format_is_found(wire: str, name: str) -> None:
    body = VALID[wire][name]
    assert decode(body, wire) == codec(wire).decode(body)
    assert decode(tuple(body), wire) == codec(wire).decode(body)
    found = decode(body)
    if (wire, name) in AMBIGUOUS:
        assert [message.text for message in found] == [
            message.text for message in codec(wire).decode(body)
        ]
    elif (wire, name) != ("chat", "cache marks and unknown fields"):  # an Anthropic mark
        assert found == codec(wire).decode(body)


def test_what_could_be_any_is_chat() -> None:
    (message,) = decode([HI])
    assert message == Message("user", (Text("Hi"),), wire="chat")
    assert codec("messages").encode([message]) == [HI]


def test_what_could_be_any_goes_with_its_neighbours() -> None:
    blocks = [{"type": "tool_result", "tool_use_id": "t", "content": "x"}]
    assert [message.wire for message in decode([HI, {"role": "user", "content": blocks}])] == [
        "messages",
        "messages",
    ]


def test_formats_may_be_mixed() -> None:
    given: list[Any] = [
        "A prompt.",
        {
            "role": "assistant",
            "content": [{"type": "tool_use", "id": "t", "name": "f", "input": {}}],
        },
        {"role": "tool", "tool_call_id": "t", "content": "chat"},
        {"id": "m", "role": "assistant", "parts": [{"type": "text", "text": "ui"}]},
        assistant("canonical"),
        {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "items"}]},
        {"type": "reasoning", "summary": []},
        {"choices": [{"message": {"role": "assistant", "content": "response"}}], "model": "gpt"},
    ]
    messages = decode(given)
    assert [message.wire for message in messages] == [
        "", "messages", "chat", "ui", "", "responses", "responses", "chat",
    ]  # fmt: skip
    assert messages[-1].model == "gpt"


def test_an_iterator_is_read_once() -> None:
    def lines() -> Iterator[dict[str, Any]]:
        yield HI
        yield {"role": "assistant", "content": "Hello."}

    assert [message.text for message in decode(lines())] == ["Hi", "Hello."]


def test_other_mappings_will_do() -> None:
    assert decode(MappingProxyType(HI)) == decode([HI])
    assert decode([MappingProxyType(HI)]) == decode([HI])


# Bodies.


def test_a_chat_request() -> None:
    messages = decode({"model": "gpt", "messages": [{"role": "developer", "content": "x"}, HI]})
    assert [message.role for message in messages] == ["developer", "user"]
    assert not messages[1].model  # the model has not spoken yet


def test_a_chat_response() -> None:
    usage = {
        "prompt_tokens": 100,
        "completion_tokens": 20,
        "total_tokens": 120,
        "prompt_tokens_details": {"cached_tokens": 64, "audio_tokens": 0},
        "completion_tokens_details": {"reasoning_tokens": 12},
    }
    said: dict[str, Any] = {"role": "assistant", "content": "Hello.", "refusal": None}
    said["annotations"] = []
    (message,) = decode(
        {
            "id": "chatcmpl-1",
            "object": "chat.completion",
            "created": 1_700_000_000,
            "model": "gpt-4o",
            "choices": [{"index": 0, "finish_reason": "stop", "logprobs": None, "message": said}],
            "usage": usage,
        }
    )
    assert (message.id, message.model, message.text) == ("chatcmpl-1", "gpt-4o", "Hello.")
    assert message.time == 1_700_000_000_000_000
    assert message.usage is not None
    assert (message.usage.input, message.usage.output) == (100, 20)
    assert (message.usage.cache_read, message.usage.reasoning) == (64, 12)
    assert message.usage.cache_write is None
    assert message.usage.native == usage
    assert message.native["chat"]["perdure"]["response"]["finish_reason"] == "stop"
    assert codec("chat").encode([message]) == [said]


def test_a_responses_request() -> None:
    body = {"instructions": "Be brief.", "input": "Hi"}
    messages = decode({"model": "gpt", **body})
    assert [(message.role, message.text) for message in messages] == [
        ("system", "Be brief."),
        ("user", "Hi"),
    ]
    assert codec("responses").encode_body(messages) == body
    items = {"instructions": "", "input": [{"role": "user", "content": "Hi"}]}
    assert codec("responses").encode_body(decode(items)) == items
    listed = {"instructions": [{"role": "developer", "content": "x"}], "input": []}
    assert codec("responses").encode_body(decode(listed)) == listed


def test_a_responses_response() -> None:
    output = VALID["responses"]["a whole loop"][1:4]
    (message,) = decode(
        {
            "id": "resp_1",
            "object": "response",
            "created_at": 1_700_000_000.5,
            "model": "gpt-5",
            "status": "completed",
            "output": output,
            "instructions": None,
            "tools": [],
            "usage": {
                "input_tokens": 50,
                "input_tokens_details": {"cached_tokens": 10, "cache_write_tokens": 5},
                "output_tokens": 9,
                "output_tokens_details": {"reasoning_tokens": 4},
                "total_tokens": 59,
            },
        }
    )
    assert (message.id, message.model) == ("resp_1", "gpt-5")
    assert [call.id for call in message.calls] == ["call_1", "call_2"]
    assert message.usage is not None
    assert (message.usage.input, message.usage.output) == (50, 9)
    assert (message.usage.cache_read, message.usage.cache_write) == (10, 5)
    assert message.usage.reasoning == 4
    assert codec("responses").encode([message]) == output


def test_a_response_without_output_still_has_its_usage() -> None:
    (message,) = decode({"object": "response", "output": [], "usage": {"input_tokens": 5}})
    assert message.usage is not None
    assert message.usage.input == 5
    assert codec("responses").encode([message]) == []


@pytest.mark.parametrize("system", ["Be brief.", "", [], [{"type": "text", "text": "Be brief."}]])
def test_an_anthropic_request(system: Any) -> None:
    marked = {"type": "text", "text": "x", "cache_control": {"type": "ephemeral"}}
    body = {"system": system, "messages": [HI, {"role": "assistant", "content": [marked]}]}
    messages = decode({"model": "claude", "max_tokens": 9, **body})
    assert messages[0].role == "system"
    assert codec("messages").encode_body(messages) == body
    assert codec("messages").encode(messages) == body["messages"]
    chat = codec("chat").encode(messages)
    assert chat[0]["role"] == ("system" if messages[0].parts else "user")


def test_an_anthropic_response() -> None:
    content = [{"type": "text", "text": "Hello."}]
    usage = {
        "input_tokens": 3,
        "cache_read_input_tokens": 1_000,
        "cache_creation_input_tokens": 200,
        "output_tokens": 7,
        "output_tokens_details": {"thinking_tokens": 2},
    }
    (message,) = decode(
        {
            "id": "msg_1",
            "type": "message",
            "role": "assistant",
            "model": "claude-x",
            "content": content,
            "stop_reason": "end_turn",
            "stop_sequence": None,
            "usage": usage,
        }
    )
    assert (message.id, message.model) == ("msg_1", "claude-x")
    assert message.usage is not None
    assert (message.usage.input, message.usage.output) == (1_203, 7)
    assert (message.usage.cache_read, message.usage.cache_write) == (1_000, 200)
    assert message.usage.reasoning == 2
    # What the API would refuse stays behind.
    assert codec("messages").encode([message]) == [{"role": "assistant", "content": content}]


def test_what_a_screen_sends() -> None:
    messages = decode({"id": "chat-1", "trigger": "submit", "messages": VALID["ui"]["texts"]})
    assert [message.role for message in messages] == ["system", "user", "assistant"]


def test_a_single_item() -> None:
    (message,) = decode({"type": "function_call", "call_id": "c", "name": "f", "arguments": "{}"})
    assert message.calls == [ToolCall("c", "f", "{}")]


# What the codecs make of it.


def test_an_anthropic_result_is_the_tools() -> None:
    messages = codec("messages").decode(VALID["messages"]["tools in parallel and a word"])
    assert [message.role for message in messages] == ["user", "assistant", "tool", "assistant"]
    second, first = messages[2].results
    assert (first.text, first.is_error) == ("No such file", True)
    assert (second.call, second.is_error) == ("t2", False)
    assert messages[2].text == "And hurry."


def test_items_of_one_reply_are_one_message() -> None:
    messages = codec("responses").decode(VALID["responses"]["a whole loop"])
    assert [message.role for message in messages] == ["user", "assistant", "tool", "assistant"]
    assert [len(message.parts) for message in messages] == [1, 3, 2, 2]


def test_steps_on_a_screen_are_messages() -> None:
    messages = codec("ui").decode(VALID["ui"]["steps"])
    assert [message.role for message in messages] == [
        "user", "assistant", "tool", "assistant", "tool", "assistant", "user",
    ]  # fmt: skip
    assert [message.id for message in messages if message.role == "assistant"] == ["m2", "", ""]
    assert messages[2].results[1] == ToolResult(
        "c2", (Text("no network"),), is_error=True, name="weather"
    )
    assert messages[4].results[0].text == '{"degrees":22,"sky":["clear"]}'


def test_neighbouring_results_are_one_anthropic_message() -> None:
    chat = VALID["chat"]["tools in parallel, answered out of order"]
    items = codec("messages").encode(codec("chat").decode(chat))
    assert [item["role"] for item in items] == ["user", "assistant", "user", "assistant"]
    assert [block["tool_use_id"] for block in items[2]["content"]] == ["call_b", "call_a"]


def test_results_come_before_words() -> None:
    words = Message("tool", (Text("hurry"), ToolResult("t", (Text("x"),))))
    (item,) = codec("messages").encode([words])
    assert [block["type"] for block in item["content"]] == ["tool_result", "text"]
    assert [item["role"] for item in codec("chat").encode([words])] == ["tool", "user"]


def test_system_text_in_mid_conversation_is_said_by_the_user() -> None:
    messages = (user("Hi"), assistant("Hello."), Message("developer", (Text("Be brief."),)))
    assert codec("messages").encode(messages)[-1] == {"role": "user", "content": "Be brief."}
    assert codec("chat").encode(messages)[-1] == {"role": "developer", "content": "Be brief."}


def test_events_are_never_sent() -> None:
    messages = (user("Hi"), Message("event", (Text("compacted"),), name="compacted"))
    for wire in WIRES:
        assert len(codec(wire).encode(messages)) == 1
        assert codec(wire).decode(codec(wire).encode(messages, keep=True)) == messages
        assert codec(wire).decode(codec(wire).encode(messages[1:], keep=True)) == messages[1:]


# Text that is not quite text.


@pytest.mark.parametrize("wire", ["chat", "messages", "responses"])
def test_half_surrogate_pairs_are_replaced(wire: str) -> None:
    half, whole = "a\ud83d b", "\ud83c\udf88"
    (message,) = decode([{"role": "user", "content": half}], wire)
    assert message.text == "a\ufffd b"
    (message,) = decode([{"role": "user", "content": [{"type": "text", "text": whole}]}], wire)
    assert message.text == "🎈"
    (message,) = decode([{"role": "user", "content": "x", half: {half: [half]}}], wire)
    msgspec.msgpack.encode(message)  # which would not have it


def test_half_surrogate_pairs_in_an_input_are_replaced() -> None:
    block = {"type": "tool_use", "id": "t", "name": "f", "input": {"a": "\udc00"}}
    (message,) = decode([{"role": "assistant", "content": [block]}])
    assert message.calls[0].arguments == '{"a":"\ufffd"}'
    source = {"type": "text", "media_type": "text/plain", "data": "\udc00"}
    (message,) = decode([{"role": "user", "content": [{"type": "document", "source": source}]}])
    assert codec("messages").encode([message])[0]["content"][0]["source"]["data"] == "\ufffd"


def test_nothing_is_copied_without_need() -> None:
    mark = {"type": "ephemeral"}
    body = [{"role": "user", "content": [{"type": "text", "text": "x", "cache_control": mark}]}]
    (message,) = decode(body)
    (part,) = message.parts
    assert isinstance(part, Text)
    assert part.native["messages"]["cache_control"] is mark


# What is refused.


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (5, "This is a int"),
        (None, "This is a NoneType"),
        (b"bytes", "This is a bytes"),
        ([HI, 5], "messages[1] is a int"),
        ([HI, None], "messages[1] is a NoneType"),
        ([[HI]], "messages[0] is a list"),
        ([{"role": "narrator", "content": "x"}], "messages[0] has the role 'narrator'"),
        ([HI, {"role": None, "content": "x"}], "messages[1] has the role None"),
        ([HI, {"role": ["user"], "content": "x"}], "messages[1] has the role ['user']"),
        ([HI, {"content": "x"}], "no role"),
        ([{"role": "user", "content": 5}], "messages[0] has a content that is a int"),
        ([{"role": "user", "content": {"a": 1}}], "messages[0] has a content that is a dict"),
        ([HI, {"type": "reasoning", "summary": object()}], "stored"),
        ([{"role": "user", "content": "x", "y": object()}], "Message 0 (user) cannot be stored"),
        ([{"role": "user", "content": "x", "y": 2**64}], "Message 0 (user) cannot be stored"),
        ([{"type": "message", "role": "narrator", "content": "x"}], "input[0] has the role"),
        ([{"id": "m", "role": "user", "parts": "x"}], "messages[0] has the role"),
        ([{"id": "m", "role": "narrator", "parts": []}], "messages[0] has the role"),
        ({"choices": []}, "exactly one choice"),
        ({"choices": [{"message": {"role": "assistant"}}] * 2}, "exactly one choice"),
        ({"choices": [{}]}, "choices[0]"),
        ({"object": "response", "output": "x"}, "no list"),
        ({"input": 5}, "The input is a int"),
        ({}, "no role"),
        ({"a": 1}, "no role"),
    ],
)
def test_what_holds_no_messages_is_refused(given: Any, said: str) -> None:
    with pytest.raises(InvalidInput) as caught:
        decode(given)
    assert said in caught.value.message
    assert caught.value.hint


def test_a_run_says_where_it_begins() -> None:
    with pytest.raises(InvalidInput, match=r"from messages\[1\]: messages\[1\] has the role 'x'"):
        decode([user("Hi"), HI, {"role": "x", "content": "y"}])


def test_an_unknown_format_is_refused() -> None:
    with pytest.raises(InvalidInput, match="no wire format"):
        decode([HI], "xml")


@pytest.mark.parametrize("wire", WIRES)
@pytest.mark.parametrize("given", [5, "x", None, {}, {"a": 1}])
def test_a_codec_refuses_what_is_no_body(wire: str, given: Any) -> None:
    with pytest.raises(InvalidInput):
        codec(wire).decode(given)


def test_neither_provider_library_is_imported() -> None:
    code = (
        "import sys\n"
        "from perdure import wire\n"
        "[wire.codec(name) for name in wire.WIRES]\n"
        "wire.repaired(wire.decode('Hi'))\n"
        "print([name for name in ('openai', 'anthropic', 'pydantic') if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


@pytest.mark.parametrize("wire_name", ["chat", "responses", "messages"])
def test_our_own_field_cannot_be_null(wire_name: str) -> None:
    with pytest.raises(InvalidInput, match="cannot be null"):
        decode([{"role": "user", "content": "a", "perdure": None}], wire_name)
