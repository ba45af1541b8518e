"""Agent files: what is understood, what is kept, what is refused."""

from __future__ import annotations

import hashlib
from pathlib import Path

import pytest

from perdure.agents.agent_file import (
    parse_agent_file,
    project_root,
    read_agent_file,
    write_agent_file,
)
from perdure.core.errors import InvalidInput

ROUTER = """---
name: email-router
description: Sends each email on.
tools: lookup, route
disallowedTools: [Bash]
model: anthropic/claude-sonnet-4-5
permissionMode: plan
maxTurns: 7
skills: routing, triage
mcpServers:
  - slack
hooks:
  Stop:
    - matcher: "*"
memory: project
background: true
isolation: worktree
color: blue
mood: curious
---
You route emails.

Be brief.
"""


def test_what_a_file_says_is_understood_or_kept(tmp_path: Path) -> None:
    path = tmp_path / ".claude" / "agents" / "router.md"
    path.parent.mkdir(parents=True)
    path.write_text(ROUTER, encoding="utf-8")
    found = read_agent_file(path)
    version = found.version
    assert found.name == "email-router"
    assert found.project == str(tmp_path)
    assert version.prompt == "You route emails.\n\nBe brief."
    assert version.allowed_tools == ("lookup", "route")
    assert version.disallowed_tools == ("Bash",)
    assert version.skills == ("routing", "triage")
    assert version.limits.steps == 7
    assert version.candidate == "anthropic/claude-sonnet-4-5"
    assert version.sha256 == hashlib.sha256(ROUTER.encode()).hexdigest()
    kept = version.front_matter
    assert (kept["permissionMode"], kept["memory"], kept["color"]) == ("plan", "project", "blue")
    assert kept["hooks"] == {"Stop": [{"matcher": "*"}]}
    assert kept["mood"] == "curious"
    again = parse_agent_file(write_agent_file(found.name, version), "again.md")
    assert again.version.front_matter == kept
    assert again.version.prompt == version.prompt


def test_a_model_by_nickname_is_the_gateways_choice() -> None:
    found = parse_agent_file("---\nmodel: sonnet\n---\nDo it.", "a.md", name="a")
    assert (found.version.model, found.version.candidate) == ("sonnet", "")


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("---\nname: x\n---\n", "no text"),
        ("---\nname: x\nmaxTurns: many\n---\nDo.", "line 3: maxTurns"),
        ("---\nname: x\nmaxTurns: 0\n---\nDo.", "line 3: maxTurns"),
        ("---\nname: a/b\n---\nDo.", "cannot be an agent"),
        ("---\nname: x\ntools: {a: b}\n---\nDo.", "tools is a list of names"),
        ("---\nname: x\nlimits: {dollars: 0}\n---\nDo.", "limits"),
        ("---\nname: x\n", "does not end"),
    ],
)
def test_bad_files_are_refused(text: str, says: str) -> None:
    with pytest.raises(InvalidInput, match=says) as caught:
        parse_agent_file(text, "a.md")
    assert caught.value.hint


def test_a_file_that_is_not_there_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match="There is no agent file"):
        read_agent_file(tmp_path / "none.md")


def test_a_file_outside_projects_is_anchored_to_its_folder(tmp_path: Path) -> None:
    assert project_root(tmp_path / "x.md") == str(tmp_path)
