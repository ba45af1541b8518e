"""S, C and T by the algorithm: how fast, and what appends notice of it.

`mb_per_s` is of the functions alone, one pass over the transcripts, text counted as in
`disk_turns`; `mb_per_s_stored` is of the scribe, which reads turns, packs and stores what it makes.
Both are by the seconds that cores worked, so that whoever else uses them does not matter.

Then turns are appended one by one with a pause behind each, as agents do, while hundreds of others
wait to be shortened in the same process, and while none do. The bank works in pauses, and waits for
up to 0.4 s where they tend to be short: ours are shorter and longer, so that many an append comes
while it works. Either way what was appended itself is shortened, too. How many were made meanwhile
is told: without any it would be easy.
"""

from __future__ import annotations

import asyncio
import random
from pathlib import Path
from time import perf_counter, process_time, thread_time

from benchmarks import conversations, ours, transcripts
from benchmarks.disk_turns import text_in, text_of
from benchmarks.harness import (
    Block,
    Report,
    alternate,
    growth,
    percentile,
    work_folder,
)
from benchmarks.importing import import_all
from benchmarks.transcripts import Transcripts
from benchmarks.turns_said import Told, told
from examples.made_up_project import project_turn
from perdure.bank import Bank
from perdure.core.tokens import o200k
from perdure.history.renditions import algorithm
from perdure.history.renditions.rendition_records import Rendition, Tiny
from perdure.storage.collection import Collection

_MB = 1_000_000
#: Seconds between two appends, at least and at most.
_PAUSES = (0.02, 0.7)
#: Turns that are appended at once to be shortened later.
_MANY = 50
_APPENDING, _WAITING = "bench/appending", "bench/waiting"


async def run(report: Report, *, quick: bool) -> None:
    report.figures["mb_per_s"] = report.figures["mb_per_s_stored"] = None
    given = transcripts.found(report)
    if given is not None:
        _functions(report, await told(given))
        await _stored(report, given)
    await _appends(report, quick=quick)


def _functions(report: Report, turns: list[Told]) -> None:
    for number in range(1, 11):  # so that nothing is loaded on the clock
        _shorten(Told(number, [tuple(project_turn(number))]))
    parts = [turns[start::10] for start in range(10)]
    sizes, seconds = list[int](), list[float]()
    for part in parts:
        start = thread_time()
        for turn in part:
            _shorten(turn)
        seconds.append(thread_time() - start)
        sizes.append(sum(text_of(turn.messages) for turn in part))
    speeds = [size / _MB / took for size, took in zip(sizes, seconds, strict=True) if size]
    report.figures["mb_per_s"] = round(sum(sizes) / _MB / sum(seconds), 3)
    report.spread["mb_per_s"] = [round(percentile(speeds, share), 3) for share in (0.1, 0.9)]
    report.say(f"  {sum(sizes) / _MB:.2f} MB of text in {sum(seconds):.2f} s of one core")


def _shorten(turn: Told) -> None:
    for number, messages in enumerate(turn.rounds, 1):
        algorithm.both(messages, f"T-{turn.number}.{number}")
    algorithm.tiny(turn.rounds, o200k())


async def _stored(report: Report, given: Transcripts) -> None:
    with work_folder() as name:
        file = Path(name) / "bank.db"
        await import_all(file, given)
        text = await text_in(file)
        async with ours.open_bank(file) as bank:
            # They are views: what is deleted is made again.
            await _empty(bank.collection(Rendition))
            await _empty(bank.collection(Tiny))
            sessions = [await bank.existing_session(s.name) for s in await bank.sessions()]
            wall, start = perf_counter(), process_time()
            for session in sessions:
                await bank.services.renditions.catch_up(session.record)
            took, wall = process_time() - start, perf_counter() - wall
    report.figures["mb_per_s_stored"] = round(text / _MB / took, 3)
    report.say(f"  {text / _MB:.2f} MB stored in {took:.2f} s of a core, {wall:.2f} s in all")


async def _empty(collection: Collection[Rendition] | Collection[Tiny]) -> None:
    while found := (await collection.list(limit=200)).values:
        await collection.delete_many([each.id for each in found])


async def _appends(report: Report, *, quick: bool) -> None:
    rounds, count, waiting = (1, 3, 10) if quick else (6, 25, 1_500)
    with work_folder() as name:
        async with ours.open_bank(Path(name) / "bank.db") as bank:
            contest = _Contest(bank, count, waiting)
            contestants = {"none waiting": contest.calm, "many waiting": contest.busy}
            tallies = await alternate(contestants, rounds, quick=quick)
    report.tallies(tallies)
    calm, busy = tallies.values()
    report.ratio("append_ratio", growth(calm, busy, 0.95))
    report.figures["made_meanwhile"] = round(contest.made / (rounds + 1), 1)
    report.say(f"  {contest.made / (rounds + 1):.0f} of {waiting} turns shortened meanwhile")


class _Contest:
    """Appends to one session of a bank, while turns of another one wait or not."""

    def __init__(self, bank: Bank, count: int, waiting: int) -> None:
        self._bank = bank
        self._count = count
        self._waiting = waiting
        self._told = 0
        #: Turns of the other session that were shortened while we appended.
        self.made = 0

    async def calm(self, number: int) -> Block:
        await self._bank.settle()
        return await self._appended(number)

    async def busy(self, number: int) -> Block:
        await self._bank.settle()
        session = await self._bank.session(_WAITING)
        before = await self._bank.collection(Tiny).query().prefix(f"{_WAITING}/").count()
        for _ in range(0, self._waiting, _MANY):
            numbers = range(self._told + 1, self._told + _MANY + 1)
            await session.append([m for each in numbers for m in project_turn(each)])
            self._told += _MANY
        block = await self._appended(1_000 + number)
        after = await self._bank.collection(Tiny).query().prefix(f"{_WAITING}/").count()
        self.made += after - before
        return block

    async def _appended(self, number: int) -> Block:
        session, samples = await self._bank.session(_APPENDING), list[float]()
        pauses = random.Random(number)
        for turn in conversations.turns(self._count, number):
            start = perf_counter()
            await session.append(turn)
            samples.append(perf_counter() - start)
            await asyncio.sleep(pauses.uniform(*_PAUSES))
        return Block(sum(samples), samples)
