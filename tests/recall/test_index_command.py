"""``perdure index``: told what is missing, and mending it."""

from __future__ import annotations

import asyncio
import contextlib
import json
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import apsw
import pytest
from typer.testing import CliRunner, Result

import perdure
from perdure.cli.app import app
from perdure.core.messages import assistant, user
from perdure.recall.places import INDEX, turns
from perdure.search.engine import Withdrawal


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
                transaction.include(Withdrawal(INDEX.name, *turns(group, 2, 2)))

    asyncio.run(fill())
    return url


def test_check_tells_what_is_missing(bank: str) -> None:
    result = _run("index", "check")
    assert result.exit_code == 1
    assert "Turns: 3 passages, 2 of 3 indexed." in result.stdout
    assert "1 passages" not in result.stdout
    assert result.stdout.endswith("To mend the index, run: perdure index rebuild\n")


def test_rebuild_mends_it(bank: str) -> None:
    code, told = _ask("index", "check")
    assert (code, told["ok"], told["missing"], told["expected"]) == (1, False, 1, 3)
    result = _run("index", "rebuild")
    assert result.exit_code == 0
    assert result.stdout.splitlines() == [
        "Turns: 3 passages, all indexed.",
        "Memories and reference layers: 0 indexed.",
        "Meaning: all with a vector of local/wordllama-128.",
        "The index is sound.",
    ]
    code, told = _ask("index", "check")
    assert (code, told["ok"], told["missing"], told["unembedded"]) == (0, True, 0, 0)
    assert told["vectors"] == {"local/wordllama-128": 3}


def test_filling_that_was_cut_short_is_told_and_completed(bank: str, tmp_path: Path) -> None:
    assert _run("index", "rebuild").exit_code == 0

    async def cut_short() -> None:
        async with perdure.open(bank) as opened:
            await opened.index.filler.begin()

    asyncio.run(cut_short())
    code, told = _ask("index", "check")
    assert (code, told["missing"]) == (1, 0)
    assert told["problems"][0].startswith("It was not filled to its end")
    assert "not complete" not in _run("recall", "planner/auth", "zebra").stderr
    assert _run("index", "check").exit_code == 0


def test_a_bank_without_recall_says_so(bank: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PERDURE_RECALL_ON", "false")
    result = _run("index", "check")
    assert (result.exit_code, "recall.on" in result.stdout) == (0, True)


def test_check_tells_what_waits_for_its_vector(bank: str) -> None:
    async def add() -> None:
        async with perdure.open(bank).looked_at() as opened:  # and nothing in the background
            await opened.memories.add("planner", "The staging port is 8123.")

    asyncio.run(add())
    result = _run("index", "check")
    assert "Memories and reference layers: 1 indexed." in result.stdout
    assert "Meaning: 2 of 3 with a vector of local/wordllama-128." in result.stdout
    assert "1 wait for vectors" in result.stdout
    assert _run("index", "rebuild").exit_code == 0
    assert "Meaning: all with a vector" in _run("index", "check").stdout


@pytest.mark.usefixtures("bank")
def test_what_a_command_writes_has_its_vector_when_it_ends(tmp_path: Path) -> None:
    file = tmp_path / "ports.md"
    file.write_text("Ports are given out in the cellar.")
    for command in (
        ("memory", "add", "planner", "The staging port is 8123."),
        ("memory", "add", "planner", "the staging port is 8123"),  # seen again, and indexed anew
        ("memory", "edit", "planner/M-1", "The staging port is 9000."),
        ("memory", "add", "planner", "Harbours have cranes."),
        ("memory", "merge", "planner/M-1", "planner/M-2", "--text", "Ports and cranes."),
        ("memory", "restore", "planner/M-2"),
        ("reference", "add", str(file)),
    ):
        assert _run(*command).exit_code == 0
        told = _ask("index", "check")[1]
        assert told["unembedded"] == 0, command


def test_a_command_asks_no_server_for_vectors(bank: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nor fails for one: what was to be kept is kept."""
    for embedder in ("ollama/nomic-embed-text", "nobody/knows-it"):
        monkeypatch.setenv("PERDURE_RECALL_EMBEDDER", embedder)
        result = _run("memory", "add", "planner", f"The port of {embedder} is 8123.")
        assert (result.exit_code, result.stderr) == (0, "")
        assert result.stdout.startswith("Remembered as planner/M-")


def _harm(file: Path, *statements: str) -> None:
    db = apsw.Connection(str(file))
    db.config(apsw.SQLITE_DBCONFIG_DEFENSIVE, 0)
    for statement in statements:
        db.execute(statement)
    db.close()


def test_a_search_in_a_damaged_index_says_so(bank: str, tmp_path: Path) -> None:
    _harm(tmp_path / "bank.db", f'DROP TABLE "{INDEX.name}__documents"')
    result = _run("recall", "planner/auth", "giraffe")
    assert result.exit_code == 0
    assert "Nothing was found" in result.stdout
    assert "The index is damaged" in result.stderr
    assert "perdure index rebuild" in result.stderr
    code, told = _ask("recall", "planner/auth", "zebra")
    assert (code, told["hits"][0]["turn"]) == (0, "T-1.1")  # the newest turns are looked through
    assert "perdure index rebuild" in told["notes"][0]
    assert _run("index", "rebuild").exit_code == 0
    assert "notes" not in _ask("recall", "planner/auth", "zebra")[1]


def test_a_search_says_that_its_vectors_are_of_another_model(bank: str, tmp_path: Path) -> None:
    _harm(tmp_path / "bank.db", f"UPDATE \"{INDEX.name}__models\" SET name = 'acme/embed'")
    result = _run("recall", "planner/auth", "zebra")
    assert "T-1.1" in result.stdout
    assert "nothing has a vector of local/wordllama-128 yet, but of acme/embed" in result.stderr
    assert "perdure index rebuild" in result.stderr
    told = _run("index", "check").stdout
    assert "Meaning: 0 of 2 with a vector of local/wordllama-128." in told
    assert "2 have a vector of acme/embed, which is not searched" in told
    assert _run("index", "rebuild").exit_code == 0
    assert "acme" not in _run("index", "check").stdout
    assert "vector of" not in _run("recall", "planner/auth", "zebra").stderr


@pytest.mark.slow
@pytest.mark.parametrize("signal_", [signal.SIGINT, signal.SIGKILL])
def test_a_rebuild_that_is_interrupted_loses_nothing(
    signal_: signal.Signals, bank: str, tmp_path: Path
) -> None:
    assert _run("index", "rebuild").exit_code == 0
    rebuilding = subprocess.Popen(
        [sys.executable, "-m", "perdure", "index", "rebuild"],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    # From the moment that it replaces documents: new ones have no vector.
    replaced = f'SELECT count(*) FROM "{INDEX.name}__documents" WHERE vector IS NULL'
    with contextlib.closing(apsw.Connection(str(tmp_path / "bank.db"))) as db:
        db.set_busy_timeout(5_000)
        while rebuilding.poll() is None and not db.execute(replaced).get:
            time.sleep(0.001)
    rebuilding.send_signal(signal_)
    rebuilding.wait(timeout=30)
    code, told = _ask("index", "check")
    assert (code, told["missing"], told["orphans"], told["problems"]) == (0, 0, 0, [])
    told = _ask("recall", "planner/auth", "lion")[1]
    assert told["hits"][0]["turn"] == "T-2.1"
    assert "not complete" not in str(told.get("notes"))  # as the check says
    assert _run("index", "rebuild").exit_code == 0
    assert _ask("index", "check")[1]["unembedded"] == 0
