"""Streams, whichever way they are cut, say what the body of the same answer says."""

from __future__ import annotations

import contextlib
import json
import struct
from base64 import b64encode
from collections.abc import Iterable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from perdure.core.errors import BadAnswer, GatewayError, ProviderDown, RateLimited
from perdure.core.messages import Message, Reasoning, Text, ToolCall
from perdure.gateway import streams
from perdure.gateway.calls import (
    CallBegan,
    CallDelta,
    Delta,
    ModelAnswer,
    PartEnded,
    ReasoningDelta,
    TextDelta,
)
from perdure.gateway.providers import CallWire
from perdure.gateway.streams import sse
from perdure.gateway.streams.stream_decoder import message_of
from tests.gateway.recordings import (
    DONE,
    MESSAGES,
    RECORDINGS,
    RESPONSES,
    Recording,
    block,
    chunk,
    completion,
    events,
    response,
)

WIRES: tuple[CallWire, ...] = ("chat", "responses", "messages")
each_recording = pytest.mark.parametrize(
    "recording", RECORDINGS, ids=lambda r: f"{r.wire}: {r.name}"
)


def parsed(*chunks: bytes) -> list[tuple[str, str]]:
    parser = sse.EventParser()
    found = [event for chunk in chunks for event in parser.feed(chunk)]
    return [(event.event, event.data) for event in (*found, *parser.close())]


def gathered(wire: CallWire, chunks: Iterable[bytes]) -> tuple[list[Delta], ModelAnswer]:
    parser, decoder = sse.EventParser(), streams.decoder(wire)
    deltas: list[Delta] = []
    for each in chunks:
        for event in parser.feed(each):
            deltas += decoder.feed(event)
    for event in parser.close():
        deltas += decoder.feed(event)
    return deltas, decoder.finish()


def read(wire: CallWire, *said: dict[str, Any] | str) -> ModelAnswer:
    return gathered(wire, [events(*said, named=wire != "chat")])[1]


# Server-sent events ----------------------------------------------------------------------------


@pytest.mark.parametrize("end", ["\n", "\r\n", "\r"])
def test_an_event_ends_with_an_empty_line_of_any_kind(end: str) -> None:
    said = (
        f": hello{end}event: x{end}data: 1{end}data:2{end}data{end}id: 7{end}{end}data: 3{end}{end}"
    )
    expected = [("x", "1\n2\n"), ("message", "3")]
    raw = said.encode()
    assert parsed(raw) == expected
    assert parsed(*(raw[n : n + 1] for n in range(len(raw)))) == expected


def test_a_byte_order_mark_and_characters_may_be_cut_in_two() -> None:
    raw = "\ufeffdata: Grüße 🌍\n\n".encode()
    for cut in range(len(raw) + 1):
        assert parsed(raw[:cut], raw[cut:]) == [("message", "Grüße 🌍")]


def test_a_carriage_return_at_the_end_of_a_chunk_is_half_an_end_of_line_at_most() -> None:
    assert parsed(b"data: 1\r", b"\n", b"\r", b"\ndata: 2\r\n\r\n") == [
        ("message", "1"),
        ("message", "2"),
    ]
    assert parsed(b"data: 1\r", b"\r", b"data: 2\r\r") == [("message", "1"), ("message", "2")]
    assert parsed(b"data: 1\r", b"", b"\ndata: 2\r", b"\n\r\n") == [("message", "1\n2")]


def test_names_and_comments_alone_are_no_event() -> None:
    assert parsed(b"event: ping\n\n: nothing\n\nretry: 3\n\nnonsense\n\n") == []
    assert parsed(b"event: a\n\ndata: 1\n\n") == [("message", "1")]


def test_what_stands_at_the_end_is_an_event() -> None:
    assert parsed(b"data: 1\n\ndata: [DONE]") == [("message", "1"), ("message", "[DONE]")]
    assert parsed(b"data: 1\n\nevent: x\ndata: 2\n") == [("message", "1"), ("x", "2")]


