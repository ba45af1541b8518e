"""`Capability.OUTBOX`: events are committed with the batch and read back in order."""

from __future__ import annotations

import asyncio

from perdure.core.errors import Conflict
from perdure.storage.adapter import Capability
from perdure.testing.conformance.bench import Bench
from perdure.testing.conformance.trials import check, check_each, holds, refused, same

WRITERS = 8
EACH = 15


@check(Capability.OUTBOX)
async def events_come_back(bench: Bench) -> None:
    """Events are read as they were emitted, in the order of their batch, with the time."""
    table = await bench.table()
    start = await bench.end(table.adapter)
    payloads = [b"", b"\0\xff", b"x" * 100_000]
    keys = ["a", "", "b/é/🦊"]
    time = bench.clock.tick()
    emitted = [bench.event(data, key) for data, key in zip(payloads, keys, strict=True)]
    await table.commit(table.put("one"), events=emitted)
    found, _ = await bench.events(table.adapter, start, 3)
    same(
        [(event.topic, event.key, event.payload, event.at) for event in found],
        [(event.topic, event.key, event.payload, time) for event in emitted],
        "what was read",
    )
    ids = [event.id for event in found]
    holds(ids == sorted(set(ids)), f"the ids {ids} do not grow")


@check(Capability.OUTBOX)
async def events_without_writes(bench: Bench) -> None:
    """A batch may be events alone."""
    table = await bench.table()
    start = await bench.end(table.adapter)
    same(await table.commit(events=[bench.event(b"alone")]), [], "the versions")
    found, _ = await bench.events(table.adapter, start, 1)
    same([event.payload for event in found], [b"alone"])


@check(Capability.OUTBOX, Capability.VERSIONS)
async def refused_batches_emit_nothing(bench: Bench) -> None:
    """Events of a batch that is refused are never seen."""
    table = await bench.table()
    start = await bench.end(table.adapter)
    with refused(Conflict):
        await table.commit(table.put("one", expected=7), events=[bench.event(b"lost")])
    await table.commit(table.put("one"), events=[bench.event(b"kept")])
    found, _ = await bench.events(table.adapter, start, 1)
    same([event.payload for event in found], [b"kept"])


@check_each(Capability.OUTBOX, cases={"1": 1, "3": 3, "1000": 1_000})
async def positions_resume(bench: Bench, limit: int) -> None:
    """Reading on from each returned position gives every event once, at most `limit` at a time."""
    table = await bench.table()
    position = await bench.end(table.adapter)
    for number in range(10):
        await table.commit(events=[bench.event(b"%d" % number, f"{number % 3}")])
    first, _ = await bench.events(table.adapter, position, 10, limit)
    same([event.payload for event in first], [b"%d" % number for number in range(10)])
    events, _ = await table.adapter.events(position, limit)
    holds(len(events) <= limit, f"{len(events)} events came where {limit} were asked for")
    again, end = await bench.events(table.adapter, position, 10, limit)
    same(again, first, "what is read from an old position")
    same(await table.adapter.events(end, limit), ([], end), "what is behind the last")


@check(Capability.OUTBOX)
async def nothing_slips_past_a_reader(bench: Bench) -> None:
    """A reader who follows many concurrent writers sees every event, each key's in its order."""
    table = await bench.table()
    position = await bench.end(table.adapter)
    shared = Capability.SHARED in bench.capabilities

    async def emit(writer: int) -> None:
        own = await bench.table(await bench.open()) if shared and writer < 3 else table
        for number in range(EACH):
            event = bench.event(b"%d" % number, f"{writer}")
            await own.commit(own.put(f"{writer}/{number}"), events=[event])
            await asyncio.sleep(0)

    async def follow() -> list[tuple[str, int]]:
        found, _ = await bench.events(table.adapter, position, WRITERS * EACH, limit=7)
        return [(event.key.removeprefix(bench.root), int(event.payload)) for event in found]

    reader = asyncio.create_task(follow())
    await asyncio.gather(*(emit(writer) for writer in range(WRITERS)))
    seen = await reader
    for writer in range(WRITERS):
        numbers = [number for key, number in seen if key == f"{writer}"]
        same(numbers, list(range(EACH)), f"what was seen of writer {writer}")


@check(Capability.OUTBOX)
async def trimming_spares_the_unread(bench: Bench) -> None:
    """Trimming deletes events that are read *and* old, and tells how many."""
    table = await bench.table()
    start = await bench.end(table.adapter)
    await table.adapter.trim(start, bench.clock() + 1)  # what others left
    for payload in (b"old and read", b"old", b"new"):
        await table.commit(events=[bench.event(payload)])
        bench.clock.tick(1_000)
    found, _ = await bench.events(table.adapter, start, 3)
    one, _ = await table.adapter.events(start, 1)
    _, read = await bench.events(table.adapter, start, 1, limit=1)
    same([event.payload for event in one], [b"old and read"], "the first event")
    before = found[2].at
    same(await table.adapter.trim(read, before), 1, "the number trimmed")
    left, end = await bench.events(table.adapter, start, 2)
    same([event.payload for event in left], [b"old", b"new"], "what is left")
    same(await table.adapter.trim(end, before), 1, "the number trimmed at the end")
    left, _ = await bench.events(table.adapter, start, 1)
    same([event.payload for event in left], [b"new"], "what is left of the new")


@check(Capability.OUTBOX)
async def ids_are_never_given_twice(bench: Bench) -> None:
    """After everything was trimmed, a reader's position still stands before what comes next."""
    table = await bench.table()
    start = await bench.end(table.adapter)
    await table.commit(events=[bench.event(b"first")])
    first, position = await bench.events(table.adapter, start, 1)
    await table.adapter.trim(position, bench.clock() + 1)
    if Capability.DURABLE in bench.capabilities:
        table = await bench.table(await bench.reopen(table.adapter))
    await table.commit(events=[bench.event(b"second")])
    found, _ = await bench.events(table.adapter, position, 1)
    same([event.payload for event in found], [b"second"], "what comes next")
    holds(found[0].id > first[0].id, "an id was given again")
