"""Conversations of Cursor, in databases as it leaves them."""

from __future__ import annotations

import json
import sys
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import apsw
import pytest

import perdure
from perdure.bank import Bank
from perdure.core.client_agents import session_of_client
from perdure.core.messages import Media, Reasoning
from perdure.importers import Imported, import_files, importer_for
from tests.importers.outcomes import names

FOLDER = "/home/ada/engine"
COMPOSER = "0d7e5c1a-1111-4222-8333-944455566677"
NAME = session_of_client("cursor", FOLDER, COMPOSER)
WHEN = "2026-05-08T02:05:34.020Z"


class Database:
    """What Cursor keeps open. It does not use a log beside the file in all versions."""

    def __init__(self, path: Path, *, log: bool = True) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        self.path = path
        self.connection = apsw.Connection(str(path))
        if log:
            self.connection.execute("PRAGMA journal_mode = WAL").fetchall()
        for table in ("ItemTable", "cursorDiskKV"):
            self.connection.execute(
                f"CREATE TABLE {table} (key TEXT UNIQUE ON CONFLICT REPLACE, value BLOB)"
            )

    def put(self, key: str, value: Any, table: str = "cursorDiskKV") -> None:
        text = value if isinstance(value, str) else json.dumps(value)
        self.connection.execute(f"INSERT INTO {table} VALUES (?, ?)", (key, text))

    def talk(self, *bubbles: dict[str, Any], name: str = COMPOSER, **more: Any) -> None:
        headers = [{"bubbleId": each["bubbleId"], "type": each["type"]} for each in bubbles]
        told = {"composerId": name, "name": "Broken build", "createdAt": 1_778_205_934_020}
        told |= {"modelConfig": {"modelName": "claude-4.6-sonnet"}, "unifiedMode": "agent"}
        told |= {"status": "completed", "fullConversationHeadersOnly": headers, **more}
        self.put(f"composerData:{name}", told)
        for each in bubbles:
            self.put(f"bubbleId:{name}:{each['bubbleId']}", each)


def person(name: str, text: str, **more: Any) -> dict[str, Any]:
    return {"_v": 3, "type": 1, "bubbleId": name, "text": text, "createdAt": WHEN, **more}


def model(name: str, text: str = "", **more: Any) -> dict[str, Any]:
    return {"_v": 3, "type": 2, "bubbleId": name, "text": text, "createdAt": WHEN, **more}


def tool(name: str, status: str = "completed", **more: Any) -> dict[str, Any]:
    made = {"tool": 15, "name": "run_terminal_cmd", "toolCallId": f"call_{name}\nctc_1"}
    made |= {"status": status, "rawArgs": '{"command":"make"}', "params": "{}", **more}
    return model(name, capabilityType=15, toolFormerData=made)


PIXEL = {"data": "iVBORw0KGgo=", "dimension": {"width": 1, "height": 1}}
TALK = [
    person("b1", "Why does the build fail?", images=[PIXEL], context={"fileSelections": []}),
    model("b2", thinking={"text": "Look first.", "signature": ""}, capabilityType=30),
    tool("b3", result='{"output":"no such module"}'),
    tool("b4", "error", error='{"message":"denied"}'),
    model("b5", "boiler.py is missing.", tokenCount={"inputTokens": 100, "outputTokens": 5}),
]
HERE: dict[str, Any] = {"workspaceIdentifier": {"id": "w1", "uri": {"fsPath": FOLDER}}}


@pytest.fixture
async def bank() -> AsyncIterator[Bank]:
    async with perdure.open("memory://") as bank:
        yield bank


@pytest.fixture
def database(tmp_path: Path) -> Iterator[Database]:
    made = Database(tmp_path / "User" / "globalStorage" / "state.vscdb")
    yield made
    made.connection.close()


def said(imported: Imported) -> dict[str, int]:
    return {session.name: session.messages for session in imported.sessions}


async def test_a_conversation_with_tools(bank: Bank, database: Database, tmp_path: Path) -> None:
    database.talk(*TALK, **HERE)
    before = database.path.read_bytes()
    (found,) = (await import_files(bank, "cursor", [tmp_path / "User"])).sessions
    assert (found.name, found.turns, found.rounds, found.messages) == (NAME, 1, 3, 7)
    assert found.skipped == {}
    assert database.path.read_bytes() == before
    session = await bank.session(NAME)
    assert (session.state["title"], session.state["mode"]) == ("Broken build", "agent")
    (turn,) = await session.turns()
    asked, thought, called, result, other, failed, answered = turn.messages
    assert (asked.text, isinstance(asked.parts[1], Media)) == ("Why does the build fail?", True)
    assert thought.parts == (Reasoning("Look first."),)
    assert thought.id == called.id != other.id
    assert (called.calls[0].id, called.calls[0].arguments) == ("call_b3", '{"command":"make"}')
    assert (result.results[0].call, result.results[0].text) == (
        "call_b3",
        '{"output":"no such module"}',
    )
    assert (failed.results[0].call, failed.results[0].is_error) == ("call_b4", True)
    assert (answered.text, answered.model) == ("boiler.py is missing.", "claude-4.6-sonnet")
    assert answered.usage is not None
    assert answered.usage.output == 5
    assert turn.status == "closed"


