"""The loop of an agent keeps all tiers of its memory."""

from __future__ import annotations

import asyncio

import pytest

from perdure.agents.agent_stats import agent_performance_table
from perdure.core.errors import InvalidInput
from tests.agents.loop.conftest import Brain, OpenBank, calls


async def test_an_answered_message_is_in_every_tier(open_bank: OpenBank, brain: Brain) -> None:
    bank = await open_bank()
    agent = await bank.agent("router", prompt="Route mails.")
    brain.default = "To billing."
    reply = await agent.ask("Where to?", task="routing", context={"mail": 7}, session="inbox")
    await reply.feedback(0.75)
    await bank.settle()
    stats = await agent.memory.stats()
    assert (stats.interactions, stats.success_rate, stats.quality) == (1, 1.0, 0.75)
    assert stats.average_cost is not None
    assert [each.task for each in stats.tasks] == ["routing"]
    (row,) = await agent_performance_table(bank.services, "router")
    assert (row.task_type, row.provider, row.quality_score) == ("routing", "scripted", 0.75)
    (episode,) = await agent.memory.episodes.list("router")
    assert episode.path.endswith("/inbox/00000001")
    content = await agent.memory.episodes.content(episode)
    assert content["context"]["given"] == {"mail": 7}
    assert [each["role"] for each in content["messages"]] == ["user", "assistant"]
    async with asyncio.timeout(100):  # it is noted right behind the reply
        while not (working := await agent.memory.working.get("router/inbox")).messages:  # noqa: ASYNC110
            await asyncio.sleep(0.01)  # there is no event to wait for
    assert [each.text for each in working.messages] == ["Where to?", "To billing."]
    assert (working.task, working.context) == ({}, {"mail": 7})


async def test_the_current_task_is_there_while_it_is_done(
    open_bank: OpenBank, brain: Brain
) -> None:
    bank = await open_bank()
    found = list[object]()

    async def look() -> str:
        """Look at what the agent has in mind."""
        working = await bank.agent_memory("router").working.get("router/main")
        found.append((working.task, working.context))
        return "seen"

    brain.on("Where to?", calls(("look", "{}")))
    agent = await bank.agent("router", prompt="Route mails.", tools=[look])
    await agent.ask("Where to?", task="routing", context={"mail": 7})
    assert found == [({"name": "routing"}, {"mail": 7})]


async def test_settings_of_tiers_that_are_none_are_refused_at_once(open_bank: OpenBank) -> None:
    bank = await open_bank()
    with pytest.raises(InvalidInput, match="hours"):
        await bank.agent("router", prompt="p", tiers={"working_ttl": "30m"})
    agent = await bank.agent("router", prompt="p", tiers={"working_ttl": "2h", "recall_limit": "8"})
    assert (await agent.memory.stats()).interactions == 0
