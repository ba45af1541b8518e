"""``perdure project recall`` and ``index``: what was true at a commit."""

from __future__ import annotations

import asyncio
import json
import os
import sqlite3
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import perdure
from perdure.core.client_agents import session_of_client
from perdure.project.project_location import ProjectLocation, ProjectSettings
from perdure.recall.memory_records import Anchor
from tests.project.repositories import git, new_repository

PROJECT = "pr_00112233445566aa"


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    """Two commits: what the gateway listens on changes."""
    root = new_repository(tmp_path / "demo")
    for port in (7011, 8261):
        (root / "gateway.md").write_text(f"# Gateway\n\nIt listens on port {port}.\n")
        git(root, "add", "-A")
        git(root, "commit", "-q", "-m", f"port {port}")
    address = f"sqlite:///{tmp_path}/memory.db"
    ProjectLocation.find(root).write_settings(
        ProjectSettings(project=PROJECT, name="demo", bank=address)
    )
    with perdure.open_sync(address):
        pass
    return root


def call(root: Path, *args: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "perdure", "project", *args],
        cwd=root,
        env={**os.environ, "COLUMNS": "120"},
        capture_output=True,
        text=True,
        check=False,
    )


def found(root: Path, *args: str) -> dict[str, Any]:
    done = call(root, "recall", *args, "--json")
    assert done.returncode == 0, done.stderr
    answer: dict[str, Any] = json.loads(done.stdout)
    return answer


def test_lines_of_the_commit_that_is_asked_at(repository: Path) -> None:
    assert "Indexed 2 new or changed files" in call(repository, "index").stdout
    assert "are indexed." in call(repository, "index").stdout
    question = "Which port is the gateway listening on?"
    now = call(repository, "recall", question)
    assert "gateway.md:1-3" in now.stdout
    assert "port 8261" in now.stdout
    before = found(repository, question, "--at", "HEAD~1", "--kind", "file", "-k", "1")
    (hit,) = before["hits"]
    assert hit["text"].endswith("It listens on port 7011.")
    assert hit["commit"] == before["commit"] == git(repository, "rev-parse", "HEAD~1")
    assert (hit["path"], hit["first"], hit["last"]) == ("gateway.md", 1, 3)


def test_what_is_no_commit_branch_or_kind_is_told(repository: Path) -> None:
    for args, words in (
        (("--at", "nope"), "'nope' is no commit"),
        (("--branch", "nope"), "'nope' is no commit"),
        (("--kind", "nope"), "There is no kind 'nope'"),
        (("--at", "main", "--branch", "old"), "is not on old"),
    ):
        git(repository, "branch", "-f", "old", "HEAD~1")
        done = call(repository, "recall", "port", *args)
        assert done.returncode in {1, 2}
        assert words in done.stderr


def test_memories_and_tasks_count_from_their_commit_on(repository: Path) -> None:
    first, last = git(repository, "rev-parse", "HEAD~1"), git(repository, "rev-parse", "HEAD")
    with perdure.open_sync(f"sqlite:///{repository.parent}/memory.db") as bank:
        for commit, text in (
            (first, "The gateway speaks German."),
            (last, "The gateway speaks French."),
        ):
            anchor = Anchor(repo=PROJECT, commit=commit, branch="main")
            bank.memories.add(f"project@{PROJECT}", text, kind="fact", anchor=anchor)
    added = subprocess.run(
        [sys.executable, "-m", "perdure", "task", "add", "Teach the gateway to speak Italian"],
        cwd=repository,
        capture_output=True,
        check=False,
    )
    assert added.returncode == 0
    now = found(repository, "Which language does the gateway speak?")
    assert {hit["kind"] for hit in now["hits"]} == {"file", "memory", "task"}
    assert {hit["text"] for hit in now["hits"] if hit["kind"] == "memory"} == {
        "The gateway speaks German.",
        "The gateway speaks French.",
    }
    before = found(repository, "Which language does the gateway speak?", "--at", "HEAD~1")
    assert [hit["text"] for hit in before["hits"] if hit["kind"] == "memory"] == [
        "The gateway speaks German."
    ]
    assert not [hit for hit in before["hits"] if hit["kind"] == "task"]
    told = " ".join(before["notes"])
    assert "1 memory" in told
    assert "1 task" in told


async def test_a_turn_counts_from_the_commit_on_that_it_was_said_at(repository: Path) -> None:
    async with perdure.open(f"sqlite:///{repository.parent}/memory.db") as bank:
        session = await bank.session(session_of_client("codex", str(repository), "one"))
        await session.describe({"cwd": str(repository)})
        await session.append(
            [
                {"role": "user", "content": "The gateway speaks Italian from today on."},
                {"role": "assistant", "content": "Noted."},
            ]
        )
        await bank.settle()
        await bank.project(repository).refresh()
    ask = ("what does the gateway speak", "--kind", "turn")
    (hit,) = (await asyncio.to_thread(found, repository, *ask))["hits"]
    assert hit["commit"] == git(repository, "rev-parse", "HEAD")
    before = await asyncio.to_thread(found, repository, *ask, "--at", "HEAD~1")
    assert before["hits"] == []
    assert "1 turn" in before["notes"][-1]


async def test_what_was_rewritten_is_still_true(repository: Path) -> None:
    async with perdure.open(f"sqlite:///{repository.parent}/memory.db") as bank:
        anchor = Anchor(repo=PROJECT, commit=git(repository, "rev-parse", "HEAD"), branch="main")
        await bank.memories.add(f"project@{PROJECT}", "The gateway speaks French.", anchor=anchor)
        await bank.project(repository).anchors.refresh()  # as each session begins
        git(repository, "commit", "-q", "--amend", "-m", "another message")
        await bank.project(repository).anchors.refresh()
    after = await asyncio.to_thread(
        found, repository, "what does the gateway speak", "--at", "HEAD", "--kind", "memory"
    )
    assert [hit["text"] for hit in after["hits"]] == ["The gateway speaks French."]


def test_a_removed_project_leaves_no_index(repository: Path) -> None:
    call(repository, "index")
    done = call(repository, "remove", "--yes")
    assert done.returncode == 0, done.stderr
    bank = sqlite3.connect(repository.parent / "memory.db")
    tables = {name for (name,) in bank.execute("SELECT name FROM sqlite_schema")}
    assert not {name for name in tables if name.startswith("files_")}
    for table in {"perdure_file_batches", "perdure_file_indexes"} & tables:
        assert bank.execute(f"SELECT count(*) FROM {table}").fetchone() == (0,)
    bank.close()
