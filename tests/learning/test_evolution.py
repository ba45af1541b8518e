"""Trends, tests of variants, promotion and its taking back."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator
from pathlib import Path

import msgspec
import pytest

import perdure
from perdure.config import LearningConfig
from perdure.core.errors import InvalidInput, NotFound
from perdure.learning.confidence import SessionSample, difference
from perdure.learning.evolution import Evolution
from perdure.learning.experiment_records import Experiment, ExperimentSession, StrategyChanges
from perdure.learning.experiment_verdict import ExperimentVerdict
from perdure.learning.experiments import Experiments
from perdure.learning.learned_book import MOST_TASKS, CallEvent, LearnedBook
from perdure.learning.learned_memory import LearnedMemory
from perdure.learning.learned_selector import LearnedSelector
from perdure.learning.trends import TrendMarks
from perdure.storage.store import Store
from tests.learning.lives import (
    ALL,
    LARGE,
    SMALL,
    Hands,
    Profiles,
    label,
    options,
    outcome,
    selector,
)


@pytest.fixture
async def store() -> AsyncIterator[Store]:
    async with perdure.open_store("memory://") as made:
        yield made


async def third_version(_: str) -> int:
    return 3


def make_evolution(
    store: Store, learned: LearnedSelector | None = None, **settings: object
) -> tuple[Evolution, Experiments]:
    experiments = Experiments(store, clock=store.now)
    config = LearningConfig(**settings)  # type: ignore[arg-type]
    made = Evolution(
        store,
        experiments,
        learned or selector(LearnedMemory(store)),
        lambda _: ALL,
        config=config,
        may_judge=lambda: True,
        prompt_version=third_version,
        clock=store.now,
    )
    return made, experiments


RECALL = StrategyChanges(recall=False)


async def run_sessions(
    experiments: Experiments, gain: float, sessions: int = 100, *, seed: int = 1
) -> None:
    dice = random.Random(seed)
    for number in range(sessions):
        name = f"router/{number}"
        variant = await experiments.variant("router", name)
        mean = 0.6 + gain * (variant.arm == "variant")
        for _ in range(2):
            score = min(1.0, max(0.0, dice.gauss(mean, 0.1)))
            experiments.note(outcome(SMALL, session=name, quality=score, by="judge"))
    await experiments.flush()


def test_an_alarm_needs_a_fall_and_stays_until_it_is_taken_up() -> None:
    dice = random.Random(3)
    marks = TrendMarks()
    for _ in range(1_000):
        marks.observe(dice.gauss(0.8, 0.1), "down")
    assert not marks.alarm
    for _ in range(100):
        marks.observe(dice.gauss(0.6, 0.1), "down")
    assert marks.alarm
    assert marks.usual == pytest.approx(0.8, abs=0.02)
    marks.reset()
    assert not marks.alarm


def test_bounds_hold_the_truth_and_get_narrower() -> None:
    dice = random.Random(5)
    samples, widths = [SessionSample(), SessionSample()], list[float]()
    for number in range(1, 2_001):
        for side, mean in enumerate((0.5, 0.6)):
            samples[side] = samples[side].adding(dice.gauss(mean, 0.2))
        found = difference(samples[0], samples[1])
        assert found.low < 0.1 < found.high, number
        widths.append(found.high - found.low)
    assert widths[-1] < widths[100] < widths[10]


async def test_a_session_keeps_its_side_also_in_another_process(store: Store) -> None:
    evolution, experiments = make_evolution(store)
    started = await evolution.start("router", RECALL)
    sides = {n: await experiments.variant("router", f"router/{n}") for n in range(60)}
    arms = [each.arm for each in sides.values()]
    assert 15 < arms.count("variant") < 45
    assert all((each.strategy == RECALL) == (each.arm == "variant") for each in sides.values())
    assert {each.experiment for each in sides.values()} == {started.id}
    _, other = make_evolution(store)
    for number, side in sides.items():
        assert await other.variant("router", f"router/{number}") == side
    assert (await other.variant("another", "another/1")).name == ""


async def test_a_variant_that_is_better_waits_for_a_person_and_can_be_taken_back(
    store: Store,
) -> None:
    evolution, experiments = make_evolution(store)
    await evolution.start("router", RECALL)
    with pytest.raises(InvalidInput, match="has a test already"):
        await evolution.start("router", StrategyChanges(budget=9_000))
    with pytest.raises(NotFound, match="waits to be accepted"):
        await evolution.accept("router")
    await run_sessions(experiments, gain=0.2)
    await evolution.consider("router")
    shown = await evolution.show("router")
    assert shown.experiment is not None
    assert shown.experiment.state == "better"
    assert shown.strategy == StrategyChanges()
    step = await evolution.accept("router", by="ada")
    assert (step.kind, step.by, step.after) == ("promoted", "ada", RECALL)
    assert step.evidence is not None
    assert step.evidence.difference.low > 0
    assert step.evidence.control.sessions + step.evidence.variant.sessions == 100
    assert (await experiments.variant("router", "router/new")).strategy == RECALL
    back = await evolution.revert("router")
    assert (back.kind, back.after) == ("reverted", StrategyChanges())
    assert (await experiments.variant("router", "router/new")).strategy == StrategyChanges()
    with pytest.raises(NotFound, match="taken back"):
        await evolution.revert("router")
    kinds = [step.kind for step in (await evolution.show("router")).steps]
    assert kinds == ["reverted", "promoted", "better", "started"]


async def test_a_variant_that_is_better_is_used_at_once_if_so_configured(store: Store) -> None:
    evolution, experiments = make_evolution(store, promote="automatic")
    await evolution.start("router", RECALL)
    await run_sessions(experiments, gain=0.2)
    await evolution.consider("router")
    assert (await evolution.show("router")).strategy == RECALL


async def test_harm_stops_a_test(store: Store) -> None:
    evolution, experiments = make_evolution(store)
    await evolution.start("router", RECALL)
    await run_sessions(experiments, gain=-0.3, sessions=50)
    await evolution.consider("router")
    found = await store.collection(Experiment).query().values()
    assert [each.state for each in found] == ["harm"]
    assert (await evolution.show("router")).strategy == StrategyChanges()


async def test_few_sessions_decide_nothing(store: Store) -> None:
    evolution, experiments = make_evolution(store)
    await evolution.start("router", RECALL)
    await run_sessions(experiments, gain=0.4, sessions=14)
    await evolution.consider("router")
    assert await experiments.running("router") is not None
    await evolution.dismiss("router")
    assert await experiments.running("router") is None


async def test_a_session_counts_once_however_many_calls_it_has(store: Store) -> None:
    evolution, experiments = make_evolution(store)
    started = await evolution.start("router", RECALL)
    await experiments.variant("router", "router/1")
    first = outcome(SMALL, session="router/1", quality=0.4, by="judge")
    experiments.note(first)
    experiments.note(outcome(SMALL, session="router/1", quality=0.8, by="judge"))
    experiments.note(outcome(SMALL, session="router/1"))  # nobody rated it
    experiments.note(outcome(SMALL, session="router/elsewhere", quality=0.1, by="judge"))
    again = msgspec.structs.replace(first, quality=0.6, quality_by="user")
    experiments.note(again, first)
    await experiments.flush()
    (row,) = await store.collection(ExperimentSession).query().values()
    assert row.calls == 2
    assert row.total == pytest.approx(0.6 + 0.8 - 2 * 0.004)
    verdict = await experiments.verdict(started, least=20)
    assert verdict.control.sessions + verdict.variant.sessions == 1


async def test_falling_labels_start_a_test_of_a_stronger_model(store: Store) -> None:
    learned = selector(LearnedMemory(store), clock=Hands())
    evolution, _ = make_evolution(store, learned, experiment_after=10_000)
    label(learned, SMALL, [0.9, 0.8] * 60)
    assert await evolution.consider("router") is None
    label(learned, SMALL, [0.5] * 100)
    found = await evolution.consider("router")
    assert found is not None
    assert "labels of p/small fall" in found.reason
    assert found.task == "triage"
    assert found.variant.model_for("triage") in ("p/medium", "p/large")
    assert learned.order(options(), ALL, {})[0] is not None
    # Nothing is changed by the alarm itself, and it is taken up once.
    assert (await evolution.show("router")).strategy == StrategyChanges()
    await evolution.dismiss("router")
    assert await evolution.consider("router") is None


async def test_rising_costs_start_a_test_of_a_cheaper_model(store: Store) -> None:
    learned = selector(LearnedMemory(store))
    evolution, _ = make_evolution(store, learned, experiment_after=10_000)
    for _ in range(100):
        learned.note(outcome(LARGE, dollars=0.02))
    assert await evolution.consider("router") is None
    learned.note(outcome(SMALL))  # it may be asked, too
    for _ in range(300):
        learned.note(outcome(LARGE, dollars=0.06))
    found = await evolution.consider("router")
    assert found is not None
    assert "p/large costs more" in found.reason
    assert found.variant.model_for("triage") in ("p/small", "p/medium")


async def test_so_many_calls_start_a_test_of_a_variant(store: Store) -> None:
    learned = selector(LearnedMemory(store))
    evolution, _ = make_evolution(store, learned)
    learned.note(outcome(LARGE))
    for _ in range(98):
        learned.note(outcome(SMALL))
    assert await evolution.consider("router") is None
    learned.note(outcome(SMALL))
    found = await evolution.consider("router")
    assert found is not None
    assert found.reason == "100 calls without a test"
    tried = [found.variant]
    for _ in range(3):
        await evolution.dismiss("router")
        for _ in range(100):
            learned.note(outcome(SMALL))
        found = await evolution.consider("router")
        assert found is not None
        tried.append(found.variant)
    kinds = [sorted(each.changes()) for each in tried]
    assert kinds == [["models"], ["prompt_version"], ["recall"], ["recall"]]
    off, _ = make_evolution(store, learned, experiments=False)
    assert await off.consider("somebody") is None


async def test_the_model_of_a_variant_answers_first_in_its_sessions(store: Store) -> None:
    experiments = Experiments(store, clock=store.now)
    learned = LearnedSelector(
        Profiles, LearnedMemory(store), may_judge=lambda: True, tests=experiments
    )
    evolution, _ = make_evolution(store, learned)
    await evolution.start("router", StrategyChanges(models={"triage": "p/large"}))
    label(learned, SMALL, [0.95] * 100)
    label(learned, LARGE, [0.1] * 100)
    for number in range(20):
        call = options(session=f"router/{number}")
        await learned.prepare(call)
        side = await experiments.variant("router", call.session)
        first = learned.order(call, ALL, {})[0]
        assert first == (LARGE if side.arm == "variant" else SMALL)
        # All answers of a test are judged.
        assert learned.is_judged(outcome(first, session=call.session))


async def test_of_two_processes_that_start_a_test_one_does(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/bank.db"
    async with perdure.open_store(url) as one, perdure.open_store(url) as two:
        first, _ = make_evolution(one)
        second, _ = make_evolution(two)
        done = await asyncio.gather(
            first.start("router", RECALL),
            second.start("router", StrategyChanges(budget=9_000)),
            return_exceptions=True,
        )
        assert [type(each) for each in done].count(InvalidInput) == 1
        assert await one.collection(Experiment).query().count() == 1


async def test_a_test_that_a_person_dismissed_stays_dismissed(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    evolution, experiments = make_evolution(store, promote="automatic")
    test = await evolution.start("router", RECALL)
    await run_sessions(experiments, gain=0.2)
    look = experiments.verdict

    async def dismissed_meanwhile(experiment: Experiment, least: int) -> ExperimentVerdict:
        found = await look(experiment, least)
        assert found.state == "better"
        await evolution.dismiss("router", by="ada")
        return found

    monkeypatch.setattr(experiments, "verdict", dismissed_meanwhile)
    assert (await evolution.evaluate(test)).state == "dismissed"
    shown = await evolution.show("router")
    assert [step.kind for step in shown.steps] == ["dismissed", "started"]
    assert shown.strategy == StrategyChanges()


def test_a_book_keeps_the_tasks_that_were_used_last() -> None:
    book = LearnedBook()
    for number in range(MOST_TASKS + 50):
        book.apply(CallEvent("usual", "moderate", SMALL.model, True))
        book.apply(CallEvent(f"task-{number}", "moderate", SMALL.model, True))
    assert len(book.tasks) == MOST_TASKS
    assert "usual" in book.tasks
    assert f"task-{MOST_TASKS + 49}" in book.tasks
