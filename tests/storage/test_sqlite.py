"""What only SQLite does: one file, a bounded log, writes on the event loop."""

from __future__ import annotations

import asyncio
import multiprocessing
import threading
from contextlib import suppress
from pathlib import Path
from typing import Annotated, Any

import apsw
import msgspec
import pytest

import perdure
from perdure.storage.backends.sqlite import SQLiteAdapter
from perdure.storage.options import DEFAULT
from perdure.storage.query import Query, Tagged
from perdure.storage.rows import Batch, Column, Layout, Put
from perdure.storage.store import Store
from perdure.testing.manual_clock import ManualClock


@perdure.record("log_items")
class Item(msgspec.Struct, frozen=True):
    id: Annotated[str, perdure.Key()]
    text: str = ""


@pytest.mark.parametrize("inline", ["yes", "no"])
async def test_the_log_stays_small_under_load(tmp_path: Path, inline: str) -> None:
    file = tmp_path / "bank.db"
    largest = 0
    async with Store(SQLiteAdapter(f"sqlite:///{file}?inline={inline}")) as store:
        items = store.collection(Item)
        for number in range(400):
            # 20 rows of 4 KB: about 25 pages each time, 40 MB in all
            await items.put_many([Item(f"a/{number}/{part}", "x" * 4_096) for part in range(20)])
            largest = max(largest, file.with_name("bank.db-wal").stat().st_size)
    assert largest < 24_000_000
    assert file.stat().st_size > 30_000_000


async def test_files_are_closed_to_others(tmp_path: Path) -> None:
    file = tmp_path / "bank.db"
    async with Store(SQLiteAdapter(f"sqlite:///{file}")) as store:
        await store.collection(Item).put(Item("a"))
        modes = {path.name: path.stat().st_mode & 0o777 for path in tmp_path.iterdir()}
    assert set(modes.values()) == {0o600}


async def test_nothing_is_left_behind_but_the_file(tmp_path: Path) -> None:
    async with Store(SQLiteAdapter(f"sqlite:///{tmp_path / 'bank.db'}")) as store:
        await store.collection(Item).put(Item("a"))
    assert [path.name for path in tmp_path.iterdir()] == ["bank.db"]


async def test_reading_makes_no_tables_and_sees_what_others_make(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'bank.db'}"
    async with Store(SQLiteAdapter(url)) as store, Store(SQLiteAdapter(url)) as other:
        items = store.collection(Item)
        assert await items.get("a") is None
        assert await items.query().values() == []
        assert await store.adapter.sizes() == []
        await other.collection(Item).put(Item("a"))
        assert await items.get("a") == Item("a")
        assert await items.query().count() == 1


async def test_strong_writes_are_synced_and_others_are_not(tmp_path: Path) -> None:
    file = tmp_path / "bank.db"
    adapter = SQLiteAdapter(f"sqlite:///{file}")
    synced = 0

    class CountingFile(apsw.VFSFile):
        def xSync(self, flags: int) -> None:  # noqa: N802  # SQLite's name
            nonlocal synced
            synced += 1
            super().xSync(flags)

    class CountingVFS(apsw.VFS):
        def __init__(self) -> None:
            super().__init__("counting", "unix", makedefault=True)

        def xOpen(self, name: object, flags: list[int]) -> apsw.VFSFile:  # noqa: N802
            return CountingFile("unix", name, flags)  # type: ignore[arg-type]

    vfs = CountingVFS()
    try:
        async with Store(adapter) as store:
            items = store.collection(Item)
            await items.put(Item("a"))
            before = synced
            await items.put(Item("b"))
            assert synced == before
            strong = perdure.Options(consistency=perdure.Consistency.STRONG)
            await items.put(Item("c"), strong)
            assert synced == before + 1
            await items.put(Item("d"))
            assert synced == before + 1
    finally:
        vfs.unregister()


