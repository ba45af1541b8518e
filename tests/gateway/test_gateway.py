"""Calls through the gateway, in every wire format: what is sent, and what comes back."""

from __future__ import annotations

import base64
import gc
import json
import socket
from typing import Any

import msgspec
import pytest

from perdure.config import ModelsByComplexity, ModelsConfig, PriceConfig, ProviderConfig
from perdure.core.errors import InvalidInput, NoModel, PromptTooLong, Rejected
from perdure.core.messages import (
    Media,
    Message,
    Reasoning,
    Text,
    ToolCall,
    ToolResult,
    Usage,
    user,
)
from perdure.gateway import model_status
from perdure.gateway.calls import (
    CallBegan,
    CallDelta,
    CallOptions,
    PartEnded,
    ReasoningDelta,
    Request,
    Shape,
    TextDelta,
    Tool,
)
from perdure.testing import ScriptedAnswer, ScriptedFault, ScriptedModel
from tests.gateway.faulty import FaultyServer, failing, respond
from tests.gateway.opened import ONCE, TOUGH, opened, outcomes_of, provider

WIRES = ("chat", "responses", "messages")
wires = pytest.mark.parametrize("wire", WIRES)
PIXEL = base64.b64decode(
    "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="
)
SHELL = Tool(
    "shell", "Runs a command.", {"type": "object", "properties": {"c": {"type": "string"}}}
)
FULL = ScriptedAnswer(
    "Two files. ✓",
    calls=(ToolCall("c1", "shell", '{"c": "ls -la"}'), ToolCall("c2", "shell", '{"c": "pwd"}')),
    reasoning="Look first.",
    usage=Usage(input=100, output=20, cache_read=60, reasoning=8),
    chunk=3,
)


@wires
async def test_a_text_is_answered(wire: Any) -> None:
    async with ScriptedModel("Four.") as model, opened(provider(model, wire)) as gateway:
        reply = await gateway.complete("What is two and two?")
        assert (reply.text, reply.finish, reply.provider, reply.model) == (
            "Four.",
            "stop",
            "p0",
            "m",
        )
        assert (reply.cached, reply.fallback, reply.first_token) == (False, 0, None)
        assert reply.latency > 0
        assert reply.message.role == "assistant"
        (request,) = model.requests
        assert (request.kind, request.prompt, request.stream) == (
            wire,
            "What is two and two?",
            False,
        )


@wires
@pytest.mark.parametrize("streamed", [False, True])
async def test_everything_a_request_can_say_arrives_and_everything_an_answer_says_comes_back(
    wire: Any, streamed: bool
) -> None:
    request = Request(
        messages=(
            Message("system", (Text("Be brief."),)),
            Message("user", (Text("What is here?"), Media("image/png", PIXEL))),
            Message("assistant", (ToolCall("c0", "shell", '{"c": "id"}'),)),
            Message("tool", (ToolResult("c0", (Text("root"),)),)),
            user("Go on."),
        ),
        tools=(SHELL,),
        max_tokens=300,
        reasoning="low",
    )
    async with ScriptedModel(FULL) as model, opened(provider(model, wire)) as gateway:
        if streamed:
            async with gateway.stream(request) as stream:
                deltas = [delta async for delta in stream]
            reply = stream.reply
            assert "".join(d.text for d in deltas if isinstance(d, TextDelta)) == FULL.text
            thought = "".join(d.text for d in deltas if isinstance(d, ReasoningDelta))
            assert thought == FULL.reasoning
            began = [d for d in deltas if isinstance(d, CallBegan)]
            assert [(d.id, d.name) for d in began] == [("c1", "shell"), ("c2", "shell")]
            for d, call in zip(began, FULL.calls, strict=True):
                pieces = [p for p in deltas if isinstance(p, CallDelta) and p.index == d.index]
                assert len(pieces) > 1
                assert "".join(p.arguments for p in pieces) == call.arguments
            assert [d.part for d in deltas if isinstance(d, PartEnded)] == list(reply.message.parts)
            assert reply.first_token is not None
            assert 0 < reply.first_token <= reply.latency
        else:
            reply = await gateway.complete(request)
        (received,) = model.requests
        assert received.stream == streamed
        said = received.messages
        assert [m.role for m in said] == ["system", "user", "assistant", "tool", "user"]
        (image,) = [p for m in said for p in m.parts if isinstance(p, Media)]
        assert (image.media_type, image.data) == ("image/png", PIXEL)
        assert received.body["tools"]
        assert received.prompt == "Go on."

    assert reply.text == FULL.text
    # Messages sends arguments as an object: its spaces are not the model's.
    assert [(c.id, c.name, json.loads(c.arguments)) for c in reply.message.calls] == [
        (c.id, c.name, json.loads(c.arguments)) for c in FULL.calls
    ]
    thoughts = [p for p in reply.message.parts if isinstance(p, Reasoning)]
    assert [p.text or p.summary[0] for p in thoughts] == [FULL.reasoning]
    assert reply.finish == "tools"
    usage = reply.usage
    assert usage is not None
    assert (usage.input, usage.output, usage.cache_read) == (100, 20, 60)


