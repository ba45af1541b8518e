"""Reflection, the inbox and the audit over HTTP."""

from __future__ import annotations

import httpx2

from perdure.core.messages import assistant, user
from perdure.recall.memory_records import person
from tests.server.conftest import RunningServer

RUNS = "/api/v1/reflections"


async def test_a_run_is_begun_shown_and_undone(
    server: RunningServer, client: httpx2.AsyncClient
) -> None:
    for number in range(3):
        session = await server.bank.session(f"coder/{number}")
        question = "How do I run the migration tests locally?"
        await session.append([user(question), assistant("Like this.")])
    (made,) = (await client.post(f"{RUNS}/coder", json={})).json()
    assert (made["name"], made["run"]["state"]) == ("coder/R-1", "done")
    assert (await client.post(f"{RUNS}/coder", json={})).json() == []
    (listed,) = (await client.get(f"{RUNS}?agent=coder")).json()
    assert listed == made
    shown = (await client.get(f"{RUNS}/coder/R-1")).json()
    assert shown["undoable"]
    assert [each["op"] for each in shown["operations"]] == ["add"]
    undone = (await client.post(f"{RUNS}/coder/R-1/undo")).json()
    assert undone["run"]["state"] == "undone"
    assert await server.bank.memories.list("coder") == []
    assert (await client.post(f"{RUNS}/coder/R-1/undo")).status_code == 400
    assert (await client.get(f"{RUNS}/coder/R-9")).status_code == 404
    assert (await client.get(f"{RUNS}/coder/nonsense")).status_code == 400


async def test_messages_are_decided(server: RunningServer, client: httpx2.AsyncClient) -> None:
    session = await server.bank.session("coder/a")
    wish = "From now on, always write tests first. And never push to main directly."
    await session.append([user(wish), assistant("I will.")])
    await client.post(f"{RUNS}/coder", json={})
    found = (await client.get("/api/v1/inbox?agent=coder&kind=candidate")).json()
    one, two = sorted(each["name"] for each in found)
    assert (await client.get(f"/api/v1/inbox/{one}")).json()["message"]["kind"] == "candidate"
    accepted = await client.post(f"/api/v1/inbox/{one}/accept", json={"person": True})
    assert accepted.json()["message"]["status"] == "accepted"
    (memory,) = await server.bank.memories.list("coder")
    assert memory.by_person
    dismissed = await client.post(f"/api/v1/inbox/{two}/dismiss", json={})
    assert dismissed.json()["message"]["status"] == "dismissed"
    assert (await client.get("/api/v1/inbox")).json() == []
    assert len((await client.get("/api/v1/inbox?status=any")).json()) == 2


async def test_the_audit_changes_nothing(server: RunningServer, client: httpx2.AsyncClient) -> None:
    for text in ("Deploys to staging run every night.", "Every night, deploys run to staging."):
        await server.bank.memories.add("coder", text, by=person("ada"))
    for _ in range(2):
        report = (await client.get("/api/v1/checks/memories/coder")).json()
        assert [each["kind"] for each in report["findings"]][:1] == ["duplicate"]
        assert len(report["scores"]) == 1
