"""Snapshots and loading, beyond what the conformance kit shows of every backend."""

from __future__ import annotations

import asyncio
import os
import random
from collections.abc import AsyncIterator, Sequence
from pathlib import Path

import pytest

from perdure.core.errors import Closed, Corrupted, Unavailable
from perdure.storage.adapter import Adapter, Snapshot
from perdure.storage.backends.sqlite import connections
from perdure.storage.options import DEFAULT
from perdure.storage.query import Compare, Op, Query, Tagged
from perdure.storage.registry import adapter_for
from perdure.storage.rows import Batch, Column, Delivered, Event, Index, Layout, Put, Row, RowCopy
from perdure.storage.snapshots import (
    HeldCollection,
    HeldSnapshot,
    WatchedSnapshot,
)
from perdure.storage.store import Store
from perdure.storage.subscriptions import EventReceived, Subscriptions
from tests.conftest import DURABLE, url_on
from tests.storage.power import Disk

NOTES = Layout(
    "notes",
    (Column("kind", "text"), Column("size", "integer"), Column("score", "real")),
    (Index(("kind", "created")), Index(("size",), where=(("kind", "a"),))),
    expires=True,
    tagged=True,
)


async def opened(url: str) -> Adapter:
    adapter = adapter_for(url)
    await adapter.initialize()
    return adapter


def put(number: int, value: bytes = b"value", kind: str = "a") -> Put:
    tags = (("parity", str(number % 2)), ("x", "a=b"))
    columns = (kind, number, number / 2)
    return Put("notes", f"ada/{number % 3}/{number:04d}", value, "text/x", 1, 7, columns, tags)


async def filled(url: str, count: int = 50) -> Adapter:
    adapter = await opened(url)
    await adapter.prepare(NOTES)
    await adapter.commit(Batch(tuple(put(n) for n in range(count))), DEFAULT)
    return adapter


async def everything(adapter: Adapter) -> tuple[object, ...]:
    """All that a snapshot tells, in an order of our own."""
    async with adapter.snapshot() as snapshot:
        found = []
        for layout in await snapshot.layouts():
            entries = [entry async for page in snapshot.entries(layout.name) for entry in page]
            entries = [RowCopy(e.row, e.columns, tuple(sorted(e.tags))) for e in entries]
            found.append((layout, sorted(entries, key=lambda entry: entry.row.key)))
        events = [event async for page in snapshot.events() for event in page]
        return found, events, await snapshot.last_event()


