"""Files on their way into a bank."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import json
import shutil
from collections.abc import AsyncIterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import zstandard

import perdure
from perdure.bank import Bank
from perdure.core.client_agents import session_of_client
from perdure.core.errors import InvalidInput, Unavailable
from perdure.history.log_records import Link
from perdure.importers import Imported, SessionImport, file_import, import_files
from perdure.storage.middleware import Call, Commit, Handler
from tests.importers.outcomes import conversation, everything, names, output_tokens
from tests.importers.test_chat import CHAT, MESSAGES
from tests.importers.transcripts import (
    SESSION,
    THREAD,
    Claude,
    Codex,
    claude_session,
    codex_session,
    lines,
    write,
)

pretty = functools.partial(json.dumps, indent=2)

NAME = claude_session()
ROLLOUT = f"rollout-2025-11-01T01-02-58-{THREAD}.jsonl"


@pytest.fixture
async def bank() -> AsyncIterator[Bank]:
    async with perdure.open("memory://") as bank:
        yield bank


def only(imported: Imported) -> SessionImport:
    (session,) = imported.sessions
    return session


def counts(session: SessionImport) -> tuple[int, int, int, int]:
    return session.turns, session.rounds, session.messages, session.tool_calls


async def test_what_was_added_is_counted(bank: Bank, tmp_path: Path) -> None:
    claude = Claude()
    records = [*claude.turn("One.", "1", calls=2), *claude.turn("Two.", "2")]
    path = write(tmp_path / f"{SESSION}.jsonl", [*records, "not json"])
    found = only(await import_files(bank, "claude-code", [path]))
    assert found.name == NAME
    assert counts(found) == (2, 4, 9, 3)
    assert found.tokens > 20
    assert (found.read, found.used) == (len(records) + 1, len(records) - 2)
    assert found.skipped == {"progress": 2, "broken line: not JSON": 1}
    session = await bank.session(NAME)
    assert session.state["cwd"] == "/home/ada/engine"
    assert session.state["format"] == "claude-code"
    turns = await session.turns()
    assert [turn.prompt for turn in turns] == ["One.", "Two."]
    assert [turn.status for turn in turns] == ["closed", "closed"]
    assert sum(turn.tokens or 0 for turn in turns) == found.tokens


async def test_importing_again_adds_what_is_new(bank: Bank, tmp_path: Path) -> None:
    claude = Claude()
    first, second = claude.turn("One.", "1"), claude.turn("Two.", "2")
    path = write(tmp_path / f"{SESSION}.jsonl", first)
    await import_files(bank, "claude-code", [path])
    nothing = only(await import_files(bank, "claude-code", [path]))
    assert (counts(nothing), nothing.read, nothing.tokens) == ((0, 0, 0, 0), 0, 0)
    write(path, [*first, *second])
    more = only(await import_files(bank, "claude-code", [path]))
    assert counts(more) == (1, 2, 4, 1)
    assert more.read == len(second)
    moved = tmp_path / "elsewhere" / path.name
    moved.parent.mkdir()
    shutil.copy(path, moved)
    assert counts(only(await import_files(bank, "claude-code", [moved]))) == (0, 0, 0, 0)
    packed = moved.with_name(f"{path.name}.zst")
    packed.write_bytes(zstandard.compress(lines([*first, *second, *claude.turn("Three.", "3")])))
    assert counts(only(await import_files(bank, "claude-code", [packed]))) == (1, 2, 4, 1)
    assert await names(bank) == [NAME]
    async with perdure.open("memory://") as other:
        await import_files(other, "claude-code", [packed])
        assert await everything(other) == await everything(bank)


async def test_a_line_that_is_not_complete_waits(bank: Bank, tmp_path: Path) -> None:
    claude = Claude()
    content = lines(claude.turn("One.", "1"))
    path = tmp_path / f"{SESSION}.jsonl"
    path.write_bytes(content[:-30])
    first = only(await import_files(bank, "claude-code", [path]))
    assert first.skipped == {"progress": 1, "truncated last line": 1}
    path.write_bytes(content[:-1])  # complete, but for the newline
    second = only(await import_files(bank, "claude-code", [path]))
    assert (second.messages, second.skipped) == (1, {})
    path.write_bytes(content)
    third = only(await import_files(bank, "claude-code", [path]))
    assert (third.messages, third.read, third.skipped) == (0, 0, {})
    path.write_bytes(content + lines(claude.turn("Two.", "2")))
    assert counts(only(await import_files(bank, "claude-code", [path]))) == (1, 2, 4, 1)


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"", "empty file"),
        (b"\x7fELF\x02\x00\x00\x00", "binary file"),
        (b"\x28\xb5\x2f\xfd" + b"\xff" * 100, "binary file"),
        (zstandard.compress(b""), "empty file"),
        (b"{broken\n", "broken line: not JSON"),
        (b"\xff\xfe\n", "broken line: not UTF-8"),
        (b"[" * 200_000 + b"\n", "broken line: nested too deep"),
        (b'{"type": "user"', "truncated last line"),
        (b'{"type": "never-heard-of"}\n', "never-heard-of"),
        (b"7\n", "broken line: no object"),
    ],
)
async def test_bad_files_are_reported(
    bank: Bank, tmp_path: Path, content: bytes, reason: str
) -> None:
    path = tmp_path / f"{SESSION}.jsonl"
    path.write_bytes(content)
    found = only(await import_files(bank, "claude-code", [path]))
    name = session_of_client("claude-code", "", SESSION)  # nobody knows where it was held
    assert (found.name, counts(found)) == (name, (0, 0, 0, 0))
    assert (found.read, found.skipped) == (1, {reason: 1})
    assert await names(bank) == []


async def test_a_file_that_cannot_be_read_does_not_stop_the_others(
    bank: Bank, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("a", "b", "c"):
        write(tmp_path / f"{name}.jsonl", Claude(name).turn("One.", "1"))
    packed = zstandard.compress(lines(Claude("d").turn("One.", "1") * 5_000))
    (tmp_path / "d.jsonl.zst").write_bytes(packed[: len(packed) // 2] + b"\xff" * 100)
    (tmp_path / "folder.jsonl").mkdir()
    loop = tmp_path / "loop.jsonl"
    loop.symlink_to(loop)
    real = Path.open

    def refuse(self: Path, *args: Any, **options: Any) -> Any:
        if self.name == "b.jsonl":
            raise PermissionError(13, "Permission denied")
        return real(self, *args, **options)

    monkeypatch.setattr(Path, "open", refuse)
    found = {s.name: s for s in (await import_files(bank, "claude-code", [tmp_path])).sessions}
    refused = found.pop(session_of_client("claude-code", "", "b"))
    assert refused.skipped == {"cannot be read: Permission denied": 1}
    assert [found[claude_session(name)].messages for name in "acd"] == [4, 4, 4]
    reasons = found[claude_session("d")].skipped
    assert reasons["damaged compression: the rest of the file"] == 1
    assert reasons["repeated record"] > 0
    assert found.keys() == {claude_session(name) for name in "acd"}


async def test_sub_agents_become_linked_sessions(bank: Bank, tmp_path: Path) -> None:
    claude, agent = Claude(), Claude(agent="a1")
    main = write(
        tmp_path / f"{SESSION}.jsonl",
        [
            claude.prompt("Explore."),
            claude.call("m1", "c1", "Task", prompt="Look at x."),
            claude.result("c1", "x", toolUseResult={"agentId": "a1"}),
            claude.text("m2", "Explored."),
        ],
    )
    folder = tmp_path / SESSION / "subagents"
    write(folder / "agent-a1.jsonl", agent.turn("Look at x.", "Looked."))
    write(folder / "agent-acompact-1.jsonl", Claude(agent="acompact-1").turn("Sum up.", "So."))
    found = await import_files(bank, "claude-code", [main])
    assert {session.name: session.messages for session in found.sessions} == {
        NAME: 4,
        f"{NAME}.a1": 4,
        f"{NAME}.acompact-1": 0,
    }
    assert found.of(f"{NAME}.acompact-1").skipped == {"the program's own run": 6}
    assert await names(bank) == [NAME, f"{NAME}.a1"]
    child = await bank.session(f"{NAME}.a1")
    assert child.record.link == Link(NAME, "c1")
    again = await import_files(bank, "claude-code", [main])
    assert not any(session.read for session in again.sessions)


async def test_a_link_that_is_known_late_is_made_late(bank: Bank, tmp_path: Path) -> None:
    claude, agent = Claude(), Claude(agent="a1")
    begun = [claude.prompt("Explore."), claude.call("m1", "c1", "Task", prompt="Look at x.")]
    main = write(tmp_path / f"{SESSION}.jsonl", begun)
    write(tmp_path / SESSION / "subagents" / "agent-a1.jsonl", agent.turn("Look at x.", "Looked."))
    await import_files(bank, "claude-code", [main])
    assert (await bank.session(f"{NAME}.a1")).record.link == Link(NAME, "")
    write(main, [*begun, claude.result("c1", "x", toolUseResult={"agentId": "a1"})])
    await import_files(bank, "claude-code", [main])
    assert (await bank.session(f"{NAME}.a1")).record.link == Link(NAME, "c1")


async def test_a_call_that_was_seen_before_links_a_sub_agent_that_comes_later(
    bank: Bank, tmp_path: Path
) -> None:
    claude, agent = Claude(), Claude(agent="a1")
    records = [
        claude.prompt("Explore."),
        claude.call("m1", "c1", "Task", prompt="Look at x."),
        claude.progress(type="agent_progress", agentId="a1", call="c1"),
    ]
    main = write(tmp_path / f"{SESSION}.jsonl", records)
    await import_files(bank, "claude-code", [main])
    write(main, [*records, claude.result("c1", "x")])
    write(tmp_path / SESSION / "subagents" / "agent-a1.jsonl", agent.turn("Look at x.", "Looked."))
    await import_files(bank, "claude-code", [main])
    assert (await bank.session(f"{NAME}.a1")).record.link == Link(NAME, "c1")


async def test_sub_agents_inside_a_file(bank: Bank, tmp_path: Path) -> None:
    claude, agent = Claude(), Claude(agent="a1")
    records = [
        claude.prompt("Explore."),
        claude.call("m1", "c1", "Task", prompt="Look at x."),
        *agent.turn("Look at x.", "Looked."),
        claude.result("c1", "x"),
        claude.text("m2", "Explored."),
    ]
    path = write(tmp_path / f"{SESSION}.jsonl", records)
    found = await import_files(bank, "claude-code", [path])
    assert {session.name: counts(session) for session in found.sessions} == {
        NAME: (1, 2, 4, 1),
        f"{NAME}.a1": (1, 2, 4, 1),
    }
    assert (await bank.session(f"{NAME}.a1")).record.link == Link(NAME, "c1")


async def test_codex_sub_agents_are_linked(bank: Bank, tmp_path: Path) -> None:
    child = "0199a213-81c0-7800-8aa1-cccccccccccc"
    one, two = Codex(), Codex()
    answer = f'{{"agent_id": "{child}"}}'
    write(
        tmp_path / ROLLOUT,
        [
            one.meta(),
            *one.prompt("Explore."),
            one.call("c1", "spawn_agent", "{}"),
            one.item(type="function_call_output", call_id="c1", output=answer),
        ],
    )
    source = {"subagent": {"thread_spawn": {"parent_thread_id": THREAD, "depth": 1}}}
    write(
        tmp_path / f"rollout-2025-11-01T02-00-00-{child}.jsonl",
        [two.meta(child, source=source), *two.turn("Look at x.", "Looked.", "c1")],
    )
    found = await import_files(bank, "codex", [tmp_path])
    assert [session.name for session in found.sessions] == [codex_session(), codex_session(child)]
    linked = await bank.session(codex_session(child))
    assert linked.record.link == Link(codex_session(), "c1")


async def test_turns_that_were_taken_back_are_undone(bank: Bank, tmp_path: Path) -> None:
    claude = Claude()
    first, second = claude.turn("One.", "1"), claude.turn("Two.", "2")
    other = [claude.prompt("Other.", first[-1]["uuid"]), claude.text("m9", "Else.")]
    path = write(tmp_path / f"{SESSION}.jsonl", [*first, *second, *other])
    found = only(await import_files(bank, "claude-code", [path]))
    assert (found.turns, found.undone) == (3, 1)
    session = await bank.session(NAME)
    assert [turn.prompt for turn in await session.turns()] == ["One.", "Other."]
    assert [status for status, _ in await conversation(bank, NAME)] == ["there", "undone", "there"]

    codex = Codex()
    records = [codex.meta(), *codex.turn("One.", "1", "c1"), *codex.turn("Two.", "2", "c2")]
    path = write(tmp_path / ROLLOUT, [*records, codex.event("thread_rolled_back", num_turns=1)])
    assert only(await import_files(bank, "codex", [path])).undone == 1
    write(
        path,
        [*records, codex.event("thread_rolled_back", num_turns=1), *codex.turn("3", "3", "c3")],
    )
    again = only(await import_files(bank, "codex", [path]))
    assert (again.turns, again.undone) == (1, 0)
    turns = await conversation(bank, codex_session())
    assert [status for status, _ in turns] == ["there", "undone", "there"]


async def test_facts_that_come_last_are_kept(bank: Bank, tmp_path: Path) -> None:
    records = Claude().turn("One.", "1")
    path = write(tmp_path / f"{SESSION}.jsonl", records)
    await import_files(bank, "claude-code", [path])
    write(path, [*records, {"type": "ai-title", "aiTitle": "Counting"}])
    await import_files(bank, "claude-code", [path])
    assert (await bank.session(NAME)).state["title"] == "Counting"


async def test_a_file_that_was_written_anew(bank: Bank, tmp_path: Path) -> None:
    """Claude Code copies a session into a new file, perhaps without what it has no use for."""
    claude = Claude()
    first, second, third = (claude.turn(text, text) for text in ("One.", "Two.", "Three."))
    rewound = claude.prompt("Four.", second[-1]["uuid"])
    path = write(tmp_path / f"{SESSION}.jsonl", [*first, *second, *third, rewound])
    await import_files(bank, "claude-code", [path])
    before = await conversation(bank, NAME)
    kept = [r for r in [*first, *second, *third, rewound] if r["type"] != "progress"]
    write(path, [*kept, *claude.turn("Five.", "Five.")])
    found = only(await import_files(bank, "claude-code", [path]))
    assert (found.messages, found.undone) == (4, 0)
    after = await conversation(bank, NAME)
    assert after[: len(before) - 1] == before[:-1]
    assert [status for status, _ in after] == ["there", "there", "undone", "there"]
    write(path, [*kept, *claude.turn("Five.", "Five.")][:3])  # it got shorter
    assert only(await import_files(bank, "claude-code", [path])).messages == 0


async def test_all_files_may_go_to_one_session(bank: Bank, tmp_path: Path) -> None:
    one = write(tmp_path / "one.jsonl", Claude("one").turn("One.", "1"))
    two = write(tmp_path / "two.jsonl", Claude("two").turn("Two.", "2"))
    found = await import_files(bank, "claude-code", [one, two], session="ada/work")
    assert counts(only(found)) == (2, 4, 8, 2)
    again = await import_files(bank, "claude-code", [two, one], session="ada/work")
    assert counts(only(again)) == (0, 0, 0, 0)
    with pytest.raises(InvalidInput, match="name of a session"):
        await import_files(bank, "claude-code", [one], session="nonsense")


async def test_places_and_formats_that_are_not_there(
    bank: Bank, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(InvalidInput, match="There is no"):
        await import_files(bank, "codex", [tmp_path / "nowhere"])
    with pytest.raises(InvalidInput, match="no importer"):
        await import_files(bank, "word", [tmp_path])
    with pytest.raises(InvalidInput, match="needs a path"):
        await import_files(bank, "openai-chat")
    with pytest.raises(InvalidInput, match="Leave `paths` out to search the usual places"):
        await import_files(bank, "codex", [])
    monkeypatch.setenv("CODEX_HOME", str(tmp_path))
    with pytest.raises(InvalidInput, match="nothing to import"):
        await import_files(bank, "codex")
    codex = Codex()
    write(tmp_path / "sessions" / "2025" / ROLLOUT, [codex.meta(), *codex.turn("Go.", "ok", "c1")])
    assert counts(only(await import_files(bank, "codex"))) == (1, 2, 4, 1)


async def test_a_long_import_tells_how_far_it_is(bank: Bank, tmp_path: Path) -> None:
    told: list[tuple[str, int, int]] = []
    path = write(tmp_path / f"{SESSION}.jsonl", Claude().turn("One.", "1"))
    await import_files(bank, "claude-code", [path], progress=lambda *news: told.append(news))
    assert told[-1] == (f"importing {NAME}", path.stat().st_size, path.stat().st_size)


async def test_the_documents_of_the_very_first_codex(bank: Bank, tmp_path: Path) -> None:
    codex = Codex(flat=True)
    items = [codex.environment(), *codex.turn("One.", "1", "c1"), *codex.turn("Two.", "2", "c2")]
    session = {"id": THREAD, "timestamp": "2025-05-01T00:00:00.000Z", "instructions": ""}
    path = tmp_path / f"rollout-2025-05-01-{THREAD}.json"
    for end, added in ((6, 5), (len(items), 5), (len(items), 0)):
        path.write_text(pretty({"session": session, "items": items[:end]}))
        found = only(await import_files(bank, "codex", [path]))
        assert (found.messages, found.read) == (added, found.used)
    turns = await (await bank.session(session_of_client("codex", "", THREAD))).turns()
    assert [turn.prompt for turn in turns] == ["One.", "Two."]


# Chat files ------------------------------------------------------------------------------------


async def test_chat_documents_grow(bank: Bank, tmp_path: Path) -> None:
    path = tmp_path / "chat.json"
    for messages, added in ((CHAT[:2], 2), (CHAT[:4], 2), (CHAT, 1), (CHAT, 0)):
        path.write_text(pretty(messages))
        assert only(await import_files(bank, "openai-chat", [path])).messages == added
    assert len((await conversation(bank, "openai-chat/chat"))[0][1]) == 5
    path.write_text(pretty([CHAT[0] | {"content": "Be verbose."}, *CHAT[1:]]))
    found = only(await import_files(bank, "openai-chat", [path]))
    assert (found.name, found.messages) == ("openai-chat/chat-2", 5)
    path.write_text(pretty(CHAT[:1]))
    found = only(await import_files(bank, "openai-chat", [path]))
    assert (found.name, found.messages) == ("openai-chat/chat-3", 1)


async def test_a_chat_document_that_is_being_written(bank: Bank, tmp_path: Path) -> None:
    path = tmp_path / "chat.json"
    half, most, whole = pretty(CHAT[:2])[:-30], pretty(CHAT)[:-30], pretty(CHAT)
    for content, added in ((half, 0), (pretty(CHAT[:2]), 2), (most, 0), ("[", 0), (whole, 3)):
        path.write_text(content)
        found = await import_files(bank, "openai-chat", [path])
        assert sum(session.messages for session in found.sessions) == added
    assert await names(bank) == ["openai-chat/chat"]


async def test_chat_lines_grow(bank: Bank, tmp_path: Path) -> None:
    path = tmp_path / "chat.jsonl"
    for end in range(1, len(MESSAGES) + 1):
        write(path, MESSAGES[:end])
        assert only(await import_files(bank, "anthropic", [path])).messages == 1
    other = write(tmp_path / "other" / "chat.jsonl", [{"role": "user", "content": "Hi."}])
    found = only(await import_files(bank, "anthropic", [other]))
    assert (found.name, found.messages) == ("anthropic/chat-2", 1)
    write(path, [*MESSAGES, {"role": "user", "content": "Thanks."}])
    found = only(await import_files(bank, "anthropic", [path]))
    assert (found.name, found.messages) == ("anthropic/chat", 1)


async def test_many_conversations_in_a_file(bank: Bank, tmp_path: Path) -> None:
    path = write(tmp_path / "chats.jsonl", [{"messages": CHAT}] * 3)
    found = await import_files(bank, "openai-chat", [path])
    names = ["openai-chat/chats", "openai-chat/chats.2", "openai-chat/chats.3"]
    assert [(session.name, session.messages) for session in found.sessions] == [
        (name, 5) for name in names
    ]
    write(path, [{"messages": CHAT}] * 4)
    found = await import_files(bank, "openai-chat", [path])
    assert [session.messages for session in found.sessions] == [0, 5]


async def test_names_of_files_become_names_of_sessions(bank: Bank, tmp_path: Path) -> None:
    for name in ("über uns #1.jsonl", "x" * 200 + ".jsonl", "...jsonl"):
        path = write(tmp_path / name, CHAT)
        assert only(await import_files(bank, "openai-chat", [path])).messages == 5
    assert len(await names(bank)) == 3


# Watching --------------------------------------------------------------------------------------


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Watches often, and takes a short silence for a long one."""
    monkeypatch.setattr(file_import, "_POLL", 0.02)
    monkeypatch.setattr(file_import, "_LOOK", 0.05)
    monkeypatch.setattr(file_import, "_SILENCE", 0.3)


