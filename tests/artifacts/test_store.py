"""In and out: every size, every kind of source, transactions, one copy of the same content."""

from __future__ import annotations

import asyncio
import io
import os
import subprocess
import tracemalloc
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path

import pytest

from perdure.artifacts import INLINE_BELOW, Artifact, ArtifactPlace, ArtifactStore, PlaceAddress
from perdure.artifacts.artifact import PIECE, ArtifactInput
from perdure.core.errors import AccessDenied, ArtifactMissing, InvalidInput
from perdure.storage.compression import Compression
from perdure.storage.store import Store
from tests.artifacts.places import (
    file_of,
    final_files,
    is_there,
    kind_of,
    nothing_left,
)

SIZES = [0, 1, INLINE_BELOW - 1, INLINE_BELOW, PIECE, PIECE + 1, 5 * 1024 * 1024 + 3]
MB = 1024 * 1024


async def chunks_of(content: bytes, size: int) -> AsyncIterator[bytes]:
    for start in range(0, len(content), size):
        yield content[start : start + size]


def sources_of(content: bytes, folder: Path) -> Iterator[ArtifactInput]:
    """The same content in every form that can be put."""
    given = folder / "given"
    given.write_bytes(content)
    yield content
    yield bytearray(content)
    yield memoryview(content)
    yield given
    yield io.BytesIO(content)
    yield chunks_of(content, max(1, len(content) // 7))


@pytest.mark.parametrize("size", SIZES)
async def test_what_goes_in_comes_out(
    artifacts: ArtifactStore, place: PlaceAddress, tmp_path: Path, size: int
) -> None:
    content = os.urandom(size)
    kind = ArtifactPlace.ROW if size < INLINE_BELOW else kind_of(place)
    for source in sources_of(content, tmp_path):
        artifact = await artifacts.put(source)
        assert artifact == Artifact.of(content)
        assert await artifacts.read(artifact) == await artifacts.read(artifact.hash) == content
        found = [(found.artifact, found.place) async for found in artifacts.located()]
        assert found == [(artifact.hash, kind)]
        await artifacts.delete(artifact)
    artifact = await artifacts.put(content)
    assert await artifacts.size(artifact) == size
    assert await artifacts.exists(artifact)
    for chunk in (50_000, 3 * MB):
        got = [part async for part in artifacts.stream(artifact, chunk)]
        assert b"".join(got) == content
        assert all(len(part) == chunk for part in got[:-1])
    if isinstance(place, Path):
        assert is_there(place) == (kind is ArtifactPlace.DISK)
    assert [fault async for fault in artifacts.check()] == []


def sha256sum(file: Path) -> str:
    shown = subprocess.run(["sha256sum", file], capture_output=True, text=True, check=True)
    return shown.stdout.split()[0]


async def test_a_file_is_what_sha256sum_says(artifacts: ArtifactStore, root: Path) -> None:
    artifact = await artifacts.put(os.urandom(INLINE_BELOW))
    file = file_of(root, artifact)
    assert sha256sum(file) == artifact.hex == file.name


async def test_files_and_folders_are_private(artifacts: ArtifactStore, root: Path) -> None:
    before = os.umask(0)
    try:
        artifact = await artifacts.put(os.urandom(INLINE_BELOW))
    finally:
        os.umask(before)
    file = file_of(root, artifact)
    assert file.stat().st_mode & 0o777 == 0o600
    for folder in (root, root / "incoming", root / "sha256", file.parent):
        assert folder.stat().st_mode & 0o777 == 0o700


async def test_memory_stays_bounded_in_and_out(
    artifacts: ArtifactStore, place: PlaceAddress
) -> None:
    size = 64 * MB
    more = 0 if isinstance(place, Path) else 24 * MB  # parts of 8 MB, some at once

    async def flood() -> AsyncIterator[bytes]:
        for number in range(size // 65536):
            yield number.to_bytes(4, "big") * 16384

    resident = _resident()
    tracemalloc.start()
    try:
        artifact = await artifacts.put(flood())
        total = 0
        async for chunk in artifacts.stream(artifact):
            total += len(chunk)
        assert [fault async for fault in artifacts.check()] == []
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert artifact.size == total == size
    assert peak < 24 * MB + more
    # obstore's buffers are not Python's: the process as a whole must stay small, too.
    assert _resident() - resident < 40 * MB + more


def _resident() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


@pytest.mark.parametrize("size", [10, INLINE_BELOW])
async def test_the_same_content_is_stored_once(
    artifacts: ArtifactStore, place: PlaceAddress, size: int
) -> None:
    content = os.urandom(size)
    first = await artifacts.put(content)
    seen = [found.modified_us async for found in artifacts.located()]
    again = await asyncio.gather(
        artifacts.put(content),
        artifacts.put(io.BytesIO(content)),
        artifacts.put(chunks_of(content, 1000)),
    )
    assert set(again) == {first}
    (found,) = [found async for found in artifacts.located()]
    assert found.modified_us >= seen[0]
    if isinstance(place, Path):
        assert len(final_files(place)) == (1 if size >= INLINE_BELOW else 0)
    assert nothing_left(place)


async def test_put_again_counts_as_put_now(artifacts: ArtifactStore, root: Path) -> None:
    content = os.urandom(INLINE_BELOW)
    file = file_of(root, await artifacts.put(content))
    os.utime(file, (1, 1))
    await artifacts.put(content)
    assert file.stat().st_mtime > 1_000_000


# Transactions -----------------------------------------------------------------------------------


async def test_a_row_exists_if_and_only_if_its_transaction_commits(
    artifacts: ArtifactStore, store: Store
) -> None:
    async with store.transaction() as transaction:
        kept = await artifacts.put(b"kept", transaction=transaction)
        assert not await artifacts.exists(kept)
    assert await artifacts.read(kept) == b"kept"

    lost = Artifact.of(b"lost")

    async def fail() -> None:
        async with store.transaction() as transaction:
            assert await artifacts.put(b"lost", transaction=transaction) == lost
            assert await artifacts.put(b"kept", transaction=transaction) == kept
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        await fail()
    assert not await artifacts.exists(lost)
    assert await artifacts.read(kept) == b"kept"


async def test_two_transactions_with_the_same_content_do_not_conflict(
    artifacts: ArtifactStore, store: Store
) -> None:
    async with store.transaction() as one, store.transaction() as other:
        await artifacts.put(b"shared", transaction=one)
        await artifacts.put(b"shared", transaction=other)
    assert await artifacts.read(Artifact.of(b"shared")) == b"shared"


async def test_a_large_one_is_there_before_its_transaction_commits(
    artifacts: ArtifactStore, store: Store
) -> None:
    content = os.urandom(INLINE_BELOW)

    async def fail() -> None:
        async with store.transaction() as transaction:
            artifact = await artifacts.put(content, transaction=transaction)
            assert await artifacts.exists(artifact)
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        await fail()
    assert await artifacts.read(Artifact.of(content)) == content


# Deleting and missing -----------------------------------------------------------------------------


@pytest.mark.parametrize("size", [10, INLINE_BELOW])
async def test_deleted_is_gone_and_can_come_back(artifacts: ArtifactStore, size: int) -> None:
    content = os.urandom(size)
    artifact = Artifact.of(content)
    await artifacts.delete(artifact)  # nothing there: no error
    await artifacts.put(content)
    await artifacts.delete(artifact)
    await artifacts.delete(artifact)
    assert not await artifacts.exists(artifact)
    for door in (artifacts.read, artifacts.size):
        with pytest.raises(ArtifactMissing, match=artifact.hash):
            await door(artifact)
    assert [found async for found in artifacts.located()] == []
    await artifacts.put(content)
    assert await artifacts.read(artifact) == content


async def test_many_are_listed_page_by_page(artifacts: ArtifactStore) -> None:
    put = {(await artifacts.put(b"%d" % number)).hash for number in range(150)}
    put |= {(await artifacts.put(os.urandom(INLINE_BELOW))).hash for _ in range(3)}
    assert {found.artifact async for found in artifacts.located()} == put


# Sources that do not work -------------------------------------------------------------------------


@pytest.mark.parametrize(
    "make", [lambda: "text", lambda: 7, lambda: None, lambda: [b""], io.StringIO]
)
async def test_what_is_not_bytes_is_refused(
    artifacts: ArtifactStore, make: Callable[[], ArtifactInput]
) -> None:
    with pytest.raises(InvalidInput):
        await artifacts.put(make())
    assert [found async for found in artifacts.located()] == []


async def test_a_path_to_nothing_is_refused(artifacts: ArtifactStore, tmp_path: Path) -> None:
    for path in (tmp_path / "absent", tmp_path, Path("a\0b")):
        with pytest.raises(InvalidInput, match="There is no file"):
            await artifacts.put(path)


@pytest.mark.parametrize("before", [1, 3 * PIECE])
async def test_a_stream_that_fails_leaves_nothing(
    artifacts: ArtifactStore, place: PlaceAddress, before: int
) -> None:
    async def broken() -> AsyncIterator[bytes]:
        yield bytes(before)
        raise ZeroDivisionError

    async def mixed() -> AsyncIterator[bytes]:
        yield bytes(before)
        yield "text"  # type: ignore[misc]

    with pytest.raises(ZeroDivisionError):
        await artifacts.put(broken())
    with pytest.raises(InvalidInput, match="gave a str"):
        await artifacts.put(mixed())
    assert [found async for found in artifacts.located()] == []
    assert nothing_left(place)


async def test_a_cancelled_put_leaves_nothing(
    artifacts: ArtifactStore, place: PlaceAddress
) -> None:
    reached = asyncio.Event()

    async def endless() -> AsyncIterator[bytes]:
        for _ in range(12):
            yield os.urandom(PIECE)
        reached.set()
        await asyncio.sleep(3600)

    task = asyncio.create_task(artifacts.put(endless()))
    await reached.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert [found async for found in artifacts.located()] == []
    assert nothing_left(place)


async def test_a_file_that_cannot_be_read_is_named(artifacts: ArtifactStore) -> None:
    # Opening a process's memory works; reading at 0 gives EIO, for root too.
    with pytest.raises(AccessDenied, match="cannot be read"):
        await artifacts.put(Path("/proc/self/mem"))


async def test_a_chunk_must_hold_something(artifacts: ArtifactStore) -> None:
    with pytest.raises(InvalidInput):
        artifacts.stream(Artifact.of(b""), chunk=0)


async def test_rows_are_compressed_and_still_verified(store: Store, root: Path) -> None:
    compression = Compression()
    packed = Store(store.adapter, middleware=[compression])
    artifacts = ArtifactStore(packed, root)
    content = b"The same line again and again.\n" * 2000
    artifact = await artifacts.put(content)
    assert await artifacts.read(artifact) == content
    (row,) = await store.adapter.salvage("perdure_artifacts", "", 10)
    assert len(row.value) < len(content) / 50
    assert [fault async for fault in artifacts.check()] == []
