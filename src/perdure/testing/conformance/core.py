"""What a backend needs in order to be one: reading and writing single rows by key."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

from perdure.core.errors import Closed, InvalidInput, NewerSchema, Unsupported
from perdure.storage.adapter import Capability
from perdure.storage.extension import Extension
from perdure.storage.options import DEFAULT, Consistency, Options
from perdure.storage.query import Compare, Figure, Op, Summary
from perdure.storage.rows import MAX_VALUE_BYTES, Event, Layout, Row
from perdure.storage.snapshots import HeldSnapshot
from perdure.testing.conformance.bench import Bench, KitTable
from perdure.testing.conformance.trials import check, check_each, holds, refused, same

VALUES = {
    "empty": b"",
    "text": b"plain",
    "every_byte": bytes(range(256)),
    "nul": b"\0before\0and\0after\0",
    "invalid_utf8": b"\xff\xfe\xed\xa0\x80",
    "large": bytes(range(256)) * 8_192,
    "largest": b"\xa5" * MAX_VALUE_BYTES,
}
KEYS = {
    "plain": "a",
    "deep": "/".join("abcdefghijklmnop"),
    "accents": "Žluťoučký kůň/naïve",
    "astral": "𝄞/🦊",
    "spaces": " a / b ",
    "quotes": 'it\'s "quoted"/`this`',
    "wildcards": "100%/a_b/*?[x]",
    "backslashes": "c:\\temp\\",
    "sql": "x'; DROP TABLE perdure_kit_rows; --",
    "controls": "tab\there/new\nline",
    "placeholders": "%s/?1/$1/:name/{0}",
    "long": "é" * 240,
}


@check()
async def missing_is_none(bench: Bench) -> None:
    """A key that was never written reads as None, and no keys as no rows."""
    table = await bench.table()
    same(await table.get("nobody"), None)
    same(await table.adapter.get(table.layout.name, [], DEFAULT), [])


@check_each(cases=VALUES)
async def values_come_back(bench: Bench, value: bytes) -> None:
    """A value comes back byte by byte as it went in."""
    table = await bench.table()
    await table.commit(table.put("one", value))
    found = await table.value("one")
    holds(found == value, f"{len(value)} bytes came back as {len(found or b'')} others")


@check_each(cases=KEYS)
async def keys_come_back(bench: Bench, name: str) -> None:
    """Any key that is a key finds its own row and no other."""
    table = await bench.table()
    await table.add(table.put(name, b"wanted"), table.put(f"{name}2", b"other"))
    row = await table.get(name)
    same(row and (table.name(row), row.value), (name, b"wanted"))


@check()
async def facts_come_back(bench: Bench) -> None:
    """A row carries its content type, schema and checksum, its version, and when it was written."""
    table = await bench.table()
    put = table.put("one", b"v", content_type="x/y;zstd=12", schema=7, checksum=2**32 - 1)
    time = bench.clock.tick()
    same(await table.commit(put), [1], "the version")
    wanted = Row(put.key, b"v", "x/y;zstd=12", 7, 1, time, time, None, 2**32 - 1)
    same(await table.get("one"), wanted, "the row")


@check()
async def rows_come_in_the_order_asked(bench: Bench) -> None:
    """Rows of several keys come in the order of the keys: the missing as None, one asked for
    twice, twice.
    """
    table = await bench.table()
    await table.add(*(table.put(name, name.encode()) for name in ("a", "b", "c/d")))
    found = await table.values(["c/d", "none", "a", "c/d", "b", "none/a"])
    same(found, [b"c/d", None, b"a", b"c/d", b"b", None])


@check()
async def overwriting_counts(bench: Bench) -> None:
    """Overwriting raises the version by one and keeps the time of creation."""
    table = await bench.table()
    created = bench.clock.tick()
    same(await table.commit(table.put("one", b"1")), [1], "the first version")
    updated = bench.clock.tick(1_000)
    same(await table.commit(table.put("one", b"2")), [2], "the second version")
    row = await table.get("one")
    same(row and (row.value, row.version, row.created, row.updated), (b"2", 2, created, updated))


@check()
async def deleting_removes(bench: Bench) -> None:
    """A deleted row is gone, deleting nothing is no error, and a successor starts anew."""
    table = await bench.table()
    same(await table.commit(table.delete("one")), [0], "the version of a delete")
    await table.add(table.put("one"), table.put("one"), table.put("one/below"))
    same(await table.commit(table.delete("one")), [0], "the version of a delete")
    same(await table.get("one"), None)
    same(await table.value("one/below"), b"value", "the row below it")
    born = bench.clock.tick()
    same(await table.commit(table.put("one")), [1], "the successor's version")
    row = await table.get("one")
    same(row and row.created, born, "the successor's creation")


@check()
async def collections_are_separate(bench: Bench) -> None:
    """The same key in two collections is two rows."""
    table = await bench.table()
    other = await bench.plain_table(table.adapter)
    await table.add(table.put("one", b"here"), other.put("one", b"there"))
    same((await table.value("one"), await other.value("one")), (b"here", b"there"))
    await table.commit(table.delete("one"))
    same((await table.value("one"), await other.value("one")), (None, b"there"))


@check()
async def columns_may_hold_anything(bench: Bench) -> None:
    """Declared columns take text, 64-bit numbers and NULL, whether or not they can be queried."""
    table = await bench.table()
    await table.add(
        table.put("full", kind="text", size=2**63 - 1, score=1.5),
        table.put("low", kind="", size=-(2**63), score=-1e300),
        table.put("bare"),
    )
    same([await table.value(name) for name in ("full", "low", "bare")], [b"value"] * 3)


@check()
async def preparing_again_keeps_rows(bench: Bench) -> None:
    """Preparing a collection that is as it should be changes nothing and lacks nothing."""
    table = await bench.table()
    await table.commit(table.put("one"))
    same(await table.adapter.prepare(table.layout), frozenset(), "what is missing")
    same(await table.value("one"), b"value")


@check()
async def newer_schema_is_left_alone(bench: Bench) -> None:
    """A row of a newer schema is never overwritten by an older one; an older row may be."""
    table = await bench.table()
    await table.commit(table.put("one", b"new", schema=3))
    with refused(NewerSchema):
        await table.commit(table.put("one", b"old", schema=2))
    same(await table.value("one"), b"new")
    same(await table.commit(table.put("one", b"newer", schema=4)), [2], "the version")
    same(await table.value("one"), b"newer")


@check()
async def unknown_collections_are_refused(bench: Bench) -> None:
    """A collection that was not prepared is refused, for reading and for writing."""
    table = await bench.table()
    stranger = KitTable(bench, table.adapter, Layout("perdure_kit_stranger"))
    with refused(InvalidInput):
        await stranger.get("one")
    with refused(InvalidInput):
        await stranger.commit(stranger.put("one"))


@check()
async def closing_ends_it(bench: Bench) -> None:
    """After `close`, which may be called twice, reading and writing raise `Closed`."""
    table = await bench.table()
    await table.adapter.close()
    await table.adapter.close()
    with refused(Closed):
        await table.get("one")
    with refused(Closed):
        await table.commit(table.put("one"))


@check_each(cases={level.value: level for level in Consistency})
async def reads_follow_writes(bench: Bench, consistency: Consistency) -> None:
    """What was acknowledged is seen by the next read, at every consistency."""
    table = await bench.table()
    staleness = 60.0 if consistency is Consistency.BOUNDED else None
    options = Options(consistency=consistency, max_staleness=staleness, deadline=30.0)
    for number in range(20):
        await table.commit(table.put("one", b"%d" % number))
        row = await table.get("one", options)
        same(row and row.value, b"%d" % number)


@check()
async def many_at_once(bench: Bench) -> None:
    """A hundred commits at once are all carried out, each one once."""
    table = await bench.table()
    names = [f"{number % 7}/{number}" for number in range(100)]
    versions = await asyncio.gather(
        *(table.commit(table.put(name, name.encode())) for name in names)
    )
    same(versions, [[1]] * 100, "the versions")
    same(await table.values(names), [name.encode() for name in names])


@check_each(cases={f"after_{turns}": turns for turns in (0, 1, 2, 5, 20)})
async def cancelling_leaves_nothing_in_flight(bench: Bench, turns: int) -> None:
    """A cancelled commit was done or was not: once `CancelledError` is raised, nothing follows."""
    table = await bench.table()
    await table.commit(table.put("one", b"before"))
    task = asyncio.create_task(table.commit(table.put("one", b"after")))
    for _ in range(turns):
        await asyncio.sleep(0)
    task.cancel()
    (outcome,) = await asyncio.gather(task, return_exceptions=True)
    at_once = await table.value("one")
    await asyncio.sleep(0.05)
    same(await table.value("one"), at_once, "the value a moment later")
    if isinstance(outcome, BaseException):
        holds(isinstance(outcome, asyncio.CancelledError), f"it raised {outcome!r}")
        holds(at_once in (b"before", b"after"), f"the value is {at_once!r}")
    else:
        same(at_once, b"after", "the value of a commit that returned")
    same(len(await table.commit(table.put("one", b"next"))), 1, "writing goes on")


@check()
async def sizes_are_told(bench: Bench) -> None:
    """If a backend tells sizes, they are of its collections, and count their rows."""
    table = await bench.table()
    await table.add(table.put("one"), table.put("two"))
    sizes = {size.collection: size for size in await table.adapter.sizes()}
    if sizes:
        holds(table.layout.name in sizes, f"{table.layout.name} is not among {sorted(sizes)}")
        holds(sizes[table.layout.name].rows >= 2, "not all rows are counted")
    faults = await table.adapter.inspect()
    same(faults, [], "the list of faults of a sound store")


#: What needs a capability, and is refused without it.
class _Nothing(Extension):
    name = "perdure_kit"

    def check(self, changes: Sequence[Any]) -> None:
        pass


async def _attach(table: KitTable) -> None:
    table.adapter.attach(_Nothing())


NEEDING: dict[Capability, Callable[[KitTable], Awaitable[object]]] = {
    Capability.VERSIONS: lambda table: table.commit(table.put("one", expected=0)),
    Capability.LISTING: lambda table: table.find(table.query()),
    Capability.TTL: lambda table: table.adapter.prepare(Layout("perdure_kit_plain", expires=True)),
    Capability.TRANSACTIONS: lambda table: table.commit(table.put("one"), table.put("two")),
    Capability.QUERY: lambda table: table.find(table.query(Compare("kind", Op.EQ, "x"))),
    Capability.TAGS: lambda table: table.adapter.prepare(Layout("perdure_kit_plain", tagged=True)),
    Capability.AGGREGATE: lambda table: table.adapter.summarize(
        Summary(table.query(), ((Figure.COUNT, ""),)), DEFAULT
    ),
    Capability.OUTBOX: lambda table: table.commit(
        table.put("one"), events=[Event("perdure.kit", "", b"")]
    ),
    Capability.ERASURE: lambda table: table.adapter.scrub(),
    Capability.SNAPSHOTS: lambda table: table.adapter.load(HeldSnapshot([])),
    Capability.EXTENSIONS: _attach,
}


@check_each(cases={capability.value: capability for capability in NEEDING})
async def undeclared_is_refused(bench: Bench, capability: Capability) -> None:
    """What a backend does not declare it refuses with `Unsupported`, and never ignores."""
    if capability in bench.capabilities:
        return  # the checks of that capability say more
    table = await bench.table()
    with refused(Unsupported):
        await NEEDING[capability](table)
