"""Perdure's models behind unchanged clients: the real SDKs, each model behind each format."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import anthropic
import openai
import pytest

from perdure.config import Config, GatewayConfig, ModelsConfig
from perdure.core.messages import ToolCall, Usage
from perdure.gateway.providers import CallWire
from perdure.testing.model import ScriptedAnswer, ScriptedFault, ScriptedModel
from tests.proxy.proxy_setup import RunningProxy, proxied
from tests.proxy.simulated_client import WIRES

_WIRES = pytest.mark.parametrize("wire", WIRES)
_MODEL = ScriptedAnswer(
    "It is 8123.",
    (ToolCall("c1", "shell", '{"command":"ls"}'),),
    reasoning="Hm.",
    usage=Usage(100, 20, cache_read=30),
)
_TOOL = {"type": "object", "properties": {"command": {"type": "string"}}}


@asynccontextmanager
async def served_by_gateway(
    wire: CallWire, script: Any = _MODEL
) -> AsyncIterator[tuple[RunningProxy, Any]]:
    """A proxy whose gateway has one model that speaks this format."""
    async with ScriptedModel(script) as model:
        gateway = GatewayConfig(
            providers={"mine": model.provider_config(wire, needs_key=False)},
            models=ModelsConfig(chat=("mine/scripted", "mine/other")),
            retries=0,
        )
        config = Config(gateway=gateway)
        async with proxied("http://127.0.0.1:1", config=config, via_gateway=True) as running:
            yield running, model


def _anthropic(running: RunningProxy) -> anthropic.AsyncAnthropic:
    return anthropic.AsyncAnthropic(base_url=running.url, api_key="theirs", max_retries=0)


def _openai(running: RunningProxy) -> openai.AsyncOpenAI:
    return openai.AsyncOpenAI(base_url=f"{running.url}/v1", api_key="theirs", max_retries=0)


@_WIRES
async def test_anthropic_sdk(wire: CallWire) -> None:
    asked: dict[str, Any] = {
        "model": "claude-any",
        "max_tokens": 64,
        "system": "Be brief.",
        "messages": [{"role": "user", "content": "Which port?"}],
        "tools": [{"name": "shell", "input_schema": _TOOL}],
    }
    async with served_by_gateway(wire) as (running, model), _anthropic(running) as client:
        whole = await client.messages.create(**asked)
        async with client.messages.stream(**asked) as stream:
            texts = [text async for text in stream.text_stream]
            streamed = await stream.get_final_message()
        assert "".join(texts) == "It is 8123."
        for answer in (whole, streamed):
            kinds = [block.type for block in answer.content if block.type != "thinking"]
            assert kinds == ["text", "tool_use"]
            call = answer.content[-1].to_dict()
            assert (call["id"], call["name"]) == ("c1", "shell")
            assert call["input"] == {"command": "ls"}
            assert answer.stop_reason == "tool_use"
            used = answer.usage
            assert used.input_tokens + (used.cache_read_input_tokens or 0) == 100
            assert used.output_tokens == 20
        for request in model.requests:
            assert request.model == "scripted"
            assert "Be brief." in repr(request.body)
            assert request.messages[-1].text == "Which port?"
            assert "theirs" not in repr(request.headers)  # the client's key is not for our models


@_WIRES
async def test_openai_sdk_chat(wire: CallWire) -> None:
    tool = {"type": "function", "function": {"name": "shell", "parameters": _TOOL}}
    asked: dict[str, Any] = {
        "model": "mine/other",
        "messages": [{"role": "user", "content": "Which port?"}],
        "tools": [tool],
    }
    async with served_by_gateway(wire) as (running, model), _openai(running) as client:
        whole = await client.chat.completions.create(**asked)
        message = whole.choices[0].message
        assert message.content == "It is 8123."
        assert message.tool_calls is not None
        assert message.tool_calls[0].to_dict()["function"] == {
            "name": "shell",
            "arguments": '{"command":"ls"}',
        }
        assert whole.choices[0].finish_reason == "tool_calls"
        assert whole.usage is not None
        assert (whole.usage.prompt_tokens, whole.usage.completion_tokens) == (100, 20)
        stream = await client.chat.completions.create(
            **asked, stream=True, stream_options={"include_usage": True}
        )
        text, given, last = "", "", None
        async for chunk in stream:
            for choice in chunk.choices:
                text += choice.delta.content or ""
                for call in choice.delta.tool_calls or ():
                    given += (call.function and call.function.arguments) or ""
            last = chunk.usage or last
        assert (text, given) == ("It is 8123.", '{"command":"ls"}')
        assert last is not None
        assert last.prompt_tokens == 100
        # One of ours may be named.
        assert {request.model for request in model.requests} == {"other"}


@_WIRES
async def test_openai_sdk_responses(wire: CallWire) -> None:
    asked: dict[str, Any] = {
        "model": "gpt-any",
        "input": "Which port?",
        "instructions": "Be brief.",
        "tools": [{"type": "function", "name": "shell", "parameters": _TOOL, "strict": False}],
        "max_output_tokens": 64,
    }
    async with served_by_gateway(wire) as (running, model), _openai(running) as client:
        whole = await client.responses.create(**asked)
        async with client.responses.stream(**asked) as stream:
            events = [(event.type, getattr(event, "delta", "")) async for event in stream]
            streamed = await stream.get_final_response()
        said = [delta for kind, delta in events if kind == "response.output_text.delta"]
        assert "".join(said) == "It is 8123."
        for answer in (whole, streamed):
            assert answer.output_text == "It is 8123."
            call = answer.output[-1].to_dict()
            assert (call["call_id"], call["arguments"]) == ("c1", '{"command":"ls"}')
            assert answer.usage is not None
            assert answer.usage.input_tokens == 100
        assert all("Be brief." in repr(request.body) for request in model.requests)


async def test_models_are_ours() -> None:
    async with served_by_gateway("chat") as (running, _), _openai(running) as client:
        names = [model.id async for model in client.models.list()]
        assert names == ["mine/scripted", "mine/other"]
        assert (await client.models.retrieve("mine/other")).id == "mine/other"
        async with _anthropic(running) as other:
            assert [model.id async for model in other.models.list()] == names


async def test_another_model_answers_and_costs_are_counted() -> None:
    def script(request: Any) -> Any:
        return ScriptedFault(status=500) if request.model == "scripted" else _MODEL

    async with (
        served_by_gateway("messages", script) as (running, model),
        _openai(running) as client,
    ):
        answer = await client.chat.completions.create(
            model="gpt-any", messages=[{"role": "user", "content": "Which port?"}]
        )
        assert answer.choices[0].message.content == "It is 8123."
        assert [request.model for request in model.requests] == ["scripted", "other"]
        await running.bank.settle()
        rows = await running.bank.gateway.costs("purpose")
        assert [(row.of, row.calls) for row in rows] == [("chat", 2)]


_LONG = ScriptedFault(status=400, message="prompt is too long: 210000 tokens > 200000 maximum")


@pytest.mark.parametrize(
    ("fault", "status"),
    [(ScriptedFault(status=401), 502), (ScriptedFault(status=529), 502), (_LONG, 400)],
)
async def test_errors_are_told_in_the_clients_words(fault: ScriptedFault, status: int) -> None:
    hi: Any = [{"role": "user", "content": "hi"}]
    async with served_by_gateway("chat", fault) as (running, _):
        async with _anthropic(running) as one, _openai(running) as other:
            for stream in (False, True):
                with pytest.raises(anthropic.APIStatusError) as told:
                    await one.messages.create(model="m", max_tokens=5, messages=hi, stream=stream)
                assert told.value.status_code == status
                with pytest.raises(openai.APIStatusError) as heard:
                    await other.chat.completions.create(model="m", messages=hi, stream=stream)
                assert heard.value.status_code == status
        answer = await running.client.post("/v1/messages", content=b"no json")
        assert answer.status_code == 400


async def test_an_answer_that_breaks_off_ends_with_an_error() -> None:
    fault = ScriptedFault(how="truncated", after=6, answer=ScriptedAnswer("word " * 60))
    async with served_by_gateway("chat", fault) as (running, _), _anthropic(running) as client:
        asked = client.messages.stream(
            model="m", max_tokens=5, messages=[{"role": "user", "content": "hi"}]
        )
        async with asked as stream:
            with pytest.raises(anthropic.APIError):
                await stream.get_final_message()
