"""Windows, recall and history tools through a real proxy, with the clients' own libraries."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from itertools import pairwise
from typing import Any, Self

import anthropic
import msgspec
import openai
import pytest

from perdure.core.messages import ToolCall, Usage
from perdure.core.tokens import count_messages, o200k
from perdure.gateway.providers import CallWire
from perdure.testing.model import ScriptedAnswer, ScriptedFault, ScriptedModel
from perdure.testing.model.script import ReceivedRequest
from perdure.wire import codec
from tests.proxy.proxy_setup import Answer, RawRequest, RawUpstream, RunningProxy, http, proxied
from tests.proxy.simulated_client import WIRES, SimulatedClient, blocks_of

_WIRES = pytest.mark.parametrize("wire", WIRES)
# Clients stream. Whole answers pass the same window: they are in the long lane.
_BOTH = pytest.mark.parametrize(
    "stream",
    [pytest.param(True, id="streamed"), pytest.param(False, id="whole", marks=pytest.mark.slow)],
)
_TOOL = {"type": "object", "properties": {"command": {"type": "string"}}}
_LONG = " ".join(f"word{n}" for n in range(400))


_EMPTY = {
    "id": "msg_1",
    "type": "message",
    "role": "assistant",
    "model": "m",
    "stop_reason": "end_turn",
    "usage": {"input_tokens": 1, "output_tokens": 1},
}


class Client:
    """A program that talks to a model with the provider's own library, and keeps its history."""

    def __init__(self, running: RunningProxy, wire: CallWire, *, stream: bool) -> None:
        self.wire, self.stream = wire, stream
        self.items: list[Any] = []
        headers = {"x-perdure-session": "app@demo/one"}
        self._anthropic = anthropic.AsyncAnthropic(
            base_url=running.url, api_key="k", max_retries=0, default_headers=headers
        )
        self._openai = openai.AsyncOpenAI(
            base_url=f"{running.url}/v1", api_key="k", max_retries=0, default_headers=headers
        )
        self.usage: Any = None
        self.more: dict[str, Any] = {}

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self._anthropic.close()
        await self._openai.close()

    async def say(self, text: str) -> str:
        self.items.append({"role": "user", "content": text})
        return await self.ask()

    async def answer(self, call: str, text: str) -> str:
        """Answer a call of the model's."""
        if self.wire == "messages":
            block = {"type": "tool_result", "tool_use_id": call, "content": text}
            self.items.append({"role": "user", "content": [block]})
        elif self.wire == "chat":
            self.items.append({"role": "tool", "tool_call_id": call, "content": text})
        else:
            said = {"call_id": call, "output": text}
            self.items.append({"type": "function_call_output", **said})
        return await self.ask()

    async def ask(self) -> str:
        """Send it all; the text of the answer, which becomes part of the history."""
        return str(await getattr(self, f"_ask_{self.wire}")())

    async def _ask_messages(self) -> str:
        asked: Any = {
            "model": "m",
            "max_tokens": 64,
            "system": "Be exact.",
            "messages": self.items,
            "tools": [{"name": "shell", "input_schema": _TOOL}],
            "extra_body": {"unknown_field": {"a": 1}},
        }
        if self.stream:
            async with self._anthropic.messages.stream(**asked) as stream:
                got = await stream.get_final_message()
        else:
            got = await self._anthropic.messages.create(**asked)
        self.usage = got.usage.input_tokens + (got.usage.cache_read_input_tokens or 0)
        content = [block.to_dict() for block in got.content]
        for block in content:
            block.pop("parsed_output", None)
        self.items.append({"role": "assistant", "content": content})
        return "".join(str(block["text"]) for block in content if block["type"] == "text")

    async def _ask_chat(self) -> str:
        tool = {"type": "function", "function": {"name": "shell", "parameters": _TOOL}}
        asked: Any = {
            "model": "m",
            "messages": [{"role": "system", "content": "Be exact."}, *self.items],
            "tools": [tool],
            "extra_body": {"unknown_field": {"a": 1}},
        }
        if self.stream:
            more: Any = {"stream_options": {"include_usage": True}}
            async with self._openai.chat.completions.stream(**asked, **more) as stream:
                got: Any = await stream.get_final_completion()
        else:
            got = await self._openai.chat.completions.create(**asked)
        self.usage = got.usage.prompt_tokens
        message = got.choices[0].message
        item: Any = {"role": "assistant", "content": message.content}
        if message.tool_calls:
            item["tool_calls"] = [
                {
                    "id": call.id,
                    "type": "function",
                    "function": {"name": call.function.name, "arguments": call.function.arguments},
                }
                for call in message.tool_calls
            ]
        self.items.append(item)
        return message.content or ""

    async def _ask_responses(self) -> str:
        asked: Any = {
            "model": "m",
            "instructions": "Be exact.",
            "input": self.items,
            "store": False,
            "include": ["reasoning.encrypted_content"],
            "tools": [{"type": "function", "name": "shell", "parameters": _TOOL, "strict": False}],
            "extra_body": {"unknown_field": {"a": 1}},
            **self.more,
        }
        if self.stream:
            async with self._openai.responses.stream(**asked) as stream:
                got: Any = await stream.get_final_response()
        else:
            got = await self._openai.responses.create(**asked)
        self.usage = got.usage.input_tokens
        items = [item.model_dump(mode="json", exclude_none=True) for item in got.output]
        for item in items:
            for name in ("parsed", "parsed_arguments"):
                item.pop(name, None)
            for block in item.get("content", ()):
                block.pop("parsed", None)
        self.items += items
        return str(got.output_text)


