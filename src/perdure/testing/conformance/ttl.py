"""`Capability.TTL`: rows expire, whether or not anybody sweeps."""

from __future__ import annotations

from perdure.core.errors import Conflict
from perdure.storage.adapter import Capability
from perdure.storage.options import DEFAULT
from perdure.storage.query import Figure, Summary
from perdure.testing.conformance.bench import Bench, KitTable
from perdure.testing.conformance.trials import check, check_each, refused, same

LIFE = 1_000


async def _aging(bench: Bench) -> KitTable:
    """One row that lives `LIFE` microseconds, one that lives longer, one that lives for ever."""
    table = await bench.table()
    now = bench.clock()
    await table.commit(table.put("short", b"old", expires=now + LIFE))
    await table.commit(table.put("long", b"old", expires=now + 10 * LIFE))
    await table.commit(table.put("ever", b"old"))
    return table


@check_each(Capability.TTL, cases={"before": -1, "at_the_time": 0, "after": 1})
async def expires(bench: Bench, offset: int) -> None:
    """A row is there until its time comes, and gone from that very microsecond."""
    table = await _aging(bench)
    bench.clock.tick(LIFE + offset)
    same(await table.value("short"), b"old" if offset < 0 else None, "the short-lived")
    same([await table.value(name) for name in ("long", "ever")], [b"old"] * 2, "the others")


@check(Capability.TTL)
async def expiry_is_told(bench: Bench) -> None:
    """A row tells when it expires."""
    table = await _aging(bench)
    rows = [await table.get(name) for name in ("short", "ever")]
    same([row and row.expires for row in rows], [bench.clock() + LIFE, None])


@check(Capability.TTL, Capability.LISTING)
async def expired_rows_are_not_listed(bench: Bench) -> None:
    """An expired row is in no listing and takes no place on a page."""
    table = await _aging(bench)
    bench.clock.tick(LIFE)
    same(await table.find(table.query()), ["ever", "long"], "the listing")
    same(await table.find(table.query(limit=1, offset=1)), ["long"], "the second page")


@check(Capability.TTL, Capability.AGGREGATE)
async def expired_rows_are_not_counted(bench: Bench) -> None:
    """An expired row is in no figure."""
    table = await _aging(bench)
    bench.clock.tick(LIFE)
    summary = Summary(table.query(), ((Figure.COUNT, ""),))
    same(await table.adapter.summarize(summary, DEFAULT), [(2,)], "the count")


@check(Capability.TTL, Capability.QUERY)
async def expired_rows_are_not_removed_twice(bench: Bench) -> None:
    """Removing by query does not count rows that had expired."""
    table = await _aging(bench)
    bench.clock.tick(LIFE)
    same(await table.adapter.remove(table.query(), DEFAULT), 2, "the number removed")


@check(Capability.TTL)
async def successor_starts_anew(bench: Bench) -> None:
    """What is written in the place of an expired row is a new record, at version 1."""
    table = await _aging(bench)
    await table.commit(table.put("short", b"old", expires=bench.clock() + LIFE))
    born = bench.clock.tick(2 * LIFE)
    same(await table.commit(table.put("short", b"new")), [1], "the version")
    row = await table.get("short")
    wanted = (b"new", 1, born, born, None)
    same(row and (row.value, row.version, row.created, row.updated, row.expires), wanted)


@check(Capability.TTL)
async def rewriting_sets_a_new_time(bench: Bench) -> None:
    """Each write says anew when the row expires, or that it does not."""
    table = await _aging(bench)
    await table.commit(table.put("short", b"kept"))
    await table.commit(table.put("ever", b"mortal", expires=bench.clock() + LIFE))
    bench.clock.tick(LIFE)
    same([await table.value(name) for name in ("short", "ever")], [b"kept", None])


@check(Capability.TTL, Capability.VERSIONS)
async def expired_is_absent(bench: Bench) -> None:
    """An expired record is absent for those who expect a version."""
    table = await _aging(bench)
    bench.clock.tick(LIFE)
    with refused(Conflict):
        await table.commit(table.put("short", expected=1))
    with refused(Conflict):
        await table.commit(table.delete("short", 1))
    same(await table.commit(table.put("short", expected=0)), [1], "the version")


@check(Capability.TTL, Capability.TRANSACTIONS)
async def expired_is_absent_to_checks(bench: Bench) -> None:
    """A check that saw the record before it expired fails, one that saw none holds."""
    table = await _aging(bench)
    seen = await table.get("short")
    bench.clock.tick(LIFE)
    with refused(Conflict):
        checks = [table.check("short", 1, seen.created if seen else 0)]
        await table.commit(table.put("other"), checks=checks)
    await table.commit(table.put("other"), checks=[table.check("short", 0)])


@check(Capability.TTL)
async def sweeping_removes_the_expired(bench: Bench) -> None:
    """A sweep removes expired rows only, up to its limit, and says how many."""
    table = await bench.table()
    now = bench.clock()
    await table.add(*(table.put(f"{n}", expires=now + LIFE) for n in range(5)))
    await table.add(table.put("long", expires=now + 10 * LIFE), table.put("ever"))
    while await table.adapter.sweep(1_000):
        pass  # what others left
    same(await table.value("0"), b"value", "a row before its time")
    bench.clock.tick(LIFE)
    swept = [await table.adapter.sweep(2) for _ in range(4)]
    same(swept, [2, 2, 1, 0], "the numbers swept")
    same([await table.value(name) for name in ("long", "ever")], [b"value"] * 2, "the others")
