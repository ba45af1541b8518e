"""A hundred thousand records from their first schema to their third, plain and compressed.

The new declaration also wants an index: its columns are filled as the records are rewritten. Then
every record is looked at once more, for what old code may have written meanwhile. All of it counts.
How late the event loop is meanwhile tells what others in the process notice of it.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from time import perf_counter
from typing import Annotated, Any

import msgspec

from benchmarks import ours
from benchmarks.harness import Report, millis, percentile, ticking, work_folder
from benchmarks.texts import Texts
from perdure import Compressed, Indexed, Key, record
from perdure.storage.record_migrations import migrate

RECORDS = 100_000
SIZE = 700
_SESSIONS = 20
#: Texts that are made; records share them.
_TEXTS = 2_000
_BATCH = 500


@record("migrated_messages")
class Old(msgspec.Struct, frozen=True):
    id: Annotated[str, Key()]
    text: str


def _add_role(data: dict[str, Any]) -> dict[str, Any]:
    return data | {"role": "user"}


def _add_words(data: dict[str, Any]) -> dict[str, Any]:
    return data | {"words": data["text"].count(" ") + 1}


_STEPS = (_add_role, _add_words)


@record("migrated_messages", migrations=_STEPS)
class Plain(msgspec.Struct, frozen=True):
    id: Annotated[str, Key()]
    text: str
    role: str
    words: Annotated[int, Indexed()]


@record("migrated_messages", migrations=_STEPS)
class Packed(msgspec.Struct, frozen=True):
    id: Annotated[str, Key()]
    text: Annotated[str, Compressed()]
    role: str
    words: Annotated[int, Indexed()]


async def run(report: Report, *, quick: bool) -> None:
    count = 400 if quick else RECORDS
    texts = Texts(0).messages(min(count, _TEXTS), SIZE)
    with work_folder() as folder:
        for name, cls in (("plain", Plain), ("compressed", Packed)):
            file = Path(folder) / f"{name}.db"
            await _write(file, count, texts)
            seconds, stalls = await _migrated(file, cls, count)
            report.figures[f"seconds_{name}"] = round(seconds, 2)
            report.figures[f"records_per_s_{name}"] = round(count / seconds)
            report.figures[f"stall_p99_ms_{name}"] = millis(percentile(stalls, 0.99))
            report.say(
                f"  {count:,} records, {name}: {seconds:.1f} s, {count / seconds:,.0f} a second;"
                f" the event loop late by {millis(percentile(stalls, 0.99))} ms (p99)"
            )


async def _write(file: Path, count: int, texts: Sequence[str]) -> None:
    async with ours.open_bank(file) as bank:
        old = bank.collection(Old)
        for start in range(0, count, _BATCH):
            numbers = range(start, min(start + _BATCH, count))
            await old.put_many(
                Old(f"session-{n % _SESSIONS:02d}/{n:08d}", texts[n % len(texts)]) for n in numbers
            )


async def _migrated(file: Path, cls: type[msgspec.Struct], count: int) -> tuple[float, list[float]]:
    stalls = [0.0]
    async with ours.open_bank(file) as bank:
        start = perf_counter()
        async with ticking(stalls):
            (done,) = await migrate(bank.store, cls)
        seconds = perf_counter() - start
    assert done.migrated == count
    assert done.is_complete
    return seconds, stalls
