"""Sessions of opencode: its database, the files of older versions, exported sessions."""

from __future__ import annotations

import json
import shutil
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import apsw
import pytest

import perdure
from perdure.bank import Bank
from perdure.core.client_agents import session_of_client
from perdure.core.messages import Media, Reasoning
from perdure.importers import Imported, import_files
from tests.importers.outcomes import conversation, names

FOLDER = "/home/ada/engine"
SESSION, CHILD = "ses_5f01", "ses_5f02"
NAME = session_of_client("opencode", FOLDER, SESSION)
PIXEL = "data:image/png;base64,iVBORw0KGgo="
START = 1_767_225_600_000

SCHEMA = """
    CREATE TABLE session (id text PRIMARY KEY, project_id text NOT NULL, parent_id text,
        slug text NOT NULL, directory text NOT NULL, title text NOT NULL, version text NOT NULL,
        revert text, time_created integer NOT NULL, time_updated integer NOT NULL);
    CREATE TABLE message (id text PRIMARY KEY, session_id text NOT NULL,
        time_created integer NOT NULL, time_updated integer NOT NULL, data text NOT NULL);
    CREATE TABLE part (id text PRIMARY KEY, message_id text NOT NULL, session_id text NOT NULL,
        time_created integer NOT NULL, time_updated integer NOT NULL, data text NOT NULL);
    CREATE TABLE session_message (id text PRIMARY KEY, session_id text NOT NULL, type text NOT NULL,
        seq integer NOT NULL, data text NOT NULL);
"""


def tool(call: str, name: str, given: dict[str, Any], **state: Any) -> dict[str, Any]:
    state = {"status": "completed", "input": given, **state}
    return {"type": "tool", "callID": call, "tool": name, "state": state}


def answer(*parts: dict[str, Any], reason: str = "stop", **info: Any) -> dict[str, Any]:
    """An assistant's message of one model call."""
    tokens = {"input": 7, "output": 5, "reasoning": 2, "cache": {"read": 90, "write": 3}}
    finish = {"type": "step-finish", "reason": reason, "tokens": tokens, "cost": 0.1}
    time = {"created": START + 1_000, "completed": START + 2_000}
    info = {"role": "assistant", "modelID": "claude-sonnet-4-5", "time": time, **info}
    return {"info": info, "parts": [{"type": "step-start"}, *parts, finish]}


def prompt(*parts: dict[str, Any] | str) -> dict[str, Any]:
    found = [{"type": "text", "text": part} if isinstance(part, str) else part for part in parts]
    return {"info": {"role": "user", "time": {"created": START}}, "parts": found}


TALK = [
    prompt(
        "Why does the build fail?",
        {"type": "file", "mime": "image/png", "filename": "log.png", "url": PIXEL},
        {"type": "text", "text": "Called the Read tool", "synthetic": True},
        {"type": "agent", "name": "build"},
    ),
    answer(
        {"type": "reasoning", "text": "Look first.", "time": {"start": START + 1_100}},
        tool("call_1", "bash", {"command": "make"}, output="boiler.py: no such module"),
        reason="tool-calls",
    ),
    answer({"type": "text", "text": "boiler.py is missing."}, {"type": "patch", "hash": "1"}),
]


