from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Annotated

import msgspec
import pytest

import perdure
from perdure.bank import Bank
from perdure.bank.artifact_location import artifact_place
from perdure.config import ArtifactsConfig, Config, StorageConfig
from perdure.storage.subscriptions import EventReceived
from perdure.testing.manual_clock import ManualClock


@perdure.record("bank_notes")
class Note(msgspec.Struct, frozen=True):
    id: Annotated[str, perdure.Key()]
    text: Annotated[str, perdure.Compressed()]


@perdure.record("bank_fleeting", ttl="10s")
class Fleeting(msgspec.Struct, frozen=True):
    id: Annotated[str, perdure.Key()]


async def until(condition: Callable[[], Awaitable[bool]], seconds: float = 5.0) -> None:
    """Wait for something that background work does."""
    async with asyncio.timeout(seconds):
        while not await condition():  # noqa: ASYNC110  # nobody would set an event
            await asyncio.sleep(0.005)


async def test_what_is_written_is_there_after_reopening(store_url: str) -> None:
    if store_url == "memory://":
        return  # forgetting is what it does
    async with perdure.open(store_url) as bank:
        await bank.collection(Note).put(Note("a", "text"))
    async with perdure.open(store_url) as bank:
        assert await bank.collection(Note).get("a") == Note("a", "text")


async def test_expired_records_are_swept_in_the_background(store_url: str) -> None:
    clock = ManualClock()
    config = Config(storage=StorageConfig(sweep_every=0.01))
    async with Bank(store_url, config=config, clock=clock) as bank:
        await bank.collection(Fleeting).put(Fleeting("a"))
        clock.advance(11)
        assert await bank.collection(Fleeting).get("a") is None

        async def swept() -> bool:
            sizes = {size.collection: size.rows for size in await bank.store.adapter.sizes()}
            return sizes["bank_fleeting"] == 0

        await until(swept)


async def test_events_are_delivered_soon_after_the_commit(store_url: str) -> None:
    config = Config(storage=StorageConfig(deliver_every=600))
    async with Bank(store_url, config=config) as bank:
        received: list[object] = []

        async def handler(event: EventReceived) -> None:
            received.append(event.payload)

        await bank.subscribe("test", handler, ["note.added"])
        async with bank.transaction() as tx:
            await tx.collection(Note).put(Note("a", "text"))
            tx.emit("note.added", "a")
            tx.emit("note.ignored", "a")

        async def arrived() -> bool:
            return received == ["a"]

        await until(arrived)


async def test_compression_can_be_switched_off_and_what_is_compressed_stays_readable(
    tmp_path: Path,
) -> None:
    url = f"sqlite:///{tmp_path / 'bank.db'}"
    async with perdure.open(url) as bank:
        await bank.collection(Note).put(Note("a", "compressed " * 50))
    config = Config(storage=StorageConfig(compression=False))
    async with perdure.open(url, config=config) as bank:
        notes = bank.collection(Note)
        await notes.put(Note("b", "plain " * 50))
        (row,) = await bank.store.adapter.get("bank_notes", ["b"], perdure.Options())
        assert row is not None
        assert row.content_type == "application/json"
        assert await notes.get("a") == Note("a", "compressed " * 50)


async def test_verify_names_what_is_damaged_and_checks_the_rest(tmp_path: Path) -> None:
    file = tmp_path / "bank.db"
    async with perdure.open(f"sqlite:///{file}") as bank:
        await bank.collection(Note).put_many([Note(f"a/{n}", "text " * 9) for n in range(3)])
        large = await bank.artifacts.put(b"x" * 100_000)
        assert [problem async for problem in bank.verify()] == []
    with sqlite3.connect(file) as db:
        db.execute("UPDATE bank_notes SET _value = x'00' WHERE _name = '1'")
    db.close()
    for path in (tmp_path / "bank.db.artifacts").rglob("*"):
        if path.is_file():
            path.write_bytes(b"y" * 100_000)
    async with perdure.open(f"sqlite:///{file}") as bank:
        subjects = [problem.subject async for problem in bank.verify()]
        assert subjects == ["bank_notes/a/1", large.hash]
        with pytest.raises(perdure.Corrupted, match="bank_notes/a/1"):
            await bank.collection(Note).get("a/1")
        assert await bank.collection(Note).get("a/2") == Note("a/2", "text " * 9)


async def test_info_tells_what_a_bank_is_and_holds(store_url: str) -> None:
    async with perdure.open(store_url) as bank:
        await bank.collection(Note).put(Note("a", "text"))
        info = await bank.info()
        assert info.url == store_url
        assert "versions" in info.capabilities
        assert [size.rows for size in info.collections if size.collection == "bank_notes"] == [1]


async def test_artifacts_lie_where_the_configuration_says(tmp_path: Path) -> None:
    config = Config(artifacts=ArtifactsConfig(folder=str(tmp_path / "blobs")))
    async with perdure.open("memory://", config=config) as bank:
        await bank.artifacts.put(b"x" * 100_000)
    assert any(path.is_file() for path in (tmp_path / "blobs").rglob("*"))


async def test_a_closed_bank_says_so(store_url: str) -> None:
    bank = perdure.open(store_url)
    await bank.open()
    await bank.close()
    await bank.close()
    with pytest.raises(perdure.Closed):
        await bank.collection(Note).get("a")


def test_each_bank_on_a_server_has_a_folder_of_its_own() -> None:
    """Also one whose address names several servers, of which one is the primary."""
    urls = [
        "postgresql://db1/bank",
        "postgresql://db1:5433/bank",
        "postgresql://db1,db2/bank?target_session_attrs=read-write",
        "postgresql://db1:5432,db2:5432/bank?target_session_attrs=read-write",
        "postgresql://perdure:secret@db1:5432,db2:5433/bank?target_session_attrs=read-write",
    ]
    folders = [artifact_place(url, ArtifactsConfig(), temporary=False) for url in urls]
    assert len(set(folders)) == len(urls)
    assert not any("secret" in str(folder) for folder in folders)
