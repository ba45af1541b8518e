from __future__ import annotations

import asyncio
import contextlib
import json
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from perdure.cli.app import app
from tests.cli.conftest import Ask, Run, Tty
from tests.importers.transcripts import SESSION, Claude, write
from tests.test_docs import ROOT, blocks
from tests.test_docs import run as execute

POLICIES = [
    *("unlimited", "drop_oldest", "drop_half", "rolling_summary", "masking"),
    *("gradient", "gradient_thrifty"),
]
GUIDE = ROOT / "docs" / "simulate.md"
DATA = Path(__file__).parents[3] / "shared" / "data"


@pytest.fixture
def transcript(tmp_path: Path) -> Path:
    """Forty turns, each with a tool's output of some hundred tokens."""
    claude = Claude()
    records = []
    for number in range(40):
        output = f"line of what the tool said about file {number}.py\n" * 40
        records += [
            claude.prompt(f"Look at file {number}.py, please."),
            claude.call(f"m{number}a", f"c{number}"),
            claude.result(f"c{number}", output),
            claude.text(f"m{number}b", f"File {number}.py has forty lines."),
        ]
    return write(tmp_path / "projects" / f"{SESSION}.jsonl", records)


def test_figures_as_json(ask: Ask, transcript: Path) -> None:
    code, found = ask("simulate", str(transcript), "--budget", "5000")
    assert code == 0
    assert list(found["policies"]) == POLICIES
    assert (found["budget"], found["requests"], found["turns"]) == (5_000, 80, 40)
    assert found["tokens"] > 15_000
    assert (found["system"], found["injection"], found["prices"]) == (8_000, 0, "anthropic")
    assert (found["formats"], found["unread"]) == ({str(transcript): "claude-code"}, [])
    for name, figures in found["policies"].items():
        assert list(figures) == [
            *("input_tokens", "cache_read", "cache_write", "hit_ratio", "cost", "dollars"),
            *("rewrites", "span", "covered", "max_tokens", "prefix_violations"),
            *("fill_mean", "fill_after_epoch", "fill_after_epoch_least", "bands", "bands_in_range"),
            *("bands_possible", "bands_kept"),
            "known",
        ]
        assert figures["prefix_violations"] == 0
        assert figures["cache_read"] / figures["input_tokens"] == pytest.approx(
            figures["hit_ratio"], abs=1e-4
        )
        assert figures["dollars"] == pytest.approx(figures["cost"] * 5e-6, rel=1e-3)
        assert name == "unlimited" or figures["max_tokens"] <= 5_000
        assert (figures["rewrites"] == 0) == (name == "unlimited")
    assert found["policies"]["gradient"]["covered"] == 1.0
    assert found["policies"]["gradient"]["span"] > found["policies"]["masking"]["span"]


def test_figures_for_people(run: Run, transcript: Path) -> None:
    result = run("simulate", str(transcript), "--format", "claude-code", "--budget", "5000")
    assert (result.exit_code, result.stderr) == (0, "")
    shown = result.stdout.splitlines()
    assert shown[0].split()[:4] == ["Policy", "Cache", "hits", "Cost"]
    assert shown[0].split()[-2:] == ["Fill", "Known"]
    assert [line.split()[0] for line in shown[1:8]] == POLICIES
    assert shown[8].startswith("gradient, right after an epoch: ")
    assert shown[9].startswith("gradient_thrifty, right after an epoch: ")
    assert shown[11] == "Cost: █ what was new to the cache, ░ what was read from it"
    assert [line.split()[0] for line in shown[12:19]] == POLICIES
    assert shown[20].startswith("Tokens in each request")
    assert [line.split()[0] for line in shown[21:28]] == POLICIES
    assert shown[29].startswith("80 requests of 40 turns, ")
    assert "Assumed: 8,000 tokens of system text and tools" in shown[29]
    assert shown[30:] == [f"Read as claude-code: {transcript}"]
    assert "defect" not in result.stdout


def test_what_was_not_read_is_named(run: Run, ask: Ask, transcript: Path) -> None:
    broken = transcript.with_name("broken.jsonl")
    broken.write_text("nonsense\n")
    args = ["simulate", str(transcript.parent), "--policy", "unlimited"]
    shown = run(*args).stdout.splitlines()
    assert shown[-2] == f"Read as claude-code: {transcript.parent}"
    assert shown[-1] == f"Not read, as nothing in it is known: {broken}"
    found = ask(*args)[1]
    assert found["formats"] == {str(transcript.parent): "claude-code"}
    assert found["unread"] == [str(broken)]


def test_only_some_policies_and_other_prices(ask: Ask, transcript: Path) -> None:
    args = ["--policy", "drop_half", "--policy", "unlimited", "--budget", "5000"]
    _, dear = ask("simulate", str(transcript), *args, "--prices", "openai-5.6")
    assert list(dear["policies"]) == ["drop_half", "unlimited"]
    _, cheap = ask(
        "simulate", str(transcript), *args, "--prices", "openai", "--model", "gpt-5-mini"
    )
    assert (cheap["prices"], cheap["model"]) == ("openai", "gpt-5-mini")
    for name in dear["policies"]:
        assert cheap["policies"][name]["cost"] < dear["policies"][name]["cost"]
        assert cheap["policies"][name]["dollars"] < dear["policies"][name]["dollars"] / 10
    _, more = ask("simulate", str(transcript), *args, "--system", "0", "--injection", "900")
    figures = more["policies"]["unlimited"]
    assert figures["max_tokens"] == dear["policies"]["unlimited"]["max_tokens"] + 900


