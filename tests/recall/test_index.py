"""The index and its life: written with turns, filled, rebuilt, checked, forgotten."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from perdure.core.messages import Message, Text, ToolCall, ToolResult, assistant, user
from perdure.recall.places import INDEX, memories_of, turns
from perdure.recall.values import Note
from perdure.search.engine import Document, Withdrawal, engine_of
from perdure.storage.middleware import Call, Find, Get, Handler, collection_of
from tests.conftest import BACKENDS, url_on
from tests.recall.indexed import Letters, embed_later, found, indexed, note_at, turns_found


@pytest.fixture(params=["memory", "sqlite"])
def store_url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """The address of an empty store."""
    return url_on(request.param, request, tmp_path)


everywhere = pytest.mark.parametrize("store_url", BACKENDS, indirect=True)


@everywhere
async def test_a_turn_is_found_by_its_words_at_once(store_url: str, tmp_path: Path) -> None:
    async with indexed(store_url, tmp_path) as (bank, index):
        session = await bank.session("planner/auth")
        await session.append([user("Where is the parser?"), assistant("In the cellar.")])
        await session.append([user("And the zebra?"), assistant("In the parser.")])
        assert await turns_found(index, "parser") == ["planner/auth#T-1.1", "planner/auth#T-2.1"]
        assert await turns_found(index, "zebra") == ["planner/auth#T-2.1"]
        assert (await note_at(index, "planner/auth", 1)).asks


async def test_what_is_added_to_a_round_is_a_document_of_its_own(
    store_url: str, tmp_path: Path
) -> None:
    async with indexed(store_url, tmp_path) as (bank, index):
        session = await bank.session("planner/auth")
        await session.append(user("Count the zebras."))
        await session.append(Message("assistant", (ToolCall("c1", "count", "{}"),)))
        await session.append(Message("tool", (ToolResult("c1", (Text("seven"),)),)))
        await session.append(assistant("There are seven."))
        at = [(s.turn, s.round, s.part) for _, s in await found(index, "seven")]
        assert at == [(1, 1, 2), (1, 2, 0)]
        assert [s.part for _, s in await found(index, "zebras")] == [0]


async def test_what_the_past_said_is_not_indexed_again(store_url: str, tmp_path: Path) -> None:
    async with indexed(store_url, tmp_path) as (bank, index):
        session = await bank.session("planner/auth")
        await session.append([user("A zebra."), assistant("Yes.")])
        await session.append([user("What was it?"), _asks("recall", "c7")])
        await session.append(Message("tool", (ToolResult("c7", (Text("T-1: zebra"),)),)))
        assert await turns_found(index, "zebra") == ["planner/auth#T-1.1"]
    # And in a process that has not seen the call:
    if store_url.startswith("sqlite"):
        async with indexed(store_url, tmp_path) as (bank, index):
            session = await bank.session("planner/auth")
            await session.append(_asks("history_get_turn", "c8"))
        async with indexed(store_url, tmp_path) as (bank, index):
            session = await bank.session("planner/auth")
            await session.append(Message("tool", (ToolResult("c8", (Text("zebra"),)),)))
            assert await turns_found(index, "zebra") == ["planner/auth#T-1.1"]
            assert (await index.check()).problems == ()


async def test_tags_stand_beside_every_round_of_a_turn(store_url: str, tmp_path: Path) -> None:
    async with indexed(store_url, tmp_path) as (bank, index):
        session = await bank.session("planner/auth")
        await session.append(user("Try it."), tags={"task_type": "debug", "outcome": "good"})
        await session.append(_asks("run", "c1"))
        await session.append(Message("tool", (ToolResult("c1", (Text("fine"),)),)))
        await session.append(assistant("It runs."))
        for round in (1, 2):
            noted = (await note_at(index, "planner/auth", 1, round)).tags
            assert (noted["task"], noted["outcome"]) == ("debug", "good")


async def test_nothing_is_read_on_the_way_of_an_append(store_url: str, tmp_path: Path) -> None:
    reads = list[str]()

    async def watch(call: Call, handle: Handler) -> object:
        if isinstance(call, Get | Find) and "recall" in collection_of(call):
            reads.append(collection_of(call))
        return await handle(call)

    async with indexed(store_url, tmp_path, middleware=(watch,)) as (bank, index):
        session = await bank.session("planner/auth")
        await session.append([user("One"), assistant("Yes")])
        await index.settle()
        reads.clear()
        await session.append([user("Two"), assistant("Yes")])
        await session.append([user("Three"), assistant("Yes")])
        assert reads == []


async def test_what_was_taken_back_stays_indexed(store_url: str, tmp_path: Path) -> None:
    async with indexed(store_url, tmp_path) as (bank, index):
        session = await bank.session("planner/auth")
        await session.append([user("A zebra."), assistant("Yes.")])
        await session.undo()
        assert await turns_found(index, "zebra") == ["planner/auth#T-1.1"]


async def test_a_failed_append_leaves_nothing_in_the_index(store_url: str, tmp_path: Path) -> None:
    async with indexed(store_url, tmp_path) as (bank, index):
        session = await bank.session("planner/auth")
        await session.append([user("One"), assistant("Yes")])

        async def fails(*_: object) -> None:
            raise RuntimeError("no")

        bank.services.log.join(fails)
        with pytest.raises(RuntimeError):
            await session.append(user("zebra"))
        assert await turns_found(index, "zebra") == []


# Groups -----------------------------------------------------------------------------------------


@everywhere
async def test_many_sessions_at_once_get_numbers_of_their_own(
    store_url: str, tmp_path: Path
) -> None:
    async with indexed(store_url, tmp_path) as (bank, index):

        async def say(number: int) -> None:
            session = await bank.session(f"planner/{number}")
            await session.append([user(f"I am zebra{number}"), assistant("Yes")])

        await asyncio.gather(*(say(number) for number in range(12)))
        await index.settle()
        groups = await index.groups()
        assert len(set(groups.values())) == len(groups) == 12
        for number in range(12):
            assert await turns_found(index, f"zebra{number}") == [f"planner/{number}#T-1.1"]


async def test_a_number_is_not_given_again(store_url: str, tmp_path: Path) -> None:
    async with indexed(store_url, tmp_path) as (bank, index):
        session = await bank.session("planner/auth")
        await session.append([user("zebra"), assistant("Yes")])
        await index.settle()
        first = await index.group("planner/auth")
        assert first is not None
        await bank.forget("planner/auth")
        assert await engine_of(index.store.adapter).places(INDEX.name, -1, 10) == []
        again = await bank.session("planner/auth")
        await again.append([user("zebra"), assistant("Yes")])
        await index.settle()
        assert await index.group("planner/auth") == first + 1
        assert await turns_found(index, "zebra") == ["planner/auth#T-1.1"]


@pytest.mark.parametrize("store_url", ["sqlite"], indirect=True)
async def test_who_still_knows_the_former_number_learns_the_new_one(
    store_url: str, tmp_path: Path
) -> None:
    async with (
        indexed(store_url, tmp_path) as (ours, index),
        indexed(store_url, tmp_path) as (theirs, _),
    ):
        session = await ours.session("planner/auth")
        await session.append([user("One"), assistant("Yes")])
        await index.settle()
        await theirs.forget("planner/auth")
        await theirs.session("planner/auth")
        await session.append([user("zebra"), assistant("Yes")])
        places = await found(index, "zebra")
        assert [spot.group for _, spot in places] == [await index.group("planner/auth")]
        assert (await index.check()).problems == ()


# What is no turn --------------------------------------------------------------------------------


async def test_memories_are_put_and_withdrawn(store_url: str, tmp_path: Path) -> None:
    async with indexed(store_url, tmp_path) as (bank, index):
        group = memories_of("planner")
        async with bank.transaction() as transaction:
            for ordinal in (1, 2):
                text = f"The port is 812{ordinal}."
                await index.put(transaction, group, ordinal, text, Note(time=5))
        assert [(name, s.turn) for name, s in await found(index, "port")] == [
            (group, 1),
            (group, 2),
        ]
        async with bank.transaction() as transaction:
            await index.put(transaction, group, 1, "The harbour.", Note())
            await index.withdraw(transaction, group, 2)
        assert await found(index, "port") == []
        assert [s.turn for _, s in await found(index, "harbour")] == [1]


async def test_a_rebuild_asks_others_to_put_theirs_again(store_url: str, tmp_path: Path) -> None:
    async with indexed(store_url, tmp_path) as (bank, index):

        async def refill() -> None:
            async with bank.transaction() as transaction:
                await index.put(transaction, memories_of("planner"), 1, "The harbour.", Note())

        index.sources.append(refill)
        await index.erase()
        await index.rebuild()
        assert len(await found(index, "harbour")) == 1
        report = await index.check()
        assert (report.documents, report.unembedded, report.problems) == (1, 0, ())


# Forgetting -------------------------------------------------------------------------------------


@everywhere
async def test_forgetting_reaches_the_index(store_url: str, tmp_path: Path) -> None:
    async with indexed(store_url, tmp_path) as (bank, index):
        session = await bank.session("planner/auth")
        for word in ("zebra", "lion", "tiger"):
            await session.append([user(word), assistant("Yes")])
        other = await bank.session("coder/auth")
        await other.append([user("zebra"), assistant("Yes")])
        await index.settle()
        await bank.forget("planner/auth", turns=["T-1"])
        assert await turns_found(index, "zebra") == ["coder/auth#T-1.1"]
        assert await turns_found(index, "lion") == ["planner/auth#T-2.1"]
        await bank.forget_agent("planner")
        assert await turns_found(index, "lion tiger") == []
        assert await index.numbers.of_agent("planner") == []
        report = await index.check()
        assert (report.documents, report.expected, report.problems) == (1, 1, ())


async def test_a_forks_shared_turns_are_its_parents(store_url: str, tmp_path: Path) -> None:
    async with indexed(store_url, tmp_path) as (bank, index):
        parent = await bank.session("planner/auth")
        await parent.append([user("zebra"), assistant("Yes")])
        await parent.append([user("lion"), assistant("Yes")])
        fork = await parent.fork("coder/auth", at="T-1")
        await fork.append([user("tiger"), assistant("Yes")])
        await index.rebuild()
        assert await turns_found(index, "zebra") == ["planner/auth#T-1.1"]
        assert await turns_found(index, "tiger") == ["coder/auth#T-2.1"]


async def test_a_fork_that_loses_its_parent_has_its_turns(store_url: str, tmp_path: Path) -> None:
    async with indexed(store_url, tmp_path) as (bank, index):
        parent = await bank.session("planner/auth")
        await parent.append([user("zebra"), assistant("Yes")])
        await parent.append([user("lion"), assistant("Yes")])
        fork = await parent.fork("coder/auth", at="T-1")
        await fork.append([user("tiger"), assistant("Yes")])
        await bank.forget("planner/auth", reroot=True)
        assert await turns_found(index, "zebra") == ["coder/auth#T-1.1"]
        assert await turns_found(index, "lion") == []
        assert (await index.check()).problems == ()


# Filling, rebuilding, checking ------------------------------------------------------------------


@everywhere
async def test_what_was_written_without_an_index_is_filled_in(
    store_url: str, tmp_path: Path
) -> None:
    if store_url.startswith("memory"):
        pytest.skip("needs a store that keeps what is written")
    async with indexed(store_url, tmp_path, on=False) as (bank, index):
        session = await bank.session("planner/auth")
        for number in range(70):
            await session.append([user(f"zebra {number}"), assistant("Yes")], tags={"n": "1"})
        assert not (await index.check()).on
    async with indexed(store_url, tmp_path) as (bank, index):
        await index.settle()
        assert len(await turns_found(index, "zebra")) == 70
        assert (await note_at(index, "planner/auth", 7)).tags == {"n": "1"}
        report = await index.check()
        assert (report.missing, report.unembedded, report.problems) == (0, 0, ())
    # Switched off for a while, and on again:
    async with indexed(store_url, tmp_path, on=False) as (bank, _):
        session = await bank.session("planner/auth")
        await session.append([user("lion"), assistant("Yes")])
    async with indexed(store_url, tmp_path) as (_, index):
        await index.settle()
        assert await turns_found(index, "lion") == ["planner/auth#T-71.1"]


@everywhere
async def test_a_rebuild_mends_what_is_wrong(store_url: str, tmp_path: Path) -> None:
    async with indexed(store_url, tmp_path) as (bank, index):
        session = await bank.session("planner/auth")
        for number in range(5):
            await session.append([user(f"zebra {number}"), assistant("Yes")])
        await index.settle()
        group = await index.group("planner/auth")
        assert group is not None
        gone, stray = turns(group, 2, 2), turns(group + 7, 1, 1)
        async with bank.transaction() as transaction:
            transaction.include(
                Withdrawal(INDEX.name, *gone),
                Document(INDEX.name, stray[0], ("zebra", "", "")),
                Document(INDEX.name, turns(group, 9, 9)[0], ("zebra", "", "")),
            )
        report = await index.check()
        assert (report.expected, report.missing, report.orphans) == (5, 1, 2)
        assert len(report.problems) == 2
        told = list[tuple[str, int, int]]()
        await index.rebuild(lambda *step: told.append(step))
        assert told[-1][0] == "embedding" or ("indexing", 5, 5) in told
        report = await index.check()
        assert (report.documents, report.missing, report.orphans) == (5, 0, 0)
        assert (report.vectors, report.problems) == ({"test/letters": 5}, ())
        assert len(await turns_found(index, "zebra")) == 5


async def test_an_index_that_is_gone_is_made_anew(store_url: str, tmp_path: Path) -> None:
    async with indexed(store_url, tmp_path) as (bank, index):
        session = await bank.session("planner/auth")
        await session.append([user("zebra"), assistant("Yes")])
        await engine_of(bank.store.adapter).erase(INDEX.name)
        assert (await index.check()).problems
        await index.rebuild()
        assert await turns_found(index, "zebra") == ["planner/auth#T-1.1"]
        assert (await index.check()).problems == ()


@everywhere
async def test_appends_go_on_while_it_is_rebuilt(store_url: str, tmp_path: Path) -> None:
    async with indexed(store_url, tmp_path) as (bank, index):
        session = await bank.session("planner/auth")
        for number in range(60):
            await session.append([user(f"zebra {number}"), assistant("Yes")])
        rebuilding = asyncio.create_task(index.rebuild())
        for _ in range(40):
            await session.append([user("zebra again"), assistant("Yes")])
            await asyncio.sleep(0)
        await rebuilding
        assert len(await turns_found(index, "zebra")) == 100
        assert (await index.check()).problems == ()


async def test_what_is_forgotten_meanwhile_is_not_filled_in(store_url: str, tmp_path: Path) -> None:
    async with indexed(store_url, tmp_path) as (bank, index):
        session = await bank.session("planner/auth")
        for number in range(60):
            await session.append([user(f"zebra {number}"), assistant("Yes")])
        rebuilding = asyncio.create_task(index.rebuild())
        for number in range(1, 60, 7):
            await bank.forget("planner/auth", turns=[number])
        await rebuilding
        report = await index.check()
        assert (report.orphans, report.missing) == (0, 0)
        assert len(await turns_found(index, "zebra")) == 60 - len(range(1, 60, 7))


@pytest.mark.slow
async def test_a_killed_rebuild_is_completed_by_the_next_to_open(tmp_path: Path) -> None:
    url = url_on_sqlite(tmp_path)
    async with indexed(url, tmp_path) as (bank, index):
        session = await bank.session("planner/auth")
        for number in range(100):
            await session.append([user(f"zebra {number}"), assistant("Yes")])
        await index.settle()
        await index.erase()
        rebuilding = asyncio.create_task(index.rebuild())
        begun = False
        while not begun:
            await asyncio.sleep(0)
            begun = bool(await engine_of(bank.store.adapter).places(INDEX.name, -1, 1))
        rebuilding.cancel()
        with pytest.raises(asyncio.CancelledError):
            await rebuilding
        assert (await index.check()).missing
    async with indexed(url, tmp_path) as (_, index):
        await index.settle()
        report = await index.check()
        assert (report.documents, report.missing, report.problems) == (100, 0, ())


# Where there is none ----------------------------------------------------------------------------


async def test_what_is_stored_encrypted_is_not_indexed(tmp_path: Path) -> None:
    url = url_on_sqlite(tmp_path)
    async with indexed(url, tmp_path) as (bank, index):
        session = await bank.session("planner/auth")
        await session.append([user("zebra"), assistant("Yes")])
        assert index.covers("planner/auth")
    # From now on it is: what stands there in clear goes.
    async with indexed(url, tmp_path, encrypts=lambda _: True) as (bank, index):
        session = await bank.session("planner/auth")
        await session.append([user("lion"), assistant("Yes")])
        assert not index.covers("planner/auth")
        assert await engine_of(bank.store.adapter).prepare(INDEX)
        assert await engine_of(bank.store.adapter).places(INDEX.name, -1, 5) == []
        report = await index.check()
        assert (report.on, report.problems) == (False, ())
        await bank.forget("planner/auth")


async def test_a_lazy_embedder_is_not_loaded_by_appends(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    embed_later(monkeypatch)
    embedder = Letters()
    async with indexed(url_on_sqlite(tmp_path), tmp_path, embedder=embedder) as (bank, _):
        session = await bank.session("planner/auth")
        await session.append([user("zebra"), assistant("Yes")])
        assert embedder.embedded == []


def url_on_sqlite(folder: Path) -> str:
    return f"sqlite:///{folder / 'bank.db'}"


def _asks(tool: str, id: str) -> Message:
    return Message("assistant", (ToolCall(id, tool, "{}"),))
