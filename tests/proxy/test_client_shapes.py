"""Requests in the shapes of real clients: sessions, kinds, and what is recorded of them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from perdure.bank import Bank
from perdure.core.client_agents import session_of_client
from perdure.core.messages import ToolCall
from perdure.history.log_records import Head, SessionRecord
from perdure.history.message_identity import own_words
from perdure.importers import import_files
from perdure.testing import ReceivedRequest, ScriptedAnswer, ScriptedModel
from tests.importers.transcripts import Claude, Record, write
from tests.proxy.client_shapes import (
    CLAUDE_SESSION,
    CODEX_THREAD,
    FOLDER,
    OPENCODE_SESSION,
    ClaudeShape,
    CodexShape,
    OpencodeShape,
)
from tests.proxy.proxy_setup import RunningProxy, proxied
from tests.proxy.test_recording import settled

MESSAGES, RESPONSES = "/v1/messages?beta=true", "/v1/responses"
CLAUDE = session_of_client("claude-code", FOLDER, CLAUDE_SESSION)


@asynccontextmanager
async def answering(*script: ScriptedAnswer | str) -> AsyncIterator[tuple[RunningProxy, Any]]:
    async with ScriptedModel(list(script)) as model, proxied(model.url) as running:
        yield running, model


async def send(running: RunningProxy, path: str, body: Any, headers: dict[str, str]) -> str:
    """Returns the id of the answer, when that and the request are recorded."""
    answer = await running.client.post(path, json=body, headers=headers)
    assert answer.status_code == 200, answer.text
    await settled(running)
    assert running.proxy.report.figures.failures == 0
    id: str = answer.json()["id"]
    return id


async def said(bank: Bank, name: str) -> list[str]:
    """What a session holds, in short; what programs put in is left out."""
    found = list[str]()
    async for turn in (await bank.existing_session(name)).read():
        for message in turn.messages:
            words = [f"{call.id}()" for call in message.calls]
            words += [f"={result.call}" for result in message.results]
            own = message.text if message.role == "assistant" else own_words(message.text)
            if message.role == "event":
                words.append(f"({message.name})")
            elif own and message.role != "system":
                words.append(own.strip('"'))
            found += words
    return found


def bash(id: str) -> ScriptedAnswer:
    return ScriptedAnswer(calls=(ToolCall(id, "Bash", '{"command": "ls"}'),))


async def test_claude_code() -> None:
    client = ClaudeShape()
    async with answering(bash("toolu_1"), "A title.", "Two boxes.", "Short.", "And a hat.") as made:
        running, model = made
        client.prompt("Count the boxes.")
        await send(running, MESSAGES, client.body(), client.headers)
        await send(running, MESSAGES, *client.title())
        client.call("toolu_1", "ls")
        client.result("toolu_1", "two")
        await send(running, MESSAGES, client.body(billing="ff3"), client.headers)
        client.reply("Two boxes.")
        await send(running, MESSAGES, *client.compaction())
        before = ["Count the boxes.", "toolu_1()", "=toolu_1", "Two boxes."]
        assert await said(running.bank, CLAUDE) == before
        client.compact("There were boxes.", "Two boxes.")
        client.prompt("What else?")
        await send(running, MESSAGES, client.body(), client.headers)
        after = [*before, "(compaction)", "What else?", "And a hat."]
        assert await said(running.bank, CLAUDE) == after
        assert len(await running.bank.sessions()) == 1
        # Everything fits the budget: nothing was changed on its way.
        assert model.requests[-1].body == client.body()
        assert running.proxy.report.figures.requests == {"main": 3, "title": 1, "compaction": 1}


async def test_what_a_client_says_in_the_systems_name_is_no_prompt() -> None:
    client = ClaudeShape()
    question = "Why does the attic door stick in winter, and what did Ada do about it in 2019?"
    answer = "The wood swells; she planed the frame by 3 mm."
    async with answering(answer) as (running, _):
        client.prompt(question)
        client.messages[1]["content"] += "\n - Rule: write plain words into each file.\n" * 400
        await send(running, MESSAGES, client.body(), client.headers)
        session = await running.bank.existing_session(CLAUDE)
        texts = {each: (await session.turn("T-1", level=each)).text for each in "RSCT"}
    assert "# Environment" in texts["R"]
    assert question in texts["S"]
    assert "Note: # Environment" in texts["S"]
    assert len(texts["S"]) < len(texts["R"]) * 0.4
    for level in "CT":
        assert "attic door" in texts[level], texts
        assert "Environment" not in texts[level], texts
        assert "plain words" not in texts[level], texts


async def test_a_sub_agent_of_claude_code() -> None:
    main, helper = ClaudeShape(), ClaudeShape("a627be3ef5281c317")
    async with answering(bash("toolu_1"), "It is dark.") as (running, _):
        main.prompt("Look around.")
        await send(running, MESSAGES, main.body(), main.headers)
        helper.prompt("Search the cellar.")
        await send(running, MESSAGES, helper.body(), helper.headers)
        assert await said(running.bank, CLAUDE) == ["Look around.", "toolu_1()"]
        name = session_of_client("claude-code", FOLDER, CLAUDE_SESSION, helper.agent)
        assert await said(running.bank, name) == ["Search the cellar.", "It is dark."]
        record = await running.bank.collection(SessionRecord).get(name)
        assert record is not None
        assert record.started_by == CLAUDE


async def test_codex() -> None:
    client = CodexShape()
    async with answering(bash("call_1"), "Two boxes.", "Never mind.", "A hat.") as (running, _):
        client.prompt("Count the boxes.")
        await send(running, RESPONSES, client.body(), client.headers())
        client.call("call_1", "ls")
        client.result("call_1", "two")
        await send(running, RESPONSES, client.body(), client.headers())
        client.reply("Two boxes.")
        await send(running, RESPONSES, *client.compaction())
        client.prompt("What else?")
        await send(running, RESPONSES, client.body(), client.headers())
        name = session_of_client("codex", FOLDER, CODEX_THREAD)
        assert await said(running.bank, name) == [
            *("Count the boxes.", "call_1()", "=call_1", "Two boxes.", "What else?", "A hat.")
        ]
        # A list of tools is no turn, and the environment is no prompt.
        session = await running.bank.session(name)
        assert [turn.prompt async for turn in session.read()] == ["Count the boxes.", "What else?"]


async def test_an_agent_that_codex_starts() -> None:
    main, helper = CodexShape(), CodexShape("01a1ee82-337a-7a20-900e-d3560ad26afc")
    async with answering("Somebody looks.", bash("call_1"), "It is dark.") as (running, _):
        main.prompt("Look around.")
        await send(running, RESPONSES, main.body(), main.headers())
        helper.task("Search the cellar.")
        await send(running, RESPONSES, helper.body(), helper.headers())
        helper.call("call_1", "ls")
        helper.result("call_1", "dark")
        await send(running, RESPONSES, helper.body(), helper.headers())
        name = session_of_client("codex", FOLDER, helper.thread)
        task, *work = await said(running.bank, name)
        assert task.startswith("Message Type: NEW_TASK")
        assert work == ["call_1()", "=call_1", "It is dark."]
        session = await running.bank.session(name)
        assert (await session.turn(1)).prompt.startswith("Message Type: NEW_TASK")
        assert session.record.started_by == session_of_client("codex", FOLDER, CODEX_THREAD)


async def test_opencode() -> None:
    client = OpencodeShape()
    async with answering("A title.", bash("toolu_1"), "Two boxes.") as (running, _):
        client.prompt("Count the boxes.")
        await send(running, MESSAGES, client.title("Count the boxes."), client.headers)
        await send(running, MESSAGES, client.body(), client.headers)
        client.call("toolu_1", "ls")
        client.result("toolu_1", "two")
        await send(running, MESSAGES, client.body(), client.headers)
        name = session_of_client("opencode", FOLDER, OPENCODE_SESSION)
        before = ["Count the boxes.", "toolu_1()", "=toolu_1", "Two boxes."]
        assert await said(running.bank, name) == before
        assert running.proxy.report.figures.requests == {"title": 1, "main": 2}


# Together with an importer ----------------------------------------------------------------------


class Told:
    """One conversation of Claude Code, as it is sent and as it is written to its file."""

    def __init__(self, path: Path) -> None:
        self.path = path / f"{CLAUDE_SESSION}.jsonl"
        self.shape, self.file = ClaudeShape(), Claude(CLAUDE_SESSION)
        self.records: list[Record] = []
        self.turns = 0

    def ask(self) -> None:
        self.shape.prompt("go on")
        self._wrote(self.file.prompt("go on"))

    def work(self, id: str) -> str:
        """A call and its result; returns the call. `id` is the provider's, of the reply."""
        self.turns += 1
        call = f"toolu_{self.turns}"
        self.shape.call(call, "ls")
        self.shape.result(call, "a.py")
        self._wrote(self.file.call(id, call))
        self._wrote(self.file.result(call))
        return call

    def answer(self, id: str) -> str:
        text = f"Step {self.turns}."
        self.shape.reply(text)
        self._wrote(self.file.text(id, text))
        return text

    def _wrote(self, record: Record) -> None:
        self.records.append(record | {"cwd": FOLDER})

    async def import_now(self, bank: Bank) -> int:
        write(self.path, self.records)
        imported = await import_files(bank, "claude-code", [self.path])
        return sum(each.messages for each in imported.sessions)


