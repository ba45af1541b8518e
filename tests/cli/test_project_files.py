"""What a colleague changed in a project's files, and where commits are now: commands show it."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.cli.conftest import Ask, Run
from tests.project.repositories import VARIABLES, git, new_repository


@pytest.fixture(autouse=True)
def repository(home: Path, monkeypatch: pytest.MonkeyPatch, ask: Ask) -> Path:
    for name, value in VARIABLES.items():
        monkeypatch.setenv(name, value)
    made = new_repository(home / "attic")
    monkeypatch.chdir(made)
    ask("project", "init")
    return made


@pytest.fixture
def pulled(ask: Ask, repository: Path) -> Path:
    """A pull has brought a goal and a task of a colleague."""
    ask("project", "share")
    git(repository, "commit", "-q", "-m", "share")
    ask("project", "goal", "add", "A dry attic")
    ask("task", "add", "Mend the roof")
    ask("task", "sync")
    git(repository, "commit", "-q", "-am", "theirs")
    colleague = repository.parent / "colleague"
    git(repository, "clone", "-q", ".", str(colleague))
    ask("project", "init", "-C", str(colleague), "--bank", "sqlite:///../colleague.db")
    ask("project", "goal", "add", "A warm attic", "-C", str(colleague))
    ask("task", "add", "Buy wool", "-C", str(colleague))
    ask("task", "sync", "-C", str(colleague))
    git(colleague, "commit", "-q", "-am", "wool")
    git(repository, "pull", "-q", "--ff-only", str(colleague))
    return repository


def test_a_refresh_says_what_it_took_in(run: Run, pulled: Path) -> None:
    said = run("project", "refresh").stdout
    assert "Took in from the files: goal A warm attic; 1 task." in said
    assert "nothing new" not in said
    assert run("project", "refresh").stdout == "There is nothing new.\n"


@pytest.mark.parametrize(
    ("command", "shown"),
    [("show", "A warm attic"), ("preamble", "A warm attic"), ("list", "Buy wool")],
)
def test_what_git_brought_is_shown_at_once(
    run: Run, pulled: Path, command: str, shown: str
) -> None:
    first = run("task" if command == "list" else "project", command)
    assert shown in first.stdout
    assert "Took in from the files: goal A warm attic; 1 task." in first.stderr
    assert git(pulled, "status", "--porcelain") == ""
    assert "Took in" not in run("task", "list").stderr


@pytest.mark.parametrize("command", ["show", "preamble"])
def test_a_checkpoint_is_shown_where_it_is_now(
    run: Run, ask: Ask, repository: Path, command: str
) -> None:
    ask("project", "checkpoint", "Dry")
    before = git(repository, "rev-parse", "HEAD")
    git(repository, "commit", "-q", "--amend", "--allow-empty", "-m", "another message")
    said = run("project", command).stdout
    assert git(repository, "rev-parse", "HEAD")[:10] in said
    assert before[:10] not in said
    assert "gone" not in said


def test_a_task_says_when_the_shared_file_gets_it(run: Run, repository: Path) -> None:
    assert "task sync" not in run("task", "add", "Mend the roof").stderr
    run("project", "share")
    assert "`perdure task sync` writes it" in run("task", "add", "Buy wool").stderr
    file = repository / ".perdure/tasks.jsonl"
    assert "Buy wool" not in file.read_text()
    run("task", "sync")
    assert "Buy wool" in file.read_text()
