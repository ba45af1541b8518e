"""Bytes on disk per byte of text with every level made: the log, S and C of rounds, T of turns.

The text is counted as in `disk_turns`. Nothing is asked of a model, and nothing is composed: what
epochs keep depends on how a session is used.
"""

from __future__ import annotations

from pathlib import Path

from benchmarks import disk_turns, ours, transcripts
from benchmarks.harness import Report, bytes_in, work_folder
from benchmarks.importing import import_all


async def run(report: Report, *, quick: bool) -> None:
    del quick  # it is done once, and the transcripts are what they are
    report.figures["ratio"] = None
    given = transcripts.found(report)
    if given is None:
        return
    with work_folder() as name:
        file = Path(name) / "bank.db"
        await import_all(file, given)
        async with ours.open_bank(file) as bank:
            for info in await bank.sessions(archived=True):
                session = await bank.existing_session(info.name)
                await bank.services.renditions.catch_up(session.record)
            await bank.settle()
            missing = sum(each.missing for each in await bank.services.renditions.status())
        stored = bytes_in(Path(name))
        text = await disk_turns.text_in(file)
        async with ours.open_bank(file) as bank:
            sizes = {each.collection: each for each in (await bank.info()).collections}
    report.figures["ratio"] = round(stored / text, 3)
    report.figures["missing"] = missing
    report.say(f"  {text:,} bytes of text, {stored:,} bytes on our disk, {missing} rounds missing")
    for each in sorted(sizes.values(), key=lambda each: -(each.bytes or 0))[:6]:
        report.say(f"    {each.collection}: {each.rows:,} rows, {each.bytes:,} bytes")
