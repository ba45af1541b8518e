"""Large files, and processes that are killed."""

from __future__ import annotations

import asyncio
import json
import os
import random
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import perdure
from perdure.importers import import_files
from tests.importers.outcomes import everything
from tests.importers.transcripts import SESSION, Claude, lines

pytestmark = pytest.mark.repeated

LONG = os.environ.get("HYPOTHESIS_PROFILE") == "fuzz"
WORKER = [sys.executable, "-m", "tests.importers.worker"]


def worker(url: str, path: Path) -> subprocess.Popen[str]:
    command = [*WORKER, url, "claude-code", str(path)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True)


def large(size: int) -> Iterator[bytes]:
    """A transcript of about this size: mostly progress, and results that stand there twice."""
    claude, written = Claude(), 0
    bloat = "x" * 200_000
    while written < size:
        turn = claude.turn("Go on.", "Gone on.", calls=3)
        for record in turn:
            if "toolUseResult" in record:
                record["toolUseResult"] = {"originalFile": bloat}
        progress = [claude.progress(output=bloat[:4_000]) for _ in range(60)]
        part = lines([*turn, *progress])
        written += len(part)
        yield part


def test_memory_is_bounded_whatever_the_size(tmp_path: Path) -> None:
    size = 2 * 1024**3 if LONG else 48 * 1024**2
    path = tmp_path / f"{SESSION}.jsonl"
    with path.open("wb") as file:
        for part in large(size):
            file.write(part)
        file.write(b'{"type":"user","message":"' + b"y" * (200 * 1024**2 if LONG else 2**20))
    process = worker(f"sqlite:///{tmp_path}/bank.db", path)
    output, _ = process.communicate(timeout=3_000)
    assert process.returncode == 0
    done = json.loads(output.splitlines()[-1])
    assert done["messages"] > size / 1e6
    assert done["grown"] < (600 if LONG else 150) * 1024**2


async def test_a_killed_import_has_lost_and_doubled_nothing(tmp_path: Path) -> None:
    claude, agent = Claude(), Claude(agent="a1")
    records = []
    for number in range(150):
        turn = claude.turn(f"Prompt {number}.", f"Answer {number}." * 20, calls=2)
        for record in turn:
            if "toolUseResult" in record:
                record["message"]["content"][0]["content"] = f"{number} " * 3_000
        records += turn
        if number % 50 == 0:
            records += agent.turn(f"Task {number}.", "Done.")
        if number % 70 == 69:
            records += [
                claude.prompt("Back.", turn[0]["parentUuid"]),
                claude.text(f"b{number}", "ok"),
            ]
    path = tmp_path / f"{SESSION}.jsonl"
    path.write_bytes(lines(records))
    async with perdure.open("memory://") as bank:
        await import_files(bank, "claude-code", [path])
        wanted = await everything(bank)
    url = f"sqlite:///{tmp_path}/bank.db"
    dice, kills = random.Random(7), 0
    for _ in range(40 if LONG else 4):
        process = worker(url, path)
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        await asyncio.sleep(dice.uniform(0.05, 0.4))
        kills += process.poll() is None
        process.kill()
        process.communicate()
    assert kills
    async with perdure.open(url) as bank:
        await import_files(bank, "claude-code", [path])
        assert await everything(bank) == wanted
