"""What an append puts off for the index: it is done before long, and nobody else notices."""

from __future__ import annotations

import asyncio
import random
from pathlib import Path

import msgspec
import pytest

from perdure.bank.session import Session
from perdure.core.messages import Message, Text, ToolCall, ToolResult, assistant, user
from perdure.history.log_records import TurnPiece
from perdure.recall.indexing.index import RecallIndex
from perdure.recall.places import INDEX
from perdure.recall.values import Note
from perdure.search.engine import engine_of
from perdure.storage.middleware import Call, Get, Handler, collection_of
from perdure.storage.records import type_of
from tests.conftest import BACKENDS, url_on
from tests.recall.indexed import embed_later, indexed, turns_found

_FILLER = "all is as it was and nothing else is to be said of it here " * 8


@pytest.fixture(params=BACKENDS)
def store_url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """The address of an empty store."""
    return url_on(request.param, request, tmp_path)


@pytest.fixture
def kept_url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """The address of a store that outlives its bank."""
    return url_on("sqlite", request, tmp_path)


def calls(name: str, id: str, arguments: str = "{}") -> Message:
    return Message("assistant", (ToolCall(id, name, arguments),))


def answers(id: str, middle: str, first: str = "", last: str = "") -> Message:
    text = f"{first}\n{_FILLER}\n{middle}\n{_FILLER}\n{last}"
    return Message("tool", (ToolResult(id, (Text(text),)),))


async def _asked(session: Session, number: int) -> None:
    """A turn whose tool wrote a name between much else."""
    await session.append([user(f"Where is number {number}?"), calls("look", f"c{number}")])
    await session.append(answers(f"c{number}", f"see zebra_crossing{number}", "giraffes", "lions"))
    await session.append(assistant(f"Answer {number}."))


async def test_ends_are_found_at_once_and_names_between_them_soon(
    store_url: str, tmp_path: Path
) -> None:
    async with indexed(store_url, tmp_path) as (bank, index):
        await index.embeddings.stop()  # so that nothing is done in between
        session = await bank.session("planner/auth")
        await _asked(session, 1)
        assert await turns_found(index, "giraffes") == ["planner/auth#T-1.1"]
        assert await turns_found(index, "lions") == ["planner/auth#T-1.1"]
        assert await turns_found(index, "zebra_crossing1") == []
        await index.settle()
        assert await turns_found(index, "zebra_crossing1") == ["planner/auth#T-1.1"]
        assert await turns_found(index, "giraffes") == ["planner/auth#T-1.1"]
        state = await index.check()
        assert (state.problems, state.unembedded) == ((), 0)


async def test_it_happens_by_itself(kept_url: str, tmp_path: Path) -> None:
    async with indexed(kept_url, tmp_path) as (bank, index):
        session = await bank.session("planner/auth")
        await _asked(session, 1)
        while not await turns_found(index, "zebra_crossing1"):  # noqa: ASYNC110
            await asyncio.sleep(0.01)


