"""Conversations of claude.ai's data export."""

from __future__ import annotations

import json
import zipfile
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

import perdure
from perdure.bank import Bank
from perdure.core.messages import Reasoning, Text
from perdure.importers import import_files
from tests.importers.outcomes import names

ID = "b0a1f5de-3c7e-4a53-9a0e-6f2a9d1c7e44"
NAME = f"claude-export/{ID}"
ROOT = "00000000-0000-4000-8000-000000000000"


def message(name: str, sender: str, *content: Any, parent: str = ROOT, **more: Any) -> Any:
    blocks = [{"type": "text", "text": each} if isinstance(each, str) else each for each in content]
    found = {"uuid": name, "sender": sender, "text": "", "content": blocks, "attachments": []}
    when = f"2026-03-07T12:04:{len(name) + 10}.551130Z"
    return {**found, "created_at": when, "files": [], "parent_message_uuid": parent, **more}


ATTACHED = [{"file_name": "a.txt", "file_type": "txt", "extracted_content": "Forty-two."}]
IMAGE = [{"file_uuid": "f1", "file_name": "sky.png"}]
USE = {"type": "tool_use", "id": "toolu_1", "name": "web_search", "input": {"query": "answer"}}
FOUND = [{"type": "knowledge", "title": "Guide", "url": "https://x.test", "text": "It is 42."}]
RESULT = {"type": "tool_result", "tool_use_id": "toolu_1", "name": "web_search", "content": FOUND}
TALK = [
    message("u", "human", "What is the answer?", attachments=ATTACHED, files=IMAGE),
    message(
        "a1",
        "assistant",
        {"type": "thinking", "thinking": "Search.", "cut_off": False},
        "I look.",
        USE,
        RESULT,
        {"type": "token_budget"},
        "It is 42.",
        parent="u",
    ),
]


def conversation(*messages: Any, **more: Any) -> dict[str, Any]:
    found = {"uuid": ID, "name": "The answer", "summary": "", "account": {"uuid": "x"}}
    return {**found, "chat_messages": list(messages), **more}


def export(path: Path, conversations: Any) -> Path:
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as made:
        made.writestr("conversations.json", json.dumps(conversations))
        made.writestr("users.json", "[]")
    return path


@pytest.fixture
async def bank() -> AsyncIterator[Bank]:
    async with perdure.open("memory://") as bank:
        yield bank


async def test_a_conversation_with_tools(bank: Bank, tmp_path: Path) -> None:
    path = export(tmp_path / "data.zip", [conversation(*TALK)])
    found = {
        each.name: each for each in (await import_files(bank, "claude-export", [path])).sessions
    }
    assert found[NAME].skipped == {"block: token_budget": 1}
    assert found["claude-export/data"].skipped == {"file users.json": 1}
    session = await bank.session(NAME)
    assert session.state["title"] == "The answer"
    (turn,) = await session.turns()
    asked, called, result, answer = turn.messages
    assert asked.parts == (
        Text("What is the answer?"),
        Text("[txt a.txt, not shown]\nForty-two."),
        Text("[file sky.png, f1]"),
    )
    assert called.parts[:2] == (Reasoning("Search."), Text("I look."))
    assert (called.calls[0].id, called.calls[0].arguments) == ("toolu_1", '{"query":"answer"}')
    assert result.results[0].call == "toolu_1"
    assert result.results[0].text == "Guide\nhttps://x.test\nIt is 42."
    assert (answer.text, len(turn.rounds), turn.status) == ("It is 42.", 2, "closed")


async def test_later_exports_and_branches(bank: Bank, tmp_path: Path) -> None:
    await import_files(bank, "claude-export", [export(tmp_path / "1.zip", [conversation(*TALK)])])
    (again, _) = (await import_files(bank, "claude-export", [tmp_path / "1.zip"])).sessions
    assert again.messages == 0
    more = [*TALK, message("u22", "human", "And?", parent="a1")]
    more += [message("a333", "assistant", "No.", parent="u22")]
    more += [message("a4444", "assistant", "Yes.", parent="u22")]
    path = export(tmp_path / "2.zip", [conversation(*more)])
    (found, _) = (await import_files(bank, "claude-export", [path])).sessions
    assert (found.messages, found.skipped["message of another branch"]) == (2, 1)
    turns = await (await bank.session(NAME)).turns()
    assert [turn.messages[-1].text for turn in turns] == ["It is 42.", "Yes."]


async def test_an_export_of_2023(bank: Bank, tmp_path: Path) -> None:
    """Words without blocks, tools without ids, messages without parents."""
    old = [
        {"uuid": "1", "sender": "human", "text": "Hello.", "created_at": "2023-10-01T00:00:00Z"},
        {"uuid": "2", "sender": "assistant", "text": "Hi.", "created_at": "2023-10-01T00:00:01Z"},
        message("3", "assistant", {**USE, "id": None}, {**RESULT, "tool_use_id": None}),
    ]
    del old[2]["parent_message_uuid"]
    path = tmp_path / "conversations.json"
    path.write_text(json.dumps([conversation(*old)]))
    await import_files(bank, "claude-export", [path])
    (turn,) = await (await bank.session(NAME)).turns()
    assert [m.role for m in turn.messages] == ["user", "assistant", "assistant", "tool"]
    assert turn.messages[3].results[0].call == turn.messages[2].calls[0].id == "3.0"


async def test_what_is_unknown_is_named(bank: Bank, tmp_path: Path) -> None:
    odd = conversation(
        message("1", "human", "Hello.", {"type": "hologram"}), message("2", "oracle"), 7
    )
    odd["chat_messages"].append(message("3", "assistant"))
    path = tmp_path / "conversations.json"
    path.write_text(json.dumps([odd, {"mapping": {}}]))
    found = (await import_files(bank, "claude-export", [path])).sessions
    assert [each.skipped for each in found] == [
        {"block: hologram": 1, "message: oracle": 1, "no conversation": 1, "empty message": 1},
        {
            "cannot be read: conversations.json, conversation 2:"
            " it is no conversation of this format": 1
        },
    ]
    assert await names(bank) == [NAME]
