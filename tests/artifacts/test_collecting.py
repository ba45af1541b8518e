"""Garbage collection: what goes, what stays, and races decided one step at a time."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Annotated, Any

import apsw
import msgspec
import pytest

from perdure.artifacts import (
    INLINE_BELOW,
    Artifact,
    ArtifactStore,
    FaultKind,
    PlaceAddress,
    Referrer,
    folder_objects,
)
from perdure.artifacts.artifact_collector import LastPut
from perdure.artifacts.artifact_contents import ArtifactContents
from perdure.core.errors import ArtifactMissing, Conflict
from perdure.storage import records
from perdure.storage.backends.sqlite import SQLiteAdapter
from perdure.storage.record_migrations import migrate
from perdure.storage.record_references import Condemned, Referring
from perdure.storage.records import Key, record
from perdure.storage.store import Store
from perdure.testing.manual_clock import ManualClock
from tests.artifacts.papers import Paper
from tests.artifacts.places import final_files

SIZES = [100, INLINE_BELOW + 1]


async def listed(artifacts: ArtifactStore) -> set[str]:
    return {found.artifact async for found in artifacts.located()}


async def condemned(store: Store) -> dict[str, bool]:
    page = await store.collection(Condemned).list(limit=1000)
    return {row.id: row.gone for row in page.values}


async def test_what_nothing_refers_to_goes(artifacts: ArtifactStore, store: Store) -> None:
    contents = [os.urandom(size) for size in (*SIZES, *SIZES)]
    one, two, three, four = [await artifacts.put(content) for content in contents]
    papers = store.collection(Paper)
    await papers.put_many([Paper("a", one), Paper("b", two), Paper("c", one)])
    seen: list[tuple[str, int, int]] = []
    would = await artifacts.collect(grace=0, dry_run=True)
    assert (would.seen, would.kept, would.deleted, would.dry_run) == (4, 2, 2, True)
    assert len(await listed(artifacts)) == 4
    done = await artifacts.collect(grace=0, progress=lambda *at: seen.append(at))
    assert (done.seen, done.kept, done.deleted, done.dry_run) == (4, 2, 2, False)
    assert done.bytes == would.bytes >= INLINE_BELOW
    assert seen[-1][1] == 4
    assert await listed(artifacts) == {one.hash, two.hash}
    for gone in (three, four):
        with pytest.raises(ArtifactMissing):
            await artifacts.read(gone)
    assert [fault async for fault in artifacts.check(referred=True, orphans=True)] == []
    await papers.delete("a")
    assert (await artifacts.collect(grace=0)).deleted == 0
    await papers.query().prefix("").delete()
    assert (await artifacts.collect(grace=0)).deleted == 2
    assert await listed(artifacts) == set()


async def test_the_grace_period_counts_from_the_last_put(
    timed_store: Store, clock: ManualClock, place: PlaceAddress
) -> None:
    artifacts = ArtifactStore(timed_store, place)
    contents = [os.urandom(size) for size in SIZES]
    for content in contents:
        await artifacts.put(content)
    clock.advance("23h")
    assert (await artifacts.collect()).deleted == 0
    for content in contents:
        await artifacts.put(content)
    clock.advance("23h")
    assert (await artifacts.collect()).deleted == 0
    clock.advance("2h")
    assert (await artifacts.collect(grace="30d")).deleted == 0
    assert (await artifacts.collect()).deleted == 2


async def test_a_put_that_was_never_noted_is_as_old_as_its_file(
    store: Store, root: Path, tmp_path: Path
) -> None:
    artifacts = ArtifactStore(store, root)
    artifact = await artifacts.put(os.urandom(INLINE_BELOW))
    await store.collection(LastPut).delete(artifact.hash)
    assert (await artifacts.collect(grace="1h")).deleted == 0
    (file,) = final_files(root)
    os.utime(file, (1, 1))
    assert (await artifacts.collect(grace="1h")).deleted == 1


async def test_a_process_that_does_not_know_the_types_collects_too(tmp_path: Path) -> None:
    url, place = f"sqlite:///{tmp_path}/bank.db", tmp_path / "artifacts"
    async with Store(SQLiteAdapter(url)) as store, Store(SQLiteAdapter(url)) as early:
        assert await ArtifactStore(early, place).count(Artifact.of(b"x")) == 0
        artifacts, papers = ArtifactStore(store, place), store.collection(Paper)
        hashes = [(await artifacts.put(os.urandom(size))).hash for size in (*SIZES, 300)]
        await papers.put_many([Paper(f"{n:03}", Artifact(hashes[0], 100)) for n in range(70)])
        await papers.put_many([Paper("x/1", Artifact(hashes[1], 1)), Paper("x/2")])
        await papers.query().prefix("0").delete()
        await papers.put(Paper("069", Artifact(hashes[0], 100)))
        async with Store(SQLiteAdapter(url)) as late:
            for other in (early, late):
                assert (await ArtifactStore(other, place).collect(grace=0)).kept == 2
        assert await listed(artifacts) == set(hashes[:2])
        assert [row.id for row in (await store.collection(Referring).list()).values] == [
            "papers/069",
            "papers/x/1",
        ]


@pytest.mark.parametrize("size", SIZES)
async def test_collected_content_can_be_put_and_referred_to_again(
    artifacts: ArtifactStore, store: Store, size: int
) -> None:
    content = os.urandom(size)
    papers = store.collection(Paper)
    artifact = await artifacts.put(content)
    for _ in range(3):
        assert (await artifacts.collect(grace=0)).deleted == 1
        assert await condemned(store) == {artifact.hash: True}
        with pytest.raises(Conflict, match="Put its content again"):
            await papers.put(Paper("a", artifact))
        await artifacts.put(content)
        assert await condemned(store) == {}
        await papers.put(Paper("a", artifact))
        assert (await artifacts.collect(grace=0)).deleted == 0
        assert await artifacts.read(artifact) == content
        assert await artifacts.size(artifact) == size
        await papers.delete("a")
    await artifacts.delete(artifact)
    assert await listed(artifacts) == set()


async def test_those_who_joined_count(artifacts: ArtifactStore) -> None:
    used, free = [await artifacts.put(os.urandom(size)) for size in (100, 200)]

    class Elsewhere:
        async def count(self, artifact: str, /) -> int:
            return int(artifact == used.hash)

        async def of(self, artifact: str, /) -> AsyncIterator[Referrer]:
            if artifact == used.hash:
                yield Referrer(artifact, "elsewhere")

        async def all(self) -> AsyncIterator[Referrer]:
            yield Referrer(used.hash, "elsewhere")

    artifacts.join(Elsewhere())
    assert [each.name for each in await artifacts.references(used)] == ["elsewhere"]
    assert await artifacts.count(used) == 1
    assert (await artifacts.collect(grace=0)).deleted == 1
    assert await listed(artifacts) == {used.hash}
    await artifacts.delete(used)
    (fault,) = [fault async for fault in artifacts.check(referred=True)]
    assert (fault.artifact, fault.kind, fault.referrer) == (
        used.hash,
        FaultKind.MISSING,
        "elsewhere",
    )
    assert free.hash not in await listed(artifacts)


@pytest.mark.parametrize("size", SIZES)
async def test_release_spares_what_others_refer_to(
    artifacts: ArtifactStore, store: Store, size: int
) -> None:
    content = os.urandom(size)
    artifact = await artifacts.put(content)
    papers = store.collection(Paper)
    await papers.put_many([Paper("a", artifact), Paper("b", artifact)])
    assert not await artifacts.release(artifact)
    assert not await artifacts.release(artifact, own=1)
    assert await artifacts.read(artifact) == content
    await papers.delete("b")
    assert await artifacts.release(artifact, own=1)
    await papers.delete("a")
    assert not await artifacts.exists(artifact)
    assert await condemned(store) == {artifact.hash: True}
    assert (await store.collection(LastPut).list()).values == []
    await artifacts.put(content)
    assert await condemned(store) == {}
    await papers.put(Paper("a", artifact))


@pytest.mark.parametrize("size", SIZES)
async def test_who_put_before_a_release_and_refers_after_it_is_told(
    artifacts: ArtifactStore, store: Store, size: int
) -> None:
    content = os.urandom(size)
    artifact = await artifacts.put(content)
    assert await artifacts.release(artifact)
    with pytest.raises(Conflict, match="Put its content again"):
        await store.collection(Paper).put(Paper("a", artifact))
    await artifacts.put(content)
    await store.collection(Paper).put(Paper("a", artifact))
    assert await artifacts.read(artifact) == content


async def test_the_hash_of_what_was_released_is_kept_for_a_day(
    timed_store: Store, clock: ManualClock, place: PlaceAddress
) -> None:
    artifacts = ArtifactStore(timed_store, place)
    (artifact, other) = [await artifacts.put(os.urandom(size)) for size in SIZES]
    assert await artifacts.release(artifact)
    assert (await artifacts.collect(grace=0)).deleted == 1
    clock.advance("23h")
    assert await condemned(timed_store) == {artifact.hash: True, other.hash: True}
    with pytest.raises(Conflict):
        await timed_store.collection(Paper).put(Paper("a", artifact))
    clock.advance("1h1s")
    assert await condemned(timed_store) == {other.hash: True}


# Records without a note of what they refer to ---------------------------------------------------


async def unnote(store: Store) -> None:
    await store.collection(Referring).query().delete()


@pytest.mark.parametrize("size", SIZES)
async def test_what_was_never_noted_is_noted_before_anything_is_deleted(
    artifacts: ArtifactStore, store: Store, size: int
) -> None:
    used, free = await artifacts.put(os.urandom(size)), await artifacts.put(os.urandom(size))
    await store.collection(Paper).put(Paper("a", used))
    await unnote(store)
    would = await artifacts.collect(grace=0, dry_run=True)
    assert (would.kept, would.deleted) == (1, 1)
    assert await artifacts.count(used) == 0  # it was only a question
    done = await artifacts.collect(grace=0)
    assert (done.kept, done.deleted) == (1, 1)
    assert await artifacts.count(used) == 1
    assert await listed(artifacts) == {used.hash}
    assert free.hash in await condemned(store)


@pytest.mark.parametrize("migrates", [True, False])
async def test_what_an_older_type_had_as_text_is_not_collected(
    tmp_path: Path, migrates: bool
) -> None:
    url, place = f"sqlite:///{tmp_path}/bank.db", tmp_path / "artifacts"

    @record("scans")
    class Old(msgspec.Struct, frozen=True):
        id: Annotated[str, Key()]
        file: str
        size: int

    async with Store(SQLiteAdapter(url)) as store:
        artifacts = ArtifactStore(store, place)
        contents = [os.urandom(size) for size in SIZES]
        put = [await artifacts.put(content) for content in contents]
        await store.collection(Old).put_many([Old(p.hash[-5:], p.hash, p.size) for p in put])

    def upgraded(plain: dict[str, Any]) -> dict[str, Any]:
        return {"id": plain["id"], "file": {"hash": plain["file"], "size": plain["size"]}}

    @record("scans", migrations=[upgraded])
    class New(msgspec.Struct, frozen=True):
        id: Annotated[str, Key()]
        file: Artifact

    async with Store(SQLiteAdapter(url)) as store:
        artifacts = ArtifactStore(store, place)
        if migrates:
            await migrate(store, New)
            await unnote(store)  # as if it had been migrated by whoever does not note it
        assert (await artifacts.collect(grace=0)).deleted == 0
        scans = (await store.collection(New).list()).values
        assert sorted([await artifacts.read(scan.file) for scan in scans]) == sorted(contents)
    for cls in (Old, New):
        del records._types[cls]


async def test_types_that_are_not_known_are_read_as_they_are(tmp_path: Path) -> None:
    url, place = f"sqlite:///{tmp_path}/bank.db", tmp_path / "artifacts"

    @record("pictures", serializer="json")
    class Picture(msgspec.Struct, frozen=True):
        id: Annotated[str, Key()]
        file: Artifact

    @record("words")
    class Word(msgspec.Struct, frozen=True):
        id: Annotated[str, Key()]
        text: str

    async with Store(SQLiteAdapter(url)) as store:
        artifacts = ArtifactStore(store, place)
        kept, free = [await artifacts.put(os.urandom(size)) for size in SIZES]
        await store.collection(Picture).put(Picture("a", kept))
        await store.collection(Word).put(Word("a", free.hash))  # only text
        await unnote(store)
    for cls in (Picture, Word):
        del records._types[cls]
    async with Store(SQLiteAdapter(url)) as store:
        artifacts = ArtifactStore(store, place)
        assert (await artifacts.collect(grace=0)).deleted == 1
        assert await listed(artifacts) == {kept.hash}


async def test_a_damaged_record_does_not_hide_the_others(tmp_path: Path) -> None:
    url, place = f"sqlite:///{tmp_path}/bank.db", tmp_path / "artifacts"
    async with Store(SQLiteAdapter(url)) as store:
        artifacts, papers = ArtifactStore(store, place), store.collection(Paper)
        noted, unnoted, _ = [await artifacts.put(os.urandom(size)) for size in (100, 200, 300)]
        await papers.put_many([Paper("a", unnoted), Paper("b", noted)])
        await store.collection(Referring).delete("papers/a")
    with closing(apsw.Connection(f"{tmp_path}/bank.db")) as db:
        db.execute("update papers set _value = x'00' where _id = (select max(_id) from papers)")
    async with Store(SQLiteAdapter(url)) as store:
        artifacts = ArtifactStore(store, place)
        assert (await artifacts.collect(grace=0)).deleted == 1
        assert await listed(artifacts) == {noted.hash, unnoted.hash}


async def test_integrity_names_who_refers(artifacts: ArtifactStore, store: Store) -> None:
    lost, wrong = [await artifacts.put(os.urandom(size)) for size in SIZES]
    orphan = await artifacts.put(b"of nobody")
    papers = store.collection(Paper)
    await papers.put_many([Paper("a", lost), Paper("b", Artifact(wrong.hash, 7))])
    await artifacts.delete(lost)
    found = {
        fault.kind: (fault.artifact, fault.referrer)
        async for fault in artifacts.check(referred=True, orphans=True)
    }
    assert found == {
        FaultKind.MISSING: (lost.hash, "papers/a"),
        FaultKind.WRONG_SIZE: (wrong.hash, "papers/b"),
        FaultKind.ORPHAN: (orphan.hash, ""),
    }
    assert [fault async for fault in artifacts.check()] == []


# Races, one step at a time ----------------------------------------------------------------------

Meanwhile = Callable[[], Awaitable[object]]


class Interrupted(ArtifactContents):
    """Contents at which something happens right before an object is deleted, once."""

    meanwhile: Meanwhile | None = None

    async def delete(self, path: str) -> None:
        if self.meanwhile is not None:
            meanwhile, self.meanwhile = self.meanwhile, None
            await meanwhile()
        await super().delete(path)


@pytest.fixture
def slow_collector(store: Store, place: PlaceAddress) -> tuple[ArtifactStore, Interrupted]:
    """A store whose collector stops before its first deletion."""
    artifacts, contents = ArtifactStore(store, place), Interrupted(place)
    artifacts._places = [contents]
    return artifacts, contents


async def test_content_put_while_it_is_being_deleted_stays(
    artifacts: ArtifactStore,
    store: Store,
    slow_collector: tuple[ArtifactStore, Interrupted],
) -> None:
    content = os.urandom(INLINE_BELOW)
    artifact = await artifacts.put(content)
    collecting, contents = slow_collector

    async def put_and_refer() -> None:
        assert await condemned(store) == {artifact.hash: False}
        await artifacts.put(content)
        await store.collection(Paper).put(Paper("a", artifact))

    contents.meanwhile = put_and_refer
    done = await collecting.collect(grace=0)
    assert (done.seen, done.deleted) == (1, 0)
    assert await artifacts.read(artifact) == content
    assert await artifacts.size(artifact) == INLINE_BELOW
    assert [fault async for fault in artifacts.check(referred=True, orphans=True)] == []
    assert (await artifacts.collect(grace=0)).deleted == 0
    await store.collection(Paper).delete("a")
    assert (await artifacts.collect(grace=0)).deleted == 1
    assert await listed(artifacts) == set()


async def test_who_put_before_and_refers_while_it_is_being_deleted_is_told(
    artifacts: ArtifactStore,
    store: Store,
    slow_collector: tuple[ArtifactStore, Interrupted],
) -> None:
    content = os.urandom(INLINE_BELOW)
    artifact = await artifacts.put(content)
    collecting, contents = slow_collector

    async def refer() -> None:
        with pytest.raises(Conflict, match="Put its content again"):
            await store.collection(Paper).put(Paper("a", artifact))

    contents.meanwhile = refer
    assert (await collecting.collect(grace=0)).deleted == 1
    assert await store.collection(Paper).get("a") is None


async def test_a_collector_that_died_is_followed_by_another(
    timed_store: Store, clock: ManualClock, place: PlaceAddress
) -> None:
    artifacts = ArtifactStore(timed_store, place)
    contents = [os.urandom(size) for size in (*SIZES, 300)]
    hashes = [(await artifacts.put(content)).hash for content in contents]
    for tagged in hashes:
        await timed_store.collection(Condemned).put(Condemned(tagged, "the dead one's"))
    await artifacts.put(contents[2])
    clock.advance("1m")
    assert (await artifacts.collect(grace=0)).deleted == 1  # the others may be somebody's work
    clock.advance("10m")
    assert (await artifacts.collect(grace=0)).deleted == 2
    assert await listed(artifacts) == set()
    clock.advance("31d")
    assert await condemned(timed_store) == {}


async def test_two_collectors_at_once(
    artifacts: ArtifactStore, slow_collector: tuple[ArtifactStore, Interrupted]
) -> None:
    for _ in range(5):
        await artifacts.put(os.urandom(INLINE_BELOW))
    collecting, contents = slow_collector
    others: list[int] = []

    async def collect_too() -> None:
        others.append((await artifacts.collect(grace=0)).deleted)

    contents.meanwhile = collect_too
    done = await collecting.collect(grace=0)
    assert done.deleted + sum(others) == 5
    assert await listed(artifacts) == set()


def test_a_copy_that_is_collected_while_it_is_placed_is_placed_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "incoming").mkdir()
    (tmp_path / "incoming/one").write_bytes(b"content")
    sync, collected = folder_objects.sync_folder, list[Path]()

    def sync_late(folder: Path) -> None:
        if folder.name == "abc" and not collected:
            collected.append(folder)
            folder_objects.remove(tmp_path, "copies/abc/1")  # takes the empty folder with it
        sync(folder)

    monkeypatch.setattr(folder_objects, "sync_folder", sync_late)
    folder_objects.place(tmp_path, "incoming/one", "copies/abc/1")
    assert collected
    assert (tmp_path / "copies/abc/1").read_bytes() == b"content"


async def test_a_folder_that_goes_while_it_is_listed_is_passed_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("one", "two"):
        (tmp_path / "copies" / name).mkdir(parents=True)
        (tmp_path / "copies" / name / "1").write_bytes(b"content")
    walk = os.walk

    def walk_late(top: Path, **how: Any) -> Iterator[Any]:
        for where, folders, names in walk(top, **how):
            if "one" in folders:
                folder_objects.remove(tmp_path, "copies/one/1")
            yield where, folders, names

    monkeypatch.setattr(os, "walk", walk_late)
    pages = folder_objects._pages(tmp_path, "copies")
    assert [found.path for page in pages for found in page] == ["copies/two/1"]