@contextlib.asynccontextmanager
async def watching(
    bank: Bank, path: Path, kind: str = "claude-code"
) -> AsyncIterator[list[SessionImport]]:
    heard: list[SessionImport] = []
    running = import_files(bank, kind, [path], watch=True, heard=heard.append)
    task = asyncio.create_task(running)
    try:
        yield heard
    finally:
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task


async def until(condition: Any) -> None:
    async with asyncio.timeout(20):
        while not condition():  # noqa: ASYNC110 (files have no events)
            await asyncio.sleep(0.02)


async def test_watching_follows_files(impatient: None, bank: Bank, tmp_path: Path) -> None:
    claude = Claude()
    first, second = claude.turn("One.", "1"), claude.turn("Two.", "2")
    path = write(tmp_path / f"{SESSION}.jsonl", first)
    async with watching(bank, tmp_path) as heard:
        # The last reply may still grow: it comes after a moment of silence.
        await until(lambda: sum(session.messages for session in heard) == 3)
        await until(lambda: sum(session.messages for session in heard) == 4)
        with path.open("ab") as file:
            content = lines(second)
            file.write(content[:-40])
            file.flush()
            await until(lambda: sum(session.messages for session in heard) == 7)
            file.write(content[-40:])
        write(tmp_path / "new.jsonl", Claude("new").turn("Else.", "x"))
        await until(lambda: sum(session.messages for session in heard) == 12)
        path.unlink()
        await asyncio.sleep(0.3)
    async with perdure.open("memory://") as other:
        write(path, [*first, *second])
        await import_files(other, "claude-code", [tmp_path])
        assert await everything(other) == await everything(bank)


