"""Filters that leave nothing: mistakes are refused, and the rest is explained."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

import perdure
from perdure.bank import Bank
from perdure.config import Config
from perdure.core.clock import moment
from perdure.core.messages import Message, Text, ToolCall, ToolResult, assistant, user
from perdure.recall.searching.searcher import Searcher
from perdure.sessions.session import Session
from tests.patience import patient
from tests.recall.tied import bank_with, remember, talk

_FOUR = "Of 4 hits without this filter none"


@pytest.fixture
async def bank() -> AsyncIterator[Bank]:
    async with bank_with() as bank:
        yield bank


@pytest.fixture
async def session(bank: Bank) -> Session:
    """One that asks, beside a fork that left it and what is another agent's own."""
    session = await bank.session("planner/auth", tags={"branch": "main"})
    await session.append(
        [user("OAuth tokens rotate."), assistant("I see.")], tags={"topic": "auth"}
    )
    looked = (
        Message("assistant", (ToolCall("c1", "Bash", '{"command": "grep tokens"}'),)),
        Message("tool", (ToolResult("c1", (Text("tokens.py"),)),)),
    )
    await session.append([user("Where are the tokens?"), *looked, assistant("There.")])
    fork = await session.fork("planner/fork", at="T-1")
    await remember(fork, "The tokens of the fork.")
    await remember(await bank.session("planner/zoo"), "The zebra eats tokens.")
    await remember(await bank.session("bob/private"), "Tokens of bob.")
    await bank.session("planner/empty")
    await bank.session("planner/c617-a-session-of-a-tool")
    await bank.memories.add("cy", "Tokens are fun.", kind="fact")
    await bank.settle()
    return session


@pytest.mark.parametrize(
    ("filters", "says"),
    [
        ({"sessions": "planner/zo"}, "There is no session 'planner/zo'. Did you mean planner/zoo?"),
        ({"sessions": ["planner/auth", "zoo"]}, "Did you mean planner/zoo?"),
        # Names of others are not told.
        ({"sessions": "bob/privat"}, "There is no session 'bob/privat'. None that planner sees"),
        ({"sessions": "planner/c617"}, "Did you mean planner/c617-a-session-of-a-tool?"),
        ({"sessions": "a/b/c"}, "There is no session 'a/b/c'."),
        ({"agents": "planer"}, "There is no agent 'planer'. Did you mean planner?"),
        ({"agents": "bobby"}, "There is no agent 'bobby'. None that planner sees is like"),
        ({"agents": "plan"}, "There is no agent 'plan'. Did you mean planner?"),
        ({"agents": "planner/auth"}, "There is no agent 'planner/auth'. Name an agent, no"),
        ({"line": "T-1"}, "line is 'T-1'. Give line=True or line=False."),
        ({"wide": 1}, "wide is 1."),
        ({"judged": "no"}, "judged is 'no'."),
        ({"limit": 10**9}, "Give a whole number from 1 to 1,000."),
        ({"limit": -1}, "limit is -1."),
        ({"deadline": -1}, "deadline is -1. Give seconds above 0"),
        ({"since": 7}, "7 is no time."),
    ],
)
async def test_what_cannot_be_meant_is_refused(
    session: Session, filters: dict[str, Any], says: str
) -> None:
    with pytest.raises(perdure.InvalidInput) as caught:
        await session.recall("tokens", **filters)
    assert says in str(caught.value)


@pytest.mark.parametrize(
    ("filters", "notes"),
    [
        ({"sessions": "bob/private"}, ["bob/private is not shared with planner."]),
        (
            {"sessions": "planner/fork"},
            ["planner/fork left the line of planner/auth: only a wide search sees it."],
        ),
        (
            {"sessions": "planner/empty"},
            [f"{_FOUR} is of planner/empty; there is planner/auth, planner/zoo."],
        ),
        ({"agents": "bob"}, ["Nothing of bob is shared with planner."]),
        ({"agents": "cy"}, ["Nothing of cy is shared with planner."]),
        (
            {"branch": "mian", "line": True},
            ["Of 3 hits without this filter none has branch 'mian'; there is 'main'."],
        ),
        (
            {"outcome": "failed", "line": True},
            ["Of 3 hits without this filter none has outcome 'failed' or any other."],
        ),
        (
            {"tools": ["bash", "grep"], "line": True},
            ["Of 3 hits without this filter none called bash or grep; they called Bash."],
        ),
        (
            {"tags": {"topic": "auth"}, "tools": "Bash"},
            ["Some hits meet one of these filters, but none meets all of them."],
        ),
        (
            {"kinds": ["memory", "reference"]},
            [f"{_FOUR} is a memory or reference; they are turns."],
        ),
        (
            {"roles": "tool", "sessions": "planner/zoo"},
            ["Of 1 hit without this filter none has the words in what the tool said."],
        ),
        (
            {"roles": "tool", "kinds": "memory"},
            ["Of 4 hits without these filters none is a memory; they are turns."],
        ),
    ],
)
async def test_a_note_says_why_filters_left_nothing(
    session: Session, filters: dict[str, Any], notes: list[str]
) -> None:
    found = await session.recall("tokens", **filters)
    assert list(found.hits) == []
    assert list(found.notes) == notes


async def test_nothing_is_noted_where_something_is_found(bank: Bank, session: Session) -> None:
    kept: list[dict[str, Any]] = [
        {},
        {"wide": True, "sessions": "planner/fork"},
        {"branch": "main"},
    ]
    for filters in kept:
        found = await session.recall("tokens", **filters)
        assert found.hits
        assert found.notes == ()
    shared = await bank.existing_session("bob/private")
    await shared.share("planner")
    assert (await session.recall("tokens", agents="bob")).hits
    assert not (await session.recall("xyzzy", kinds="memory")).notes


