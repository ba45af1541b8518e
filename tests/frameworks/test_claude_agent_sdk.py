"""Claude Agent SDK: its conformance kit, its store-backed helpers, and hooks."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

from claude_agent_sdk import (
    ClaudeAgentOptions,
    fork_session_via_store,
    get_session_messages_from_store,
    list_sessions_from_store,
    project_key_for_directory,
)
from claude_agent_sdk.testing import run_session_store_conformance

from perdure.bank import Bank
from perdure.integrations.claude_agent_sdk import PerdureSessionStore

ID = "6f1c1a52-0d27-4f3e-9b53-3f6fb2b3c111"
KEY: Any = {"project_key": "proj", "session_id": ID}


def entry(number: int, kind: str, content: Any, **more: Any) -> dict[str, Any]:
    message: dict[str, Any] = {"role": kind, "content": content}
    if kind == "assistant":
        message |= {"id": f"msg_{number // 4}", "model": "claude-x", "usage": {"input_tokens": 9}}
    return {
        "type": kind,
        "uuid": f"{number:08d}-0000-4000-8000-000000000000",
        "parentUuid": f"{number - 1:08d}-0000-4000-8000-000000000000" if number else None,
        "timestamp": f"2026-01-01T00:{number:02d}:00.000Z",
        "sessionId": ID,
        "cwd": "/home/ann/harbour",
        "message": message,
        **more,
    }


def transcript() -> list[dict[str, Any]]:
    call = {
        "type": "tool_use",
        "id": "c1",
        "name": "Read",
        "input": {"file_path": "/tmp/ships.txt"},
    }
    result = {"type": "tool_result", "tool_use_id": "c1", "content": "Anna, Berta, Clara"}
    return [
        {"type": "mode", "mode": "normal", "sessionId": ID},
        entry(0, "user", "Which ships lie in the harbour?"),
        entry(
            1, "assistant", [{"type": "thinking", "thinking": "I look it up.", "signature": "s"}]
        ),
        entry(2, "assistant", [{"type": "text", "text": "I read the list of ships."}, call]),
        entry(3, "user", [result], toolUseResult={"file": {"content": "Anna, Berta, Clara"}}),
        entry(4, "assistant", [{"type": "text", "text": "Anna, Berta and Clara lie there."}]),
        entry(5, "user", "<system-reminder>Be brief.</system-reminder>", isMeta=True),
        entry(6, "user", [{"type": "text", "text": "When does the Berta leave?"}]),
        entry(7, "assistant", [{"type": "text", "text": "She leaves tomorrow at seven."}]),
        {"type": "custom-title", "customTitle": "Ships", "sessionId": ID},
    ]


async def test_the_kit(tmp_path: Path) -> None:
    numbers = itertools.count()
    await run_session_store_conformance(
        lambda: PerdureSessionStore(f"sqlite:///{tmp_path}/{next(numbers)}.db")
    )


async def test_a_transcript_is_turns_and_comes_back(url: str, bank: Bank) -> None:
    store = PerdureSessionStore(url)
    for line in transcript():
        await store.append(KEY, [line])
    assert await store.load(KEY) == transcript()
    async with PerdureSessionStore(url) as other:
        assert await other.load(KEY) == transcript()
        await other.append(KEY, transcript()[1:4])  # a batch that is sent again
        assert await other.load(KEY) == transcript()
    session = await bank.session(store.session_name(KEY))
    turns = await session.turns()
    assert [turn.prompt for turn in turns] == [
        "Which ships lie in the harbour?",
        "When does the Berta leave?",
    ]
    assert [len(turn.rounds) for turn in turns] == [2, 1]
    found = await session.recall("when does the Berta leave", deadline=20)
    assert found.hits[0].turn == "T-2.1"
    await store.close()


async def test_the_sdk_reads_lists_and_forks_by_it(url: str) -> None:
    async with PerdureSessionStore(url) as store:
        folder = "/home/ann/harbour"
        key: Any = {"project_key": project_key_for_directory(folder), "session_id": ID}
        await store.append(key, transcript())
        (listed,) = await list_sessions_from_store(store, directory=folder)
        assert listed.custom_title == "Ships"
        messages = await get_session_messages_from_store(store, ID, directory=folder)
        assert len(messages) >= 6
        forked = await fork_session_via_store(store, ID, directory=folder)
        assert len(await list_sessions_from_store(store, directory=folder)) == 2
        again = await get_session_messages_from_store(store, forked.session_id, directory=folder)
        assert len(again) == len(messages)
        sub: Any = {**key, "subpath": "subagents/agent-1"}
        await store.append(sub, [entry(0, "user", "Look after the Clara.")])
        await store.delete(key)
        assert await store.load(sub) is None
        assert len(await store.list_sessions(key["project_key"])) == 1


async def test_forgetting_a_turn_reaches_transcript_and_summary(url: str, bank: Bank) -> None:
    store = PerdureSessionStore(bank)
    await store.append(KEY, transcript())
    await bank.forget(store.session_name(KEY), turns=1)
    left = str(await store.load(KEY)) + str(await store.list_session_summaries("proj"))
    assert "Clara" not in left
    assert "Berta leave" in left
    assert [each["session_id"] for each in await store.list_sessions("proj")] == [ID]


async def test_hooks_tell_what_a_prompt_brings_to_mind(bank: Bank) -> None:
    store = PerdureSessionStore(bank)
    folder = "/home/ann/harbour"
    key: Any = {"project_key": project_key_for_directory(folder), "session_id": ID}
    await store.append(key, transcript())
    await bank.settle()
    options = ClaudeAgentOptions(session_store=store, hooks=store.hooks())
    assert options.hooks is not None
    (hook,) = options.hooks["UserPromptSubmit"][0].hooks
    given = {"session_id": ID, "cwd": folder, "prompt": "when does the Berta leave"}
    told: Any = await hook(given, None, {"signal": None})
    text = told["hookSpecificOutput"]["additionalContext"]
    assert text.startswith("What this prompt brings to mind. Records of the past, not")
    assert "She leaves tomorrow at seven." in text
    assert await hook({**given, "prompt": ""}, None, {"signal": None}) == {}
