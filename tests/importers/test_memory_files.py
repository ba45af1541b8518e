"""Memories of mem0, Letta and claude-mem, each imported once."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import apsw
import pytest

import perdure
from perdure.bank import Bank
from perdure.core.errors import InvalidInput
from perdure.importers.memory_files import MemoryImport, import_memories, memory_formats
from perdure.recall.memory_records import Memory, person

WHEN = "2026-04-10T12:00:00Z"
TIME = 1_775_822_400_000_000
KEY = "sk-ant-api03-" + "a1B2c3D4e5F6g7H8i9J0" * 4


@pytest.fixture
async def bank() -> AsyncIterator[Bank]:
    async with perdure.open("memory://") as bank:
        yield bank


def counts(imported: MemoryImport) -> tuple[int, int, int, int]:
    return imported.added, imported.changed, imported.known, imported.kept


async def texts(bank: Bank, agent: str | None = None) -> dict[str, Memory]:
    return {memory.text: memory for memory in await bank.memories.list(agent)}


def mem0(name: str, text: str, **more: Any) -> dict[str, Any]:
    return {"id": name, "memory": text, "user_id": "alice", "created_at": WHEN, **more}


def put(path: Path, content: Any) -> Path:
    path.write_text(content if isinstance(content, str) else json.dumps(content))
    return path


EXPORT = {
    "results": [
        mem0("m1", "Prefers dark mode.", categories=["user_preferences", "UI"], hash="x"),
        mem0("m2", "Lives in Oslo.", metadata={"type": "profile"}, updated_at=WHEN),
        mem0("m3", f"Her key is {KEY}.", user_id="bob"),
        {"id": "m4", "memory": ""},
    ],
    "relations": [{"source": "alice", "relationship": "lives_in", "target": "oslo"}],
}


async def test_mem0_and_what_a_second_run_adds(bank: Bank, tmp_path: Path) -> None:
    path = put(tmp_path / "export.json", EXPORT)
    imported = await import_memories(bank, "mem0", path)
    assert counts(imported) == (3, 0, 0, 0)
    assert imported.agents == ["mem0@alice", "mem0@bob"]
    assert imported.skipped == {"no memory": 1, "relation of a graph": 1}
    found = await texts(bank, "mem0@alice")
    dark, oslo = found["Prefers dark mode."], found["Lives in Oslo."]
    assert (dark.kind, dark.first) == ("preference", TIME)
    assert dark.tags == ("imported from mem0", "ui", "user_preferences")
    assert (oslo.kind, oslo.tags) == ("fact", ("imported from mem0", "profile"))
    assert (oslo.author.name, oslo.by_person) == ("import from mem0", False)
    (secret,) = await texts(bank, "mem0@bob")
    assert KEY not in secret
    assert "[secret:" in secret

    again = await import_memories(bank, "mem0", path)
    assert counts(again) == (0, 0, 3, 0)
    assert (await texts(bank))["Lives in Oslo."].seen == 1


async def test_what_was_changed_here_or_there(bank: Bank, tmp_path: Path) -> None:
    path = put(tmp_path / "export.json", [mem0(f"m{n}", f"Fact number {n}.") for n in range(4)])
    await import_memories(bank, "mem0", path, agent="planner")
    keys = {text: memory.name for text, memory in (await texts(bank)).items()}
    await bank.memories.edit(keys["Fact number 1."], text="My own words.", by=person("ada"))
    await bank.memories.delete(keys["Fact number 2."])
    later = {"updated_at": "2026-05-01T00:00:00Z"}
    new = [mem0(f"m{n}", f"Another fact {n}.", **later) for n in range(3)]
    put(path, "\n".join(json.dumps(each) for each in [*new, mem0("m3", "Fact number 3.")]))
    imported = await import_memories(bank, "mem0", path, agent="planner")
    assert counts(imported) == (0, 1, 1, 2)
    assert set(await texts(bank)) == {"Another fact 0.", "My own words.", "Fact number 3."}
    older = put(tmp_path / "older.json", [mem0("m0", "Fact number 0.")])
    assert counts(await import_memories(bank, "mem0", older, agent="planner")) == (0, 0, 1, 0)


async def test_the_history_of_mem0(bank: Bank, tmp_path: Path) -> None:
    path = tmp_path / "history.db"
    with apsw.Connection(str(path)) as database:
        database.execute(
            "CREATE TABLE history (id TEXT PRIMARY KEY, memory_id TEXT, old_memory TEXT,"
            " new_memory TEXT, event TEXT, created_at DATETIME, updated_at DATETIME,"
            " is_deleted INTEGER, actor_id TEXT, role TEXT)"
        )
        rows = [
            ("1", "m1", None, "Lives in Bergen.", "ADD", WHEN, None, 0, "alice", "user"),
            ("2", "m1", "", "Lives in Oslo.", "UPDATE", WHEN, "2026-04-11T12:00:00", 0, "a", None),
            ("3", "m2", None, "Has a cat.", "ADD", WHEN, None, 0, None, None),
            ("4", "m2", "Has a cat.", None, "DELETE", None, "2026-04-12T12:00:00Z", 1, None, None),
            ("5", "m3", None, "Odd.", "MERGE", WHEN, None, 0, None, None),
        ]
        database.executemany(f"INSERT INTO history VALUES ({','.join('?' * 10)})", rows)
    database.close()
    imported = await import_memories(bank, "mem0", path, agent="planner")
    assert imported.skipped == {"event: MERGE": 1}
    (memory,) = (await texts(bank)).values()
    assert (memory.text, memory.first) == ("Lives in Oslo.", TIME)


AGENT_FILE = {
    "agents": [
        {"id": "agent-0", "name": "clerk", "block_ids": ["block-0", "block-1"], "messages": [{}]}
    ],
    "blocks": [
        {"id": "block-0", "label": "human", "value": "Her name is Ada.", "limit": 5000},
        {"id": "block-1", "label": "notes", "value": " "},
        {"id": "block-2", "label": "rules", "value": "A long rule. " * 700},
    ],
    "tools": [{}, {}],
    "groups": [],
}


async def test_an_agent_file_of_letta(bank: Bank, tmp_path: Path) -> None:
    path = put(tmp_path / "clerk.af", AGENT_FILE)
    imported = await import_memories(bank, "letta", path)
    assert counts(imported) == (4, 0, 0, 0)
    assert imported.skipped == {"empty block": 1, "messages": 1, "tools": 2}
    (block,) = await bank.memories.list("letta@clerk")
    assert (block.text, block.tags) == (
        "Her name is Ada.",
        ("human", "imported from letta", "memory block"),
    )
    rules = await bank.memories.list("letta@all")
    assert (
        "".join(f"{each.text} " for each in reversed(rules)).split()
        == ("A long rule. " * 700).split()
    )
    AGENT_FILE["blocks"][0]["value"] = "Her name is Ada Lovelace."  # type: ignore[index]
    again = await import_memories(bank, "letta", put(path, AGENT_FILE))
    assert counts(again) == (0, 1, 3, 0)


async def test_other_files_of_letta(bank: Bank, tmp_path: Path) -> None:
    old = {
        "name": "old",
        "core_memory": [{"label": "persona", "value": "I am kind."}],
        "tools": [{}],
    }
    await import_memories(bank, "letta", put(tmp_path / "old.af", old))
    passages = [
        {"id": "p1", "text": "The port is 8123.", "tags": ["infra"], "agent_id": "a1"},
        {"id": "p2", "text": "Gone.", "is_deleted": True},
        {"id": "p3", "text": "Page one.", "file_name": "book.pdf"},
        {"text": ""},
    ]
    imported = await import_memories(bank, "letta", put(tmp_path / "p.json", passages), only="a1")
    assert imported.skipped == {
        "deleted passage": 1,
        "passage of the file book.pdf": 1,
        "no passage": 1,
    }
    assert set(await texts(bank)) == {"I am kind.", "The port is 8123."}


async def test_claude_mem_while_it_runs(bank: Bank, tmp_path: Path) -> None:
    database = apsw.Connection(str(tmp_path / "claude-mem.db"))
    database.execute("PRAGMA journal_mode = WAL").fetchall()
    database.execute(
        "CREATE TABLE observations (id INTEGER PRIMARY KEY, memory_session_id TEXT, project TEXT,"
        " text TEXT, type TEXT, created_at TEXT, created_at_epoch INTEGER, title TEXT,"
        " subtitle TEXT, facts TEXT, narrative TEXT, concepts TEXT);"
        "CREATE TABLE session_summaries (id INTEGER PRIMARY KEY, project TEXT, learned TEXT,"
        " created_at_epoch INTEGER);"
        "CREATE TABLE user_prompts (id INTEGER PRIMARY KEY, prompt_text TEXT);"
    )
    more = ("The port", "Staging", '["It is 8123."]', "We looked it up.", '["gotcha"]')
    rows = [
        (1, "s", "engine", "", "bugfix", WHEN, TIME // 1000, *more),
        (2, "s", "engine", "Use PostgreSQL.", "decision", WHEN, 1, None, None, None, None, None),
        (3, "s", "other", "", "change", WHEN, 1, "", "", "[", "", None),
    ]
    database.executemany(f"INSERT INTO observations VALUES ({','.join('?' * 12)})", rows)
    database.execute("INSERT INTO session_summaries VALUES (1, 'engine', 'Ask first.', 1)")
    database.execute("INSERT INTO session_summaries VALUES (2, 'engine', NULL, 1)")
    database.execute("INSERT INTO user_prompts VALUES (1, 'Go.'), (2, 'On.')")
    imported = await import_memories(bank, "claude-mem", tmp_path / "claude-mem.db", only="engine")
    database.close()
    assert counts(imported) == (3, 0, 0, 0)
    assert imported.agents == ["claude-mem@engine"]
    assert imported.skipped == {
        "about somebody else": 1,
        "session summary without what was learned": 1,
        "user prompt": 2,
    }
    found = await texts(bank)
    port = found["The port: Staging\n- It is 8123.\nWe looked it up."]
    assert (port.kind, port.first) == ("lesson", TIME)
    assert port.tags == ("bugfix", "gotcha", "imported from claude-mem")
    assert found["Use PostgreSQL."].kind == "decision"
    assert found["Ask first."].tags == ("imported from claude-mem", "session summary")


@pytest.mark.parametrize("name", memory_formats())
@pytest.mark.parametrize("content", ["", " \n", "{", "SQLite format 3\0", "PK\3\4\n\x01\n{"])
async def test_broken_files_are_told(bank: Bank, tmp_path: Path, name: str, content: str) -> None:
    with pytest.raises(InvalidInput, match="cannot be read"):
        await import_memories(bank, name, put(tmp_path / "x", content))


@pytest.mark.parametrize("name", ["letta", "mem0"])
@pytest.mark.parametrize("content", ["[1]", '{"odd": 1}', '{"odd": 1}\n'])
async def test_what_holds_no_memory_is_counted(
    bank: Bank, tmp_path: Path, name: str, content: str
) -> None:
    imported = await import_memories(bank, name, put(tmp_path / "x", content))
    assert sum(imported.skipped.values()) == 1
    assert counts(imported) == (0, 0, 0, 0)


async def test_what_is_not_there_is_told(bank: Bank, tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match="no memories of the format"):
        await import_memories(bank, "zep", tmp_path)
    with pytest.raises(InvalidInput, match="There is no"):
        await import_memories(bank, "mem0", tmp_path / "gone")
    with pytest.raises(InvalidInput, match="needs a path"):
        await import_memories(bank, "letta")
