"""The audit trail on the command line."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from perdure.config.settings import AuditConfig
from perdure.core.actors import acting_as
from perdure.storage.audit import Audit
from perdure.storage.compression import Compression
from perdure.storage.middleware import Middleware
from perdure.storage.options import DEFAULT
from perdure.storage.records import type_of
from perdure.storage.registry import adapter_for
from perdure.storage.rows import Batch
from perdure.storage.store import Store
from perdure.testing.manual_clock import ManualClock
from tests.cli.conftest import THEN, Ask, Note, Run


@pytest.fixture
def trail(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """The address of a bank with a trail, which is the default of the test."""
    url = f"sqlite:///{tmp_path / 'trail.db'}"
    asyncio.run(_write(url))
    monkeypatch.setenv("PERDURE_BANK", url)
    monkeypatch.setenv("TZ", "UTC")
    return url


async def _write(url: str, *, around: bool = False) -> None:
    clock = ManualClock(THEN)
    config = AuditConfig(collections=("*",), reads=("notes",), actor="tests")
    chain: list[Middleware] = [Audit(config), Compression()]
    async with Store(adapter_for(url, clock), middleware=chain, clock=clock) as store:
        notes = store.collection(Note)
        if around:
            put = type_of(Note).encode(Note("ada/1", "forged"), None, None)
            await notes.make()
            await store.adapter.commit(Batch((put,)), DEFAULT)
            return
        await notes.put(Note("ada/1", "secret words"))
        clock.advance("1m")
        with acting_as("ada", reason="she changed her mind"):
            await notes.put(Note("ada/1", "other words"))
            await notes.put(Note("ada/2", "more words"))
            clock.advance("1m")
            await notes.delete("ada/2")
        await notes.query().values()


def test_the_newest_entries_come_first(run: Run, trail: str) -> None:
    result = run("audit")
    assert (result.exit_code, result.stderr) == (0, "")
    heading, *lines = result.stdout.splitlines()
    assert heading.split() == ["When", "Who", "What", "Record", "Change", "Why"]
    assert [line.split()[3] for line in lines] == [
        *("read", "find", "delete", "put", "put", "put"),
    ]
    assert "1 record · all" in lines[1]
    assert "notes/ada/2" in lines[2]
    assert "she changed her mind" in lines[2]
    assert " → –" in lines[2]
    assert "– → v1 " in lines[-1]
    assert "words" not in result.stdout


def test_questions(ask: Ask, trail: str) -> None:
    def found(*args: str) -> list[str]:
        code, answer = ask("audit", *args)
        assert code == 0
        return [f"{entry['action']} {entry.get('record', '')}" for entry in answer["entries"]]

    assert len(found()) == 6
    assert found("notes/ada/2") == ["delete ada/2", "put ada/2"]
    assert found("notes", "--action", "delete") == ["delete ada/2"]
    assert found("--actor", "ada", "--limit", "1") == ["delete ada/2"]
    assert found("authors") == []
    assert found("--since", "2026-02-12T16:03:30+00:00", "--action", "put") == []
    _, answer = ask("audit", "--limit", "2")
    assert answer["next"].startswith("trail/")
    assert len(answer["entries"][0]["hash_before"]) == 32


def test_there_are_more(run: Run, trail: str) -> None:
    result = run("audit", "--limit", "2")
    assert "older ones" in result.stderr
    assert len(result.stdout.splitlines()) == 3


def test_does_it_join(run: Run, ask: Ask, trail: str) -> None:
    assert run("audit", "notes/ada/1", "--verify").stdout == (
        "The trail of notes/ada/1 joins: 2 entries.\n"
    )
    code, answer = ask("audit", "notes/ada/1", "--verify")
    assert (code, answer["ok"], answer["entries"], answer["gaps"]) == (0, True, 2, [])
    assert "nothing can be said" in run("audit", "notes/nobody", "--verify").stdout
    asyncio.run(_write(trail, around=True))
    result = run("audit", "notes/ada/1", "--verify")
    assert result.exit_code == 1
    assert "found version 3, where version 2 had been left" in result.stdout
    code, answer = ask("audit", "notes/ada/1", "--verify")
    assert (code, answer["ok"], len(answer["gaps"])) == (1, False, 1)


def test_what_cannot_be_asked(run: Run, trail: str) -> None:
    assert run("audit", "notes", "--verify").exit_code == 2
    assert run("audit", "--since", "tomorrow").exit_code == 2
    result = run("audit", "--action", "steal")
    assert (result.exit_code, result.stdout) == (1, "")
    assert "no action 'steal'" in result.stderr


def test_nothing_is_audited(run: Run, ask: Ask, notes: str) -> None:
    assert run("audit", "--bank", notes).stdout == "No entries.\n"
    assert ask("audit", "--bank", notes) == (0, {"entries": [], "next": None})
    assert run("audit", "--bank", "sqlite:///nowhere.db").exit_code == 1
