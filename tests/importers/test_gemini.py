"""Conversations of Gemini CLI: lines, and the documents of older versions."""

from __future__ import annotations

import hashlib
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

import perdure
from perdure.bank import Bank
from perdure.core.client_agents import session_of_client
from perdure.core.messages import Media, Reasoning, Text
from perdure.importers import Imported, import_files
from perdure.importers.gemini_reader import GeminiReader
from tests.importers.outcomes import conversation, names
from tests.importers.reading import said, steps, undone
from tests.importers.transcripts import write

SESSION = "7f3c1a52-9f5e-4d39-8b1a-0c5a4f6e2d10"
FOLDER = "/home/ada/engine"
NAME = session_of_client("gemini", FOLDER, SESSION)
HASH = hashlib.sha256(FOLDER.encode()).hexdigest()
HEAD = {"sessionId": SESSION, "projectHash": HASH, "startTime": "2026-05-01T10:00:00.000Z"}
PIXEL = {"inlineData": {"mimeType": "image/png", "data": "iVBORw0KGgo="}}


def user(name: str, *content: Any, **more: Any) -> dict[str, Any]:
    found = [{"text": each} if isinstance(each, str) else each for each in content]
    return {"id": name, "timestamp": "2026-05-01T10:00:01.000Z", "type": "user"} | {
        "content": found,
        **more,
    }


def gemini(name: str, content: Any = "", **more: Any) -> dict[str, Any]:
    found = {"id": name, "timestamp": "2026-05-01T10:00:02.000Z", "type": "gemini"}
    return {**found, "content": content, "model": "gemini-3-pro", **more}


def call(name: str, output: str | None, status: str = "success") -> dict[str, Any]:
    response = {"functionResponse": {"id": name, "name": "shell", "response": {"output": output}}}
    result = None if output is None else [response]
    made = {"id": name, "name": "shell", "args": {"command": "make"}, "status": status}
    return {**made, "result": result, "timestamp": "2026-05-01T10:00:03.000Z"}


TOKENS = {"input": 100, "output": 5, "cached": 90, "thoughts": 2, "tool": 0, "total": 107}
THOUGHTS = [{"subject": "The log", "description": "Look first.", "timestamp": "x"}]
#: A message is written again when more of it is known.
TALK = [
    HEAD,
    user("u0", "<session_context>\nToday is Friday.\n</session_context>"),
    user("u1", "Why does the build fail?", PIXEL),
    {"$set": {"lastUpdated": "2026-05-01T10:00:01.000Z"}},
    gemini("g1", thoughts=THOUGHTS, tokens=None),
    gemini("g1", thoughts=THOUGHTS, tokens=TOKENS),
    gemini("g1", thoughts=THOUGHTS, tokens=TOKENS, toolCalls=[call("c1", "no such module")]),
    gemini("g2", [{"text": "boiler.py is missing."}], tokens=TOKENS),
    {"$set": {"summary": "A broken build"}},
]


@pytest.fixture
async def bank() -> AsyncIterator[Bank]:
    async with perdure.open("memory://") as bank:
        yield bank


@pytest.fixture
def chats(tmp_path: Path) -> Path:
    """The folder of a project's conversations."""
    made = tmp_path / ".gemini" / "tmp" / "engine" / "chats"
    made.mkdir(parents=True)
    (made.parent / ".project_root").write_text(FOLDER)
    return made


def messages(imported: Imported) -> dict[str, int]:
    return {session.name: session.messages for session in imported.sessions}


def test_a_message_is_said_once_it_is_whole() -> None:
    reader = GeminiReader()
    put_in, asked, called, result, answered = said(reader, TALK)
    assert put_in.injected
    assert asked.text == "Why does the build fail?"
    assert isinstance(asked.parts[1], Media)
    assert called.parts[0] == Reasoning("The log\nLook first.")
    assert (called.calls[0].id, called.calls[0].arguments) == ("c1", '{"command":"make"}')
    assert (result.results[0].call, result.results[0].text) == ("c1", "no such module")
    assert answered.parts == (Text("boiler.py is missing."),)
    assert called.usage is not None
    assert (called.usage.input, called.usage.output, called.usage.cache_read) == (100, 7, 90)
    assert called.model == "gemini-3-pro"
    assert reader.report.skipped == {"$set": 2}


def test_newer_files_have_all_parts_in_the_content() -> None:
    parts = [
        {"text": "Look first.", "thought": True},
        {"text": "I look."},
        {"functionCall": {"id": "c1", "name": "shell", "args": {"command": "make"}}},
    ]
    whole = gemini("g1", parts, thoughts=THOUGHTS, toolCalls=[call("c1", "Stop.", "error")])
    _, reply, result = said(GeminiReader(), [HEAD, user("u1", "Go."), whole])
    assert [type(part).__name__ for part in reply.parts] == ["Reasoning", "Text", "ToolCall"]
    assert result.results[0].is_error


