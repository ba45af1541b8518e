"""The learned choice of models."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

import msgspec
import pytest

import perdure
from perdure.gateway.model_selection import CandidateStatus, PreparedSelector
from perdure.learning.learned_memory import (
    EVERYONE,
    LearnedAgent,
    LearnedMemory,
    forget_learned,
)
from perdure.learning.learned_selector import LONGEST_STRETCH, is_chosen
from perdure.learning.seed_selector import SeedSelector, assess_quality
from perdure.learning.table_selector import TableSelector
from tests.learning.lives import (
    ALL,
    LARGE,
    MEDIUM,
    SMALL,
    Hands,
    Profiles,
    label,
    options,
    outcome,
    selector,
)


def test_without_labels_and_a_judge_the_order_is_that_of_the_configuration() -> None:
    learned = selector()
    assert isinstance(learned, PreparedSelector)
    assert learned.order(options(), ALL, {}) == ALL
    for _ in range(20):
        learned.note(outcome(LARGE))
    assert learned.order(options(), ALL, {}) == ALL


def test_calls_without_an_agent_keep_the_order_of_the_configuration() -> None:
    learned = selector(may_judge=True)
    label(learned, LARGE, [1.0] * 50)
    label(learned, SMALL, [0.0] * 50)
    assert learned.order(options(agent=""), ALL, {}) == ALL
    assert learned.order(options(), ALL, {})[0] == LARGE


def test_labels_of_a_judge_or_person_decide_and_guesses_do_not() -> None:
    learned = selector()
    label(learned, SMALL, [0.9] * 30)
    label(learned, MEDIUM, [0.2] * 30)
    label(learned, LARGE, [0.3] * 30)
    assert learned.order(options(), ALL, {})[0] == SMALL
    for _ in range(50):  # a heuristic is no label
        learned.rate(outcome(LARGE, quality=1.0))
    assert learned.order(options(), ALL, {})[0] == SMALL
    label(learned, SMALL, [0.0] * 150)
    assert learned.order(options(), ALL, {})[0] != SMALL


def test_a_person_overrules_a_judge_without_counting_twice() -> None:
    learned = selector()
    label(learned, SMALL, [0.2] * 10)
    marks = learned.memory.book("router").tasks["triage"].models["p/small"]
    before = marks.labels, marks.score
    learned.rate(outcome(SMALL, quality=0.9, by="user"), replaces=0.2)
    assert marks.labels == before[0]
    assert marks.score == pytest.approx(before[1] + 0.7)


def test_a_model_that_disappoints_at_one_task_is_trusted_less_at_others() -> None:
    learned = selector()
    expected = {e.model: e.quality for e in learned.expected(options(task="other"), ALL)}
    label(learned, LARGE, [0.1] * 20, task="triage")
    now = {e.model: e.quality for e in learned.expected(options(task="other"), ALL)}
    assert now["p/large"] < expected["p/large"] - 0.1
    assert now["p/medium"] == pytest.approx(expected["p/medium"])


def test_agents_learn_from_each_other_unless_told_not_to() -> None:
    for shared in (True, False):
        learned = selector(shared=shared)
        label(learned, LARGE, [0.1] * 40, agent="another")
        fell = learned.expected(options(), [LARGE])[0].quality < 0.6
        assert fell is shared


def test_a_veto_counts_as_a_failure_and_faults_of_the_caller_do_not() -> None:
    learned = selector()
    for _ in range(20):
        learned.note(outcome(SMALL, quality=0.0))
        learned.note(outcome(MEDIUM, quality=1.0))
        learned.note(outcome(LARGE, ok=False, error="rejected"))
    success = {e.model: e.success for e in learned.expected(options(), ALL)}
    assert success["p/small"] < 0.5
    assert success["p/medium"] > 0.95
    assert success["p/large"] == pytest.approx(0.97)


def test_costs_are_learnt_and_expected_of_others_by_their_price() -> None:
    learned = selector()
    for _ in range(30):
        learned.note(outcome(SMALL, dollars=0.005))  # ten times a typical call
    dollars = {e.model: e.dollars for e in learned.expected(options(), ALL)}
    assert dollars["p/small"] == pytest.approx(0.005, rel=0.1)
    assert dollars["p/large"] == pytest.approx(0.2, rel=0.1)


def test_models_are_tried_out_only_on_calls_that_are_judged() -> None:
    learned = selector(may_judge=True, judge_share=0.3)
    label(learned, MEDIUM, [0.9] * 30)
    chosen = {True: set[str](), False: set[str]()}
    for _ in range(200):
        call = options()
        first = learned.order(call, ALL, {})[0]
        assert learned.is_judged(outcome(first)) is False  # another call
        noted = msgspec.structs.replace(outcome(first), call=call.call)
        judged = learned.is_judged(noted)
        assert judged == is_chosen(call.call, 0.3)
        chosen[judged].add(first.model)
    assert chosen[False] == {"medium"}
    assert len(chosen[True]) > 1


def test_a_session_keeps_its_model_until_it_was_silent_or_its_circuit_opens() -> None:
    clock = Hands()
    learned = selector(clock=clock)
    label(learned, SMALL, [0.9] * 30)
    label(learned, MEDIUM, [0.1] * 30)
    here = {"session": "router/1"}
    assert learned.order(options(**here), ALL, {})[0] == SMALL
    label(learned, SMALL, [0.0] * 200)
    clock.seconds = 200
    assert learned.order(options(**here), ALL, {})[0] == SMALL
    assert learned.order(options(session="router/2"), ALL, {})[0] != SMALL
    is_open = {SMALL.name: CandidateStatus(state="open")}
    assert learned.order(options(**here), ALL, is_open)[-1] == SMALL
    clock.seconds = 1_000
    assert learned.order(options(**here), ALL, {})[0] != SMALL


def test_a_long_session_is_looked_at_again() -> None:
    learned = selector()
    label(learned, SMALL, [0.9] * 30)
    here = {"session": "router/1"}
    for _ in range(LONGEST_STRETCH):
        assert learned.order(options(**here), ALL, {})[0] == SMALL
    label(learned, SMALL, [0.0] * 200)
    assert learned.order(options(**here), ALL, {})[0] != SMALL


def test_stretches_are_taken_up_by_the_next_process() -> None:
    learned = selector()
    label(learned, LARGE, [0.9] * 30)
    learned.restore([outcome(SMALL, session="router/1")])
    assert learned.order(options(session="router/1"), ALL, {})[0] == SMALL
    assert learned.order(options(session="router/2"), ALL, {})[0] != SMALL


async def test_what_was_learnt_survives_and_is_added_up_over_processes(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'bank.db'}"
    async with perdure.open_store(url) as store:
        one, two = LearnedMemory(store), LearnedMemory(store)
        first, second = selector(one), selector(two)
        label(first, SMALL, [0.9] * 10)
        label(second, SMALL, [0.1] * 5)
        await one.flush()
        await two.flush()
        assert two.book("router").labels == 15  # it has read what the other wrote
        label(first, SMALL, [0.9])
        await one.flush()
        assert one.book("router").labels == 16
    async with perdure.open_store(url) as store:
        memory = LearnedMemory(store)
        again = selector(memory)
        await again.prepare(options())
        assert memory.book("router").labels == memory.book(EVERYONE).labels == 16
        await forget_learned(store, "router")
        fresh = LearnedMemory(store)
        await fresh.load("router")
        assert fresh.book("router").labels == 0


def test_the_first_designs_formula_stays_with_the_cheapest() -> None:
    assert assess_quality("anthropic") == 0.9
    assert assess_quality("anthropic", cached=True) == 0.8
    assert assess_quality("workersai") == 0.7
    assert assess_quality("any") == 0.75
    seed = SeedSelector()
    assert seed.order(options(), ALL, {}) == ALL
    seed.note(outcome(SMALL, dollars=0.001))
    assert seed.order(options(), ALL, {}) == ALL
    is_open = {SMALL.name: CandidateStatus(state="open")}
    assert seed.order(options(), ALL, is_open)[-1] == SMALL


def test_the_table_goes_by_complexity() -> None:
    table = TableSelector(Profiles)
    first = {
        complexity: table.order(options(complexity=complexity), ALL, {})[0].model
        for complexity in ("simple", "moderate", "complex")
    }
    assert first == {"simple": "small", "moderate": "medium", "complex": "large"}


_WORKER = """
import asyncio, sys
import perdure
from perdure.learning.learned_memory import LearnedMemory
from tests.learning.lives import SMALL, label, selector

async def main():
    async with perdure.open_store(sys.argv[1]) as store:
        memory = LearnedMemory(store)
        learned = selector(memory)
        for _ in range(20):
            label(learned, SMALL, [0.5])
            await memory.flush()

asyncio.run(main())
"""


async def test_processes_that_write_at_once_lose_nothing_of_each_other(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'bank.db'}"
    async with perdure.open_store(url) as store:
        await store.declare(LearnedAgent)
        workers = [
            await asyncio.create_subprocess_exec(sys.executable, "-c", _WORKER, url)
            for _ in range(3)
        ]
        assert [await worker.wait() for worker in workers] == [0, 0, 0]
        memory = LearnedMemory(store)
        await memory.load("router")
        await memory.load(EVERYONE)
        assert memory.book("router").labels == memory.book(EVERYONE).labels == 60
