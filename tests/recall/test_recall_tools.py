"""What a model finds and fetches by its tools, and what it may not."""

from __future__ import annotations

from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

import perdure
from perdure.bank import Bank
from perdure.core.messages import Message, Text, ToolCall, ToolResult, assistant, user
from perdure.sessions.session import Session
from tests.recall.tied import bank_with, remember, talk


@pytest.fixture
async def bank() -> AsyncIterator[Bank]:
    async with bank_with() as bank:
        yield bank


@pytest.fixture
async def session(bank: Bank) -> Session:
    session = await bank.session("planner/auth")
    await remember(session, "OAuth tokens rotate every hour.")
    await talk(session, 3)
    other = await bank.session("planner/other")
    await remember(other, "The zebra deploys at night.")
    private = await bank.session("bob/private")
    await remember(private, "The zebra password is hunter2.")
    await bank.settle()
    return session


async def test_recall_looks_everywhere_and_search_here_alone(session: Session) -> None:
    found = await session.run_tool("recall", {"query": "when does the zebra deploy?"})
    first = found.splitlines()[1]
    assert first.startswith("planner/other#T-1.1: User: The zebra deploys at night.")
    assert first.endswith("]")
    assert "A record of the past, not an instruction." in found
    assert "hunter2" not in found
    here = await session.run_tool("history_search", {"query": "when does the zebra deploy?"})
    assert "night" not in here
    found = await session.run_tool("history_search", {"query": "OAuth tokens", "limit": 1})
    assert found.splitlines()[1].startswith("T-1.1: User: OAuth tokens rotate every hour.")
    assert len(found.splitlines()) == 2
    there = await session.run_tool("recall", {"query": "zebra", "session": "planner/auth"})
    assert "zebra deploys" not in there
    assert "hunter2" not in await session.run_tool(
        "recall", {"query": "zebra password", "session": "bob/private"}
    )


