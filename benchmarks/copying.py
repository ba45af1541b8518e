"""A bank of 100k records moved: to PostgreSQL and back, into a backup and out of it.

Records are 700 bytes of text, compressed; MB are of that text. Everything counts: connecting, the
snapshot, one transaction with all records, indexes, the fsync at the end. The check of the target
(`perdure verify`) does not; reading the backup again, which belongs to a backup and to a restore,
does.
"""

from __future__ import annotations

import statistics
import tempfile
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from time import perf_counter

import perdure
from benchmarks import ours
from benchmarks.harness import Report, percentile, postgres_server, work_folder
from benchmarks.texts import Texts
from perdure.bank import Bank
from perdure.bank.backup import backup
from perdure.bank.bank_copy import copy_bank, restore
from perdure.config import ArtifactsConfig, Config

_MB = 1_000_000
_SIZE = 700
_SESSIONS = 20


async def run(report: Report, *, quick: bool) -> None:
    records, rounds = (400, 1) if quick else (100_000, 3)
    with work_folder() as name:
        folder = Path(name)
        config = Config(artifacts=ArtifactsConfig(folder=str(folder / "objects")))
        async with perdure.open(f"sqlite:///{folder / 'source.db'}", config=config) as bank:
            for number in range(_SESSIONS):
                texts = Texts(number).messages(records // _SESSIONS, _SIZE)
                await ours.fill(bank.collection(ours.Message), f"session-{number:02d}", texts)
            await bank.settle()
        server = postgres_server()
        try:
            taken = [
                await _round(Path(place), config, None if server is None else server.url())
                for place in [tempfile.mkdtemp(dir=folder) for _ in range(rounds)]
            ]
        finally:
            if server is not None:
                server.dispose()
    size = records * _SIZE / _MB
    for step in ("to_postgresql", "to_sqlite", "backup", "restore"):
        seconds = [each[step] for each in taken if step in each]
        report.figures[f"{step}_rows_per_s"] = report.figures[f"{step}_mb_per_s"] = None
        if not seconds:
            report.say(f"  {step}: not measured, there is no PostgreSQL")
            continue
        mean = statistics.mean(seconds)
        speeds = [records / each for each in seconds]
        report.figures[f"{step}_rows_per_s"] = round(records / mean)
        report.figures[f"{step}_mb_per_s"] = round(size / mean, 1)
        report.spread[f"{step}_rows_per_s"] = [round(percentile(speeds, p)) for p in (0.1, 0.9)]
        report.say(f"  {step}: {mean:.2f} s, {records / mean:,.0f} rows/s, {size / mean:.1f} MB/s")


async def _round(folder: Path, config: Config, server: str | None) -> dict[str, float]:
    """Seconds of each step."""
    source = f"sqlite:///{folder.parent / 'source.db'}"
    files = [f"sqlite:///{folder / f'{n}.db'}" for n in range(2)]
    taken: dict[str, float] = {}

    async def timed(step: str, work: Callable[[], Awaitable[object]]) -> None:
        start = perf_counter()
        await work()
        taken[step] = perf_counter() - start

    async with _looking(source, config) as bank:
        if server is not None:
            await timed("to_postgresql", lambda: copy_bank(bank.services, server, verify=False))
        await timed("backup", lambda: backup(bank.services, folder / "backup"))
    if server is not None:
        async with _looking(server, config) as bank:
            await timed("to_sqlite", lambda: copy_bank(bank.services, files[0], verify=False))
    await timed(
        "restore", lambda: restore(folder / "backup", files[1], config=config, verify=False)
    )
    return taken


@asynccontextmanager
async def _looking(url: str, config: Config) -> AsyncIterator[Bank]:
    """A bank without background work, as commands open it."""
    bank = perdure.open(url, config=config)
    await bank.store.open()
    try:
        yield bank
    finally:
        await bank.store.close()