@wires
async def test_an_answer_of_a_shape(wire: Any) -> None:
    schema = {
        "type": "object",
        "properties": {"n": {"type": "integer"}},
        "required": ["n"],
        "additionalProperties": False,
    }
    asked = Request(messages=(user("Count."),), shape=Shape(schema))
    async with ScriptedModel('{"n": 3}') as model, opened(provider(model, wire)) as gateway:
        assert (await gateway.complete(asked)).json() == {"n": 3}
        assert '"n"' in str(model.requests[0].body).replace("'", '"')
        noted = await outcomes_of(gateway)
        assert [each.quality for each in noted] == [1.0]
    async with ScriptedModel("three") as model, opened(provider(model, wire)) as gateway:
        reply = await gateway.complete(asked)
        with pytest.raises(Exception, match="did not answer with JSON"):
            reply.json()
        assert [each.quality for each in await outcomes_of(gateway)] == [0.1]


async def test_what_wire_decodes_is_taken() -> None:
    async with ScriptedModel() as model, opened(model) as gateway:
        await gateway.complete([{"role": "user", "content": "As a dict."}])
        await gateway.complete([user("As a message.")])
        assert [each.prompt for each in model.requests] == ["As a dict.", "As a message."]
        with pytest.raises(InvalidInput):
            await gateway.complete([])


async def test_a_request_that_no_provider_understands_reaches_none() -> None:
    async with ScriptedModel() as model, opened(model) as gateway:
        with pytest.raises(InvalidInput, match="max_tokens"):
            await gateway.complete(Request(messages=(user("x"),), max_tokens=0))
        assert not model.requests
        assert await outcomes_of(gateway) == []


async def test_what_a_format_cannot_say_goes_to_one_that_can() -> None:
    asked = Request(messages=(user("x"),), stop=("END",))
    async with (
        ScriptedModel("no") as one,
        ScriptedModel("yes") as other,
        opened(provider(one, "responses"), other) as gateway,
    ):
        reply = await gateway.complete(asked)
        assert (reply.text, reply.fallback) == ("yes", 1)
        assert not one.requests


async def test_one_model_by_name_without_fallback() -> None:
    async with (
        ScriptedModel(ScriptedFault(status=500)) as bad,
        ScriptedModel() as good,
        opened(good, bad, backoff=ONCE) as gateway,
    ):
        with pytest.raises(Exception, match="p1/other"):
            await gateway.complete("x", CallOptions(model="p1/other"))
        assert [r.model for r in bad.requests] == ["other"]
        assert not good.requests


