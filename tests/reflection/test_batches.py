"""Reflection through a provider's batch mode, and what such a mode does wrong."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

import perdure
from perdure.testing import BatchFaults, ScriptedModel
from tests.reflection.oracle import all_memories, answering, config
from tests.reflection.test_runs import LEARNT, TOPIC, by_session, texts, two_sessions

SCRIPT = answering(by_session, [TOPIC])


async def test_a_run_by_batch_costs_half_and_waits() -> None:
    async with ScriptedModel(SCRIPT) as model:
        settings = config(model, batch=True)
        async with perdure.open("memory://", config=settings) as bank:
            await two_sessions(bank)
            (run,) = await bank.reflect()
            assert (run.mode, run.state) == ("batch", "done")
            assert await texts(bank) == LEARNT
            assert sorted(model.batches.paid.values()) == [1, 1, 1]
            batches = await bank.gateway.batch.list()
            assert [(batch.state, batch.mode) for batch in batches] == [("applied", "batch")] * 2
            assert run.left_after == 4_000_000 - run.tokens


async def test_nobody_has_to_wait() -> None:
    """A run that is begun goes on when it is asked for again; memories may change meanwhile."""
    async with ScriptedModel(SCRIPT, batch_faults=BatchFaults(looks=6)) as model:
        settings = config(model, batch=True)
        async with perdure.open("memory://", config=settings) as bank:
            await two_sessions(bank)
            (run,) = await bank.reflect(wait=False)
            assert (run.state, [call.state for call in run.calls]) == (
                "extracting",
                ["intended"] * 2,
            )
            assert await texts(bank) == []
            await bank.memories.add("planner", "Added meanwhile.")
            await two_sessions(bank)  # further turns, of another run
            async with asyncio.timeout(60):
                while run.state != "done":
                    (run,) = await bank.reflect(wait=False)
                    await asyncio.sleep(0.02)
            assert run.name == "planner/R-1"
            assert await texts(bank) == sorted([*LEARNT, "Added meanwhile."])
            assert sorted(model.batches.paid.values()) == [1, 1, 1]
            assert sum(each.turns for each in await bank.reflection.preview()) == 2


async def test_who_has_no_model_leaves_the_batch_to_who_has(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/bank.db"
    async with ScriptedModel(SCRIPT, batch_faults=BatchFaults(looks=500)) as model:
        settings = config(model, batch=True)
        async with perdure.open(url, config=settings) as bank:
            await two_sessions(bank)
            (run,) = await bank.reflect(wait=False)
        async with perdure.open(url) as bank:
            (seen,) = await bank.reflect()
            assert (seen.name, seen.state) == (run.name, "extracting")
        model.batches.faults.looks = 0
        async with perdure.open(url, config=settings) as bank:
            (done,) = await bank.reflect()
            assert (done.name, done.state) == (run.name, "done")
            assert await texts(bank) == LEARNT
            assert sorted(model.batches.paid.values()) == [1, 1, 1]


@pytest.mark.parametrize(
    "faults",
    [
        BatchFaults(busy=2, not_yet=2, lossy=1),
        BatchFaults(cut=1, lists_late=1),
        BatchFaults(shuffle=True, looks=3),
    ],
    ids=["busy", "cut", "shuffled"],
)
async def test_what_goes_wrong_on_the_way_is_mended(faults: BatchFaults) -> None:
    async with ScriptedModel(SCRIPT, batch_faults=faults) as model:
        settings = config(model, batch=True)
        async with perdure.open("memory://", config=settings) as bank:
            await two_sessions(bank)
            (run,) = await bank.reflect()
            assert run.state == "done"
            assert await texts(bank) == LEARNT


async def test_what_expires_is_read_by_the_next_run() -> None:
    async with ScriptedModel(SCRIPT, batch_faults=BatchFaults(expired=1)) as model:
        settings = config(model, batch=True)
        async with perdure.open("memory://", config=settings) as bank:
            await two_sessions(bank)
            (run,) = await bank.reflect()
            assert run.state == "stopped"
            assert len(await texts(bank)) == 1
            assert [each.kind for each in await bank.inbox.list()] == ["trouble"]
            model.batches.faults.expired = 0
            (rest,) = await bank.reflect()
            assert rest.state == "done"
            assert len(rest.spans) == 1
            assert await texts(bank) == LEARNT


async def test_a_batch_that_is_refused_changes_nothing() -> None:
    async with ScriptedModel(SCRIPT, batch_faults=BatchFaults(refused_late=1)) as model:
        settings = config(model, batch=True)
        async with perdure.open("memory://", config=settings) as bank:
            await two_sessions(bank)
            before = await all_memories(bank)
            (run,) = await bank.reflect()
            if run.state == "stopped":  # the wire of Anthropic refuses nothing late
                assert await all_memories(bank) == before
            await bank.reflect()
            assert await texts(bank) == LEARNT


async def test_a_budget_that_does_not_hold_the_batch() -> None:
    async with ScriptedModel(SCRIPT) as model:
        settings = config(model, batch=True, tokens=12_000)
        async with perdure.open("memory://", config=settings) as bank:
            await two_sessions(bank)
            (run,) = await bank.reflect()
            assert run.state == "stopped"
            assert not model.batches.paid
            assert await texts(bank) == []
            assert [each.kind for each in await bank.inbox.list()] == ["spend"]
            assert sum(each.sessions for each in await bank.reflection.preview()) == 2
