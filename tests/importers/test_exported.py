"""Perdure's own exports, out of one bank and into another."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

import perdure
from perdure.bank import Bank
from perdure.core.messages import Message, Text, ToolCall, ToolResult, event
from perdure.core.turns import Turn
from perdure.history.import_cursors import bury_cursors
from perdure.history.log_records import Link
from perdure.history.session_export import jsonl
from perdure.importers import import_files
from perdure.importers.import_run import FORGOTTEN
from perdure.sessions.session import Session
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
    return turn.number, turn.status, turn.tags, turn.masked, turn.started, turn.ended, rounds


async def spoken(bank: Bank, *prompts: str, **how: Any) -> Session:
    session = await bank.session("planner/auth")
    for text in prompts:
        await session.append([prompt(text), reply(text)], **how)
    return session


async def fates(bank: Bank, name: str = "planner/auth") -> list[tuple[str, str]]:
    """The prompt of each turn, and what became of it."""
    session = await bank.session(name)
    return [(turn.prompt, turn.status) async for turn in session.read(undone=True)]


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


async def test_forgotten_turns_are_forgotten_again(bank: Bank, other: Bank, tmp_path: Path) -> None:
    session = await spoken(bank, "One.", "Two.", "Three.", "Four.")
    await bank.forget("planner/auth", turns=["T-2", "T-4"])
    path = await export(session, tmp_path / "auth.jsonl")
    await import_files(other, "perdure", [path])
    assert await fates(other) == [
        *(("One.", "closed"), ("", "forgotten"), ("Three.", "closed"), ("", "forgotten"))
    ]
    assert [problem async for problem in other.verify()] == []
    os.utime(path, ns=(1, 1))
    (found,) = (await import_files(other, "perdure", [path])).sessions
    assert (found.messages, found.turns, found.undone) == (0, 0, 0)
    await session.append([prompt("Five."), reply("5")])
    await export(session, path)
    await import_files(other, "perdure", [path])
    assert (await fates(other))[3:] == [("", "forgotten"), ("Five.", "closed")]
    assert await names(other) == ["planner/auth"]


async def test_dying_before_a_turn_is_forgotten_again(
    bank: Bank, other: Bank, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    session = await spoken(bank, "One.", "Two.")
    await bank.forget("planner/auth", turns=["T-1"])
    path = await export(session, tmp_path / "auth.jsonl")

    async def dead(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(other, "forget", dead)
        with pytest.raises(KeyboardInterrupt):
            await import_files(other, "perdure", [path])
    assert await fates(other) == [("", "closed"), ("Two.", "closed")]
    await import_files(other, "perdure", [path])
    assert await fates(other) == [("", "forgotten"), ("Two.", "closed")]


async def test_what_became_of_turns_later(bank: Bank, other: Bank, tmp_path: Path) -> None:
    """Here it stays forgotten; what was forgotten there later stays here."""
    session = await spoken(bank, "One.", "Two.", "Three.", "Four.")
    path = await export(session, tmp_path / "auth.jsonl")
    await import_files(other, "perdure", [path])
    await bank.forget("planner/auth", turns=["T-1"])
    await other.forget("planner/auth", turns=["T-2"])
    await session.undo(2)
    await export(session, path)
    (found,) = (await import_files(other, "perdure", [path])).sessions
    assert (found.messages, found.undone) == (0, 2)
    assert await fates(other) == [
        *(("One.", "closed"), ("", "forgotten"), ("Three.", "undone"), ("Four.", "undone"))
    ]


async def test_an_older_export_adds_nothing(bank: Bank, other: Bank, tmp_path: Path) -> None:
    session = await spoken(bank, "One.")
    await session.describe({"mood": "old"})
    old = await export(session, tmp_path / "old.jsonl")
    await session.append([prompt("Two."), reply("2")], tags={"topic": "doors"})
    await session.describe({"mood": "new"})
    new = await export(session, tmp_path / "new.jsonl")
    await import_files(other, "perdure", [new])
    (found,) = (await import_files(other, "perdure", [old])).sessions
    assert (found.name, found.messages) == ("planner/auth", 0)
    back = await other.session("planner/auth")
    assert back.state == {"mood": "new"}
    assert await names(other) == ["planner/auth"]


async def test_tags_of_later_turns(bank: Bank, other: Bank, tmp_path: Path) -> None:
    session = await spoken(bank, "One.", "Two.", tags={"k": "v"})
    path = await export(session, tmp_path / "auth.jsonl")
    await import_files(other, "perdure", [path])
    await session.append([prompt("Three."), reply("3")], tags={"k": "v"})
    await import_files(other, "perdure", [await export(session, path)])
    back = await other.session("planner/auth")
    assert [turn.tags async for turn in back.read()] == [{"k": "v"}] * 3


async def test_an_answer_that_arrived_since(bank: Bank, other: Bank, tmp_path: Path) -> None:
    session = await bank.session("planner/auth")
    await session.append(prompt("Tell me."))
    path = tmp_path / "auth.jsonl"
    async with session.answer(model="m") as answer:
        await answer.text("Once upon")
        await answer.end_part()
        await import_files(other, "perdure", [await export(session, path)])
        await answer.text(" a time.")
    for messages in (1, 0):
        (found,) = (await import_files(other, "perdure", [await export(session, path)])).sessions
        assert found.messages == messages
    said = (await (await other.session("planner/auth")).turn("T-1")).messages
    assert [(each.text, each.partial) for each in said] == [
        *(("Tell me.", False), ("Once upon", True), ("Once upon\n a time.", False))
    ]


async def test_another_conversation_of_the_same_name(
    bank: Bank, other: Bank, tmp_path: Path
) -> None:
    session = await spoken(bank, "One.", "Two.")
    path = await export(session, tmp_path / "auth.jsonl")
    await import_files(other, "perdure", [path])
    async with perdure.open("memory://") as third:
        unlike = await third.session("planner/auth")
        await unlike.append([Message("user", (Text("Else."),), time=5), reply("e")])
        second = await export(unlike, tmp_path / "second.jsonl")
        for messages in (2, 0):
            (found,) = (await import_files(other, "perdure", [second])).sessions
            assert (found.name, found.messages) == ("planner/auth-2", messages)
            os.utime(second, ns=(2, 2))


async def test_into_a_session_that_others_write_to(bank: Bank, other: Bank, tmp_path: Path) -> None:
    session = await spoken(bank, "One.", "Two.")
    await session.archive()
    path = await export(session, tmp_path / "auth.jsonl")
    mine = await other.session("me/all", tags={"mine": "yes"})
    await mine.append([prompt("Mine."), reply("m")])
    await import_files(other, "perdure", [path], session="me/all")
    await mine.append([prompt("Mine, too."), reply("m")])
    await session.undo()
    await session.append([prompt("Three."), reply("3")])
    await import_files(other, "perdure", [await export(session, path)], session="me/all")
    assert await fates(other, "me/all") == [
        ("Mine.", "closed"),
        ("One.", "closed"),
        ("Two.", "undone"),
        ("Mine, too.", "closed"),
        ("Three.", "closed"),
    ]
    found = (await other.existing_session("me/all")).record
    assert (found.tags, found.archived) == ({"mine": "yes"}, None)


async def test_a_large_turn_is_written_in_pieces(bank: Bank, other: Bank, tmp_path: Path) -> None:
    session = await bank.session("planner/auth")
    call = [Message("assistant", (ToolCall(f"c{n}", "ls", "{}"),)) for n in range(8)]
    done = [Message("tool", (ToolResult(f"c{n}", (Text("x" * 300_000),)),)) for n in range(8)]
    said = [each for pair in zip(call, done, strict=True) for each in pair]
    await session.append([prompt("Go."), *said, reply("Done.")], tags={"k": "v"})
    path = await export(session, tmp_path / "auth.jsonl")
    (found,) = (await import_files(other, "perdure", [path])).sessions
    assert (found.turns, found.rounds, found.messages) == (1, 9, 18)
    back = await other.session("planner/auth")
    assert plain(await back.turn("T-1")) == plain(await session.turn("T-1"))


async def test_a_forgotten_session_does_not_come_back_by_itself(
    bank: Bank, other: Bank, tmp_path: Path
) -> None:
    session = await spoken(bank, "One.")
    path = await export(session, tmp_path / "auth.jsonl")
    await import_files(other, "perdure", [path])
    await bury_cursors(other.store, "planner/auth")
    await session.append([prompt("Two."), reply("2")])
    await export(session, path)
    (found,) = (await import_files(other, "perdure", [path])).sessions
    assert (found.name, found.messages, found.skipped) == ("planner/auth", 0, {FORGOTTEN: 1})
    (found,) = (await import_files(other, "perdure", [path], session="me/again")).sessions
    assert (found.name, found.messages) == ("me/again", 4)


async def test_lines_that_are_broken(bank: Bank, other: Bank, tmp_path: Path) -> None:
    session = await spoken(bank, "One.", "Two.")
    path = await export(session, tmp_path / "auth.jsonl")
    lines = path.read_bytes().splitlines(keepends=True)
    lines[2:4] = [b"nonsense\n", b"{}\n"]  # all that was said in T-1
    path.write_bytes(b"".join([*lines, lines[1], lines[0]]))
    (found,) = (await import_files(other, "perdure", [path])).sessions
    assert found.skipped == {
        "broken line: not of an export": 2,
        "another session begins there": 1,
    }
    assert [turn for turn, _ in await fates(other)][:2] == ["", "Two."]


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
