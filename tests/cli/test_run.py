"""``perdure run`` and ``perdure runs``."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from perdure.cli.run_commands import CODES
from tests.cli.conftest import Ask, Run
from tests.patience import VARIABLES

AGENT = Path(__file__).parent.parent / "agents" / "scripted_agent.py"
CONTINUE = {"status": "continue", "summary": "a part"}
DONE = {"status": "done", "summary": "all of it"}


@pytest.fixture
def agent(home: Path, tmp_path: Path) -> Any:
    (home / "SPEC.md").write_text("Build the attic.")
    (home / "TASKS.md").write_text("- [ ] one\n- [ ] two\n")
    plan = tmp_path / "aside" / "plan.json"
    plan.parent.mkdir()

    def planned(*steps: dict[str, Any]) -> list[str]:
        plan.write_text(json.dumps(steps))
        return ["--", sys.executable, str(AGENT), str(plan)]

    return planned


def test_a_run_its_transcripts_and_its_list(run: Run, ask: Ask, agent: Any) -> None:
    command = agent({"tick": 1, "record": CONTINUE}, {"tick": 1, "record": DONE})
    options = ["--tasks", "TASKS.md", "--log", "LOG.md", "--check", "true", "--max-runs", "5"]
    done = run("run", "SPEC.md", *options, *command)
    assert done.exit_code == 0, done.stderr
    assert "done. all of it" in done.stdout
    assert "2 of 5 runs, unknown costs of 2" in done.stdout
    assert "2: run 2 of at most 5 begins" in done.stderr
    _, listed = ask("runs")
    (record,) = listed["runs"]
    assert (record["status"], record["iterations"]) == ("done", 2)
    _, shown = ask("runs", record["id"])
    assert [each["phase"] for each in shown["iterations"]] == ["decided", "decided"]
    assert "continue" in run("runs", record["id"][-6:]).stdout
    assert record["id"] in run("runs").stdout
    assert "I worked on it." in run("show", record["session"]).stdout
    _, sessions = ask("sessions")
    assert sessions["sessions"][0]["turns"] == 2


def test_its_exit_code_says_how_it_stopped(run: Run, ask: Ask, agent: Any) -> None:
    question = {"status": "needs_feedback", "question": "Which colour?"}
    steps = [{"record": question}, {"record": CONTINUE}, {"tick": 2, "record": DONE}]
    asked = run("run", "SPEC.md", *agent(*steps))
    assert asked.exit_code == CODES["needs_feedback"]
    assert "Which colour?" in asked.stdout
    assert "--feedback" in asked.stdout
    capped = run("run", "--resume", "--feedback", "Green.", "--max-runs", "2")
    assert capped.exit_code == CODES["capped"]
    assert " --max-runs 4\n" in capped.stdout  # else it would stop again at once
    code, result = ask("run", "--resume", "--max-runs", "9", "--max-cost", "2.5")
    assert (code, result["run"]["status"]) == (0, "done")


@pytest.mark.parametrize(
    "words",
    [
        ["SPEC.md", "--max-runs", "0"],
        ["SPEC.md", "--max-cost", "0"],
        ["SPEC.md", "--max-hours", "inf"],
        ["SPEC.md", "--feedback", "x"],
        ["none.md"],
        ["SPEC.md"],
        ["--resume"],
        [],
    ],
)
def test_what_cannot_be_done_is_said(run: Run, agent: Any, words: list[str]) -> None:
    command = agent({"record": DONE}) if words not in (["SPEC.md"], ["--resume"], []) else []
    result = run("run", *words, *command)
    assert result.exit_code in {1, 2}
    assert "Traceback" not in result.stderr
    assert result.stderr.strip()


def test_a_run_is_resumed_with_its_own_command(run: Run, agent: Any) -> None:
    assert run("run", "--resume", "run-x", *agent({"record": DONE})).exit_code == 1


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_the_agent_and_the_run_can_be_resumed(
    home: Path, run: Run, agent: Any, tmp_path: Path, number: signal.Signals
) -> None:
    command = agent({"wait_for": "never"}, {"tick": 2, "record": DONE})
    process = subprocess.Popen(
        [sys.executable, "-m", "perdure", "run", "SPEC.md", *command],
        cwd=home,
        env={**os.environ, **VARIABLES},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    waiting, limit = tmp_path / "aside" / "waiting", time.monotonic() + 100
    while not waiting.exists() and time.monotonic() < limit:
        time.sleep(0.02)
    process.send_signal(number)
    out, err = process.communicate(timeout=100)
    assert process.returncode == CODES["stopped"], err
    assert "stopped. It was interrupted." in out
    assert "costs not known yet" in out
    with pytest.raises(ProcessLookupError):
        os.kill(int(waiting.read_text()), 0)
    assert run("run", "--resume").exit_code == 0
