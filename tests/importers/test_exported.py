"""Perdure's own exports, out of one bank and into another."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

import perdure
from perdure.bank import Bank
from perdure.core.messages import Message, Text, ToolCall, ToolResult, event
from perdure.core.turns import Turn
from perdure.history.export import jsonl
from perdure.history.records import Link
from perdure.importers import import_files
from perdure.session import Session
from tests.importers.outcomes import names


@pytest.fixture
async def bank() -> AsyncIterator[Bank]:
    async with perdure.open("memory://") as bank:
        yield bank


@pytest.fixture
async def other() -> AsyncIterator[Bank]:
    async with perdure.open("memory://") as bank:
        yield bank


def prompt(text: str) -> Message:
    return Message("user", (Text(text),), time=1_770_000_000_000_000)


def reply(text: str) -> Message:
    return Message("assistant", (Text(text),), time=1_770_000_001_000_000, model="m")


async def export(session: Session, path: Path) -> Path:
    path.write_bytes(b"".join([line async for line in jsonl(session)]))
    return path


def plain(turn: Turn) -> Any:
    """All that makes up a turn but its session."""
    rounds = [(round.number, round.messages) for round in turn.rounds]
    return turn.number, turn.status, turn.tags, turn.started, turn.ended, rounds


async def eventful(bank: Bank) -> Session:
    link = Link("planner/all", "c9")
    session = await bank.session("planner/auth", state={"cwd": "/x"}, tags={"a": "b"}, link=link)
    call = Message("assistant", (ToolCall("c1", "ls", "{}"),), time=1_770_000_000_500_000)
    result = Message("tool", (ToolResult("c1", (Text("x" * 70_000),), is_error=True),), time=1)
    await session.append([prompt("One."), call, result, reply("1")], tags={"topic": "keys"})
    await session.append([prompt("Two."), reply("2")])
    await session.undo()
    await session.append([prompt("Other."), reply("o"), event("compaction", "So far.")])
    # A turn without a reply, one without a prompt, and one that is open.
    await session.append([prompt("Nobody answers.")])
    await session.close_turn()
    await session.append([reply("Unasked.")], tags={"topic": "doors"})
    await session.append([prompt("Last."), call])
    return session


async def test_a_session_comes_back_as_it_was(bank: Bank, other: Bank, tmp_path: Path) -> None:
    session = await eventful(bank)
    path = await export(session, tmp_path / "auth.jsonl")
    (found,) = (await import_files(other, "perdure", [path])).sessions
    assert (found.name, found.turns, found.undone, found.skipped) == ("planner/auth", 6, 1, {})
    back = await other.session("planner/auth")
    wanted = [plain(turn) async for turn in session.read(undone=True)]
    assert [plain(turn) async for turn in back.read(undone=True)] == wanted
    assert (back.state, back.record.tags, back.record.link) == (
        session.state,
        session.record.tags,
        session.record.link,
    )


async def test_a_later_export_adds_what_is_new(bank: Bank, other: Bank, tmp_path: Path) -> None:
    session = await eventful(bank)
    path = await export(session, tmp_path / "auth.jsonl")
    await import_files(other, "perdure", [path])
    await session.append([Message("tool", (ToolResult("c1", (Text("y"),)),)), reply("At last.")])
    await session.append([prompt("More."), reply("more")])
    await session.describe({"cwd": "/y"})
    await export(session, path)
    (found,) = (await import_files(other, "perdure", [path])).sessions
    assert (found.turns, found.messages) == (1, 4)
    (found,) = (await import_files(other, "perdure", [path])).sessions
    assert found.messages == 0
    back = await other.session("planner/auth")
    wanted = [turn.messages async for turn in session.read(undone=True)]
    assert [turn.messages async for turn in back.read(undone=True)] == wanted
    assert back.state["cwd"] == "/y"


async def test_a_name_that_is_taken(bank: Bank, tmp_path: Path) -> None:
    session = await eventful(bank)
    path = await export(session, tmp_path / "auth.jsonl")
    for messages in (9 + 2, 0):
        (found,) = (await import_files(bank, "perdure", [path])).sessions
        assert (found.name, found.messages > 0) == ("planner/auth-2", messages > 0)
    (found,) = (await import_files(bank, "perdure", [path], session="me/copy")).sessions
    assert (found.name, found.turns) == ("me/copy", 6)
    assert await names(bank) == ["me/copy", "planner/auth", "planner/auth-2"]


async def test_forgotten_turns_keep_their_numbers(bank: Bank, other: Bank, tmp_path: Path) -> None:
    session = await bank.session("planner/auth")
    for text in ("One.", "Two.", "Three."):
        await session.append([prompt(text), reply(text)])
    await bank.forget("planner/auth", turns=["T-2"])
    path = await export(session, tmp_path / "auth.jsonl")
    await import_files(other, "perdure", [path])
    back = await other.session("planner/auth")
    turns = [turn async for turn in back.read()]
    assert [turn.prompt for turn in turns] == ["One.", "", "Three."]
    assert turns[1].messages[0].name == "forgotten"


async def test_files_that_are_no_exports(other: Bank, tmp_path: Path) -> None:
    path = tmp_path / "x.jsonl"
    for line in (b'{"role": "user"}', b'{"perdure": 99, "session": {"name": "a/b"}}', b"nonsense"):
        path.write_bytes(line + b"\n")
        (found,) = (await import_files(other, "perdure", [path])).sessions
        assert (found.messages, found.read) == (0, 1)
        assert len(found.skipped) == 1
    assert await names(other) == []


async def test_an_export_that_is_cut_off(bank: Bank, other: Bank, tmp_path: Path) -> None:
    session = await eventful(bank)
    content = (await export(session, tmp_path / "whole.jsonl")).read_bytes()
    path = tmp_path / "auth.jsonl"
    for end in range(500, len(content) + 5_000, 5_000):
        path.write_bytes(content[:end])
        await import_files(other, "perdure", [path])
    back = await other.session("planner/auth")
    wanted = [plain(turn) async for turn in session.read(undone=True)]
    assert [plain(turn) async for turn in back.read(undone=True)] == wanted
