"""What a judge is told of a session, and what the first call of a model needs."""

from __future__ import annotations

import asyncio
import re
from pathlib import Path
from typing import Any

import pytest

from perdure.bank import Bank
from perdure.config import Config, GatewayConfig, ModelsConfig
from perdure.core.messages import assistant, user
from perdure.core.tokens import o200k
from perdure.recall.steps.judge_history import JudgeHistory
from perdure.recall.values import Question
from perdure.storage.middleware import Call, Handler
from perdure.testing import ScriptedModel

CAP = 3_000


def said(number: int) -> list[object]:
    reply = " ".join(f"Step {step} of plan {number} moves crate {step * 7}." for step in range(40))
    return [user(f"What about plan {number}?"), assistant(reply)]


async def test_it_holds_the_older_shorter_and_grows_at_its_end() -> None:
    async with Bank("memory://") as bank:
        session = await bank.session("planner/me")
        history = JudgeHistory(bank.services.renditions, bank.services.reader)
        before, lines = list[str](), list[str]()
        kept = moved = 0
        for number in range(1, 81):
            await session.append(said(number))
            head = await session.head()
            question = Question(text="?", record=session.record, head=head, moment=0)
            lines = await history.lines(question, CAP)
            anew = JudgeHistory(bank.services.renditions, bank.services.reader)
            assert await anew.lines(question, CAP) == lines
            assert o200k().count("\n".join(lines)) <= CAP
            names = [
                int(name) for name in re.findall(r"^T-(\d+): ", "\n".join(lines), re.MULTILINE)
            ]
            assert names == list(range(names[0], number + 1))
            if lines[: len(before) - 1] == before[:-1]:
                kept += 1  # all but the newest, which stood there as it was said
            else:
                moved += 1
            before = lines
        assert moved <= 80 / 16
        assert kept >= 74
        sizes = [len(line) for line in lines]
        assert sizes[-1] > sizes[-2] > sizes[0]  # as it was said, at C, at T
        assert "Step 0 of plan 80" in lines[-1]
        assert "Step 39 of plan 80" in lines[-1]


async def test_sessions_that_are_asked_about_at_once_keep_to_themselves() -> None:
    async def yields(call: Call, proceed: Handler) -> Any:
        await asyncio.sleep(0)  # the others go on, as with a store that takes its time
        return await proceed(call)

    async with Bank("memory://", middleware=(yields,)) as bank:
        history = JudgeHistory(bank.services.renditions, bank.services.reader)
        questions, alone = list[Question](), list[list[str]]()
        for at in range(3):
            session = await bank.session(f"agent{at}/own")
            for number in range(1, 37):
                await session.append(said(1000 * at + number))
            head = await session.head()
            questions.append(Question(text="?", record=session.record, head=head, moment=0))
            anew = JudgeHistory(bank.services.renditions, bank.services.reader)
            alone.append(await anew.lines(questions[-1], CAP))
        for _ in range(2):
            # One of them twice: two may ask for the same session, too.
            asked = [*questions, questions[0]]
            at_once = await asyncio.gather(*(history.lines(each, CAP) for each in asked))
            assert at_once == [*alone, alone[0]]
        assert len({line for lines in alone for line in lines}) == sum(map(len, alone))


async def test_it_keeps_a_bounded_number_and_nothing_of_a_session_that_was_forgotten() -> None:
    async with Bank("memory://") as bank:
        history = JudgeHistory(bank.services.renditions, bank.services.reader)

        async def told(name: str, *plans: int) -> str:
            session = await bank.session(name)
            for number in plans:
                await session.append(said(number))
            head = await session.head()
            question = Question(text="?", record=session.record, head=head, moment=0)
            return "\n".join(await history.lines(question, CAP))

        assert "plan 71" in await told("planner/me", 71, 72, 73)
        await bank.forget(session="planner/me")
        assert "plan 71" not in await told("planner/me", 81, 82)
        for number in range(40):
            await told(f"planner/{number}", 1)
        assert len(history._told) == 32


@pytest.mark.parametrize("judges", [True, False])
async def test_what_a_first_call_needs_is_loaded_when_a_bank_is_opened(
    tmp_path: Path, judges: bool
) -> None:
    async with ScriptedModel(lambda _: "yes") as model:
        models = ModelsConfig(judge="ours/fast") if judges else ModelsConfig()
        gateway = GatewayConfig(providers={"ours": model.provider_config()}, models=models)
        async with Bank(f"sqlite:///{tmp_path / 'b.db'}", config=Config(gateway=gateway)) as bank:
            recall = await bank.services.loaded_recall()
            await recall.start()
            warming = recall._pipeline._warming
            assert (warming is not None) is judges
            if warming is not None:
                await warming
                assert asyncio.get_running_loop() in bank.gateway.transport._clients
            assert not model.requests