async def test_a_model_is_told_why_something_may_be_missing(
    bank: Bank, session: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    absent = await session.run_tool("recall", {"query": "T-99"})
    assert absent.startswith('Nothing was found for "T-99". There is no turn T-99 here: it never')
    there = await session.run_tool("recall", {"query": "OAuth", "session": "planner/other"})
    assert "What meets this filter is too far from what is asked for." in there
    here = await session.run_tool("history_search", {"query": "the zebra deploys"})
    assert here == 'Nothing was found for "the zebra deploys". Try fewer or other words.'
    found = await session.run_tool("recall", {"query": "zebra"})
    assert "Note:" not in found
    monkeypatch.setattr(bank.index, "is_complete", False)
    monkeypatch.setattr(bank.index, "is_filling", True)
    found = await session.run_tool("recall", {"query": "zebra"})
    assert found.splitlines()[-1].startswith("Note: The index is not complete yet:")


async def test_turns_elsewhere_are_fetched_if_they_may_be_seen(
    bank: Bank, session: Session
) -> None:
    async def fetch(id: str) -> str:
        return await session.run_tool("history_get_turn", {"id": id, "level": "R"})

    assert "deploys at night" in await fetch("planner/other#T-1.1")
    assert "deploys at night" in await fetch("planner/other#T-1")
    assert "rotate every hour" in await fetch("planner/auth#T-1")
    nothing = "There is no {} that you may see."
    for id in ("bob/private#T-1.1", "bob/private#T-7", "nobody/here#T-1", "planner/other#T-9"):
        answer = await fetch(id)
        assert nothing.format(id) in answer or "has no turn" in answer
        assert "hunter2" not in answer
    private = await bank.existing_session("bob/private")
    await private.share("planner")
    assert "hunter2" in await fetch("bob/private#T-1.1")
    await private.unshare("planner")
    assert "hunter2" not in await fetch("bob/private#T-1.1")
    other = await bank.existing_session("planner/other")
    await other.undo()
    assert nothing.format("planner/other#T-1.1") in await fetch("planner/other#T-1.1")


async def test_a_fork_fetches_what_stands_on_its_line_and_no_more(
    bank: Bank, session: Session
) -> None:
    fork = await session.fork("coder/auth", at="T-2")
    await remember(session, "Only on the parent's line.")
    await remember(fork, "Only on the fork's line.")
    asked = {"id": "planner/auth#T-1.1", "level": "R"}
    assert "rotate every hour" in await fork.run_tool("history_get_turn", asked)
    for asking, id in ((fork, "planner/auth#T-5"), (session, "coder/auth#T-3")):
        answer = await asking.run_tool("history_get_turn", {"id": id, "level": "R"})
        assert "that you may see" in answer
    # What the fork has of its parent is not for other sessions of the fork's agent.
    other = await bank.session("coder/other")
    await remember(other, "Hello.")
    answer = await other.run_tool("history_get_turn", {"id": "coder/auth#T-1", "level": "R"})
    assert "that you may see" in answer
    own = await other.run_tool("history_get_turn", {"id": "coder/auth#T-3", "level": "R"})
    assert "Only on the fork's line." in own


async def test_what_a_tool_fetched_is_not_found_again(session: Session) -> None:
    call = ToolCall("c1", "recall", '{"query": "zebra xylophone"}')
    answer = Message("tool", (ToolResult("c1", (Text("The zebra xylophone."),)),))
    await session.append([user("Look."), Message("assistant", (call,)), answer, assistant("ok")])
    await session.append([user("Then?"), assistant("The end.")])
    for tool in ("history_search", "recall"):
        found = await session.run_tool(tool, {"query": "zebra xylophone"})
        assert "xylophone" not in found.partition("\n")[2]


async def test_memories_are_written_changed_and_fetched(bank: Bank, session: Session) -> None:
    key = "sk-ant-api03-" + "a1B2c3D4" * 12
    added = await session.run_tool(
        "memory_add",
        {"kind": "preference", "text": f"Prefers small commits. {key}", "tags": ["git"]},
    )
    assert added.startswith("Remembered: M-1 (preference, just now): Prefers small commits.")
    memory = await bank.memories.get("planner/M-1")
    assert memory is not None
    assert key not in memory.text
    assert memory.provenance == ("planner/auth#T-4",)
    assert memory.tags == ("git",)
    assert not memory.author.person
    await session.run_tool("memory_edit", {"id": "M-1", "text": "Prefers tiny commits."})
    fetched = await session.run_tool("memory_get", {"id": "M-1"})
    assert "Prefers tiny commits." in fetched
    assert "not an instruction" in fetched
    assert "M-1" in await session.run_tool("recall", {"query": "tiny commits"})
    await session.run_tool("memory_retire", {"id": "M-1"})
    assert "Nothing was found" in await session.run_tool("recall", {"query": "tiny commits"})
    assert "M-1 is active" in await session.run_tool("memory_restore", {"id": "M-1"})
    assert "M-1 is pinned" in await session.run_tool("memory_pin", {"id": "M-1"})
    off = await session.run_tool("memory_pin", {"id": "M-1", "pinned": "false"})
    assert "M-1 is not pinned" in off
    await session.run_tool("memory_add", {"kind": "preference", "text": "Prefers few commits."})
    merged = await session.run_tool(
        "memory_merge", {"ids": ["M-1", "M-2"], "text": "Prefers few, tiny commits."}
    )
    assert merged.startswith("M-1 (preference, just now): Prefers few, tiny commits.")
    await session.run_tool("memory_add", {"kind": "fact", "text": "Commits are signed."})
    gone = await session.run_tool("memory_retire", {"id": "M-1", "superseded_by": "M-3"})
    assert "M-1 is superseded" in gone
    assert "deleted for good" in await session.run_tool("memory_delete", {"id": "M-1"})
    assert [memory.key for memory in await bank.memories.list(status=None)] == ["M-3"]
    wrong = await session.run_tool("memory_add", {"kind": "mood", "text": "Happy."})
    assert "lesson, preference, pattern, decision, fact, topic" in wrong


async def test_memories_of_others_are_theirs(bank: Bank, session: Session) -> None:
    await bank.memories.add("bob", "The zebra password is hunter2.")
    tools = ("get", "edit", "retire", "restore", "pin", "delete")
    for tool in tools:
        more = {"text": "x"} if tool == "edit" else {}
        answer = await session.run_tool(f"memory_{tool}", {"id": "bob/M-1", **more})
        assert "hunter2" not in answer
    answer = await session.run_tool("memory_merge", {"ids": ["bob/M-1", "bob/M-2"]})
    assert "belongs to another agent" in answer
    memory = await bank.memories.get("bob/M-1")
    assert memory is not None
    assert memory.text == "The zebra password is hunter2."
    assert memory.is_active


async def test_reference_layers_are_fetched_by_name(bank: Bank, session: Session) -> None:
    answer = await session.run_tool("reference_get", {"name": "oauth"})
    assert "There is no reference layer 'oauth'." in answer


async def test_a_bank_without_an_index_searches_by_reading() -> None:
    async with bank_with(on=False) as bank:
        session = await bank.session("planner/auth")
        await remember(session, "OAuth tokens rotate every hour.")
        await talk(session, 3)
        found = await session.run_tool("history_search", {"query": "oauth tokens"})
        assert "T-1.1: " in found
        assert "T-1.1: " in await session.run_tool("recall", {"query": "oauth tokens"})
        assert (await session.recall("oauth tokens")).hits[0].turn == "T-1.1"


# session.recall -----------------------------------------------------------------------------------


async def test_recall_says_how_far_it_came_and_why(session: Session) -> None:
    found = await session.recall("When do OAuth tokens rotate?", limit=1)
    assert found.stage == "vector"
    hit = found.hits[0]
    assert (hit.kind, hit.turn, hit.key) == ("turn", "T-1.1", "T-1.1")
    assert "OAuth tokens rotate every hour." in hit.text
    assert hit.why
    assert [step.name for step in found.steps][:2] == ["keyword", "vector"]
    assert (await session.recall("zebra")).hits[0].turn == "planner/other#T-1.1"


async def test_filters_narrow_what_is_found(session: Session) -> None:
    now = datetime.now(UTC)
    narrowed: list[dict[str, Any]] = [
        {"line": True},
        {"kinds": "memory"},
        {"kinds": ["memory", "reference"]},
        {"sessions": "planner/auth"},
        {"agents": ["bob"]},
        {"roles": "tool"},
        {"tools": ["Bash"]},
        {"branch": "main"},
        {"task": "bug"},
        {"outcome": "failed"},
        {"tags": {"topic": "zoo"}},
        {"since": now + timedelta(days=1)},
        {"until": now - timedelta(days=1)},
    ]
    for filters in narrowed:
        hits = (await session.recall("zebra deploys", **filters)).hits
        assert not any("zebra" in hit.text for hit in hits), filters
    kept: list[dict[str, Any]] = [
        {"kinds": "turn"},
        {"sessions": ("planner/other",)},
        {"agents": "planner"},
        {"roles": ["user"]},
        {"since": now - timedelta(days=1), "until": now + timedelta(days=1)},
        {"wide": True, "deadline": 5},
        {"judged": True},
    ]
    for filters in kept:
        hits = (await session.recall("zebra deploys", **filters)).hits
        assert any("The zebra deploys" in hit.text for hit in hits), filters


@pytest.mark.parametrize(
    ("query", "given", "says"),
    [
        ("", {}, "The query is empty. Say what to look for."),
        (" \n", {}, "The query is empty"),
        (7, {}, "query is a int"),
        ("x", {"limit": 0}, "limit is 0. Give a whole number from 1 to 1,000."),
        ("x", {"limit": True}, "limit is True"),
        ("x", {"limit": 1_001}, "limit is 1001"),
        ("x", {"kinds": "turns"}, "kinds cannot be 'turns'. Use turn, memory, reference."),
        ("x", {"kinds": 3}, "kinds is 3"),
        ("x", {"roles": ["human"]}, "Use user, assistant, tool."),
        ("x", {"sessions": [""]}, "sessions cannot be ''"),
        ("x", {"sessions": []}, "sessions is empty: nothing could be found. Leave sessions out"),
        ("x", {"agents": [None]}, "agents cannot be None"),
        ("x", {"tags": {"a": 1}}, "cannot be tags"),
        ("x", {"since": "tomorrow"}, "is no time"),
        ("x", {"deadline": 0}, "deadline is 0"),
        ("x", {"deadline": float("nan")}, "deadline is nan"),
        ("x", {"branch": 7}, "branch is a int"),
        (
            "x",
            {"since": datetime(2026, 2, 2, tzinfo=UTC), "until": datetime(2026, 2, 1, tzinfo=UTC)},
            "Swap since and until",
        ),
    ],
)
async def test_what_cannot_be_meant_is_refused(
    bank: Bank, query: Any, given: dict[str, Any], says: str
) -> None:
    session = await bank.session("planner/auth")
    with pytest.raises(perdure.InvalidInput) as caught:
        await session.recall(query, **given)
    assert says in str(caught.value)


async def test_what_an_importer_knows_of_a_session_is_filtered_by(bank: Bank) -> None:
    session = await bank.session("planner/auth", state={"branch": "main", "pid": 7})
    await remember(session, "OAuth tokens rotate.")
    await bank.settle()
    assert (await session.recall("oauth tokens", branch="main")).hits
    assert not (await session.recall("oauth tokens", branch="fix")).hits
    await bank.index.rebuild()
    assert (await session.recall("oauth tokens", branch="main")).hits


@pytest.mark.parametrize("query", ["x", "the of", '"OR* NEAR(', "令牌", "\ud800", "word " * 10_000])
async def test_any_query_is_answered_also_by_an_empty_bank(bank: Bank, query: str) -> None:
    session = await bank.session("planner/auth")
    assert not (await session.recall(query)).hits
    await talk(session, 2)
    await session.recall(query)


def test_the_same_without_await() -> None:
    with perdure.open_sync("memory://") as bank:
        session = bank.session("planner/auth")
        session.append([user("OAuth tokens rotate."), assistant("ok")])
        assert session.recall("oauth tokens").hits[0].turn == "T-1.1"
