"""Searching turns by words."""

from __future__ import annotations

import asyncio

import pytest

import perdure
from perdure.core.messages import Message, Text, ToolCall, ToolResult, assistant, user
from perdure.history.turn_reader import TurnReader
from perdure.history.turn_search import FoundTurn, search


@pytest.fixture
async def session() -> perdure.Session:  # type: ignore[misc]
    async with perdure.open("memory://") as bank:
        yield await bank.session("planner/auth")


async def find(session: perdure.Session, query: str, limit: int = 5) -> list[FoundTurn]:
    reader = TurnReader(session._services.store)
    ignore = {"history_get_turn"}
    head = await session.head()
    return await search(reader, session.record, head, query, limit, ignore=ignore)


async def test_the_newest_first_and_rounds_by_their_ids(session: perdure.Session) -> None:
    call = ToolCall("c1", "shell", '{"command": "cat oauth.py"}')
    await session.append([user("How does the token refresh work?"), assistant("By a timer.")])
    await session.append(
        [
            user("Look."),
            Message("assistant", (call,)),
            Message("tool", (ToolResult("c1", (Text("x = 1\nTOKEN = refresh()\n"),)),)),
            assistant("The refresh of the token is there."),
        ]
    )
    found = await find(session, "token refresh")
    assert [each.id for each in found] == ["T-2.1", "T-1.1"]
    assert "TOKEN = refresh()" in found[0].line
    assert found[1].line == "How does the token refresh work? By a timer."
    assert [each.id for each in await find(session, "token refresh", 1)] == ["T-2.1"]


async def test_most_of_the_words_will_do_if_not_all_are_there(session: perdure.Session) -> None:
    await session.append([user("alpha beta"), assistant("ok")])
    await session.append([user("alpha"), assistant("ok")])
    await session.append([user("alpha beta gamma"), assistant("ok")])
    found = await find(session, "alpha beta gamma delta")
    assert [(each.id, each.words) for each in found] == [("T-3.1", 3), ("T-1.1", 2)]
    assert await find(session, "omega") == []
    assert await find(session, "…") == []


async def test_what_was_taken_back_or_fetched_is_not_found(session: perdure.Session) -> None:
    await session.append([user("needle"), assistant("ok")])
    await session.append([user("needle again"), assistant("ok")])
    await session.undo()
    call = ToolCall("c1", "history_get_turn", '{"id": "T-1", "level": "R"}')
    fetched = Message("tool", (ToolResult("c1", (Text("needle"),)),))
    await session.append([user("Go."), Message("assistant", (call,)), fetched, assistant("ok")])
    assert [each.id for each in await find(session, "needle")] == ["T-1.1"]


@pytest.mark.parametrize(
    ("query", "said"),
    [
        ("ozdemir", "Ask Özdemir about it."),
        ("Özdemir", "Ask Ozdemir about it."),
        ("strasse", "Die Straße"),
        ("lodz", "from Łódź"),
        ("istanbul", "in İstanbul"),
        ("token", "two tokens"),
        ("retry", "it was retried"),
        ("retries", "one retry"),
        ("planning", "our plan"),
        ("plan", "as planned"),
        ("caching", "the cache"),
        ("boxes", "a box"),
        ("called", "it calls home"),
        ("keys", "the key"),
        ("getUsers", "getUser is called"),
        ("getUser", "getUsers are called"),
        ("URLs", "URL is empty"),
        ("PRs", "prs are open"),
    ],
)
async def test_accents_and_simple_endings(session: perdure.Session, query: str, said: str) -> None:
    await session.append([user(said), assistant("ok")])
    (found,) = await find(session, query)
    assert found.line.startswith(said)


@pytest.mark.parametrize(
    ("query", "said"), [("notes", "not this"), ("note", "not this"), ("uses", "for us")]
)
async def test_other_words_are_other_words(session: perdure.Session, query: str, said: str) -> None:
    await session.append([user(said), assistant("ok")])
    assert await find(session, query) == []


async def test_the_phrase_itself_comes_first(session: perdure.Session) -> None:
    await session.append([user("the token refresh"), assistant("ok")])
    await session.append([user("Token-Refresh is late"), assistant("ok")])
    await session.append([user("refresh that token"), assistant("ok")])
    await session.append([user("refreshed tokens"), assistant("ok")])
    await session.append([user("only a token"), assistant("ok")])
    found = await find(session, "token refresh")
    assert [each.id for each in found] == ["T-2.1", "T-1.1", "T-4.1", "T-3.1", "T-5.1"]
    assert [each.phrase for each in found] == [True, True, False, False, False]
    # Also if enough others are found before it.
    assert [each.id for each in await find(session, "token refresh", 1)] == ["T-2.1"]
    assert [each.id for each in await find(session, "tokens", 1)] == ["T-4.1"]


async def test_others_get_a_turn_while_turns_are_read(session: perdure.Session) -> None:
    for number in range(40):
        await session.append([user(f"Where is zebra {number}?"), assistant("Here.")])
    reading = asyncio.create_task(find(session, "giraffe"))
    turns = 0
    while not reading.done():
        await asyncio.sleep(0)
        turns += 1
    assert await reading == []
    assert turns >= 40
