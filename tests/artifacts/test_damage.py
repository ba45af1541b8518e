"""Damage is found, named, and mended by putting the content again."""

from __future__ import annotations

import os
from pathlib import Path

import apsw
import pytest

from perdure.artifacts import INLINE_BELOW, Artifact, ArtifactPlace, ArtifactStore, FaultKind
from perdure.artifacts.artifact import row_key
from perdure.artifacts.artifact_rows import InlineArtifact
from perdure.core.errors import AccessDenied, ArtifactMissing, Corrupted, StorageError
from perdure.storage.backends.sqlite import SQLiteAdapter
from perdure.storage.store import Store
from tests.artifacts.papers import Paper
from tests.artifacts.places import file_of, final_files, names_in, text_in, write

LARGE = 1024 * 1024 + 17


async def faults(artifacts: ArtifactStore) -> list[tuple[str, ArtifactPlace | None, FaultKind]]:
    return [(fault.artifact, fault.place, fault.kind) async for fault in artifacts.check()]


async def assert_damaged(
    artifacts: ArtifactStore, artifact: Artifact, place: ArtifactPlace
) -> None:
    with pytest.raises(Corrupted, match=artifact.hash) as caught:
        await artifacts.read(artifact)
    assert caught.value.record == artifact.hash
    assert caught.value.hint
    with pytest.raises(Corrupted):
        async for _ in artifacts.stream(artifact, chunk=4096):
            pass
    assert await artifacts.exists(artifact)
    assert await faults(artifacts) == [(artifact.hash, place, FaultKind.DAMAGED)]


def flip(file: Path, at: int) -> None:
    with file.open("r+b") as handle:
        handle.seek(at)
        (byte,) = handle.read(1)
        handle.seek(at)
        handle.write(bytes([byte ^ 1]))


