"""Agents over HTTP: messages that wait, stream or are accepted; questions, state, schedules."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from pathlib import Path

import httpx2
import pytest

from perdure.config import GatewayConfig, ModelsConfig
from perdure.core.messages import ToolCall
from perdure.server.operations import TokenScope
from perdure.testing import ReceivedRequest, ScriptedAnswer, ScriptedModel
from tests.server.conftest import RunningServer, running_server

AGENT = "/api/v1/agents/router"


def script(request: ReceivedRequest) -> ScriptedAnswer:
    last = request.messages[-1]
    if last.results:
        return ScriptedAnswer(f"So: {last.results[0].text}")
    if "order" in last.text:
        return ScriptedAnswer("", (ToolCall("c1", "ask_person", '{"question": "How many?"}'),))
    return ScriptedAnswer("To sales.", chunk=4)


@pytest.fixture
async def served(tmp_path: Path) -> AsyncIterator[RunningServer]:
    """A server with an agent, for which it works itself."""
    async with AsyncExitStack() as stack:
        model = await stack.enter_async_context(ScriptedModel(script))
        gateway = GatewayConfig(
            providers={"scripted": model.provider_config()},
            models=ModelsConfig(chat="scripted/any"),
        )
        server = await stack.enter_async_context(running_server(tmp_path, gateway=gateway))
        await server.bank.agent("router", prompt="You route.", serve=False)
        yield server


@pytest.fixture
async def client(served: RunningServer) -> httpx2.AsyncClient:
    return await served.client(served.token(TokenScope.READ, TokenScope.WRITE, agent="router"))


async def test_messages_wait_stream_or_are_accepted(client: httpx2.AsyncClient) -> None:
    done = await client.post(f"{AGENT}/messages", json={"message": "Where?", "key": "k"})
    assert done.status_code == 200
    assert (done.json()["state"], done.json()["reply"]) == ("done", "To sales.")
    again = await client.post(f"{AGENT}/messages", json={"message": "Where?", "key": "k"})
    assert again.json()["id"] == done.json()["id"]
    body = {"message": "Where?", "answer": "stream"}
    streamed = await client.post(f"{AGENT}/messages", json=body)
    assert streamed.headers["content-type"].startswith("text/event-stream")
    events = [json.loads(each[6:]) for each in streamed.text.split("\n\n") if each]
    assert "".join(each["text"] for each in events if each["type"] == "text") == "To sales."
    assert events[-1]["message"]["reply"] == "To sales."
    accepted = await client.post(
        f"{AGENT}/messages", json={"message": "Where?", "answer": "accepted"}
    )
    assert accepted.status_code == 202
    listed = (await client.get(f"{AGENT}/messages")).json()
    assert listed[0]["id"] == accepted.json()["id"]
    assert (await client.get(f"{AGENT}/messages/1")).json()["reply"] == "To sales."
    assert (await client.get(f"{AGENT}/messages/99")).status_code == 404
    assert (await client.get(f"{AGENT}/messages/x")).status_code == 400
    assert (await client.post(f"{AGENT}/messages", json={"message": ""})).status_code == 400


async def test_people_answer(client: httpx2.AsyncClient) -> None:
    asked = await client.post(f"{AGENT}/messages", json={"message": "order"})
    assert (asked.status_code, asked.json()["state"]) == (200, "asking")
    (question,) = (await client.get(f"{AGENT}/questions")).json()
    answer = {"question": question["id"], "text": "Twelve."}
    assert (await client.post(f"{AGENT}/answers", json=answer)).status_code == 200
    assert (await client.post(f"{AGENT}/answers", json=answer)).status_code == 409
    other = {"question": "other/00000001/0001.c1"}
    assert (await client.post(f"{AGENT}/answers", json=other)).status_code == 400
    body = {"message": "Hi", "session": "other"}
    assert (await client.post(f"{AGENT}/messages", json=body)).status_code == 200


async def test_state_and_schedules(client: httpx2.AsyncClient) -> None:
    assert (await client.get(f"{AGENT}/state")).json() == {"version": 0, "content": {}}
    put = await client.put(f"{AGENT}/state", json={"content": {"seen": 3}, "expected": 0})
    assert put.json() == {"version": 1, "content": {"seen": 3}}
    late = await client.put(f"{AGENT}/state", json={"content": {}, "expected": 0})
    assert late.status_code == 409
    made = await client.post(f"{AGENT}/schedules", json={"when": "0 9 * * *", "message": "Sort."})
    assert made.status_code == 201
    id = made.json()["id"].partition("/")[2]
    assert len((await client.get(f"{AGENT}/schedules")).json()) == 1
    assert (await client.delete(f"{AGENT}/schedules/{id}")).status_code == 204
    assert (await client.delete(f"{AGENT}/schedules/{id}")).status_code == 404
    assert (await client.post(f"{AGENT}/schedules", json={"message": "x"})).status_code == 400


async def test_tokens_of_other_agents_are_refused(served: RunningServer) -> None:
    other = await served.client(served.token(TokenScope.READ, TokenScope.WRITE, agent="other"))
    for path in ("messages", "questions", "state", "schedules"):
        assert (await other.get(f"{AGENT}/{path}")).status_code == 403
    reader = await served.client(served.token(TokenScope.READ))
    assert (await reader.post(f"{AGENT}/messages", json={"message": "x"})).status_code == 403
    assert (await reader.get("/api/v1/agents/nobody/messages")).status_code == 404
