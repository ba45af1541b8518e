"""The aggregate tier: kept in the transaction that ends a message, under conflict and kill."""

from __future__ import annotations

import asyncio
from pathlib import Path

import msgspec
import pytest

from perdure.agents.agent_stats import (
    AgentMemoryRow,
    AgentPerformanceRow,
    agent_performance_table,
    read_table,
)
from perdure.agents.interaction_records import AgentTotals, EvolutionEntry, InteractionRecord
from perdure.agents.interactions import Interactions
from perdure.agents.learned_patterns import ENOUGH, least_rate
from perdure.bank import Bank
from perdure.core.clock import new_id
from perdure.core.errors import InvalidInput, NotFound
from perdure.gateway.outcomes import Outcome
from perdure.storage.transaction import Transaction
from perdure.testing import ManualClock
from tests.agents.conftest import MakeAgentBank, everywhere
from tests.agents.tiers import interaction, recorded


def outcome(id: str) -> Outcome:
    return Outcome(id=id, started=1, purpose="chat", provider="openai", model="gpt-5", success=True)


async def test_figures_add_up(bank: Bank) -> None:
    await recorded(
        bank,
        interaction(1),
        interaction(2, success=False, error="rate_limited", cost=None),
        interaction(3, cost=4_000_000_000, latency=1.5),
        interaction(4, agent="coder"),
    )
    stats = await bank.agent_memory("router").stats()
    assert stats.interactions == 3
    assert stats.success_rate == pytest.approx(2 / 3)
    assert stats.average_cost == pytest.approx(0.003)  # of those whose cost is known
    assert stats.average_latency == pytest.approx(2.5 / 3)
    assert (stats.quality, stats.rated) == (None, 0)
    assert [task.task for task in stats.tasks] == ["routing"]


async def test_an_interaction_that_is_recorded_twice_counts_once(bank: Bank) -> None:
    memory = bank.agent_memory("router")
    await memory.store(interaction(1))
    await memory.store(interaction(1))
    assert (await memory.stats()).interactions == 1
    assert len(await (await bank.session("router/interactions")).turns()) == 1


async def test_a_message_that_was_tried_again_counts_as_it_ended_at_last(
    bank: Bank, clock: ManualClock
) -> None:
    memory = bank.agent_memory("router")
    session = await bank.session("router/inbox")
    await session.append("Where?")
    failed = interaction(
        1, session="router/inbox", turn=1, success=False, error="no", ended=clock()
    )
    await memory.store(failed)
    await bank.settle()
    again = msgspec.structs.replace(
        failed, success=True, error="", ended=clock.advance("1m"), cost=10**10
    )
    for _ in range(2):
        await memory.store(again)
        await memory.store(failed)
    await bank.settle()
    stats = await memory.stats()
    assert (stats.interactions, stats.success_rate) == (1, 1.0)
    assert stats.average_cost == pytest.approx(0.01)
    assert stats.preferred_models[0].interactions == 1
    (episode,) = await memory.episodes.list("router")
    assert (await memory.episodes.content(episode))["performance"]["success"] is True
    assert len([each async for each in bank.artifacts.located()]) == 1


async def test_the_tables_of_the_seed(bank: Bank, clock: ManualClock) -> None:
    await recorded(bank, interaction(1), interaction(2, task="triage", cost=None))
    assert AgentMemoryRow.__struct_fields__ == (
        *("agent_id", "total_interactions", "success_rate", "average_cost", "preferred_models"),
        *("learned_patterns", "evolution_history", "created_at", "updated_at"),
    )
    assert AgentPerformanceRow.__struct_fields__ == (
        *("id", "agent_id", "timestamp", "task_type", "provider", "success"),
        *("response_time_ms", "cost", "quality_score"),
    )
    (row,) = await read_table(bank.services, "agent_memory")
    assert isinstance(row, AgentMemoryRow)
    assert (row.agent_id, row.total_interactions, row.success_rate) == ("router", 2, 1.0)
    assert row.average_cost == pytest.approx(0.002)
    assert [each.model for each in row.preferred_models] == ["openai/gpt-5"]
    performance = await agent_performance_table(bank.services, "router")
    assert [each.task_type for each in performance] == ["routing", "triage"]
    assert [each.cost for each in performance] == [pytest.approx(0.002), None]
    assert performance[0].response_time_ms == 500
    assert len({each.id for each in performance}) == 2
    with pytest.raises(InvalidInput, match="agent_memory or agent_performance"):
        await read_table(bank.services, "agents")


