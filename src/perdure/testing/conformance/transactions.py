"""`Capability.TRANSACTIONS`: a batch over several collections is atomic, its checks included."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import NamedTuple

from perdure.core.errors import Conflict, NewerSchema, PerdureError
from perdure.storage.adapter import Capability
from perdure.storage.options import DEFAULT
from perdure.storage.rows import Check
from perdure.testing.conformance.bench import Bench, KitTable
from perdure.testing.conformance.trials import check, check_each, refused, same


@check(Capability.TRANSACTIONS)
async def several_writes(bench: Bench) -> None:
    """Writes to several collections take effect together; versions come in their order."""
    table = await bench.table()
    other = await bench.plain_table(table.adapter)
    await table.add(table.put("old"), table.put("gone"))
    versions = await table.commit(
        other.put("new", b"there"), table.put("old", b"again"), table.delete("gone")
    )
    same(versions, [1, 2, 0], "the versions")
    values = [await other.value("new"), await table.value("old"), await table.value("gone")]
    same(values, [b"there", b"again", None])


class Spoiler(NamedTuple):
    """What makes a batch fail, and where in it that stands."""

    error: type[PerdureError]
    last: bool


SPOILERS = {
    "conflict_first": Spoiler(Conflict, last=False),
    "conflict_last": Spoiler(Conflict, last=True),
    "newer_schema_first": Spoiler(NewerSchema, last=False),
    "newer_schema_last": Spoiler(NewerSchema, last=True),
}


@check_each(Capability.TRANSACTIONS, Capability.VERSIONS, cases=SPOILERS)
async def all_or_nothing(bench: Bench, spoiler: Spoiler) -> None:
    """If one write of a batch is refused, none of the others takes effect, wherever it stands."""
    table = await bench.table()
    other = await bench.plain_table(table.adapter)
    await table.add(table.put("kept", b"before", schema=5), other.put("doomed", b"before"))
    if spoiler.error is Conflict:
        bad = table.put("kept", b"after", schema=5, expected=7)
    else:
        bad = table.put("kept", b"after", schema=4)
    good = (other.put("fresh/folder/new"), other.put("doomed", b"after"), other.delete("nobody"))
    with refused(spoiler.error):
        await table.commit(*((*good, bad) if spoiler.last else (bad, *good)))
    values = [await table.value("kept"), await other.value("doomed")]
    same(values, [b"before", b"before"], "what was there")
    same(await other.value("fresh/folder/new"), None, "what was not")
    same(await table.commit(*good), [1, 2, 0], "the same batch without the refused write")


class ObservedCheck(NamedTuple):
    """A check, made of what is really there."""

    name: str
    version: int
    created: int = 0  # relative to the truth
    holds: bool = True


CHECKS = {
    "unchanged": ObservedCheck("there", 2),
    "absent": ObservedCheck("nobody", 0),
    "changed": ObservedCheck("there", 1, holds=False),
    "appeared": ObservedCheck("there", 0, holds=False),
    "vanished": ObservedCheck("nobody", 1, holds=False),
    "replaced_by_a_namesake": ObservedCheck("there", 2, created=-1, holds=False),
}


@check_each(Capability.TRANSACTIONS, cases=CHECKS)
async def checks(bench: Bench, seen: ObservedCheck) -> None:
    """A batch is refused if a row that it checks has another version, or is another row."""
    table = await bench.table()
    other = await bench.plain_table(table.adapter)
    await table.add(table.put("there"), table.put("there"))
    row = await table.get(seen.name)
    created = row.created + seen.created if row is not None else 0
    made = Check(table.layout.name, table.key(seen.name), seen.version, created)
    if seen.holds:
        same(await other.commit(other.put("new"), checks=[made]), [1], "the version")
    else:
        with refused(Conflict) as caught:
            await other.commit(other.put("new"), checks=[made])
        same([exc.key for exc in caught], [table.key(seen.name)], "the key of the conflict")
    same(await other.value("new"), b"value" if seen.holds else None)


@check(Capability.TRANSACTIONS)
async def checks_come_first(bench: Bench) -> None:
    """A check of a row that the batch itself writes looks at the row as it was before."""
    table = await bench.table()
    await table.commit(table.put("one"))
    row = await table.get("one")
    seen = table.check("one", 1, row.created if row else 0)
    same(await table.commit(table.put("one"), checks=[seen]), [2], "the version")
    with refused(Conflict):
        await table.commit(table.delete("one"), checks=[seen])


async def _put(table: KitTable) -> None:
    await table.commit(table.put("one"))


async def _delete(table: KitTable) -> None:
    await table.commit(table.delete("one"))


async def _remove(table: KitTable) -> None:
    if Capability.QUERY in table.bench.capabilities:
        await table.adapter.remove(table.query(), DEFAULT)
    else:
        await _delete(table)


#: How a row ceases to be what it was.
ENDS: dict[str, Callable[[KitTable], Awaitable[None]]] = {
    "overwritten": _put,
    "deleted": _delete,
    "removed": _remove,
}


@check_each(Capability.TRANSACTIONS, cases=ENDS)
async def checks_are_made_each_time(
    bench: Bench, end: Callable[[KitTable], Awaitable[None]]
) -> None:
    """A check that has held many times is refused as soon as it does not hold any more."""
    table = await bench.plain_table()
    other = await bench.table(table.adapter)
    await table.commit(table.put("one"))
    row = await table.get("one")
    seen = [table.check("one", 1, row.created if row else 0)]
    for number in range(1, 4):
        same(await other.commit(other.put("new"), checks=seen), [number], "the version")
        same(await other.commit(other.put("unchecked")), [number], "the version")
    await end(table)
    with refused(Conflict):
        await other.commit(other.put("new"), checks=seen)


@check(Capability.TRANSACTIONS, Capability.TTL)
async def checks_notice_expiry(bench: Bench) -> None:
    """A check of a row holds until the row expires."""
    table = await bench.table()
    await table.commit(table.put("one", expires=bench.clock() + 1_000))
    row = await table.get("one")
    seen = [table.check("one", 1, row.created if row else 0)]
    for number in range(1, 4):
        same(await table.commit(table.put("new"), checks=seen), [number], "the version")
    bench.clock.tick(1_000)
    with refused(Conflict):
        await table.commit(table.put("new"), checks=seen)


@check(Capability.TRANSACTIONS)
async def checks_of_many_at_once(bench: Bench) -> None:
    """Of commits at once that check a row, all those go through that come before it changes."""
    table = await bench.plain_table()
    other = await bench.table(table.adapter)
    await table.commit(table.put("one"))
    row = await table.get("one")
    seen = [table.check("one", 1, row.created if row else 0)]
    names = [f"{number}" for number in range(20)]
    before = [other.commit(other.put(name), checks=seen) for name in names[:10]]
    after = [other.commit(other.put(name), checks=seen) for name in names[10:]]
    outcomes = await asyncio.gather(
        *before, table.commit(table.put("one")), *after, return_exceptions=True
    )
    values = await other.values(names)
    done = [outcome == [1] for outcome in (*outcomes[:10], *outcomes[11:])]
    same([value is not None for value in values], done, "what is there")
    same(outcomes[10], [2], "the version of the change")
    with refused(Conflict):
        await other.commit(other.put("late"), checks=seen)


@check(Capability.TRANSACTIONS)
async def empty_batches(bench: Bench) -> None:
    """A batch of checks alone writes nothing, and is refused like others."""
    table = await bench.table()
    same(await table.commit(), [], "the versions")
    same(await table.commit(checks=[table.check("nobody", 0)]), [], "the versions")
    with refused(Conflict):
        await table.commit(checks=[table.check("nobody", 3)])


@check(Capability.TRANSACTIONS)
async def large_batches(bench: Bench) -> None:
    """A batch of a thousand writes goes through whole."""
    table = await bench.table()
    names = [f"{number % 10}/{number:04d}" for number in range(1_000)]
    versions = await table.commit(*(table.put(name, name.encode()) for name in names))
    same(versions, [1] * 1_000, "the versions")
    same(await table.values(names), [name.encode() for name in names], "the rows")


@check(Capability.TRANSACTIONS)
async def invariants_hold(bench: Bench) -> None:
    """Transactions that check what they read move amounts between records without losing any."""
    table = await bench.table()
    names = ("a", "b", "c")
    await table.add(*(table.put(name, b"100") for name in names))
    keys = [table.key(name) for name in names]

    async def move(source: int, target: int) -> None:
        while True:
            rows = await table.adapter.get(table.layout.name, keys, DEFAULT)
            seen = [row for row in rows if row is not None]
            await asyncio.sleep(0)
            amounts = [int(row.value) for row in seen]
            amounts[source] -= 1
            amounts[target] += 1
            writes = [table.put(names[n], b"%d" % amounts[n]) for n in (source, target)]
            read = [table.check(names[n], seen[n].version, seen[n].created) for n in range(3)]
            try:
                await table.commit(*writes, checks=read)
            except Conflict:
                continue
            return

    await asyncio.gather(*(move(n % 3, (n + 1 + n % 2) % 3) for n in range(12)))
    rows = await table.adapter.get(table.layout.name, keys, DEFAULT)
    same(sum(int(row.value) for row in rows if row is not None), 300, "the sum at the end")