@pytest.mark.parametrize("log", [True, False])
async def test_a_second_run_imports_what_is_new(bank: Bank, tmp_path: Path, *, log: bool) -> None:
    database = Database(tmp_path / "globalStorage" / "state.vscdb", log=log)
    database.talk(*TALK, **HERE)
    await import_files(bank, "cursor", [database.path])
    assert said(await import_files(bank, "cursor", [database.path])) == {NAME: 0}
    more = [*TALK, person("b6", "Mend it."), model("b7", "I am")]
    database.talk(*more, **HERE, status="generating")
    (found,) = (await import_files(bank, "cursor", [database.path])).sessions
    assert (found.messages, found.skipped) == (1, {"answer that is not finished": 1})
    database.talk(*more[:-1], model("b7", "I am done."), **HERE)
    assert said(await import_files(bank, "cursor", [database.path])) == {NAME: 1}
    turns = await (await bank.session(NAME)).turns()
    assert [turn.messages[-1].text for turn in turns] == ["boiler.py is missing.", "I am done."]
    database.connection.close()


async def test_messages_in_the_list_of_older_versions(bank: Bank, database: Database) -> None:
    rich = json.dumps({"root": {"children": [{"children": [{"text": "Why "}, {"text": "so?"}]}]}})
    old = [
        {"type": 1, "bubbleId": "o1", "text": "", "richText": rich},
        {"type": 2, "bubbleId": "o2", "text": "Because."},
    ]
    database.put(f"composerData:{COMPOSER}", {"composerId": COMPOSER, "conversation": old, **HERE})
    assert said(await import_files(bank, "cursor", [database.path])) == {NAME: 2}
    (turn,) = await (await bank.session(NAME)).turns()
    assert (turn.prompt, turn.messages[-1].text) == ("Why so?", "Because.")


async def test_the_folder_that_a_workspace_tells(bank: Bank, database: Database) -> None:
    database.talk(*TALK)
    place = database.path.parent.parent / "workspaceStorage" / "w1"
    workspace = Database(place / "state.vscdb")
    (place / "workspace.json").write_text(json.dumps({"folder": f"file://{FOLDER}"}))
    workspace.put(
        "composer.composerData", {"allComposers": [{"composerId": COMPOSER}]}, "ItemTable"
    )
    tabs = {"tabs": [{"tabId": "t", "bubbles": []}]}
    workspace.put("workbench.panel.aichat.view.aichat.chatdata", tabs, "ItemTable")
    found = await import_files(bank, "cursor", [place.parent.parent])
    skipped = {each.name: each.skipped for each in found.sessions}
    assert skipped[NAME] == {}
    old = session_of_client("cursor", FOLDER, "chats-w1")
    assert skipped[old] == {"chat of a version before 2024's composer": 1}
    assert said(await import_files(bank, "cursor", [database.path])) == {NAME: 0}
    workspace.connection.close()


async def test_what_is_unknown_or_broken_is_named(bank: Bank, database: Database) -> None:
    odd = {"bubbleId": "b9", "type": 7}
    database.talk(person("b1", "Hello."), odd, model("b3"), model("b4", "Hi."), **HERE)
    database.connection.execute("DELETE FROM cursorDiskKV WHERE key LIKE '%:b4'")
    database.put(f"bubbleId:{COMPOSER}:b5", model("b5", "Elsewhere."))
    database.put(f"bubbleId:{COMPOSER}:b3", '{"type": 2, ')
    database.put("composerData:broken", "{")
    database.talk(name="never-used")
    found = await import_files(bank, "cursor", [database.path])
    skipped = {each.name: each.skipped for each in found.sessions}
    assert skipped[NAME] == {
        "bubble of type 7": 1,
        "broken line: not JSON": 1,
        "bubble that is not there": 1,
        "bubble outside of the conversation": 1,
    }
    assert skipped[session_of_client("cursor", "", "broken")] == {"broken line: not JSON": 1}
    assert len(skipped) == 2
    assert await names(bank) == [NAME]


async def test_no_database(bank: Bank, tmp_path: Path) -> None:
    path = tmp_path / "state.vscdb"
    path.write_text("{}")
    (found,) = (await import_files(bank, "cursor", [path])).sessions
    assert found.skipped == {"cannot be read: it is no SQLite database": 1}


async def test_a_database_of_somebody_else_is_told(bank: Bank, tmp_path: Path) -> None:
    path = tmp_path / "User" / "globalStorage" / "state.vscdb"
    path.parent.mkdir(parents=True)
    apsw.Connection(str(path)).execute("CREATE TABLE ItemTable (key TEXT, value BLOB)")
    for place in (path, tmp_path / "User"):
        imported = await import_files(bank, "cursor", [place])
        skipped = [session.skipped for session in imported.sessions]
        assert skipped == [{"cannot be read: it has no conversations of Cursor": 1}]


async def test_a_workspace_that_cannot_be_read_is_told(bank: Bank, database: Database) -> None:
    database.talk(*TALK)
    workspace = database.path.parent.parent / "workspaceStorage" / "1a2b" / "state.vscdb"
    workspace.parent.mkdir(parents=True)
    workspace.write_bytes(b"no database")
    imported = await import_files(bank, "cursor", [database.path.parent.parent])
    assert sum(session.turns for session in imported.sessions) > 0
    told = [reason for session in imported.sessions for reason in session.skipped]
    assert "cannot be read: it is no SQLite database" in told


def test_its_usual_place(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    monkeypatch.setattr(sys, "platform", "linux")
    assert importer_for("cursor").places() == [tmp_path / "Cursor" / "User"]
    monkeypatch.setattr(sys, "platform", "darwin")
    (place,) = importer_for("cursor").places()
    assert place.parts[-4:] == ("Library", "Application Support", "Cursor", "User")