def test_bytes_that_are_no_text_do_not_stop_the_stream() -> None:
    assert parsed(b"data: \xff!\n\n") == [("message", "\ufffd!")]


@pytest.mark.parametrize("piece", [b"x" * 60, b"data: " + b"x" * 54 + b"\n"])
def test_nothing_grows_without_bounds(piece: bytes) -> None:
    parser = sse.EventParser(limit=1_000)
    for _ in range(16):
        parser.feed(piece)
    with pytest.raises(BadAnswer, match="longer than 1000 bytes"):
        parser.feed(piece * 3)


def test_many_events_are_no_long_one() -> None:
    parser = sse.EventParser(limit=1_000)
    raw = b"data: " + b"x" * 300 + b"\n\n"
    stream = raw * 50
    found = [
        event for at in range(0, len(stream), 700) for event in parser.feed(stream[at : at + 700])
    ]
    assert len(found) == 50


# Streams and bodies ----------------------------------------------------------------------------


@each_recording
def test_a_stream_says_what_the_body_says(recording: Recording) -> None:
    _, answered = gathered(recording.wire, [recording.stream])
    assert answered == streams.read_answer(recording.wire, recording.body)
    assert answered.finish == recording.finish
    assert answered.message.wire == recording.wire
    assert answered.message.id
    assert answered.message.model
    assert not answered.message.partial
    usage = answered.message.usage
    assert usage is not None
    assert usage.output in {9, 42}
    assert usage.cache_read in {16, 1_000}


@each_recording
def test_where_a_stream_is_cut_does_not_matter(recording: Recording) -> None:
    raw = recording.stream
    expected = parsed(raw)
    for cut in range(1, len(raw)):
        assert parsed(raw[:cut], raw[cut:]) == expected
    whole = gathered(recording.wire, [raw])
    assert gathered(recording.wire, (raw[n : n + 1] for n in range(len(raw)))) == whole
    assert gathered(recording.wire, (raw[n : n + 7] for n in range(0, len(raw), 7))) == whole
    assert gathered(recording.wire, [raw.replace(b"\n", b"\r\n")]) == whole


@each_recording
def test_deltas_add_up_to_the_message(recording: Recording) -> None:
    deltas, answered = gathered(recording.wire, [recording.stream])
    message = answered.message
    assert "".join(d.text for d in deltas if isinstance(d, TextDelta)) == message.text
    thought = [part for part in message.parts if isinstance(part, Reasoning)]
    words = "".join(part.text or "".join(part.summary) for part in thought)
    assert "".join(d.text for d in deltas if isinstance(d, ReasoningDelta)) == words
    calls: dict[int, ToolCall] = {}
    for delta in deltas:
        if isinstance(delta, CallBegan):
            calls[delta.index] = ToolCall(delta.id, delta.name)
        elif isinstance(delta, CallDelta):
            call = calls[delta.index]
            calls[delta.index] = ToolCall(call.id, call.name, call.arguments + delta.arguments)
    assert [(c.id, c.name, value(c)) for c in calls.values()] == [
        (c.id, c.name, value(c)) for c in message.calls
    ]
    ended = [delta.part for delta in deltas if isinstance(delta, PartEnded)]
    assert len(ended) == len(message.parts)
    assert all(part in message.parts for part in ended)


def value(call: ToolCall) -> Any:
    return json.loads(call.arguments or "{}")


@each_recording
def test_a_stream_that_breaks_off_between_events_is_no_answer(recording: Recording) -> None:
    _, whole = gathered(recording.wire, [recording.stream])
    decoder = streams.decoder(recording.wire)
    before = 0
    for event in sse.EventParser().feed(recording.stream):
        decoder.feed(event)
        partial = decoder.so_far()
        assert partial.partial
        assert partial.role == "assistant"
        assert len(partial.text) >= before
        before = len(partial.text)
        assert whole.message.text.startswith(partial.text)
        assert [c.name for c in partial.calls] == [
            c.name for c in whole.message.calls[: len(partial.calls)]
        ]
        try:
            answered = decoder.finish()
        except BadAnswer:
            continue
        # The end was there already; only the tokens may still be missing.
        assert answered.message.parts == whole.message.parts
        assert answered.finish == whole.finish
    assert decoder.finish() == whole