def test_prices_of_the_configuration(ask: Ask, transcript: Path, home: Path) -> None:
    file = home / "perdure.toml"
    file.write_text('[gateway.prices."anthropic/mine"]\ninput = 1.0\noutput = 1.0\n')
    args = ["--policy", "unlimited", "--model", "mine", "--config", str(file)]
    code, found = ask("simulate", str(transcript), *args)
    assert code == 0
    figures = found["policies"]["unlimited"]
    # It has no rates for the cache, so these are as for plain input.
    assert figures["dollars"] == pytest.approx(figures["input_tokens"] * 1e-6, rel=1e-3)


def test_on_a_narrow_terminal(tty: Tty, transcript: Path) -> None:
    with contextlib.redirect_stdout(tty):
        app(["simulate", str(transcript), "--budget", "5000"], standalone_mode=False)
    shown = tty.getvalue()
    assert "hits" in shown
    assert "░" in shown


def test_a_terminal_that_knows_only_ascii(transcript: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "perdure", "simulate", str(transcript), "--budget", "5000"],
        env={**os.environ, "PYTHONIOENCODING": "ascii"},
        check=True,
        capture_output=True,
        text=True,
    )
    assert "Cost: # what was new to the cache, - what was read from it" in done.stdout


@pytest.mark.parametrize(
    ("args", "words"),
    [
        (["absent.jsonl"], "There is no absent.jsonl."),
        (["empty.jsonl"], "empty.jsonl holds no transcript of a known format."),
        (["empty.jsonl", "--format", "codex"], "Nothing was said in empty.jsonl."),
        (
            ["empty.jsonl", "--budget", "499"],
            "A budget of 499 tokens is too small: 500 are needed. Give 500 or",
        ),
        (["empty.jsonl", "--prices", "acme"], "There are no cache rules called 'acme'. Use one of"),
        (["empty.jsonl", "--model", "acme"], "anthropic has no model 'acme' with a known price."),
        (["empty.jsonl", "--policy", "hope"], "There is no policy called 'hope'. Use one of"),
        (["empty.jsonl", "--format", "acme"], "There is no importer for 'acme'."),
    ],
)
def test_what_cannot_be_simulated(
    args: list[str], words: str, run: Run, ask: Ask, home: Path
) -> None:
    (home / "empty.jsonl").touch()
    result = run("simulate", *args)
    assert (result.exit_code, result.stdout) == (1, "")
    assert result.stderr.startswith("perdure: ")
    assert result.stderr.count("\n") == 1
    assert words in result.stderr
    assert words.startswith(ask("simulate", *args)[1]["error"]["message"][:20])


def test_a_prompt_that_is_larger_than_the_budget(run: Run, transcript: Path) -> None:
    write(transcript, Claude().turn("many words " * 1_000, "Yes."))
    result = run("simulate", str(transcript), "--budget", "600")
    assert result.exit_code == 1
    assert "A budget of 600 tokens is too small: 2,0" in result.stderr


def test_no_bank_is_made(run: Run, transcript: Path, home: Path) -> None:
    assert run("simulate", str(transcript), "--policy", "unlimited").exit_code == 0
    assert not list(home.iterdir())


def test_the_guide(run: Run, home: Path) -> None:
    """Its commands run on what its example wrote, and its tables name every figure."""
    with asyncio.Runner() as runner:
        for code, _ in blocks(GUIDE, "python"):
            execute(code, {"__name__": "guide"}, runner)
    lines = [line for code, _ in blocks(GUIDE, "console") for line in code.splitlines()]
    results = [run(*shlex.split(line)[2:]) for line in lines]
    assert [(each.exit_code, each.stderr) for each in results] == [(0, "")] * 2
    found = json.loads(results[1].stdout)
    words = GUIDE.read_text("utf-8")
    for name in {*found, *found["policies"], *found["policies"]["gradient"]}:
        assert re.search(rf"`{name}\b", words), name


@pytest.mark.slow
@pytest.mark.skipif(not DATA.is_dir(), reason="the transcripts for measuring are not here")
def test_real_transcripts(ask: Ask) -> None:
    code, found = ask("simulate", str(DATA / "codex"), "--budget", "30000")
    assert code == 0
    policies = found["policies"]
    assert found["requests"] > 100
    assert policies["unlimited"]["hit_ratio"] > 0.98
    assert {each["prefix_violations"] for each in policies.values()} == {0}
    assert policies["drop_oldest"]["cost"] > 2 * policies["drop_half"]["cost"]
    # What is recalled stays until an epoch, and is paid for.
    assert policies["gradient_thrifty"]["cost"] < 1.1 * policies["rolling_summary"]["cost"]
    # The price of a full window: see docs/why.md.
    assert policies["gradient"]["cost"] < 1.5 * policies["rolling_summary"]["cost"]
    assert policies["gradient"]["fill_mean"] > policies["gradient_thrifty"]["fill_mean"]
    assert policies["gradient"]["max_tokens"] <= 30_000
    assert policies["gradient"]["covered"] == 1.0