@pytest.mark.parametrize("at", [0, LARGE // 2, LARGE - 1])
async def test_a_flipped_byte_in_a_file(artifacts: ArtifactStore, root: Path, at: int) -> None:
    content = os.urandom(LARGE)
    artifact = await artifacts.put(content)
    sound = await artifacts.put(os.urandom(INLINE_BELOW))
    flip(file_of(root, artifact), at)
    await assert_damaged(artifacts, artifact, ArtifactPlace.DISK)
    assert await artifacts.read(sound)
    await artifacts.put(content)
    assert await artifacts.read(artifact) == content
    assert await faults(artifacts) == []


@pytest.mark.parametrize("length", [0, 1, LARGE - 1, LARGE + 1])
async def test_a_file_of_another_length(artifacts: ArtifactStore, root: Path, length: int) -> None:
    artifact = await artifacts.put(os.urandom(LARGE))
    os.truncate(file_of(root, artifact), length)
    await assert_damaged(artifacts, artifact, ArtifactPlace.DISK)


async def test_a_file_truncated_while_it_is_streamed(artifacts: ArtifactStore, root: Path) -> None:
    artifact = await artifacts.put(os.urandom(LARGE))
    stream = artifacts.stream(artifact, chunk=1024 * 1024)
    await anext(stream)
    os.truncate(file_of(root, artifact), 1024)
    with pytest.raises(StorageError):
        async for _ in stream:
            pass


async def test_a_missing_file(artifacts: ArtifactStore, store: Store, root: Path) -> None:
    artifact = await artifacts.put(os.urandom(LARGE))
    file_of(root, artifact).unlink()
    with pytest.raises(ArtifactMissing, match=artifact.hash):
        await artifacts.read(artifact)
    with pytest.raises(ArtifactMissing, match=artifact.hash):
        await anext(artifacts.stream(artifact))
    assert not await artifacts.exists(artifact)

    papers = [Paper("there", await artifacts.put(b"there")), Paper("gone", artifact)]
    await store.collection(Paper).put_many(papers)
    (fault,) = [fault async for fault in artifacts.check(referred=True)]
    assert (fault.artifact, fault.place, fault.kind) == (artifact.hash, None, FaultKind.MISSING)


async def test_a_flipped_byte_in_the_database(root: Path, tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/bank.db"
    async with Store(SQLiteAdapter(url)) as store:
        artifacts = ArtifactStore(store, root)
        sound = [await artifacts.put(b"sound %d" % number) for number in range(100)]
        artifact = await artifacts.put(b"about to be damaged" * 100)
    db = apsw.Connection(str(tmp_path / "bank.db"))
    db.execute(
        "UPDATE perdure_artifacts SET _value ="
        " CAST(substr(_value, 1, 1000) || x'00' || substr(_value, 1002) AS BLOB)"
        " WHERE length(_value) > 1000"
    )
    assert db.changes() == 1
    db.close()
    async with Store(SQLiteAdapter(url)) as store:
        artifacts = ArtifactStore(store, root)
        await assert_damaged(artifacts, artifact, ArtifactPlace.ROW)
        for other in sound:
            assert (await artifacts.read(other)).startswith(b"sound")
        await artifacts.put(b"about to be damaged" * 100)
        assert await faults(artifacts) == []


async def test_a_row_with_other_content_and_a_good_checksum(
    artifacts: ArtifactStore, store: Store
) -> None:
    artifact = await artifacts.put(b"original")
    await store.collection(InlineArtifact).put(InlineArtifact(row_key(artifact.hash), b"forged"))
    await assert_damaged(artifacts, artifact, ArtifactPlace.ROW)


async def test_a_row_under_a_name_that_is_none(artifacts: ArtifactStore, store: Store) -> None:
    await store.collection(InlineArtifact).put(InlineArtifact("sha256/nothing", b"lost"))
    assert await faults(artifacts) == [("sha256/nothing", ArtifactPlace.ROW, FaultKind.DAMAGED)]
    assert [found async for found in artifacts.located()] == []


async def test_foreign_files_are_left_alone(artifacts: ArtifactStore, root: Path) -> None:
    artifact = await artifacts.put(os.urandom(LARGE))
    for name in ("notes.txt", "sha256/notes.txt", f"sha256/{artifact.hex}", "sha256/ab/.DS_Store"):
        write(root / name, "mine")
    assert [found.artifact async for found in artifacts.located()] == [artifact.hash]
    assert await faults(artifacts) == []
    assert await artifacts.open() == 0
    assert text_in(root / "notes.txt") == "mine"


# Links --------------------------------------------------------------------------------------------


@pytest.fixture
def outside(tmp_path: Path) -> Path:
    folder = tmp_path / "outside"
    folder.mkdir()
    return folder


async def test_a_link_in_place_of_a_file_is_not_followed(
    artifacts: ArtifactStore, root: Path, outside: Path
) -> None:
    content = os.urandom(LARGE)
    artifact = await artifacts.put(content)
    secret = outside / "secret"
    secret.write_bytes(content)  # even the right content is not ours
    file = file_of(root, artifact)
    file.unlink()
    file.symlink_to(secret)
    with pytest.raises(Corrupted, match=artifact.hash):
        await artifacts.read(artifact)
    assert await faults(artifacts) == [(artifact.hash, ArtifactPlace.DISK, FaultKind.DAMAGED)]
    await artifacts.put(content)  # replaces the link, not what it points to
    assert not file.is_symlink()
    assert secret.stat().st_mode & 0o777 != 0o600
    file.unlink()
    file.symlink_to(secret)
    await artifacts.delete(artifact)
    assert secret.read_bytes() == content


async def test_a_link_in_place_of_a_folder_is_not_followed(
    artifacts: ArtifactStore, root: Path, outside: Path
) -> None:
    content = os.urandom(LARGE)
    artifact = await artifacts.put(content)
    file = file_of(root, artifact)
    file.rename(outside / file.name)
    file.parent.rmdir()
    file.parent.symlink_to(outside)
    with pytest.raises(Corrupted, match=artifact.hash):
        await artifacts.read(artifact)
    for attempt in (artifacts.put(content), artifacts.delete(artifact)):
        with pytest.raises(AccessDenied):
            await attempt
    assert names_in(outside) == [file.name]


@pytest.mark.parametrize("folder", ["incoming", "sha256"])
async def test_nothing_is_written_or_swept_through_a_link(
    artifacts: ArtifactStore, root: Path, outside: Path, folder: str
) -> None:
    (root / folder).parent.mkdir()
    write(outside / "precious", "mine")
    os.utime(outside / "precious", (1, 1))
    (root / folder).symlink_to(outside)
    with pytest.raises(AccessDenied):
        await artifacts.put(os.urandom(LARGE))
    assert await artifacts.open() == 0
    if folder == "sha256":
        with pytest.raises(AccessDenied):
            await faults(artifacts)
    assert names_in(outside) == ["precious"]


async def test_a_loop_of_links_is_one_clear_error(artifacts: ArtifactStore, root: Path) -> None:
    await artifacts.put(os.urandom(LARGE))
    (root / "sha256" / "loop").symlink_to(root)
    with pytest.raises(StorageError, match="loop"):
        await faults(artifacts)


async def test_the_root_itself_may_be_a_link(store: Store, tmp_path: Path, outside: Path) -> None:
    (tmp_path / "link").symlink_to(outside)
    artifacts = ArtifactStore(store, tmp_path / "link")
    artifact = await artifacts.put(os.urandom(LARGE))
    assert len(await artifacts.read(artifact)) == LARGE
    assert len(final_files(outside)) == 1


async def test_a_pipe_in_place_of_a_file_does_not_hang(
    artifacts: ArtifactStore, root: Path
) -> None:
    artifact = await artifacts.put(os.urandom(LARGE))
    file_of(root, artifact).unlink()
    os.mkfifo(file_of(root, artifact))
    with pytest.raises(Corrupted):
        await artifacts.read(artifact)
