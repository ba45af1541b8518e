"""Twenty records in one call, all or none, to a bank of 10k."""

from __future__ import annotations

from pathlib import Path

from benchmarks import ours, raw
from benchmarks.arena import BENCH, open_arena
from benchmarks.harness import Block, Report, alternate, awaited, called, ratio, work_folder

BATCH = 20


async def run(report: Report, *, quick: bool) -> None:
    records, rounds, count = (40, 2, 5) if quick else (10_000, 40, 50)
    with work_folder() as folder:
        async with open_arena(Path(folder), records, None) as arena:

            async def bare(number: int) -> Block:
                rows = raw.pairs(BENCH, arena.texts(number, count * BATCH))
                block = called(arena.raw.insert_many, _batches(rows))
                arena.raw.clear(BENCH)
                return block

            async def default(number: int) -> Block:
                messages = ours.messages(BENCH, arena.texts(number, count * BATCH))
                block = await awaited(arena.collection.put_many, _batches(messages))
                await arena.clear()
                return block

            tallies = await alternate({"raw": bare, "ours": default}, rounds, quick=quick)
    report.ratio("ratio_to_raw", ratio(tallies["ours"], tallies["raw"]))
    report.tallies(tallies)


def _batches(items: list) -> list[list]:
    return [items[start : start + BATCH] for start in range(0, len(items), BATCH)]
