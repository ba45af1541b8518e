"""Disks that are soon full, and what is done to a bank on them."""

from __future__ import annotations

import os
import random
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

import perdure
from perdure.bank import Bank
from perdure.storage.options import DEFAULT, STRONG
from tests.fire.records import Entry, Mirror, entry

MEGABYTE = 1024 * 1024


def may_mount() -> bool:
    return os.geteuid() == 0 and shutil.which("mount") is not None


@contextmanager
def small_disk(place: Path, size: int, owner: str = "root") -> Iterator[Path]:
    """A file system of so many bytes, mounted at a place."""
    place.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", f"size={size},mode=700", "perdure-test", str(place)]
    subprocess.run(command, check=True, capture_output=True)
    try:
        shutil.chown(place, owner)
        yield place
    finally:
        # Lazily: whatever a failed test still has open does not keep it.
        subprocess.run(["umount", "--lazy", str(place)], check=True)


def fill(disk: Path, leave: int = 0) -> Path:
    """Take all the room but so many bytes; deleting the file that this returns gives it back."""
    file = disk / "ballast"
    with file.open("wb", buffering=0) as ballast:
        room = shutil.disk_usage(disk).free - leave
        ballast.write(bytes(max(0, room)))
    return file


@contextmanager
def no_room() -> Iterator[None]:
    """What is done inside is refused for want of room, with a hint."""
    with pytest.raises(perdure.StorageFull) as caught:
        yield
    assert caught.value.hint


async def prepare(bank: Bank) -> list[str]:
    """Some records, from before there was no room."""
    await bank.store.declare(Entry, Mirror)  # later there is no room for tables
    keys = [f"early/{number}" for number in range(20)]
    for key in keys:
        await bank.collection(Entry).put(entry(key))
    return keys


async def write_until_full(bank: Bank, size: int = 3_000) -> list[str]:
    """Write records until there is no room, in every way; returns the keys of those acknowledged.

    Every refusal is the same clear error, and nothing of what was refused is there.
    """
    records = bank.collection(Mirror)
    acknowledged: list[str] = []
    refused: list[str] = []
    for options in (DEFAULT, STRONG, DEFAULT):
        while True:
            key = f"late/{len(acknowledged) + len(refused)}"
            try:
                await records.put(large(key, size), options)
            except perdure.StorageFull:
                refused.append(key)
                break
            acknowledged.append(key)
    for key in refused:
        assert await records.get(key) is None
    with no_room():
        async with bank.transaction() as tx:
            for number in range(5):
                await tx.collection(Mirror).put(large(f"together/{number}", size))
            tx.emit("full")
    assert await records.query().prefix("together/").count() == 0
    return acknowledged


async def assert_sound(bank: Bank, early: list[str], late: list[str], size: int = 3_000) -> None:
    """Everything acknowledged can be read, and nothing else."""
    entries, records = bank.collection(Entry), bank.collection(Mirror)
    assert await entries.get_many(early) == [entry(key) for key in early]
    assert await entries.query().count() == len(early)
    assert await records.get_many(late) == [large(key, size) for key in late]
    assert await records.query().count() == len(late)


async def assert_works_again(bank: Bank) -> None:
    """There is room again: writing goes on in the same bank."""
    entries = bank.collection(Entry)
    await entries.put(entry("after"))
    await entries.put_many([entry(f"after/{number}") for number in range(20)])
    async with bank.transaction() as tx:
        await tx.collection(Entry).put(entry("after/all"))
        tx.emit("room")
    events, _ = await bank.store.adapter.events("", 10)
    assert [event.topic for event in events] == ["room"]
    assert await entries.query().prefix("after").count() == 22
    assert [problem async for problem in bank.verify()] == []


def large(key: str, size: int) -> Mirror:
    """A record of about so many bytes, of a type that is not compressed."""
    return Mirror(key, random.Random(key).randbytes(size // 2).hex())
