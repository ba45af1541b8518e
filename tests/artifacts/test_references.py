"""References: written with the record, gone with it, found from both ends."""

from __future__ import annotations

from pathlib import Path

import pytest

from perdure.artifacts import Artifact, ArtifactStore
from perdure.artifacts.artifact_references import ArtifactReferences
from perdure.core.errors import Conflict
from perdure.storage.options import Options
from perdure.storage.record_references import Condemned, Referring, gatherer
from perdure.storage.store import Store
from perdure.testing.manual_clock import ManualClock
from tests.artifacts.papers import Book, Cover, Page, Pair, Paper, Passing, Plain
from tests.conftest import MakeStore

ONE, TWO, THREE = (Artifact.of(text) for text in (b"one", b"two", b"three"))


def names(found: list[object]) -> list[str]:
    return sorted(each.name for each in found)  # type: ignore[attr-defined]


@pytest.fixture
def kept(store: Store, root: Path) -> ArtifactStore:
    return ArtifactStore(store, root)


async def rows(store: Store) -> dict[str, list[str]]:
    page = await store.collection(Referring).list(limit=1000)
    return {row.id: sorted(row.hashes) for row in page.values}


def test_which_types_can_refer() -> None:
    assert gatherer(Plain) is None
    assert gatherer(Paper) is not None
    gather = gatherer(Book)
    assert gather is not None
    book = Book(
        "x",
        pages=(Page(inner=Page(image=ONE)),),
        named={"a": [TWO, ONE]},
        cover=Cover(THREE),
        pair=Pair(ONE, TWO),
        either=THREE,
    )
    assert gather(book) == {each.hash: each.size for each in (ONE, TWO, THREE)}
    assert gather(Book("x", either=7)) == {}


async def test_a_put_replaces_and_a_deletion_removes(kept: ArtifactStore, store: Store) -> None:
    papers, books = store.collection(Paper), store.collection(Book)
    await papers.put(Paper("ada/1", ONE))
    await papers.put_many([Paper("ada/2", ONE), Paper("ada/3", TWO), Paper("ada/3", THREE)])
    await books.put(Book("b", pages=(Page(ONE), Page(TWO))))
    await store.collection(Plain).put(Plain("p", ONE.hash))
    assert names([*await kept.references(ONE)]) == ["books/b", "papers/ada/1", "papers/ada/2"]
    assert names([*await kept.references(TWO.hash)]) == ["books/b"]
    assert await kept.count(THREE) == 1
    await papers.put(Paper("ada/1", TWO))
    await papers.put(Paper("ada/2"))
    await books.delete("b")
    assert await rows(store) == {"papers/ada/1": [TWO.hash], "papers/ada/3": [THREE.hash]}
    await papers.change("ada/1", lambda paper: Paper("ada/1", ONE if paper else None))
    assert await kept.count(ONE) == 1
    await papers.delete_many(["ada/1", "ada/3"])
    assert await rows(store) == {}


async def test_a_reference_is_committed_with_its_record_or_not_at_all(
    kept: ArtifactStore, store: Store
) -> None:
    papers = store.collection(Paper)
    assert await papers.put(Paper("a", ONE)) == 1
    with pytest.raises(Conflict):
        await papers.put(Paper("a", TWO), Options(expected=7))
    assert await kept.count(TWO) == 0

    async def fail() -> None:
        async with store.transaction() as transaction:
            await transaction.collection(Paper).put(Paper("b", TWO))
            await transaction.collection(Paper).delete("a")
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        await fail()
    assert await rows(store) == {"papers/a": [ONE.hash]}
    async with store.transaction() as transaction:
        inside = transaction.collection(Paper)
        await inside.put(Paper("b", TWO))
        await inside.put(Paper("b", THREE))
        await inside.delete("a")
        assert await inside.get("b") == Paper("b", THREE)
    assert await rows(store) == {"papers/b": [THREE.hash]}
    assert transaction.version("papers", "b") == 1


