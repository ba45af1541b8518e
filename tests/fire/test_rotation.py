"""Keys are replaced while other processes write, and by processes that are killed."""

from __future__ import annotations

import asyncio
import random

import pytest

from perdure.core.errors import KeyRefused
from tests.conftest import DURABLE
from tests.fire.sealing import Sealing, master, secret
from tests.fire.zygote import Zygote

KILLS = 6
OLD, NEW = master(0), master(1)

killing = pytest.mark.parametrize(
    "store_url", ["sqlite", pytest.param("postgresql", marks=pytest.mark.repeated)], indirect=True
)


async def prepare(url: str) -> list[str]:
    keys = [f"{agent}/{number:03d}" for agent in ("ada", "bob") for number in range(60)]
    async with Sealing(url, [OLD]) as process:
        await process.secrets.put_many([secret(key) for key in keys])
    return keys


@pytest.mark.slow
@pytest.mark.parametrize("store_url", DURABLE, indirect=True)
async def test_some_processes_rotate_while_others_write(store_url: str, zygote: Zygote) -> None:
    keys = await prepare(store_url)
    both = [NEW, OLD]
    writers = [
        zygote.start("put_sealed", store_url, masters=both, name=f"w{number}")
        for number in range(2)
    ]
    for writer in writers:
        assert await asyncio.to_thread(writer.listen, 10, 5)
    rotating = zygote.start("rotate", store_url, masters=both, times=2, rows=30)
    wrapping = zygote.start("rotate", store_url, masters=both, times=2, rows=30, wrap=True)
    told = await asyncio.to_thread(rotating.wait)
    assert [line.count("failed=0") for line in told] == [0, 1, 1]
    await asyncio.to_thread(wrapping.wait)
    async with Sealing(store_url, both) as process:
        await process.secrets.put(secret("stop"))
        keys.append("stop")
        for writer in writers:
            keys += await asyncio.to_thread(writer.wait)
        await process.encryption.rotate_master()
        await process.encryption.rotate_data_keys()
        await process.assert_rotated()
    async with Sealing(store_url, [NEW]) as another:
        await another.assert_holds(keys)


@pytest.mark.slow
@killing
def test_a_rotation_of_data_keys_that_is_killed(store_url: str, zygote: Zygote) -> None:
    dice = random.Random("data keys")
    interrupted = 0

    async def audit(*, finish: bool) -> int:
        async with Sealing(store_url, [OLD]) as process:
            await process.assert_holds(keys)
            left = await process.old_keys()
            if finish:
                done = await process.encryption.rotate_data_keys()
                assert (done.failed, done.kept) == (0, 0)
                await process.assert_rotated()
                await process.assert_holds(keys)
            return left

    keys = asyncio.run(prepare(store_url))
    for number in range(KILLS):
        worker = zygote.start("rotate", store_url, masters=[OLD], times=1_000, rows=10)
        worker.listen(10, 1 + dice.randrange(2))
        worker.listen(dice.uniform(0, 0.2), 1_000)
        worker.kill()
        # Not always finished: the next one also has to cope with what this one left.
        interrupted += asyncio.run(audit(finish=number % 3 == 0)) > 0
    assert interrupted, "no kill came in the middle"
    asyncio.run(audit(finish=True))


@pytest.mark.slow
@killing
def test_a_rotation_of_the_master_key_that_is_killed(store_url: str, zygote: Zygote) -> None:
    dice = random.Random("master keys")
    mixed = 0

    async def many_agents() -> None:
        async with Sealing(store_url, [OLD]) as process:
            await process.secrets.put_many([secret(key) for key in more])

    async def audit(masters: list[str]) -> int:
        async with Sealing(store_url, masters) as process:
            await process.assert_holds(keys)
            return len(await process.masters())

    more = [f"agent{number}/1" for number in range(30)]
    keys = asyncio.run(prepare(store_url)) + more
    asyncio.run(many_agents())
    for number in range(KILLS):
        masters = [master(number + 1), master(number)]
        worker = zygote.start("rotate", store_url, masters=masters, times=1, rows=10, wrap=True)
        worker.listen(10, 1 + dice.randrange(len(more)))
        worker.kill()
        mixed += asyncio.run(audit(masters)) > 1
        # Again, to its end: afterwards the former key is not needed any more.
        zygote.start("rotate", store_url, masters=masters, times=1, rows=10, wrap=True).wait()
        assert asyncio.run(audit(masters[:1])) == 1
    assert mixed, "no kill came in the middle"
    with pytest.raises(KeyRefused):
        asyncio.run(audit([OLD]))


@pytest.mark.parametrize("store_url", DURABLE, indirect=True)
async def test_wrong_missing_and_former_master_keys(store_url: str) -> None:
    keys = await prepare(store_url)
    for wrong in ([NEW], [master(5), NEW]):
        async with Sealing(store_url, wrong) as process:
            for work in (
                process.secrets.get(keys[0]),
                process.secrets.put(secret(keys[0])),
                process.secrets.query().values(),
                process.encryption.rotate_data_keys(),
                process.encryption.rotate_master(),
            ):
                with pytest.raises(KeyRefused, match="is wrapped with the master key") as caught:
                    await work
                assert "encryption.former_keys" in caught.value.hint
    async with Sealing(store_url, []) as process:
        with pytest.raises(KeyRefused, match="returned none"):
            await process.secrets.get(keys[0])
    # Nothing was lost or changed by it.
    async with Sealing(store_url, [OLD]) as process:
        await process.assert_rotated()
        await process.secrets.put(secret(keys[0]))
    async with Sealing(store_url, [NEW, OLD]) as process:
        await process.assert_holds(keys)
        await process.encryption.rotate_data_keys()
        await process.assert_rotated()
        await process.assert_holds(keys)
