"""The commands in the guide to sessions run, on the bank that its examples make."""

from __future__ import annotations

import asyncio
import shlex
from pathlib import Path

import pytest

from tests.cli.conftest import Run
from tests.test_docs import ROOT, blocks
from tests.test_docs import run as execute

GUIDE = ROOT / "docs" / "sessions.md"


def test_commands_of_the_guide(run: Run, home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    namespace: dict[str, object] = {"__name__": "guide"}
    with asyncio.Runner() as runner:
        for code, _ in blocks(GUIDE, "python"):
            execute(code, namespace, runner)
    monkeypatch.setenv("PERDURE_BANK", "sqlite:///sessions.db")
    lines = [line for code, _ in blocks(GUIDE, "console") for line in code.splitlines()]
    assert len(lines) > 5
    for line in lines:
        prompt, program, *args = shlex.split(line)
        assert (prompt, program) == ("$", "perdure")
        result = run(*args)
        assert (result.exit_code, result.stderr) == (0, ""), line
    assert (home / "notes.md").read_text("utf-8").startswith("# planner/notes\n")
