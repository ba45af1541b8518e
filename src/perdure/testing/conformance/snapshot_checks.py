"""`Capability.SNAPSHOTS`: the whole store as of one moment, and loading it into another.

Loading replaces what is there, and a store under test may be in use: only empty stores are loaded
into; in any other, these checks show that it refuses.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

from perdure.core.errors import Conflict, InvalidInput
from perdure.storage.adapter import Adapter, Capability, Snapshot
from perdure.storage.backends.memory import MemoryAdapter
from perdure.storage.options import DEFAULT
from perdure.storage.query import Compare, Op, Tagged
from perdure.storage.rows import Column, Delivered, Fill, Layout, Row, RowCopy
from perdure.storage.snapshots import HeldCollection, HeldSnapshot
from perdure.testing.conformance.bench import Bench, KitTable
from perdure.testing.conformance.trials import check, holds, refused, same

#: Rows that take more than one page of any snapshot.
MANY = 2_500


async def _entries(snapshot: Snapshot, table: KitTable) -> dict[str, RowCopy]:
    found = [entry async for page in snapshot.entries(table.layout.name) for entry in page]
    mine = [entry for entry in found if entry.row.key.startswith(table.bench.root)]
    return {table.name(entry.row): entry for entry in mine}


async def _events(snapshot: Snapshot, bench: Bench) -> list[Delivered]:
    found = [event async for page in snapshot.events() for event in page]
    return [event for event in found if event.key.startswith(bench.root)]


@check(Capability.SNAPSHOTS)
async def snapshots_hold_rows_as_stored(bench: Bench) -> None:
    """A snapshot holds each row with its value, version, times, checksum, columns and tags."""
    table = await bench.table()
    expires = bench.clock() + 10**9 if Capability.TTL in bench.capabilities else None
    tags = (
        [("kit", "a=b"), ("kit", ""), ("b", "é")] if Capability.TAGS in bench.capabilities else []
    )
    await table.add(
        *[table.put("a/b/one", b"\x00\xff", kind="x", size=-3, tags=tags, expires=expires)] * 3,
        table.put("two", b"", score=2.5, schema=7, checksum=2**32 - 1, content_type="kit/é"),
        table.put("gone"),
        table.delete("gone"),
    )
    async with table.adapter.snapshot() as snapshot:
        layouts = {layout.name: layout for layout in await snapshot.layouts()}
        same(layouts[table.layout.name], table.layout, "the layout")
        same(list(layouts), sorted(layouts), "the order of the collections")
        found = await _entries(snapshot, table)
        holds(await snapshot.count(table.layout.name) >= 2, "not all rows are counted")
    same(sorted(found), ["a/b/one", "two"], "the rows")
    for name, entry in found.items():
        same(entry.row, await table.get(name), f"the row {name}")
    same([found[name].columns for name in sorted(found)], [("x", -3, None), (None, None, 2.5)])
    same(sorted(found["a/b/one"].tags), sorted(tags), "the tags")


@check(Capability.SNAPSHOTS, Capability.TRANSACTIONS)
async def snapshots_are_of_one_moment(bench: Bench) -> None:
    """While others write, a snapshot stays as it was when it began, across all collections: what
    is moved from one row to another is in one of them, and never in both or none.
    """
    table = await bench.table()
    other = await bench.plain_table(table.adapter)
    await table.fill(*(table.put(f"{n:05d}", b"before") for n in range(MANY)))
    await table.commit(table.put("amount", b"100"), other.put("amount", b"0"))
    ended = False

    async def move() -> int:
        moved = 0
        while not ended:
            moved += 1
            await table.commit(
                table.put("amount", b"%d" % (100 - moved)),
                other.put("amount", b"%d" % moved),
                table.put(f"{moved % MANY:05d}", b"after"),
                table.put(f"new/{moved:05d}", b"after"),
            )
            await asyncio.sleep(0)
        return moved

    moving = asyncio.create_task(move())
    try:
        for _ in range(3):
            async with table.adapter.snapshot() as snapshot:
                await asyncio.sleep(0.01)
                first = await _entries(snapshot, other)
                await asyncio.sleep(0.01)
                found = await _entries(snapshot, table)
                again = await _entries(snapshot, other)
            same(again, first, "what was read again")
            moved = int(first["amount"].row.value)
            same(int(found["amount"].row.value), 100 - moved, "the amount that is left")
            new = [name for name in found if name.startswith("new/")]
            same(len(new), moved, "the number of new rows")
            same(len(found), MANY + 1 + moved, "the number of rows")
    finally:
        ended = True
        holds(await moving, "nothing could be written meanwhile")


@check(Capability.SNAPSHOTS, Capability.TTL)
async def snapshots_leave_out_what_has_expired(bench: Bench) -> None:
    """A row that has expired is not in a snapshot, whether or not it was swept."""
    table = await bench.table()
    moment = bench.clock() + 100
    await table.add(table.put("one", expires=moment), table.put("two", expires=moment + 1_000))
    bench.clock.set(moment)
    async with table.adapter.snapshot() as snapshot:
        same(sorted(await _entries(snapshot, table)), ["two"], "the rows")


@check(Capability.SNAPSHOTS, Capability.OUTBOX)
async def snapshots_hold_events(bench: Bench) -> None:
    """A snapshot holds the events that were not trimmed, in the order in which they are read."""
    table = await bench.table()
    start = await bench.end(table.adapter)
    for number in range(5):
        bench.clock.tick()
        events = [bench.event(b"%d %d" % (number, n), key=f"{n % 2}") for n in range(3)]
        await table.commit(table.put("one"), events=events)
    read, _ = await bench.events(table.adapter, start, 15)
    async with table.adapter.snapshot() as snapshot:
        found = await _events(snapshot, bench)
        last = await snapshot.last_event()
    for key in ("0", "1"):
        lane = [event for event in found if event.key.endswith(key)]
        same(lane, [event for event in read if event.key.endswith(key)], f"the events of {key}")
    holds(last >= max(event.id for event in read), "the highest id is too low")


@check(Capability.SNAPSHOTS)
async def columns_that_are_not_filled_are_left_out(bench: Bench) -> None:
    """A column that was declared after rows were written is not in the layout until every row
    holds it.
    """
    narrow = Layout("perdure_kit_late", (Column("kind", "text"),))
    wide = Layout("perdure_kit_late", (Column("late", "text"), Column("kind", "text")))
    table = await bench.prepare(narrow)
    await table.add(table.put("one", kind="x"))
    same(await table.adapter.prepare(wide), frozenset({"late"}), "the missing columns")
    async with table.adapter.snapshot() as snapshot:
        layouts = {layout.name: layout for layout in await snapshot.layouts()}
        same(layouts[wide.name].columns, narrow.columns, "the columns")
        same((await _entries(snapshot, table))["one"].columns, ("x",), "the row's columns")
    row = await table.get("one")
    assert row is not None
    fill = Fill(row.key, row.version, row.created, ("y", "x"))
    await table.adapter.fill(wide.name, [fill])
    await table.adapter.activate(wide)
    async with table.adapter.snapshot() as snapshot:
        layouts = {layout.name: layout for layout in await snapshot.layouts()}
        same(layouts[wide.name].columns, wide.columns, "the columns")


@check(Capability.SNAPSHOTS)
async def snapshots_load_into_another_backend(bench: Bench) -> None:
    """A snapshot can be loaded into a store of another kind, with everything in it."""
    table = await bench.table()
    tags = [("kit", "x")] if Capability.TAGS in bench.capabilities else []
    await table.add(*[table.put(f"{n}/x", b"%d" % n, size=n, tags=tags) for n in range(20)] * 2)
    target = MemoryAdapter("memory://", bench.clock)
    async with table.adapter.snapshot() as snapshot:
        count = await target.load(snapshot)
    holds(count >= 20, "not all rows were loaded")
    same(await target.prepare(table.layout), frozenset(), "the missing columns")
    other = KitTable(bench, target, table.layout)
    for n in range(20):
        same(await other.get(f"{n}/x"), await table.get(f"{n}/x"), f"row {n}")
    found = await other.find(other.query(Compare("size", Op.GE, 18)))
    same(found, ["18/x", "19/x"], "the rows found by column")
    if tags:
        same(len(await other.find(other.query(Tagged("kit", "x")))), 20, "the number by tag")


def _row(
    bench: Bench, name: str, value: bytes, version: int = 1, expires: int | None = None
) -> Row:
    now = bench.clock()
    return Row(bench.root + name, value, "kit/x", 3, version, now - 9, now - 5, expires, 77)


def _source_for(bench: Bench) -> HeldSnapshot:
    tagged, expires, events = (
        each in bench.capabilities for each in (Capability.TAGS, Capability.TTL, Capability.OUTBOX)
    )
    layout = Layout(
        "perdure_kit_loaded", (Column("kind", "text"),), expires=expires, tagged=tagged, schema=3
    )
    tags = (("kit", "x"), ("kit", "y")) if tagged else ()
    later = bench.clock() + 10**9 if expires else None
    entries = [
        RowCopy(_row(bench, f"{n % 7}/{n:05d}", b"%d" % n, n + 1, later), (f"{n % 3}",), tags)
        for n in range(MANY)
    ]
    emitted = [
        Delivered(1_000 + 2 * n, "perdure.kit", f"{bench.root}{n % 2}", b"%d" % n, bench.clock())
        for n in range(5)
    ]
    return HeldSnapshot([HeldCollection(layout, entries)], emitted if events else (), 2_000)


async def _is_empty(adapter: Adapter) -> bool:
    if any(size.rows for size in await adapter.sizes()):
        return False
    return Capability.OUTBOX not in adapter.capabilities or not (await adapter.events("", 1))[0]


async def _loaded(bench: Bench, adapter: Adapter, source: Snapshot) -> KitTable:
    """The bench deletes the loaded rows and events."""
    (layout,) = await source.layouts()
    table = await bench.prepare(layout, adapter)
    for name in await _entries(source, table):
        table.key(name)
    bench.event(b"")
    return table


@check(Capability.SNAPSHOTS)
async def loading_keeps_everything(bench: Bench) -> None:
    """What is loaded is as it was: values, versions, times, checksums, columns, tags, events and
    their ids. Versions and ids go on from there.
    """
    adapter = await bench.open()
    if not await _is_empty(adapter):
        return  # it is in use
    source = _source_for(bench)
    same(await adapter.load(source), MANY, "the number of rows")
    table = await _loaded(bench, adapter, source)
    entries = await _entries(source, table)
    rows = await adapter.get(table.layout.name, [table.key(name) for name in entries], DEFAULT)
    same(rows, [entry.row for entry in entries.values()], "the rows")
    async with adapter.snapshot() as snapshot:
        found = await _entries(snapshot, table)
        same(await snapshot.layouts(), await source.layouts(), "the layouts")
    for name, entry in entries.items():
        same(found[name].columns, entry.columns, f"the columns of {name}")
        same(sorted(found[name].tags), sorted(entry.tags), f"the tags of {name}")
    if Capability.QUERY in bench.capabilities:
        some = await table.find(table.query(Compare("kind", Op.EQ, "1"), prefix="0/"))
        wanted = [name for name in entries if name.startswith("0/") and int(name[2:]) % 3 == 1]
        same(some, sorted(wanted), "the rows found by column")
    if Capability.TAGS in bench.capabilities:
        same(len(await table.find(table.query(Tagged("kit", "y")))), MANY, "the number by tag")
    same(await table.commit(table.put("0/00000", schema=3)), [2], "the version of the next write")
    if Capability.OUTBOX in bench.capabilities:
        await _check_events(bench, table, source)


async def _check_events(bench: Bench, table: KitTable, source: Snapshot) -> None:
    await table.commit(table.put("one", schema=3), events=[bench.event(b"new", key="1")])
    wanted = await _events(source, bench)
    *found, new = (await bench.events(table.adapter, "", 6))[0]
    same(found, wanted, "the events")
    holds(new.id > await source.last_event(), "the id of a new event is not the highest")
    for position in ("17:3:5", "x"):  # of another backend, or of nobody
        try:
            again, _ = await table.adapter.events(position, 100)
        except InvalidInput:
            continue
        same(len(again), 6, f"the number of events behind the foreign position {position}")


@check(Capability.SNAPSHOTS)
async def loading_refuses_a_store_that_holds_something(bench: Bench) -> None:
    """A store that holds records is not loaded into unless it is told to replace them."""
    table = await bench.table()
    await table.commit(table.put("one"))
    with refused(Conflict):
        await table.adapter.load(_source_for(bench))
    table = await bench.table(table.adapter)
    same(await table.value("one"), b"value", "the row that was there")
    sizes = {size.collection: size.rows for size in await table.adapter.sizes()}
    same(sizes.get("perdure_kit_loaded", 0), 0, "the number of rows loaded")


@check(Capability.SNAPSHOTS)
async def replacing_leaves_nothing_of_the_former(bench: Bench) -> None:
    """Told to replace what is there, loading leaves nothing of it: no row, tag or event."""
    adapter = await bench.open()
    if not await _is_empty(adapter):
        return  # it is in use
    table = await bench.table(adapter)
    events = [bench.event(b"old")] if Capability.OUTBOX in bench.capabilities else []
    tags = [("kit", "x")] if Capability.TAGS in bench.capabilities else []
    await table.commit(table.put("one", tags=tags), events=events)
    source = _source_for(bench)
    for _ in range(2):
        same(await adapter.load(source, replace=True), MANY, "the number of rows")
    loaded = await _loaded(bench, adapter, source)
    same(await loaded.value("0/00000"), b"0", "a loaded row")
    table = await bench.table(adapter)
    same(await table.get("one"), None, "the former row")
    if events:
        found, _ = await bench.events(adapter, "", 5)
        same([event.payload for event in found], [b"0", b"1", b"2", b"3", b"4"], "the events")


class _Broken(HeldSnapshot):
    """Ends in an error."""

    async def events(self) -> AsyncIterator[list[Delivered]]:
        yield []
        raise InvalidInput("The source went away.")


@check(Capability.SNAPSHOTS)
async def loading_is_all_or_nothing(bench: Bench) -> None:
    """If the source fails on the way, the store is as it was before."""
    adapter = await bench.open()
    if not await _is_empty(adapter):
        return  # it is in use
    table = await bench.table(adapter)
    await table.commit(table.put("one", b"former"))
    whole = _source_for(bench)
    (layout,) = await whole.layouts()
    entries = [entry async for page in whole.entries(layout.name) for entry in page]
    with refused(InvalidInput):
        await adapter.load(_Broken([HeldCollection(layout, entries)]), replace=True)
    table = await bench.table(adapter)
    same(await table.value("one"), b"former", "the row that was there")
    same(await table.commit(table.put("one")), [2], "the version of the next write")
    sizes = {size.collection: size.rows for size in await adapter.sizes()}
    same(sizes.get(layout.name, 0), 0, "the number of rows loaded")
