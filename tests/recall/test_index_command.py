"""``perdure index``: told what is missing, and mending it."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

import perdure
from perdure.cli.app import app
from perdure.core.messages import assistant, user
from perdure.recall.places import INDEX, turns
from perdure.storage.searching import Withdrawal


def _run(*args: str) -> Result:
    result = CliRunner().invoke(app, args, prog_name="perdure")
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    return result


def _ask(*args: str) -> tuple[int, dict[str, Any]]:
    result = _run(*args, "--json")
    return result.exit_code, json.loads(result.stdout)


@pytest.fixture
def bank(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A bank with three turns, one of which is not in the index any more."""
    url = f"sqlite:///{tmp_path / 'bank.db'}"
    monkeypatch.setenv("PERDURE_BANK", url)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))

    async def fill() -> None:
        async with perdure.open(url) as bank:
            session = await bank.session("planner/auth")
            for word in ("zebra", "lion", "tiger"):
                await session.append([user(word), assistant("Yes")])
            await bank.settle()
            group = await bank.index.group("planner/auth")
            assert group is not None
            async with bank.transaction() as transaction:
                transaction.index(Withdrawal(INDEX.name, *turns(group, 2, 2)))

    asyncio.run(fill())
    return url


def test_check_tells_what_is_missing(bank: str) -> None:
    result = _run("index", "check")
    assert result.exit_code == 1
    assert "2 passages in the index" in result.stdout
    assert "perdure index rebuild" in result.stdout


def test_rebuild_mends_it(bank: str) -> None:
    code, told = _ask("index", "check")
    assert (code, told["ok"], told["missing"], told["expected"]) == (1, False, 1, 3)
    result = _run("index", "rebuild")
    assert result.exit_code == 0
    assert "3 passages in the index, 3 of them in the log." in result.stdout
    code, told = _ask("index", "check")
    assert (code, told["ok"], told["missing"], told["unembedded"]) == (0, True, 0, 0)
    assert told["vectors"] == {"local/wordllama": 3}


def test_a_bank_without_recall_says_so(bank: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PERDURE_RECALL_ON", "false")
    result = _run("index", "check")
    assert (result.exit_code, "recall.on" in result.stdout) == (0, True)
