"""A session that holds more than a file's turns, or no longer all of them."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

import perdure
from perdure.bank import Bank
from perdure.core.messages import assistant, user
from perdure.history.import_cursors import Cursor, with_turns
from perdure.history.log_records import TurnSpan
from perdure.importers import Imported, SessionImport, import_files
from perdure.importers.import_run import FORGOTTEN
from tests.importers.outcomes import names
from tests.importers.transcripts import (
    SESSION,
    THREAD,
    Claude,
    Codex,
    claude_session,
    lines,
    write,
)

NAME = claude_session()


@pytest.fixture
async def bank() -> AsyncIterator[Bank]:
    async with perdure.open("memory://") as bank:
        yield bank


def only(imported: Imported) -> SessionImport:
    (session,) = imported.sessions
    return session


async def fates(bank: Bank, name: str = NAME) -> list[tuple[str, str]]:
    session = await bank.session(name)
    return [(turn.prompt, turn.status) async for turn in session.read(undone=True)]


# Turns of others ------------------------------------------------------------------------------


async def test_a_rewind_leaves_what_others_wrote(bank: Bank, tmp_path: Path) -> None:
    claude = Claude()
    first, second = claude.turn("One.", "1"), claude.turn("Two.", "2")
    path = write(tmp_path / f"{SESSION}.jsonl", [*first, *second])
    await import_files(bank, "claude-code", [path])
    await (await bank.session(NAME)).append([user("Mine."), assistant("m")])
    rewound = [claude.prompt("Other.", first[-1]["uuid"]), claude.text("m9", "Else.")]
    write(path, [*first, *second, *rewound])
    assert only(await import_files(bank, "claude-code", [path])).undone == 1
    again = [claude.prompt("Anew.", first[-1]["uuid"]), claude.text("m10", "Else.")]
    write(path, [*first, *second, *rewound, *again])
    assert only(await import_files(bank, "claude-code", [path])).undone == 1
    assert await fates(bank) == [
        ("One.", "closed"),
        ("Two.", "undone"),
        ("Mine.", "closed"),
        ("Other.", "undone"),
        ("Anew.", "closed"),
    ]


async def test_files_in_one_session_take_back_their_own(bank: Bank, tmp_path: Path) -> None:
    one, two = Codex(), Codex()
    of_one = [one.meta(), *one.turn("1a", "1", "c1"), *one.turn("1b", "2", "c2")]
    of_two = [two.meta(THREAD[:-1] + "4"), *two.turn("2a", "1", "c3"), *two.turn("2b", "2", "c4")]
    first = write(tmp_path / f"rollout-2025-11-01T01-02-58-{THREAD}.jsonl", of_one)
    second = write(tmp_path / f"rollout-2025-11-01T01-02-58-{THREAD[:-1]}4.jsonl", of_two)
    await import_files(bank, "codex", [first, second], session="ada/all")
    write(first, [*of_one, one.event("thread_rolled_back", num_turns=9)])
    await import_files(bank, "codex", [first, second], session="ada/all")
    assert [status for _, status in await fates(bank, "ada/all")] == [
        *("undone", "undone", "closed", "closed")
    ]


def test_numbers_of_turns_are_kept_in_spans() -> None:
    own = with_turns((), [1, 2, 3, 7])
    assert own == (TurnSpan(1, 3), TurnSpan(7, 7))
    assert with_turns(own, [7, 8, 10]) == (TurnSpan(1, 3), TurnSpan(7, 8), TurnSpan(10, 10))
    assert list(Cursor("a/b/c", own=own).turns) == [7, 3, 2, 1]


# What was forgotten ---------------------------------------------------------------------------


async def test_a_forgotten_session_does_not_come_back_by_itself(bank: Bank, tmp_path: Path) -> None:
    claude = Claude()
    records = claude.turn("One.", "1")
    path = write(tmp_path / f"{SESSION}.jsonl", records)
    await import_files(bank, "claude-code", [path])
    await bank.forget(NAME)
    (left,) = (await bank.collection(Cursor).list()).values
    assert left == Cursor(left.id, forgotten=True)
    records += claude.turn("Two.", "2")
    write(path, records)
    for _ in range(2):
        found = only(await import_files(bank, "claude-code", [path]))
        assert (found.name, found.messages, found.skipped) == (NAME, 0, {FORGOTTEN: 1})
    assert await names(bank) == []
    for messages in (8, 0):
        found = only(await import_files(bank, "claude-code", [path], session=NAME))
        assert found.messages == messages
    write(path, [*records, *claude.turn("Three.", "3")])
    assert only(await import_files(bank, "claude-code", [path])).messages == 4


async def test_nor_does_a_sub_agent_that_it_starts_later(bank: Bank, tmp_path: Path) -> None:
    main = write(tmp_path / f"{SESSION}.jsonl", Claude().turn("One.", "1"))
    folder = tmp_path / SESSION / "subagents"
    write(folder / "agent-a1.jsonl", Claude(agent="a1").turn("Look.", "Looked."))
    await import_files(bank, "claude-code", [main])
    await bank.forget(NAME)
    write(folder / "agent-a2.jsonl", Claude(agent="a2").turn("Look again.", "Looked."))
    found = (await import_files(bank, "claude-code", [main])).sessions
    assert [each.skipped for each in found] == [{FORGOTTEN: 1}] * 3
    assert await names(bank) == []


async def test_a_file_of_the_same_name_goes_on(bank: Bank, tmp_path: Path) -> None:
    said = [{"role": "user", "content": "One."}, {"role": "assistant", "content": "1"}]
    first = write(tmp_path / "a" / "chat.jsonl", said)
    second = write(tmp_path / "b" / "chat.jsonl", [{"role": "user", "content": "Else."}])
    await import_files(bank, "openai-chat", [first, second])
    await bank.forget("openai-chat/chat")
    with second.open("ab") as file:
        file.write(lines([{"role": "assistant", "content": "e"}]))
    found = (await import_files(bank, "openai-chat", [first, second])).sessions
    assert [(each.name, each.messages, each.skipped) for each in found] == [
        ("openai-chat/chat", 0, {FORGOTTEN: 1}),
        ("openai-chat/chat-2", 1, {}),
    ]


async def test_a_forgotten_turn_stays_forgotten_when_its_file_is_written_anew(
    bank: Bank, tmp_path: Path
) -> None:
    claude = Claude()
    first, second, third = (claude.turn(text, text) for text in ("One.", "Two.", "Three."))
    path = write(tmp_path / f"{SESSION}.jsonl", [*first, *second, *third])
    await import_files(bank, "claude-code", [path])
    await bank.forget(NAME, turns=["T-2"])
    title = {"type": "ai-title", "aiTitle": "Counting"}
    write(path, [title, *first, *second, *third, *claude.turn("Four.", "4")])
    assert only(await import_files(bank, "claude-code", [path])).messages == 4
    assert await fates(bank) == [
        *(("One.", "closed"), ("", "forgotten"), ("Three.", "closed"), ("Four.", "closed"))
    ]
