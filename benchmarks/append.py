"""One durable record of 700 bytes, with 1k, 10k and 100k records already there.

Every block is removed again, off the clock, so that the banks keep their sizes. "Strong" is our
write with an fsync of its own; the peer always does one. The event loop's stalls are watched in
blocks of their own, because watching takes time as well.
"""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack
from functools import partial
from pathlib import Path

from benchmarks import ours, peers, raw
from benchmarks.arena import BENCH, SIZE, Arena, made, open_arena
from benchmarks.harness import (
    Block,
    Contestant,
    Report,
    Tally,
    alternate,
    awaited,
    called,
    growth,
    merged,
    percentile,
    ratio,
    ticking,
    together,
    work_folder,
)
from benchmarks.ours import Message
from perdure.storage.options import STRONG

TASKS = 20


async def run(report: Report, *, quick: bool) -> None:
    records = (40, 80, 160) if quick else (1_000, 10_000, 100_000)
    rounds, count = (2, 20) if quick else (20, 1_000)
    with work_folder() as folder, peers.running(report) as peer:
        async with AsyncExitStack() as stack:
            arenas = [
                await stack.enter_async_context(open_arena(Path(folder), size, peer))
                for size in records
            ]
            contestants = {
                f"{name}, {arena.records:,} records": contestant
                for arena in arenas
                for name, contestant in _contestants(arena, count).items()
            }
            compressing = await stack.enter_async_context(
                open_arena(Path(folder), records[1], None, compression=True)
            )
            for name, contestant in _contestants(compressing, count).items():
                if name in ("ours", "ours 20 tasks"):
                    contestants[f"{name}, compressed"] = contestant
            tallies = await alternate(contestants, rounds, quick=quick)
            idle, busy = await _stalls(arenas[-1], count, rounds)

    def of(name: str) -> list[Tally]:
        return [tallies[key] for size in records if (key := f"{name}, {size:,} records") in tallies]

    bare, default, strong = merged(of("raw")), merged(of("ours")), merged(of("ours strong"))
    report.ratio("ratio_to_raw", ratio(default, bare))
    report.ratio("ratio_to_raw_concurrent", ratio(merged(of("ours 20 tasks")), bare))
    packed, packed_tasks = tallies["ours, compressed"], tallies["ours 20 tasks, compressed"]
    bare_there = tallies[f"raw, {records[1]:,} records"]
    report.ratio("ratio_to_raw_compressed", ratio(packed, bare_there))
    report.ratio("ratio_to_raw_concurrent_compressed", ratio(packed_tasks, bare_there))
    theirs = merged(of("peer")) if peer is not None else None
    report.ratio("ratio_to_best_peer", None if theirs is None else ratio(default, theirs))
    report.ratio("ratio_to_best_peer_strong", None if theirs is None else ratio(strong, theirs))
    smallest, *_, largest = of("ours")
    report.ratio("growth", growth(smallest, largest, 0.95))
    report.figures["loop_stall_ms_p99"] = round(percentile(busy, 0.99) * 1e3, 3)
    report.figures["loop_stall_ms_max"] = round(max(busy) * 1e3, 3)
    report.figures["loop_stall_ms_p99_idle"] = round(percentile(idle, 0.99) * 1e3, 3)
    report.tallies(tallies)


def _contestants(arena: Arena, count: int) -> dict[str, Contestant]:
    synced = max(count // 10, 1)  # an fsync takes ten times as long as the rest

    async def bare(number: int) -> Block:
        rows = raw.pairs(BENCH, arena.texts(number, count))
        block = called(arena.raw.insert, rows)
        arena.raw.clear(BENCH)
        return block

    async def default(number: int) -> Block:
        records = ours.messages(BENCH, arena.texts(number, count))
        block = await awaited(arena.collection.put, records)
        await arena.clear()
        return block

    async def tasks(number: int) -> Block:
        block = await together(arena.collection.put, _lanes(arena.texts(number, count)))
        await arena.clear()
        return block

    async def strong(number: int) -> Block:
        records = ours.messages(BENCH, arena.texts(number, synced))
        block = await awaited(partial(arena.collection.put, options=STRONG), records)
        await arena.clear()
        return block

    async def theirs(number: int) -> Block:
        block = arena.timed("append", session=BENCH, made=made(synced, SIZE, number))
        arena.ask("clear", session=BENCH)
        return block

    contestants: dict[str, Contestant] = {
        "raw": bare,
        "ours": default,
        "ours 20 tasks": tasks,
        "ours strong": strong,
    }
    if arena.peer is not None:
        contestants["peer"] = theirs
    return contestants


def _lanes(texts: list[str]) -> list[list[Message]]:
    """The messages shared out to the tasks, each with a session of its own."""
    return [ours.messages(f"{BENCH}/{task:02d}", texts[task::TASKS]) for task in range(TASKS)]


async def _stalls(arena: Arena, count: int, rounds: int) -> tuple[list[float], list[float]]:
    """How late the event loop is when nothing happens, and during appends of both kinds."""
    idle: list[float] = []
    busy: list[float] = []
    async with ticking(idle):
        await asyncio.sleep(0.02 * rounds)
    for number in range(rounds):
        texts = arena.texts(number, count)
        records = ours.messages(BENCH, texts)
        async with ticking(busy):
            await awaited(arena.collection.put, records)
            await together(arena.collection.put, _lanes(texts))
        await arena.clear()
    return idle, busy