async def test_it_is_done_before_the_bank_is_closed(
    kept_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    embed_later(monkeypatch)
    async with indexed(kept_url, tmp_path) as (bank, index):
        session = await bank.session("planner/auth")
        for number in range(1, 20):
            await _asked(session, number)
        assert await _brief(index) == 19
    async with indexed(kept_url, tmp_path) as (_, index):
        assert await _brief(index) == 0
        assert await turns_found(index, "zebra_crossing7") == ["planner/auth#T-7.1"]


async def test_a_large_append_is_written_whole(store_url: str, tmp_path: Path) -> None:
    async with indexed(store_url, tmp_path) as (bank, index):
        session = await bank.session("planner/auth")
        messages = list[Message]()
        for number in range(12):
            messages += [user(f"Number {number}?"), calls("look", f"c{number}")]
            messages += [answers(f"c{number}", f"see zebra_{number}"), assistant("Yes.")]
        await session.append(messages)
        assert await turns_found(index, "zebra_7") == ["planner/auth#T-8.1"]


async def test_who_died_before_it_was_done_is_followed(kept_url: str, tmp_path: Path) -> None:
    async with indexed(kept_url, tmp_path) as (bank, index):
        await index.embeddings.stop()
        session = await bank.session("planner/auth")
        for number in range(1, 60):
            await _asked(session, number)
    async with indexed(kept_url, tmp_path) as (_, index):
        await index.embeddings.stop()
        assert await _brief(index) == 59
        assert await turns_found(index, "zebra_crossing41") == []
        await index.settle()
        assert await turns_found(index, "zebra_crossing41") == ["planner/auth#T-41.1"]
        assert await _brief(index) == 0
        assert (await index.check()).unembedded == 0


async def test_nothing_is_written_for_what_was_forgotten(store_url: str, tmp_path: Path) -> None:
    async with indexed(store_url, tmp_path) as (bank, index):
        await index.embeddings.stop()
        session = await bank.session("planner/auth")
        other = await bank.session("planner/other")
        for number in (1, 2):
            await _asked(session, number)
        await _asked(other, 3)
        await bank.forget("planner/auth", turns=["T-1"])
        await bank.forget("planner/other")
        await index.settle()
        assert await turns_found(index, "zebra_crossing1") == []
        assert await turns_found(index, "zebra_crossing2") == ["planner/auth#T-2.1"]
        assert await turns_found(index, "zebra_crossing3") == []
        assert (await index.check()).problems == ()


@pytest.mark.parametrize("turns", [["T-1"], None])
async def test_nor_for_what_is_forgotten_while_it_is_written(
    store_url: str, tmp_path: Path, turns: list[str] | None
) -> None:
    read = list[str]()

    async def forgets(call: Call, handle: Handler) -> object:
        found = await handle(call)
        if isinstance(call, Get) and collection_of(call) == type_of(TurnPiece).name and not read:
            read.append(store_url)
            await bank.forget("planner/auth", turns=turns)
        return found

    async with indexed(store_url, tmp_path, middleware=(forgets,)) as (bank, index):
        await index.embeddings.stop()
        session = await bank.session("planner/auth")
        await _asked(session, 1)
        read.clear()
        await index.settle()
        assert read
        for words in ("zebra_crossing1", "giraffes", "number"):
            assert await turns_found(index, words) == []
        assert (await index.check()).problems == ()


async def test_another_process_may_have_done_it(kept_url: str, tmp_path: Path) -> None:
    async with indexed(kept_url, tmp_path) as (bank, index):
        await index.embeddings.stop()
        session = await bank.session("planner/auth")
        await _asked(session, 1)
        async with indexed(kept_url, tmp_path) as (_, theirs):
            await theirs.settle()
            assert await turns_found(theirs, "zebra_crossing1") == ["planner/auth#T-1.1"]
        await index.settle()
        assert (await index.check()).unembedded == 0
        assert await _brief(index) == 0


@pytest.mark.parametrize("seed", range(4))
async def test_it_comes_out_as_if_it_were_made_anew(
    store_url: str, tmp_path: Path, seed: int
) -> None:
    """Appends of any cut, with tags, and calls whose results are not indexed."""
    rng = random.Random(seed)
    async with indexed(store_url, tmp_path) as (bank, index):
        await index.embeddings.stop()
        sessions = [await bank.session(f"planner/{name}") for name in "ab"]
        for _ in range(30):
            session = rng.choice(sessions)
            tags = {"outcome": "good"} if rng.random() < 0.3 else None
            await session.append(_some(rng), tags=tags)
            if rng.random() < 0.2:
                await index.settle()
        await index.settle()
        assert await _brief(index) == 0
        before = await _notes(index)
        await index.rebuild()
        assert await _notes(index) == before


def _some(rng: random.Random) -> list[Message]:
    found = [user("What now?")] if rng.random() < 0.4 else []
    for _ in range(rng.randint(1, 3)):
        id = f"c{rng.randrange(10**9)}"
        tool = rng.choice(["look", "recall", "grep"])
        why = _FILLER if rng.random() < 0.3 else "so"
        arguments = f'{{"path": "src/{id}_path.py", "why": "{why}"}}'
        found.append(calls(tool, id, arguments))
        if rng.random() < 0.8:
            found.append(answers(id, f"ValueError: no zebra_{rng.randrange(99)}\nin aB/c_d.py"))
    return [*found, assistant("Done.")] if rng.random() < 0.5 else found


async def _brief(index: RecallIndex) -> int:
    """How many documents are brief."""
    notes = [note for note in (await _notes(index)).values() if note is not None]
    return sum(msgspec.msgpack.decode(note, type=Note).brief for note in notes)


async def _notes(index: RecallIndex) -> dict[int, bytes | None]:
    """Everything in the index: the notes tell the lengths of all texts."""
    places = await engine_of(index.store.adapter).places(INDEX.name, -1, 10_000)
    return dict(
        zip(places, await engine_of(index.store.adapter).notes(INDEX.name, places), strict=True)
    )
