"""Reflection through a provider's batch mode, and what such a mode does wrong."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

import perdure
from perdure.core.errors import Conflict, InvalidInput
from perdure.core.messages import Usage
from perdure.recall.memory_records import person
from perdure.reflection.lease import held
from perdure.reflection.operation_checks import OUTDATED
from perdure.reflection.reflection_records import RunPreview
from perdure.testing import BatchFaults, ReceivedRequest, ScriptedAnswer, ScriptedModel
from tests.reflection.oracle import all_memories, answering, config, on, talk
from tests.reflection.test_runs import LEARNT, TOPIC, by_session, texts, two_sessions
from tests.waiting import until

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


async def test_a_budget_that_ends_in_the_middle_of_a_batch() -> None:
    """Answers took more than was reserved for them: nobody is asked to consolidate."""

    def script(request: ReceivedRequest) -> ScriptedAnswer:
        return ScriptedAnswer(SCRIPT(request), usage=Usage(input=6_000, output=10))

    async with ScriptedModel(script) as model:
        settings = config(model, batch=True, tokens=12_000)
        async with perdure.open("memory://", config=settings) as bank:
            await two_sessions(bank)
            (run,) = await bank.reflect()
            assert (run.state, run.tokens) == ("stopped", 12_020)
            assert [call.state for call in run.calls] == ["answered", "answered", "failed"]
            assert await texts(bank) == LEARNT[:2]
            assert [each.kind for each in await bank.inbox.list()] == ["spend"]
            assert sum(model.batches.paid.values()) == 2
            assert await bank.reflection.preview() == []


async def test_what_changed_meanwhile_is_not_overwritten_by_a_late_answer() -> None:
    """Between question and answer, a machine changed three memories and a person none."""
    cited = "the staging port is 8123"
    late = [
        on("update", ["M-1"], "s1#T-1", cited, text="The staging port is 8123 now."),
        on("merge", ["M-2", "M-1"], "s1#T-1", cited, text="The staging port is 8123 everywhere."),
        on("retire", ["M-3"], "s1#T-1", cited),
        on("reinforce", ["M-4"], "s1#T-1", cited),
        on("note", ["M-1", "M-5"], "s1#T-1", cited, text="They contradict each other."),
        on("reinforce", ["M-5"], "s1#T-1", cited),
    ]
    faults = BatchFaults(looks=500)
    async with ScriptedModel(answering(late), batch_faults=faults) as model:
        settings = config(model, batch=True)
        async with perdure.open("memory://", config=settings) as bank:
            await talk(bank, "planner/a", f"Note that {cited}.")
            said = ("on host one", "on host two", "for tests", "of the demo", "written down")
            for each in said:
                await bank.memories.add("planner", f"The staging port {each} is old.")
            (run,) = await bank.reflect(wait=False)
            assert run.calls[0].versions == {f"M-{number}": 1 for number in range(1, 6)}
            for number in (1, 3, 4):
                await bank.memories.edit(
                    f"planner/M-{number}", text=f"Newer text {number}: staging port."
                )
            before, _ = await all_memories(bank)
            model.batches.faults.looks = 0
            (run,) = await bank.reflect()
            assert run.state == "done"
            after, _ = await all_memories(bank)
            changed = {id[-1] for id in after if after[id] != before[id]}
            assert changed == {"5"}  # what is as it was read is seen once more
            assert run.counts.applied == {"reinforce": 1}
            assert run.counts.refused == {OUTDATED: 2}
            proposed = await bank.inbox.list(kind="proposal")
            assert sorted(each.operation.op for each in proposed if each.operation) == [
                "merge",
                "retire",
                "update",
            ]
            assert all("after the model had read it" in each.text for each in proposed)
            (wanted,) = [each for each in proposed if "Retire" in each.title]
            await bank.inbox.accept(wanted.name, by=person("ada"))
            retired = await bank.memories.get("planner/M-3")
            assert retired is not None
            assert retired.status == "retired"


async def test_a_consolidation_that_was_sent_is_read_though_more_was_said_since() -> None:
    """More windows than questions by now: what was asked counts, nothing is missing."""
    faults = BatchFaults(looks=1)
    async with ScriptedModel(SCRIPT, batch_faults=faults) as model:
        settings = config(model, batch=True, window=2_000)
        async with perdure.open("memory://", config=settings) as bank:
            await two_sessions(bank)
            run = None
            async with asyncio.timeout(60):
                while run is None or run.state != "consolidating":
                    (run,) = await bank.reflect(wait=False)
                    if run.state == "extracting":
                        faults.looks = 1
                    await asyncio.sleep(0.01)
                    faults.looks = 500
            await talk(bank, "planner/a", *(f"Word {n} " * 200 for n in range(20)))
            model.batches.faults.looks = 0
            (run,) = await bank.reflect()
            assert (run.state, run.why) == ("done", "")
            assert await texts(bank) == LEARNT


async def test_every_agent_is_asked_before_an_answer_is_waited_for() -> None:
    async with ScriptedModel(SCRIPT, batch_faults=BatchFaults(looks=10_000)) as model:
        settings = config(model, batch=True)
        async with perdure.open("memory://", config=settings) as bank:
            await two_sessions(bank)
            await talk(bank, "writer/a", "Note that the staging port is 8123.")
            waiting = asyncio.create_task(bank.reflect())
            await until(lambda: len(model.batches.hosted) == 2)
            model.batches.faults.looks = 0
            assert [(run.agent, run.state) for run in await waiting] == [
                ("planner", "done"),
                ("writer", "done"),
            ]
            assert sorted(model.batches.paid.values()) == [1] * 4


async def test_what_could_not_be_sent_is_not_called_sent() -> None:
    async with ScriptedModel(SCRIPT) as model:
        settings = config(model, batch=True)
    async with perdure.open("memory://", config=settings) as bank:  # nobody listens there any more
        await two_sessions(bank)
        (run,) = await bank.reflect(wait=False)
        assert run.state == "extracting"
        assert "not sent yet" in run.why
        assert "nothing listens" in run.why


async def test_a_run_can_be_given_up_while_its_batch_is_under_way(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/bank.db"
    async with ScriptedModel(SCRIPT, batch_faults=BatchFaults(looks=10_000)) as model:
        async with perdure.open(url, config=config(model, batch=True)) as bank:
            await two_sessions(bank)
            before = await all_memories(bank)
            (run,) = await bank.reflect(wait=False)
            expected = list[RunPreview]()
            await bank.reflection.reflect(wait=False, foresee=expected.append)
            assert expected == []  # what it may take was told when it began
        async with perdure.open(url) as bank:  # without the model, it would wait for ever
            (seen,) = await bank.reflect()
            assert "has a model for `reflect`" in seen.why
            assert f"reflect undo {run.name}" in seen.why
            async with held(bank.store, "planner"):
                with pytest.raises(Conflict, match="Another process reflects"):
                    await bank.reflection.undo(run.name)
            undone = await bank.reflection.undo(run.name)
            assert (undone.state, await all_memories(bank)) == ("undone", before)
            with pytest.raises(InvalidInput, match="undone already"):
                await bank.reflection.undo(run.name)
            (other,) = await bank.reflect()
            assert (other.name, other.state, other.mode) == ("planner/R-2", "done", "")
        async with perdure.open(url, config=config(model, batch=True)) as bank:
            (batch,) = await bank.gateway.batch.list()
            await bank.gateway.batch.poll(batch)
            async with asyncio.timeout(60):
                batch = await bank.gateway.batch.wait(batch)
            assert batch.state == "cancelled"
            assert model.batches.paid == {}
