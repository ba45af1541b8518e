"""Services for agents over HTTP: registry, identity, episodes, tables, canon, schemas."""

from __future__ import annotations

import httpx2
import pytest

import perdure
from perdure import Interaction
from perdure.agents.agent_records import AgentVersion
from perdure.agents.agent_registry import AgentRegistry
from perdure.server.operations import TokenScope
from tests.server.conftest import RunningServer

NOTE = {
    "name": "Note",
    "types": {
        "": {
            "fields": [
                {"name": "id", "shape": {"type": "scalar", "name": "str"}, "required": True},
                {"name": "stars", "shape": {"type": "scalar", "name": "int", "limits": {"le": 5}}},
            ]
        }
    },
}


@pytest.fixture
async def agents(server: RunningServer) -> None:
    registry = AgentRegistry(server.bank.store)
    for name, skill in (("router", "mail"), ("coder", "python")):
        said = AgentVersion(id="", number=0, prompt="p", skills=(skill,), tasks=("triage",))
        await registry.define(name, said)
    await registry.set_status("coder", "paused")
    memory = server.bank.agent_memory("router")
    await memory.store(Interaction(id="1", agent="router", task="triage", request="q", cost=10**9))
    await server.bank.settle()


async def test_the_registry_finds_agents(client: httpx2.AsyncClient, agents: None) -> None:
    async def names(**query: str) -> list[str]:
        return [
            each["name"] for each in (await client.get("/api/v1/registry", params=query)).json()
        ]

    assert await names() == ["coder", "router"]
    assert await names(skill="mail") == ["router"]
    assert await names(task="triage", status="paused") == ["coder"]
    assert await names(skill="mail", status="paused") == []
    found = (await client.get("/api/v1/registry/router")).json()
    assert found["id"].startswith("ag_")
    assert (await client.get(f"/api/v1/registry/{found['id']}")).json() == found
    assert (await client.get("/api/v1/registry/nobody")).status_code == 404
    versions = (await client.get("/api/v1/agents/router/versions")).json()
    assert [each["number"] for each in versions] == [1]


async def test_keys_and_signatures(server: RunningServer, agents: None) -> None:
    own = await server.client(server.token(agent="router"))
    other = await server.client(server.token(TokenScope.READ, agent="coder"))
    key = perdure.SigningKey.make()
    added = await own.post("/api/v1/agents/router/keys", json={"public": key.public})
    assert added.status_code == 201
    assert (
        await other.post("/api/v1/agents/router/keys", json={"public": key.public})
    ).status_code == 403
    signed = {"message": "Pay.", "signature": key.sign("Pay.", added.json()["id"])}
    verify = "/api/v1/registry/router/verify"
    assert (await other.post(verify, json=signed)).json()["verified"] is True
    assert (await other.post(verify, json=signed | {"message": "No."})).json()["verified"] is False
    (id,) = added.json()["keys"]
    assert (await own.delete(f"/api/v1/agents/router/keys/{id}")).json()["keys"] == {}
    assert (await other.post(verify, json=signed)).json()["verified"] is False


async def test_stats_episodes_ratings_and_tables(server: RunningServer, agents: None) -> None:
    own = await server.client(server.token(agent="router"))
    other = await server.client(server.token(agent="coder"))
    assert (await own.get("/api/v1/agents/router/stats")).json()["interactions"] == 1
    (episode,) = (await own.get("/api/v1/agents/router/episodes")).json()
    assert episode["episode"].startswith("episodes/router/")
    assert (await own.get("/api/v1/agents/router/episodes/1")).json()["request"] == "q"
    rated = await own.post("/api/v1/agents/router/episodes/1/rating", json={"score": 0.5})
    assert rated.status_code == 204
    (row,) = (await own.get("/api/v1/tables/agent_performance")).json()
    assert (row["quality_score"], row["cost"], row["task_type"]) == (0.5, 0.001, "triage")
    (row,) = (await own.get("/api/v1/tables/agent_memory")).json()
    assert (row["agent_id"], row["total_interactions"]) == ("router", 1)
    for path in ("stats", "episodes", "episodes/1", "versions"):
        assert (await other.get(f"/api/v1/agents/router/{path}")).status_code == 403
    assert (await other.get("/api/v1/tables/agent_performance")).json() == []
    answer = await other.get("/api/v1/tables/agent_memory", params={"agent": "router"})
    assert answer.status_code == 403