async def test_numbers_are_unique_in_the_bank(bank: Bank) -> None:
    await recorded(bank, *(interaction(n, agent) for n in (1, 2) for agent in ("a", "b", "c")))
    found = await agent_performance_table(bank.services)
    assert len({each.id for each in found}) == 6


async def test_it_is_counted_if_and_only_if_the_message_ends(bank: Bank) -> None:
    interactions = Interactions(bank.services)

    async def fails(transaction: Transaction) -> None:
        await interactions.record(transaction, interaction(1))
        raise RuntimeError

    with pytest.raises(RuntimeError):
        await bank.store.transact(fails)
    assert await interactions.totals("router") is None
    assert await bank.collection(InteractionRecord).query().count() == 0
    async with bank.store.transaction() as transaction:
        await interactions.record(transaction, interaction(1))
    assert (await bank.agent_memory("router").stats()).interactions == 1


@everywhere
async def test_many_writers_lose_nothing(bank: Bank) -> None:
    interactions = Interactions(bank.services)

    async def one(number: int) -> None:
        async def body(transaction: Transaction) -> None:
            await interactions.record(transaction, interaction(number))

        await bank.store.transact(body)

    await asyncio.gather(*(one(number) for number in range(1, 21)))
    await bank.settle()
    stats = await bank.agent_memory("router").stats()
    assert stats.interactions == 20
    assert stats.preferred_models[0].interactions == 20
    assert len({each.id for each in await agent_performance_table(bank.services)}) == 20


@everywhere
async def test_a_rating_that_comes_late_counts(bank: Bank) -> None:
    bank.gateway.recorder.note(outcome("o1"))
    memory = bank.agent_memory("router")
    await memory.store(interaction(1, outcomes=("o0", "o1"), recalled=("M-1",)))
    for number in range(2, 2 + ENOUGH):
        await memory.store(interaction(number, recalled=("M-1",)))
    await bank.gateway.feedback("o1", 0.4, by="judge")
    assert (await memory.stats()).quality == pytest.approx(0.4)
    await bank.gateway.feedback("o1", 0.9, by="user")
    await bank.gateway.feedback("o1", 0.1, by="judge")  # does not overrule the user
    stats = await memory.stats()
    assert stats.quality == pytest.approx(0.9)
    assert stats.rated == 1
    assert {round(each.quality or 0, 6) for each in stats.learned_patterns} == {0.9}
    (first, *_) = await agent_performance_table(bank.services, "router")
    assert first.quality_score == pytest.approx(0.9)


async def test_a_rating_that_comes_before_the_end_counts(bank: Bank) -> None:
    bank.gateway.recorder.note(outcome("o1"))
    await bank.gateway.feedback("o1", 0.7)
    await bank.agent_memory("router").store(interaction(1, outcomes=("o1",)))
    assert (await bank.agent_memory("router").stats()).quality == pytest.approx(0.7)


async def test_an_interaction_without_the_gateway_is_rated_by_its_id(bank: Bank) -> None:
    memory = bank.agent_memory("router")
    await memory.store(interaction(1))
    await memory.interactions.rate("router", "00000001", 0.5)
    await memory.interactions.rate("router", "router/00000001", 0.25, by="judge")
    assert (await memory.stats()).quality == pytest.approx(0.5)
    with pytest.raises(NotFound):
        await memory.interactions.rate("coder", "00000001", 0.5)
    with pytest.raises(InvalidInput):
        await memory.interactions.rate("router", "00000001", 1.5)


