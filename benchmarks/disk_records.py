"""Bytes on disk per byte of text: 10k messages of 1 KB, written one after another, then closed."""

from __future__ import annotations

from pathlib import Path

from benchmarks import ours, peers
from benchmarks.arena import made
from benchmarks.harness import Report, bytes_in, work_folder
from benchmarks.ours import JsonMessage, Message, open_bank
from benchmarks.texts import Texts

SIZE = 1_024
_BARE = "ratio_uncompressed"


async def run(report: Report, *, quick: bool) -> None:
    count = 300 if quick else 10_000
    text = count * SIZE
    with work_folder() as folder, peers.running(report) as peer:
        for metric, kind in (("ratio", Message), ("ratio_json", JsonMessage), (_BARE, Message)):
            home = Path(folder) / metric
            home.mkdir()
            async with open_bank(home / "bank.db", compression=metric != _BARE) as bank:
                collection = bank.collection(kind)
                for message in ours.messages("planner/auth", Texts(1).messages(count, SIZE)):
                    await collection.put(kind(message.id, message.role, message.text))
            report.figures[metric] = round(bytes_in(home) / text, 3)
        report.figures["ratio_best_peer"] = None
        if peer is not None:
            bank_file = str(Path(folder) / "peer.db")
            peer.ask("fill", bank=bank_file, session="auth", made=made(count, SIZE, seed=1))
            report.figures["ratio_best_peer"] = round(peer.ask("close", bank=bank_file) / text, 3)
    report.say(f"  bytes on disk per byte of text, {count:,} messages of {SIZE:,} bytes:")
    for metric, figure in report.figures.items():
        report.say(f"  {metric:20} {figure}")
