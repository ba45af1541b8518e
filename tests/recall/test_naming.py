"""A question that is a key, or has one, finds what that names first of all."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable

import pytest

from perdure.bank import Bank
from perdure.core.messages import Message, Text, ToolCall, ToolResult, assistant, user
from perdure.recall.values import Hit
from perdure.sessions.session import Session
from tests.recall.tied import bank_with


@pytest.fixture
async def bank() -> AsyncIterator[Bank]:
    async with bank_with() as bank:
        yield bank


@pytest.fixture
async def session(bank: Bank) -> Session:
    session = await bank.session("planner/auth")
    for number in range(1, 7):
        await session.append([user(f"Parrot {number} sings T-{number + 1}."), assistant("Nice.")])
    call = ToolCall("c1", "listen", '{"to": "the gramophone"}')
    await session.append(
        [
            user("Play it."),
            Message("assistant", (call,)),
            Message("tool", (ToolResult("c1", (Text("crackling"),)),)),
            assistant("It plays."),
        ]
    )
    await bank.settle()
    return session


def _keys(hits: Iterable[Hit]) -> list[str]:
    return [hit.key for hit in hits]


@pytest.mark.parametrize(
    ("query", "key"),
    [
        ("T-4", "T-4.1"),
        ("T-7.2", "T-7.2"),
        ("planner/auth#T-3", "T-3.1"),
        ("what was T-2 about?", "T-2.1"),
        ("(see T-5)", "T-5.1"),
        ("t-4", "T-4.1"),
        ("planner/auth#t-3?", "T-3.1"),
        ("T-5-C", "T-5.1"),
        ("<T-7.2-R>", "T-7.2"),
        ("what is in T-2-through-4-T?", "T-2.1"),
    ],
)
async def test_a_key_of_a_turn_finds_it_first(session: Session, query: str, key: str) -> None:
    for judged in (False, True):
        found = await session.recall(query, deadline=30, judged=judged)
        assert found.hits[0].key == key
        assert found.hits[0].why == "the question names it"
        assert found.hits[0].time > 0
        assert found.notes == ()
        assert _keys(found.hits).count(key) == 1


async def test_a_key_of_a_memory_finds_it_first(bank: Bank, session: Session) -> None:
    for text in ("Feed the parrots at noon.", "The gramophone is broken."):
        await bank.memories.add("planner", text, kind="fact")
    assert _keys((await session.recall("M-2", deadline=30)).hits)[0] == "M-2"
    assert _keys((await session.recall("planner/M-1", deadline=30)).hits)[0] == "M-1"
    small = (await session.recall("m-2", deadline=30)).hits[0]
    assert (small.key, small.why) == ("M-2", "the question names it")
    assert small.time > 0


@pytest.mark.parametrize(
    "query", ["T-99", "T-4.9", "M-8", "XT-4", "T-4x", "nobody/here#T-1", "t-4 minutes"]
)
async def test_what_is_not_there_is_not_named(session: Session, query: str) -> None:
    found = await session.recall(query, deadline=30)
    assert "the question names it" not in [hit.why for hit in found.hits]


async def test_what_may_not_be_seen_is_not_named(bank: Bank, session: Session) -> None:
    await bank.memories.add("planner", "The zebra password is hunter2.", kind="fact")
    other = await bank.session("coder/auth")
    for query in ("planner/auth#T-4", "planner/M-1", "T-4"):
        assert _keys((await other.recall(query, deadline=30)).hits) == []
    await session.share("coder")
    shared = (await other.recall("planner/auth#T-4", deadline=30)).hits
    assert _keys(shared)[0] == "planner/auth#T-4.1"
    assert _keys((await session.recall("T-4", kinds="memory", deadline=30)).hits) == []
    by_user = await session.recall("T-7.2", roles="user", deadline=30)
    assert "T-7.2" not in _keys(by_user.hits)


async def test_a_key_of_nothing_is_told(bank: Bank, session: Session) -> None:
    await bank.memories.add("planner", "Feed the parrots at noon.")
    await bank.memories.retire("planner/M-1")
    await bank.memories.add("coder", "Parrots are loud.")
    await bank.forget("planner/auth", turns=["T-3"])
    await bank.settle()
    turn = "it never was, was taken back or forgotten, or is not for planner to see."
    for key in ("T-99", "T-4.9", "T-3", "planner/none#T-1"):
        found = await session.recall(key, deadline=30)
        assert found.notes == (f"There is no turn {key} here: {turn}",)
    memory = "it never was, was retired or forgotten, or is not for planner to see."
    for key in ("M-99", "M-1", "coder/M-1", "coder/M-2", "nobody/M-1"):
        found = await session.recall(key, deadline=30)
        assert found.notes == (f"There is no memory {key} here: {memory}",)
    assert (await session.recall("What of T-99?", deadline=30)).notes == ()


async def test_what_is_named_is_known_like_what_is_found(session: Session) -> None:
    hit = (await session.recall("T-7", deadline=30)).hits[0]
    assert hit.tools == ("listen",)
