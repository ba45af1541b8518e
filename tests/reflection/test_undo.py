"""Whatever a run does, `undo` puts back exactly."""

from __future__ import annotations

import asyncio
import random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import perdure
from perdure.bank import Bank
from perdure.core.errors import Conflict, InvalidInput, NotFound
from perdure.core.messages import assistant, user
from perdure.recall.memory_records import MemoryQuote, person
from perdure.reflection.apply_run import RunFindings, apply_run, undo_run
from perdure.reflection.inbox import InboxMessage
from perdure.reflection.lease import held
from perdure.reflection.operation_checks import OVERTAKEN, CheckedOperation, MemoryOperation
from perdure.reflection.reflection_records import ReflectionRun, RunChanges, run_id
from tests.reflection.oracle import add, all_memories, answering, on, opened, talk

WORDS = ("port", "deploy", "night", "backup", "login", "cat", "release", "branch")
KINDS = ("lesson", "preference", "pattern", "decision", "fact")

texts = st.lists(st.sampled_from(WORDS), min_size=2, max_size=5).map(lambda w: " ".join(w) + ".")
keys = st.one_of(
    st.integers(1, 8).map(lambda n: f"M-{n}"), st.integers(1, 4).map(lambda n: f"N-{n}")
)
operations = st.builds(
    MemoryOperation,
    op=st.sampled_from(("add", "reinforce", "update", "merge", "retire", "topic", "note")),
    keys=st.lists(keys, min_size=1, max_size=3, unique=True).map(tuple),
    kind=st.sampled_from(KINDS),
    text=texts,
    tags=st.lists(st.sampled_from(WORDS), max_size=2).map(tuple),
)
checked = st.builds(
    CheckedOperation,
    asked=operations,
    quotes=st.lists(
        st.builds(
            MemoryQuote, turn=st.integers(1, 4).map(lambda n: f"planner/a#T-{n}"), text=texts
        ),
        min_size=1,
        max_size=2,
    ).map(tuple),
    time=st.integers(1, 10**15),
)
runs = st.lists(st.lists(checked, max_size=12), min_size=1, max_size=3)
existing = st.lists(st.tuples(texts, st.sampled_from(KINDS), st.booleans()), max_size=6)


async def applied(bank: Bank, number: int, some: list[CheckedOperation]) -> ReflectionRun:
    run = ReflectionRun(id=run_id("planner", number), agent="planner", state="done", started=number)
    usable = [each for each in some if _fits(each.asked)]
    async with held(bank.store, "planner") as lease:
        return await apply_run(
            bank.store,
            bank.memories.writer,
            lease,
            run,
            RunFindings(operations=tuple(usable), mentions={"port": 2}),
            half_life=30,
            count_tokens=len,
        )


def _fits(asked: MemoryOperation) -> bool:
    """What `check_answer` lets pass."""
    several = {"merge": 2, "reinforce": 1, "update": 1, "retire": 1}.get(asked.op)
    return several is None or (len(asked.keys) >= 2 if several == 2 else len(asked.keys) == 1)


@given(existing, runs)
def test_undone_runs_leave_no_trace(
    before: list[tuple[str, str, bool]], given_runs: list[list[CheckedOperation]]
) -> None:
    async def story() -> None:
        async with perdure.open("memory://") as bank:
            await talk(bank, "planner/a", *("A word or two." for _ in range(4)))
            for text, kind, mine in before:
                by = person("ada") if mine else None
                await bank.memories.add("planner", text, kind=kind, by=by)
            active = await bank.memories.list("planner")
            if len(active) > 1:
                await bank.memories.contradict([active[0].name, active[1].name])
            states = list[Any]()
            for number, some in enumerate(given_runs, 1):
                states.append(await all_memories(bank))
                await applied(bank, number, some)
            for number in range(len(given_runs), 0, -1):
                await undo_run(bank.store, bank.memories.writer, f"planner/R-{number}")
                assert await all_memories(bank) == states[number - 1]
            assert await bank.collection(InboxMessage).query().count() == 0
            assert await bank.collection(RunChanges).query().count() == 0

    asyncio.run(story())


@given(existing, st.lists(st.lists(checked, max_size=6), min_size=2, max_size=4), st.randoms())
def test_runs_are_undone_in_any_order_or_refuse_and_change_nothing(
    before: list[tuple[str, str, bool]],
    given_runs: list[list[CheckedOperation]],
    dice: random.Random,
) -> None:
    async def story() -> None:
        async with perdure.open("memory://") as bank:
            await talk(bank, "planner/a", *("A word or two." for _ in range(4)))
            for text, kind, mine in before:
                by = person("ada") if mine else None
                await bank.memories.add("planner", text, kind=kind, by=by)
            start = await all_memories(bank)
            for number, some in enumerate(given_runs, 1):
                await applied(bank, number, some)
            left = [f"planner/R-{number}" for number in range(1, len(given_runs) + 1)]
            while left:
                dice.shuffle(left)
                refused = list[str]()
                for name in left:
                    state = await all_memories(bank)
                    try:
                        await undo_run(bank.store, bank.memories.writer, name)
                    except Conflict:
                        assert await all_memories(bank) == state
                        refused.append(name)
                assert len(refused) < len(left)
                left = refused
            assert await all_memories(bank) == start

    asyncio.run(story())


