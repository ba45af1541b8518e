"""What was spent: rows, bars, totals, budgets."""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import subprocess
import sys
from collections.abc import Callable
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest
from rich.cells import cell_len

import perdure
from perdure import config as configuration
from perdure.cli import readable
from perdure.cli.app import app
from perdure.config import BudgetConfig, Config, GatewayConfig
from perdure.core import clock
from perdure.core.clock import new_id
from perdure.core.messages import user
from perdure.gateway import calls as gateway_calls
from perdure.gateway.calls import Request
from perdure.gateway.outcomes import Outcome
from perdure.gateway.prices import DOLLAR
from tests.cli.conftest import Ask, Run, Serve, Tty

PERDURE = [sys.executable, "-m", "perdure"]
BANK = "sqlite:///bank.db"
DAY = 86_400 * clock.SECOND
CONFIG = """
[[gateway.budgets]]
name = "everything"
dollars = 5.0
[[gateway.budgets]]
name = "background"
purpose = "compress"
per = "month"
tokens = 1_000
[[gateway.budgets]]
name = "each"
agent = "*"
per = "ever"
tokens = 100_000
dollars = 1.0
"""
Note = Callable[..., None]


@pytest.fixture(autouse=True)
def bank(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PERDURE_BANK", BANK)


@pytest.fixture
def note() -> Note:
    """Writes outcomes into the bank; what is not said is a call that is like the others."""

    def write(*given: dict[str, Any]) -> None:
        with perdure.open_sync(BANK) as bank:
            bank.collection(Outcome).put_many(
                Outcome(
                    **{
                        "id": new_id(),
                        "started": clock.now() - int(each.pop("ago", 0) * DAY),
                        "purpose": "chat",
                        "provider": "openai",
                        "model": "gpt-5",
                        "success": True,
                        "latency": 1.0,
                        "input": 1_000,
                        "output": 100,
                        "cost": DOLLAR // 4,
                        **each,
                    }
                )
                for each in given
            )

    return write


def test_nothing_was_spent(run: Run, ask: Ask) -> None:
    run("bank", "init")
    shown = run("costs")
    assert (shown.exit_code, shown.stderr) == (0, "")
    assert shown.stdout.startswith("No model was called since ")
    _, found = ask("costs")
    assert (found["rows"], found["budgets"], found["total"]["cost"]) == ([], [], 0)


def test_there_is_no_bank(run: Run, ask: Ask) -> None:
    shown = run("costs")
    assert (shown.exit_code, shown.stdout, shown.stderr) == (0, "No model was called yet.\n", "")
    Path("config.toml").write_text(CONFIG)
    code, found = ask("costs", "--config", "config.toml")
    assert (code, found["rows"], found["total"]["cost"]) == (0, [], 0)
    assert [each["name"] for each in found["budgets"]] == ["everything", "background", "each"]
    assert not Path("bank.db").exists()


def test_rows(ask: Ask, note: Note) -> None:
    note(
        {},
        {"cached": True, "cost": 0, "input": None, "output": None},
        {"model": "small", "cost": DOLLAR, "quality": 0.5, "first_token": 0.2},
        {"model": "small", "success": False, "error": "down", "cost": 0, "input": None},
        {"model": "dark", "cost": None, "agent": "ada"},
        {"model": "dark", "cost": None, "success": False, "error": "cancelled", "output": None},
        {"ago": 40, "model": "old"},
    )
    code, found = ask("costs")
    assert code == 0
    assert (found["by"], [row["of"] for row in found["rows"]]) == (
        "model",
        ["openai/small", "openai/gpt-5", "openai/dark"],
    )
    small, gpt, dark = found["rows"]
    assert small == {
        "of": "openai/small",
        "provider": "openai",
        "model": "small",
        "calls": 2,
        "failures": 1,
        "cancelled": 0,
        "cached": 0,
        "input": 1_000,
        "output": 200,
        "cache_read": 0,
        "cache_write": 0,
        "reasoning": 0,
        "cost": DOLLAR,
        "unknown_costs": 0,
        "latency": 1.0,
        "first_token": 0.2,
        "quality": 0.5,
        "dollars": 1.0,
    }
    assert (gpt["calls"], gpt["cached"], gpt["dollars"]) == (2, 1, 0.25)
    assert (dark["cost"], dark["dollars"], dark["unknown_costs"]) == (None, None, 2)
    assert (dark["failures"], dark["cancelled"]) == (0, 1)
    assert found["total"] == {
        "calls": 6,
        "failures": 1,
        "cancelled": 1,
        "cached": 1,
        "input": 4_000,
        "output": 400,
        "cache_read": 0,
        "cache_write": 0,
        "reasoning": 0,
        "cost": DOLLAR * 5 // 4,
        "unknown_costs": 2,
        "dollars": 1.25,
    }
    since = datetime.fromisoformat(found["since"])
    assert 29.9 < (datetime.now(since.tzinfo) - since).total_seconds() / 86_400 < 30.1


@pytest.mark.parametrize(
    ("by", "groups"),
    [
        ("agent", ["ada", ""]),
        ("task", ["review", ""]),
        ("provider", ["openai", "ours"]),
        ("model", ["openai/gpt-5", "ours/small"]),
        ("purpose", ["chat", "compress"]),
    ],
)
def test_groups(by: str, groups: list[str], ask: Ask, run: Run, note: Note) -> None:
    note(
        {"agent": "ada", "task": "review", "cost": DOLLAR},
        {"provider": "ours", "model": "small", "purpose": "compress"},
    )
    assert [row["of"] for row in ask("costs", "--by", by)[1]["rows"]] == groups
    lines = run("costs", "--by", by).stdout.splitlines()
    assert lines[0].split()[0] == by.capitalize()
    assert lines[2].split()[0] == (groups[1] or "(none)")


def test_days(ask: Ask, run: Run, note: Note) -> None:
    note({}, {"ago": 3}, {"ago": 3, "cost": None})
    days = [row["of"] for row in ask("costs", "--by", "day")[1]["rows"]]
    assert days == sorted(days)
    assert len(days) == 2
    lines = run("costs", "--by", "day").stdout.splitlines()
    assert [line.split()[0] for line in lines[1:5]][0::3] == days  # with those between them
    assert lines[2].split()[1:] == ["0"]


def test_since(ask: Ask, run: Run, note: Note) -> None:
    note({}, {"ago": 10}, {"ago": 100})
    assert ask("costs")[1]["total"]["calls"] == 2
    assert ask("costs", "--since", "5d")[1]["total"]["calls"] == 1
    found = ask("costs", "--since", "2020-01-01T00:00:00+00:00")[1]
    assert (found["total"]["calls"], found["since"][:10]) == (3, "2020-01-01")
    wrong = run("costs", "--since", "tomorrow")
    assert (wrong.exit_code, wrong.stdout) == (2, "")
    assert "Invalid value for --since: 'tomorrow' is no time. Write 2026-02-12" in wrong.stderr
    assert run("costs", "--by", "moon").exit_code == 2


def test_for_people(run: Run, note: Note) -> None:
    note(
        *[{"model": "big", "cost": DOLLAR, "cache_read": 500}] * 2,
        {"model": "big", "cost": None, "success": False, "error": "broken", "input": None},
        {"model": "petit-modèle", "cost": DOLLAR // 2},
        {"model": "dark", "cost": None},
        {"model": "own", "cost": 0},
    )
    shown = run("costs")
    assert (shown.exit_code, shown.stderr) == (0, "")
    assert "\x1b" not in shown.stdout
    lines = shown.stdout.splitlines()
    assert not any(line != line.rstrip() for line in lines)
    heading, big, small, *others = lines[:5]
    assert heading.split() == ["Model", "Tries", "Failed", "Cached", "In", "Out", "Cost"]
    assert big.split() == [
        *("openai/big", "3", "1", "2,000", "300", "$2.00", "and", "1", "unknown"),
        "█" * 24,
    ]
    assert small.split() == ["openai/petit-modèle", "1", "1,000", "100", "$0.500000", "█" * 6]
    assert {line.split()[0]: line.split()[-1] for line in others} == {
        "openai/dark": "unknown",
        "openai/own": "free",
    }
    assert ": 6 tries, 1 failed, 5,000 tokens in, 600 out, " in lines[6]
    assert lines[6].endswith(", 1,000 of them read from a provider's cache, $2.50.")
    assert lines[7].startswith("Besides, the cost of 2 tries is unknown: ")


def test_what_is_unknown_is_not_zero(run: Run, note: Note) -> None:
    note({"cost": None}, {"cost": None, "model": "other", "input": 500})
    lines = run("costs").stdout.splitlines()
    assert "$" not in "".join(lines)
    assert "free" not in "".join(lines)
    assert lines[1].split()[-2:] == ["unknown", "█" * 24]  # by tokens, then
    assert lines[2].split()[-2] == "unknown"
    assert lines[5].startswith("The cost of 2 tries is unknown: ")


@pytest.mark.parametrize(
    ("given", "cost", "shown"),
    [
        ([{"cost": 0}], 0, "free"),
        ([{"cost": 0}, {"cost": 0, "success": False, "error": "down"}], 0, "free"),
        ([{"cost": 0, "success": False, "error": "down"}], 0, "$0.00"),
        ([{"cost": 0, "cached": True}], 0, "$0.00"),
        ([{"cost": None}, {"cost": 0, "success": False, "error": "down"}], None, "unknown"),
        ([{"cost": None}, {"cost": 0, "cached": True}], None, "unknown"),
        ([{"cost": None, "success": False, "error": "cancelled"}], None, "unknown"),
        ([{"cost": None}, {"cost": 0}], 0, "$0.00 and 1 unknown"),
        ([{"cost": None}, {"cost": None}, {"cost": DOLLAR}], DOLLAR, "$1.00 and 2 unknown"),
    ],
)
def test_what_zero_means(  # noqa: PLR0917  (fixtures)
    given: list[dict[str, Any]], cost: int | None, shown: str, ask: Ask, run: Run, note: Note
) -> None:
    note(*given)
    _, found = ask("costs")
    assert (found["rows"][0]["cost"], found["total"]["cost"]) == (cost, cost)
    _, row, _, total, *_ = run("costs").stdout.splitlines()
    assert re.search(rf" {re.escape(shown)}  █+$", row)
    assert total.endswith(" out." if cost is None else f", {shown.partition(' and ')[0]}.")


def test_the_total_of_rows_that_know_and_rows_that_do_not(ask: Ask, note: Note) -> None:
    note({"model": "dark", "cost": None}, {"model": "gone", "cost": 0, "success": False})
    assert ask("costs")[1]["total"]["cost"] is None
    note({"model": "own", "cost": 0})
    assert ask("costs")[1]["total"]["cost"] == 0


def test_what_was_cancelled_did_not_fail(run: Run, note: Note) -> None:
    note({}, {"success": False, "error": "cancelled", "cost": None})
    heading, row, _, total, *_ = run("costs").stdout.splitlines()
    assert heading.split()[1:5] == ["Tries", "Failed", "Cancelled", "Cached"]
    assert row.split()[:3] == ["openai/gpt-5", "2", "1"]
    assert row.index(" 1 ") > heading.index("Failed") + len("Failed")
    assert ": 2 tries, 1 cancelled, " in total


def test_a_model_at_two_providers_is_two(ask: Ask, run: Run, note: Note) -> None:
    note({"cost": DOLLAR}, {"provider": "ours"}, {"provider": "http://127.0.0.1:8080/v1"})
    rows = ask("costs")[1]["rows"]
    assert [(row["of"], row["provider"], row["model"]) for row in rows] == [
        ("openai/gpt-5", "openai", "gpt-5"),
        ("http://127.0.0.1:8080/v1#gpt-5", "http://127.0.0.1:8080/v1", "gpt-5"),
        ("ours/gpt-5", "ours", "gpt-5"),
    ]
    assert [line.split()[0] for line in run("costs").stdout.splitlines()[1:4]] == [
        row["of"] for row in rows
    ]


def test_bars_on_an_ascii_stream(note: Note) -> None:
    note({"model": "modèle"}, {"model": "b", "cost": DOLLAR // 8})
    env = {**os.environ, "PYTHONIOENCODING": "ascii"}
    done = subprocess.run([*PERDURE, "costs"], capture_output=True, env=env, check=True)
    assert done.stdout.isascii()
    assert not done.stderr
    lines = done.stdout.decode().splitlines()
    assert lines[1].endswith(" " + "#" * 24)
    assert lines[2].endswith(" " + "#" * 12)


def test_on_terminals(note: Note, tty: Tty, monkeypatch: pytest.MonkeyPatch) -> None:
    note(
        {"model": "a-model-with-a-long-name-日本語"},
        {"model": "small", "cost": None, "success": False, "error": "down"},
    )
    Path("config.toml").write_text(CONFIG)
    monkeypatch.setenv("PERDURE_CONFIG", "config.toml")
    for columns in (36, 60, 120):
        monkeypatch.setenv("COLUMNS", str(columns))
        screen = Tty()
        with contextlib.redirect_stdout(screen):
            app(["costs"], standalone_mode=False)
        assert "\x1b[36m" in screen.getvalue()
        shown = re.sub(r"\x1b\[[0-9;]*m", "", screen.getvalue())
        lines = shown.splitlines()
        words = " ".join(shown.split())
        assert all(cell_len(line) <= max(columns, 40) for line in lines)
        assert "openai/a-model-with-a-long-name-日本語" in words
        assert "█" in words
        assert "unknown" in words
        for fact in ("$5.00 of $5.00", "1,000 of 1,000 tokens", "per month"):
            assert fact in words


def test_a_name_cannot_steer_the_terminal(run: Run, note: Note) -> None:
    note({"model": "evil\x1b[31m\nname"})
    shown = run("costs").stdout
    assert "\x1b" not in shown
    assert "evil\\x1b[31m name" in shown


# Budgets ----------------------------------------------------------------------------------------


def spend(file: Path) -> None:
    """Ask through the gateway, with these budgets."""
    request = Request(messages=(user("Hi."),), max_tokens=50)
    with perdure.open_sync(BANK, config=configuration.load(file)) as bank:
        bank.gateway.complete(request, gateway_calls.CallOptions(agent="ada"))
        bank.gateway.settle()


def test_budgets(run: Run, ask: Ask, serve: Serve, monkeypatch: pytest.MonkeyPatch) -> None:
    model = serve()
    price = f'[gateway.prices."{model.url}#any"]\ninput = 1_000.0\noutput = 1_000.0\n'
    file = Path("config.toml")
    file.write_text(CONFIG + price)
    spend(file)
    monkeypatch.setenv("PERDURE_CONFIG", "config.toml")
    _, found = ask("costs", "--by", "agent")
    (row,) = found["rows"]
    tokens = row["input"] + row["output"]
    assert (row["of"], row["dollars"]) == ("ada", tokens / 1_000)
    everything, background, each = found["budgets"]
    assert (everything["name"], everything["agent"], everything["purpose"]) == (
        "everything",
        None,
        None,
    )
    assert everything["cost"] == {
        "limit": 5 * DOLLAR,
        "spent": row["cost"],
        "reserved": 0,
        "left": 5 * DOLLAR - row["cost"],
    }
    assert everything["tokens"] is None
    renews = datetime.fromisoformat(everything["renews"])
    assert 0 < (renews - datetime.now(renews.tzinfo)).total_seconds() <= 86_400
    assert (background["purpose"], background["per"]) == ("compress", "month")
    assert background["tokens"]["left"] == 1_000
    assert (each["agent"], each["renews"], each["tokens"]["spent"]) == ("ada", None, tokens)

    lines = run("costs").stdout.splitlines()
    at = next(place for place, line in enumerate(lines) if line.startswith("Budget"))
    assert lines[at].split() == ["Budget", "For", "Spent", "Left", "Renews"]
    assert lines[at + 1].startswith("everything  everything, per day")
    assert readable.budget_left(5 * DOLLAR - row["cost"]) + " of $5.00" in lines[at + 1]
    assert re.search(r"\d{4}-\d\d-\d\d \d\d:\d\d \(in \d+ (h|min)\)$", lines[at + 1])
    assert "compress, per month" in lines[at + 2]
    assert "everything by ada" in lines[at + 3]
    assert f"{100_000 - tokens:,} of 100,000 tokens" in lines[at + 3]
    assert lines[at + 3].endswith("never")


def test_budgets_of_which_nothing_was_spent(run: Run, ask: Ask) -> None:
    run("bank", "init")
    Path("config.toml").write_text(CONFIG)
    _, found = ask("costs", "--config", "config.toml")
    assert [(each["name"], each["agent"]) for each in found["budgets"]] == [
        ("everything", None),
        ("background", None),
        ("each", "*"),
    ]
    assert "everything by each agent" in run("costs", "--config", "config.toml").stdout


def test_what_calls_have_reserved(run: Run, ask: Ask) -> None:
    budget = BudgetConfig(name="b", dollars=2.0)
    config = Config(gateway=GatewayConfig(budgets=(budget,)))

    async def reserve() -> None:  # by a process that does not settle it
        async with perdure.open(BANK, config=config) as bank:
            await bank.gateway.ledger.reserve(gateway_calls.CallOptions(), 100, DOLLAR // 2)

    asyncio.run(reserve())
    Path("config.toml").write_text("[[gateway.budgets]]\nname = 'b'\ndollars = 2.0\n")
    (found,) = ask("costs", "--config", "config.toml")[1]["budgets"]
    assert (found["cost"]["reserved"], found["cost"]["left"]) == (DOLLAR // 2, DOLLAR * 3 // 2)
    shown = run("costs", "--config", "config.toml").stdout
    assert "$0.00 ($0.500000 reserved)" in shown
    assert "$1.50 of $2.00" in shown


@pytest.mark.parametrize(
    ("picodollars", "shown"),
    [(0, "$0.00"), (4_993_419_400_000, "$4.99"), (999_999_999_999, "$0.999999"), (1, "$0.00")],
)
def test_what_is_left_is_rounded_down(picodollars: int, shown: str) -> None:
    assert readable.budget_left(picodollars) == shown
