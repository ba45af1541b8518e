"""What agents' calls came to, what people say of them, and tests of how agents work."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

import perdure
from perdure.core import clock
from perdure.gateway.outcomes import Outcome
from perdure.gateway.prices import DOLLAR
from perdure.learning.experiment_records import StrategyChanges
from tests.cli.conftest import Ask, Run
from tests.learning.test_evolution import run_sessions

CONFIG = """
[[gateway.budgets]]
name = "each"
agent = "*"
per = "ever"
dollars = 1.0
"""


@pytest.fixture(autouse=True)
def url(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    made = f"sqlite:///{tmp_path / 'bank.db'}"
    monkeypatch.setenv("PERDURE_BANK", made)
    return made


def write_outcomes(url: str) -> None:
    with perdure.open_sync(url) as bank:
        bank.collection(Outcome).put_many(
            Outcome(
                id=f"o{number}",
                started=clock.now() - number * clock.SECOND,
                purpose="chat",
                provider=provider,
                model="m",
                agent="router",
                task=task,
                success=True,
                latency=2.0,
                cost=DOLLAR // 10,
            )
            for number, (provider, task) in enumerate(
                [("openai", "triage"), ("openai", "triage"), ("anthropic", "plan")]
            )
        )


def test_calls_by_two_fields_with_bars_and_budgets(
    run: Run, ask: Ask, url: str, tmp_path: Path
) -> None:
    write_outcomes(url)
    shown = run("agent", "stats", "--by", "task,provider", "--since", "30d").stdout
    first, second, third = shown.splitlines()
    assert first.split()[:3] == ["Task", "Provider", "Calls"]
    assert second.split()[:3] == ["triage", "openai", "2"]
    assert "█" in second
    assert third.split()[:3] == ["plan", "anthropic", "1"]
    _, found = ask("agent", "stats", "router", "--by", "task,provider")
    assert found["by"] == ["task", "provider"]
    assert found["rows"][0]["group"] == {"task": "triage", "provider": "openai"}
    assert (found["rows"][0]["calls"], found["rows"][0]["latency"]) == (2, 2.0)
    assert ask("agent", "stats", "nobody", "--by", "task")[1]["rows"] == []
    assert run("agent", "stats", "--by", "taste").exit_code == 1
    config = tmp_path / "config.toml"
    config.write_text(CONFIG)
    _, costs = ask("costs", "--by", "agent", "--config", str(config))
    assert costs["budgets"][0]["agent"] == "*"


def test_a_person_rates_an_answer(run: Run, ask: Ask, url: str) -> None:
    write_outcomes(url)
    assert run("agent", "rate", "o1", "0.5", "So so.").stdout == "Rated 0.5.\n"
    with perdure.open_sync(url) as bank:
        found = bank.collection(Outcome).get("o1")
        assert found is not None
        assert (found.quality, found.quality_by, found.comment) == (0.5, "user", "So so.")
    assert run("agent", "rate", "o1", "5").exit_code == 1
    assert run("agent", "rate", "nothing", "0.5").exit_code == 1
    _, stats = ask("agent", "stats", "--by", "provider")
    (row,) = [row for row in stats["rows"] if row["group"]["provider"] == "openai"]
    assert (row["quality"], row["labels"]) == (0.5, 1)


def test_a_variant_is_shown_accepted_and_taken_back(run: Run, ask: Ask, url: str) -> None:
    async def test() -> None:
        async with perdure.open(url) as bank:
            learning = bank.learning
            await learning.evolution.start("router", StrategyChanges(recall=False))
            await run_sessions(learning.experiments, gain=0.2)
            await learning.evolution.consider("router")

    write_outcomes(url)
    assert (
        "router works with what is configured." in run("agent", "evolve", "show", "router").stdout
    )
    assert run("agent", "evolve", "accept", "router").exit_code == 1
    asyncio.run(test())
    shown = run("agent", "evolve", "show", "router").stdout
    assert "It won its test: no recall." in shown
    assert "perdure agent evolve accept router" in shown
    assert run("agent", "evolve", "accept", "router").stdout == "router now works with no recall.\n"
    _, found = ask("agent", "evolve", "show", "router")
    assert found["strategy"]["recall"] is False
    assert found["steps"][0]["kind"] == "promoted"
    assert found["steps"][0]["evidence"]["difference"]["low"] > 0
    _, table = ask("agent", "stats", "--table", "agent_memory")
    (row,) = [row for row in table["rows"] if row["agent_id"] == "router"]
    assert "promoted" in str(row["evolution_history"])
    back = run("agent", "evolve", "revert", "router").stdout
    assert back == "router works with what is configured again.\n"
    assert run("agent", "evolve", "revert", "router").exit_code == 1
    assert run("agent", "evolve", "dismiss", "router").exit_code == 1
