"""`Capability.SHARED`: several processes may have the store open."""

from __future__ import annotations

import asyncio

from perdure.core.errors import Conflict
from perdure.storage.adapter import Capability
from perdure.storage.options import DEFAULT
from perdure.storage.query import Compare, Op, Tagged
from perdure.testing.conformance.bench import Bench, KitTable
from perdure.testing.conformance.trials import check, check_each, refused, same


async def _two(bench: Bench) -> tuple[KitTable, KitTable]:
    one = await bench.table()
    return one, await bench.table(await bench.open())


@check(Capability.SHARED)
async def writes_are_seen_by_others(bench: Bench) -> None:
    """What one acknowledged, another reads from then on: new rows, changes and deletions, also
    in folders and with content types that the other has never met.
    """
    one, other = await _two(bench)
    for number in range(5):
        name = f"new/folder/{number}/x"
        await one.commit(one.put(name, content_type=f"kit/{bench.root}{number}"))
        same(await other.get(name), await one.get(name), "the row as another reads it")
        same(await other.commit(other.put(name, b"changed")), [2], "the other's version")
        same(await one.value(name), b"changed", "the row as changed by the other")
        await one.commit(one.delete(name))
        same(await other.get(name), None, "the deleted row")


@check(Capability.SHARED, Capability.LISTING)
async def listings_are_shared(bench: Bench) -> None:
    """What one wrote is in the listing of another."""
    one, other = await _two(bench)
    for number in range(5):
        await one.commit(one.put(f"{number}/a"))
        await other.commit(other.put(f"{number}/b"))
        wanted = [f"{n}/{part}" for n in range(number + 1) for part in "ab"]
        same(await one.find(one.query()), wanted, "the listing of the first")
        same(await other.find(other.query()), wanted, "the listing of the second")


@check(Capability.SHARED, Capability.QUERY, Capability.TAGS)
async def queries_are_shared(bench: Bench) -> None:
    """What one wrote, another finds by column and by tag, and can remove."""
    one, other = await _two(bench)
    await one.commit(one.put("a", kind="x", tags=[("k", bench.root)]))
    same(await other.find(other.query(Compare("kind", Op.EQ, "x"))), ["a"], "found by column")
    same(await other.find(other.query(Tagged("k", bench.root))), ["a"], "found by tag")
    same(await other.adapter.remove(other.query(), DEFAULT), 1, "the number removed")
    same(await one.find(one.query(Tagged("k", bench.root))), [], "found afterwards")


@check(Capability.SHARED, Capability.VERSIONS)
async def others_win_too(bench: Bench) -> None:
    """A version that another has written over is no longer met."""
    one, other = await _two(bench)
    await one.commit(one.put("one"))
    await other.commit(other.put("one", expected=1))
    with refused(Conflict):
        await one.commit(one.put("one", expected=1))


@check_each(Capability.SHARED, Capability.TRANSACTIONS, cases={"at_once": 0, "later": 3})
async def checks_see_what_others_did(bench: Bench, commits: int) -> None:
    """A check that has held is refused once another has changed the row, also if commits that
    did not check it came in between.
    """
    one, other = await _two(bench)
    guard, others_guard = [await bench.plain_table(table.adapter) for table in (one, other)]
    await guard.commit(guard.put("seen"))
    row = await guard.get("seen")
    seen = [guard.check("seen", 1, row.created if row else 0)]
    for number in range(1, 4):
        same(await one.commit(one.put("new"), checks=seen), [number], "the version")
        await other.commit(other.put("another"))
    same(await one.commit(one.put("new"), checks=seen), [4], "the version")
    await others_guard.commit(others_guard.put("seen"))
    for _ in range(commits):
        await one.commit(one.put("unchecked"))
    with refused(Conflict):
        await one.commit(one.put("new"), checks=seen)


@check(Capability.SHARED)
async def opening_together(bench: Bench) -> None:
    """Several may open the store and prepare the same collection at the same moment."""
    tables = await asyncio.gather(*(_opened(bench) for _ in range(4)))
    await asyncio.gather(*(table.commit(table.put(f"{n}")) for n, table in enumerate(tables)))
    for n in range(4):
        same([await table.value(f"{n}") for table in tables], [b"value"] * 4, f"row {n}")


@check(Capability.SHARED)
async def closing_leaves_others_alone(bench: Bench) -> None:
    """One who closes the store does not disturb those who have it open."""
    one, other = await _two(bench)
    await one.commit(one.put("one"))
    await one.adapter.close()
    same(await other.value("one"), b"value")
    same(await other.commit(other.put("one")), [2], "the version")


@check(Capability.SHARED, Capability.VERSIONS)
async def processes_lose_no_update(bench: Bench) -> None:
    """Processes that count up the same record with expected versions lose no step."""
    table = await bench.table()
    key = table.key("sum")
    processes = [await bench.spawn("count", [table], keys=[key], times=20) for _ in range(3)]
    for process in processes:
        same(await process.line(), "done")
    same(await table.value("sum"), b"60", "the sum")


async def _opened(bench: Bench) -> KitTable:
    return await bench.table(await bench.open())
