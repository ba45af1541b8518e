"""History tools answered inside the proxy: what the client sees, and what the model got."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from typing import Any

import msgspec
import pytest

from perdure.core.errors import GatewayError
from perdure.core.messages import ToolCall, Usage
from perdure.gateway.providers import CallWire
from perdure.gateway.streams import decoder, read_answer
from perdure.gateway.streams.sse import EventParser
from perdure.server.proxy.answer_rewrite import rewriter
from perdure.server.proxy.client_request import read_request
from perdure.server.proxy.tool_loop import (
    MOST_ROUNDS,
    ToolLoop,
    offered_names,
    with_tools,
)
from perdure.testing.model import wire_answers
from perdure.testing.model.script import ReceivedRequest, ScriptedAnswer
from perdure.wire import codec
from tests.proxy.simulated_client import WIRES

OURS = frozenset({"recall", "history_get_turn"})


def _call(id: str, name: str = "shell", arguments: str = '{"a":1}') -> ToolCall:
    return ToolCall(id, name, arguments)


class _Scripted:
    """A model's answers, one after the other, as upstream answers."""

    def __init__(self, wire: CallWire, lines: Sequence[ScriptedAnswer], *, stream: bool) -> None:
        self.wire, self.stream = wire, stream
        self.lines = list(lines)
        self.sent: list[list[Any]] = []
        self.ran: list[tuple[str, str]] = []

    async def run(self, name: str, arguments: str) -> str:
        self.ran.append((name, arguments))
        return f"found by {name}"

    async def resend(self, items: Sequence[msgspec.Raw]) -> _Answer:
        self.sent.append([msgspec.json.decode(raw) for raw in items])
        return self.answer()

    def answer(self) -> _Answer:
        options = {"stream_options": {"include_usage": True}, "stream": self.stream}
        body = {"model": "m", "include": ["reasoning.encrypted_content"], **options}
        request = ReceivedRequest(self.wire, "", {}, body, len(self.sent))
        return _Answer(self.lines.pop(0), request)


class _Answer:
    status = 200

    def __init__(self, line: ScriptedAnswer, request: ReceivedRequest) -> None:
        self._line, self._request = line, request
        self.closed = False

    async def chunks(self) -> AsyncIterator[bytes]:
        if not self._request.stream:
            yield msgspec.json.encode(wire_answers.whole(self._line, self._request))
            return
        for name, data in wire_answers.events(self._line, self._request):
            first = f"event: {name}\n".encode() if name else b""
            yield first + b"data: " + msgspec.json.encode(data) + b"\n\n"
        yield b": a comment\n\ndata: [DONE]\n\n"  # where the format has none, some say it too

    async def close(self) -> None:
        self.closed = True


async def _seen(script: _Scripted, unsent: int = 0) -> tuple[Any, list[Any], ToolLoop]:
    """What the client makes of the answer; its events; the loop."""
    loop = ToolLoop(rewriter(script.wire, OURS, unsent), script.run, script.resend)
    if not script.stream:
        status, raw = await loop.body(script.answer())
        assert status == 200
        return read_answer(script.wire, msgspec.json.decode(raw)), [], loop
    parser, reading, said = EventParser(), decoder(script.wire), []
    async for chunk in loop.stream(script.answer()):
        for event in parser.feed(chunk):
            said.append(event.data)
            reading.feed(event)
    return reading.finish(), said, loop


_BOTH = pytest.mark.parametrize("stream", [True, False], ids=["streamed", "whole"])
_WIRES = pytest.mark.parametrize("wire", WIRES)


@_WIRES
@_BOTH
async def test_an_answer_without_calls_of_ours_is_what_it_was(wire: CallWire, stream: bool) -> None:
    line = ScriptedAnswer("Well.", (_call("c1"), _call("c2")), usage=Usage(100, 7))
    answer, _, loop = await _seen(_Scripted(wire, [line], stream=stream))
    assert (answer.message.text, answer.finish) == ("Well.", "tools")
    assert [call.id for call in answer.message.calls] == ["c1", "c2"]
    assert (answer.message.usage.input, answer.message.usage.output) == (100, 7)
    assert not loop.hidden


