"""`Capability.VERSIONS`: expected versions are checked; two writers never both win."""

from __future__ import annotations

import asyncio
from typing import NamedTuple

from perdure.core.errors import Conflict
from perdure.storage.adapter import Capability
from perdure.testing.conformance.bench import Bench, KitTable
from perdure.testing.conformance.trials import check, check_each, holds, refused, same


class Expectation(NamedTuple):
    """A record that was written so often, and what a writer expects of it."""

    written: int
    expected: int
    delete: bool = False


MET = {
    "absent": Expectation(0, 0),
    "first": Expectation(1, 1),
    "third": Expectation(3, 3),
    "absent_delete": Expectation(0, 0, delete=True),
    "first_delete": Expectation(1, 1, delete=True),
}
NOT_MET = {
    "exists": Expectation(1, 0),
    "absent": Expectation(0, 1),
    "old": Expectation(3, 2),
    "ahead": Expectation(1, 2),
    "exists_delete": Expectation(1, 0, delete=True),
    "absent_delete": Expectation(0, 1, delete=True),
    "old_delete": Expectation(2, 1, delete=True),
}


async def _write(table: KitTable, case: Expectation) -> list[int]:
    if case.delete:
        return await table.commit(table.delete("one", case.expected))
    return await table.commit(table.put("one", b"ours", expected=case.expected))


@check_each(Capability.VERSIONS, cases=MET)
async def met(bench: Bench, case: Expectation) -> None:
    """A write whose expected version is the record's goes through; 0 means that there is none."""
    table = await bench.table()
    await table.add(*[table.put("one", b"theirs")] * case.written)
    same(await _write(table, case), [0 if case.delete else case.written + 1], "the version")
    same(await table.value("one"), None if case.delete else b"ours")


@check_each(Capability.VERSIONS, cases=NOT_MET)
async def not_met(bench: Bench, case: Expectation) -> None:
    """A write with another expected version raises `Conflict`, which says what was found, and
    changes nothing.
    """
    table = await bench.table()
    await table.add(*[table.put("one", b"theirs")] * case.written)
    before = await table.get("one")
    with refused(Conflict) as caught:
        await _write(table, case)
    same(
        [(exc.collection, exc.key, exc.expected, exc.found) for exc in caught],
        [(table.layout.name, table.key("one"), case.expected, case.written)],
        "what the conflict says",
    )
    same(await table.get("one"), before, "the row")


@check(Capability.VERSIONS)
async def deleted_is_absent(bench: Bench) -> None:
    """A deleted record is absent: its last version is no longer met, 0 is."""
    table = await bench.table()
    await table.add(table.put("one"), table.put("one"), table.delete("one"))
    with refused(Conflict):
        await table.commit(table.put("one", expected=2))
    same(await table.commit(table.put("one", expected=0)), [1], "the version")


@check(Capability.VERSIONS)
async def one_creator_wins(bench: Bench) -> None:
    """Of many who create the same record at once, exactly one does."""
    table = await bench.table()
    outcomes = await asyncio.gather(
        *(table.commit(table.put("one", b"%d" % n, expected=0)) for n in range(16)),
        return_exceptions=True,
    )
    winners = [n for n, outcome in enumerate(outcomes) if outcome == [1]]
    losers = [outcome for outcome in outcomes if isinstance(outcome, Conflict)]
    same((len(winners), len(losers)), (1, 15), "the numbers of winners and losers")
    same(await table.value("one"), b"%d" % winners[0], "the record")


@check(Capability.VERSIONS)
async def no_update_is_lost(bench: Bench) -> None:
    """Writers who read, add one, and write with the version they read, lose no addition."""
    table = await bench.table()
    await table.commit(table.put("sum", b"0"))

    async def add_one() -> None:
        while True:
            row = await table.get("sum")
            holds(row, "the record vanished")
            assert row is not None
            await asyncio.sleep(0)
            number = b"%d" % (int(row.value) + 1)
            try:
                await table.commit(table.put("sum", number, expected=row.version))
            except Conflict:
                continue
            return

    await asyncio.gather(*(add_one() for _ in range(20)))
    row = await table.get("sum")
    same(row and (row.value, row.version), (b"20", 21))
