"""Agents over HTTP: messages, state, schedules, questions; the A2A card and what it promises."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from datetime import datetime
from typing import Any

import httpx2
import pytest

from perdure.config import GatewayConfig, ModelsConfig
from perdure.core.messages import ToolCall
from perdure.server.operations import TokenScope
from perdure.testing.model import ReceivedRequest, ScriptedAnswer, ScriptedModel
from perdure.testing.model.script import Line
from tests.server.conftest import RunningServer, StartServer

ROUTER = "/api/v1/agents/router"


async def eventually(client: httpx2.AsyncClient, path: str, holds: Callable[[Any], bool]) -> None:
    """Until what is read there fits; `TimeoutError` after a time in which any machine does it."""
    async with asyncio.timeout(100):
        while not holds((await client.get(path)).json()):  # noqa: ASYNC110  # another process's
            await asyncio.sleep(0.01)


def reply(request: ReceivedRequest) -> Line:
    """Says what it was asked; asks a person about refunds."""
    last = request.messages[-1]
    if last.role == "tool":
        return f"A person says: {last.results[0].text}"
    if "refund" in request.prompt:
        call = ToolCall("call_1", "ask_person", '{"question": "Shall we pay?"}')
        return ScriptedAnswer(calls=(call,))
    return ScriptedAnswer(f"It is about {request.prompt.split()[-1]}", chunk=4)


@pytest.fixture
async def model() -> Any:
    async with ScriptedModel(reply) as model:
        yield model


@pytest.fixture
async def server(start_server: StartServer, model: ScriptedModel) -> RunningServer:
    gateway = GatewayConfig(
        providers={"scripted": model.provider_config()}, models=ModelsConfig(chat="scripted/any")
    )
    server = await start_server(gateway=gateway)
    await server.bank.agent(
        "router", prompt="You route emails.", tasks=["email_routing"], recall=False, serve=False
    )
    return server


@pytest.fixture
async def client(server: RunningServer) -> httpx2.AsyncClient:
    return await server.client(server.token())


async def test_a_message_is_answered_and_stands_in_the_session(
    server: RunningServer, client: httpx2.AsyncClient
) -> None:
    sent = {"message": "An email about invoices", "task": "email_routing", "key": "mail-1"}
    first = (await client.post(f"{ROUTER}/messages", json=sent)).json()
    assert (first["state"], first["reply"]) == ("done", "It is about invoices")
    again = (await client.post(f"{ROUTER}/messages", json=sent)).json()
    assert again == first  # the same key is done once
    session = await server.bank.existing_session("router/main")
    assert [each.number for each in await session.turns()] == [1]
    assert (await client.get(f"{ROUTER}/messages/1")).json() == first
    assert (await client.get(f"{ROUTER}/messages?state=done")).json() == [first]


async def test_an_accepted_message_is_done_later(client: httpx2.AsyncClient) -> None:
    sent = await client.post(f"{ROUTER}/messages", json={"message": "one", "mode": "accept"})
    assert sent.json()["number"] == 1
    await eventually(
        client,
        f"{ROUTER}/messages/1",
        lambda found: found["state"] == "done" and found["reply"] == "It is about one",
    )


async def test_a_reply_is_streamed_as_ui_messages(client: httpx2.AsyncClient) -> None:
    sent = {"message": "An email about trains", "mode": "stream"}
    async with client.stream("POST", f"{ROUTER}/messages", json=sent) as response:
        assert response.headers["x-vercel-ai-ui-message-stream"] == "v1"
        lines = [line.removeprefix("data: ") async for line in response.aiter_lines() if line]
    assert lines[-1] == "[DONE]"
    chunks = [json.loads(line) for line in lines[:-1]]
    said = [chunk["delta"] for chunk in chunks if chunk["type"] == "text-delta"]
    assert "".join(said) == "It is about trains"
    assert len(said) > 1
    kinds = [chunk["type"] for chunk in chunks]
    assert kinds[:2] == ["start", "start-step"]
    assert kinds[-2:] == ["finish-step", "finish"]
    assert chunks[-1]["messageMetadata"]["turn"] == "T-1"


async def test_a_question_is_shown_answered_and_the_turn_goes_on(
    client: httpx2.AsyncClient,
) -> None:
    sent = {"message": "A refund", "mode": "stream"}
    async with client.stream("POST", f"{ROUTER}/messages", json=sent) as response:
        lines = [line.removeprefix("data: ") async for line in response.aiter_lines() if line]
    end = json.loads(lines[-2])
    assert end["messageMetadata"]["state"] == "asking"
    (asked,) = (await client.get(f"{ROUTER}/questions")).json()
    assert asked["text"] == "Shall we pay?"
    assert datetime.fromisoformat(asked["asked"]).tzinfo is not None
    assert asked["answered"] is None
    (shown,) = (await client.get(f"{ROUTER}/messages/1")).json()["questions"]
    assert shown == asked
    question = asked["id"].rpartition("/")[2]
    answered = await client.post(
        f"{ROUTER}/messages/1/questions/{question}", json={"text": "Yes, once."}
    )
    assert answered.json()["answered_by"] == "tester"
    await eventually(
        client, f"{ROUTER}/messages/1", lambda found: found["reply"] == "A person says: Yes, once."
    )
    twice = await client.post(f"{ROUTER}/messages/1/questions/{question}", json={"text": "No."})
    assert twice.status_code == 409


async def test_a_paused_agent_accepts_and_waits(client: httpx2.AsyncClient) -> None:
    assert (await client.post(f"{ROUTER}/pause")).json()["status"] == "paused"
    sent = {"message": "one", "deadline": 0.1}
    assert (await client.post(f"{ROUTER}/messages", json=sent)).json()["state"] == "accepted"
    assert (await client.post(f"{ROUTER}/resume")).json()["status"] == "active"
    await eventually(client, f"{ROUTER}/messages/1", lambda found: found["state"] == "done")


async def test_state_has_versions(client: httpx2.AsyncClient) -> None:
    assert (await client.get(f"{ROUTER}/state")).json() == {"version": 0, "state": {}}
    kept = {"state": {"routed": 3}, "expected": 0}
    assert (await client.put(f"{ROUTER}/state", json=kept)).json()["version"] == 1
    late = await client.put(f"{ROUTER}/state", json=kept)
    assert late.status_code == 409
    assert (await client.get(f"{ROUTER}/state")).json()["state"] == {"routed": 3}


async def test_a_schedule_sends_its_message(client: httpx2.AsyncClient) -> None:
    made = await client.post(f"{ROUTER}/schedules", json={"message": "Good morning", "when": 0.01})
    assert made.status_code == 201
    later = await client.post(f"{ROUTER}/schedules", json={"message": "Hm", "when": "0 9 * * 1"})
    await eventually(
        client,
        f"{ROUTER}/messages",
        lambda found: [each["reply"] for each in found] == ["It is about morning"],
    )
    (left,) = (await client.get(f"{ROUTER}/schedules")).json()
    assert (left["cron"], left["message"], left["every"]) == ("0 9 * * 1", "Hm", None)
    assert datetime.fromisoformat(left["next"]) > datetime.fromisoformat(left["made"])
    assert left["id"] == later.json()["id"]
    gone = await client.delete(f"{ROUTER}/schedules/{left['id'].rpartition('/')[2]}")
    assert gone.status_code == 204
    assert (await client.get(f"{ROUTER}/schedules")).json() == []


async def test_a_schedule_takes_a_moment_as_text(client: httpx2.AsyncClient) -> None:
    made = await client.post(
        f"{ROUTER}/schedules", json={"message": "Hm", "when": "2999-01-31T09:00+00:00"}
    )
    assert made.json()["next"].startswith("2999-01-31T09:00:00")
    past = await client.post(f"{ROUTER}/schedules", json={"message": "Hm", "when": "2020-01-31"})
    assert past.status_code == 400


async def test_a_reply_is_rated(server: RunningServer, client: httpx2.AsyncClient) -> None:
    await client.post(f"{ROUTER}/messages", json={"message": "one"})
    rated = await client.post(f"{ROUTER}/messages/1/rating", json={"score": 0.0, "note": "Wrong."})
    assert rated.status_code == 204
    (row,) = await server.bank.gateway.costs("agent")
    assert (row.of, row.quality) == ("router", 0.0)
    await client.post(f"{ROUTER}/pause")
    await client.post(f"{ROUTER}/messages", json={"message": "two", "mode": "accept"})
    waits = await client.post(f"{ROUTER}/messages/2/rating", json={"score": 1.0})
    assert waits.status_code == 409
    assert "accepted" in waits.text


async def test_an_agent_whose_tools_are_elsewhere_is_left_to_them(
    server: RunningServer, client: httpx2.AsyncClient
) -> None:
    def shout(text: str) -> str:
        """Shout a text."""
        return text.upper()

    await server.bank.agent("crier", prompt="You shout.", tools=[shout], serve=False)
    sent = {"message": "one", "deadline": 0.2}
    waits = (await client.post("/api/v1/agents/crier/messages", json=sent)).json()
    assert waits["state"] == "accepted"
    await server.bank.agent("crier", tools=[shout])  # now somebody has them
    await eventually(
        client, "/api/v1/agents/crier/messages/1", lambda found: found["state"] == "done"
    )


async def test_partial_answers_are_heard_on_the_live_socket(
    server: RunningServer, client: httpx2.AsyncClient
) -> None:
    """Also of a message that nobody streams."""
    heard = list[str]()
    leave = server.bank.services.log.answers.listen(lambda change: heard.append(change.kind))
    await client.post(f"{ROUTER}/messages", json={"message": "one"})
    leave()
    assert heard[0] == "began"
    assert "grew" in heard
    assert heard[-1] == "written"


async def test_what_may_not_be_is_refused(
    server: RunningServer, client: httpx2.AsyncClient
) -> None:
    other = await server.client(server.token(agent="planner"))
    assert (await other.post(f"{ROUTER}/messages", json={"message": "x"})).status_code == 403
    reader = await server.client(server.token(TokenScope.READ))
    assert (await reader.post(f"{ROUTER}/messages", json={"message": "x"})).status_code == 403
    unknown = await client.post("/api/v1/agents/nobody/messages", json={"message": "x"})
    assert unknown.status_code == 404
    for what in ("stats", "episodes", "evolution"):
        assert (await client.get(f"/api/v1/agents/nobody/{what}")).status_code == 404
        assert (await client.get(f"{ROUTER}/{what}")).status_code == 200
    assert (await client.post(f"{ROUTER}/messages", json={"message": " "})).status_code == 400
    assert (await client.get(f"{ROUTER}/messages/none")).status_code == 400
    assert (await client.get(f"{ROUTER}/messages/7")).status_code == 404
    assert (await client.get(f"{ROUTER}/messages")).json() == []


async def test_another_agent_finds_the_card_and_asks(
    server: RunningServer, client: httpx2.AsyncClient
) -> None:
    card = (await client.get("/.well-known/agent-card.json")).json()
    assert card == (await client.get("/a2a/router/.well-known/agent-card.json")).json()
    assert [each["id"] for each in card["skills"]] == ["email_routing"]
    (interface,) = card["supportedInterfaces"]
    assert (interface["protocolBinding"], interface["protocolVersion"]) == ("HTTP+JSON", "1.0")
    said = {
        "messageId": "m-1",
        "role": "ROLE_USER",
        "parts": [{"text": "An email about jobs"}],
        "contextId": "peer",
    }
    sent = await client.post(f"{interface['url']}/message:send", json={"message": said})
    task = sent.json()["task"]
    assert task["status"]["state"] == "TASK_STATE_COMPLETED"
    assert task["artifacts"][0]["parts"][0]["text"] == "It is about jobs"
    assert task["contextId"] == "peer"
    twice = await client.post(f"{interface['url']}/message:send", json={"message": said})
    assert twice.json()["task"] == task  # the id makes it idempotent
    elsewhere = {"message": {**said, "contextId": "other"}}
    other = await client.post(f"{interface['url']}/message:send", json=elsewhere)
    assert other.json()["task"]["contextId"] == "other"
    stranger = await server.client(server.token(name="stranger"))
    theirs = await stranger.post(f"{interface['url']}/message:send", json={"message": said})
    assert theirs.json()["task"]["id"] not in {task["id"], other.json()["task"]["id"]}
    found = await client.get(f"{interface['url']}/tasks/{task['id']}")
    assert found.json() == task
    await server.bank.agent("second", prompt="Another.", serve=False)
    assert (await client.get("/.well-known/agent-card.json")).status_code == 404
    named = await client.get("/.well-known/agent-card.json?agent=second")
    assert named.json()["name"] == "second"


async def test_who_leaves_early_does_not_end_the_message(
    server: RunningServer, client: httpx2.AsyncClient
) -> None:
    sent = {"message": "An email about bees", "mode": "stream"}
    async with client.stream("POST", f"{ROUTER}/messages", json=sent) as response:
        async for _line in response.aiter_lines():
            break
    await asyncio.sleep(0)
    await eventually(
        client, f"{ROUTER}/messages/1", lambda found: found["reply"] == "It is about bees"
    )
