"""A real, very small model, behind a real server: what we send is understood, and the other way.

`make test-local-model` starts it. What it says is worthless; that it says it is the point.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator

import pytest

import perdure
from perdure.bank import Bank
from perdure.config import Config, GatewayConfig, ModelsConfig, ProviderConfig, ReflectionConfig
from perdure.core.messages import assistant, user
from perdure.gateway.calls import CallOptions, Reply, Request, Shape, TextDelta
from perdure.gateway.gateway import Gateway
from perdure.gateway.model_status import models

URL = os.environ.get("PERDURE_LIVE_URL", "")
MODEL = os.environ.get("PERDURE_LIVE_MODEL", "model")

pytestmark = pytest.mark.skipif(not URL, reason="needs a model: `make test-local-model` runs it")

REQUEST = Request(
    messages=(user("My name is Ada."), assistant("Hello, Ada."), user("Say one short sentence.")),
    max_tokens=24,
    temperature=0.0,
    seed=1,
)


@pytest.fixture
async def bank() -> AsyncIterator[Bank]:
    # This server follows no schemas, unlike that of llama.cpp itself.
    server = ProviderConfig(base_url=URL, habits={"shape": "object"})
    models = ModelsConfig(chat=f"small/{MODEL}")
    config = Config(gateway=GatewayConfig(providers={"small": server}, models=models))
    async with perdure.open("memory://", config=config) as bank:
        yield bank


@pytest.fixture
def gateway(bank: Bank) -> Gateway:
    return bank.gateway


async def streamed(gateway: Gateway) -> tuple[list[str], Reply]:
    async with gateway.stream(REQUEST) as stream:
        words = [delta.text async for delta in stream if isinstance(delta, TextDelta)]
        return words, stream.reply


async def test_it_answers(gateway: Gateway) -> None:
    reply = await gateway.complete(REQUEST)
    assert reply.text.strip()
    assert reply.finish in {"stop", "length"}
    assert (reply.model, reply.message.model) == (MODEL, MODEL)
    usage = reply.usage
    assert usage is not None
    assert usage.input is not None
    assert usage.input > 10
    assert usage.output is not None
    assert 0 < usage.output <= 24
    (row,) = await gateway.costs()
    assert (row.model, row.calls, row.input, row.output) == (MODEL, 1, usage.input, usage.output)


async def test_it_streams(gateway: Gateway) -> None:
    words, reply = await streamed(gateway)
    assert len(words) > 1
    assert "".join(words) == reply.text
    assert reply.finish in {"stop", "length"}
    assert reply.first_token is not None


async def test_the_length_of_an_answer_is_kept_to(gateway: Gateway) -> None:
    request = Request(messages=(user("Count from one to one hundred."),), max_tokens=4)
    assert (await gateway.complete(request)).finish == "length"


async def test_an_answer_of_a_shape(gateway: Gateway) -> None:
    schema = {
        "type": "object",
        "properties": {"city": {"type": "string"}},
        "required": ["city"],
        "additionalProperties": False,
    }
    request = Request(
        messages=(user("The capital of France, as JSON."),), shape=Shape(schema), max_tokens=64
    )
    assert isinstance((await gateway.complete(request)).json(), dict)


async def test_several_at_the_same_time(gateway: Gateway) -> None:
    one, two, three = await asyncio.gather(
        gateway.complete(REQUEST), gateway.complete(REQUEST), streamed(gateway)
    )
    assert {each.finish for each in (one, two, three[1])} <= {"stop", "length"}


async def test_the_same_again_comes_from_the_cache(gateway: Gateway) -> None:
    ask = CallOptions(cache=True)
    first, second = await gateway.complete(REQUEST, ask), await gateway.complete(REQUEST, ask)
    assert (first.cached, second.cached) == (False, True)
    assert second.message == first.message


async def test_it_is_reached(gateway: Gateway) -> None:
    found = {view.model: view for view in await models(gateway, reach=True)}
    assert found[MODEL].problem == ""


async def test_one_whole_reflection() -> None:
    """Nothing that it says is worth keeping; nothing is kept that it made up."""
    server = ProviderConfig(base_url=URL, habits={"shape": "object"})
    config = Config(
        gateway=GatewayConfig(
            providers={"small": server}, models=ModelsConfig(reflect=f"small/{MODEL}")
        ),
        reflection=ReflectionConfig(window=2_000),
    )
    async with perdure.open("memory://", config=config) as bank:
        session = await bank.session("planner/auth")
        await session.append([user("The staging port is 8123."), assistant("Noted.")])
        (run,) = await bank.reflect()
        assert (run.state, run.why) == ("done", "")
        assert run.calls[0].state == "answered"
        for memory in await bank.memories.list("planner"):
            assert all("staging" in quote.text for quote in memory.quotes)