async def test_watching_takes_a_file_that_is_written_anew(
    impatient: None, bank: Bank, tmp_path: Path
) -> None:
    claude = Claude()
    first, second = claude.turn("One.", "1"), claude.turn("Two.", "2")
    path = write(tmp_path / f"{SESSION}.jsonl", [*first, *second])
    async with watching(bank, path) as heard:
        await until(lambda: sum(session.messages for session in heard) == 8)
        write(tmp_path / "new", [*second, *claude.turn("Three.", "3")])
        (tmp_path / "new").replace(path)
        await until(lambda: sum(session.messages for session in heard) == 12)
    assert len(await conversation(bank, NAME)) == 3


async def test_watching_follows_codex_and_documents(
    impatient: None, bank: Bank, tmp_path: Path
) -> None:
    codex = Codex()
    records = [codex.meta(), *codex.turn("One.", "1", "c1"), *codex.turn("Two.", "2", "c2")]
    path = write(tmp_path / ROLLOUT, records[:1])
    async with watching(bank, path, "codex") as heard:
        for at in range(1, len(records), 3):
            await asyncio.sleep(0.05)
            with path.open("ab") as file:
                file.write(lines(records[at : at + 3]))
        await until(lambda: sum(session.messages for session in heard) == 8)
    document = tmp_path / "chat.json"
    document.write_text(pretty(CHAT[:2]))
    async with watching(bank, document, "openai-chat") as heard:
        await until(lambda: sum(session.messages for session in heard) == 2)
        document.write_text(pretty(CHAT))
        await until(lambda: sum(session.messages for session in heard) == 5)


