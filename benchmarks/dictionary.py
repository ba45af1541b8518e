"""Stored bytes per byte of text, with a trained dictionary and without one.

Messages of several sizes are written to a collection that trains its dictionary by itself, as for
any user. What counts is the second half: none of it was there when the dictionary was trained. The
same values are then compressed each on its own. Keys and indexes are left out: see disk_records.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Annotated

import msgspec

from benchmarks.harness import Report, alternate, awaited, ratio
from benchmarks.texts import Texts
from perdure import Compressed, Key, record
from perdure.storage.backends.memory import MemoryAdapter
from perdure.storage.compression import Compression
from perdure.storage.options import DEFAULT
from perdure.storage.store import Store

SIZES = (128, 512, 1_024, 4_096)
#: Messages of each size; the first half may be learnt from.
COUNT = 2_000


@record("dictionary_messages")
class Message(msgspec.Struct, frozen=True):
    id: Annotated[str, Key()]
    text: Annotated[str, Compressed()]


class Contestant:
    """A collection in memory, which may learn or not."""

    def __init__(self, *, learns: bool) -> None:
        self._learns = learns
        self._compression = Compression()
        self.store = Store(MemoryAdapter("memory://"), middleware=[self._compression])
        self.messages = self.store.collection(Message)

    async def learn(self, messages: Sequence[Message]) -> None:
        for at in range(0, len(messages), 50):
            await self.messages.put_many(messages[at : at + 50])
            if self._learns:
                await self._compression.train()

    async def stored(self, messages: Iterable[Message]) -> int:
        await self.messages.put_many(messages)
        keys = [message.id for message in messages]
        rows = await self.store.adapter.get(self.messages.name, keys, DEFAULT)
        return sum(len(row.value) for row in rows if row is not None)


async def run(report: Report, *, quick: bool) -> None:
    count = 200 if quick else COUNT
    for size in SIZES:
        texts = Texts(size).messages(count, size)
        messages = [Message(f"{n:06d}", text) for n, text in enumerate(texts)]
        first, second = messages[: count // 2], messages[count // 2 :]
        plain = sum(len(message.text.encode()) for message in second)
        learnt, alone = Contestant(learns=True), Contestant(learns=False)
        async with learnt.store, alone.store:
            await learnt.learn(first)
            with_one = await learnt.stored(second) / plain
            without = await alone.stored(second) / plain
            times = await alternate(
                {
                    "with": lambda _: awaited(learnt.messages.put, second),  # noqa: B023
                    "without": lambda _: awaited(alone.messages.put, second),  # noqa: B023
                },
                1 if quick else 5,
                quick=quick,
            )
        report.figures[str(size)] = {
            "with": round(with_one, 3),
            "without": round(without, 3),
            "ratio": round(with_one / without, 3),
            "write_time": ratio(times["with"], times["without"]).value,
        }
        found = report.figures[str(size)]
        report.say(
            f"  {size:5,} bytes: {found['with']} with, {found['without']} without;"
            f" writing takes {found['write_time']} of the time"
        )