async def test_a_conversation_is_followed(bank: Bank, chats: Path) -> None:
    path = write(chats / "session-2026-05-01T10-00-7f3c1a52.jsonl", TALK[:6])
    (found,) = (await import_files(bank, "gemini", [chats.parent.parent])).sessions
    assert (found.name, found.messages) == (NAME, 3)
    write(path, TALK)
    (found,) = (await import_files(bank, "gemini", [path])).sessions
    assert (found.messages, found.turns) == (3, 0)
    assert messages(await import_files(bank, "gemini", [path])) == {NAME: 0}
    session = await bank.session(NAME)
    assert session.state["title"] == "A broken build"
    turn = (await session.turns())[-1]
    kinds = [[type(part).__name__ for part in message.parts] for message in turn.messages[-4:]]
    assert kinds == [["Reasoning"], ["ToolCall"], ["ToolResult"], ["Text"]]
    assert turn.status == "closed"
    assert len(turn.rounds) == 2


async def test_rewinds_and_compressions(bank: Bank, chats: Path) -> None:
    records = [*TALK, user("u2", "Delete it all."), gemini("g3", "Deleted."), {"$rewindTo": "u2"}]
    summary = user("s1", "<state_snapshot>The build failed.</state_snapshot>")
    records += [{"$set": {"messages": [summary, gemini("s2", "Got it.")]}}]
    records += [user("u3", "Mend it."), gemini("g4", "Done.")]
    path = write(chats / "session-x.jsonl", records)
    await import_files(bank, "gemini", [path])
    turns = await conversation(bank, NAME)
    assert [status for status, _ in turns] == ["there", "undone", "there"]
    assert turns[2][1][0][:3] == ("event", "", "compaction")
    again = GeminiReader()
    assert undone(steps(again, [*records, {"$rewindTo": "nowhere"}])) == [1, 2]
    assert not [reason for reason in again.report.skipped if "rewind" in reason]
    again = GeminiReader()
    assert undone(steps(again, [*TALK, {"$rewindTo": "g2"}, {"$rewindTo": "u1"}])) == [1]
    assert again.report.skipped["rewind inside a turn"] == 1


async def test_a_document_of_older_versions(bank: Bank, chats: Path) -> None:
    listed = [TALK[2], TALK[6], TALK[7], {"id": "i1", "type": "info", "content": "Bye."}]
    path = chats / "session-2025-10-01T10-00-7f3c1a52.json"
    path.write_text(json.dumps({**HEAD, "messages": listed}, indent=2))
    (found,) = (await import_files(bank, "gemini", [chats])).sessions
    assert (found.name, found.messages, found.skipped) == (NAME, 4, {"message: info": 1})
    path.write_text(json.dumps({**HEAD, "messages": [*listed, user("u2", "More.")]}, indent=2))
    assert messages(await import_files(bank, "gemini", [path])) == {NAME: 1}
    # The program turns it into lines, and goes on there.
    lines = write(path.with_suffix(".jsonl"), [HEAD, *listed, user("u2", "More."), user("u3", "!")])
    assert messages(await import_files(bank, "gemini", [chats])) == {NAME: 1}
    assert messages(await import_files(bank, "gemini", [lines])) == {NAME: 0}


async def test_sub_agents(bank: Bank, chats: Path) -> None:
    agent = {**call("c7", "Found."), "name": "scout", "agentId": "scout-1"}
    write(chats / "session-x.jsonl", [HEAD, user("u1", "Look."), gemini("g1", toolCalls=[agent])])
    own = {**HEAD, "sessionId": "scout-1", "kind": "subagent"}
    (chats / SESSION).mkdir()
    write(chats / SESSION / "scout-1.jsonl", [own, user("v1", "Look."), gemini("h1", "Found.")])
    await import_files(bank, "gemini", [chats])
    child = await bank.session(session_of_client("gemini", FOLDER, SESSION, "scout-1"))
    assert child.record.link is not None
    assert (child.record.link.session, child.record.link.call) == (NAME, "c7")


async def test_the_project_of_a_hash(bank: Bank, tmp_path: Path) -> None:
    chats = tmp_path / "tmp" / HASH / "chats"
    chats.mkdir(parents=True)
    write(chats / "session-x.jsonl", TALK)
    (found,) = (await import_files(bank, "gemini", [tmp_path])).sessions
    assert found.name == session_of_client("gemini", HASH, SESSION)
    (tmp_path / "projects.json").write_text(json.dumps({"projects": {FOLDER: "engine"}}))
    (found,) = (await import_files(bank, "gemini", [tmp_path])).sessions
    assert found.name == NAME


async def test_unknown_and_broken_records_are_named(bank: Bank, chats: Path) -> None:
    odd = user("u1", "Hello.", {"hologram": 1})
    records: list[Any] = [HEAD, {"tool": 1}, odd, "{", {"id": "x", "type": "oracle"}, 7]
    path = write(chats / "session-x.jsonl", records)
    (found,) = (await import_files(bank, "gemini", [path])).sessions
    assert found.skipped == {
        "broken line: not JSON": 1,
        "message: oracle": 1,
        "no record of Gemini CLI": 2,
        "part: hologram": 1,
    }
    (chats / "session-y.jsonl").write_bytes(b"\0\0")
    (other,) = (await import_files(bank, "gemini", [chats / "session-y.jsonl"])).sessions
    assert other.skipped == {"binary file": 1}
    assert await names(bank) == [NAME]