async def test_records_deleted_by_a_query_no_longer_count(
    kept: ArtifactStore, store: Store
) -> None:
    papers = store.collection(Paper)
    await papers.put_many([Paper(f"ada/{n}", ONE) for n in range(5)])
    assert await papers.query().prefix("ada/").delete() == 5
    assert len(await rows(store)) == 5
    assert await kept.count(ONE) == 0
    await papers.put(Paper("ada/3", ONE))
    assert names([*await kept.references(ONE)]) == ["papers/ada/3"]
    assert await ArtifactReferences(store).tidy() == 4
    assert list(await rows(store)) == ["papers/ada/3"]


async def test_references_expire_with_their_record(
    timed_store: Store, clock: ManualClock, tmp_path: Path
) -> None:
    kept = ArtifactStore(timed_store, tmp_path)
    await timed_store.collection(Passing).put(Passing("a", ONE))
    await timed_store.collection(Paper).put(Paper("b", ONE))
    clock.advance("30m")
    assert await kept.count(ONE) == 2
    clock.advance("40m")
    assert await kept.count(ONE) == 1
    assert list(await rows(timed_store)) == ["papers/b"]
    clock.advance("365d")
    assert await kept.count(ONE) == 1


async def test_long_keys(kept: ArtifactStore, store: Store) -> None:
    papers, keys = store.collection(Paper), [f"{'k' * 510}/{n}" for n in range(2)]
    keys = [key[-512:] for key in keys]
    await papers.put_many([Paper(key, ONE) for key in keys])
    assert names([*await kept.references(ONE)]) == sorted(f"papers/{key}" for key in keys)
    await papers.delete(keys[0])
    assert await kept.count(ONE) == 1


async def test_what_is_condemned_cannot_be_referred_to(kept: ArtifactStore, store: Store) -> None:
    papers = store.collection(Paper)
    await store.collection(Condemned).put(Condemned(ONE.hash, "somebody"))
    with pytest.raises(Conflict, match="Put its content again") as caught:
        await papers.put(Paper("a", ONE))
    assert ONE.hash in str(caught.value)
    with pytest.raises(Conflict, match="Put its content again"):
        async with store.transaction() as transaction:
            await transaction.collection(Paper).put(Paper("a", ONE))
    assert await papers.get("a") is None
    await papers.put(Paper("a", TWO))
    async with store.transaction() as transaction:  # in any order
        await transaction.collection(Paper).put(Paper("b", ONE))
        await kept.put(b"one", transaction=transaction)
    await papers.put(Paper("c", ONE))
    assert await kept.count(ONE) == 2


async def test_records_written_past_the_collection_are_found_again(
    kept: ArtifactStore, store: Store
) -> None:
    papers = store.collection(Paper)
    await papers.put_many([Paper(f"{n:03}", ONE if n % 2 else None) for n in range(450)])
    await store.collection(Referring).query().prefix("papers/1").delete()
    async with store.transaction() as transaction:
        put = papers.declared.encode(Paper("000", TWO), None, None)
        await transaction.write([put], Options())
    seen: list[tuple[str, int, int]] = []
    assert await kept.count(ONE) == 175
    await kept.collect(progress=lambda *at: seen.append(at))
    assert await kept.count(ONE) == 225
    assert await kept.count(TWO) == 1
    assert ("reading papers", 450, 0) in seen


async def test_on_every_backend(make_store: MakeStore, tmp_path: Path) -> None:
    store = await make_store()
    kept = ArtifactStore(store, tmp_path)
    await store.collection(Paper).put(Paper("a", ONE))
    assert names([*await kept.references(ONE)]) == ["papers/a"]
    await store.collection(Condemned).put(Condemned(TWO.hash, "somebody"))
    with pytest.raises(Conflict, match="Put its content again"):
        await store.collection(Paper).put(Paper("a", TWO))
    await kept.put(b"two")
    await store.collection(Paper).put(Paper("a", TWO))
    assert await kept.count(ONE) == 0
    assert await kept.count(TWO) == 1
