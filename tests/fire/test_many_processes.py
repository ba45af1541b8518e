"""Eight processes write one bank at the same time."""

from __future__ import annotations

import pytest

import perdure
from tests.conftest import DURABLE
from tests.fire.records import Counter, Entry, Mirror, entry, mirror
from tests.fire.worker import BATCH, TOTAL
from tests.fire.zygote import Zygote

PROCESSES = 8
TIMES = 15


@pytest.mark.slow
@pytest.mark.parametrize("store_url", DURABLE, indirect=True)
async def test_eight_processes_write_one_bank(store_url: str, zygote: Zygote) -> None:
    # They also open it at the same time, and find nothing there.
    workers = [
        zygote.start("share", store_url, name=f"p{number}", times=TIMES)
        for number in range(PROCESSES)
    ]
    for number, worker in enumerate(workers):
        told = worker.wait()
        assert told == ["ready", *(f"p{number}/{time}" for time in range(TIMES))]

    own = [f"p{number}/{time}" for number in range(PROCESSES) for time in range(TIMES)]
    pairs = [f"p{number}/pair/{time}" for number in range(PROCESSES) for time in range(TIMES)]
    async with perdure.open(store_url) as bank:
        entries = bank.collection(Entry)
        assert await entries.get_many(own) == [entry(key) for key in own]
        assert await entries.get_many(pairs) == [entry(key) for key in pairs]
        assert await bank.collection(Mirror).get_many(pairs) == [mirror(key) for key in pairs]
        total = await bank.collection(Counter).fetch(TOTAL)
        assert total is not None
        assert total.value.value == PROCESSES * TIMES
        assert total.version == PROCESSES * TIMES

        shared = await entries.query().prefix("shared/").execute()
        assert len(shared) == BATCH
        assert len({item.value.number for item in shared}) == 1, "one batch is the last, whole"
        assert {item.version for item in shared} == {PROCESSES * TIMES}
        assert await entries.query().count() == len(own) + len(pairs) + BATCH
        assert await entries.query().where("number", "=", TIMES - 1).count() == BATCH

        events, _ = await bank.store.adapter.events("", 10_000)
        assert len(events) == len(pairs)
        assert [problem async for problem in bank.verify()] == []
