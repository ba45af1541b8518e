"""`perdure project status`, `reconcile`, `rewind`, as people and scripts call them."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.rewrites import VARIABLES, build, commits_of, shell
from perdure.project.project_location import ProjectLocation, ProjectSettings, new_project_id
from tests.cli.conftest import Ask, Run
from tests.project.repositories import git


@pytest.fixture
def folder(home: Path, run: Run, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name, value in VARIABLES.items():
        monkeypatch.setenv(name, value)
    folder = build(home / "demo")
    settings = ProjectSettings(project=new_project_id(), name="demo", unattended="fork")
    ProjectLocation.find(folder).write_settings(settings)
    assert run("bank", "init").exit_code == 0
    return folder


def test_a_rebase_and_who_decides(folder: Path, run: Run, ask: Ask) -> None:
    here = ("-C", str(folder))
    assert "0 entries" in run("project", "status", *here).stdout
    run("task", "add", "Rotate keys", *here)
    run("project", "checkpoint", "Keys work", *here)
    old = commits_of(folder)["t5"]
    shell(folder, "git rebase -q main; echo 1 >more; git add more; git commit -q -m more")
    run("task", "add", "Tell people", *here)
    dry = run("project", "reconcile", "--dry-run", *here).stdout
    assert f"{old[:10]} → " in dry
    assert "Nothing waits" not in dry
    # The policy of this project, since nobody can be asked: stay behind.
    assert "stayed with the old line by policy" in run("project", "reconcile", *here).stdout
    shown = run("project", "status", "--entries", *here).stdout
    assert "1 here, 2 elsewhere" in shown
    assert "undecided" in run("project", "reconcile", "--undo", *here).stdout
    assert "Decide with" in run("project", "status", *here).stdout
    code, decided = ask("project", "reconcile", "--policy", "rebase", "--as", "ada", *here)
    assert (code, [each["by"] for each in decided["operations"]]) == (0, ["ada"])
    assert "1 here, 2 followed to here" in run("project", "status", *here).stdout
    assert "Nothing waits" in run("project", "reconcile", *here).stdout

    behind = run("project", "rewind", "keys work", "--dry-run", *here).stdout
    assert "task #2 Tell people" in behind
    assert "1 entry hidden" in run("project", "rewind", "Keys work", *here).stdout
    assert "Tell people" not in run("task", "list", *here).stdout
    assert "undone" in run("project", "reconcile", "--undo", *here).stdout
    assert "Tell people" in run("task", "list", *here).stdout
    listed = run("project", "reconcile", "--list", *here).stdout
    assert "rewound to" in listed
    assert "topic was rebased: 5 commits rewritten" in listed
    code, status = ask("project", "status", *here)
    assert {each["place"] for each in status["entries"]} == {"here", "moved"}


def test_what_shows_that_a_task_is_done_follows_its_commit(folder: Path, run: Run) -> None:
    here = ("-C", str(folder))
    run("task", "add", "Rotate keys", *here)
    run("task", "done", "1", "--commit", "HEAD", *here)
    old = git(folder, "rev-parse", "HEAD")
    assert "History was rewritten" not in run("task", "show", "1", *here).stdout
    shell(folder, "git commit -q --amend -m amended")
    new = git(folder, "rev-parse", "HEAD")
    run("project", "reconcile", "--policy", "rebase", *here)
    shown = run("task", "show", "1", *here).stdout
    assert f"commit {old}" in shown
    assert f"it is {new} now" in shown


def test_bad_input_is_one_line(folder: Path, run: Run) -> None:
    here = ("-C", str(folder))
    for words in (
        ("reconcile", "--policy", "squash"),
        ("reconcile", "--undo"),
        ("reconcile", "7", "--policy", "fork"),
        ("rewind", "nowhere"),
        ("rewind", "HEAD"),
    ):
        done = run("project", *words, *here)
        assert done.exit_code == 1
        assert done.stderr.startswith("perdure: ")
        assert not any(word in done.stderr for word in ("git reset", "--hard", "rm ", "delete"))
