"""Vectors in the background: soon, whatever dies, fails, or is too much."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path

import pytest

from perdure.core.messages import assistant, user
from perdure.recall.indexing import passage_vectors
from perdure.recall.places import INDEX, Spot, memories_of
from perdure.recall.values import Note
from perdure.search.engine import VectorSearch, engine_of
from perdure.sessions.session import Session
from perdure.storage.options import DEFAULT
from tests.conftest import BACKENDS
from tests.recall.indexed import Letters, embed_later, indexed, turns_found

everywhere = pytest.mark.parametrize("store_url", BACKENDS, indirect=True)


async def _say(session: Session, count: int) -> None:
    for number in range(count):
        await session.append([user(f"zebra {number}"), assistant("Yes")])


async def _until(true: Callable[[], bool]) -> None:
    async with asyncio.timeout(100):
        is_true = False
        while not is_true:
            await asyncio.sleep(0.01)
            is_true = true()


@everywhere
async def test_a_turn_has_its_vector_before_long(store_url: str, tmp_path: Path) -> None:
    embedder = Letters()
    async with indexed(store_url, tmp_path, embedder=embedder) as (bank, index):
        session = await bank.session("planner/auth")
        await session.append([user("zzz"), assistant("z")])
        await session.append([user("eee"), assistant("e")])
        await _until(lambda: len(set(embedder.embedded)) == 2)
        await index.settle()
        search = VectorSearch(
            index=INDEX.name, model=embedder.name, vector=bytes([1, *[0] * 4, 9, *[0] * 21])
        )
        nearest = await engine_of(bank.store.adapter).search_vectors(search, DEFAULT)
        group = await index.group("planner/auth")
        assert group is not None
        assert nearest[0].place == Spot(group, 2, 1, 0).place
        assert index.embeddings.waiting == 0


@pytest.mark.parametrize("store_url", ["sqlite", "postgresql"], indirect=True)
async def test_what_a_process_left_is_done_by_the_next(store_url: str, tmp_path: Path) -> None:
    embedder = Letters()
    embedder.down = True
    async with indexed(store_url, tmp_path, embedder=embedder) as (bank, index):
        await _say(await bank.session("planner/auth"), 30)
        await _say(await bank.session("planner/other"), 3)
        assert embedder.embedded == []
    embedder.down = False
    async with indexed(store_url, tmp_path, embedder=embedder) as (_, index):
        await index.settle()
        assert len(embedder.embedded) == 33
        assert "zebra 29\nYes" in embedder.embedded
        assert (await index.check()).unembedded == 0


async def test_more_than_may_wait_is_read_again(
    store_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(passage_vectors, "_MOST", 10)
    embed_later(monkeypatch)
    embedder = Letters()
    async with indexed(store_url, tmp_path, embedder=embedder) as (bank, index):
        await _say(await bank.session("planner/auth"), 40)
        assert await turns_found(index, "zebra 7") == ["planner/auth#T-8.1"]
        assert index.embeddings.waiting == 10
        await index.settle()
        assert (await index.check()).unembedded == 0
        assert sorted(embedder.embedded) == sorted({f"zebra {n}\nYes" for n in range(40)})


@pytest.mark.parametrize("store_url", ["sqlite", "postgresql"], indirect=True)
async def test_another_model_embeds_everything_anew(store_url: str, tmp_path: Path) -> None:
    async def refill() -> None:
        async with bank.transaction() as transaction:
            await index.put(transaction, memories_of("planner"), 1, "The harbour.", Note())

    async with indexed(store_url, tmp_path, embedder=Letters("a/old")) as (bank, index):
        await _say(await bank.session("planner/auth"), 5)
        await refill()
        await index.settle()
        assert (await index.check()).vectors == {"a/old": 6}
    newer = Letters("a/new")
    async with indexed(store_url, tmp_path, embedder=newer) as (bank, index):
        index.sources.append(refill)
        report = await index.check()
        assert (report.unembedded, report.problems) == (6, ())
        await index.settle()
        assert (await index.check()).vectors == {"a/new": 6}
        assert len(set(newer.embedded)) == 6
        # Somebody who still has the former one brings it back; nobody starts a war over that.
        async with indexed(store_url, tmp_path, embedder=Letters("a/old")) as (_, older):
            await older.settle()
        index.embeddings.look()
        await index.settle()
        # What no turn says is put again by its owner, each time that the index is filled.
        assert len([text for text in newer.embedded if text != "The harbour."]) == 5


async def test_a_failing_embedder_is_reported_and_asked_again(
    store_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(passage_vectors, "_FIRST_RETRY", 0.01)
    embedder = Letters()
    embedder.down = True
    async with indexed(store_url, tmp_path, embedder=embedder) as (bank, index):
        session = await bank.session("planner/auth")
        await _say(session, 3)
        await index.settle()
        report = await index.check()
        assert report.unembedded == 3
        assert "The server is away." in report.problems[0]
        await _say(session, 1)
        embedder.down = False
        await _until(lambda: len(embedder.embedded) >= 4)
        await index.settle()
        report = await index.check()
        assert (report.unembedded, report.problems) == (0, ())


async def test_an_edit_while_it_waits_is_what_is_embedded(
    store_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    embed_later(monkeypatch)
    embedder = Letters()
    async with indexed(store_url, tmp_path, embedder=embedder) as (bank, index):
        for text in ("aaa", "bbb"):
            async with bank.transaction() as transaction:
                await index.put(transaction, memories_of("planner"), 1, text, Note())
        await index.settle()
        assert embedder.embedded == ["bbb"]


async def test_constant_appends_do_not_put_it_off_for_ever(store_url: str, tmp_path: Path) -> None:
    embedder = Letters()
    async with indexed(store_url, tmp_path, embedder=embedder) as (bank, _):
        session = await bank.session("planner/auth")
        async with asyncio.timeout(100):
            while not embedder.embedded:
                await session.append([user("zebra"), assistant("Yes")])
                await asyncio.sleep(0.01)


async def test_looking_after_the_index_makes_way_for_writers(
    store_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    steps = 0

    async def tend(name: str) -> bool:
        nonlocal steps
        steps += 1
        return steps < 1_000

    async with indexed(store_url, tmp_path) as (bank, index):
        await index.settle()
        monkeypatch.setattr(engine_of(bank.store.adapter), "tend", tend)
        assert await index.embeddings._in_a_pause(lambda: False), "there is more to do"
        assert steps == 2
        assert not await index.embeddings._in_a_pause(lambda: True)
        assert steps > 1_000
