"""The newest 20 turns of a session of 1k and of 10k, decoded to values; 80 messages for a peer.

Beside it, a new process that opens the bank and loads them: all of it, and from `open` on.
"""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
from contextlib import AsyncExitStack
from pathlib import Path
from time import perf_counter

from benchmarks import peers
from benchmarks.conversations import MESSAGES
from benchmarks.harness import Block, Contestant, Report, alternate, awaited, ratio, work_folder
from benchmarks.stage import SESSION, Stage, bank_file, fastest, heats, open_stage

TURNS = 20
_NEW_PROCESS = """
import asyncio, json, sys
import perdure
from perdure.config import Config
from time import perf_counter

async def main():
    start = perf_counter()
    async with perdure.open(sys.argv[1], config=Config()) as bank:
        session = await bank.session(sys.argv[2])
        turns = await session.turns(limit=int(sys.argv[3]))
        print(json.dumps([perf_counter() - start, len(turns)]))

asyncio.run(main())
"""


async def run(report: Report, *, quick: bool) -> None:
    sizes = (25, 50) if quick else (1_000, 10_000)
    rounds, count = (2, 3) if quick else (30, 20)
    with work_folder() as name, peers.all_running(report) as everyone:
        folder = Path(name)
        heat = await heats(
            folder,
            everyone,
            sizes[0],
            "read",
            quick=quick,
            sessions=[SESSION] * (1 if quick else 5),
            limit=TURNS * MESSAGES,
        )
        best = fastest(everyone, heat)
        async with AsyncExitStack() as stack:
            stages = [
                await stack.enter_async_context(open_stage(folder, size, best)) for size in sizes
            ]
            for stage in stages:
                await _check(stage)
            contestants = {
                f"{who}, {stage.turns:,} turns": contestant
                for stage in stages
                for who, contestant in _contestants(stage, count).items()
            }
            tallies = await alternate(contestants, rounds, quick=quick)
        _new_processes(report, bank_file(folder, sizes[-1]), 1 if quick else 5)
    small, large = (tallies[f"ours, {size:,} turns"] for size in sizes)
    theirs = tallies.get(f"peer, {sizes[-1]:,} turns")
    report.ratio("ratio_to_best_peer", None if theirs is None else ratio(large, theirs))
    report.ratio("growth", ratio(large, small))
    report.figures["best_peer"] = None if best is None else best.name
    others = {f"{peers.NAMES[who]}, {sizes[0]:,} turns": tally for who, tally in heat.items()}
    report.tallies(tallies | others)


def _contestants(stage: Stage, count: int) -> dict[str, Contestant]:
    async def newest(limit: int) -> None:
        await stage.session.turns(limit=limit)

    async def mine(_: int) -> Block:
        return await awaited(newest, [TURNS] * count)

    async def theirs(_: int) -> Block:
        return stage.load(count, TURNS * MESSAGES)

    return {"ours": mine} if stage.peer is None else {"ours": mine, "peer": theirs}


async def _check(stage: Stage) -> None:
    """A fast answer has to be the right one."""
    turns = await stage.session.turns(limit=TURNS)
    assert [turn.number for turn in turns] == list(range(stage.turns - TURNS + 1, stage.turns + 1))
    assert all(len(turn.messages) == MESSAGES and turn.tokens for turn in turns)


def _new_processes(report: Report, file: Path, rounds: int) -> None:
    """Open the bank and load, in processes of their own; the first may have had to compile."""
    whole, opened = [], []
    for _ in range(rounds + 1):
        start = perf_counter()
        command = [sys.executable, "-c", _NEW_PROCESS, f"sqlite:///{file}", SESSION, str(TURNS)]
        answer = subprocess.run(command, check=True, capture_output=True, text=True).stdout
        whole.append(perf_counter() - start)
        seconds, turns = json.loads(answer)
        assert turns == TURNS
        opened.append(seconds)
    for metric, taken in (("new_process_s", whole[1:]), ("new_process_open_s", opened[1:])):
        report.figures[metric] = round(statistics.median(taken), 4)
        report.spread[metric] = [round(min(taken), 4), round(max(taken), 4)]