SCRIPT = [add("The staging port is 8123.", "T-1", "staging port is 8123")]


async def test_what_was_undone_is_not_found_and_what_was_there_is(tmp_path: Any) -> None:
    merge = [on("merge", ["M-1", "M-2"], "s1#T-1", "staging port is 8123", text="Port 8123 it is.")]
    script = answering(SCRIPT, merge)
    async with opened(script, f"sqlite:///{tmp_path}/bank.db") as (bank, _):
        session = await talk(bank, "planner/a", "The staging port is 8123.", "Rabbits are grey.")
        for text in ("The port of staging never changes.", "Staging runs all night long."):
            await bank.memories.add("planner", text, provenance=["planner/a#T-1"])
        found = await session.recall("staging night", limit=5, deadline=60.0)
        assert "Staging runs all night long." in [hit.text for hit in found.hits]
        (run,) = await bank.reflect("planner")
        assert run.counts.applied == {"add": 1, "merge": 1}
        merged = [
            hit.text for hit in (await session.recall("staging night", limit=9, deadline=60.0)).hits
        ]
        assert "Staging runs all night long." not in merged
        await bank.reflection.undo(run.name)
        after = [
            hit.text for hit in (await session.recall("staging night", limit=9, deadline=60.0)).hits
        ]
        assert "Staging runs all night long." in after
        assert "The staging port is 8123." not in after


async def test_undo_leaves_what_was_changed_since() -> None:
    async with opened(answering(SCRIPT)) as (bank, _):
        await talk(bank, "planner/a", "The staging port is 8123.")
        (run,) = await bank.reflect("planner")
        await bank.memories.edit("planner/M-1", text="The port is 8124.", by=person("ada"))
        before = await all_memories(bank)
        with pytest.raises(Conflict, match="M-1 changed since"):
            await bank.reflection.undo(run.name)
        assert await all_memories(bank) == before
        with pytest.raises(NotFound):
            await bank.reflection.undo("planner/R-9")
        with pytest.raises(InvalidInput, match="does not name a run"):
            await bank.reflection.undo("R-1")


async def test_undo_loses_nothing_that_was_said_since() -> None:
    async with opened(answering(SCRIPT)) as (bank, _):
        await talk(bank, "planner/a", "The staging port is 8123.")
        (run,) = await bank.reflect("planner")
        # Said once more by a person: the same memory, and no new version of it.
        await bank.memories.add("planner", "The staging port is 8123.", by=person("ada"))
        before = await all_memories(bank)
        with pytest.raises(Conflict, match="M-1 changed since"):
            await bank.reflection.undo(run.name)
        assert await all_memories(bank) == before


async def test_forgetting_reaches_what_runs_keep() -> None:
    note = [{"op": "note", "text": "A port.", "evidence": SCRIPT[0]["evidence"]}]
    async with opened(answering([*SCRIPT, *note])) as (bank, _):
        await talk(bank, "planner/a", "The staging port is 8123.", "Nothing else to say here.")
        (run,) = await bank.reflect("planner")
        assert [each.kind for each in await bank.inbox.list()] == ["note"]
        await bank.forget("planner/a", turns="T-1")
        assert await all_memories(bank) == ({}, {})
        assert await bank.inbox.list() == []
        with pytest.raises(InvalidInput, match="was forgotten"):
            await bank.reflection.undo(run.name)
        await bank.forget_agent("planner")
        assert await bank.reflection.list() == []


async def test_a_deleted_memory_is_in_no_run_any_more() -> None:
    async with opened(answering(SCRIPT)) as (bank, _):
        await talk(bank, "planner/a", "The staging port is 8123.")
        await bank.reflect("planner")
        await bank.memories.delete("planner/M-1")
        assert await bank.collection(RunChanges).query().count() == 0


@pytest.mark.parametrize("op", ["update", "retire"])
async def test_what_was_overtaken_does_not_come_back_from_the_same_turns(op: str) -> None:
    """A gullible model adds the old value whenever it reads the old turn again."""
    old = add("Reviews are on Monday.", "s1#T-1", "reviews are on Monday")

    def extract(prompt: str) -> list[dict[str, Any]]:
        found = [old] if "on Monday" in prompt.partition("Records:")[2] else []
        if "M-1 " in prompt and "on Monday" in prompt.partition("Records:")[0]:
            more = {"text": "Reviews are on Friday."} if op == "update" else {}
            found.append(on(op, ["M-1"], "s1#T-2", "reviews are on Friday", **more))
        return found

    async with opened(answering(extract)) as (bank, _):
        session = await talk(bank, "planner/a", "Note that reviews are on Monday.")
        await bank.reflect()
        await talk(bank, "planner/a", "From now on reviews are on Friday.")
        await bank.reflect()
        before = await all_memories(bank)
        (run,) = await bank.reflect(again=True)
        assert run.counts.refused == {OVERTAKEN: 1}
        assert await all_memories(bank) == before
        # Said anew, it holds again.
        await session.append([user("Sorry, reviews are on Monday after all."), assistant("Fine.")])
        old["evidence"] = [{"turn": "s1#T-3", "quote": "reviews are on Monday after all"}]
        await bank.reflect()
        texts = [memory.text for memory in await bank.memories.list("planner")]
        assert "Reviews are on Monday." in texts
