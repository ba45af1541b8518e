"""Transcripts of Claude Code and Codex into a new bank, everything counted and the bank closed.

The files are read from the system's cache: the first of the runs puts them there and does not
count. Beside it, the command does the same in processes of its own, one for each format. What was
imported is shortened later, when the bank is idle: `renditions` measures that.
"""

from __future__ import annotations

import statistics
import subprocess
import sys
from pathlib import Path
from time import perf_counter

from benchmarks import ours, transcripts
from benchmarks.harness import Report, percentile, work_folder
from benchmarks.transcripts import Transcripts
from perdure.importers import import_files

_MB = 1_000_000


async def run(report: Report, *, quick: bool) -> None:
    rounds = 1 if quick else 5
    report.figures["mb_per_s"] = report.figures["mb_per_s_command"] = None
    given = transcripts.found(report)
    if given is None:
        return
    size = given.size / _MB
    with work_folder() as folder:
        taken = [
            await import_all(Path(folder) / f"{number}.db", given) for number in range(rounds + 1)
        ]
        commands = [
            _by_command(Path(folder) / f"command-{number}.db", given)
            for number in range(1 if quick else 3)
        ]
    for metric, seconds in (("mb_per_s", taken[1:]), ("mb_per_s_command", commands)):
        speeds = [size / each for each in seconds]
        report.figures[metric] = round(size / statistics.mean(seconds), 2)
        report.spread[metric] = [round(percentile(speeds, share), 2) for share in (0.1, 0.9)]
    report.say(f"  {size:.1f} MB in {statistics.mean(taken[1:]):.2f} s, mean of {rounds} runs")


async def import_all(file: Path, given: Transcripts) -> float:
    """Import everything into a new bank; the seconds until it is closed, with all counted."""
    start = perf_counter()
    async with ours.open_bank(file) as bank:
        for name, files in given.paths.items():
            await import_files(bank, name, files)
    return perf_counter() - start


def _by_command(file: Path, given: Transcripts) -> float:
    start = perf_counter()
    for name, files in given.paths.items():
        subprocess.run(
            [
                *(sys.executable, "-m", "perdure", "import", name, *map(str, files)),
                *("--bank", f"sqlite:///{file}", "--json"),
            ],
            check=True,
            stdout=subprocess.DEVNULL,
        )
    return perf_counter() - start
