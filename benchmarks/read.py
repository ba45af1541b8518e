"""One record by its key, and the newest twenty of a session, at 1k and at 100k records.

Keys and sessions are drawn at random. The peer cannot read one record by key; what comes closest
is the newest record of a session, which is always in its cache.
"""

from __future__ import annotations

import random
from contextlib import AsyncExitStack
from functools import partial
from pathlib import Path

from benchmarks import peers
from benchmarks.arena import SESSIONS, Arena, open_arena
from benchmarks.harness import (
    Block,
    Contestant,
    Report,
    alternate,
    awaited,
    ratio,
    work_folder,
)

PAGE = 20


async def run(report: Report, *, quick: bool) -> None:
    sizes = (400, 800) if quick else (1_000, 100_000)
    rounds, count = (2, 10) if quick else (40, 200)
    with work_folder() as folder, peers.running(report) as peer:
        async with AsyncExitStack() as stack:
            arenas = [
                await stack.enter_async_context(open_arena(Path(folder), size, peer))
                for size in sizes
            ]
            for arena in arenas:
                await _check(arena)
            contestants = {
                f"{name}, {arena.records:,} records": contestant
                for arena in arenas
                for name, contestant in _contestants(arena, count).items()
            }
            packed = await stack.enter_async_context(
                open_arena(Path(folder), sizes[-1], None, compression=True)
            )
            contestants["ours page, compressed"] = _contestants(packed, count)["ours page"]
            tallies = await alternate(contestants, rounds, quick=quick)
    grown = []
    for kind in ("point", "page"):
        small, large = (tallies[f"ours {kind}, {size:,} records"] for size in sizes)
        theirs = tallies.get(f"peer {kind}, {sizes[-1]:,} records")
        report.ratio(f"{kind}_ratio_to_best_peer", None if theirs is None else ratio(large, theirs))
        grown.append(ratio(large, small))
        report.ratio(f"growth_{kind}", grown[-1])
    report.ratio("growth", max(grown))
    theirs = tallies.get(f"peer page, {sizes[-1]:,} records")
    compressed = tallies["ours page, compressed"]
    report.ratio(
        "page_ratio_to_best_peer_compressed", None if theirs is None else ratio(compressed, theirs)
    )
    report.tallies(tallies)


def _contestants(arena: Arena, count: int) -> dict[str, Contestant]:
    get, listed = arena.collection.get, partial(arena.collection.list, limit=PAGE, descending=True)

    def sessions(number: int) -> list[str]:
        return random.Random(number).choices(SESSIONS, k=count)

    async def point(number: int) -> Block:
        rng = random.Random(-number)
        return await awaited(
            get, [f"{name}/{rng.randrange(arena.per_session):08d}" for name in sessions(number)]
        )

    async def page(number: int) -> Block:
        return await awaited(listed, [f"{name}/" for name in sessions(number)])

    async def their_point(number: int) -> Block:
        return arena.timed("read", sessions=sessions(number), limit=1)

    async def their_page(number: int) -> Block:
        return arena.timed("read", sessions=sessions(number), limit=PAGE)

    contestants: dict[str, Contestant] = {"ours point": point, "ours page": page}
    if arena.peer is not None:
        contestants |= {"peer point": their_point, "peer page": their_page}
    return contestants


async def _check(arena: Arena) -> None:
    """A fast answer has to be the right one."""
    last = arena.per_session - 1
    session = SESSIONS[0]
    page = await arena.collection.list(f"{session}/", limit=PAGE, descending=True)
    assert [item.key for item in page.items] == [
        f"{session}/{last - back:08d}" for back in range(PAGE)
    ]
    assert await arena.collection.get(page.items[0].key) == page.values[0]
