"""`perdure task`, as people and agents call it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from perdure.project.project_location import ProjectLocation, ProjectSettings, new_project_id
from tests.cli.conftest import Ask, Run


@pytest.fixture(autouse=True)
def project(home: Path, run: Run) -> Path:
    location = ProjectLocation.find(home)
    location.write_settings(ProjectSettings(project=new_project_id(), name="demo"))
    assert run("bank", "init").exit_code == 0
    return home


def test_a_day_with_tasks(run: Run) -> None:
    assert "#1 is added (ready)" in run("task", "add", "Rotate keys", "-p", "1").stdout
    assert "#2 is added (waiting)" in run("task", "add", "Deploy", "--needs", "1").stdout
    assert "Deploy" not in run("task", "ready").stdout
    assert "It needs #1 (ready): Rotate keys" in run("task", "show", "2").stdout
    assert "token 1" in run("task", "claim", "--as", "ada").stdout
    refused = run("task", "claim", "1", "--as", "bob")
    assert refused.exit_code != 0
    assert "claimed by ada" in refused.stderr
    assert "#2 is ready now: Deploy" in run("task", "done", "1", "--token", "1").stdout
    circle = run("task", "block", "2", "--on", "2")
    assert "circle" in circle.stderr
    assert "is blocked" in run("task", "block", "2", "no keys").stdout
    assert "no keys" in run("task", "show", "2").stdout
    assert "is ready" in run("task", "unblock", "2").stdout
    assert "2 tasks in" in run("task", "export", "out.jsonl").stdout
    assert "unchanged" in run("task", "import", "out.jsonl").stdout
    assert "0 changed" in run("task", "sync").stdout
    assert "#2 (ready) Deploy" in run("task", "graph").stdout
    assert "t1 --> t2" in run("task", "graph", "--all", "--mermaid").stdout


def test_agents_get_json(ask: Ask, run: Run) -> None:
    code, added = ask("task", "add", "Work", "--label", "x")
    assert (code, added["number"], added["state"]) == (0, 1, "ready")
    code, found = ask("task", "ready")
    assert [each["id"] for each in found["tasks"]] == [added["id"]]
    code, taken = ask("task", "claim", "--as", "codex")
    assert (taken["token"], taken["owner"]) == (1, "codex")
    code, lost = ask("task", "done", "1", "--token", "7")
    assert code != 0
    assert lost["error"]["type"] == "LeaseLost"
    code, released = ask("task", "release", "1", "--token", "1")
    assert released["state"] == "ready"
    code, edited = ask("task", "edit", "1", "--priority", "0", "--owner", "ada")
    assert (edited["priority"], edited["owner"]) == (0, "ada")
    ask("task", "note", "1", "half of it")
    code, closed = ask("task", "done", "1", "--drop")
    assert (closed["state"], closed["now_ready"]) == ("dropped", [])
    code, again = ask("task", "reopen", "1")
    assert [each["text"] for each in again["notes"]] == ["half of it"]
    code, shown = ask("task", "show", "#1")
    assert shown["why"] == []
    (line,) = run("task", "export").stdout.splitlines()
    assert json.loads(line)["id"] == added["id"]


def test_without_a_project_it_says_what_to_do(run: Run, tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir()
    result = run("task", "list", "-C", str(tmp_path / "elsewhere"))
    assert result.exit_code != 0
    assert "perdure project init" in result.stderr
