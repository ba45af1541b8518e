"""A real, very small model, behind a real server: what we send is understood, and the other way.

`make test-local-model` starts it. What it says is worthless; that it says it is the point.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator

import httpx2
import pytest

from perdure.config import GatewayConfig, ModelsConfig
from perdure.core.messages import assistant, user
from perdure.gateway import requests, streams
from perdure.gateway.calls import Answered, Ask, Delta, Request, TextDelta
from perdure.gateway.catalog import Candidate, Catalog
from perdure.gateway.streams.sse import Parser

URL = os.environ.get("PERDURE_LIVE_URL", "")
MODEL = os.environ.get("PERDURE_LIVE_MODEL", "model")

pytestmark = pytest.mark.skipif(not URL, reason="`make test-local-model` runs it")

REQUEST = Request(
    messages=(user("My name is Ada."), assistant("Hello, Ada."), user("Say one short sentence.")),
    max_tokens=24,
    temperature=0.0,
    seed=1,
)


@pytest.fixture
def model() -> Candidate:
    config = GatewayConfig(models=ModelsConfig(chat=f"{URL}#{MODEL}"))
    return Catalog(config, {}).candidates(Ask())[0]


@pytest.fixture
async def http() -> AsyncIterator[httpx2.AsyncClient]:
    async with httpx2.AsyncClient(trust_env=False, timeout=120) as client:
        yield client


async def complete(http: httpx2.AsyncClient, model: Candidate, request: Request) -> Answered:
    call = requests.build(request, model.provider, model.model, stream=False)
    response = await http.post(model.provider.base_url + call.path, json=call.body)
    assert response.status_code == 200, response.text
    return streams.read_answer(model.provider.wire, response.json())


async def stream(
    http: httpx2.AsyncClient, model: Candidate, request: Request
) -> tuple[list[Delta], Answered]:
    call = requests.build(request, model.provider, model.model, stream=True)
    parser, decoder = Parser(), streams.decoder(model.provider.wire)
    deltas: list[Delta] = []
    address = model.provider.base_url + call.path
    async with http.stream("POST", address, json=call.body) as response:
        assert response.status_code == 200
        async for chunk in response.aiter_bytes():
            for event in parser.feed(chunk):
                deltas += decoder.feed(event)
    for event in parser.close():
        deltas += decoder.feed(event)
    return deltas, decoder.finish()


async def test_it_answers(http: httpx2.AsyncClient, model: Candidate) -> None:
    answered = await complete(http, model, REQUEST)
    assert answered.message.text.strip()
    assert answered.finish in {"stop", "length"}
    assert answered.message.model == MODEL
    usage = answered.message.usage
    assert usage is not None
    assert usage.input is not None
    assert usage.input > 10
    assert usage.output is not None
    assert 0 < usage.output <= 24


async def test_it_streams(http: httpx2.AsyncClient, model: Candidate) -> None:
    deltas, answered = await stream(http, model, REQUEST)
    words = [delta.text for delta in deltas if isinstance(delta, TextDelta)]
    assert len(words) > 1
    assert "".join(words) == answered.message.text
    assert answered.finish in {"stop", "length"}


async def test_the_length_of_an_answer_is_kept_to(
    http: httpx2.AsyncClient, model: Candidate
) -> None:
    request = Request(messages=(user("Count from one to one hundred."),), max_tokens=4)
    answered = await complete(http, model, request)
    assert answered.finish == "length"


async def test_several_at_the_same_time(http: httpx2.AsyncClient, model: Candidate) -> None:
    both = await asyncio.gather(
        complete(http, model, REQUEST), complete(http, model, REQUEST), stream(http, model, REQUEST)
    )
    assert both[0].message.text
    assert both[1].message.text
    assert both[2][1].message.text
