"""Memories, reference layers, costs, models, settings and checks over HTTP."""

from __future__ import annotations

from typing import Annotated

import httpx2
import msgspec

import perdure
from perdure.config import (
    CacheConfig,
    GatewayConfig,
    ModelsConfig,
    ProviderConfig,
    SecretsConfig,
)
from perdure.core.messages import Media, Message, Text, assistant, user
from perdure.gateway.outcomes import Outcome
from tests.server.conftest import RunningServer, StartServer

MEMORIES = "/api/v1/memories/planner"


@perdure.record("api_notes")
class ApiNote(msgspec.Struct, frozen=True):
    id: Annotated[str, perdure.Key()]


async def test_the_life_of_a_memory(client: httpx2.AsyncClient) -> None:
    made = await client.post(MEMORIES, json={"text": "The staging port is 8123.", "tags": ["Ops"]})
    assert (made.status_code, made.json()["key"]) == (201, "planner/M-1")
    await client.post(MEMORIES, json={"text": "Releases are on Fridays.", "kind": "decision"})
    await client.post(MEMORIES, json={"text": "Ada likes short answers.", "kind": "preference"})
    found = (await client.get("/api/v1/memories?words=staging+port")).json()
    assert (found["count"], found["memories"][0]["memory"]["tags"]) == (1, ["ops"])
    page = (await client.get("/api/v1/memories?agent=planner&limit=2&offset=1")).json()
    assert (page["count"], len(page["memories"])) == (3, 2)
    edit = {"text": "The staging port is 8124.", "pinned": True, "expected": 1}
    edited = (await client.patch(f"{MEMORIES}/M-1", json=edit)).json()["memory"]
    assert (edited["text"], edited["pinned"]) == ("The staging port is 8124.", True)
    tagged = await client.patch(f"{MEMORIES}/M-1", json={"tags": [], "pinned": True})
    assert "tags" not in tagged.json()["memory"]
    late = await client.patch(f"{MEMORIES}/M-1", json=edit)
    assert late.status_code == 409
    (former,) = (await client.get(f"{MEMORIES}/M-1/history")).json()[:1]
    assert former["memory"]["text"] == "The staging port is 8123."
    retired = await client.post(f"{MEMORIES}/M-2/retire", json={"superseded_by": "M-3"})
    assert retired.json()["memory"]["status"] == "superseded"
    assert (await client.post(f"{MEMORIES}/M-2/restore", json={})).json()["memory"].get(
        "status", "active"
    ) == "active"
    merged = await client.post(f"{MEMORIES}/merge", json={"keys": ["M-2", "M-3"]})
    assert merged.json()["key"] == "planner/M-2"
    assert (await client.delete(f"{MEMORIES}/M-2")).json()["erased"] in {True, False}
    left = (await client.get("/api/v1/memories?status=any")).json()
    assert [each["key"] for each in left["memories"]] == ["planner/M-1"]
    assert (await client.get(f"{MEMORIES}/M-9")).status_code == 404
    assert (await client.post(MEMORIES, json={"text": " "})).status_code == 400


async def test_what_a_person_wrote_no_machine_changes(client: httpx2.AsyncClient) -> None:
    await client.post(MEMORIES, json={"text": "We ship on Friday.", "person": True})
    refused = await client.patch(f"{MEMORIES}/M-1", json={"text": "We ship on Monday."})
    assert refused.status_code == 409
    assert (await client.delete(f"{MEMORIES}/M-1")).status_code == 409
    changed = await client.patch(
        f"{MEMORIES}/M-1", json={"text": "We ship on Monday.", "person": True}
    )
    assert changed.json()["memory"]["author"] == {"name": "tester", "person": True}
    assert (await client.delete(f"{MEMORIES}/M-1?person=true")).status_code == 200


