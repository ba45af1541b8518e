"""Bytes on disk per byte of text with everything: the log, all levels, the index, the vectors.

The text is counted as in `disk_turns`. Nothing is asked of a model, and nothing is composed: what
epochs keep depends on how a session is used. Everything in the folder of the bank counts, its
write-ahead log and what can be made again included; the bank is closed.
"""

from __future__ import annotations

from pathlib import Path

from benchmarks import disk_turns, ours, transcripts
from benchmarks.harness import Report, bytes_in, work_folder
from benchmarks.importing import import_all
from perdure.recall.places import INDEX
from perdure.search.engine import engine_of


async def run(report: Report, *, quick: bool) -> None:
    del quick  # it is done once, and the transcripts are what they are
    report.figures["ratio"] = None
    given = transcripts.found(report)
    if given is None:
        return
    with work_folder() as name:
        file = Path(name) / "bank.db"
        await import_all(file, given)
        async with ours.open_bank(file, recall=True) as bank:
            for info in await bank.sessions(archived=True):
                session = await bank.existing_session(info.name)
                await bank.services.renditions.catch_up(session.record)
            await bank.settle()
            missing = sum(each.missing for each in await bank.services.renditions.status())
            index = await bank.index.check()
        stored = bytes_in(Path(name))
        text = await disk_turns.text_in(file)
        async with ours.open_bank(file, recall=True) as bank:
            await engine_of(bank.store.adapter).erase(INDEX.name)
            await bank.store.adapter.scrub()
        searching = stored - bytes_in(Path(name))
    report.figures["ratio"] = round(stored / text, 3)
    report.figures["ratio_of_index"] = round(searching / text, 3)
    report.figures["missing"] = missing + index.missing + index.unembedded
    report.say(
        f"  {text:,} bytes of text, {stored:,} on our disk; {index.documents:,} passages,"
        f" whose words and vectors take {searching:,}"
    )
