"""Crashes, full disks and forbidden folders."""

from __future__ import annotations

import os
import random
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from perdure.artifacts import INLINE_BELOW, Artifact, ArtifactStore
from perdure.core.errors import AccessDenied, StorageFull
from perdure.storage.backends.sqlite import SQLiteAdapter
from perdure.storage.store import Store
from tests.artifacts.places import (
    all_whole,
    file_of,
    final_files,
    is_there,
    leftovers,
    text_in,
    write,
)

LARGE = 3 * 1024 * 1024
ROOT = Path(__file__).parents[2]


# Crashes ------------------------------------------------------------------------------------------


async def test_leftovers_are_swept_when_they_are_old(artifacts: ArtifactStore, root: Path) -> None:
    assert await artifacts.open() == 0  # nothing there yet
    assert not is_there(root)
    artifact = await artifacts.put(os.urandom(LARGE))
    day_ago = time.time() - 86_400
    for name in ("old", "old#1", "young", "young#1"):
        file = root / "incoming" / name
        file.write_bytes(b"half of it")
        if name.startswith("old"):
            os.utime(file, (day_ago - 60, day_ago - 60))
    os.utime(file_of(root, artifact), (day_ago - 60, day_ago - 60))
    assert [found.artifact async for found in artifacts.located()] == [artifact.hash]
    assert await artifacts.open() == 2
    assert [path.name for path in leftovers(root)] == ["young", "young#1"]
    assert len(await artifacts.read(artifact)) == LARGE


def write_until_killed(bank: Path, root: Path, pause: float | None) -> list[tuple[str, int]]:
    """What a writer acknowledged until it was killed: after a pause, or right in a write."""
    before = set(leftovers(root))
    process = subprocess.Popen(
        [sys.executable, str(Path(__file__).with_name("writer.py")), str(bank), str(root)],
        stdout=subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": str(ROOT / "src")},
    )
    assert process.stdout is not None
    try:
        assert process.stdout.readline() == b"ready\n"
        if pause is not None:
            time.sleep(pause)
        deadline = time.monotonic() + 10
        while pause is None and set(leftovers(root)) <= before and time.monotonic() < deadline:
            pass
    finally:
        process.kill()
        told = process.stdout.read()
        process.stdout.close()
        process.wait()
    lines = [line.split() for line in told.splitlines(keepends=True) if line.endswith(b"\n")]
    return [(name.decode(), int(size)) for name, size in lines]


async def test_kill_9_leaves_only_whole_artifacts(tmp_path: Path, root: Path) -> None:
    dice = random.Random(7)
    acknowledged: list[tuple[str, int]] = []
    for number in range(10):
        pause = dice.uniform(0, 0.1) if number % 2 else None
        acknowledged += write_until_killed(tmp_path, root, pause)
        assert all_whole(root)
    assert acknowledged
    assert leftovers(root), "no kill came in the middle of a write"

    async with Store(SQLiteAdapter(f"sqlite:///{tmp_path}/bank.db")) as store:
        artifacts = ArtifactStore(store, root)
        for tagged, length in acknowledged:
            assert len(await artifacts.read(tagged)) == length
        assert [fault async for fault in artifacts.check()] == []
        for file in leftovers(root):
            os.utime(file, (1, 1))
        assert await artifacts.open() > 0
        assert leftovers(root) == []


# No room ------------------------------------------------------------------------------------------


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    place = tmp_path / "small"
    place.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=8m", "none", place], capture_output=True, check=False
    )
    if mounted.returncode:
        pytest.skip("needs the right to mount a small disk")
    yield place
    subprocess.run(["umount", "--lazy", place], check=True)


async def test_a_full_disk_leaves_what_was_there(store: Store, small_disk: Path) -> None:
    root = small_disk / "artifacts"
    artifacts = ArtifactStore(store, root)
    kept = await artifacts.put(os.urandom(LARGE))

    async def too_much() -> AsyncIterator[bytes]:
        for _ in range(20):
            yield os.urandom(1024 * 1024)

    errors = []  # kept, as a program that logs them might: they must not keep the room
    for source in (too_much(), os.urandom(2 * LARGE)):
        with pytest.raises(StorageFull, match="no room") as caught:
            await artifacts.put(source)
        assert caught.value.hint
        errors.append(caught.value)
        assert [path.name for path in final_files(root)] == [kept.hex]
        assert leftovers(root) == []
    assert len(await artifacts.read(kept)) == LARGE
    fits = await artifacts.put(os.urandom(LARGE))  # the room was given back
    assert len(await artifacts.read(fits)) == LARGE