@asynccontextmanager
async def _talking(
    wire: CallWire, script: Any, *, stream: bool = True, bank: Any = "memory://", **settings: Any
) -> AsyncIterator[tuple[Client, ScriptedModel, RunningProxy]]:
    async with (
        ScriptedModel(script) as model,
        proxied(model.url, bank, **settings) as running,
        Client(running, wire, stream=stream) as client,
    ):
        yield client, model, running


def _items(request: ReceivedRequest) -> list[Any]:
    return list(request.body["input" if request.kind == "responses" else "messages"])


def _tokens(request: ReceivedRequest) -> int:
    return count_messages(o200k(), codec(request.kind).decode(_items(request)))


def _said(request: ReceivedRequest) -> str:
    return msgspec.json.encode(_items(request)).decode()


def _numbered(request: ReceivedRequest) -> str:
    return f"Answer {request.number}. {_LONG}"


@_WIRES
@_BOTH
async def test_a_history_beyond_the_budget_is_sent_as_a_window(
    wire: CallWire, stream: bool
) -> None:
    async with _talking(wire, _numbered, stream=stream, budget=6_000) as (client, model, running):
        await client.say("The port is 8123.")
        for number in range(12):
            await client.say(f"Question {number}. {_LONG}")
        sizes = [_tokens(request) for request in model.requests]
        assert max(sizes) <= 6_000
        for request in model.requests:
            assert codec(wire).violations(_items(request)) == []
            assert request.body["unknown_field"] == {"a": 1}
            assert "Be exact." in repr(request.body)
            assert len(request.body["tools"]) == 1
        last = _said(model.requests[-1])
        assert "# Your memory of this conversation" in last
        assert "The port is 8123." in last
        newest = _items(model.requests[-1])[-1]["content"]
        if wire == "chat":  # old text may stand in the same message
            assert newest.endswith("".join(client.items[-2]["content"]))
        else:
            assert newest == client.items[-2]["content"]
        whole = count_messages(o200k(), codec(wire).decode(client.items))
        assert whole > 20_000
        # All of it is in the bank, once.
        session = await running.bank.session("app@demo/one")
        turns = await session.turns(50)
        assert [turn.prompt.split(".")[0] for turn in turns][1:] == [
            f"Question {number}" for number in range(12)
        ]
        assert all(len(turn.messages) == 2 for turn in turns)


@_WIRES
async def test_a_refusal_as_too_long_makes_the_window_smaller_for_good(wire: CallWire) -> None:
    def script(request: ReceivedRequest) -> Any:
        if _tokens(request) > 3_000:
            words = f"prompt is too long: {_tokens(request)} tokens > 3000 maximum"
            return ScriptedFault(status=400, message=words)
        return f"Answer. {_LONG}"

    async with _talking(wire, script, budget=8_000) as (client, model, _):
        for number in range(8):
            assert "Answer." in await client.say(f"Question {number}. {_LONG}")
        refused = [request for request in model.requests if _tokens(request) > 3_000]
        assert len(refused) == 1
        assert len(model.requests) == 9