async def test_the_canon(server: RunningServer) -> None:
    client = await server.client(server.token())
    router = await server.client(server.token(agent="router"))
    coder = await server.client(server.token(agent="coder"))
    body = {"text": "# Refunds\nTo Zephyrine.", "readers": ["router"], "expected": 0}
    made = await client.put("/api/v1/canon/refunds", json=body)
    assert made.json()["version"] == 1
    assert (await client.put("/api/v1/canon/refunds", json=body)).status_code == 409
    assert (await router.put("/api/v1/canon/refunds", json={"text": "x"})).status_code == 403
    assert [each["name"] for each in (await router.get("/api/v1/canon")).json()] == ["refunds"]
    assert (await coder.get("/api/v1/canon")).json() == []
    assert "Zephyrine" in (await router.get("/api/v1/canon/refunds")).json()["text"]
    assert (await coder.get("/api/v1/canon/refunds")).status_code == 404
    assert (await coder.get("/api/v1/references/refunds")).status_code == 404
    assert (await coder.get("/api/v1/references")).json() == []

    await server.bank.memories.add("router", "Acme is to be answered in French.")
    promoted = await router.post("/api/v1/canon/acme/promote", json={"memory": "router/M-1"})
    assert promoted.json()["author"] == {"name": "tester"}  # no person: a token of an agent
    stolen = await coder.post("/api/v1/canon/acme2/promote", json={"memory": "router/M-1"})
    assert stolen.status_code == 403
    refused = await router.post("/api/v1/canon/refunds/promote", json={"memory": "router/M-1"})
    assert refused.status_code == 409
    await client.put("/api/v1/canon/refunds", json={"text": "To Max."})
    await client.post("/api/v1/canon/refunds/restore", json={"version": 1})
    history = (await router.get("/api/v1/canon/refunds/history")).json()
    assert [each["entry"]["version"] for each in history] == [3, 2, 1]
    assert (await client.delete("/api/v1/canon/refunds")).status_code == 200
    assert (await client.get("/api/v1/canon/refunds")).status_code == 404


async def test_schemas_as_a_service(server: RunningServer) -> None:
    client = await server.client(server.token())
    reader = await server.client(server.token(TokenScope.READ, agent="router"))
    url = "/api/v1/schemas/remote_notes"
    assert (await reader.put(url, json={"description": NOTE})).status_code == 403
    assert (await client.put(url, json={"description": NOTE})).status_code == 200
    assert (await client.get(url)).json()["versions"][0]["schema"] == 1
    fits = (await reader.post(f"{url}/validate", json={"data": {"id": "a", "stars": 5}})).json()
    assert fits == {"ok": True, "problems": []}
    wrong = (await reader.post(f"{url}/validate", json={"data": {"stars": 6}})).json()
    assert [each["field"] for each in wrong["problems"]] == ["id", "stars"]

    stricter = {"name": "Note", "types": {"": {"fields": [*NOTE["types"][""]["fields"][:1]]}}}  # type: ignore[index]
    stricter["types"][""]["fields"].append(  # type: ignore[index]
        {"name": "author", "shape": {"type": "scalar", "name": "str"}, "required": True}
    )
    refused = await client.put(url, json={"description": stricter})
    assert 400 <= refused.status_code < 500
    assert "schema 2" in refused.text
    assert (await client.put(url, json={"description": stricter, "schema": 2})).status_code == 200
    old = {"data": {"id": "a", "author": "ada"}, "from_version": 1}
    assert (await reader.post(f"{url}/migrate", json=old)).json()["data"] == old["data"]
    unfit = await reader.post(f"{url}/migrate", json={"data": {"id": "a"}, "from_version": 1})
    assert unfit.status_code < 500
    assert "author" in unfit.text
    for bad in (
        {"name": "N", "types": {}},
        {
            "name": "N",
            "types": {"": {"fields": [{"name": "a", "shape": {"type": "nested", "name": "X"}}]}},
        },
        {
            "name": "N",
            "types": {
                "": {
                    "fields": [
                        {
                            "name": "a",
                            "shape": {"type": "scalar", "name": "str", "limits": {"pattern": "("}},
                        }
                    ]
                }
            },
        },
    ):
        answer = await client.put("/api/v1/schemas/bad_notes", json={"description": bad})
        assert 400 <= answer.status_code < 500, answer.text
    own = await client.put("/api/v1/schemas/perdure_sessions", json={"description": NOTE})
    assert 400 <= own.status_code < 500


async def test_all_of_it_through_connect(server: RunningServer, agents: None) -> None:
    router, coder = (server.token(agent=name) for name in ("router", "coder"))
    async with (
        perdure.connect(server.url, token=server.token()) as bank,
        perdure.connect(server.url, token=router) as own,
        perdure.connect(server.url, token=coder) as other,
    ):
        made = await bank.canon.write("refunds", "# Refunds\nTo Max.", readers=["router"])
        assert (made.version, made.author.person) == (1, True)
        with pytest.raises(perdure.Conflict):
            await bank.canon.write("refunds", "x", expected=0)
        await bank.canon.write("refunds", "To Ann.")
        await bank.canon.restore("refunds", 1)
        assert [each.entry.version for each in await own.canon.history("refunds")] == [3, 2, 1]
        assert "To Max." in (await own.canon.get("refunds", version=1)).text
        assert await other.canon.list() == []
        with pytest.raises(perdure.NotFound):
            await other.canon.get("refunds")
        await server.bank.memories.add("router", "Acme is to be answered in French.")
        promoted = await own.canon.promote("router/M-1", name="acme")
        assert promoted.source == "router/M-1"
        await bank.canon.remove("refunds")
        assert [each.name for each in await bank.canon.list()] == ["acme"]

        assert [each.name for each in await other.identities.find(skill="mail")] == ["router"]
        key = perdure.SigningKey.make()
        identity = await own.identities.add_key("router", key.public)
        signed = key.sign("Pay.", identity.id)
        assert await other.identities.verify("router", "Pay.", signed)
        await own.identities.remove_key("router", next(iter(identity.keys)))
        assert not await other.identities.verify("router", "Pay.", signed)
        with pytest.raises(perdure.Denied):
            await other.identities.add_key("router", key.public)