async def test_purposes_and_complexity_choose_the_model() -> None:
    models = ModelsConfig(
        chat=ModelsByComplexity(simple="p0/small", complex="p0/large"), judge="p0/judge"
    )
    async with ScriptedModel() as model, opened(model, models=models) as gateway:
        assert gateway.has("judge")
        assert gateway.has("embed")
        assert not gateway.has("compress")
        await gateway.complete("x", CallOptions(task="classify"))
        await gateway.complete("x", CallOptions(task="code-review"))
        await gateway.complete("x", CallOptions(task="who knows"))  # moderate: the abler neighbour
        await gateway.complete("x", CallOptions(purpose="judge"))
        assert [r.model for r in model.requests] == ["small", "large", "large", "judge"]
        with pytest.raises(NoModel, match="compress"):
            await gateway.complete("x", CallOptions(purpose="compress"))
        noted = await outcomes_of(gateway)
        assert [each.complexity for each in noted] == ["simple", "complex", "moderate", "moderate"]


# Embeddings -----------------------------------------------------------------------------------


async def test_texts_are_embedded_by_a_server() -> None:
    prices = {"p0/m": {"input": 2.0, "output": 0.0}}
    priced = msgspec.convert(prices, dict[str, PriceConfig])
    async with ScriptedModel(dimension=8) as model, opened(model, prices=priced) as gateway:
        found = await gateway.embed(["one", "two", "one"])
        assert len(found.vectors) == 3
        assert {len(vector) for vector in found.vectors} == {8}
        assert found.vectors[0] == found.vectors[2] != found.vectors[1]
        assert (found.provider, found.model) == ("p0", "m")
        assert found.usage is not None
        assert found.usage.input == 3
        assert found.cost == 3 * 2 * 10**6
        (noted,) = await outcomes_of(gateway)
        assert (noted.id, noted.purpose, noted.input, noted.cost) == (
            found.outcome,
            "embed",
            3,
            found.cost,
        )


async def test_texts_are_embedded_on_this_machine_without_any_configuration() -> None:
    async with opened(models=ModelsConfig()) as gateway:
        found = await gateway.embed(["a cat", "a dog"])
        assert (found.provider, len(found.vectors[0]), found.cost) == ("local", 256, 0)
        with pytest.raises(NoModel, match="No model is configured for chat"):
            await gateway.complete("x")
        with pytest.raises(NoModel, match="does not answer"):
            await gateway.complete("x", CallOptions(model="local/wordllama"))
        with pytest.raises(NoModel, match="does not answer"):
            async with gateway.stream("x", CallOptions(model="local/wordllama")):
                pass


async def test_nothing_to_embed() -> None:
    async with opened() as gateway:
        with pytest.raises(InvalidInput, match="nothing to embed"):
            await gateway.embed([])


# Streams --------------------------------------------------------------------------------------


@wires
async def test_a_stream_can_be_finished_unread(wire: Any) -> None:
    async with ScriptedModel(FULL) as model, opened(provider(model, wire)) as gateway:
        async with gateway.stream("x") as stream:
            with pytest.raises(InvalidInput, match="not complete"):
                _ = stream.reply
            reply = await stream.finish()
            assert reply == stream.reply
            assert [delta async for delta in stream] == []
        assert reply.text == FULL.text


@wires
async def test_a_stream_that_came_to_its_end_leaves_its_connection_to_the_next(wire: Any) -> None:
    async with ScriptedModel("Yes.") as model, opened(provider(model, wire)) as gateway:
        for _ in range(5):
            async with gateway.stream("Ready?") as stream:
                assert (await stream.finish()).text == "Yes."
        assert (len(model.requests), model.connections) == (5, 1)


async def test_a_stream_is_read_inside_its_block_and_once() -> None:
    async with ScriptedModel() as model, opened(model) as gateway:
        stream = gateway.stream("x")
        with pytest.raises(InvalidInput, match="not begun"):
            async for _ in stream:
                pass
        assert not model.requests
        async with stream:
            await stream.finish()
        with pytest.raises(InvalidInput, match="read already"):
            async with stream:
                pass