@pytest.mark.parametrize("turns", ["pppp", "iiii", "pipi", "ipip", "ppii", "iipp", "bbbb", "bipb"])
async def test_whoever_records_a_turn_it_is_there_once(turns: str, tmp_path: Path) -> None:
    """Turns through the proxy (p), without it and imported behind (i), or both (b)."""
    told = Told(tmp_path)
    script = list[ScriptedAnswer | str]()
    for number, how in enumerate(turns, start=1):
        if how in "pb":
            script += [bash(f"toolu_{number}"), f"Step {number}."]
    async with answering(*script) as (running, _):
        expected = list[str]()
        for number, how in enumerate(turns):
            told.ask()
            through, id = how in "pb", f"msg_{number}a"
            if through:
                id = await send(running, MESSAGES, told.shape.body(), told.shape.headers)
            if how == "b":
                await told.import_now(running.bank)
            call, id = told.work(id), f"msg_{number}b"
            if through:
                id = await send(running, MESSAGES, told.shape.body(), told.shape.headers)
            text = told.answer(id)
            if how in "ib":
                await told.import_now(running.bank)
            expected += ["go on", f"{call}()", f"={call}", text]
            assert await said(running.bank, CLAUDE) == expected, how
        assert await told.import_now(running.bank) == 0
        session = await running.bank.session(CLAUDE)
        assert len([turn async for turn in session.read()]) == len(turns)
        assert len(await running.bank.sessions()) == 1


async def test_an_importer_is_faster_than_the_answer(tmp_path: Path) -> None:
    """The file has the reply before the proxy has written it."""
    told, banks = Told(tmp_path), list[Bank]()

    async def answer(_: ReceivedRequest) -> str:
        heads = banks[0].collection(Head)
        while (head := await heads.get(CLAUDE)) is None or head.turn <= told.turns:  # noqa: ASYNC110  # no event tells
            await asyncio.sleep(0.01)  # until the prompt is recorded
        text = told.answer(f"msg_{told.turns}")
        await told.import_now(banks[0])
        told.turns += 1
        return text

    async with ScriptedModel(answer) as model, proxied(model.url) as running:
        banks.append(running.bank)
        for _ in range(5):
            told.ask()
            await send(running, MESSAGES, told.shape.body(), told.shape.headers)
        expected = [words for turn in range(5) for words in ("go on", f"Step {turn}.")]
        assert await said(running.bank, CLAUDE) == expected
        session = await running.bank.session(CLAUDE)
        assert await session.partials() == []
        assert len([turn async for turn in session.read(undone=True)]) == 5