async def test_reference_layers(client: httpx2.AsyncClient) -> None:
    text = "---\ntags: [login]\n---\n# OAuth\n\nTokens are refreshed by the gateway."
    made = await client.post("/api/v1/references", json={"text": text, "name": "oauth"})
    assert (made.status_code, made.json()["title"]) == (201, "OAuth")
    (listed,) = (await client.get("/api/v1/references")).json()
    assert listed == made.json()
    other = await client.put("/api/v1/references/oauth", json={"text": "# OAuth\n\nBy nobody."})
    assert other.status_code == 200
    assert "By nobody." in (await client.get("/api/v1/references/oauth")).json()["text"]
    renamed = "---\nname: other\n---\nText."
    refused = await client.put("/api/v1/references/oauth", json={"text": renamed})
    assert refused.status_code == 400
    assert (await client.get("/api/v1/checks/references")).json()["ok"] is True
    assert (await client.delete("/api/v1/references/oauth")).status_code == 200
    for call in (client.get, client.delete):
        assert (await call("/api/v1/references/oauth")).status_code == 404


def outcome(number: int, **fields: object) -> Outcome:
    given = {
        "id": f"{number:032}",
        "started": 1_770_000_000_000_000 + number,
        "purpose": "chat",
        "provider": "p",
        "model": "m",
        "success": True,
        "agent": "planner",
        "session": "planner/auth",
        "input": 100,
        "output": 10,
        "cost": 5,
    }
    return Outcome(**given | fields)  # type: ignore[arg-type]


async def test_costs_and_outcomes(client: httpx2.AsyncClient, server: RunningServer) -> None:
    kept = [outcome(n) for n in range(5)]
    await server.bank.collection(Outcome).put_many([*kept, outcome(9, agent="coder", session="")])
    costs = (await client.get("/api/v1/costs?by=agent&since=2026-01-01")).json()
    assert {row["of"]: row["cost"] for row in costs["rows"]} == {"planner": 25, "coder": 5}
    assert costs["cost"] == 30
    one = (await client.get("/api/v1/costs?by=model&agent=coder&since=2026-01-01")).json()
    assert (one["cost"], one["rows"][0]["calls"]) == (5, 1)
    page = (await client.get("/api/v1/outcomes?session=planner/auth&limit=3")).json()
    assert [each["id"][-1] for each in page["outcomes"]] == ["4", "3", "2"]
    rest = {"session": "planner/auth", "limit": "3", "after": page["next"]}
    page = (await client.get("/api/v1/outcomes", params=rest)).json()
    assert ([each["id"][-1] for each in page["outcomes"]], page["next"]) == (["1", "0"], None)
    rated = await client.post(f"/api/v1/outcomes/{kept[0].id}/feedback", json={"score": 0.25})
    assert (rated.json()["quality"], rated.json()["quality_by"]) == (0.25, "user")
    unknown = await client.post("/api/v1/outcomes/none/feedback", json={"score": 1})
    assert unknown.status_code == 404


async def test_settings_and_models_hold_no_secrets(start_server: StartServer) -> None:
    secret = "sk-ant-api03-" + "Ab3" * 30 + "AA"
    server = await start_server(
        cache=CacheConfig(shared="redis://:hunter2@cache"),  # not used without entries
        secrets=SecretsConfig(allow=("hunter2",), mask=False),
        gateway=GatewayConfig(
            providers={
                "mine": ProviderConfig(
                    wire="chat",
                    base_url="http://127.0.0.1:9/v1",
                    headers={"x-key": secret},
                    needs_key=False,
                )
            },
            models=ModelsConfig(chat="mine/one"),
        ),
    )
    client = await server.client(server.token())
    settings = await client.get("/api/v1/settings")
    assert settings.json()["gateway"]["models"]["chat"] == "mine/one"
    assert settings.json()["bank"].startswith("sqlite:///")
    models = await client.get("/api/v1/models")
    assert models.json()["models"][0]["name"] == "mine/one"
    assert "compress" in models.json()["missing"]
    reached = await client.post("/api/v1/models/reach")
    assert reached.json()["models"][0]["problem"]
    for answer in (settings, models, reached):
        assert answer.status_code == 200
        assert "hunter2" not in answer.text
        assert secret not in answer.text


