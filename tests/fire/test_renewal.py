"""Dictionaries are replaced while other processes write, and by processes that are killed."""

from __future__ import annotations

import asyncio
import random

import pytest

from tests.conftest import DURABLE
from tests.fire.compressing import Compressing
from tests.fire.records import entry
from tests.fire.zygote import Zygote

KILLS = 8


@pytest.mark.parametrize("store_url", DURABLE, indirect=True)
async def test_one_process_renews_while_others_write(store_url: str, zygote: Zygote) -> None:
    async with Compressing(store_url) as process:
        keys = await process.prepare()
        writers = [zygote.start("put_compressed", store_url, name=f"w{n}") for n in range(2)]
        for writer in writers:
            assert writer.listen(10, 5)
        renewing = zygote.start("renew", store_url, times=4, rows=30)
        told = await asyncio.to_thread(renewing.wait)
        assert [line.count("deleted=1") for line in told] == [0, 1, 1, 1, 1]
        keys.append("stop")
        await process.entries.put(entry("stop"))
        for writer in writers:
            keys += await asyncio.to_thread(writer.wait)
        await process.assert_holds(keys)
        await process.assert_renewed()
    async with Compressing(store_url) as another:
        await another.assert_holds(keys)


@pytest.mark.parametrize(
    "store_url", ["sqlite", pytest.param("postgresql", marks=pytest.mark.repeated)], indirect=True
)
def test_a_renewal_that_is_killed_leaves_everything_readable(
    store_url: str, zygote: Zygote
) -> None:
    dice = random.Random("renewals")
    interrupted = 0

    async def prepare() -> list[str]:
        async with Compressing(store_url) as process:
            return await process.prepare()

    async def audit(*, finish: bool) -> int:
        async with Compressing(store_url) as process:
            await process.assert_holds(keys)
            left = await process.dictionaries()
            if finish:
                await process.compression.finish()
                await process.assert_renewed()
                await process.assert_holds(keys)
            return left

    keys = asyncio.run(prepare())
    for number in range(10 * KILLS):
        if number >= KILLS and interrupted:
            break  # on a busy machine, chance may take longer
        worker = zygote.start("renew", store_url, times=1_000, rows=10)
        worker.listen(10, 1 + dice.randrange(2))
        worker.listen(dice.uniform(0, 0.2), 1_000)
        worker.kill()
        # Not always finished: the next one also has to cope with what this one left.
        interrupted += asyncio.run(audit(finish=number % 3 == 0)) > 1
    assert interrupted, "no kill came in the middle"
    asyncio.run(audit(finish=True))
