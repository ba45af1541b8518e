"""`Capability.DURABLE`: what was acknowledged survives the death of the process."""

from __future__ import annotations

from perdure.storage.adapter import Capability
from perdure.testing.conformance.bench import Bench
from perdure.testing.conformance.trials import check, check_each, holds, same

#: More than a process can write before the signal reaches it.
MANY = 400


@check(Capability.DURABLE)
async def reopening_finds_everything(bench: Bench) -> None:
    """What one adapter wrote, one that is opened after it was closed reads."""
    table = await bench.table()
    await table.add(table.put("a", b"1", kind="x"), table.put("a", b"2", kind="x"))
    before = await table.get("a")
    table = await bench.table(await bench.reopen(table.adapter))
    same(await table.get("a"), before, "the row")


async def killed(bench: Bench, acknowledged: int, *, strong: bool = False) -> None:
    table = await bench.table()
    tables = [table]
    if Capability.TRANSACTIONS in bench.capabilities:
        tables.append(await bench.plain_table(table.adapter))
    emit = Capability.OUTBOX in bench.capabilities
    position = await bench.end(table.adapter) if emit else ""
    names = [f"{number % 5}/{number:04d}" for number in range(MANY)]
    keys, *_ = [[each.key(name) for name in names] for each in tables]
    if Capability.SHARED not in bench.capabilities:
        await table.adapter.close()
    process = await bench.spawn("write", tables, keys=keys, strong=strong, emit=emit)
    lines = [*await process.lines(acknowledged), *await process.kill()]
    adapter = await bench.open()
    found = []
    for each in tables:
        again = await bench.prepare(each.layout, adapter)
        found.append(await again.values(names))
    lost = [key for key, value in zip(keys, found[0], strict=True) if key in lines and not value]
    same(lost, [], f"the list of what was lost of {len(lines)} acknowledged writes")
    same(found[-1], found[0], "what is in the second collection")
    written = [key for key, value in zip(keys, found[0], strict=True) if value is not None]
    same([value for value in found[0] if value], [key.encode() for key in written], "the values")
    same(written, keys[: len(written)], "what was written, in its order")
    holds(len(written) <= len(lines) + 1, "there is more than what was begun")
    if emit:
        bench.event(b"")  # so that the bench trims what the process emitted
        seen, _ = await bench.events(adapter, position, len(written))
        same([event.key for event in seen], written, "the events")


@check_each(Capability.DURABLE, cases={f"after_{count}_writes": count for count in (1, 30)})
async def survives_kill(bench: Bench, acknowledged: int) -> None:
    """After kill -9 everything acknowledged is there, batches are whole, events are with them."""
    await killed(bench, acknowledged)
