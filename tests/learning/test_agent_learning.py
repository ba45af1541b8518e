"""A real agent learns: its calls, its person's words, its tests."""

from __future__ import annotations

from pathlib import Path

from perdure.agents.interaction_records import InteractionRecord
from perdure.learning.experiment_records import StrategyChanges
from perdure.learning.learned_memory import LearnedMemory
from perdure.testing import ReceivedRequest, ScriptedModel
from tests.learning.test_judging import VERDICT, open_bank


def answer(request: ReceivedRequest) -> str:
    return f"From {request.model}."


async def test_an_agent_learns_from_its_persons_words(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'bank.db'}"
    async with ScriptedModel(answer) as answers, ScriptedModel(VERDICT) as judge:
        async with open_bank(url, answers, judge, judge_share=0.0) as bank:
            agent = await bank.agent("router", prompt="Route it.")
            reply = await agent.ask("An invoice.", task="triage", session="first")
            assert reply.text == "From small."  # as configured: nobody has said anything
            (choice,) = (await bank.learning.show("router")).choices
            assert (choice.task, choice.by) == ("triage", "configured")
            assert [each.model for each in choice.models] == ["p/small", "p/large"]
            await reply.feedback(0.4, "Wrong department.")
            await reply.feedback(0.1, "Very wrong.")
            for number in range(12):
                reply = await agent.ask("An invoice.", task="triage", session=f"more-{number}")
                await reply.feedback(0.0 if "small" in reply.text else 0.9, "So it is.")
            assert reply.text == "From large."
            await bank.settle()
        async with open_bank(url, answers, judge, judge_share=0.0) as bank:
            agent = await bank.agent("router")
            reply = await agent.ask("An invoice.", task="triage", session="later")
            assert reply.text == "From large."
            memory = LearnedMemory(bank.store)
            await memory.load("router")
            # What was rated again counts once.
            assert memory.book("router").labels == 13
            (choice,) = (await bank.learning.show("router")).choices
            assert (choice.task, choice.by) == ("triage", "learned")
            first, second = choice.models
            assert (first.model, second.model) == ("p/large", "p/small")
            assert first.utility > second.utility
            assert await bank.learning.agents(10) == ["router"]
    assert judge.requests == []


async def test_an_agents_sessions_have_the_side_that_its_test_gives_them() -> None:
    async with (
        ScriptedModel(answer) as answers,
        ScriptedModel(VERDICT) as judge,
        open_bank("memory://", answers, judge) as bank,
    ):
        agent = await bank.agent("router", prompt="Route it.")
        await bank.learning.evolution.start("router", StrategyChanges(models={"*": "p/large"}))
        texts = dict[str, str]()
        for number in range(16):
            reply = await agent.ask("An invoice.", task="triage", session=f"s{number}")
            texts[f"router/s{number}"] = reply.text
        await bank.settle()
        rows = [row async for row in bank.collection(InteractionRecord).walk()]
        sides = {row.session: row.variant.rpartition("/")[2] for row in rows}
        assert set(sides.values()) == {"control", "variant"}
        for session, side in sides.items():
            if side == "variant":
                assert texts[session] == "From large."
