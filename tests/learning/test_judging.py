"""Answers are judged in the background, within a budget, and what is learnt survives."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from perdure.bank import Bank
from perdure.config import (
    Config,
    LearningConfig,
    ModelsConfig,
    RecallConfig,
    RenditionsConfig,
)
from perdure.core.errors import BadAnswer
from perdure.gateway.calls import CallOptions
from perdure.gateway.model_selection import HealthSelector
from perdure.gateway.outcomes import Outcome
from perdure.learning.experiment_records import Experiment, StrategyChanges
from perdure.learning.judging import AnswerToJudge, read_verdict
from perdure.learning.learned_memory import LearnedAgent
from perdure.learning.learned_selector import LearnedSelector
from perdure.learning.seed_selector import SeedSelector
from perdure.learning.table_selector import TableSelector
from perdure.testing import ScriptedModel
from tests.gateway.opened import config_for, provider

VERDICT = json.dumps({"score": 0.25, "reason": "It is too short."})


def open_bank(url: str, answers: ScriptedModel, judge: ScriptedModel, **learning: Any) -> Bank:
    models = ModelsConfig(chat=("p/small", "p/large"), judge="j/judge")
    gateway = config_for({"p": provider(answers), "j": provider(judge)}, models=models)
    config = Config(
        gateway=gateway,
        learning=LearningConfig(**{"judge_share": 1.0, **learning}),
        renditions=RenditionsConfig(model=False),
        recall=RecallConfig(on=False),
    )
    return Bank(url, config=config)


async def until(condition: Callable[[], Awaitable[bool]]) -> None:
    async with asyncio.timeout(100):
        while not await condition():  # noqa: ASYNC110  # there is no event to wait for
            await asyncio.sleep(0.01)


async def test_a_chosen_answer_is_judged_and_learnt_from(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'bank.db'}"
    async with ScriptedModel("Paris.") as answers, ScriptedModel(VERDICT) as judge:
        async with open_bank(url, answers, judge) as bank:
            options = CallOptions(agent="guide", task="triage", session="guide/1")
            reply = await bank.gateway.complete("The capital of France?", options)

            async def judged() -> bool:
                found = await bank.collection(Outcome).get(reply.outcome)
                return found is not None and found.quality_by == "judge"

            await bank.gateway.settle()
            await until(judged)
            found = await bank.collection(Outcome).get(reply.outcome)
            assert found is not None
            assert (found.quality, found.comment) == (0.25, "It is too short.")
            (asked,) = judge.requests
            assert "Paris." in str(asked.body)
            assert "The capital of France?" in str(asked.body)
            await until(_none_left(bank))
            await bank.gateway.feedback(reply.outcome, 0.9, "Short is what I want.")
            # A call without an agent is nobody's business.
            await bank.gateway.complete("Hello?", CallOptions())
            await bank.gateway.settle()
        async with open_bank(url, answers, judge) as bank:
            rows = {row.agent: row async for row in bank.collection(LearnedAgent).walk()}
            marks = rows["guide"].book.tasks["triage"].models["p/small"]
            assert marks.labels == 1.0
            assert marks.score == pytest.approx(0.9)
            assert rows[""].book.labels == 1
            found = await bank.collection(Outcome).get(reply.outcome)
            assert found is not None
            assert (found.quality_by, found.comment) == ("user", "Short is what I want.")
            assert len(judge.requests) == 1
            await bank.learning.evolution.start("guide", StrategyChanges(recall=False))
            await bank.forget_agent("guide")
            rows = {row.agent: row async for row in bank.collection(LearnedAgent).walk()}
            assert set(rows) == {""}  # what labels told about models stays, without a name
            assert [row async for row in bank.collection(Experiment).walk()] == []
            assert bank.learning.learned.memory.book("guide").labels == 0


def _none_left(bank: Bank) -> Any:
    async def none_left() -> bool:
        return not [row async for row in bank.collection(AnswerToJudge).walk()]

    return none_left


async def test_nothing_is_judged_beyond_the_budget() -> None:
    async with (
        ScriptedModel("Paris.") as answers,
        ScriptedModel(VERDICT) as judge,
        open_bank("memory://", answers, judge, judge_tokens=10) as bank,
    ):
        options = CallOptions(agent="guide", task="triage")
        await bank.gateway.complete("The capital of France?", options)
        await bank.gateway.settle()
        await until(_none_left(bank))
        assert judge.requests == []
        # Nothing is chosen for a while, so nothing waits either.
        await bank.gateway.complete("The capital of Spain?", options)
        await bank.gateway.settle()
        assert await _none_left(bank)()
        (status,) = [s for s in await bank.gateway.budgets() if s.budget.name == "judging"]
        assert status.budget.tokens == 10


@pytest.mark.parametrize("said", ["", "0.7", '{"score": 7, "reason": ""}', '{"score": "good"}'])
def test_what_is_no_verdict_is_refused(said: str) -> None:
    with pytest.raises(BadAnswer):
        read_verdict(said)


def test_a_verdict_may_stand_in_prose() -> None:
    assert read_verdict('Well:\n```json\n{"score": 0.5, "reason": "so so"}\n```').score == 0.5


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("learned", LearnedSelector),
        ("seed", SeedSelector),
        ("table", TableSelector),
        ("health", HealthSelector),
    ],
)
async def test_the_configuration_says_how_models_are_chosen(name: str, kind: type) -> None:
    async with ScriptedModel("Paris.") as answers:
        models = ModelsConfig(chat=("p/small", "p/large"))
        gateway = config_for({"p": provider(answers)}, models=models, selector=name)
        async with Bank("memory://", config=Config(gateway=gateway)) as bank:
            assert type(bank.gateway.selector) is kind
            options = CallOptions(agent="guide", task="triage", complexity="complex")
            reply = await bank.gateway.complete("The capital of France?", options)
            assert reply.text == "Paris."
            assert [each.budget.name for each in await bank.gateway.budgets()] == []
