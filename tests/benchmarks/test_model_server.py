"""The benchmarks' model answers bare clients and the gateway alike."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import httpx2
import pytest

from benchmarks import endurance, model_server, ours
from benchmarks.harness import Report
from benchmarks.peers import LITELLM_HOW, litellm_python, litellm_running
from benchmarks.peers.litellm_sdk import _only_loopback
from perdure.gateway.calls import TextDelta

CHUNKS = 20


@pytest.fixture(scope="module")
def base_url() -> Iterator[str]:
    with model_server.running(CHUNKS) as url:
        yield url


async def test_a_stream_has_as_many_chunks_as_were_asked_for(base_url: str) -> None:
    url = f"{base_url}/chat/completions"
    async with (
        httpx2.AsyncClient() as client,
        client.stream("POST", url, json={"stream": True}) as response,
    ):
        chunks = [chunk async for chunk in response.aiter_bytes()]
    assert len(chunks) == CHUNKS
    assert chunks[-1] == b"data: [DONE]\n\n"
    assert json.loads(chunks[1].removeprefix(b"data: "))["choices"][0]["delta"]["content"]


async def test_one_connection_takes_calls_and_streams_of_any_size(base_url: str) -> None:
    url = f"{base_url}/chat/completions"
    limits = httpx2.Limits(max_connections=1)
    async with httpx2.AsyncClient(limits=limits) as client:
        for size in (1, 500_000):
            for stream in (False, True, False):
                body = {"stream": stream, "text": "x" * size}
                response = await client.post(url, json=body)
                assert response.status_code == 200
                assert response.text.startswith("data: ") == stream


async def test_the_gateway_understands_it_and_knows_its_price(
    base_url: str, tmp_path: Path
) -> None:
    config = endurance.config(base_url)
    async with ours.open_bank(tmp_path / "bank.db", gateway=config) as bank:
        reply = await bank.gateway.complete("Hello?")
        async with bank.gateway.stream("Hello?") as stream:
            deltas = [delta async for delta in stream]
    assert reply.text
    assert reply.cost
    assert reply.cost == stream.reply.cost
    said = "".join(delta.text for delta in deltas if isinstance(delta, TextDelta))
    assert said == stream.reply.text != ""


def test_as_many_calls_as_are_wanted(
    base_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(endurance.VARIABLE, "40")
    endured = endurance.endured(base_url, tmp_path, quick=False)
    assert endured.calls == 40
    assert min(endured.first, endured.last) > 0


@pytest.mark.skipif(litellm_python() is None, reason=f"no LiteLLM: {LITELLM_HOW}")
def test_litellm_understands_it(base_url: str) -> None:
    asked = {"model": model_server.MODEL, "messages": [{"role": "user", "content": "Hello?"}]}
    with litellm_running(Report()) as litellm:
        assert litellm is not None
        assert len(litellm.timed("complete", base_url=base_url, **asked, count=2).samples) == 2
        assert litellm.ask("facts")["litellm"]


def test_litellm_may_talk_to_nobody_else() -> None:
    _only_loopback("socket.connect", (None, ("127.0.0.1", 80)))
    _only_loopback("socket.getaddrinfo", ("localhost", 80, 0, 0, 0))
    _only_loopback("socket.connect", (None, "a socket in the file system"))
    # An address that documentation may use, and nobody has.
    with pytest.raises(ConnectionRefusedError):
        _only_loopback("socket.connect", (None, ("192.0.2.1", 443)))
    with pytest.raises(ConnectionRefusedError):
        _only_loopback("socket.getaddrinfo", ("example.org", 443, 0, 0, 0))
