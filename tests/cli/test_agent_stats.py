from __future__ import annotations

from pathlib import Path

import pytest

import perdure
from tests.agents.tiers import interaction
from tests.cli.conftest import Ask, Run


@pytest.fixture
def bank(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    url = f"sqlite:///{tmp_path / 'bank.db'}"
    monkeypatch.setenv("PERDURE_BANK", url)
    with perdure.open_sync(url) as bank:
        memory = bank.agent_memory("router")
        for number in range(1, 8):
            memory.store(interaction(number, success=number != 3, recalled=("M-1",)))
        bank.settle()
    return url


def test_statistics(run: Run, ask: Ask, bank: str) -> None:
    shown = run("agent", "stats", "router").stdout
    assert "router: 7 interactions, 86% succeeded, $0.002" in shown
    assert "openai/gpt-5" in shown
    _, stats = ask("agent", "stats", "router")
    assert (stats["interactions"], stats["tasks"][0]["task"]) == (7, "routing")
    assert {each["kind"] for each in stats["learned_patterns"]} == {"model", "version", "memory"}
    _, every = ask("agent", "stats")
    assert [each["agent"] for each in every["agents"]] == ["router"]
    assert "router" in run("agent", "stats").stdout
    assert ask("agent", "stats", "nobody")[0] == 1


def test_the_two_tables(run: Run, ask: Ask, bank: str) -> None:
    _, memory = ask("agent", "stats", "--table", "agent_memory")
    assert [*memory["rows"][0]] == [
        *("agent_id", "total_interactions", "success_rate", "average_cost", "preferred_models"),
        *("learned_patterns", "evolution_history", "created_at", "updated_at"),
    ]
    _, performance = ask("agent", "stats", "router", "--table", "agent_performance", "--limit", "2")
    assert [*performance["rows"][0]] == [
        *("id", "agent_id", "timestamp", "task_type", "provider", "success"),
        *("response_time_ms", "cost", "quality_score"),
    ]
    assert len(performance["rows"]) == 2
    shown = run("agent", "stats", "--table", "agent_performance", "--since", "1d").stdout
    assert len(shown.splitlines()) == 8
    assert shown.split()[0] == "id"
    assert run("agent", "stats", "--table", "agents").exit_code == 1
    assert run("agent", "stats", "router", "--since", "1d").exit_code == 1


def test_episodes(run: Run, ask: Ask, bank: str) -> None:
    _, found = ask("agent", "episodes", "router", "--failed")
    (episode,) = found["episodes"]
    assert episode["artifact"].startswith("sha256:")
    _, whole = ask("agent", "episodes", "router", episode["episode"])
    assert whole["response"] == "To billing, case 3."
    assert "  To billing, case 3." in run("agent", "episodes", "router", "00000003").stdout
    assert episode["episode"] in run("agent", "episodes", "router", "--task", "routing").stdout
    assert run("agent", "episodes", "router", "00000099").exit_code == 1
    assert run("agent", "episodes", "coder", episode["episode"]).exit_code == 1


def test_the_canon(run: Run, ask: Ask, bank: str, tmp_path: Path) -> None:
    file = tmp_path / "refunds.md"
    file.write_text("# Refunds\nTo Zephyrine.\n")
    _, made = ask("canon", "write", "refunds", str(file), "--reader", "router", "--reason", "new")
    assert (made["version"], made["readers"], made["author"]["person"]) == (1, ["router"], True)
    assert "version 2" in run("canon", "write", "refunds", "-", answer="To Max.").stdout
    assert "To Max." in run("canon", "show", "refunds").stdout
    assert "Zephyrine" in run("canon", "show", "refunds", "--version", "1").stdout
    assert run("canon", "show", "refunds", "--agent", "coder").exit_code == 1
    _, seen = ask("canon", "list", "--agent", "coder")
    assert seen == {"canon": []}
    assert "router" in run("canon", "list").stdout
    assert run("canon", "restore", "refunds", "1").exit_code == 0
    _, history = ask("canon", "history", "refunds")
    assert [each["entry"]["version"] for each in history["versions"]] == [3, 2, 1]
    assert "as version 1" in run("canon", "history", "refunds").stdout
    assert run("memory", "add", "router", "Acme is answered in French.").exit_code == 0
    _, promoted = ask("canon", "promote", "router/M-1", "acme")
    assert (promoted["source"], promoted["readers"]) == ("router/M-1", ["*"])
    assert run("canon", "remove", "refunds").exit_code == 1
    assert run("canon", "remove", "refunds", "--yes").exit_code == 0
    assert run("canon", "write", "absent", str(tmp_path / "absent.md")).exit_code == 1