# Under fire ------------------------------------------------------------------------------------


class Failing:
    """Middleware that fails at one commit, before it is done or after."""

    def __init__(self) -> None:
        self.left = -1
        self.after = False

    async def __call__(self, call: Call, handler: Handler) -> Any:
        if not isinstance(call, Commit) or self.left < 0:
            return await handler(call)
        self.left -= 1
        if self.left >= 0:
            return await handler(call)
        if self.after:
            await handler(call)
        raise Unavailable("The store is gone.")


def eventful(folder: Path) -> Path:
    """Sub-agents inside a file, a rewind, a compaction, a title."""
    claude, agent = Claude(), Claude(agent="a1")
    first, second = claude.turn("One.", "1", calls=2), claude.turn("Two.", "2")
    asides = agent.turn("Look at x.", "Looked.")
    calling = [claude.prompt("Explore."), claude.call("m8", "c8", "Task", prompt="Look at x.")]
    records = [*first, *second, claude.prompt("Other.", first[-1]["uuid"])]
    records += [*calling, *asides[:4], claude.text("m8", "Meanwhile."), *asides[4:]]
    records += [claude.result("c8"), claude.boundary(), claude.summary("So far.")]
    records += [*claude.turn("Last.", "z"), {"type": "ai-title", "aiTitle": "Counting"}]
    return write(folder / f"{SESSION}.jsonl", records)