@each_recording
def test_a_stream_that_breaks_off_anywhere_is_no_answer(recording: Recording) -> None:
    raw = recording.stream
    _, whole = gathered(recording.wire, [raw])
    for end in range(0, len(raw), 41):
        try:
            _, answered = gathered(recording.wire, [raw[:end]])
        except BadAnswer:
            continue
        assert answered.message.parts == whole.message.parts


def test_nothing_is_read_after_the_end() -> None:
    decoder = streams.decoder("chat")
    for event in sse.EventParser().feed(events(chunk({"content": "a"}, "stop"), DONE)):
        decoder.feed(event)
    assert decoder.done
    assert decoder.feed(sse.ServerEvent("message", "nonsense")) == []
    assert decoder.finish().message.text == "a"


# What servers do -------------------------------------------------------------------------------


def test_calls_without_an_id_get_one_that_does_not_change() -> None:
    said = chunk(
        {
            "tool_calls": [
                {"function": {"name": "now", "arguments": {}}},
                {"function": {"name": "now", "arguments": {"zone": "UTC"}}},
            ]
        },
        "tool_calls",
    )
    first, second = read("chat", said, DONE).message.calls
    assert first.id != second.id
    assert first.id.startswith("call_")
    assert (first.arguments, second.arguments) == ("{}", '{"zone":"UTC"}')
    assert read("chat", said).message.calls == [first, second]


def test_a_server_may_repeat_name_and_id_in_each_piece() -> None:
    pieces = ['{"a"', ": 1", "}"]
    calls = read(
        "chat",
        *(
            chunk(
                {
                    "tool_calls": [
                        {
                            "index": 0,
                            "id": "c1",
                            "type": "function",
                            "function": {"name": "f", "arguments": piece},
                        }
                    ]
                }
            )
            for piece in pieces
        ),
        chunk({}, "tool_calls"),
    ).message.calls
    assert calls == [ToolCall("c1", "f", '{"a": 1}')]


def test_an_id_that_comes_late_is_not_needed() -> None:
    calls = read(
        "chat",
        chunk({"tool_calls": [{"index": 0, "function": {"name": "f", "arguments": ""}}]}),
        chunk({"tool_calls": [{"index": 0, "id": "late", "function": {"arguments": "{}"}}]}),
        chunk({}, "tool_calls"),
    ).message.calls
    assert [(call.name, call.arguments) for call in calls] == [("f", "{}")]


def test_what_a_server_adds_to_a_call_goes_back_to_it() -> None:
    signed = {"google": {"thought_signature": "abc"}}
    entry = {
        "index": 0,
        "id": "c1",
        "type": "function",
        "function": {"name": "f", "arguments": "{}"},
        "extra_content": signed,
    }
    (call,) = read("chat", chunk({"tool_calls": [entry]}, "tool_calls")).message.calls
    assert call.native["chat"]["extra_content"] == signed


def test_thinking_in_blocks_is_reasoning() -> None:
    thinking = {"type": "thinking", "thinking": [{"type": "text", "text": "Hm."}]}
    answered = read(
        "chat",
        chunk({"content": [thinking]}),
        chunk({"content": [{"type": "text", "text": "Yes"}]}),
        chunk({"content": "."}, "stop"),
    )
    assert answered.message.parts == (Reasoning("Hm."), Text("Yes."))
    body = completion({"content": [thinking, {"type": "text", "text": "Yes."}]}, "stop")
    assert streams.read_answer("chat", body).message.parts == answered.message.parts


