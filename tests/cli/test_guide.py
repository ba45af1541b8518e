"""The commands in the guides run, on the bank that their examples make."""

from __future__ import annotations

import asyncio
import json
import re
import shlex
from pathlib import Path

import pytest

from tests.cli.conftest import Run, Serve
from tests.test_docs import ROOT, blocks
from tests.test_docs import run as execute

GUIDE = ROOT / "docs" / "sessions.md"
RECALL = ROOT / "docs" / "recall.md"
MODELS = ROOT / "docs" / "gateway.md"


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


def test_commands_of_the_guide_to_recall(
    run: Run, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    namespace: dict[str, object] = {"__name__": "guide"}
    with asyncio.Runner() as runner:
        for code, _ in blocks(RECALL, "python"):
            execute(code, namespace, runner)
    monkeypatch.setenv("PERDURE_BANK", "sqlite:///recall.db")
    ((layer, _),) = blocks(RECALL, "markdown")
    (home / "oauth.md").write_text(layer, "utf-8")
    lines = [line for code, _ in blocks(RECALL, "sh") for line in code.splitlines()]
    commands = [shlex.split(line, comments=True) for line in lines]
    assert {args[1] for args in commands} == {"recall", "memory", "reference", "index", "share"}
    for program, *args in commands:
        assert program == "perdure"
        result = run(*args, answer="yes\n")
        assert result.exit_code == 0, (args, result.stderr)


def test_commands_of_the_guide_to_models(
    run: Run, serve: Serve, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PERDURE_BANK", "sqlite:///models.db")
    model = serve("One prompt and all that follows.")
    lines = [line for code, _ in blocks(MODELS, "console") for line in code.splitlines()]
    assert {line.split()[2] for line in lines} == {"models", "ask", "costs", "batches"}
    for line in lines:
        prompt, program, *args = shlex.split(line)
        assert (prompt, program) == ("$", "perdure")
        result = run(*args)
        assert result.exit_code == 0, line
    assert [request.prompt for request in model.requests] == ["What is a turn?", "Is it good?"]


def test_the_guide_to_models_names_every_field(run: Run, serve: Serve) -> None:
    """Those of the JSON objects stand in its tables."""
    serve()
    tables = "\n".join(
        line for line in MODELS.read_text("utf-8").splitlines() if line.startswith("|")
    )
    for args in (["ask", "Hi."], ["models", "--no-reach"], ["costs"]):
        found = json.loads(run(*args, "--json").stdout)
        rows = [found, *found.get("models", []), *found.get("rows", [])]
        assert len(rows) > 1 or args[0] == "ask"
        for name in {name for row in rows for name in row}:
            assert re.search(rf"[`.]{name}\b", tables), name