async def test_patterns_tell_models_versions_and_memories_apart(bank: Bank) -> None:
    memory = bank.agent_memory("router")
    for number in range(1, 21):
        is_good = number % 2 == 0
        await memory.store(
            interaction(
                number,
                model="good" if is_good else "bad",
                agent_version=1 + is_good,
                success=is_good or number == 1,
                recalled=("M-7", "router/inbox#T-3") if is_good else ("oauth",),
            )
        )
    found = {(each.kind, each.with_): each for each in (await memory.stats()).learned_patterns}
    assert found.keys() == {
        ("model", "openai/good"),
        ("model", "openai/bad"),
        ("version", "1"),
        ("version", "2"),
        ("memory", "M-7"),
        ("memory", "oauth"),
    }
    assert found["model", "openai/good"].lift == pytest.approx(0.9)
    assert found["memory", "oauth"].lift == pytest.approx(-0.9)
    assert found["model", "openai/good"].at_least == pytest.approx(least_rate(10, 10))
    text = (await memory.build_context("Where?", task="routing")).text
    assert "model openai/good: 100% of 10 succeeded, +90% to without" in text


def test_three_lucky_answers_do_not_outweigh_three_hundred_good_ones() -> None:
    assert least_rate(3, 3) < least_rate(280, 300)
    assert least_rate(0, 0) == 0.0


async def test_evolution_is_kept_in_the_callers_transaction(bank: Bank) -> None:
    memory = bank.agent_memory("router")
    entry = EvolutionEntry(time=1, change="model openai/gpt-5-mini", evidence={"sessions": 40})
    async with bank.store.transaction() as transaction:
        await memory.interactions.evolved(transaction, "router", entry)
    assert (await memory.stats()).evolution_history == [entry]


async def test_an_interaction_of_another_agent_is_refused(bank: Bank) -> None:
    with pytest.raises(InvalidInput, match="not of coder"):
        await bank.agent_memory("coder").store(interaction(1))
    with pytest.raises(InvalidInput, match="no session of router"):
        await bank.agent_memory("router").store(interaction(1, session="coder/x", turn=1))


_KILLED = """
import asyncio, os, sys
from perdure.agents.interactions import Interactions
from perdure.bank import Bank
from perdure.config import Config
from tests.agents.tiers import interaction

async def main():
    async with Bank(sys.argv[1], config=Config()) as bank:
        memory = bank.agent_memory("router")
        for number in range(1, 1_000):
            await memory.store(interaction(number))
            print(number, flush=True)

asyncio.run(main())
"""


@pytest.mark.parametrize("store_url", ["sqlite"], indirect=True)
async def test_what_was_stored_is_counted_after_kill(
    store_url: str, make_bank: MakeAgentBank, tmp_path: Path
) -> None:
    import sys

    process = await asyncio.create_subprocess_exec(
        sys.executable, "-c", _KILLED, store_url, stdout=asyncio.subprocess.PIPE
    )
    assert process.stdout is not None
    told = 0
    while told < 25:
        told = int(await asyncio.wait_for(process.stdout.readline(), 60))
    process.kill()
    rest = await process.stdout.read()
    await process.wait()
    told = max([told, *map(int, rest.split())])
    bank = await make_bank(store_url)
    stats = await bank.agent_memory("router").stats()
    rows = await bank.collection(InteractionRecord).query().count()
    turns = (await (await bank.session("router/interactions")).head()).turn
    assert told <= stats.interactions <= told + 1
    assert stats.interactions == rows == turns == stats.preferred_models[0].interactions
    # Nothing of the archive is lost either: a row has its words until they are in the archive.
    episodes = await bank.agent_memory("router").episodes.list("router", limit=2_000)
    assert len(episodes) == rows
    newest = await bank.agent_memory("router").episodes.content(episodes[0])
    assert newest["response"].startswith("To billing")
    totals = await bank.collection(AgentTotals).get("router")
    assert totals is not None
    assert msgspec.to_builtins(totals.figures)[0] == rows
    assert new_id()