def test_a_character_may_be_cut_in_two_by_the_server() -> None:
    raw = b'data: {"choices":[{"delta":{"content":"%s"}}]}\n\n'
    end = events(chunk({}, "stop"))
    deltas, answered = gathered("chat", [raw % rb"\ud83d", raw % rb"\ude00", end])
    assert answered.message.text == "😀"
    assert [d.text for d in deltas if isinstance(d, TextDelta)] == ["\ufffd", "\ufffd"]


def test_further_choices_are_not_mixed_in() -> None:
    other = chunk({"content": "b"})
    other["choices"][0]["index"] = 1
    assert read("chat", chunk({"content": "a"}), other, chunk({}, "stop")).message.text == "a"


def test_arguments_that_were_cut_off_are_kept_as_they_are() -> None:
    answered = read(
        "messages",
        {"type": "message_start", "message": {"role": "assistant", "content": []}},
        *block(
            0,
            {"type": "tool_use", "id": "t1", "name": "f", "input": {}},
            {"type": "input_json_delta", "partial_json": '{"a": [1, 2'},
        ),
        {"type": "message_delta", "delta": {"stop_reason": "max_tokens"}, "usage": {}},
        {"type": "message_stop"},
    )
    assert answered.message.calls[0].arguments == '{"a": [1, 2'
    assert answered.finish == "length"


def test_input_and_text_may_come_with_the_beginning_of_a_block() -> None:
    raw = events(
        {"type": "message_start", "message": {"role": "assistant", "content": []}},
        *block(0, {"type": "text", "text": "Hello"}, {"type": "text_delta", "text": "!"}),
        *block(1, {"type": "tool_use", "id": "t1", "name": "f", "input": {"a": 1}}),
        {"type": "message_delta", "delta": {"stop_reason": "tool_use"}},
        named=True,
    )
    deltas, answered = gathered("messages", [raw])
    assert answered.message.text == "Hello!"
    assert CallDelta(1, '{"a":1}') in deltas
    assert answered.message.calls == [ToolCall("t1", "f", '{"a":1}')]


def test_items_may_come_whole() -> None:
    said = {
        "type": "message",
        "role": "assistant",
        "content": [{"type": "output_text", "text": "A"}],
    }
    call = {"type": "function_call", "call_id": "c1", "name": "f", "arguments": "{}"}
    raw = events(
        {"type": "response.output_item.done", "output_index": 0, "item": said},
        {"type": "response.output_item.done", "output_index": 1, "item": call},
        {"type": "response.completed", "response": response("completed", [])},
        named=True,
    )
    deltas, answered = gathered("responses", [raw])
    assert TextDelta("A") in deltas
    assert deltas[-3:-1] == [CallBegan(1, "c1", "f"), CallDelta(1, "{}")]
    assert answered.message.text == "A"
    assert answered.finish == "tools"


def test_what_a_tool_of_the_provider_said_stays_in_the_reply() -> None:
    items: list[dict[str, Any]] = [
        {"type": "mcp_call", "id": "m1", "name": "x", "arguments": "{}", "server_label": "s"},
        {"type": "shell_call_output", "call_id": "c0", "output": [{"stdout": "x"}]},
        {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "A"}]},
    ]
    answered = streams.read_answer("responses", response("completed", items))
    assert answered.message.role == "assistant"
    assert len(answered.message.parts) == 3
    assert answered.message.text == "A"


@pytest.mark.parametrize(
    ("wire", "said", "finish"),
    [
        ("chat", completion({"content": "a"}, "stop"), "stop"),
        ("chat", completion({"content": "a"}, "eos_token"), "stop"),
        ("chat", completion({"content": "a"}, "abort"), "other"),
        ("chat", completion({"content": None}, "content_filter"), "filter"),
        ("messages", {"content": [], "stop_reason": "pause_turn"}, "other"),
        ("messages", {"content": [], "stop_reason": "model_context_window_exceeded"}, "length"),
        ("messages", {"content": [], "stop_reason": "stop_sequence"}, "stop"),
        (
            "responses",
            response("incomplete", [], incomplete_details={"reason": "content_filter"}),
            "filter",
        ),
    ],
)
def test_why_a_model_stopped(wire: CallWire, said: dict[str, Any], finish: str) -> None:
    assert streams.read_answer(wire, said).finish == finish


