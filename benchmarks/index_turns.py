"""What recall's index adds to an append, and how long 100k turns take to be indexed and embedded.

The turns are those of `append_turn`: a prompt, a tool call, its 4 KB result, and the answer; two
rounds each. Both banks are as they come, except that one has recall switched off, and take turns.
What is done in the background, vectors among it, is waited for after each block, off the clock.

For the second figure a bank is filled with recall switched off, opened with it, and timed until
everything has its words and its vector in the index: of talk, a prompt and its answer, and of turns
with tools. What a bank does in the background otherwise goes on beside it.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from time import perf_counter

import perdure
from benchmarks.conversations import Chat, bulk, turns
from benchmarks.harness import Block, Contestant, Report, alternate, awaited, excess, work_folder
from perdure.bank import Bank
from perdure.config import Config, RecallConfig
from perdure.history.log_records import Head
from perdure.sessions.session import Session

_SESSION = "bench/index"
#: Turns in one append while a bank is filled.
_FILL = 1_000


async def run(report: Report, *, quick: bool) -> None:
    there, rounds, count = (20, 2, 5) if quick else (2_000, 16, 100)
    with work_folder() as name:
        await _added(report, Path(name), there, rounds, count, quick=quick)
    for kind, size in (("talk", 200 if quick else 100_000), ("tools", 100 if quick else 5_000)):
        with work_folder() as name:
            seconds = await _filled(report, Path(name) / "bank.db", kind, size)
        report.figures["seconds_100k" if kind == "talk" else "seconds_5k_tools"] = seconds


async def _added(
    report: Report, folder: Path, there: int, rounds: int, count: int, *, quick: bool
) -> None:
    """By how much an append takes longer with the index."""
    async with _bank(folder / "with.db") as ours, _bank(folder / "without.db", on=False) as bare:
        contestants = {
            "with recall": _appending(ours, await _grown(ours, there), count),
            "without": _appending(bare, await _grown(bare, there), count),
        }
        tallies = await alternate(contestants, rounds, quick=quick)
    report.ratio("p50_added_ms", excess(tallies["with recall"], tallies["without"], 0.5))
    report.ratio("p95_added_ms", excess(tallies["with recall"], tallies["without"], 0.95))
    report.tallies(tallies)


def _appending(bank: Bank, session: Session, count: int) -> Contestant:
    async def block(number: int) -> Block:
        found = await awaited(session.append, turns(count, number))
        await bank.settle()
        return found

    return block


async def _filled(report: Report, file: Path, kind: str, size: int) -> float:
    """Seconds until so many turns that nobody indexed are found by words and by meaning."""
    async with _bank(file, on=False) as bank:
        session = await bank.session(_SESSION)
        await _fill(session, bulk(size, 7, talk=kind == "talk"))
    async with _bank(file) as bank:
        start = perf_counter()
        await bank.index.settle()
        seconds = perf_counter() - start
        state = await bank.index.check()
        head = await bank.collection(Head).get(_SESSION)
    assert head is not None
    assert head.turn == size
    assert not state.missing
    assert not state.unembedded
    report.say(
        f"  {size:,} turns ({kind}), {state.documents:,} passages indexed and embedded"
        f" in {seconds:.1f} s"
    )
    return round(seconds, 2)


async def _grown(bank: Bank, size: int) -> Session:
    session = await bank.session(_SESSION)
    await _fill(session, bulk(size, 5))
    await bank.settle()
    return session


async def _fill(session: Session, said: Sequence[list[Chat]]) -> None:
    for start in range(0, len(said), _FILL):
        await session.append([chat for turn in said[start : start + _FILL] for chat in turn])


def _bank(file: Path, *, on: bool = True) -> Bank:
    return perdure.open(f"sqlite:///{file}", config=Config(recall=RecallConfig(on=on)))
