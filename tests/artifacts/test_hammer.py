"""Writers and collectors in several processes, at the same few contents, some of them killed."""

from __future__ import annotations

import asyncio
import os
import random
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from perdure.artifacts import ArtifactStore, place_of
from perdure.storage.backends.sqlite import SQLiteAdapter
from perdure.storage.store import Store
from tests.artifacts.hammer import bank_at
from tests.artifacts.papers import Paper

ROOT = Path(__file__).parents[2]
#: Seconds; at length under `make fuzz`.
LENGTH = 60.0 if os.environ.get("HYPOTHESIS_PROFILE") == "fuzz" else 4.0


class Hammers:
    """Processes at work on one bank."""

    def __init__(self, bank: Path, place: str) -> None:
        self._bank = bank
        self._place = place
        self._started: list[subprocess.Popen[str]] = []

    def start(self, role: str, name: str, *more: str) -> subprocess.Popen[str]:
        process = subprocess.Popen(
            [
                *(sys.executable, "-m", "tests.artifacts.hammer", role, name),
                *(str(self._bank), self._place, *more),
            ],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            cwd=ROOT,
            env={**os.environ, "PYTHONPATH": f"{ROOT / 'src'}:{ROOT}"},
        )
        self._started.append(process)
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        return process

    def end(self, process: subprocess.Popen[str]) -> str:
        """Tell it to stop; what it says at the end."""
        said, _ = process.communicate(timeout=60)
        return said.strip()

    def kill(self, process: subprocess.Popen[str]) -> None:
        process.kill()
        process.communicate()

    def dispose(self) -> None:
        for process in self._started:
            if process.poll() is None:
                self.kill(process)


@pytest.fixture
def where(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "disk":
        return str(tmp_path / "artifacts")
    return str(request.getfixturevalue("s3_url"))


@pytest.fixture
def hammers(tmp_path: Path, where: str) -> Iterator[Hammers]:
    hammers = Hammers(tmp_path / "bank.db", where)
    yield hammers
    hammers.dispose()


@pytest.mark.repeated
@pytest.mark.parametrize("where", ["disk", "s3"], indirect=True)
async def test_nothing_that_is_referred_to_is_ever_collected(
    hammers: Hammers, where: str, tmp_path: Path
) -> None:
    dice = random.Random(7)
    writers = [hammers.start("writer", f"w{number}") for number in range(2)]
    steady = hammers.start("collector", "steady")
    deadline, kills = time.monotonic() + LENGTH, 0
    while time.monotonic() < deadline:
        doomed = hammers.start("collector", "doomed")
        await asyncio.sleep(dice.uniform(0.1, 0.5))
        hammers.kill(doomed)
        kills += 1
    said = [hammers.end(process) for process in (*writers, steady)]
    assert all(line.startswith("done ") for line in said), said
    rounds = [int(line.split()[1]) for line in said]
    assert all(rounds), said  # everybody got something done, the collector too
    assert kills > 1

    async with Store(SQLiteAdapter(f"sqlite:///{tmp_path}/bank.db")) as store:
        artifacts = ArtifactStore(store, place_of(where))
        assert [fault async for fault in artifacts.check(referred=True)] == []
        for paper in (await store.collection(Paper).list(limit=100)).values:
            assert paper.body is not None
            assert len(await artifacts.read(paper.body)) == paper.body.size


@pytest.mark.repeated
@pytest.mark.parametrize("where", ["disk"], indirect=True)
async def test_turns_keep_what_they_say_and_forgetting_deletes_it(
    hammers: Hammers, where: str, tmp_path: Path
) -> None:
    tellers = [hammers.start("teller", f"t{number}") for number in range(3)]
    collector = hammers.start("collector", "steady")
    await asyncio.sleep(LENGTH)
    said = [hammers.end(process) for process in (*tellers, collector)]
    assert all(line.startswith("done ") for line in said), said
    assert all(int(line.split()[1]) for line in said[:-1]), said

    async with bank_at(str(tmp_path / "bank.db"), where) as bank:
        assert [fault async for fault in bank.artifacts.check(referred=True)] == []
        for number in range(len(tellers)):
            await bank.forget_agent(f"t{number}")
        # Of two who tell the same at once, one may take the other's content for somebody's own,
        # and then it stays. Nothing stays that nobody refers to.
        left = {found.artifact async for found in bank.artifacts.located()}
        named = [each.name for tagged in left for each in await bank.artifacts.references(tagged)]
        assert named == ["whoever put it before a turn used it"] * len(left)
