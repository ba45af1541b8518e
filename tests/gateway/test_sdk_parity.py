"""The providers' own SDKs send what we send, and read what we read.

They are pointed at a server on loopback that keeps what they send. Each feature is written twice:
as a request of ours, and as their users write it. One by one and in random company, the bodies are
compared field by field.
"""

from __future__ import annotations

import json
import random
from typing import Any

import pytest

from perdure import wire
from perdure.core.messages import Message, Reasoning, Text, ToolCall, user
from perdure.gateway import requests, streams
from perdure.gateway.calls import ModelAnswer, Request
from perdure.gateway.providers import CallWire, Habits, Provider
from perdure.gateway.streams import sse
from tests.gateway.echo import Echo, Seen
from tests.gateway.features import ALWAYS, FEATURES, SCHEMA, SHAPE, Feature
from tests.gateway.recordings import CHAT, MESSAGES, RESPONSES, Recording

openai = pytest.importorskip("openai")
anthropic = pytest.importorskip("anthropic")

#: One of which nothing is known: it gets all that it is asked for.
MODELS: dict[CallWire, str] = {
    "chat": "a-model",
    "responses": "a-model",
    "messages": "claude-haiku-4-5",
}
RECORDED = {"chat": CHAT, "responses": RESPONSES, "messages": MESSAGES}


class Sdk:
    """Both SDKs, talking to the same loopback server."""

    def __init__(self, echo: Echo) -> None:
        self._echo = echo
        self.openai = openai.AsyncOpenAI(
            api_key="sk-1", base_url=f"{echo.url}/v1", max_retries=0, timeout=20
        )
        self.anthropic = anthropic.AsyncAnthropic(
            api_key="sk-1", base_url=echo.url, max_retries=0, timeout=20
        )

    async def sent(self, wire_name: CallWire, **theirs: Any) -> Seen:
        recorded = RECORDED[wire_name][0]
        self._echo.answer(recorded.stream if theirs.get("stream") else recorded.body)
        made = await self._create(wire_name, **theirs)
        if theirs.get("stream"):
            async for _ in made:
                pass
        return self._echo.seen[-1]

    async def _create(self, wire_name: CallWire, **theirs: Any) -> Any:
        if wire_name == "chat":
            return await self.openai.chat.completions.create(**theirs)
        if wire_name == "responses":
            return await self.openai.responses.create(**theirs)
        return await self.anthropic.messages.create(**theirs)

    async def close(self) -> None:
        await self.openai.close()
        await self.anthropic.close()


def provider(wire_name: CallWire) -> Provider:
    habits = Habits(instructions="developer", prompt_cache_key=True)
    return Provider(name="p", wire=wire_name, base_url="http://127.0.0.1:1/v1", habits=habits)


async def compare(sdk: Sdk, wire_name: CallWire, features: list[Feature], model: str = "") -> None:
    model = model or MODELS[wire_name]
    ours: dict[str, Any] = {"messages": (user("hi"),)}
    theirs = {**ALWAYS[wire_name], **FEATURES[0].theirs[wire_name], "model": model}
    for feature in features:
        ours |= feature.ours
        if feature.kind == "messages":
            theirs.pop("instructions", None)
        theirs |= feature.theirs[wire_name]
    call = requests.build(
        Request(**ours), provider(wire_name), model, stream=bool(theirs.get("stream"))
    )
    seen = await sdk.sent(wire_name, **theirs)
    mine = json.loads(json.dumps(call.body))
    seen_fields, my_fields = seen.body.keys(), mine.keys()
    assert my_fields == seen_fields
    for field, value in seen.body.items():
        assert mine[field] == value, field
    assert seen.path == f"/v1{call.path}"
    for name, value in call.headers.items():
        # Ours stays at the older version for models that have a temperature.
        if model != MODELS["messages"]:
            assert seen.headers[name] == value
    # Anthropic takes both; its documentation uses the older way, and so do servers like it.
    (key,) = requests.authorization(provider(wire_name), "sk-1").values()
    assert seen.headers["authorization"] == f"Bearer {key.removeprefix('Bearer ')}"


@pytest.mark.parametrize("wire_name", ["chat", "responses", "messages"])
async def test_each_feature_is_sent_as_the_sdk_sends_it(wire_name: CallWire) -> None:
    async with Echo() as echo:
        sdk = Sdk(echo)
        for feature in FEATURES:
            if wire_name in feature.theirs:
                await compare(sdk, wire_name, [feature])
        await sdk.close()


@pytest.mark.parametrize("wire_name", ["chat", "responses", "messages"])
async def test_features_are_sent_together_as_the_sdk_sends_them(wire_name: CallWire) -> None:
    dice = random.Random(4)
    kinds: dict[str, list[Feature]] = {}
    for feature in FEATURES:
        if wire_name in feature.theirs:
            kinds.setdefault(feature.kind, []).append(feature)
    async with Echo() as echo:
        sdk = Sdk(echo)
        for _ in range(60):
            chosen = [dice.choice(each) for each in kinds.values() if dice.random() < 0.6]
            await compare(sdk, wire_name, chosen)
        await sdk.close()