# What goes wrong -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("wire", "said", "kind"),
    [
        ("chat", {"error": {"message": "Slow down", "code": 429}}, RateLimited),
        ("chat", {"error": "out of memory"}, ProviderDown),
        (
            "messages",
            {"type": "error", "error": {"type": "overloaded_error", "message": "Overloaded"}},
            ProviderDown,
        ),
        (
            "responses",
            {"type": "error", "code": "server_error", "message": "Oh", "sequence_number": 1},
            ProviderDown,
        ),
        (
            "responses",
            {
                "type": "response.failed",
                "response": response(
                    "failed", [], error={"code": "rate_limit_exceeded", "message": "Slow down"}
                ),
            },
            RateLimited,
        ),
    ],
)
def test_errors_inside_a_stream(wire: CallWire, said: dict[str, Any], kind: type) -> None:
    decoder = streams.decoder(wire, "some/model")
    (event,) = sse.EventParser().feed(events(said))
    with pytest.raises(GatewayError) as raised:
        decoder.feed(event)
    assert type(raised.value) is kind
    assert "some/model" in str(raised.value)


@pytest.mark.parametrize("wire", WIRES)
def test_errors_inside_a_body(wire: CallWire) -> None:
    body = {"type": "error", "error": {"type": "rate_limit_error", "message": "Slow down"}}
    with pytest.raises(RateLimited, match="Slow down"):
        streams.read_answer(wire, body)


@pytest.mark.parametrize("wire", WIRES)
@pytest.mark.parametrize(
    "body",
    [{}, {"choices": []}, {"choices": [{}]}, {"choices": 3}, {"content": "x"}, {"output": "x"}],
)
def test_bodies_that_are_no_answer(wire: CallWire, body: dict[str, Any]) -> None:
    with pytest.raises(BadAnswer):
        streams.read_answer(wire, body)


@pytest.mark.parametrize("wire", WIRES)
@pytest.mark.parametrize("data", ["<html>", "[1]", '"x"', '{"a":', "null"])
def test_events_that_are_none(wire: CallWire, data: str) -> None:
    decoder = streams.decoder(wire)
    with pytest.raises(BadAnswer):
        decoder.feed(sse.ServerEvent("message", data))
    with pytest.raises(BadAnswer, match="no end"):
        decoder.finish()


@pytest.mark.parametrize("status", ["queued", "in_progress", "cancelled"])
def test_a_response_that_is_not_done_is_no_answer(status: str) -> None:
    with pytest.raises(BadAnswer, match=status):
        streams.read_answer("responses", response(status, []))


@pytest.mark.parametrize("stream", [b"", DONE.encode(), events(chunk(None), DONE)])
def test_a_stream_without_a_choice_has_no_answer(stream: bytes) -> None:
    with pytest.raises(BadAnswer, match="no end"):
        gathered("chat", [stream])


_anything = st.recursive(
    st.none() | st.booleans() | st.integers(-2, 3) | st.text(max_size=4),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(
                [
                    "choices",
                    "index",
                    "delta",
                    "content",
                    "tool_calls",
                    "function",
                    "name",
                    "arguments",
                    "id",
                    "usage",
                    "message",
                    "finish_reason",
                    "logprobs",
                    "type",
                    "output_index",
                    "item",
                    "response",
                    "output",
                    "content_block",
                    "text",
                    "partial_json",
                    "error",
                    "call_id",
                    "summary",
                    "reasoning",
                    "custom",
                ]
            ),
            inner,
            max_size=4,
        )
    ),
    max_leaves=12,
)
_types = st.sampled_from(
    [
        "message_start",
        "message_delta",
        "message_stop",
        "content_block_start",
        "content_block_delta",
        "content_block_stop",
        "response.created",
        "response.completed",
        "response.output_item.added",
        "response.output_item.done",
        "response.output_text.delta",
        "tool_use",
        "text",
        "function_call",
        "response.function_call_arguments.delta",
    ]
)


