"""`perdure team`, without a model and with a command as the executor."""

from __future__ import annotations

import json
import sys
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


def test_a_run_is_shown_replayed_and_undone(run: Run, ask: Ask) -> None:
    assert "There are no runs" in run("team", "list").stdout
    first = run("team", "run", "1. Rotate keys\n2. Deploy", "--seed", "7")
    assert "add “Deploy” (supervisor)" in first.stdout
    code, found = ask("team", "show", "1")
    assert (code, found["run"], found["inputs"]["seed"]) == (0, "team/R-1", 7)
    assert "no model is configured" in run("team", "recap", "R-1").stdout
    replayed = run("team", "replay", "team/R-1")
    assert (replayed.exit_code, "byte for byte" in replayed.stderr) == (0, True)
    assert run("team", "replay", "1").stdout == replayed.stdout
    assert "team/R-1" in run("team", "list").stdout
    assert run("team", "decide", "1", "#1 priority", "planner").exit_code != 0
    assert "is undone" in run("team", "undo", "1").stdout
    assert "No task is ready" in run("task", "ready").stdout
    assert "no run 9" in run("team", "show", "9").stderr


def test_a_command_works_on_a_task(run: Run) -> None:
    passes = f"{sys.executable} -c pass"
    args = ("--json", "Work", "--check", passes, "--", "sh", "-c", "echo worked")
    (work,) = json.loads(run("team", "run", *args).stdout)["work"]
    assert (work["ending"], work["text"]) == ("done", "worked")
    assert run("team", "run", "x", "--", "no-such-command").exit_code != 0
