"""`Capability.ERASURE`: what was deleted can be made unreadable.

Files cannot be inspected here; these checks show that scrubbing harms nothing.
"""

from __future__ import annotations

import asyncio

from perdure.core.errors import Closed
from perdure.storage.adapter import Capability
from perdure.testing.conformance.bench import Bench
from perdure.testing.conformance.trials import check, refused, same


@check(Capability.ERASURE)
async def scrubbing_keeps_what_is_there(bench: Bench) -> None:
    """After scrubbing, rows that were not deleted are as they were, and those that were are gone.

    It may be done twice.
    """
    table = await bench.table()
    names = [f"{number % 3}/{number}" for number in range(30)]
    await table.add(*(table.put(name, name.encode() * 1_000, kind=name) for name in names))
    await table.add(*(table.delete(name) for name in names[::2]))
    before = [await table.get(name) for name in names]
    for _ in range(2):
        await table.adapter.scrub()
        same([await table.get(name) for name in names], before, "the rows")
    same([row is None for row in before], [True, False] * 15, "what is gone")
    same(await table.commit(table.put(names[1])), [2], "the version of the next write")


@check(Capability.ERASURE)
async def scrubbing_lets_others_work(bench: Bench) -> None:
    """Reads and writes that come while the store is scrubbed are carried out."""
    table = await bench.table()
    await table.commit(table.put("one", b"before"))
    names = [f"{number}" for number in range(20)]
    _, versions, *values = await asyncio.gather(
        table.adapter.scrub(),
        asyncio.gather(*(table.commit(table.put(name, name.encode())) for name in names)),
        *(table.value("one") for _ in range(20)),
    )
    same(versions, [[1]] * 20, "the versions")
    same(values, [b"before"] * 20, "what was read meanwhile")
    same(await table.values(names), [name.encode() for name in names], "what was written")


@check(Capability.ERASURE)
async def scrubbing_ends_with_the_store(bench: Bench) -> None:
    """A closed store is not scrubbed: it raises `Closed`."""
    table = await bench.table()
    await table.adapter.close()
    with refused(Closed):
        await table.adapter.scrub()