@pytest.mark.parametrize("wire", WIRES)
@given(
    said=st.lists(
        st.tuples(_types, _anything).map(
            lambda pair: {**(pair[1] if isinstance(pair[1], dict) else {}), "type": pair[0]}
        ),
        max_size=5,
    )
)
def test_whatever_a_server_says_only_gateway_errors_come_of_it(
    wire: CallWire, said: list[dict[str, Any]]
) -> None:
    decoder = streams.decoder(wire)
    with contextlib.suppress(GatewayError):
        for each in said:
            decoder.feed(sse.ServerEvent("message", json.dumps(each)))
        decoder.finish()
    assert isinstance(decoder.so_far(), Message)
    for body in said:
        with contextlib.suppress(GatewayError):
            streams.read_answer(wire, body)


@pytest.mark.parametrize("recording", [*RESPONSES[:1], *MESSAGES[:1]], ids=lambda r: r.wire)
@given(data=st.data())
def test_a_stream_with_events_missing_is_an_answer_or_an_error(
    recording: Recording, data: st.DataObject
) -> None:
    every = sse.EventParser().feed(recording.stream)
    kept = data.draw(st.lists(st.booleans(), min_size=len(every), max_size=len(every)))
    decoder = streams.decoder(recording.wire)
    with contextlib.suppress(GatewayError):
        for event, keep in zip(every, kept, strict=True):
            if keep:
                decoder.feed(event)
        decoder.finish()
    assert decoder.so_far().partial


# Embeddings ------------------------------------------------------------------------------------


def test_embeddings_come_in_the_order_of_the_texts() -> None:
    packed = b64encode(struct.pack("<2f", 0.5, -2.0)).decode()
    vectors, usage = streams.read_embeddings(
        {
            "data": [
                {"index": 1, "embedding": packed},
                {"index": 0, "embedding": [1, 0.25]},
            ],
            "usage": {"prompt_tokens": 4, "total_tokens": 4},
        }
    )
    assert vectors == ((1.0, 0.25), (0.5, -2.0))
    assert usage is not None
    assert usage.input == 4


def test_embeddings_without_numbers_are_in_order() -> None:
    vectors, usage = streams.read_embeddings({"data": [{"embedding": [1]}, {"embedding": [2]}]})
    assert vectors == ((1.0,), (2.0,))
    assert usage is None


@pytest.mark.parametrize(
    "data",
    [
        None,
        [],
        [3],
        [{"embedding": []}],
        [{"embedding": "x"}],
        [{"embedding": "AAAA"}],
        [{"embedding": ["x"]}],
        [{"embedding": [1]}, {"embedding": [1, 2]}],
        [{"index": 0, "embedding": [1]}, {"index": 0, "embedding": [1]}],
        [{"index": 5, "embedding": [1]}],
    ],
)
def test_embeddings_that_cannot_be_used(data: Any) -> None:
    with pytest.raises(BadAnswer):
        streams.read_embeddings({"data": data})


def test_an_error_in_the_place_of_embeddings() -> None:
    with pytest.raises(RateLimited):
        streams.read_embeddings({"error": {"code": 429, "message": "Slow down"}})


def test_an_answer_is_said_now_whatever_the_providers_clock_says() -> None:
    body = {
        "id": "x",
        "model": "m",
        "created": 1_700_000_000,
        "choices": [{"index": 0, "message": {"role": "assistant", "content": "hi"}}],
    }
    assert message_of("chat", body).time is None
    said = {
        "type": "message",
        "role": "assistant",
        "content": [{"type": "output_text", "text": "hi"}],
    }
    answer = {"id": "x", "model": "m", "created_at": 1_700_000_000, "output": [said]}
    assert message_of("responses", answer).time is None
