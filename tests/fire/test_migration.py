"""Migrations and new indexes, in processes that are killed, beside others that go on writing."""

from __future__ import annotations

import asyncio
import os
import random

import pytest

from tests.conftest import DURABLE
from tests.fire import migrants
from tests.fire.migrants import Program, outcome
from tests.fire.zygote import Zygote

#: `make fuzz` takes more.
KILLS = 40 if os.environ.get("HYPOTHESIS_PROFILE") == "fuzz" else 6
#: Of so many records, one fails.
MANY = {"sqlite": 10_000, "postgresql": 2_000}

long_on_postgresql = pytest.mark.parametrize(
    "store_url", ["sqlite", pytest.param("postgresql", marks=pytest.mark.repeated)], indirect=True
)


def prepare(url: str, count: int) -> list[str]:
    """Letters of the first program; returns their keys."""
    keys = [f"early/{number:05d}" for number in range(count)]

    async def write() -> None:
        async with Program(url) as program:
            for start in range(0, count, 500):
                await program.write(keys[start : start + 500])

    asyncio.run(write())
    return keys


async def audit(url: str, keys: list[str], *, migrated: bool) -> None:
    async with Program(url) as program:
        if migrated:
            await program.assert_migrated(keys)
        else:
            await program.assert_readable(keys)


@pytest.mark.slow
@pytest.mark.parametrize("store_url", DURABLE, indirect=True)
def test_a_migration_that_is_killed_again_and_again(store_url: str, zygote: Zygote) -> None:
    dice = random.Random("migrations")
    keys = prepare(store_url, 100 * KILLS)
    interrupted = 0
    for _ in range(KILLS):
        worker = zygote.start("migrate_letters", store_url, rows=10, failing=[])
        worker.listen(10, 2 + dice.randrange(20))
        worker.listen(dice.uniform(0, 0.02))
        lines = worker.kill()
        interrupted += not lines[-1].startswith("{")
        asyncio.run(audit(store_url, keys, migrated=False))
    assert interrupted, "no kill came in the middle"
    done = outcome(zygote.start("migrate_letters", store_url, rows=100, failing=[]).wait())
    assert done.is_complete
    asyncio.run(audit(store_url, keys, migrated=True))


@long_on_postgresql
def test_a_function_that_fails_on_one_record_of_many(store_url: str, zygote: Zygote) -> None:
    many = MANY[store_url.partition(":")[0]]
    keys = prepare(store_url, many)
    bad = keys[many * 3 // 4]
    done = outcome(zygote.start("migrate_letters", store_url, rows=100, failing=[bad]).wait())
    assert (done.migrated, done.failed, done.left) == (many - 1, 1, 0)
    (failure,) = done.failures
    assert failure.key == bad
    assert "from schema 1 to 2: ZeroDivisionError: a letter without weight" in failure.what
    again = outcome(zygote.start("migrate_letters", store_url, rows=100, failing=[bad]).wait())
    assert (again.migrated, again.failed) == (0, 1)
    mended = outcome(zygote.start("migrate_letters", store_url, rows=100, failing=[]).wait())
    assert (mended.migrated, mended.failed) == (1, 0)
    asyncio.run(audit(store_url, keys, migrated=True))


@long_on_postgresql
def test_two_migrate_while_old_and_new_code_writes(store_url: str, zygote: Zygote) -> None:
    keys = prepare(store_url, 600)
    old = zygote.start("write_letters", store_url, name="old", old=True)
    assert old.listen(10, 5)  # it runs before the new schema is known, and goes on
    new = zygote.start("write_letters", store_url, name="new", old=False)
    assert new.listen(10, 5)
    both = [zygote.start("migrate_letters", store_url, rows=20, failing=[]) for _ in range(2)]
    for worker in both:
        assert outcome(worker.wait()).failed == 0
    asyncio.run(_stop(store_url))
    keys += old.wait()[1:] + new.wait()[1:]
    last = outcome(zygote.start("migrate_letters", store_url, rows=100, failing=[]).wait())
    assert last.is_complete
    asyncio.run(audit(store_url, sorted(set(keys)), migrated=True))


async def _stop(url: str) -> None:
    async with Program(url) as program:
        await program.stop_writers()


@pytest.mark.parametrize("store_url", DURABLE, indirect=True)
def test_an_index_is_added_while_old_code_writes(store_url: str, zygote: Zygote) -> None:
    keys = prepare(store_url, 600)
    old = zygote.start("write_letters", store_url, name="old", old=True)
    assert old.listen(10, 5)
    new = zygote.start("index_letters", store_url, rows=20)
    assert new.listen(20, 2), new.lines
    old.listen(0.3)
    asyncio.run(_stop(store_url))
    keys += old.wait()[1:]
    assert new.wait()[-1] == "done"
    asyncio.run(_audit_index(store_url, sorted(set(keys))))


async def _audit_index(url: str, keys: list[str]) -> None:
    async with Program(url) as program:
        await program.assert_indexed(keys)


@pytest.mark.slow
@pytest.mark.parametrize("store_url", DURABLE, indirect=True)
def test_whoever_adds_an_index_is_killed_again_and_again(store_url: str, zygote: Zygote) -> None:
    dice = random.Random("indexes")
    keys = prepare(store_url, 100 * KILLS)
    old = zygote.start("write_letters", store_url, name="old", old=True)
    assert old.listen(10, 5)
    interrupted = 0
    for number in range(KILLS):
        new = zygote.start("index_letters", store_url, rows=10)
        assert new.listen(10, 1)
        if number:  # the first at once: before it is done
            new.listen(dice.uniform(0, 0.15))
        interrupted += "declared" not in new.kill()
    assert interrupted, "no kill came in the middle"
    asyncio.run(_stop(store_url))
    keys += old.wait()[1:]
    asyncio.run(_audit_index(store_url, sorted(set(keys))))


def test_the_texts_of_letters_differ() -> None:
    """Or the tests above would prove little."""
    texts = {migrants.short(f"early/{number:05d}") for number in range(600)}
    assert len(texts) > 100
