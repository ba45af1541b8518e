"""Twenty records in one call, all or none, to a bank of 10k."""

from __future__ import annotations

from functools import partial
from pathlib import Path

from benchmarks import ours, raw
from benchmarks.arena import BENCH, Arena, open_arena
from benchmarks.harness import (
    Block,
    Contestant,
    Report,
    alternate,
    awaited,
    called,
    ratio,
    work_folder,
)

BATCH = 20


async def run(report: Report, *, quick: bool) -> None:
    records, rounds, count = (40, 2, 5) if quick else (10_000, 40, 50)
    with work_folder() as folder:
        async with (
            open_arena(Path(folder), records, None) as arena,
            open_arena(Path(folder), records, None, compression=True) as compressing,
        ):

            async def bare(number: int) -> Block:
                rows = raw.pairs(BENCH, arena.texts(number, count * BATCH))
                block = called(arena.raw.insert_many, _batches(rows))
                arena.raw.clear(BENCH)
                return block

            async def put_in(place: Arena, number: int) -> Block:
                messages = ours.messages(BENCH, place.texts(number, count * BATCH))
                block = await awaited(place.collection.put_many, _batches(messages))
                await place.clear()
                return block

            contestants: dict[str, Contestant] = {
                "raw": bare,
                "ours": partial(put_in, arena),
                "ours compressed": partial(put_in, compressing),
            }
            tallies = await alternate(contestants, rounds, quick=quick)
    report.ratio("ratio_to_raw", ratio(tallies["ours"], tallies["raw"]))
    report.ratio("ratio_to_raw_compressed", ratio(tallies["ours compressed"], tallies["raw"]))
    report.tallies(tallies)


def _batches(items: list) -> list[list]:
    return [items[start : start + BATCH] for start in range(0, len(items), BATCH)]
