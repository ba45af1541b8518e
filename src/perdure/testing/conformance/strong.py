"""`Capability.STRONG`: writes that insist on it survive the loss of power.

Power cannot be cut here: these checks show that strong writes are accepted beside others, seen at
once, and survive kill -9 once acknowledged.
"""

from __future__ import annotations

import asyncio

from perdure.core.errors import Conflict
from perdure.storage.adapter import Capability
from perdure.storage.options import DEFAULT, STRONG, Consistency, Options
from perdure.testing.conformance.bench import Bench
from perdure.testing.conformance.durable import killed
from perdure.testing.conformance.trials import check, refused, same


@check(Capability.STRONG)
async def strong_writes_are_seen(bench: Bench) -> None:
    """Strong and other writes, at once and one after another, are all carried out in order."""
    table = await bench.table()
    for number in range(6):
        options = STRONG if number % 2 else DEFAULT
        same(await table.commit(table.put("one"), options=options), [number + 1], "the version")
    await asyncio.gather(
        *(
            table.commit(table.put(f"{n}", b"%d" % n), options=DEFAULT if n % 2 else STRONG)
            for n in range(12)
        )
    )
    rows = [await table.get(f"{n}", STRONG) for n in range(12)]
    same([row and row.value for row in rows], [b"%d" % n for n in range(12)], "the rows")


@check(Capability.STRONG, Capability.VERSIONS)
async def strong_writes_are_checked(bench: Bench) -> None:
    """A strong write with an expected version is refused like any other."""
    table = await bench.table()
    await table.commit(table.put("one"), options=STRONG)
    with refused(Conflict):
        await table.commit(
            table.put("one", expected=0), options=Options(consistency=Consistency.STRONG)
        )


@check(Capability.STRONG, Capability.DURABLE)
async def strong_writes_survive_kill(bench: Bench) -> None:
    """After kill -9 every strong write that was acknowledged is there."""
    await killed(bench, 10, strong=True)
