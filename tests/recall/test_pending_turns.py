"""Turns that wait to be indexed: forgotten meanwhile, taken back, in any order."""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import Sequence
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from perdure.bank import Bank
from perdure.core.messages import assistant, user
from perdure.history.turn_log import Written
from perdure.recall.indexing.index import RecallIndex
from perdure.recall.indexing.passage_vectors import Waiting
from perdure.recall.indexing.pending_turns import PendingTurns
from perdure.recall.places import INDEX, spot
from perdure.search.engine import engine_of
from perdure.storage.transaction import Transaction
from tests.recall.indexed import indexed, turns_found

_NAMES = ("planner/a", "planner/b")


def pending_of(bank: Bank, index: RecallIndex) -> PendingTurns:
    """What waits, which is not written before somebody asks."""
    bank.jobs._idle._last = float("inf")
    assert index.pending is not None
    return index.pending


async def say(bank: Bank, name: str, word: str) -> None:
    await (await bank.session(name)).append([user(f"The {word} leaks."), assistant("Noted.")])


@pytest.mark.parametrize("turns", [["T-1"], None])
async def test_what_is_forgotten_while_it_waits_is_not_indexed(
    tmp_path: Path, turns: list[str] | None
) -> None:
    async with indexed(f"sqlite:///{tmp_path}/bank.db", tmp_path) as (bank, index):
        pending = pending_of(bank, index)
        await say(bank, "planner/a", "zebra")
        await say(bank, "planner/a", "quokka")
        await say(bank, "planner/b", "wombat")
        assert len(pending) == 3
        await bank.forget("planner/a", turns=turns)
        await pending.write()
        assert await turns_found(index, "zebra") == []
        assert await turns_found(index, "quokka") == (["planner/a#T-2.1"] if turns else [])
        assert await turns_found(index, "wombat") == ["planner/b#T-1.1"]
        assert (await index.check()).problems == ()


@pytest.mark.parametrize("turns", [["T-1"], None])
async def test_what_is_forgotten_while_it_is_being_indexed_is_not_there_afterwards(
    tmp_path: Path, turns: list[str] | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with indexed(f"sqlite:///{tmp_path}/bank.db", tmp_path) as (bank, index):
        pending = pending_of(bank, index)
        await say(bank, "planner/a", "zebra")
        await say(bank, "planner/b", "wombat")
        documents, forgetting = pending._documents, list[asyncio.Task[object]]()

        async def interrupted(
            transaction: Transaction, appends: Sequence[Written]
        ) -> list[Waiting]:
            made = await documents(transaction, appends)
            if not forgetting:  # after it was read, before it is committed
                forgetting.append(asyncio.create_task(bank.forget("planner/a", turns=turns)))
                await asyncio.sleep(0.2)
            return made

        monkeypatch.setattr(pending, "_documents", interrupted)
        await pending.write()
        await forgetting[0]
        assert await turns_found(index, "zebra") == []
        assert await turns_found(index, "wombat") == ["planner/b#T-1.1"]
        assert (await index.check()).problems == ()


_deeds = st.lists(
    st.tuples(
        st.sampled_from(["append", "append", "call", "undo", "forget", "erase", "write", "ask"]),
        st.sampled_from(_NAMES),
        st.integers(1, 4),
    ),
    max_size=14,
)


@given(deeds=_deeds)
@settings(max_examples=15)
def test_the_index_is_what_a_rebuild_makes(deeds: list[tuple[str, str, int]]) -> None:
    asyncio.run(_is_as_rebuilt(deeds))


@pytest.mark.repeated
@given(deeds=_deeds)
@settings(max_examples=150)
def test_the_index_is_what_a_rebuild_makes_of_many_banks(
    deeds: list[tuple[str, str, int]],
) -> None:
    asyncio.run(_is_as_rebuilt(deeds))


async def _is_as_rebuilt(deeds: list[tuple[str, str, int]]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        async with indexed("memory://", Path(folder)) as (bank, index):
            pending = pending_of(bank, index)
            for number, deed in enumerate(deeds):
                await _do(bank, index, pending, deed, number)
            await index.settle()
            report = await index.check()
            assert (report.problems, report.missing) == ((), 0)
            before = await _documents(index)
            await index.rebuild()
            assert await _documents(index) == before


async def _do(
    bank: Bank, index: RecallIndex, pending: PendingTurns, deed: tuple[str, str, int], number: int
) -> None:
    what, name, turn = deed
    session = await bank.session(name)
    newest = (await session.head()).turn
    match what:
        case "append":
            await say(bank, name, f"word{number}")
        case "call":
            call = {"name": "look", "arguments": f'{{"at": "place{number}"}}'}
            calls = [{"id": "c", "type": "function", "function": call}]
            await session.append(
                [
                    {"role": "user", "content": f"Look for word{number}."},
                    {"role": "assistant", "content": None, "tool_calls": calls},
                ]
            )
            result = {"role": "tool", "tool_call_id": "c", "content": f"It is answer{number}."}
            await session.append([result])
        case "undo" if newest and not (await session.head()).is_undone(newest):
            await session.undo()
        case "forget" if turn <= newest:
            await bank.forget(name, turns=[f"T-{turn}"])
        case "erase":
            await bank.forget(name)
        case "write":
            await pending.write(lambda: False)  # some of it
        case "ask":
            await index.catch_up(session.record)


async def _documents(index: RecallIndex) -> dict[tuple[str, int, int, int], bytes | None]:
    engine, names = engine_of(index.store.adapter), await index.numbers.names()
    places = await engine.places(INDEX.name, -1, 10_000)
    notes = await engine.notes(INDEX.name, places)
    found = dict[tuple[str, int, int, int], bytes | None]()
    for place, note in zip(places, notes, strict=True):
        at = spot(place)
        found[names[at.group], at.turn, at.round, at.part] = note
    return found