@pytest.mark.parametrize("target", [*DURABLE, "memory"])
@pytest.mark.parametrize("source", [*DURABLE, "memory"])
async def test_every_backend_loads_from_every_other(
    source: str, target: str, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    (tmp_path / "target").mkdir()
    one = await filled(url_on(source, request, tmp_path))
    for number in range(3):
        event = Event("note.added", f"k{number % 2}", b"%d" % number)
        await one.commit(Batch((put(number, b"again"),), (), (event,)), DEFAULT)
    before = await everything(one)
    if source == "postgresql":  # one database, for one at a time
        async with one.snapshot() as snapshot:
            held = await adapter_for("memory://").load(snapshot)
            assert held == 50
            kept = await _held(snapshot)
        await one.close()
    else:
        async with one.snapshot() as snapshot:
            kept = await _held(snapshot)
        await one.close()
    other = await opened(url_on(target, request, tmp_path / "target"))
    assert await other.load(kept, replace=source == target == "postgresql") == 50
    assert await everything(other) == before
    assert await other.prepare(NOTES) == frozenset()
    found = await other.find(Query("notes", Tagged("x", "a=b"), limit=3), DEFAULT)
    assert [row.key for row in found] == ["ada/0/0000", "ada/0/0003", "ada/0/0006"]
    large = await other.find(Query("notes", Compare("size", Op.GT, 47)), DEFAULT)
    assert sorted(row.key for row in large) == ["ada/0/0048", "ada/1/0049"]
    assert await other.inspect() == []
    await other.close()


async def _held(snapshot: Snapshot) -> HeldSnapshot:
    collections = [
        HeldCollection(layout, [e async for page in snapshot.entries(layout.name) for e in page])
        for layout in await snapshot.layouts()
    ]
    events = [event async for page in snapshot.events() for event in page]
    return HeldSnapshot(collections, events, await snapshot.last_event())


@pytest.mark.parametrize("store_url", DURABLE, indirect=True)
async def test_a_store_that_others_have_open_is_not_loaded_into(store_url: str) -> None:
    one, other = await filled(store_url), await opened(store_url)
    before = await everything(one)
    with pytest.raises(Unavailable, match="open"):
        await one.load(HeldSnapshot([]), replace=True)
    assert await everything(one) == await everything(other) == before
    await one.prepare(NOTES)
    await one.commit(Batch((put(99),)), DEFAULT)  # it is still of use
    await other.close()
    assert await one.load(HeldSnapshot([]), replace=True) == 0
    await one.close()


@pytest.mark.parametrize("store_url", DURABLE, indirect=True)
async def test_whoever_comes_while_it_is_loaded_is_told_so(
    store_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connections, "PATIENCE", 0.1)
    one = await filled(store_url)
    inside, ready = asyncio.Event(), asyncio.Event()

    class Slow(HeldSnapshot):
        async def events(self) -> AsyncIterator[list[Delivered]]:
            inside.set()
            await ready.wait()
            for page in list[list[Delivered]]():
                yield page

    loading = asyncio.create_task(one.load(Slow([]), replace=True))
    await inside.wait()
    with pytest.raises(Unavailable):
        await opened(store_url)
    with pytest.raises(Closed):
        await one.commit(Batch((put(1),)), DEFAULT)
    ready.set()
    assert await loading == 0
    other = await opened(store_url)
    assert await other.sizes() == []
    await other.close()
    await one.close()


@pytest.mark.parametrize("store_url", DURABLE, indirect=True)
async def test_a_cancelled_load_changes_nothing(store_url: str) -> None:
    one = await filled(store_url)
    before = await everything(one)
    inside = asyncio.Event()

    class Endless(HeldSnapshot):
        async def entries(self, collection: str) -> AsyncIterator[list[RowCopy]]:
            async for page in super().entries(collection):
                yield page
            inside.set()
            await asyncio.sleep(3600)

    row = Row("x", b"other", "text/x", 1, 1, 1, 1, None, 7)
    entries = [RowCopy(row, ("b", 1, 1.0))]
    loading = asyncio.create_task(one.load(Endless([HeldCollection(NOTES, entries)]), replace=True))
    await inside.wait()
    loading.cancel()
    with pytest.raises(asyncio.CancelledError):
        await loading
    assert await everything(one) == before
    await one.prepare(NOTES)
    assert await one.commit(Batch((put(1),)), DEFAULT) == [2]
    await one.close()


@pytest.mark.parametrize("store_url", DURABLE, indirect=True)
async def test_the_reader_of_a_snapshot_may_leave_early(store_url: str) -> None:
    one = await filled(store_url, 5_000)
    async with one.snapshot() as snapshot:
        async for _ in snapshot.entries("notes"):
            break
        assert await snapshot.count("notes") == 5_000 or store_url.startswith("postgresql")
    reading = asyncio.create_task(everything(one))
    await asyncio.sleep(0.005)
    reading.cancel()
    with pytest.raises(asyncio.CancelledError):
        await reading
    assert len((await everything(one))[0][0][1]) == 5_000  # type: ignore[index]
    await one.close()


@pytest.mark.parametrize("store_url", DURABLE, indirect=True)
async def test_what_the_reader_or_the_source_raises_is_not_the_banks_fault(store_url: str) -> None:
    class Broken(HeldSnapshot):
        async def entries(self, collection: str) -> AsyncIterator[list[RowCopy]]:
            raise ValueError(f"{collection}: a bug of the source")
            yield []

    one = await filled(store_url)
    with pytest.raises(ValueError, match="a bug of the reader"):
        async with one.snapshot():
            raise ValueError("a bug of the reader")
    before = await everything(one)
    with pytest.raises(ValueError, match="a bug of the source"):
        await one.load(Broken([HeldCollection(NOTES, [])]), replace=True)
    assert await everything(one) == before
    await one.close()


async def test_a_snapshot_of_a_closed_store_is_refused(store_url: str) -> None:
    one = await opened(store_url)
    await one.close()
    with pytest.raises(Closed):
        async with one.snapshot():
            pass
    with pytest.raises(Closed):
        await one.load(HeldSnapshot([]))


# PostgreSQL -------------------------------------------------------------------------------------


async def test_nobody_changes_a_table_under_a_snapshot(postgres_url: str) -> None:
    one, other = await filled(postgres_url), await opened(postgres_url)
    before = await everything(one)
    changed = Layout(
        "notes", (Column("kind", "integer"), *NOTES.columns[1:]), expires=True, tagged=True
    )
    async with one.snapshot() as snapshot:
        changing = asyncio.create_task(other.prepare(changed))
        await asyncio.sleep(0.5)
        assert not changing.done()
        entries = [entry async for page in snapshot.entries("notes") for entry in page]
        assert {entry.columns[0] for entry in entries} == {"a"}
        assert await snapshot.layouts() == [layout for layout, _ in before[0]]  # type: ignore[attr-defined]
        # Whatever needs no change of a table goes on.
        await other.prepare(Layout("others"))
        await one.commit(Batch((put(50),)), DEFAULT)
    await changing
    await one.close()
    await other.close()


# SQLite -----------------------------------------------------------------------------------------


async def test_what_was_loaded_survives_the_loss_of_power(tmp_path: Path) -> None:
    one = await filled(f"sqlite:///{tmp_path / 'source.db'}")
    async with one.snapshot() as snapshot:
        held = await _held(snapshot)
    await one.close()
    with Disk() as disk:
        target = await filled(f"sqlite:///{tmp_path / 'bank.db'}", 3)
        await target.load(held, replace=True)
        left = disk.after_power_loss(tmp_path / "bank.db", tmp_path / "after")
        await target.close()
    two = await opened(f"sqlite:///{left}")
    assert len((await everything(two))[0][0][1]) == 50  # type: ignore[index]
    await two.close()


async def test_the_log_shrinks_again_after_a_snapshot(tmp_path: Path) -> None:
    one = await filled(f"sqlite:///{tmp_path / 'bank.db'}")
    log = tmp_path / "bank.db-wal"
    dice = random.Random(0)

    async def write(megabytes: int) -> None:
        for _ in range(megabytes):
            value = dice.randbytes(32_000)
            await one.commit(Batch(tuple(put(n, value) for n in range(32))), DEFAULT)

    # Bounded, while nobody holds a snapshot: on a busy machine the log is emptied late, but it is.
    await write(60)
    size = log.stat().st_size
    assert size < 50_000_000
    async with one.snapshot() as snapshot:
        await write(size // 1_000_000 + 20)  # no writer is kept waiting for it
        assert log.stat().st_size > max(size, 20_000_000)
        entries = [entry async for page in snapshot.entries("notes") for entry in page]
        assert len(entries) == 50
    await write(6)
    for _ in range(100):
        if log.stat().st_size <= 9_000_000:
            break
        await asyncio.sleep(0.05)
        await write(1)
    assert log.stat().st_size <= 9_000_000
    await one.close()


async def test_when_nobody_writes_the_log_is_cut_at_the_end_of_a_snapshot(tmp_path: Path) -> None:
    one = await filled(f"sqlite:///{tmp_path / 'bank.db'}")
    async with one.snapshot():
        for n in range(200):
            await one.commit(Batch((put(n, os.urandom(50_000)),)), DEFAULT)
    await asyncio.sleep(0)
    assert (tmp_path / "bank.db-wal").stat().st_size == 0
    await one.close()


async def test_a_row_whose_key_is_damaged_is_not_left_out(tmp_path: Path) -> None:
    path = tmp_path / "bank.db"
    one = await filled(f"sqlite:///{path}")
    db = connections.connect(path)
    db.execute("DELETE FROM perdure_folders WHERE path = 'ada/1/'")
    db.close()
    with pytest.raises(Corrupted):
        await everything(one)
    await one.close()


# PostgreSQL -------------------------------------------------------------------------------------


async def test_a_name_in_a_snapshot_is_not_sql(postgres_url: str) -> None:
    evil = Layout('x"; DROP TABLE perdure_meta; --')
    one = await filled(postgres_url)
    with pytest.raises(Exception, match="name of a table"):
        await one.load(HeldSnapshot([HeldCollection(evil, [])]), replace=True)
    assert len((await everything(one))[0]) == 1  # type: ignore[arg-type]
    await one.close()


# Subscribers ------------------------------------------------------------------------------------


@pytest.mark.parametrize("target", DURABLE)
@pytest.mark.parametrize("source", DURABLE)
async def test_subscribers_get_what_was_not_delivered(
    source: str, target: str, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    (tmp_path / "target").mkdir()

    async def subscribed(store: Store, seen: list[object], *fail: str) -> Subscriptions:
        async def handle(event: EventReceived) -> None:
            if event.payload in fail:
                raise RuntimeError("not now")
            seen.append(event.payload)

        subscriptions = Subscriptions(store)
        await subscriptions.subscribe("reader", handle, from_start=True)
        return subscriptions

    store = Store(adapter_for(url_on(source, request, tmp_path)))
    before: list[object] = []
    async with store:
        reader = await subscribed(store, before, "parked")
        for payload in ("one", "parked", "behind"):
            async with store.transaction() as transaction:
                transaction.emit("t", payload, key="same" if payload != "one" else "")
        await reader.deliver()
        await reader.release()
        for payload in ("two", "three"):
            async with store.transaction() as transaction:
                transaction.emit("t", payload, key="same")
        async with store.adapter.snapshot() as snapshot:
            kept = await _held(snapshot)
    assert before == ["one"]
    other = Store(adapter_for(url_on(target, request, tmp_path / "target")))
    after: list[object] = []
    async with other:
        await other.adapter.load(kept, replace=True)
        reader = await subscribed(other, after)
        async with other.transaction() as transaction:
            transaction.emit("t", "new", key="same")
        for _ in range(30):
            await reader.deliver()
            if "new" in after:
                break
            await asyncio.sleep(0.1)  # until what was parked is tried again
    lane = [payload for payload in after if payload != "one"]
    assert list(dict.fromkeys(lane)) == ["parked", "behind", "two", "three", "new"]


# Wrappers ---------------------------------------------------------------------------------------


async def test_wrapped_snapshots(tmp_path: Path) -> None:
    rows = [RowCopy(Row(str(n), b"x", "t", 1, 1, 1, 1, None, 0)) for n in range(2_500)]
    under = HeldSnapshot(
        [HeldCollection(Layout("a"), rows), HeldCollection(Layout("b"), rows)],
        [Delivered(5, "t", "k", b"", 1)],
    )
    over = HeldSnapshot([HeldCollection(Layout("b"), rows[:1]), HeldCollection(Layout("c"), [])])
    seen: dict[str, int] = {}
    told: list[tuple[str, int, int]] = []

    def see(collection: str, page: Sequence[RowCopy]) -> None:
        seen[collection] = seen.get(collection, 0) + len(page)

    both = WatchedSnapshot(under, lambda *args: told.append(args), see=see, instead=over)
    assert [layout.name for layout in await both.layouts()] == ["a", "b", "c"]
    assert [await both.count(name) for name in "abc"] == [2_500, 1, 0]
    adapter = await opened(f"sqlite:///{tmp_path / 'x.db'}")
    assert await adapter.load(both) == 2_501
    assert seen == {"a": 2_500, "b": 1}
    assert told[-3:] == [("copying a", 2_500, 2_500), ("copying b", 1, 1), ("copying events", 1, 0)]
    assert await both.last_event() == 5
    await adapter.close()


async def test_an_error_of_the_source_passes_through_the_wrapper() -> None:
    class Broken(HeldSnapshot):
        async def entries(self, collection: str) -> AsyncIterator[list[RowCopy]]:
            yield []
            raise Corrupted("no more")

        async def count(self, collection: str) -> int:
            return 0

    watched = WatchedSnapshot(Broken([]), lambda *_: None)
    with pytest.raises(Corrupted, match="no more"):
        _ = [page async for page in watched.entries("x")]