def test_a_limit_on_file_sizes_is_no_room(tmp_path: Path) -> None:
    """The same where nobody may mount: the system refuses to let a file grow."""
    script = """
import asyncio, os, resource, sys
from pathlib import Path
from perdure.artifacts import ArtifactStore
from perdure.core.errors import StorageFull
from perdure.storage.backends.memory import MemoryAdapter
from perdure.storage.store import Store

async def main(root):
    resource.setrlimit(resource.RLIMIT_FSIZE, (2_000_000, 2_000_000))
    async with Store(MemoryAdapter()) as store:
        artifacts = ArtifactStore(store, root)
        try:
            await artifacts.put(os.urandom(9_000_000))
        except StorageFull as exc:
            print("full:", exc)
        kept = await artifacts.put(os.urandom(1_000_000))
        print("kept:", len(await artifacts.read(kept)))

asyncio.run(main(Path(sys.argv[1])))
"""
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", script, str(tmp_path / "artifacts")],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "PYTHONPATH": str(ROOT / "src")},
    )
    assert done.stderr == ""
    assert done.stdout.startswith("full: There is no room left")
    assert "kept: 1000000" in done.stdout
    assert len(final_files(tmp_path / "artifacts")) == 1
    assert leftovers(tmp_path / "artifacts") == []


# No right -----------------------------------------------------------------------------------------


async def test_a_file_where_the_folder_should_be(artifacts: ArtifactStore, root: Path) -> None:
    write(root, "mine")
    absent = Artifact.of(b"absent")
    with pytest.raises(AccessDenied, match="artifacts"):
        await artifacts.put(os.urandom(LARGE))
    with pytest.raises(AccessDenied):
        await artifacts.exists(absent)
    assert text_in(root) == "mine"
    assert await artifacts.read(await artifacts.put(b"small ones need no folder"))


@pytest.mark.skipif(not Path("/sys/kernel").is_dir(), reason="needs a folder that refuses root")
async def test_a_folder_that_may_not_be_written(store: Store) -> None:
    artifacts = ArtifactStore(store, Path("/sys/perdure"))
    with pytest.raises(AccessDenied) as caught:
        await artifacts.put(os.urandom(LARGE))
    assert caught.value.hint
    assert not await artifacts.exists(Artifact.of(b"absent"))


@contextmanager
def without_privileges() -> Iterator[None]:
    """As somebody whom permissions bind, which root is not."""
    user = os.geteuid()
    if user == 0:
        os.seteuid(65_534)
    try:
        yield
    finally:
        os.seteuid(user)


async def test_a_file_that_may_not_be_read(store: Store) -> None:
    with tempfile.TemporaryDirectory() as folder:  # tmp_path lies in a folder closed to others
        root = Path(folder)
        artifacts = ArtifactStore(store, root)
        artifact = await artifacts.put(os.urandom(LARGE))
        file_of(root, artifact).chmod(0)
        for open_to_all in (root, *file_of(root, artifact).parents[:2]):
            open_to_all.chmod(0o755)
        with without_privileges():
            with pytest.raises(AccessDenied):
                await artifacts.read(artifact)
            (fault,) = [fault async for fault in artifacts.check()]
        assert (fault.artifact, fault.kind) == (artifact.hash, "unreadable")


async def test_folders_on_the_way_are_made(store: Store, tmp_path: Path) -> None:
    root = tmp_path / "deep" / "deeper" / "artifacts"
    artifacts = ArtifactStore(store, root)
    await artifacts.put(os.urandom(INLINE_BELOW))
    assert (tmp_path / "deep").stat().st_mode & 0o777 == 0o700


async def test_a_removed_root_is_made_again(artifacts: ArtifactStore, root: Path) -> None:
    content = os.urandom(LARGE)
    artifact = await artifacts.put(content)
    shutil.rmtree(root)
    assert not await artifacts.exists(artifact)
    assert [found async for found in artifacts.located()] == []
    await artifacts.put(content)
    assert await artifacts.read(artifact) == content
