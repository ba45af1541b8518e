"""A long project in a bank: told by `perdure.testing`, at every level, kept for whoever asks next.

50 million tokens take minutes to write and to shorten, and two benchmarks look at them. So the file
is made once, by as many processes as there are cores, and lies in `work/` until the code changes
that writes it: its name has a digest of that. Everybody gets a copy, because all write to theirs.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from hashlib import blake2b
from pathlib import Path
from time import perf_counter

import perdure
from benchmarks import ours
from benchmarks.harness import WORK, Report
from examples.made_up_project import fill_project
from perdure.bank import Bank
from perdure.history.manifest import RoundId

SESSION = "team/project"
BUDGET = 100_000
_PREFIX = "project-"
#: What the bytes of the file follow from; what reads them may change.
_WRITERS = (
    *("core", "storage", "artifacts", "history/renditions"),
    *(f"history/{name}.py" for name in ("chain", "intake", "log", "meter", "packing", "records")),
    *("testing/project.py", "testing/project.toml", "testing/project_words.py"),
)
#: Turns that one process shortens before it goes on behind those of the others.
_STRIPE = 240


async def copied(turns: int, folder: Path, report: Report) -> Path:
    """A bank with so many turns, all of them counted and at every level, in this folder."""
    kept = WORK / f"{_PREFIX}{_digest()}" / f"{turns}.db"
    if not kept.exists():
        await _make(kept, turns, report)
    file = folder / kept.name
    shutil.copyfile(kept, file)
    if (artifacts := _artifacts(kept)).exists():
        shutil.copytree(artifacts, _artifacts(file))
    return file


def remove(*, but: Path | None = None) -> None:
    """Give the room back that such files take."""
    for folder in WORK.glob(f"{_PREFIX}*"):
        if folder != but:
            shutil.rmtree(folder)


async def _make(kept: Path, turns: int, report: Report) -> None:
    remove(but=kept.parent)
    kept.parent.mkdir(parents=True, exist_ok=True)
    making = kept.with_suffix(".making")
    for leftover in (making, *kept.parent.glob(f"{making.name}-*")):
        leftover.unlink(missing_ok=True)
    shutil.rmtree(_artifacts(making), ignore_errors=True)
    start = perf_counter()
    async with ours.open_bank(making) as bank:
        await fill_project(await bank.session(SESSION, budget=BUDGET), turns)
    written = perf_counter()
    workers = min(os.cpu_count() or 1, 8, -(-turns // _STRIPE))
    _shorten_all(making, workers)
    async with ours.open_bank(making) as bank:
        await bank.settle()
    report.say(
        f"  {turns:,} turns written in {written - start:.1f} s, shortened by {workers} processes "
        f"in {perf_counter() - written:.1f} s"
    )
    if _artifacts(making).exists():
        _artifacts(making).rename(_artifacts(kept))
    making.rename(kept)


def _shorten_all(file: Path, workers: int) -> None:
    command = (sys.executable, "-m", "benchmarks.long_project", str(file), str(workers))
    processes = [subprocess.Popen([*command, str(number)]) for number in range(workers)]
    codes = [process.wait() for process in processes]
    if any(codes):
        raise SystemExit("the renditions of a long project could not be made")


async def _shorten(bank: Bank, workers: int, number: int) -> None:
    """Make every level of each stripe of turns that is this process's."""
    async with bank:
        session = await bank.existing_session(SESSION)
        head = await session.head()
        for first in range(1 + number * _STRIPE, head.turn + 1, workers * _STRIPE):
            turns = range(first, min(first + _STRIPE, head.turn + 1))
            await bank.services.renditions.refresh(session.record, head, map(RoundId, turns))


def _artifacts(file: Path) -> Path:
    return file.with_name(f"{file.name}.artifacts")


def _digest() -> str:
    digest = blake2b(digest_size=6)
    for file in _sources():
        digest.update(file.read_bytes())
    return digest.hexdigest()


def _sources() -> Iterator[Path]:
    home = Path(perdure.__file__).parent
    for name in _WRITERS:
        place = home / name
        yield from [place] if place.is_file() else sorted(place.rglob("*.py"))


def main() -> None:
    """What one of several processes does."""
    parser = argparse.ArgumentParser()
    parser.add_argument("file", type=Path)
    parser.add_argument("workers", type=int)
    parser.add_argument("number", type=int)
    given = parser.parse_args()
    asyncio.run(_shorten(ours.open_bank(given.file), given.workers, given.number))


if __name__ == "__main__":
    main()