async def test_a_deadline_that_has_passed_is_noted(session: Session) -> None:
    found = await session.recall("tokens", deadline=1e-9)
    assert (found.stage, list(found.hits)) == ("none", [])
    assert found.notes == ("Nothing had arrived at the deadline.",)


async def test_a_model_is_not_told_which_sessions_there_are(session: Session) -> None:
    said = {
        name: await session.run_tool("recall", {"query": "tokens", "session": name})
        for name in ("bob/private", "bob/nothing", "planner/fork")
    }
    for name, text in said.items():
        assert text.startswith(f"There is no session {name} that you may see.")
    assert len({text.replace(name, "") for name, text in said.items()}) == 1
    for name in ("", "planner/zoo", "planner/auth"):
        found = await session.run_tool("recall", {"query": "tokens", "session": name})
        assert found.startswith("Best first.")


@pytest.mark.parametrize("name", ["recall", "keep"])
async def test_switches_of_a_context_are_switches(bank: Bank, name: str) -> None:
    session = await bank.session("planner/auth")
    switches: dict[str, Any] = {name: "x"}
    with pytest.raises(perdure.InvalidInput, match=f"{name} is 'x'"):
        await session.context("Hello", **switches)


async def test_times_are_what_people_write(bank: Bank) -> None:
    session = await bank.session("planner/auth")
    await remember(session, "OAuth tokens rotate.")
    await talk(session, 2)
    naive = datetime(2020, 1, 1)  # noqa: DTZ001 (in the local time zone)
    for since in ("1d", "2020-01-01", "2020-01-01 16:00", naive, naive.date(), timedelta(1)):
        assert (await session.recall("oauth", since=since)).hits, since
        assert not (await session.recall("oauth", until=since)).hits, since


async def test_a_day_is_found_from_its_beginning_to_its_end(bank: Bank) -> None:
    session = await bank.session("planner/auth")
    then = moment("2025-10-31 16:02", 0)
    said = [user("OAuth tokens rotate."), assistant("I see.")]
    await session.append(said, times=(then, then))
    assert (await session.recall("oauth", since="2025-10-31", until="2025-10-31")).hits
    assert await session.turns(since="2025-10-31", until="2025-10-31")
    assert not (await session.recall("oauth", until="2025-10-30")).hits
    assert not (await session.recall("oauth", since="2025-11-01")).hits


@pytest.mark.parametrize("url", ["memory://", "sqlite:///{}/new.db"])
async def test_an_index_that_nothing_is_missing_in_is_complete(url: str, tmp_path: Path) -> None:
    url = url.format(tmp_path)
    async with Bank(url) as bank:
        session = await bank.session("planner/auth")
        assert not (await session.recall("tokens")).notes  # there is nothing yet
        await remember(session, "OAuth tokens rotate.")
        assert "not complete" not in str((await session.recall("zebra")).notes)
    if url.startswith("sqlite"):  # closed before anything was done in the background
        bank = Bank(url)
        async with bank.looked_at():
            session = await bank.existing_session("planner/auth")
            assert "not complete" not in str((await session.recall("zebra")).notes)


async def test_a_note_says_when_it_was_said(bank: Bank) -> None:
    session = await bank.session("planner/auth")
    for day in ("2025-10-30 11:00", "2025-11-01 12:30"):
        said, then = [user("OAuth tokens rotate."), assistant("I see.")], moment(day, 0)
        await session.append(said, times=(then, then))
    await bank.settle()
    expected: list[tuple[dict[str, Any], str]] = [
        ({"since": "2026-11-13"}, "is since 2026-11-13; the newest of them is of 2025-11-01"),
        ({"until": "2025-10-29"}, "is until 2025-10-29; the oldest of them is of 2025-10-30"),
        (
            {"since": "2025-11-01 13:00"},
            "is since 2025-11-01 13:00; the newest of them is of 2025-11-01 12:30",
        ),
    ]
    for filters, says in expected:
        found = await session.recall("oauth", **filters)
        assert (found.hits, found.notes) == ((), (f"Of 2 hits without this filter none {says}.",))
    found = await session.recall("oauth", since="2025-10-31", until="2025-10-31")
    assert found.notes == ("Some hits meet one of these filters, but none meets all of them.",)


async def test_a_note_says_that_the_line_has_nothing_of_it(session: Session, bank: Bank) -> None:
    empty = await bank.existing_session("planner/empty")
    found = await empty.recall("tokens", line=True)
    (note,) = found.notes
    assert note.startswith("Of 5 hits without this filter none is of this session's line;")
    assert note.endswith("; there is planner/auth, planner/fork, planner/zoo.")
    other = await bank.existing_session("planner/zoo")
    found = await other.recall("rotate", line=True)  # its own turn is merely the next best
    assert found.notes == ("What meets this filter is too far from what is asked for.",)


async def test_a_note_says_that_meaning_was_late(monkeypatch: pytest.MonkeyPatch) -> None:
    async def never(*_: object) -> None:
        await asyncio.Event().wait()

    monkeypatch.setattr(Searcher, "_near", never)
    async with Bank("memory://", config=Config(recall=patient(vectors=0.01))) as bank:
        session = await bank.session("planner/auth")
        await remember(session, "OAuth tokens rotate.")
        await bank.settle()
        found = await session.recall("OAuth tokens")
        assert found.hits
        assert found.notes == (
            "Found by words only: what is similar in meaning was late. Ask again.",
        )