async def test_what_rows_have_is_kept_when_it_is_no_longer_declared(tmp_path: Path) -> None:
    """Code without a ttl and tags opens a collection that has them: nothing comes back to life."""
    clock = ManualClock()
    adapter = SQLiteAdapter(f"sqlite:///{tmp_path / 'bank.db'}", clock)
    await adapter.initialize()
    full = Layout("things", (Column("kind", "text"),), expires=True, tagged=True)
    bare = Layout("things")
    await adapter.prepare(full)
    put = Put("things", "a", b"", "text/plain", 1, 0, ("x",), (("t", "1"),), clock() + 10)
    await adapter.commit(Batch((put,)), DEFAULT)
    for layout in (bare, full, bare):
        await adapter.prepare(layout)
        await adapter.activate(layout)
    assert len(await adapter.find(Query("things", Tagged("t", "1")), DEFAULT)) == 1
    clock.advance(11)
    assert await adapter.get("things", ["a"], DEFAULT) == [None]
    await adapter.close()


def _write_much(url: str, name: str) -> None:
    """Keep a bank busy, in a process of its own."""

    async def write() -> None:
        async with Store(SQLiteAdapter(url)) as store:
            items = store.collection(Item)
            for number in range(250):
                await items.put_many([Item(f"{name}/{number}/{n}", "x" * 4_096) for n in range(20)])

    asyncio.run(write())


async def test_the_log_stays_small_when_several_processes_write(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'bank.db'}"
    async with Store(SQLiteAdapter(url)) as store:
        await store.collection(Item).put(Item("a"))
    spawn = multiprocessing.get_context("spawn")
    writers = [spawn.Process(target=_write_much, args=(url, name)) for name in "abc"]
    for writer in writers:
        writer.start()
    largest = 0
    while any(writer.is_alive() for writer in writers):
        with suppress(FileNotFoundError):
            largest = max(largest, (tmp_path / "bank.db-wal").stat().st_size)
        await asyncio.sleep(0.01)
    assert [writer.exitcode for writer in writers] == [0, 0, 0]
    assert 0 < largest < 40_000_000  # 75 MB are written


async def test_a_damaged_record_does_not_keep_an_index_from_being_added(tmp_path: Path) -> None:
    def declare(kind: Any) -> type[Any]:
        fields = [("id", Annotated[str, perdure.Key()]), ("size", kind)]
        return perdure.record("sized")(msgspec.defstruct("Sized", fields, frozen=True))

    url = f"sqlite:///{tmp_path / 'bank.db'}"
    plain = declare(int)
    async with Store(SQLiteAdapter(url)) as store:
        await store.collection(plain).put_many([plain(f"a/{n}", n) for n in range(5)])
    db = apsw.Connection(str(tmp_path / "bank.db"))
    db.execute("UPDATE sized SET _value = x'00' WHERE _name = '3'")
    db.close()
    indexed = declare(Annotated[int, perdure.Indexed()])
    async with Store(SQLiteAdapter(url)) as store:
        found = await store.collection(indexed).query().where("size", ">=", 2).values()
        assert [item.id for item in found] == ["a/2", "a/4"]
        with pytest.raises(perdure.Corrupted, match="sized/a/3"):
            await store.collection(indexed).get("a/3")


async def test_large_values_are_not_read_on_the_event_loop(tmp_path: Path) -> None:
    async with Store(SQLiteAdapter(f"sqlite:///{tmp_path / 'bank.db'}")) as store:
        items = store.collection(Item)
        await items.put_many([Item(f"a/{n}", "x" * 500_000) for n in range(6)])
        threads = {thread.name for thread in threading.enumerate()}
        assert "perdure-reader" not in threads
        assert len((await items.list("a/")).items) == 6
        assert "perdure-reader" in {thread.name for thread in threading.enumerate()}


async def test_a_read_that_takes_too_long_is_stopped(tmp_path: Path) -> None:
    adapter = SQLiteAdapter(f"sqlite:///{tmp_path / 'bank.db'}")
    await adapter.initialize()
    endless = "WITH RECURSIVE n(x) AS (SELECT 1 UNION ALL SELECT x + 1 FROM n) SELECT sum(x) FROM n"
    reader = adapter.reader
    with pytest.raises(perdure.DeadlineExceeded):
        await reader.run("endless", lambda db: db.execute(endless).get, deadline=0.05)
    for _ in range(5):  # its thread is free again, and so are the others
        assert await reader.run("endless", lambda db: db.execute("SELECT 1").get, deadline=5) == 1
    await adapter.close()