@_WIRES
async def test_another_refusal_is_passed_on(wire: CallWire) -> None:
    fault = ScriptedFault(status=400, message="prompt is too long: 9 tokens > 5 maximum")
    async with _talking(wire, fault, budget=8_000) as (client, model, _):
        with pytest.raises((anthropic.BadRequestError, openai.BadRequestError)) as told:
            await client.say("hi")
        assert "prompt is too long" in str(told.value)
        assert len(model.requests) == 2


@_WIRES
@_BOTH
async def test_recall_stands_beside_the_prompt(wire: CallWire, stream: bool) -> None:
    async with _talking(wire, _numbered, stream=stream, budget=6_000, recall=True) as talking:
        client, model, _ = talking
        await client.say("The staging server is called zebra and listens on port 8123.")
        for number in range(12):
            await client.say(f"Question {number}. {_LONG}")
        await client.say("Which port does the staging server zebra listen on?")
        said = _said(model.requests[-1])
        assert "<perdure-memory>" in said
        assert said.index("<perdure-memory>") < said.index("Which port does")
        await client.say("Thanks.")  # it stays where it was sent
        again = _said(model.requests[-1])
        assert "Which port does" in again
        assert again.index("<perdure-memory>") < again.index("Which port does")
        assert max(map(_tokens, model.requests)) <= 6_000


async def test_nothing_recalled_changes_nothing() -> None:
    body = b'{ "model":"m",  "messages" : [{"role":"user","content":"h\\u0069"}], "x":1.50 }'
    said = msgspec.json.encode({**_EMPTY, "content": [{"type": "text", "text": "Hi."}]})
    async with RawUpstream(lambda _: http(200, said)) as upstream:
        async with proxied(upstream.url, recall=True) as running:
            got = await running.client.post("/v1/messages", content=body)
            assert got.status_code == 200
        assert upstream.requests[0].body == body


def _call(call: str, name: str, **given: Any) -> ToolCall:
    return ToolCall(call, name, msgspec.json.encode(given).decode())


@_WIRES
@_BOTH
async def test_history_tools_are_answered_inside(wire: CallWire, stream: bool) -> None:
    lines = [
        "Noted.",
        ScriptedAnswer(
            "Let me see.", (_call("h1", "history_get_turn", id="T-1", level="R"),), "Hm.",
            Usage(100, 10),
        ),
        ScriptedAnswer("It is 8123.", usage=Usage(300, 5)),
        "You are welcome.",
    ]  # fmt: skip
    async with _talking(wire, lines, stream=stream, tools=True) as (client, model, running):
        await client.say("The port is 8123.")
        text = await client.say("Which port?")
        assert "".join(text.split()) == "Letmesee.Itis8123."
        assert "h1" not in repr(client.items)
        assert client.usage == 300
        found = _said(model.requests[2])
        assert "The port is 8123." in found.partition("h1")[2]  # what the tool brought back
        await client.say("Thanks.")
        # The model sees its look-up where it was.
        assert _items(model.requests[3])[: len(_items(model.requests[2]))] == _items(
            model.requests[2]
        )
        for request in model.requests:
            assert codec(wire).violations(_items(request)) == []
            names = repr(request.body["tools"])
            assert "shell" in names
            assert "history_get_turn" in names
        session = await running.bank.session("app@demo/one")
        turn = await session.turn("T-2")
        replies = [message for message in turn.messages if message.role == "assistant"]
        assert len(replies) == 1
        assert replies[0].usage is not None
        assert (replies[0].usage.input, replies[0].usage.output) == (400, 15)  # what it took