@_WIRES
@_BOTH
async def test_a_look_up_is_answered_here_and_the_answer_goes_on(
    wire: CallWire, stream: bool
) -> None:
    lines = [
        ScriptedAnswer("Let me see.", (_call("h1", "recall"),), "Hm.", Usage(100, 10)),
        ScriptedAnswer("", (_call("h2", "history_get_turn"),), usage=Usage(150, 5)),
        ScriptedAnswer("It is 8123.", (_call("c1"),), usage=Usage(200, 20)),
    ]
    script = _Scripted(wire, lines, stream=stream)
    answer, said, loop = await _seen(script)
    assert answer.message.text.split() == ["Let", "me", "see.", "It", "is", "8123."]
    assert [call.id for call in answer.message.calls] == ["c1"]
    assert answer.finish == "tools"
    assert (answer.message.usage.input, answer.message.usage.output) == (200, 35)
    assert (loop.usage.input, loop.usage.output) == (450, 35)  # type: ignore[union-attr]
    assert script.ran == [("recall", '{"a":1}'), ("history_get_turn", '{"a":1}')]
    assert not any("h1" in each or "recall" in each for each in said)
    # What the model got with each further request is in order, and what was found is in it.
    for sent in script.sent:
        prompt = {"role": "user", "content": "hi"}
        assert codec(wire).violations([prompt, *sent]) == []
    assert "found by recall" in msgspec.json.encode(script.sent[0]).decode()
    # All of it is put back later, in front of the client's result.
    items = [msgspec.json.decode(raw) for raw in loop.hidden]
    assert items[: len(script.sent[1])] == script.sent[1]
    assert "c1" in msgspec.json.encode(items[len(script.sent[1]) :]).decode()


@_WIRES
@_BOTH
async def test_of_mixed_calls_the_client_sees_its_own(wire: CallWire, stream: bool) -> None:
    calls = (_call("h1", "recall"), _call("c1"), _call("h2", "recall"), _call("c2"))
    script = _Scripted(wire, [ScriptedAnswer("", calls)], stream=stream)
    answer, said, loop = await _seen(script)
    assert [call.id for call in answer.message.calls] == ["c1", "c2"]
    assert answer.finish == "tools"
    assert len(script.ran) == 2
    assert not script.sent
    assert not any('"h1"' in each for each in said)
    # With the client's results behind them, the hidden items are a valid history.
    results: dict[str, list[Any]] = {
        "messages": [
            {
                "role": "user",
                "content": [
                    {"type": "tool_result", "tool_use_id": id, "content": "ok"}
                    for id in ("c1", "c2")
                ],
            }
        ],
        "chat": [{"role": "tool", "tool_call_id": id, "content": "ok"} for id in ("c1", "c2")],
        "responses": [
            {"type": "function_call_output", "call_id": id, "output": "ok"} for id in ("c1", "c2")
        ],
    }
    client = results[wire]
    hidden = [msgspec.json.decode(raw) for raw in loop.hidden]
    assert codec(wire).violations([{"role": "user", "content": "hi"}, *hidden, *client]) == []


