"""Conversations that others record, too, such as the proxy: each message is in the bank once."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable
from pathlib import Path
from typing import Any

import pytest

import perdure
from perdure.bank import Bank
from perdure.importers import Imported, Step, Transcript, import_files, register, unregister
from perdure.importers.claude_code import ClaudeCodeImporter
from perdure.importers.claude_code.claude_reader import ClaudeCodeReader
from perdure.importers.claude_code.claude_records import Record as ClaudeRecord
from perdure.importers.import_run import ARRIVING
from tests.importers.transcripts import (
    SESSION,
    Claude,
    Codex,
    Record,
    claude_session,
    codex_session,
    write,
)

NAME = claude_session()
REMINDER = "<system-reminder>The date is today.</system-reminder>"


@pytest.fixture
async def bank() -> AsyncIterator[Bank]:
    async with perdure.open("memory://") as bank:
        yield bank


def wire_of(records: Iterable[Record]) -> list[dict[str, Any]]:
    """What the client sends to the model, where it writes these records: a reply is one message,
    reminders stand beside prompts, results of one round come together.
    """
    found = list[dict[str, Any]]()
    for record in records:
        if record["type"] not in {"user", "assistant"}:
            continue
        said = record["message"]
        content = said["content"]
        if said["role"] == "user":
            if isinstance(content, str):
                texts = [REMINDER, content]
                content = [{"type": "text", "text": text} for text in texts]
            kept = {"role": "user", "content": content}
        else:
            kept = {name: said[name] for name in ("type", "role", "id", "model", "content")}
        last = found[-1] if found else {}
        same_reply = kept["role"] == "assistant" and last.get("id") == kept.get("id")
        results = content[0]["type"] == "tool_result" and last.get("role") == "user"
        if last and (same_reply or results):
            found[-1] = {**last, "content": [*last["content"], *content]}
        else:
            found.append(kept)
    return found


async def record(bank: Bank, records: Iterable[Record], name: str = NAME) -> None:
    """As the proxy does: in the order of the conversation, each round by itself."""
    session = await bank.session(name)
    for message in wire_of(records):
        await session.append([message])


async def said(bank: Bank, name: str = NAME) -> list[str]:
    """Everything that was said, in short, undone turns in brackets."""
    session = await bank.session(name)
    found = list[str]()
    async for turn in session.read(undone=True):
        for message in turn.messages:
            words = [REMINDER, *(f"{call.id}()" for call in message.calls)]
            words += [f"={result.call}" for result in message.results]
            text = message.text.replace(REMINDER, "").strip()
            word = " ".join([*([text] if text else []), *words[1:]]) or message.name
            found.append(f"[{word}]" if turn.status == "undone" else word)
    return found


def added(imported: Imported) -> int:
    return sum(each.messages for each in imported.sessions)


async def test_recorded_first(bank: Bank, tmp_path: Path) -> None:
    claude = Claude()
    records = [
        *claude.turn("One.", "1", calls=2),
        *claude.turn("yes", "2"),
        *claude.turn("yes", "2"),
    ]
    await record(bank, records)
    before = await said(bank)
    assert len(before) == 12
    path = write(tmp_path / f"{SESSION}.jsonl", records)
    for _ in range(2):
        assert added(await import_files(bank, "claude-code", [path])) == 0
    assert await said(bank) == before
    write(path, [*records, *claude.turn("yes", "Alone.")])
    assert added(await import_files(bank, "claude-code", [path])) == 4
    assert await said(bank) == [*before, "yes", "toolu_4_0()", "=toolu_4_0", "Alone."]


async def test_imported_first_and_gone_on_with_by_the_proxy(bank: Bank, tmp_path: Path) -> None:
    claude = Claude()
    first, second, third = (claude.turn("yes", "Done.") for _ in range(3))
    path = write(tmp_path / f"{SESSION}.jsonl", first)
    assert added(await import_files(bank, "claude-code", [path])) == 4
    await record(bank, second)
    write(path, [*first, *second, *third])
    assert added(await import_files(bank, "claude-code", [path])) == 4
    assert added(await import_files(bank, "claude-code", [path])) == 0
    turns = [turn.prompt async for turn in (await bank.session(NAME)).read()]
    assert [prompt.replace(REMINDER, "").strip() for prompt in turns] == ["yes"] * 3
    assert len(await said(bank)) == 12


@pytest.mark.parametrize("proxy_first", [True, False])
async def test_turn_by_turn(bank: Bank, tmp_path: Path, proxy_first: bool) -> None:
    """Each sees some part of each turn first. Who is behind adds nothing."""
    claude, path = Claude(), tmp_path / f"{SESSION}.jsonl"
    records = list[Record]()
    for number in range(6):
        turn = claude.turn("go on", f"Step {number}.")
        half = len(turn) - 1  # all but the final answer
        records += turn[:half] if proxy_first == (number % 2 == 0) else turn
        if proxy_first == (number % 2 == 0):
            await record(bank, turn[:half])
            await import_files(bank, "claude-code", [write(path, records)])
            records += turn[half:]
            await import_files(bank, "claude-code", [write(path, records)])
        else:
            await import_files(bank, "claude-code", [write(path, records)])
    found = await said(bank)
    for number in range(6):
        assert found[4 * number : 4 * number + 4] == [
            "go on",
            f"toolu_{number + 1}_0()",
            f"=toolu_{number + 1}_0",
            f"Step {number}.",
        ]
    assert len(found) == 24
    assert [turn.id async for turn in (await bank.session(NAME)).read()] == [
        f"T-{number}" for number in range(1, 7)
    ]


async def test_sub_agents(bank: Bank, tmp_path: Path) -> None:
    claude, helper = Claude(), Claude(agent="a1")
    records = [
        claude.prompt("Look."),
        claude.call("m1", "toolu_task", "Task", prompt="Search."),
        claude.progress(type="agent_progress", agentId="a1", call="toolu_task"),
        claude.result("toolu_task", "Nothing."),
        claude.text("m2", "There is nothing."),
    ]
    theirs = helper.turn("Search.", "Nothing.")
    await record(bank, records)
    await record(bank, theirs, claude_session(agent="a1"))
    main = write(tmp_path / f"{SESSION}.jsonl", records)
    write(tmp_path / SESSION / "subagents" / "agent-a1.jsonl", theirs)
    before = await said(bank), await said(bank, claude_session(agent="a1"))
    imported = await import_files(bank, "claude-code", [main])
    assert [each.name for each in imported.sessions] == [NAME, claude_session(agent="a1")]
    assert added(imported) == 0
    assert (await said(bank), await said(bank, claude_session(agent="a1"))) == before
    assert (await bank.session(claude_session(agent="a1"))).agent == (
        await bank.session(NAME)
    ).agent


async def test_what_the_proxy_missed_goes_where_it_belongs(bank: Bank, tmp_path: Path) -> None:
    claude = Claude()
    first, second = claude.turn("One.", "1"), claude.turn("Two.", "2")
    path = write(tmp_path / f"{SESSION}.jsonl", [*first, *second])
    await record(bank, [*first[:-1], *second])  # the client went away before the answer came
    assert added(await import_files(bank, "claude-code", [path])) == 1
    session = await bank.session(NAME)
    assert [(await session.turn(number)).messages[-1].text for number in (1, 2)] == ["1", "2"]


async def test_a_rewind_that_the_proxy_saw(bank: Bank, tmp_path: Path) -> None:
    claude = Claude()
    first, second = claude.turn("One.", "1"), claude.turn("Two.", "2")
    other = [claude.prompt("Other.", first[-1]["uuid"]), claude.text("m9", "Else.")]
    refused = claude.text("m10", "Overloaded.", isApiErrorMessage=True)
    path = write(tmp_path / f"{SESSION}.jsonl", [*first, *second])
    await import_files(bank, "claude-code", [path])
    session = await bank.session(NAME)
    await session.undo(1)
    await record(bank, other)
    write(path, [*first, *second, *other, refused])
    (found,) = (await import_files(bank, "claude-code", [path])).sessions
    assert (found.messages, found.undone) == (1, 0)
    assert (await said(bank))[8:] == ["Other.", "Else.", "Overloaded."]
    assert [turn.status async for turn in session.read(undone=True)] == [
        *("closed", "undone", "closed")
    ]


async def test_a_rewind_that_nobody_else_saw(bank: Bank, tmp_path: Path) -> None:
    claude = Claude()
    first, second = claude.turn("One.", "1"), claude.turn("Two.", "2")
    other = [claude.prompt("Other.", first[-1]["uuid"]), claude.text("m9", "Else.")]
    await record(bank, [*first, *second])
    path = write(tmp_path / f"{SESSION}.jsonl", [*first, *second, *other])
    (found,) = (await import_files(bank, "claude-code", [path])).sessions
    assert (found.messages, found.undone) == (2, 1)
    statuses = [turn.status async for turn in (await bank.session(NAME)).read(undone=True)]
    assert statuses == ["closed", "undone", "closed"]


async def test_a_compaction_is_one_event(bank: Bank, tmp_path: Path) -> None:
    claude = Claude()
    first = claude.turn("One.", "1")
    after = [claude.boundary(), claude.summary("We did one."), *claude.turn("Two.", "2")]
    await record(bank, first)
    session = await bank.session(NAME)
    await session.append([perdure.core.messages.event("compaction", "We did one.")])
    await record(bank, after[2:])
    path = write(tmp_path / f"{SESSION}.jsonl", [*first, *after])
    assert added(await import_files(bank, "claude-code", [path])) == 0


async def test_secrets_and_long_texts_are_known_again(bank: Bank, tmp_path: Path) -> None:
    claude = Claude()
    secret = "My key is sk-" + "ant-api03-" + "a1B2" * 23 + "cAA."
    records = [*claude.turn(secret, "Thanks."), *claude.turn("Long. " * 40_000, "Very " * 60_000)]
    await record(bank, records)
    path = write(tmp_path / f"{SESSION}.jsonl", records)
    assert added(await import_files(bank, "claude-code", [path])) == 0
    session = await bank.session(NAME)
    assert "sk-ant" not in (await session.turn(1)).prompt


async def test_somebody_records_while_the_file_is_read(bank: Bank, tmp_path: Path) -> None:
    """After the importer looked at the session, and before it writes."""
    claude = Claude()
    first, second, third = (claude.turn("go on", "Done.") for _ in range(3))
    path = write(tmp_path / f"{SESSION}.jsonl", first)
    loop = asyncio.get_running_loop()
    waiting = list[list[Record]]()

    class Reader(ClaudeCodeReader):
        def read(self, record: ClaudeRecord) -> Iterable[Step]:
            if waiting and record.uuid == second[-1]["uuid"]:
                recording = globals()["record"](bank, waiting.pop())
                asyncio.run_coroutine_threadsafe(recording, loop).result(30)
            return super().read(record)

    class Slow(ClaudeCodeImporter):
        def reader(self, transcript: Transcript) -> ClaudeCodeReader:
            return Reader(transcript.agent)

    register("slow", Slow())
    try:
        assert added(await import_files(bank, "slow", [path])) == 4
        waiting.append(second)
        write(path, [*first, *second, *third])
        assert added(await import_files(bank, "slow", [path])) == 4
    finally:
        unregister("slow")
    assert not waiting
    calls = [word for word in await said(bank) if word.endswith("()")]
    assert calls == ["toolu_1_0()", "toolu_2_0()", "toolu_3_0()"]
    assert len(await said(bank)) == 12


async def test_an_answer_that_is_arriving_is_waited_for(bank: Bank, tmp_path: Path) -> None:
    claude = Claude()
    records = [claude.prompt("One."), claude.text("m1", "A long answer.")]
    path = write(tmp_path / f"{SESSION}.jsonl", records)
    await record(bank, records[:1])
    session = await bank.session(NAME)
    await session.resume(1)
    async with session.answer() as answer:
        await answer.text("A long ")
        (found,) = (await import_files(bank, "claude-code", [path])).sessions
        assert (found.messages, found.skipped) == (0, {ARRIVING: 1})
        await answer.text("answer.")
    assert added(await import_files(bank, "claude-code", [path])) == 0
    assert await said(bank) == ["One.", "A long answer."]


async def test_what_programs_put_in_is_left_out_with_what_is_known(
    bank: Bank, tmp_path: Path
) -> None:
    """The proxy has it beside the prompt, or as system text of the request."""
    codex = Codex()
    first, second = codex.turn("One.", "1", "c1"), codex.turn("Two.", "2", "c2")
    tools = codex.line("response_item", {"type": "additional_tools", "role": "developer"})
    start = [codex.meta(), tools, codex.said("developer", "You are an agent."), codex.environment()]
    session = await bank.session(codex_session())
    for payload in (each["payload"] for each in first if each["type"] == "response_item"):
        await session.append([payload])
    name = f"rollout-2025-11-01T01-02-58-{codex_session()[-36:]}.jsonl"
    path = write(tmp_path / name, [*start, *first])
    assert added(await import_files(bank, "codex", [path])) == 0
    # What nobody else has comes as it is.
    write(path, [*start, *first, codex.environment(), *second])
    (found,) = (await import_files(bank, "codex", [path])).sessions
    assert (found.turns, found.tool_calls, found.messages) == (1, 1, 5)


async def test_codex(bank: Bank, tmp_path: Path) -> None:
    codex = Codex()
    first = [codex.meta(), *codex.turn("One.", "1", "c1")]
    second = codex.turn("One.", "1", "c2")
    session = await bank.session(codex_session())
    for record_ in (*first, *second):
        payload = record_["payload"]
        if record_["type"] == "response_item":
            await session.append([payload])
    before = await said(bank, codex_session())
    path = write(tmp_path / f"rollout-2025-11-01T01-02-58-{codex_session()[-36:]}.jsonl", first)
    assert added(await import_files(bank, "codex", [path])) == 0
    write(path, [*first, *second])
    assert added(await import_files(bank, "codex", [path])) == 0
    assert await said(bank, codex_session()) == before


async def test_recall_stays_inside_the_project(bank: Bank, tmp_path: Path) -> None:
    sessions = dict[str, str]()
    for project, word in (("engine", "crankshaft"), ("garden", "rhododendron")):
        claude = Claude(project)
        turn = [
            each | {"cwd": f"/home/ada/{project}"}
            for each in claude.turn(f"What about the {word}?", f"The {word} is fine.")
        ]
        path = write(tmp_path / project / f"{project}.jsonl", turn)
        (found,) = (await import_files(bank, "claude-code", [path])).sessions
        sessions[project] = found.name
    for project, own, foreign in (
        ("engine", "crankshaft", "rhododendron"),
        ("garden", "rhododendron", "crankshaft"),
    ):
        session = await bank.session(sessions[project])
        for wide in (False, True):
            hits = (await session.recall(f"{own} {foreign}", wide=wide)).hits
            texts = " ".join(hit.text for hit in hits)
            assert own in texts
            assert foreign not in texts
        # Another conversation in the same project sees it, and one elsewhere does not.
        beside = await bank.session(f"{session.agent}/another")
        assert own in " ".join(hit.text for hit in (await beside.recall(own)).hits)
        context = await beside.context(f"Tell me about {own} and {foreign}.")
        shown = str(context.to_messages())
        assert f"The {own} is fine" in shown
        assert f"The {foreign} is fine" not in shown
