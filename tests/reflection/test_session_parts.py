"""A session that takes several questions: what is answered counts, the rest is read again."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

import perdure
from perdure.bank import Bank
from perdure.config import ModelsConfig
from perdure.core.clock import SECOND, now
from perdure.reflection.reflection_records import ReflectionCursor
from perdure.testing import (
    BatchFaults,
    ReceivedRequest,
    ScriptedAnswer,
    ScriptedFault,
    ScriptedModel,
)
from tests.reflection.oracle import answering, config, opened, talk
from tests.reflection.test_runs import reads, texts

#: Each of these is a turn, and fills a question.
LETTERS = "bcdf"
FACTS = [f"Fact early{letter} ." for letter in LETTERS]


async def long_session(bank: Bank) -> None:
    said = (f"Fact early{letter} {'and so on ' * 700}." for letter in LETTERS)
    await talk(bank, "planner/early", *said)


def shown(request: ReceivedRequest) -> str:
    """The letters of the facts that a question shows."""
    return "".join(re.findall(r"> User: Fact early(\w) ", request.prompt))


def failing(fault: Any, times: int = 99) -> Any:
    """What a model says that fails so often at the turn with the letter c."""
    left = times

    def script(request: ReceivedRequest) -> Any:
        nonlocal left
        if "Consolidate:" not in request.prompt and "c" in shown(request) and left:
            left -= 1
            return fault
        return answering(reads)(request)

    return script


async def test_what_was_answered_is_not_asked_again() -> None:
    async with opened(failing(ScriptedFault(status=500), 1), window=2_000) as (bank, model):
        await long_session(bank)
        (run,) = await bank.reflect()
        assert [call.state for call in run.calls] == ["answered", "failed", "answered", "answered"]
        assert [(call.span.first, call.span.last) for call in run.calls if call.span] == [
            (number, number) for number in range(1, 5)
        ]
        (rest,) = await bank.reflection.preview()
        assert rest.turns == 3
        asked = len(model.requests)
        await bank.reflect()
        assert await texts(bank) == FACTS
        assert not any("b" in shown(each) for each in model.requests[asked : asked + 3])
        assert await bank.reflect() == []


@pytest.mark.parametrize("batch", [False, True], ids=["live", "batch"])
async def test_a_question_that_is_always_refused_is_tried_three_times(*, batch: bool) -> None:
    """Else the others would be paid for again, as long as there is the session."""
    fault = ScriptedFault(status=400, message="This content is against the rules.")
    async with ScriptedModel(failing(fault)) as model:
        settings = config(model, batch=batch, window=2_000)
        async with perdure.open("memory://", config=settings) as bank:
            await long_session(bank)
            runs = 0
            while await bank.reflect():
                runs += 1
                assert runs < 10
            assert runs == 3
            assert await texts(bank) == [FACTS[0], *FACTS[2:]]
            given_up = [
                each for each in await bank.inbox.list() if "was read 3 times" in each.title
            ]
            (message,) = given_up
            assert "T-2 to T-2 count as read" in message.text


async def test_a_model_that_refuses_everything_is_no_reason_to_give_up() -> None:
    """It does not exist, say: what is new stays new."""
    async with opened(ScriptedFault(status=404), window=2_000) as (bank, _):
        await long_session(bank)
        for _ in range(4):
            (run,) = await bank.reflect()
            assert run.state == "stopped"
        (expected,) = await bank.reflection.preview()
        assert expected.turns == 4


async def test_what_every_model_refuses_is_given_up_too() -> None:
    fault = ScriptedFault(status=400, message="This content is against the rules.")
    async with ScriptedModel(failing(fault)) as model:
        settings = config(model, window=2_000)
        two = ModelsConfig(reflect=("scripted/one", "scripted/two"))
        settings = replace(settings, gateway=replace(settings.gateway, models=two))
        async with perdure.open("memory://", config=settings) as bank:
            await long_session(bank)
            for _ in range(3):
                await bank.reflect()
            assert await bank.reflection.preview() == []
            assert await texts(bank) == [FACTS[0], *FACTS[2:]]


async def test_an_unusable_answer_costs_its_own_turns_only() -> None:
    nonsense = ScriptedAnswer("Sorry, no.")
    async with opened(failing(nonsense, 1), window=2_000) as (bank, model):
        await long_session(bank)
        await bank.reflect()
        (rest,) = await bank.reflection.preview()
        assert rest.turns == 3
        await bank.reflect()
        assert await texts(bank) == FACTS
        extracted = [shown(e) for e in model.requests if "Consolidate:" not in e.prompt]
        assert extracted == ["b", "c", "d", "f", "c", "d", "f"]


async def test_answers_are_for_the_turns_that_were_sent(tmp_path: Path) -> None:
    """A batch takes hours; by then, the same turns may be cut into fewer questions."""
    url = f"sqlite:///{tmp_path}/bank.db"
    async with ScriptedModel(answering(reads), batch_faults=BatchFaults(looks=500)) as model:
        async with perdure.open(url, config=config(model, batch=True, window=2_000)) as bank:
            await long_session(bank)
            (run,) = await bank.reflect(wait=False)
            assert len(run.calls) == 4
        model.batches.faults.looks = 0
        # Less is read in detail.
        shorter = config(model, batch=True, window=2_000, view=1_000)
        async with perdure.open(url, config=shorter) as bank:
            (run,) = await bank.reflect()
            assert (run.name, run.state, run.counts.refused) == ("planner/R-1", "done", {})
            assert await texts(bank) == FACTS


async def test_a_session_that_is_forgotten_meanwhile_leaves_nothing_that_counts_as_read() -> None:
    async with (
        ScriptedModel(
            lambda _: json.dumps({"operations": []}), batch_faults=BatchFaults(looks=500)
        ) as model,
        perdure.open("memory://", config=config(model, batch=True)) as bank,
    ):
        await talk(bank, "planner/a", "One.", "Two.")
        await talk(bank, "planner/b", "Three.")
        await bank.reflect(wait=False)
        await bank.forget("planner/a")
        model.batches.faults.looks = 0
        await bank.reflect()
        assert await bank.collection(ReflectionCursor).get("planner/a") is None
        await talk(bank, "planner/a", "Another talk of that name.")
        (expected,) = await bank.reflection.preview()
        assert expected.turns == 1


async def test_to_read_everything_again_takes_as_many_days_as_it_needs(tmp_path: Path) -> None:
    url, days = f"sqlite:///{tmp_path}/bank.db", 0
    async with ScriptedModel(answering(reads)) as model:
        async with perdure.open(url, config=config(model, tokens=None)) as bank:
            await long_session(bank)
            await talk(bank, "planner/late", "Fact lateb and so on.")
            topic = await bank.memories.add("planner", "fact", kind="topic")
            (run,) = await bank.reflect()
            await bank.reflection.undo(run.name)
        small = config(model, window=2_000, tokens=10_000)
        async with Bank(url, config=small, clock=lambda: now() + days * 86_400 * SECOND) as bank:
            (run,) = await bank.reflect(again=True)
            assert run.waiting_turns
            read = list(run.spans)
            while days < 20:
                days += 1
                if not (found := await bank.reflect()):
                    break
                read += found[0].spans
            turns = [(span.session, n) for span in read for n in range(span.first, span.last + 1)]
            assert turns == [*(("planner/early", n) for n in range(1, 5)), ("planner/late", 1)]
            assert await texts(bank) == sorted([*FACTS, "Fact lateb a.", "fact"])
            weighed = await bank.memories.get(topic.name)
            assert weighed is not None
            assert weighed.weight < topic.weight  # what is read again is no news