@pytest.mark.parametrize(
    ("model", "ours", "theirs"),
    [
        (
            "claude-haiku-4-5",
            {"reasoning": 2_000},
            {"thinking": {"type": "enabled", "budget_tokens": 2_000}, "max_tokens": 10_192},
        ),
        (
            "claude-opus-5-5",
            {"reasoning": "medium", "shape": SHAPE, "temperature": 0.5},
            {
                "thinking": {"type": "adaptive"},
                "output_config": {
                    "effort": "medium",
                    "format": {"type": "json_schema", "schema": SCHEMA},
                },
            },
        ),
        ("claude-opus-5-5", {"reasoning": "none"}, {"thinking": {"type": "disabled"}}),
    ],
)
async def test_thinking_is_sent_as_the_sdk_sends_it(
    model: str, ours: dict[str, Any], theirs: dict[str, Any]
) -> None:
    async with Echo() as echo:
        sdk = Sdk(echo)
        await compare(sdk, "messages", [Feature("thinking", ours, {"messages": theirs})], model)
        await sdk.close()


async def test_embeddings_are_sent_as_the_sdk_sends_them() -> None:
    async with Echo() as echo:
        sdk = Sdk(echo)
        body = {"object": "list", "data": [{"index": 0, "embedding": [0.5, 1.0]}], "model": "m"}
        echo.answer(body)
        answer = await sdk.openai.embeddings.create(model="m", input=["a"], encoding_format="float")
        await sdk.close()
        call = requests.build_embeddings(["a"], provider("chat"), "m")
        # The SDK would ask for base64 by itself; without the field, servers answer with floats.
        assert echo.seen[-1].body == {**call.body, "encoding_format": "float"}
        assert echo.seen[-1].path == f"/v1{call.path}"
        vectors, _ = streams.read_embeddings(body)
        assert list(vectors[0]) == answer.data[0].embedding


# Reading ---------------------------------------------------------------------------------------


def ours(recording: Recording) -> ModelAnswer:
    decoder = streams.decoder(recording.wire)
    for event in sse.EventParser().feed(recording.stream):
        decoder.feed(event)
    return decoder.finish()


def said(message: Message) -> list[Any]:
    """Parts as far as SDKs keep them: not what a format adds for itself."""
    kept: list[Any] = []
    for part in message.parts:
        if isinstance(part, Text):
            kept.append(part.text)
        elif isinstance(part, ToolCall):
            kept.append((part.id, part.name, json.loads(part.arguments or "{}")))
        elif isinstance(part, Reasoning):
            kept.append((part.text, part.summary, part.signature, part.encrypted))
    return kept


#: Their accumulators do not expect these, and say nothing, or nonsense.
NOT_FOR_SDKS = {
    "whole calls without number, id or end",
    "whole calls, all of them number nought",
    "reasoning of a local server",
    "reasoning of a router",
    "without output in the end",
    "a refusal, cut off",
}


FINISHES = {
    "stop": ("stop", "end_turn"),
    "tools": ("tool_calls", "tool_use", "completed"),
    "filter": ("stop", "refusal"),
}


@pytest.mark.parametrize(
    "recording",
    [each for each in (*CHAT, *RESPONSES, *MESSAGES) if each.name not in NOT_FOR_SDKS],
    ids=lambda recording: f"{recording.wire}: {recording.name}",
)
async def test_the_sdks_gather_the_same_from_a_stream(recording: Recording) -> None:
    async with Echo() as echo:
        sdk = Sdk(echo)
        echo.answer(recording.stream)
        whole: Any
        if recording.wire == "chat":
            chat = sdk.openai.chat.completions.stream(
                model="m", messages=[{"role": "user", "content": "hi"}]
            )
            async with chat as stream:
                whole = await stream.get_final_completion()
            reason = whole.choices[0].finish_reason
        elif recording.wire == "responses":
            async with sdk.openai.responses.stream(model="m", input="hi") as stream:
                whole = await stream.get_final_response()
            reason = whole.status
        else:
            messages = sdk.anthropic.messages.stream(
                model="m", max_tokens=9, messages=[{"role": "user", "content": "hi"}]
            )
            async with messages as stream:
                whole = await stream.get_final_message()
            reason = whole.stop_reason
        await sdk.close()
    (theirs,) = wire.decode(whole, recording.wire)
    mine = ours(recording)
    assert said(mine.message) == said(theirs)
    assert mine.message.id == theirs.id
    assert mine.message.model == theirs.model
    assert mine.message.usage is not None
    assert theirs.usage is not None
    for field in ("input", "output", "cache_read", "cache_write", "reasoning"):
        assert getattr(mine.message.usage, field) == getattr(theirs.usage, field)
    assert reason in FINISHES[mine.finish]