@_WIRES
@_BOTH
async def test_mixed_calls_are_put_back_with_the_next_request(
    wire: CallWire, stream: bool, tmp_path: Any
) -> None:
    mixed = ScriptedAnswer(
        "", (_call("h1", "history_get_turn", id="T-1", level="R"), _call("c1", "shell"))
    )
    lines: list[str | ScriptedAnswer] = ["Noted.", mixed, "Done.", "Welcome.", "Again."]
    bank = f"sqlite:///{tmp_path / 'bank.db'}"
    async with ScriptedModel(lines) as model:
        async with (
            proxied(model.url, bank, tools=True) as running,
            Client(running, wire, stream=stream) as client,
        ):
            await client.say("The port is 8123.")
            await client.say("Which port?")
            assert "h1" not in repr(client.items)
            assert "c1" in repr(client.items)
            assert await client.answer("c1", "ok") == "Done."
            await client.say("Thanks.")
            kept = client.items
        # After a restart, too.
        async with (
            proxied(model.url, bank, tools=True) as running,
            Client(running, wire, stream=stream) as client,
        ):
            client.items = kept
            await client.say("And again?")
    for before, after in zip(model.requests[2:], model.requests[3:], strict=False):
        assert _items(after)[: len(_items(before))] == _items(before)
    for request in model.requests[2:]:
        assert codec(wire).violations(_items(request)) == []
        said = _said(request)
        assert said.count('"h1"') == 2
        assert said.count('"c1"') == 2


@_WIRES
@_BOTH
async def test_usage_is_told_as_configured(wire: CallWire, stream: bool) -> None:
    def script(request: ReceivedRequest) -> ScriptedAnswer:
        return ScriptedAnswer(f"Answer. {_LONG}", usage=Usage(_tokens(request), 7))

    for usage in ("window", "whole"):
        talking = _talking(wire, script, stream=stream, budget=5_000, usage=usage)
        async with talking as (client, model, running):
            for number in range(8):
                await client.say(f"Question {number}. {_LONG}")
            whole = count_messages(o200k(), codec(wire).decode(client.items[:-1]))
            sent = _tokens(model.requests[-1])
            assert whole > 2 * sent
            if usage == "window":
                assert client.usage == sent
            else:
                assert abs(client.usage - whole) < 100
            session = await running.bank.session("app@demo/one")
            reply = (await session.turn("T-8")).messages[-1]
            assert reply.usage is not None
            assert reply.usage.input == sent  # the truth


