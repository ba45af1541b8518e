"""Episodes: complete, listed by path, kept for 90 days, gone with what they are about."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest
import zstandard

from perdure.agents.episodes import Episode
from perdure.bank import Bank
from perdure.core.errors import NotFound
from perdure.core.messages import assistant, user
from perdure.testing import ManualClock
from tests.agents.conftest import MakeAgentBank, everywhere
from tests.agents.tiers import interaction, recorded

MARKER = "xylophone-quartz-7731"


async def artifacts(bank: Bank) -> int:
    return len([each async for each in bank.artifacts.located()])


async def test_an_episode_is_complete_and_in_the_artifact_store(bank: Bank) -> None:
    memory = bank.agent_memory("router")
    session = await bank.session("router/inbox")
    await session.append([user("Where does it go?"), assistant("To billing.")])
    given = interaction(
        1, session="router/inbox", turn=1, context={"mail": 7}, recalled=("M-1",), outcomes=("o1",)
    )
    await memory.store(given)
    (waiting,) = await memory.episodes.list("router")
    before = await memory.episodes.content(waiting)
    await bank.settle()
    (episode,) = await memory.episodes.list("router")
    assert episode.waiting is None
    assert episode.artifact is not None
    date = before["ended"][:10]
    assert episode.path == f"episodes/router/{date}/inbox/00000001"
    packed = await bank.artifacts.read(episode.artifact)
    document = msgspec.json.decode(zstandard.ZstdDecompressor().decompress(packed))
    assert document == await memory.episodes.read(episode.path) == before
    assert {*("request", "response", "context", "performance", "learnings")} <= document.keys()
    assert document["context"] == {"given": {"mail": 7}, "recalled": ["M-1"]}
    assert document["performance"]["cost_dollars"] == pytest.approx(0.002)
    assert document["learnings"]["memories"] == ["M-1"]
    assert [each["role"] for each in document["messages"]] == ["user", "assistant"]


async def test_episodes_are_listed_by_session_task_and_outcome(bank: Bank) -> None:
    memory = bank.agent_memory("router")
    await recorded(
        bank,
        interaction(1),
        interaction(2, task="triage", success=False),
        interaction(3, session="router/other"),
        interaction(4, agent="coder"),
    )
    numbers = [each.interaction[-1] for each in await memory.episodes.list("router")]
    assert sorted(numbers) == ["1", "2", "3"]
    assert len(await memory.episodes.list("router", task="triage", success=False)) == 1
    assert len(await memory.episodes.list("router", session="router/other")) == 1
    assert len(await memory.episodes.list("router", limit=2)) == 2
    found = await memory.episodes.read("router/00000002")
    assert found["task"] == "triage"
    with pytest.raises(NotFound):
        await memory.episodes.read("coder/00000004", agent="router")


async def test_after_90_days_an_episode_and_its_artifact_are_gone(
    bank: Bank, clock: ManualClock
) -> None:
    memory = bank.agent_memory("router")
    await memory.store(interaction(1))
    await bank.settle()
    (old,) = await memory.episodes.list("router")
    clock.advance("89d")
    await memory.store(interaction(2))
    await bank.settle()
    assert await artifacts(bank) == 2
    clock.advance("2d")
    assert [each.interaction for each in await memory.episodes.list("router")] == [
        "router/00000002"
    ]
    with pytest.raises(NotFound):
        await memory.episodes.read(old.path)
    assert await memory.episodes.expire() == 1
    assert await artifacts(bank) == 1
    # The log and the figures know nothing of it.
    assert len(await (await bank.session("router/interactions")).turns()) == 2
    assert (await memory.stats()).interactions == 2


async def test_the_days_are_a_setting(make_bank: MakeAgentBank, clock: ManualClock) -> None:
    bank = await make_bank(episode_days=2)
    memory = bank.agent_memory("router")
    await memory.store(interaction(1))
    clock.advance("3d")
    assert await memory.episodes.list("router") == []


async def test_forgetting_a_session_forgets_its_episodes(bank: Bank) -> None:
    memory = bank.agent_memory("router")
    for number, session in enumerate(["router/a", "router/b", "router/a"], start=1):
        await memory.store(interaction(number, session=session, request=f"{MARKER} {number}"))
    await bank.settle()
    assert await artifacts(bank) == 3
    await bank.forget("router/a")
    (left,) = await memory.episodes.list("router")
    assert left.session == "router/b"
    assert await artifacts(bank) == 1
    stats = await memory.stats()
    assert stats.interactions == 3  # the amounts stay
    assert (await memory.working.get("router/a")).messages == ()
    assert [problem async for problem in bank.verify()] == []


async def test_forgetting_a_turn_forgets_its_episode(bank: Bank) -> None:
    memory = bank.agent_memory("router")
    await recorded(bank, interaction(1), interaction(2))
    await bank.settle()
    await bank.forget("router/interactions", turns="T-1")
    assert [each.turn for each in await memory.episodes.list("router")] == [2]
    assert await artifacts(bank) == 1


async def test_an_episode_that_is_not_archived_yet_is_forgotten_too(
    bank: Bank, tmp_path: Path
) -> None:
    await bank.jobs.unregister("agent_episode")
    memory = bank.agent_memory("router")
    await memory.store(interaction(1, request=MARKER))
    await bank.forget_agent("router")
    await bank.settle()
    assert await bank.collection(Episode).query().count() == 0
    assert await artifacts(bank) == 0


@everywhere
async def test_forgetting_an_agent_forgets_all_tiers(bank: Bank) -> None:
    await recorded(bank, interaction(1, recalled=("M-1",)), interaction(2, agent="coder"))
    await bank.settle()
    await bank.forget_agent("router")
    stats = await bank.agent_memory("router").stats()
    assert (stats.interactions, stats.learned_patterns, stats.tasks) == (0, [], [])
    assert await bank.agent_memory("router").episodes.list("router") == []
    assert await artifacts(bank) == 1
    assert (await bank.agent_memory("coder").stats()).interactions == 1


async def test_secrets_are_masked_in_every_tier(bank: Bank) -> None:
    secret = "sk-ant-api03-" + "Ab1" * 31 + "AA"
    memory = bank.agent_memory("router")
    await memory.store(
        interaction(1, request=secret, response=secret, context={"key": secret}, error=secret)
    )
    await bank.settle()
    assert secret not in str(await memory.episodes.read("router/00000001"))
    for size in await bank.store.adapter.sizes():
        for row in await bank.store.adapter.salvage(size.collection, "", 1_000):
            assert secret.encode() not in row.value, size.collection
