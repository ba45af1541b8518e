"""What only SQLite does: one file, a bounded log, writes on the event loop."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import apsw
import msgspec
import pytest

import perdure
from perdure.storage.adapter import DEFAULT, Batch, Column, Layout, Put
from perdure.storage.backends.sqlite import SQLiteAdapter
from perdure.storage.query import Query, Tagged
from perdure.storage.store import Store
from perdure.testing.clock import ManualClock


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