async def test_a_loop_that_was_left_can_be_gone_on_with() -> None:
    async with (
        ScriptedModel(ScriptedAnswer("a b c d e", chunk=2)) as model,
        opened(model) as gateway,
        gateway.stream("x") as stream,
    ):
        words = []
        async for delta in stream:
            if isinstance(delta, TextDelta):
                words.append(delta.text)
                break
        words += [delta.text async for delta in stream if isinstance(delta, TextDelta)]
        assert "".join(words) == stream.reply.text == "a b c d e"


# Errors of the request ------------------------------------------------------------------------


async def test_what_a_provider_rejects_is_not_tried_there_again() -> None:
    async with FaultyServer() as server, opened(server) as gateway:
        server.script(failing(400, "bad temperature", type="invalid_request_error"))
        with pytest.raises(Rejected, match="bad temperature"):
            await gateway.complete("x")
        server.script(failing(400, "maximum context length is 10 tokens"))
        with pytest.raises(PromptTooLong):
            await gateway.complete("x")
        assert server.count == 2


async def test_a_request_too_long_for_one_goes_to_another_and_is_no_mark_against_the_first() -> (
    None
):
    async with FaultyServer() as small, ScriptedModel("fits") as large:
        small.script(always=failing(413, "too long"))
        async with opened(small, large) as gateway:
            for _ in range(3):
                assert (await gateway.complete("x")).text == "fits"
            assert small.count == 3  # still asked first


# What is shown --------------------------------------------------------------------------------


async def test_models_as_they_stand(unused_port: int) -> None:
    async with ScriptedModel(key="right", models=("m",)) as model, FaultyServer() as bare:
        bare.script(always=respond({}, 404))
        keyed = provider(model, key_variable="K", needs_key=True)
        wrong = provider(model, key_variable="W", needs_key=True)
        unset = provider(model, key_variable="U", needs_key=True)
        away = ProviderConfig(base_url=f"http://127.0.0.1:{unused_port}/v1")
        environ = {"K": "right", "W": "wrong-key-wrong"}
        async with opened(
            keyed, wrong, unset, bare, away, environ=environ, tripping=TOUGH
        ) as gateway:
            shown = await model_status.models(gateway)
            assert [each.name for each in shown] == [f"p{n}/m" for n in range(5)]
            first = shown[0]
            assert (first.key, first.key_variable, first.problem) == (True, "K", None)
            assert (first.breaker, first.gate, first.health) == (None, None, {})
            assert shown[2].key is False
            assert {(u.purpose, u.complexity, u.place) for u in shown[1].uses} == {
                (purpose, level, 2)
                for purpose in ("chat", "compress")
                for level in ("simple", "moderate", "complex")
            }
            await gateway.complete("x")
            tried = await model_status.models(gateway, reach=True)
            assert tried[0].problem == ""
            assert tried[0].breaker is not None
            assert tried[0].breaker.state == "closed"
            assert tried[0].health["chat"].preference == 1.0
            assert "There is no key" in (tried[2].problem or "")
            assert tried[3].problem == ""  # it has no list, and is there
            assert "nothing listens" in (tried[4].problem or "")
            assert "right" not in repr(tried).replace("the right one", "")


@pytest.fixture
def unused_port() -> int:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        port: int = taken.getsockname()[1]
        return port


@pytest.mark.slow
async def test_memory_stays_flat() -> None:
    async with ScriptedModel() as model, opened(model) as gateway:
        await gateway.complete("x")

        def objects() -> int:
            gc.collect()
            return sum("perdure.gateway" in str(type(each)) for each in gc.get_objects())

        await gateway.settle()
        before = objects()
        for _ in range(300):
            await gateway.complete("x")
        model.requests.clear()
        await gateway.settle()
        assert objects() <= before + 20
