"""Projects over HTTP: their tasks as a list and a graph, and runs of their team."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import httpx2
import pytest

from perdure.project.project import Project
from perdure.project.project_directory import register_project
from perdure.project.project_location import ProjectLocation, ProjectSettings, new_project_id
from perdure.server.operations import TokenScope
from tests.project.repositories import commit, git, new_repository
from tests.project.talks import conversation, prompt, reply
from tests.server.conftest import RunningServer

TASKS = "/api/v1/projects/demo/tasks"
STATE = "/api/v1/projects/demo/state"
JOURNAL = "/api/v1/projects/demo/journal"
RUNS = "/api/v1/projects/demo/team/runs"


def located(folder: Path, name: str = "demo") -> ProjectLocation:
    folder.mkdir()
    location = ProjectLocation.find(folder)
    location.write_settings(ProjectSettings(project=new_project_id(), name=name))
    return location


@pytest.fixture
async def project(server: RunningServer, tmp_path: Path) -> Project:
    location = located(tmp_path / "demo")
    await register_project(server.bank.services, location)
    return Project(server.bank.services, location)


async def test_a_day_with_tasks(project: Project, client: httpx2.AsyncClient) -> None:
    async def post(path: str, status: int = 200, **body: Any) -> Any:
        answer = await client.post(f"{TASKS}{path}", json=body)
        assert answer.status_code == status, answer.text
        return answer.json()

    (listed,) = (await client.get("/api/v1/projects")).json()
    assert (listed["id"], listed["name"]) == (project.id, "demo")
    first = await post("", title="Rotate keys", priority=1, labels=["ops"])
    assert first["task"]["made_by"] == "tester"
    second = await post("", title="Deploy", needs=["1"], parent=first["id"])
    assert second["why"] == ["It needs #1 (ready): Rotate keys"]
    assert [each["number"] for each in second["needs"]] == [1]
    claims = "/api/v1/projects/demo/claims"
    taken = (await client.post(claims, json={"by": "codex", "lease": "1h"})).json()
    assert (taken["task"]["number"], taken["task"]["token"]) == (1, 1)
    assert (await client.post(claims, json={"task": "1"})).status_code == 409
    assert (await client.post(claims, json={})).status_code == 404  # nothing is ready
    assert (await post("/1/done", 409))["error"]["code"] == "conflict"
    assert (await post("/1/done", 409, token=7))["error"]["code"] == "lease_lost"
    assert (await post("/1/release", token=1))["task"]["number"] == 1
    shown = (await client.get(f"{TASKS}/1")).json()
    assert [each["number"] for each in shown["parts"]] == [2]
    graph = (await client.get("/api/v1/projects/demo/graph")).json()
    assert [(each["task"]["title"], each["rank"]) for each in graph["tasks"]] == [
        ("Rotate keys", 0),
        ("Deploy", 1),
    ]
    assert graph["tasks"][1]["task"]["needs"] == [first["id"]]
    await post("/1/block", reason="no keys")
    assert [each["blocked"] for each in (await client.get(f"{TASKS}?state=blocked")).json()] == [
        "no keys"
    ]
    await post("/1/unblock")
    await post("/1/notes", text="Half of it.", turns=["ada/one#T-1"])
    closed = await post("/1/done", reason="Keys of May.")
    assert (closed["task"]["reason"], closed["needed_by"][0]["state"]) == ("Keys of May.", "ready")
    assert [each["number"] for each in (await client.get(f"{TASKS}?state=ready")).json()] == [2]
    edited = await client.patch(f"{TASKS}/2", json={"priority": 0, "labels": ["eu"]})
    assert (edited.json()["task"]["priority"], edited.json()["task"]["labels"]) == (0, ["eu"])
    listed = (await client.get(f"{TASKS}?state=any&limit=10")).json()
    assert [each["state"] for each in listed] == ["ready", "done"]
    await post("/1/reopen")
    assert (await client.get(f"{TASKS}/2")).json()["task"]["state"] == "waiting"
    assert (await post("/1/block", 400, on=["2"]))["error"]["message"].count("#1") == 2
    assert (await client.patch(f"{TASKS}/2", json={})).status_code == 400
    assert (await client.get(f"{TASKS}/9")).status_code == 404
    assert (await client.get("/api/v1/projects/nope/tasks")).status_code == 404


async def test_runs_of_the_team(project: Project, client: httpx2.AsyncClient) -> None:
    run = await project.team.run("- Rotate keys\n- Deploy")
    (listed,) = (await client.get(RUNS)).json()
    shown = (await client.get(f"{RUNS}/{run.number}")).json()
    assert listed == shown
    assert (shown["name"], shown["run"]["state"]) == (run.name, "done")
    assert "add “Deploy” (supervisor)" in shown["recap"]
    wrong = {"dispute": "#1 priority", "role": "planner"}
    assert (await client.post(f"{RUNS}/1/decide", json=wrong)).status_code == 400
    undone = (await client.post(f"{RUNS}/1/undo")).json()
    assert undone["run"]["state"] == "undone"
    assert (await client.get(TASKS)).json() == []
    assert (await client.get(f"{RUNS}/7")).status_code == 404


async def test_who_may_see_and_change_them(
    server: RunningServer, project: Project, client: httpx2.AsyncClient
) -> None:
    await project.tasks.add("one")
    reader = await server.client(server.token(TokenScope.READ))
    assert len((await reader.get(TASKS)).json()) == 1
    assert (await reader.post(TASKS, json={"title": "two"})).status_code == 403
    assert (await reader.post(f"{TASKS}/1/done", json={})).status_code == 403
    agent = await server.client(server.token(agent="ada"))
    for path in ("/api/v1/projects", TASKS, f"{TASKS}/1", RUNS, STATE, JOURNAL):
        assert (await agent.get(path)).status_code == 403
    assert (await agent.patch(f"{TASKS}/1", json={"title": "mine"})).status_code == 403


async def test_without_its_folder_a_project_is_read_only(
    server: RunningServer, project: Project, client: httpx2.AsyncClient, tmp_path: Path
) -> None:
    await project.tasks.add("one")
    shutil.rmtree(tmp_path / "demo")
    assert [each["title"] for each in (await client.get(TASKS)).json()] == ["one"]
    refused = await client.post(TASKS, json={"title": "two"})
    assert refused.status_code == 404
    assert "No folder of 'demo'" in refused.json()["error"]["message"]
    await register_project(server.bank.services, located(tmp_path / "twin"))
    twins = await client.get(TASKS)
    assert (twins.status_code, project.id in twins.text) == (400, True)
    assert len((await client.get(f"/api/v1/projects/{project.id}/tasks")).json()) == 1


async def test_its_state_and_journal_need_no_folder(
    server: RunningServer, project: Project, client: httpx2.AsyncClient, tmp_path: Path
) -> None:
    goal = await project.state.add("goal", "Sell more")
    await project.state.add("milestone", "A shop", of=goal.id)
    root = project.location.root
    for id in ("one", "two"):
        session = await conversation(server.bank, root, id=id)
        for number in (1, 2):
            await session.append([prompt(f"Build part {number} of {id}"), reply("Built.")])
    await project.refresh()
    await project.work.note("Ask Bob.")
    shutil.rmtree(tmp_path / "demo")
    entries = (await client.get(STATE)).json()
    assert [each["entry"]["title"] for each in entries] == ["Sell more", "A shop"]
    assert entries[1]["entry"]["of"] == entries[0]["id"]
    done = (await client.get(JOURNAL)).json()
    assert "Ask Bob." in done[0]["text"]
    assert [each["turn"] for each in done[1:]] in ([2, 1, 2, 1], [2, 2, 1, 1])
    assert "Build part 2 of two" in done[1]["text"]
    assert [each["turn"] for each in (await client.get(f"{JOURNAL}?limit=2")).json()] == [0, 2]
    assert (await client.get("/api/v1/projects/none/journal")).status_code == 404


async def test_rewritten_history_is_decided_over_http(
    server: RunningServer, client: httpx2.AsyncClient, tmp_path: Path
) -> None:
    folder = new_repository(tmp_path / "demo")
    location = ProjectLocation.find(folder)
    location.write_settings(ProjectSettings(project=new_project_id(), name="demo"))
    await register_project(server.bank.services, location)
    path = "/api/v1/projects/demo"
    commit(folder, "first try")
    await client.post(f"{path}/reconcile", json={})
    await client.post(TASKS, json={"title": "Rotate keys"})
    git(folder, "commit", "-q", "--amend", "-m", "second try")
    looked = (await client.post(f"{path}/reconcile", json={})).json()
    assert looked["changes"] == ["main has its last commit amended"]
    status = (await client.get(f"{path}/status")).json()
    (waiting,) = status["waiting"]
    assert (waiting["what"], waiting["entries"]) == ("main has its last commit amended", 1)
    head = git(folder, "rev-parse", "HEAD")
    assert [(each["place"], each["now"]) for each in status["entries"]] == [("moved", head)]
    choice = {"decision": "fork", "number": waiting["number"]}
    decided = (await client.post(f"{path}/reconcile", json=choice)).json()
    assert decided["waiting"] == []
    assert [each["place"] for each in decided["entries"]] == ["elsewhere"]
    wrong = await client.post(f"{path}/reconcile", json={"decision": "rebase", "number": 9})
    assert wrong.status_code == 404
    reader = await server.client(server.token(TokenScope.READ))
    assert (await reader.get(f"{path}/status")).status_code == 200
    assert (await reader.post(f"{path}/reconcile", json={})).status_code == 403
