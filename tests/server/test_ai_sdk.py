"""Chats with the real AI SDK, whose chat is what `useChat` shows. Skipped where npm is missing."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from perdure.core.messages import ToolCall
from perdure.testing import Script, ScriptedAnswer, ScriptedFault
from tests.server.ai_sdk import ai_sdk, drive
from tests.server.test_chat import PATH, SlowModel, Talk, note_readers, said, talking
from tests.waiting import until

pytestmark = pytest.mark.slow


@pytest.fixture(autouse=True)
def _installed() -> None:
    ai_sdk()


async def run(talk: Talk, *steps: list[Any], **body: Any) -> dict[str, Any]:
    return await drive(talk.server.url + PATH, talk.server.token(), *steps, **body)


def shown(found: dict[str, Any]) -> list[tuple[str, str]]:
    """Role and words of each message on the page."""
    return [
        (m["role"], "".join(part.get("text", "") for part in m["parts"] if part["type"] == "text"))
        for m in found["messages"]
    ]


async def test_a_conversation(tmp_path: Path) -> None:
    answers: Script = [ScriptedAnswer("One.", reasoning="Hm.", chunk=2), "Two."]
    async with talking(tmp_path, answers, "messages") as talk:
        found = await run(talk, ["send", "first"], ["send", "second"])
        kept = await said(await talk.session())
    assert shown(found) == [
        ("user", "first"),
        ("assistant", "One."),
        ("user", "second"),
        ("assistant", "Two."),
    ]
    assert [(role, words) for _, role, words in kept] == shown(found)
    assert found["errors"] == []
    assert found["status"] == "ready"
    assert found["data"] == ["data-context", "data-context"]
    first = found["messages"][1]
    assert first["id"] == "T-1"
    assert first["metadata"]["model"] == "big"
    assert [part["type"] for part in first["parts"]] == ["step-start", "reasoning", "text"]
    assert {part.get("state") for part in first["parts"][1:]} == {"done"}


async def test_history_tools_are_shown_and_not_run_by_the_client(tmp_path: Path) -> None:
    call = ToolCall("c1", "history_get_turn", '{"id": "T-1", "level": "R"}')
    async with talking(tmp_path, ["Blue.", ScriptedAnswer(calls=(call,)), "It was blue."]) as talk:
        found = await run(talk, ["send", "Which colour?"], ["send", "Which was it?"])
    assert shown(found)[-1] == ("assistant", "It was blue.")
    parts = found["messages"][-1]["parts"]
    assert [part["type"] for part in parts] == ["step-start", "dynamic-tool", "step-start", "text"]
    assert parts[1]["state"] == "output-available"
    assert parts[1]["input"] == {"id": "T-1", "level": "R"}
    assert "Blue." in parts[1]["output"]
    assert len(talk.model.requests) == 3


async def test_tools_that_the_client_runs(tmp_path: Path) -> None:
    tool = {"type": "function", "name": "weather", "parameters": {"type": "object"}}
    calls = ScriptedAnswer(calls=(ToolCall("c1", "weather", '{"city": "Ulm"}'),))
    async with talking(tmp_path, [calls, "Rain in Ulm."]) as talk:
        found = await run(
            talk, ["send", "Weather?"], ["tool", "weather", "c1", {"sky": "rain"}], tools=[tool]
        )
        (turn,) = await (await talk.session()).turns()
    assert shown(found) == [("user", "Weather?"), ("assistant", "Rain in Ulm.")]
    assert found["errors"] == []
    assert [message.role for message in turn.messages] == ["user", "assistant", "tool", "assistant"]
    assert "rain" in turn.messages[2].results[0].text


async def test_regenerating_and_editing(tmp_path: Path) -> None:
    async with talking(tmp_path, ["A.", "B.", "C.", "D."]) as talk:
        steps = (["send", "one"], ["regenerate"], ["send", "two"], ["edit", 0, "uno"])
        found = await run(talk, *steps)
        session = await talk.session()
        kept = await said(session)
        undone = len(await session.turns(undone=True))
    assert shown(found) == [("user", "uno"), ("assistant", "D.")]
    assert [(role, words) for _, role, words in kept] == shown(found)
    assert undone == 4


async def test_an_error_is_shown_and_the_next_try_goes_on(tmp_path: Path) -> None:
    fault = ScriptedFault(how="truncated", after=2, answer=ScriptedAnswer("Half of it.", chunk=4))
    async with talking(tmp_path, [fault, "Whole."]) as talk:
        found = await run(talk, ["send", "Go."], ["regenerate"])
        session = await talk.session()
        kept = await said(session)
        first = await session.turn(1)
    assert len(found["errors"]) == 1
    assert shown(found)[-1] == ("assistant", "Whole.")
    assert kept[-1] == (2, "assistant", "Whole.")
    assert first.messages[-1].partial


async def test_a_page_that_is_loaded_again_reads_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model, readers = SlowModel(), note_readers(monkeypatch)
    async with talking(tmp_path, model) as talk:
        driving = asyncio.create_task(run(talk, ["leave", "Slowly."], ["resume"]))
        await until(lambda: len(readers) == 2)  # it left, and is back
        model.go_on.set()
        found = await driving
        kept = await said(await talk.session())
    assert shown(found) == [("user", "Slowly."), ("assistant", "Wait.Slow.")]
    assert kept[-1] == (1, "assistant", "Slow.")
    assert found["messages"][-1]["id"] == "T-1"


async def test_the_reader_of_streams(tmp_path: Path) -> None:
    async with talking(tmp_path, "Just this.") as talk:
        found = await run(talk, ["read", "What?"])
    (message,) = found["notes"]
    assert (message["role"], message["parts"][-1]["text"]) == ("assistant", "Just this.")
