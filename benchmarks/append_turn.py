"""A turn of four messages with a 4 KB tool result, with 1k, 3k and 10k turns already there.

Ours are Chat Completions dicts; each peer is given what it likes best. "Strong" is our append with
an fsync of its own; the peers do one for each. Turns are never removed, so a session of 1k ends as
one of 2.5k; so does the peer's.

Tokens are counted after the append, when the process has nothing else to do. What that takes is
timed by itself, as everything that `settle` does after a block, and once more as part of a ratio.
"""

from __future__ import annotations

from contextlib import AsyncExitStack
from functools import partial
from pathlib import Path
from time import perf_counter

from benchmarks import peers
from benchmarks.conversations import MESSAGES, Chat
from benchmarks.harness import (
    Block,
    Contestant,
    Report,
    Tally,
    alternate,
    awaited,
    growth,
    merged,
    micros,
    ratio,
    work_folder,
)
from benchmarks.stage import SESSION, Stage, fastest, heats, open_stage
from perdure.storage.options import STRONG


async def run(report: Report, *, quick: bool) -> None:
    sizes = (4, 8, 16) if quick else (1_000, 3_000, 10_000)
    rounds, count, heat_count = (2, 3, 1) if quick else (10, 50, 5)
    with work_folder() as name, peers.all_running(report) as everyone:
        folder = Path(name)
        heat = await heats(
            folder,
            everyone,
            sizes[0],
            "append",
            quick=quick,
            session=SESSION,
            made={"kind": "turns", "count": heat_count, "seed": 1},
        )
        best = fastest(everyone, heat)
        async with AsyncExitStack() as stack:
            stages = [
                await stack.enter_async_context(open_stage(folder, size, best)) for size in sizes
            ]
            finals = [_Final(stage, count) for stage in stages]
            contestants = {
                f"{who}, {final.stage.turns:,} turns": contestant
                for final in finals
                for who, contestant in final.contestants().items()
            }
            apart = [f"{who} apart, {sizes[1]:,} turns" for who in ("ours", "peer")]
            contestants |= dict(zip(apart, finals[1].apart(), strict=False))
            tallies = await alternate(contestants, rounds, quick=quick)

    def of(who: str) -> list[Tally]:
        return [tallies[key] for size in sizes if (key := f"{who}, {size:,} turns") in tallies]

    appended, theirs = merged(of("ours")), merged(of("peer")) if best is not None else None
    settled = merged(final.settled(rounds) for final in finals)
    for metric, mine in (
        ("ratio_to_best_peer", appended),
        ("ratio_to_best_peer_strong", merged(of("ours strong"))),
        ("ratio_to_best_peer_settled", settled),
    ):
        report.ratio(metric, None if theirs is None else ratio(mine, theirs))
    singly = [tallies[who] for who in apart if who in tallies]
    report.ratio("ratio_to_best_peer_apart", ratio(*singly) if best is not None else None)
    smallest, *_, largest = of("ours")
    report.ratio("growth", growth(smallest, largest, 0.95))
    report.figures["counting_us_per_turn"] = micros(settled.mean - appended.mean)
    report.figures["best_peer"] = None if best is None else best.name
    others = {f"{peers.NAMES[who]}, {sizes[0]:,} turns": tally for who, tally in heat.items()}
    report.tallies(tallies | others)


class _Final:
    """Our session and the best peer's, with so many turns."""

    def __init__(self, stage: Stage, count: int) -> None:
        self.stage = stage
        self._count = count
        self._synced = max(count * 2 // 5, 1)  # an fsync takes longer than the rest
        self._blocks: dict[int, Block] = {}
        self._settling: dict[int, float] = {}

    def contestants(self) -> dict[str, Contestant]:
        found: dict[str, Contestant] = {"ours": self._default, "ours strong": self._strong}
        return found if self.stage.peer is None else {**found, "peer": self._theirs}

    def apart(self) -> list[Contestant]:
        """Ours and, if there is one, the peer's, four calls for a turn."""
        return [self._apart, *([self._theirs_apart] if self.stage.peer is not None else [])]

    def settled(self, rounds: int) -> Tally:
        """Our appends with what `settle` took after them."""
        tally = Tally()
        for number in range(1, rounds + 1):
            block = self._blocks[number]
            tally.blocks.append(Block(block.seconds + self._settling[number], block.samples))
        return tally

    async def _default(self, number: int) -> Block:
        turns = self.stage.new_turns(number, self._count)
        block = self._blocks[number] = await awaited(self.stage.session.append, turns)
        start = perf_counter()
        await self.stage.bank.settle()
        self._settling[number] = perf_counter() - start
        return block

    async def _strong(self, number: int) -> Block:
        turns = self.stage.new_turns(-number, self._synced)
        append = partial(self.stage.session.append, options=STRONG)
        block = await awaited(append, turns)
        await self.stage.bank.settle()
        return block

    async def _apart(self, number: int) -> Block:
        async def append(turn: list[Chat]) -> None:
            for message in turn:
                await self.stage.session.append([message])

        block = await awaited(append, self.stage.new_turns(100 + number, self._synced))
        await self.stage.bank.settle()
        return block

    async def _theirs(self, number: int) -> Block:
        return self.stage.append(number, self._synced)

    async def _theirs_apart(self, number: int) -> Block:
        return self.stage.append(100 + number, max(self._synced // MESSAGES, 1), apart=True)
