"""Moves between places: whole, verified, repeatable, and killed in the middle."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from perdure.artifacts import INLINE_BELOW, Artifact, ArtifactStore, PlaceAddress, place_of
from perdure.artifacts.artifact_contents import ArtifactContents
from perdure.core.errors import ArtifactMissing, InvalidInput
from perdure.storage.backends.sqlite import SQLiteAdapter
from perdure.storage.store import Store
from tests.artifacts.places import all_whole, file_of, final_files
from tests.artifacts.test_hammer import Hammers

LARGE = 1024 * 1024 + 17


@pytest.fixture(params=["folder to s3", "s3 to folder", "folder to folder"])
def way(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[PlaceAddress, PlaceAddress]:
    """From where to where."""
    folder = tmp_path / "old"
    if request.param == "folder to folder":
        return folder, tmp_path / "new"
    there = place_of(request.getfixturevalue("s3_url"))
    return (folder, there) if request.param == "folder to s3" else (there, folder)


async def listed(artifacts: ArtifactStore) -> set[str]:
    return {found.artifact async for found in artifacts.located()}


async def test_everything_is_there_afterwards(
    store: Store, way: tuple[PlaceAddress, PlaceAddress]
) -> None:
    old, new = way
    here, there = ArtifactStore(store, old), ArtifactStore(store, new)
    contents = [os.urandom(size) for size in (100, INLINE_BELOW, LARGE, 9 * LARGE)]
    put = [await here.put(content) for content in contents]
    seen: list[tuple[str, int, int]] = []
    moved = await here.move(new, progress=lambda *at: seen.append(at))
    assert (moved.copied, moved.skipped, moved.deleted, moved.damaged) == (3, 0, 0, ())
    assert moved.bytes == sum(map(len, contents[1:]))
    assert seen[-1] == ("copying artifacts", 3, 0)
    for content, artifact in zip(contents, put, strict=True):
        assert await there.read(artifact) == await here.read(artifact) == content
    assert [fault async for fault in there.check()] == []

    more = await here.put(os.urandom(LARGE))  # only what is new is copied
    moved = await here.move(new, delete=True)
    assert (moved.copied, moved.skipped, moved.deleted) == (1, 3, 4)
    assert len(await there.read(more)) == LARGE
    with pytest.raises(ArtifactMissing):
        await here.read(more)
    assert await here.read(put[0]) == contents[0]  # it is a row of the bank
    assert (await here.move(new)).copied == 0


async def test_during_a_move_the_former_place_is_read_too(
    store: Store, way: tuple[PlaceAddress, PlaceAddress]
) -> None:
    old, new = way
    before = ArtifactStore(store, old)
    content = os.urandom(LARGE)
    artifact = await before.put(content)
    now = ArtifactStore(store, new, former=old)
    assert await now.read(artifact) == content
    assert await now.exists(artifact)
    assert await now.size(artifact) == LARGE
    other = await now.put(os.urandom(LARGE))
    assert await listed(before) == {artifact.hash}
    assert await listed(now) == {artifact.hash, other.hash}
    await before.move(new, delete=True)
    assert await listed(before) == set()
    assert await now.read(artifact) == content
    await now.delete(artifact)
    assert not await now.exists(artifact)
    assert [fault async for fault in now.check()] == []
    assert (await now.collect(grace=0)).deleted == 1


async def test_a_damaged_one_stays_where_it_is(store: Store, tmp_path: Path) -> None:
    here, new = ArtifactStore(store, tmp_path / "old"), tmp_path / "new"
    sound, damaged = [await here.put(os.urandom(LARGE)) for _ in range(2)]
    file = file_of(tmp_path / "old", damaged)
    os.truncate(file, 1000)
    moved = await here.move(new, delete=True)
    assert (moved.copied, moved.deleted, moved.damaged) == (1, 1, (damaged.hash,))
    assert [path.name for path in final_files(tmp_path / "old")] == [damaged.hex]
    assert [path.name for path in final_files(new)] == [sound.hex]


async def test_a_damaged_copy_is_copied_again(store: Store, tmp_path: Path) -> None:
    here, new = ArtifactStore(store, tmp_path / "old"), tmp_path / "new"
    artifact = await here.put(os.urandom(LARGE))
    await here.move(new)
    os.truncate(file_of(new, artifact), 1000)
    assert (await here.move(new, delete=True)).copied == 1
    assert all_whole(new)


async def test_what_is_put_during_a_move_is_moved_too(
    store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    here, new = ArtifactStore(store, tmp_path / "old"), tmp_path / "new"
    await here.put(os.urandom(LARGE))
    later: list[Artifact] = []
    listing = ArtifactContents.listed

    async def listed_and_then_more(self: ArtifactContents) -> object:
        async for found in listing(self):
            yield found
        if len(later) < 3:
            later.append(await here.put(os.urandom(LARGE)))

    monkeypatch.setattr(ArtifactContents, "listed", listed_and_then_more)
    assert (await here.move(new)).copied == 4
    assert {path.name for path in final_files(new)} >= {artifact.hex for artifact in later}


async def test_nowhere_to_move(store: Store, tmp_path: Path) -> None:
    artifacts = ArtifactStore(store, tmp_path / "here")
    with pytest.raises(InvalidInput, match="already"):
        await artifacts.move(tmp_path / "here")


# Killed ------------------------------------------------------------------------------------------


@pytest.fixture
def hammers(tmp_path: Path) -> Iterator[Hammers]:
    hammers = Hammers(tmp_path / "bank.db", str(tmp_path / "old"))
    yield hammers
    hammers.dispose()


@pytest.mark.repeated
@pytest.mark.parametrize("target", ["disk", "s3"])
async def test_kill_9_in_a_move(
    hammers: Hammers, tmp_path: Path, target: str, request: pytest.FixtureRequest
) -> None:
    new = str(tmp_path / "new") if target == "disk" else request.getfixturevalue("s3_url")
    async with Store(SQLiteAdapter(f"sqlite:///{tmp_path}/bank.db")) as store:
        here, there = ArtifactStore(store, tmp_path / "old"), ArtifactStore(store, place_of(new))
        contents = {(await here.put(os.urandom(INLINE_BELOW))).hash for _ in range(40)}
        halves = 0
        for mode, watched in (("copy", there), ("copy", there), ("delete", here), ("delete", here)):
            before = await listed(watched)
            mover = hammers.start("mover", mode, new)
            while mover.poll() is None and await listed(watched) == before:
                pass
            hammers.kill(mover)
            halves += 0 < len(await listed(watched)) < len(contents)
            assert await listed(here) | await listed(there) == contents
            assert [fault async for fault in there.check()] == []
        assert halves, "no kill came in the middle of a move"
        assert hammers.end(hammers.start("mover", "delete", new)).startswith("done ")
        assert await listed(there) == contents
        assert await listed(here) == set()
        assert [fault async for fault in there.check()] == []
