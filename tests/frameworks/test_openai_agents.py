"""OpenAI Agents: the cases of its own tests of `SQLiteSession`, and what is ours."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest
from agents import (
    Agent,
    OpenAIResponsesModel,
    RunConfig,
    Runner,
    SQLiteSession,
    function_tool,
    set_tracing_disabled,
)
from openai import AsyncOpenAI

from perdure.bank import Bank
from perdure.core.messages import ToolCall
from perdure.integrations.openai_agents import PerdureSession
from perdure.testing import ScriptedAnswer, ScriptedModel

set_tracing_disabled(True)

SAID: list[Any] = [
    {"role": "user", "content": "List the files in the folder, please."},
    {"id": "rs_1", "type": "reasoning", "summary": [{"type": "summary_text", "text": "Hm."}]},
    {
        "type": "function_call",
        "call_id": "c1",
        "name": "ls",
        "arguments": '{"path": "."}',
        "id": "fc_1",
        "status": "completed",
    },
    {"type": "function_call_output", "call_id": "c1", "output": "a.py b.py"},
    {
        "id": "msg_1",
        "type": "message",
        "role": "assistant",
        "status": "completed",
        "content": [
            {"type": "output_text", "text": "Two files.", "annotations": [], "logprobs": []}
        ],
    },
]


def talk(number: int) -> list[Any]:
    return [
        {"role": "user", "content": f"Question {number}: " + "how is the build? " * 20},
        {"role": "assistant", "content": f"Answer {number}: " + "the build is fine. " * 20},
    ]


@pytest.fixture
async def session(url: str) -> AsyncIterator[PerdureSession]:
    async with PerdureSession("user-1", url) as session:
        yield session


async def test_items_come_back_as_they_were_added(session: PerdureSession) -> None:
    for item in SAID:
        await session.add_items([item])
    assert await session.get_items() == SAID
    await session.add_items(SAID)
    assert await session.get_items() == SAID * 2
    await session.add_items([])
    for limit in (0, 1, 3, 7, 10, 99):
        assert await session.get_items(limit) == (SAID * 2)[10 - min(limit, 10) :]


async def test_another_process_reads_the_same(session: PerdureSession, url: str) -> None:
    for number in range(60):
        await session.add_items(talk(number))
    everything = await session.get_items()
    async with PerdureSession("user-1", url) as other:
        assert await other.get_items(5) == everything[-5:]
        assert await other.get_items() == everything
        await other.add_items(talk(60))
        assert await other.get_items(3) == [everything[-1], *talk(60)]
    assert await session.get_items() == everything + talk(60)
    assert await session.get_items(4) == everything[-2:] + talk(60)


async def test_the_newest_item_is_taken_back(session: PerdureSession) -> None:
    await session.add_items(SAID)
    await session.add_items(talk(1))
    for left in range(6, -1, -1):
        assert await session.pop_item() == (SAID + talk(1))[left]
        assert await session.get_items() == (SAID + talk(1))[:left]
    assert await session.pop_item() is None
    await session.add_items(talk(2))
    assert await session.get_items() == talk(2)


async def test_cleared_is_forgotten(session: PerdureSession, bank: Bank) -> None:
    await session.add_items(SAID)
    await session.clear_session()
    assert await session.get_items() == []
    assert (await (await bank.session(session.session_name)).head()).turn == 0
    await session.add_items(talk(1))
    assert await session.get_items() == talk(1)


async def test_one_that_was_forgotten_elsewhere_begins_anew(
    session: PerdureSession, bank: Bank
) -> None:
    await session.add_items(SAID)
    await bank.forget(session.session_name)
    assert await session.get_items() == []
    await session.add_items(talk(1))
    assert await session.get_items() == talk(1)


async def test_what_is_added_to_one_that_was_forgotten_elsewhere_begins_anew(
    session: PerdureSession, bank: Bank
) -> None:
    await session.add_items(SAID)
    assert await session.get_items(2) == SAID[-2:]
    await bank.forget(session.session_name)
    await session.add_items(talk(1))
    assert await session.get_items() == talk(1)
    await session.add_items(talk(2))
    assert await session.get_items() == [*talk(1), *talk(2)]


async def test_sessions_are_apart_and_named_whatever_their_ids(bank: Bank) -> None:
    ids = ["plain", "with/slash", "with#mark", "ü ñ", "x" * 300, "x" * 301, "with\nline"]
    for number, name in enumerate(ids):
        await PerdureSession(name, bank).add_items(talk(number))
    for number, name in enumerate(ids):
        assert await PerdureSession(name, bank).get_items() == talk(number)
    names = {info.name for info in await bank.sessions(agent="openai-agents")}
    assert len(names) == len(ids)
    assert {"openai-agents/plain", "openai-agents/ü ñ"} <= names


async def test_what_is_said_at_once_is_all_there(bank: Bank) -> None:
    sessions = [PerdureSession("busy", bank) for _ in range(4)]
    await asyncio.gather(*(sessions[n % 4].add_items(talk(n)) for n in range(40)))
    items = await sessions[0].get_items()
    assert sorted(map(str, items)) == sorted(str(item) for n in range(40) for item in talk(n))


def test_several_loops_one_after_another(url: str) -> None:
    session = PerdureSession("user-1", url)
    for number in range(3):
        asyncio.run(session.add_items(talk(number)))
    assert asyncio.run(session.get_items(2)) == talk(2)
    asyncio.run(session.close())


async def test_secrets_are_masked_large_outputs_come_back(session: PerdureSession) -> None:
    key = "AKIA" + "Q3EXNB2VKWZ5T7RD"  # no real one
    await session.add_items([{"role": "user", "content": f"My key is {key}."}])
    (item,) = await session.get_items()
    assert key not in str(item)
    assert "My key is" in str(item)
    long = [SAID[2], {**SAID[3], "output": "line of output\n" * 20_000}]
    await session.add_items(long)
    assert (await session.get_items())[1:] == long


async def test_turns_are_served_by_recall_and_contexts(session: PerdureSession, bank: Bank) -> None:
    for number in range(30):
        await session.add_items(talk(number))
    opened = await bank.session(session.session_name)
    found = await opened.recall("question 17", deadline=20)
    assert found.hits[0].turn.startswith("T-18.")
    assert [turn.prompt[:12] for turn in await opened.turns(2)] == ["Question 28:", "Question 29:"]
    assert (await opened.context("And now?", budget=1_000)).tokens <= 1_000


@function_tool
def look(folder: str) -> str:
    """Look into a folder."""
    return f"{folder}: a.py b.py"


def scripted(model: ScriptedModel) -> Agent[Any]:
    client = AsyncOpenAI(base_url=f"{model.url}/v1", api_key="none")
    return Agent("helper", model=OpenAIResponsesModel("scripted", client), tools=[look])


async def test_a_run_is_the_same_as_with_its_own_store(url: str, tmp_path: Any) -> None:
    stored = []
    for session in (PerdureSession("s", url), SQLiteSession("s", tmp_path / "theirs.db")):
        call = ScriptedAnswer(calls=(ToolCall("c1", "look", '{"folder": "src"}'),))
        async with ScriptedModel([call, "Two files.", "You asked for files."]) as model:
            agent = scripted(model)
            first = await Runner.run(agent, "What is in src?", session=session)
            assert first.final_output == "Two files."
            await Runner.run(agent, "What did I ask?", session=session)
        items = await session.get_items()
        stored.append([{k: v for k, v in item.items() if k != "id"} for item in items])
    assert stored[0] == stored[1]
    assert len(stored[0]) == 6


async def test_the_window_is_sent_instead_of_all_items(url: str) -> None:
    call = ScriptedAnswer(calls=(ToolCall("c1", "look", '{"folder": "src"}'),))
    async with PerdureSession("s", url, budget=2_000) as session:
        for number in range(100):
            await session.add_items(talk(number))
        config = RunConfig(call_model_input_filter=session.window)
        async with ScriptedModel([call, "Two files.", "Fine."]) as model:
            agent = scripted(model)
            await Runner.run(agent, "What is in src?", session=session, run_config=config)
            await Runner.run(agent, "And question 3?", session=session, run_config=config)
            first, second, third = (str(request.body) for request in model.requests)
        assert all(len(sent) < 20_000 for sent in (first, second, third))
        assert "What is in src?" in first
        assert "a.py b.py" not in first
        assert second.count("What is in src?") == 1
        assert "a.py b.py" in second
        assert "And question 3?" in third
        assert "Question 99" in third
        assert len(await session.get_items()) == 206