@_WIRES
async def test_numbers_of_a_stream_have_no_gaps(wire: CallWire) -> None:
    lines = [
        ScriptedAnswer("One.", (_call("h1", "recall"),), "Hm."),
        ScriptedAnswer("Two.", (_call("h2", "recall"), _call("c1"), _call("c2")), "Hm."),
    ]
    _, said, _ = await _seen(_Scripted(wire, lines, stream=True))
    events = [msgspec.json.decode(each) for each in said if each != "[DONE]"]
    if wire == "messages":
        starts = [each["index"] for each in events if each["type"] == "content_block_start"]
        assert starts == list(range(6))  # thought, text, thought, text, two calls
        assert [each["type"] for each in events].count("message_start") == 1
    elif wire == "responses":
        assert [each["sequence_number"] for each in events] == list(range(len(events)))
        added = [e["output_index"] for e in events if e["type"] == "response.output_item.added"]
        assert added == list(range(6))
        assert len(events[-1]["response"]["output"]) == 6
        assert [each["type"] for each in events].count("response.created") == 1
    else:
        assert len({each["id"] for each in events}) == 1
        calls = [c for e in events for o in e["choices"] for c in o["delta"].get("tool_calls", ())]
        assert {call["index"] for call in calls} == {0, 1}
        assert said[-1] == "[DONE]"
        assert said.count("[DONE]") == 1


@_WIRES
@_BOTH
async def test_look_ups_have_a_limit(wire: CallWire, stream: bool) -> None:
    again = [ScriptedAnswer("", (_call(f"h{n}", "recall"),)) for n in range(30)]
    script = _Scripted(wire, again, stream=stream)
    answer, _, _ = await _seen(script)
    assert len(script.ran) == MOST_ROUNDS
    assert len(script.sent) == MOST_ROUNDS + 1
    assert "enough look-ups" in msgspec.json.encode(script.sent[-1]).decode()
    assert not answer.message.calls
    assert answer.finish == "stop"


@_WIRES
@_BOTH
async def test_usage_can_be_told_as_if_all_had_been_sent(wire: CallWire, stream: bool) -> None:
    line = ScriptedAnswer("Well.", usage=Usage(100, 7))
    answer, _, loop = await _seen(_Scripted(wire, [line], stream=stream), unsent=5_000)
    assert (answer.message.usage.input, answer.message.usage.output) == (5_100, 7)
    assert loop.usage is not None
    assert (loop.usage.input, loop.usage.output) == (100, 7)  # what is recorded


@_WIRES
async def test_a_refusal_after_a_look_up_is_told(wire: CallWire) -> None:
    class Refusing(_Scripted):
        async def resend(self, items: Sequence[msgspec.Raw]) -> _Answer:
            answer = await super().resend(items)
            answer.status = 529
            return answer

    lines = [ScriptedAnswer("", (_call("h1", "recall"),)), ScriptedAnswer("")]
    script = Refusing(wire, lines, stream=True)
    with pytest.raises(GatewayError):
        await _seen(script)


@_WIRES
def test_tools_are_offered_beside_the_clients_own(wire: CallWire) -> None:
    own = {
        "messages": b'{"name":"Read", "input_schema":{}, "new_field":1}',
        "chat": b'{"type":"function","function":{"name":"Read"}}',
        "responses": b'{"type":"function","name":"Read"}',
    }[wire]
    field = b"input" if wire == "responses" else b"messages"
    bodies = [b'"tools" : [%b ]' % own, b'"tools":[]', b'"tools":null', b'"a":1']
    for tools in bodies:
        request = read_request(wire, b'{"store":false,"%b":[],%b}' % (field, tools))
        names = offered_names(request)
        assert "history_get_turn" in names
        made = with_tools(request, names)
        assert made is not None
        offered = msgspec.json.decode(made)
        assert len(offered) == len(names) + (own in tools)
        if own in tools:
            assert bytes(made).startswith(b"[%b" % own)


def test_tools_are_not_offered_where_they_could_not_be_answered() -> None:
    taken = b'{"messages":[],"tools":[{"name":"recall","input_schema":{}}]}'
    assert "recall" not in offered_names(read_request("messages", taken))
    for wire, body in (
        ("chat", b'{"messages":[],"n":2}'),
        ("chat", b'{"messages":[],"tool_choice":"none"}'),
        ("messages", b'{"messages":[],"tool_choice":{"type":"none"}}'),
        ("responses", b'{"input":[]}'),
    ):
        assert not offered_names(read_request(wire, body))  # type: ignore[arg-type]