class Database:
    """What opencode keeps open."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.connection = apsw.Connection(str(path))
        self.connection.execute("PRAGMA journal_mode = WAL").fetchall()
        self.connection.execute(SCHEMA)
        self._number = 0

    def session(self, name: str, parent: str | None = None, revert: Any = None) -> None:
        values = (name, "p", parent, "slug", FOLDER, "Mend the build", "1.2.0", revert)
        self.connection.execute(
            "INSERT OR REPLACE INTO session VALUES (?,?,?,?,?,?,?,?,?,?)", (*values, START, START)
        )

    def add(self, session: str, *messages: dict[str, Any]) -> list[str]:
        made = []
        for message in messages:
            self._number += 1
            name = f"msg_{self._number:04}"
            made.append(name)
            self.put(name, session, message)
        return made

    def put(self, name: str, session: str, message: dict[str, Any]) -> None:
        self._number += 1
        time = START + self._number
        self.connection.execute("DELETE FROM part WHERE message_id = ?", (name,))
        self.connection.execute(
            "INSERT OR REPLACE INTO message VALUES (?,?,?,?,?)",
            (name, session, time, time, json.dumps(message["info"])),
        )
        for number, part in enumerate(message["parts"]):
            values = (f"prt_{name}_{number:03}", name, session, time, time, json.dumps(part))
            self.connection.execute("INSERT INTO part VALUES (?,?,?,?,?,?)", values)


@pytest.fixture
async def bank() -> AsyncIterator[Bank]:
    async with perdure.open("memory://") as bank:
        yield bank


@pytest.fixture
def database(tmp_path: Path) -> Iterator[Database]:
    made = Database(tmp_path / "opencode.db")
    made.session(SESSION)
    yield made
    made.connection.close()


def said(imported: Imported) -> dict[str, int]:
    return {session.name: session.messages for session in imported.sessions}


async def test_a_database_that_is_in_use(bank: Bank, database: Database) -> None:
    database.add(SESSION, *TALK)
    before = database.path.read_bytes()
    (found,) = (await import_files(bank, "opencode", [database.path.parent])).sessions
    assert (found.name, found.turns, found.rounds, found.messages) == (NAME, 1, 2, 5)
    assert found.skipped == {"part: agent": 1, "part: patch": 1}
    assert database.path.read_bytes() == before

    session = await bank.session(NAME)
    assert (session.state["title"], session.state["cwd"]) == ("Mend the build", FOLDER)
    (turn,) = await session.turns()
    assert (turn.prompt, turn.status) == ("Why does the build fail?", "closed")
    asked, put_in, called, result, answered = turn.messages
    assert isinstance(asked.parts[1], Media)
    assert (asked.parts[1].media_type, asked.parts[1].filename) == ("image/png", "log.png")
    assert (put_in.text, put_in.injected) == ("Called the Read tool", True)
    assert called.parts[0] == Reasoning("Look first.")
    assert (called.calls[0].id, called.calls[0].arguments) == ("call_1", '{"command":"make"}')
    assert (result.results[0].call, result.results[0].text) == (
        "call_1",
        "boiler.py: no such module",
    )
    assert (answered.text, answered.model) == ("boiler.py is missing.", "claude-sonnet-4-5")
    assert answered.usage is not None
    assert (answered.usage.input, answered.usage.output, answered.usage.reasoning) == (100, 7, 2)
    assert (asked.time, called.time) == (START * 1000, (START + 1_100) * 1000)


async def test_a_second_run_imports_what_is_new(bank: Bank, database: Database) -> None:
    database.add(SESSION, *TALK)
    path = database.path
    await import_files(bank, "opencode", [path])
    assert said(await import_files(bank, "opencode", [path])) == {NAME: 0}
    more = answer({"type": "text", "text": "Done."})
    unfinished = {**more, "info": {"role": "assistant", "time": {"created": START}}}
    *_, last = database.add(SESSION, prompt("Mend it."), unfinished)
    (found,) = (await import_files(bank, "opencode", [path])).sessions
    assert (found.messages, found.skipped) == (1, {"answer that is not finished": 1})
    database.put(last, SESSION, more)
    assert said(await import_files(bank, "opencode", [path])) == {NAME: 1}
    turns = await (await bank.session(NAME)).turns()
    assert [(turn.prompt, turn.messages[-1].text) for turn in turns] == [
        ("Why does the build fail?", "boiler.py is missing."),
        ("Mend it.", "Done."),
    ]
    assert said(await import_files(bank, "opencode", [path])) == {NAME: 0}


async def test_sub_agents_compactions_errors_and_reverts(bank: Bank, database: Database) -> None:
    child = tool("call_9", "task", {"prompt": "Look."}, metadata={"sessionId": CHILD}, output="No.")
    database.add(SESSION, prompt("Look around."), answer(child), prompt("Go on."))
    summary = answer({"type": "text", "text": "We looked around."}, summary=True)
    error = {"name": "APIError", "data": {"message": "overloaded"}}
    failed = answer({"type": "text", "text": "So"}, error=error)
    database.add(SESSION, summary, failed)
    (reverted,) = database.add(SESSION, prompt("Delete it all."))
    database.add(SESSION, answer({"type": "text", "text": "Deleted."}))
    database.session(SESSION, revert=json.dumps({"messageID": reverted}))
    database.session(CHILD, parent=SESSION)
    database.add(CHILD, prompt("Look."), answer({"type": "text", "text": "No."}))

    await import_files(bank, "opencode", [database.path])
    turns = await conversation(bank, NAME)
    assert [status for status, _ in turns] == ["there", "there", "undone"]
    assert [(role, name) for role, _, name, _ in turns[1][1]] == [
        ("user", ""),
        ("event", "compaction"),
        ("assistant", ""),
        ("event", "error"),
    ]
    link = (await bank.session(session_of_client("opencode", FOLDER, CHILD))).record.link
    assert link is not None
    assert (link.session, link.call) == (NAME, "call_9")


async def test_unknown_records_are_named(bank: Bank, database: Database) -> None:
    database.add(SESSION, prompt("Hello."), {"info": {"role": "oracle"}, "parts": []})
    odd = answer({"type": "hologram"}, {"type": "text", "text": "Hi."})
    (broken,) = database.add(SESSION, odd)
    database.session(CHILD)
    database.connection.execute(
        "INSERT INTO session_message VALUES ('m', ?, 'user', 1, '{}')", (CHILD,)
    )
    found = {
        each.name: each for each in (await import_files(bank, "opencode", [database.path])).sessions
    }
    assert found[NAME].skipped == {"message: oracle": 1, "part: hologram": 1}
    other = session_of_client("opencode", FOLDER, CHILD)
    assert found[other].skipped == {"session_message: user": 1}
    database.connection.execute(
        "UPDATE message SET data = '{', time_updated = 1 WHERE id = ?", (broken,)
    )
    (again, _) = (await import_files(bank, "opencode", [database.path])).sessions
    assert again.skipped["broken line: not JSON"] == 1


async def test_a_copy_with_its_log(bank: Bank, database: Database, tmp_path: Path) -> None:
    """The newest rows are in the log, and nothing is made beside the copy."""
    database.add(SESSION, *TALK)
    copied = tmp_path / "copied"
    copied.mkdir()
    for name in ("opencode.db", "opencode.db-wal"):
        shutil.copyfile(tmp_path / name, copied / name)
    before = {path: path.read_bytes() for path in copied.iterdir()}
    assert said(await import_files(bank, "opencode", [copied / "opencode.db"])) == {NAME: 5}
    assert {path: path.read_bytes() for path in copied.iterdir()} == before


async def test_a_database_that_nobody_has_open(bank: Bank, tmp_path: Path) -> None:
    made = Database(tmp_path / "opencode-dev.db")
    made.session(SESSION)
    made.add(SESSION, *TALK)
    made.connection.close()
    assert said(await import_files(bank, "opencode", [made.path])) == {NAME: 5}
    assert [path.name for path in tmp_path.iterdir()] == ["opencode-dev.db"]


async def test_files_of_older_versions(bank: Bank, tmp_path: Path) -> None:
    storage = tmp_path / "storage"

    def put(place: str, content: Any) -> None:
        path = storage / place
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(content))

    info = {"id": SESSION, "directory": FOLDER, "title": "Old", "version": "0.5.1"}
    put(f"session/global/{SESSION}.json", info)
    for number, message in enumerate(TALK):
        name = f"msg_{number}"
        put(f"message/{SESSION}/{name}.json", message["info"])
        for place, part in enumerate(message["parts"]):
            put(f"part/{name}/prt_{place}.json", part)
    assert said(await import_files(bank, "opencode", [tmp_path])) == {NAME: 5}
    assert said(await import_files(bank, "opencode", [tmp_path])) == {NAME: 0}
    put(f"message/{SESSION}/msg_3.json", prompt()["info"])
    put("part/msg_3/prt_0.json", {"type": "text", "text": "More."})
    assert said(await import_files(bank, "opencode", [storage])) == {NAME: 1}
    # The database that a newer version made of them holds the same.
    made = Database(tmp_path / "opencode.db")
    made.session(SESSION)
    made.add(SESSION, *TALK, prompt("More."), prompt("And more."))
    made.connection.close()
    assert said(await import_files(bank, "opencode", [tmp_path])) == {NAME: 1}


async def test_an_exported_session(bank: Bank, tmp_path: Path) -> None:
    path = tmp_path / "session.json"
    info = {"id": SESSION, "directory": FOLDER, "title": "Exported"}
    messages = [{**each, "info": {"id": f"m{n}", **each["info"]}} for n, each in enumerate(TALK)]
    path.write_text(json.dumps({"info": info, "messages": messages}, indent=2))
    assert said(await import_files(bank, "opencode", [path])) == {NAME: 5}


@pytest.mark.parametrize("content", [b"", b"{", b"SQLite format 3\0 but not really", b"[1, 2]"])
async def test_broken_files_are_told(bank: Bank, tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "opencode.db"
    path.write_bytes(content)
    (found,) = (await import_files(bank, "opencode", [path])).sessions
    ((reason, count),) = found.skipped.items()
    assert (reason.startswith("cannot be read: "), count) == (True, 1)
    assert await names(bank) == []


def test_its_usual_places(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    from perdure.importers import importer_for

    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path))
    assert importer_for("opencode").places() == [tmp_path / "opencode"]
    monkeypatch.setenv("OPENCODE_DB", "mine.db")
    assert importer_for("opencode").places() == [tmp_path / "opencode" / "mine.db"]
    monkeypatch.setenv("OPENCODE_DB", "/elsewhere/oc.db")
    assert importer_for("opencode").places() == [Path("/elsewhere/oc.db")]
