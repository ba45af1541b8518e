"""Stored bytes per byte of text, with the dictionary that ships and without one.

Messages of several sizes are written, as a user would; then the same values are compressed each on
its own. None of them was there when the dictionary was trained. Keys and indexes are left out: see
disk_records.
"""

from __future__ import annotations

from typing import Annotated

import msgspec
import zstandard

from benchmarks.harness import Report
from benchmarks.texts import Texts
from perdure import Compressed, Key, record
from perdure.storage.backends.memory import MemoryAdapter
from perdure.storage.compression import Compression
from perdure.storage.options import DEFAULT
from perdure.storage.store import Store

SIZES = (128, 512, 1_024, 4_096)
#: Messages of each size.
COUNT = 1_000


@record("dictionary_messages")
class Message(msgspec.Struct, frozen=True):
    id: Annotated[str, Key()]
    text: Annotated[str, Compressed()]


async def run(report: Report, *, quick: bool) -> None:
    alone = zstandard.ZstdCompressor(level=3)
    for size in SIZES:
        texts = Texts(size).messages(100 if quick else COUNT, size)
        messages = [Message(f"{n:06d}", text) for n, text in enumerate(texts)]
        plain = sum(len(message.text.encode()) for message in messages)
        async with Store(MemoryAdapter("memory://"), middleware=[Compression()]) as store:
            await store.collection(Message).put_many(messages)
            keys = [message.id for message in messages]
            rows = await store.adapter.get("dictionary_messages", keys, DEFAULT)
        with_one = sum(len(row.value) for row in rows if row is not None) / plain
        encoded = [msgspec.msgpack.encode(message) for message in messages]
        without = sum(min(len(each), len(alone.compress(each))) for each in encoded) / plain
        found = report.figures[str(size)] = {
            "with": round(with_one, 3),
            "without": round(without, 3),
            "ratio": round(with_one / without, 3),
        }
        report.say(f"  {size:5,} bytes: {found['with']} with, {found['without']} without")