@pytest.mark.parametrize("after", [False, True], ids=["before", "after"])
async def test_a_failure_at_any_commit_loses_and_doubles_nothing(
    tmp_path: Path, after: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("perdure.importers.step_feed.USED_BYTES", 500)  # many commits
    path = eventful(tmp_path)
    async with perdure.open("memory://") as bank:
        await import_files(bank, "claude-code", [path])
        wanted = await everything(bank)
    assert len(wanted) == 2
    failures = 0
    for at in range(100):
        failing = Failing()
        async with perdure.open("memory://", middleware=[failing]) as bank:
            failing.left, failing.after = at, after
            with suppress(Unavailable):  # not raised if it was recall's: an import goes on without
                await import_files(bank, "claude-code", [path])
            if failing.left >= 0:
                break
            failures += 1
            await import_files(bank, "claude-code", [path])
            assert await everything(bank) == wanted
    assert failures > 10


async def test_two_imports_of_one_file_at_once(tmp_path: Path) -> None:
    path = eventful(tmp_path)
    async with perdure.open("memory://") as bank:
        await import_files(bank, "claude-code", [path])
        wanted = await everything(bank)
    async with perdure.open(f"sqlite:///{tmp_path}/bank.db") as bank:
        both = [import_files(bank, "claude-code", [path]) for _ in range(3)]
        found = await asyncio.gather(*both)
        assert await everything(bank) == wanted
        total = sum(session.messages for imported in found for session in imported.sessions)
        assert total == sum(len(said) for turns in wanted.values() for _, said in turns)


@pytest.mark.parametrize("kind", ["claude-code", "codex"])
async def test_importing_a_part_and_then_all_is_importing_all(tmp_path: Path, kind: str) -> None:
    if kind == "claude-code":
        path = eventful(tmp_path)
    else:
        codex = Codex()
        records = [codex.meta(), codex.environment(), *codex.turn("One.", "1", "c1")]
        records += [*codex.turn("Two.", "2", "c2"), codex.event("thread_rolled_back", num_turns=1)]
        records += [codex.line("compacted", {"message": "So."}), *codex.turn("Three.", "3", "c3")]
        path = write(tmp_path / ROLLOUT, records)
    content = path.read_bytes()
    async with perdure.open("memory://") as bank:
        await import_files(bank, kind, [path])
        wanted = await everything(bank)
    ends = [at + 1 for at, byte in enumerate(content) if byte == 10]
    for cut in [0, *ends, *(end - 20 for end in ends[::5]), *(end - 1 for end in ends[::5])]:
        async with perdure.open("memory://") as bank:
            path.write_bytes(content[:cut])
            await import_files(bank, kind, [path])
            path.write_bytes(content)
            await import_files(bank, kind, [path])
            assert await everything(bank) == wanted, cut


async def test_usage_is_counted_once_however_a_reply_arrives(tmp_path: Path) -> None:
    claude = Claude()
    content = lines([*claude.turn("One.", "1", calls=3), *claude.turn("Two.", "2")])
    path = tmp_path / f"{SESSION}.jsonl"
    async with perdure.open("memory://") as bank:
        for end in [at + 1 for at, byte in enumerate(content) if byte == 10]:
            path.write_bytes(content[:end])
            await import_files(bank, "claude-code", [path])
        assert await output_tokens(bank, NAME) == 2 * (9 + 20)