async def test_what_the_bank_is_and_whether_it_is_sound(
    client: httpx2.AsyncClient, server: RunningServer
) -> None:
    session = await server.bank.session("planner/auth")
    await session.append([user("x" * 20_000), assistant("Yes.")])
    await server.bank.collection(ApiNote).put(ApiNote("a"))
    await server.bank.settle()
    assert (await client.get("/api/v1/bank")).json()["backend"] == "SQLiteAdapter"
    check = (await client.get("/api/v1/checks/bank")).json()
    assert (check["ok"], check["problems"]) == (True, [])
    assert check["records"] > 3
    index = (await client.get("/api/v1/checks/index")).json()
    assert (index["problems"], index["missing"]) == ([], 0)
    assert (await client.get("/api/v1/checks/artifacts")).json() == []
    artifacts = (await client.get("/api/v1/artifacts")).json()
    assert artifacts["count"] == 1
    assert artifacts["artifacts"][0]["references"] == 1
    names = [each["collection"] for each in (await client.get("/api/v1/schemas")).json()]
    assert names == ["api_notes"]
    assert (await client.get("/api/v1/schemas/api_notes")).json()["collection"] == "api_notes"
    checked = (await client.get("/api/v1/checks/schemas/api_notes")).json()
    assert (checked["records"], checked["unfit"]) == (1, 0)
    assert (await client.get("/api/v1/schemas/api_notes/proto")).status_code == 400  # no protobuf
    assert (await client.get("/api/v1/audit")).json()["entries"] == []
    record = {"collection": "api_notes", "key": "a"}
    verdict = (await client.get("/api/v1/checks/audit", params=record)).json()
    assert (verdict["entries"], verdict["gaps"]) == (0, [])
    assert (await client.get("/api/v1/keys")).json()["error"]["code"] == "key_refused"


async def test_what_a_tool_said_is_never_shown_as_a_page(
    client: httpx2.AsyncClient, server: RunningServer
) -> None:
    session = await server.bank.session("planner/auth")
    page = b"<script>alert(1)</script>" + b" " * 20_000
    hostile = Media("text/html", data=page, filename='a"\r\nx: y;é.html')
    odd = Media("text/html\r\nx-evil: 1", data=page + b".", filename="b")
    await session.append([Message("user", (Text("Look."), hostile, odd)), assistant("Yes.")])
    answers = []
    for part in (await session.turn(1)).messages[0].parts[1:]:
        assert isinstance(part, Media)
        answers.append(await client.get(f"/api/v1/artifacts/{part.artifact}"))
    first, second = answers
    assert (first.content, second.content) == (page, page + b".")
    assert first.headers["content-type"].partition(";")[0] == "text/html"
    assert second.headers["content-type"] == "application/octet-stream"
    for answer in answers:
        assert "x" not in answer.headers
        assert "x-evil" not in answer.headers
        assert answer.headers["content-disposition"].startswith("attachment; filename*=UTF-8''")
        assert answer.headers["x-content-type-options"] == "nosniff"
        assert "sandbox" in answer.headers["content-security-policy"]


async def test_an_agent_reads_artifacts_of_its_own_sessions_and_forks(
    server: RunningServer,
) -> None:
    session = await server.bank.session("other/talk")
    await session.append([user("y" * 20_000), assistant("Yes.")])
    (part,) = (await session.turn(1)).messages[0].parts
    path = f"/api/v1/artifacts/{part.artifact}"  # type: ignore[union-attr]
    mine = await server.client(server.token(agent="mine"))
    assert (await mine.get(path)).status_code == 404
    await session.fork("mine/fork")
    assert (await mine.get(path)).text == "y" * 20_000
    theirs = await server.client(server.token(agent="other"))
    assert (await theirs.get(path)).status_code == 200
