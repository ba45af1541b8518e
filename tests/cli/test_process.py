"""The command as a process: pipes, terminals, signals."""

from __future__ import annotations

import json
import os
import pty
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

import perdure

PERDURE = [sys.executable, "-m", "perdure"]
ROOT = Path(__file__).parents[2]


def test_from_making_a_bank_to_verifying_it() -> None:
    def call(*args: str) -> str:
        done = subprocess.run([*PERDURE, *args], capture_output=True, text=True, check=True)
        assert not done.stderr
        return done.stdout

    assert call("--version") == f"perdure {perdure.__version__}\n"
    assert call("bank", "init").startswith("Made a bank at ")
    assert json.loads(call("bank", "info", "--json"))["backend"] == "SQLiteAdapter"
    assert json.loads(call("verify", "--json"))["ok"]
    assert json.loads(call("doctor", "--json"))["ok"]


def test_an_error_is_one_line() -> None:
    done = subprocess.run([*PERDURE, "verify"], capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert not done.stdout
    assert done.stderr.startswith("perdure: There is no bank at ")
    assert done.stderr.count("\n") == 1


def test_debug_adds_a_traceback() -> None:
    done = subprocess.run(
        [*PERDURE, "verify", "--debug"], capture_output=True, text=True, check=False
    )
    assert done.returncode == 1
    assert "Traceback" in done.stderr
    assert done.stderr.splitlines()[-1].startswith("perdure.core.errors.Unavailable: ")


@pytest.mark.parametrize("args", [["--help"], ["bank", "info"], ["bank", "info", "--json"]])
def test_nobody_reads_on(args: list[str], notes: str) -> None:
    reader, writer = os.pipe()
    os.close(reader)
    done = subprocess.run(
        [*PERDURE, *args],
        stdout=writer,
        stderr=subprocess.PIPE,
        env={**os.environ, "PERDURE_BANK": notes},
        check=False,
    )
    os.close(writer)
    assert not done.stderr


def test_streams_that_are_ascii(tmp_path: Path) -> None:
    folder = tmp_path / "café €"
    folder.mkdir()
    env = {**os.environ, "PYTHONIOENCODING": "ascii", "PERDURE_BANK": f"sqlite:///{folder}/bank.db"}
    for args in (["bank", "init"], ["bank", "info"], ["bank", "info", "--json"], ["doctor"]):
        done = subprocess.run([*PERDURE, *args], capture_output=True, env=env, check=True)
        assert done.stdout.isascii()
        assert not done.stderr


def test_control_c(tmp_path: Path) -> None:
    file = tmp_path / "kit.db"
    with subprocess.Popen(
        [*PERDURE, "conformance", f"sqlite:///{file}"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    ) as process:
        deadline = time.monotonic() + 100
        while not file.exists() and time.monotonic() < deadline:
            time.sleep(0.01)
        process.send_signal(signal.SIGINT)
        stdout, stderr = process.communicate(timeout=100)
    assert process.returncode == 130
    assert (stdout, stderr) == (b"", b"")


def test_errors_are_red_on_a_terminal_unless_colours_are_unwanted() -> None:
    assert b"\x1b[31mperdure: " in on_terminal([*PERDURE, "verify"])
    assert b"\x1b" not in on_terminal([*PERDURE, "verify"], NO_COLOR="1")


def test_a_bar_appears_when_work_takes_long() -> None:
    code = """
import asyncio, sys
from perdure.cli import terminal

async def work():
    async with terminal.ProgressBar("counting") as bar:
        for done in range(3):
            await asyncio.sleep(float(sys.argv[1]))
            bar("counting", done, 3)
            bar.pause()
            print("line", done)

terminal.PATIENCE = float(sys.argv[2])
asyncio.run(work())
"""
    assert b"counting" not in on_terminal([sys.executable, "-c", code, "0", "100"])
    shown = on_terminal([sys.executable, "-c", code, "0.2", "0.1"])
    assert b"counting" in shown
    assert b"1/3" in shown
    assert b"line 2" in shown


BELOW = ["Turn", "Secret", "Prune", "Fork", "Model"]
TOURS = {
    # A shorter project than `make run` makes up.
    ("examples.tour", "40"): [
        *("History", "Levels", "Work", "Cache", "Window"),
        *("T-20-R", "T-20-S", "T-20-C", "T-20-T"),
        *("Search", "Fetch", "Assembly", "Disk"),
        *(*BELOW, "Crash", "Verify"),
    ],
    ("examples.storage_tour",): [
        *(*BELOW, "Write", "Read", "Query", "Aggregate", "Transaction"),
        *("Crash", "Artifact", "Verify", "Disk"),
    ],
}


@pytest.mark.slow
@pytest.mark.parametrize(("command", "steps"), TOURS.items())
def test_tours(command: tuple[str, ...], steps: list[str]) -> None:
    printed = example(*command)
    titles = [line[:12].strip() for line in printed.splitlines() if line[12:13] == " "]
    assert [title for title in titles if title in steps] == steps
    assert "OTHER BYTES" not in printed
    assert " s: nothing" not in printed


@pytest.mark.slow
def test_the_email_router_heals_and_gets_cheaper() -> None:
    """What the judge has said by when depends on the machine; where it ends does not."""
    printed = example("examples.email_router")
    said = {line.split()[0]: line for line in printed.splitlines() if line.strip()}
    after = re.search(r"(\d+)% right, \$([\d.]+) for 1,000 emails.* (\d+)% cheaper", said["After"])
    assert after, printed
    right, _, saved = map(float, after.groups())
    assert right >= 90
    assert saved >= 50
    assert "26 emails were routed while a model was down" in said["Healed"]


def example(*command: str) -> str:
    """What an example prints."""
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    done = subprocess.run(
        [sys.executable, "-m", *command],
        cwd=ROOT,
        env=env,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert not done.stderr
    return done.stdout


def on_terminal(command: list[str], **env: str) -> bytes:
    """What a command prints on a terminal, stdout and stderr together."""
    main, side = pty.openpty()
    settings = {**os.environ, "TERM": "xterm-256color", **env}
    settings.pop("NO_COLOR" if "NO_COLOR" not in env else "", None)
    with subprocess.Popen(command, stdin=side, stdout=side, stderr=side, env=settings):
        os.close(side)
        printed = b""
        try:
            while chunk := os.read(main, 65_536):
                printed += chunk
        except OSError:
            pass  # Linux says so when the other side is closed
    os.close(main)
    return printed
