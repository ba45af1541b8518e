"""What tests of the command are given: a home of their own, the command, a bank with notes."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any, TypeAlias

import msgspec
import pytest
from typer.testing import CliRunner, Result

import perdure
from perdure.cli.app import app

#: Runs the command in this process.
Run: TypeAlias = Callable[..., Result]
#: Runs it with --json, and returns the exit code and the object on stdout.
Ask: TypeAlias = Callable[..., tuple[int, dict[str, Any]]]


@perdure.record("notes")
class Note(msgspec.Struct, frozen=True):
    id: Annotated[str, perdure.Key()]
    text: str


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty home and working folder, also for processes that the test starts."""
    for name in [name for name in os.environ if name.startswith("PERDURE_")]:
        monkeypatch.delenv(name)
    folder = tmp_path / "home"
    folder.mkdir()
    monkeypatch.setenv("HOME", str(folder))
    monkeypatch.setenv("XDG_DATA_HOME", str(folder / "data"))
    monkeypatch.setenv("XDG_CONFIG_HOME", str(folder / "config"))
    monkeypatch.chdir(folder)
    return folder


@pytest.fixture
def run() -> Run:
    def call(*args: str) -> Result:
        result = CliRunner().invoke(app, args, prog_name="perdure")
        if result.exception is not None and not isinstance(result.exception, SystemExit):
            raise result.exception
        return result

    return call


@pytest.fixture
def ask(run: Run) -> Ask:
    def call(*args: str) -> tuple[int, dict[str, Any]]:
        result = run(*args, "--json")
        answer = json.loads(result.stdout)
        assert isinstance(answer, dict)
        return result.exit_code, answer

    return call


@pytest.fixture
def notes(tmp_path: Path) -> str:
    """The address of a bank with 600 notes, a small and a large artifact."""
    url = f"sqlite:///{tmp_path / 'notes.db'}"
    with perdure.open_sync(url) as bank:
        texts = (f"note {number} of six hundred" for number in range(600))
        bank.collection(Note).put_many(Note(f"ada/{n:03}", text) for n, text in enumerate(texts))
        bank.artifacts.put(b"small")
        bank.artifacts.put(b"large" * 20_000)
    return url