@_WIRES
async def test_a_failure_of_ours_lets_the_request_through(
    wire: CallWire, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with _talking(wire, f"Answer. {_LONG}", budget=3_000) as (client, model, running):
        for number in range(5):
            await client.say(f"Question {number}. {_LONG}")

        async def broken(*_: Any, **__: Any) -> Any:
            raise RuntimeError("out of order")

        monkeypatch.setattr(running.proxy.windows, "rewrite", broken)
        await client.say("Still there?")
        assert _tokens(model.requests[-1]) > 3_000  # all of it, as the client sent it
        assert running.proxy.report.figures.failures == 1


async def test_a_refusal_in_a_stream_of_responses_is_one_too() -> None:
    def failed(request: ReceivedRequest) -> Any:
        return ScriptedFault(
            status=400,
            message=f"Your input exceeds the context window: {_tokens(request)} > 3000 tokens",
            after=2,
        )

    def script(request: ReceivedRequest) -> Any:
        return failed(request) if _tokens(request) > 3_000 else f"Answer. {_LONG}"

    async with _talking("responses", script, budget=8_000) as (client, model, _):
        for number in range(6):
            assert "Answer." in await client.say(f"Question {number}. {_LONG}")
        assert len(model.requests) == 7


async def test_tokens_are_counted_of_what_would_be_sent() -> None:
    """And a client that compacts beyond what its model takes gets a window for that, too."""
    counted: list[bytes] = []

    def answer(request: RawRequest) -> Answer:
        if "count_tokens" in request.path:
            counted.append(request.body)
            return http(200, b'{"input_tokens":7}')
        if len(request.body) > 30_000:
            refusal = {"type": "invalid_request_error", "message": "prompt is too long"}
            return http(400, msgspec.json.encode({"type": "error", "error": refusal}))
        said = {"type": "text", "text": f"Answer. {_LONG}"}
        return http(200, msgspec.json.encode({**_EMPTY, "content": [said]}))

    headers = {"x-perdure-session": "app@demo/one", "user-agent": "claude-cli/2.1"}
    items: list[Any] = []
    asked = {"role": "user", "content": "How long is this?"}

    def body(*more: Any) -> bytes:
        return msgspec.json.encode({"model": "m", "max_tokens": 9, "messages": [*items, *more]})

    async with RawUpstream(answer) as upstream:
        for usage in ("window", "whole"):
            items.clear()
            settings: Any = {"budget": 4_000, "usage": usage}
            async with proxied(upstream.url, **settings) as running:
                for number in range(8):
                    items.append({"role": "user", "content": f"Question {number}. {_LONG}"})
                    got = await running.client.post("/v1/messages", content=body(), headers=headers)
                    items.append({"role": "assistant", "content": got.json()["content"]})
                path = "/v1/messages/count_tokens"
                got = await running.client.post(path, content=body(asked), headers=headers)
                assert got.json() == {"input_tokens": 7}
                session = await running.bank.session("app@demo/one")
                turns = await session.turns(99)
                assert len(turns) == 8  # what is counted is not said
                prompt = {"role": "user", "content": "CRITICAL: Respond with TEXT ONLY. Sum up."}
                got = await running.client.post(
                    "/v1/messages", content=body(prompt), headers=headers
                )
                assert got.status_code == 200
                sent = msgspec.json.decode(upstream.requests[-1].body)["messages"]
                assert sent[-1] == prompt
                assert codec("messages").violations(sent) == []
                assert len(await session.turns(99)) == 8
        window, whole = counted
        assert whole == body(asked)
        assert len(window) < len(whole) / 2
        assert b"# Your memory" in window
        assert window.endswith(msgspec.json.encode(asked) + b"]}")


async def test_history_at_the_provider_is_left_alone() -> None:
    async with _talking("responses", "Answer.", budget=600, recall=True) as (client, model, _):
        for number in range(3):
            client.items = [{"role": "user", "content": f"Question {number}. {_LONG}"}]
            client.more = {"previous_response_id": "resp_1"}
            await client.ask()
            assert _items(model.requests[-1]) == client.items[:1]


@pytest.mark.slow
@_WIRES
async def test_300k_tokens_behind_60k_and_each_request_extends_the_one_before(
    wire: CallWire,
) -> None:
    """A conversation that began without the proxy goes on through it: some turns of tool rounds."""
    path = {"messages": "/messages", "chat": "/chat/completions", "responses": "/responses"}[wire]
    headers = {"x-perdure-session": "client@demo/long"}
    client = SimulatedClient(wire, 3)
    client.prompt("The secret port is 8123.")
    for turn in range(9):
        for _ in range(10):
            client.results(client.reply(calls=1, thinks=True), client.words(1_600))
        client.reply()
        client.prompt(f"Now task {turn}.")

    def script(request: ReceivedRequest) -> Any:
        asks = request.number % 4 != 3
        calls = (ToolCall(f"n{request.number}", "shell", "{}"),) if asks else ()
        return ScriptedAnswer(f"Step {request.number}.", calls, "Hm.")

    async with (
        ScriptedModel(script) as model,
        proxied(model.url, "memory://", budget=60_000) as running,
    ):
        for _ in range(24):
            got = await running.client.post(
                f"/v1{path}", content=client.body(), headers=headers, timeout=120
            )
            said = got.json()
            if wire == "messages":
                client.items.append({"role": "assistant", "content": said["content"]})
            elif wire == "chat":
                client.items.append(said["choices"][0]["message"])
            else:
                client.items += said["output"]
            newest = f"n{model.requests[-1].number}"
            if newest in got.text:
                client.results([newest], client.words(1_000))
            else:
                client.prompt("Go on.")
        assert running.proxy.report.figures.failures == 0
        session = await running.bank.session("client@demo/long")
        epochs = await session.epochs()
    sizes = [_tokens(request) for request in model.requests]
    assert max(sizes) <= 60_000
    assert min(sizes) > 25_000
    assert count_messages(o200k(), codec(wire).decode(client.items)) > 300_000
    assert "secret port is 8123" in _said(model.requests[-1])
    rewritten = 0
    for before, after in pairwise(model.requests):
        assert codec(wire).violations(_items(after)) == []
        one, two = (
            blocks_of([msgspec.json.encode(item) for item in _items(each)], wire)
            for each in (before, after)
        )
        rewritten += two[: len(one)] != one
    assert rewritten == len(epochs) - 1
