"""Forks share turns without copying them; what is shared is never orphaned."""

from __future__ import annotations

import asyncio

import pytest

from perdure.bank import Bank
from perdure.core.errors import Conflict, InvalidInput
from perdure.core.messages import Message, Text, assistant, user
from perdure.history.log_records import Link, TurnPiece
from perdure.sessions.session import Session
from perdure.testing import ManualClock
from tests.history.conftest import everywhere
from tests.history.talk import (
    call,
    chat,
    fill,
    numbers,
    one,
    problems,
    result,
    said,
    texts,
    whole,
    work,
)


@pytest.fixture
def recalls() -> bool:
    """The index has a part in forgetting."""
    return True


def chats(*wanted: int) -> list[Message]:
    return [message for number in wanted for message in chat(number)]


async def assert_whole(session: Session, *wanted: int) -> None:
    """The session has these turns, numbered from 1, in every way of reading them."""
    assert await said(session) == chats(*wanted)
    turns = await session.turns(99)
    assert numbers(turns) == list(range(1, len(wanted) + 1))
    for number, each in enumerate(wanted, 1):
        turn = await session.turn(number)
        assert turn.messages == tuple(chat(each))
        assert turn.session == session.name


@everywhere
async def test_a_fork_shares_turns_and_goes_on_behind_them(bank: Bank, session: Session) -> None:
    await fill(session, 60)
    before = await bank.collection(TurnPiece).query().count()
    fork = await session.fork("coder/auth", at="T-50")
    assert await bank.collection(TurnPiece).query().count() == before
    assert one(await fork.append(chat(151))).id == "T-51"
    await assert_whole(fork, *range(1, 51), 151)
    await assert_whole(session, *range(1, 61))
    assert (fork.agent, fork.record.parent, fork.record.forked_at) == ("coder", "planner/auth", 50)
    assert await problems(bank) == []


async def test_a_fork_at_every_turn(bank: Bank, session: Session) -> None:
    await fill(session, 4)
    for at in range(1, 5):
        fork = await session.fork(f"planner/at-{at}", at=at)
        await assert_whole(fork, *range(1, at + 1))
        assert one(await fork.append(chat(100))).number == at + 1
        await assert_whole(fork, *range(1, at + 1), 100)
    newest = await session.fork("planner/newest")
    await assert_whole(newest, 1, 2, 3, 4)
    assert await problems(bank) == []


async def test_what_cannot_be_forked(bank: Bank, session: Session) -> None:
    with pytest.raises(InvalidInput, match="Append something first"):
        await session.fork("planner/fork")
    await fill(session, 2)
    for wrong in (0, 3, "T-9"):
        with pytest.raises(InvalidInput, match="no turn"):
            await session.fork("planner/fork", at=wrong)
    with pytest.raises(InvalidInput, match="cannot be the name"):
        await session.fork("fork")
    await bank.session("planner/taken")
    for taken in ("planner/taken", "planner/auth"):
        with pytest.raises(Conflict):
            await session.fork(taken)
    assert len(await bank.sessions()) == 2


@everywhere
async def test_a_fork_is_made_while_others_write_to_its_parent(
    bank: Bank, session: Session
) -> None:
    await fill(session, 2)
    writing = True

    async def write() -> None:
        other = await bank.existing_session(session.name)
        while writing:
            await other.append(chat(3))

    writer = asyncio.create_task(write())
    forks = [await session.fork(f"planner/fork-{number}", at=2) for number in range(40)]
    writing = False
    await writer
    for fork in forks:
        await assert_whole(fork, 1, 2)
    with pytest.raises(Conflict, match="There is a session planner/fork-7 already"):
        await session.fork("planner/fork-7")
    assert await problems(bank) == []


@everywhere
async def test_what_is_added_to_the_parent_later_is_invisible(bank: Bank, session: Session) -> None:
    await session.append([*chat(1), user("2"), call("c")])
    fork = await session.fork("planner/fork")
    await session.append([result("c"), assistant("done"), *chat(3)])
    assert texts(await said(fork)) == ["prompt 1", "reply 1", "2", ""]
    assert len(await said(session)) == 8
    await bank.settle()
    assert texts((await fork.turn(2)).messages) == ["2", ""]
    # Not the parent's count of a round that went on.
    assert (await fork.turn(2)).tokens != (await session.turn("T-2.1")).tokens
    await fork.append(chat(3))
    assert numbers(await whole(fork)) == [1, 2, 3]
    assert await problems(bank) == []


@everywhere
async def test_a_fork_of_a_fork(bank: Bank, session: Session) -> None:
    await fill(session, 4)
    child = await session.fork("planner/child", at=3)
    await fill(child, 3, first=14)  # T-4 to T-6
    grandchild = await child.fork("planner/grandchild", at=5)
    await fill(grandchild, 2, first=26)  # T-6 and T-7
    below = await grandchild.fork("planner/below", at=2)
    await fill(below, 1, first=33)
    at_the_edge = await grandchild.fork("planner/edge", at=3)
    await fill(at_the_edge, 1, first=44)
    await fill(session, 1, first=5)
    await fill(child, 1, first=17)

    await assert_whole(session, 1, 2, 3, 4, 5)
    await assert_whole(child, 1, 2, 3, 14, 15, 16, 17)
    await assert_whole(grandchild, 1, 2, 3, 14, 15, 26, 27)
    await assert_whole(below, 1, 2, 33)
    await assert_whole(at_the_edge, 1, 2, 3, 44)
    again = await bank.existing_session("planner/grandchild")
    await assert_whole(again, 1, 2, 3, 14, 15, 26, 27)
    assert numbers(await grandchild.turns(3, before=5)) == [2, 3, 4]
    assert await problems(bank) == []


async def test_a_fork_of_a_fork_that_has_nothing_of_its_own(bank: Bank, session: Session) -> None:
    await fill(session, 3)
    fork = session
    for depth in range(5):
        fork = await fork.fork(f"planner/depth-{depth}")
    await assert_whole(fork, 1, 2, 3)
    await fill(fork, 1, first=4)
    await assert_whole(fork, 1, 2, 3, 4)
    assert await problems(bank) == []


async def test_a_fork_pages_by_time_and_tag_along_its_line(
    bank: Bank, session: Session, clock: ManualClock
) -> None:
    for number in range(1, 6):
        clock.advance("1h")
        await session.append(chat(number), tags={"parity": str(number % 2)})
    fork = await session.fork("planner/fork", at=3)
    for number in range(4, 7):
        clock.advance("1h")
        await fork.append(chat(number), tags={"parity": str(number % 2)})
    assert numbers(await fork.turns(tags={"parity": "1"})) == [1, 3, 5]
    assert numbers(await fork.turns(2, tags={"parity": "1"})) == [3, 5]
    began = (await fork.turn(2)).started
    from perdure.core.clock import to_datetime

    assert numbers(await fork.turns(since=to_datetime(began))) == [2, 3, 4, 5, 6]
    assert numbers(await fork.turns(3, since=to_datetime(began))) == [4, 5, 6]
    assert numbers(await fork.turns(until=to_datetime(began + 1))) == [1, 2]


async def test_a_fork_follows_its_own_appends(session: Session) -> None:
    await fill(session, 2)
    fork = await session.fork("planner/fork", at=1)
    heard = list[str]()

    async def follow() -> None:
        async for message in fork.tail(after=0):
            heard.append(f"{message.id} {message.message.text}")

    task = asyncio.create_task(follow())
    async with asyncio.timeout(60):
        while len(heard) < 2:  # noqa: ASYNC110 (nobody tells)
            await asyncio.sleep(0.002)
        await session.append(chat(3))
        await fork.append(chat(9))
        while len(heard) < 4:  # noqa: ASYNC110 (nobody tells)
            await asyncio.sleep(0.002)
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    assert heard == ["T-1.1 prompt 1", "T-1.1 reply 1", "T-2.1 prompt 9", "T-2.1 reply 9"]


async def test_the_tree_can_be_listed(bank: Bank, session: Session) -> None:
    await fill(session, 4)
    child = await session.fork("planner/child", at=3)
    await fill(child, 2, first=4)
    await child.fork("coder/grandchild", at=2)
    link = Link("planner/auth", "call_1", 2)
    await bank.session("coder/helper", link=link)
    tree = {info.name: (info.parent, info.forked_at, info.link) for info in await bank.sessions()}
    assert tree == {
        "planner/auth": (None, None, None),
        "planner/child": ("planner/auth", 3, None),
        "coder/grandchild": ("planner/child", 2, None),
        "coder/helper": (None, None, link),
    }


async def test_a_fork_keeps_what_the_session_knows(bank: Bank) -> None:
    session = await bank.session("a/b", type="chat", state={"x": 1}, tags={"t": "u"})
    await fill(session, 1)
    fork = await session.fork("a/c")
    assert (fork.record.type, fork.state, fork.record.tags) == ("chat", {"x": 1}, {"t": "u"})
    await fork.describe({"x": 2})
    assert (await bank.session("a/b")).state == {"x": 1}


# Turns that were completed late, and turns that were taken back -----------------------------------


async def late(bank: Bank) -> Session:
    """T-1 is completed behind T-2, which is completed behind T-3."""
    first, second = await bank.session("planner/auth"), await bank.session("planner/auth")
    await first.append(user("prompt 1"))
    await second.append(user("prompt 2"))
    await first.append(assistant("reply 1"))
    third = await bank.session("planner/auth")
    await third.append(chat(3))
    await second.append(assistant("reply 2"))
    return first


@pytest.mark.parametrize("at", [1, 2, 3])
async def test_a_fork_has_the_turns_as_they_are_however_late_they_were_completed(
    bank: Bank, at: int
) -> None:
    session = await late(bank)
    fork = await session.fork("planner/fork", at=at)
    await assert_whole(fork, *range(1, at + 1))
    await fill(fork, 2, first=7)
    await assert_whole(fork, *range(1, at + 1), 7, 8)
    assert await problems(bank) == []
    await bank.forget("planner/auth", reroot=True)
    await assert_whole(fork, *range(1, at + 1), 7, 8)
    assert await problems(bank) == []
    grandchild = await fork.fork("planner/grandchild", at=at + 1)
    await assert_whole(grandchild, *range(1, at + 1), 7)
    await bank.forget("planner/fork", reroot=True)
    await assert_whole(grandchild, *range(1, at + 1), 7)
    assert await problems(bank) == []


async def test_forking_goes_on_from_what_was_not_taken_back(bank: Bank, session: Session) -> None:
    await fill(session, 4)
    await session.undo(2)
    fork = await session.fork("planner/fork")
    await assert_whole(fork, 1, 2)
    assert one(await fork.append(chat(3))).number == 3
    await session.undo(2)
    with pytest.raises(InvalidInput):
        await session.fork("planner/nothing")


async def test_forking_from_a_turn_that_was_taken_back_brings_it_back(
    bank: Bank, session: Session
) -> None:
    await fill(session, 3)
    await session.undo()
    await fill(session, 1, first=4)
    fork = await session.fork("planner/fork", at=3)
    await assert_whole(fork, 1, 2, 3)
    kept = await session.fork("planner/kept", at=4)
    assert numbers(await whole(kept)) == [1, 2, 4]
    await kept.append(chat(5))
    assert numbers(await whole(kept)) == [1, 2, 4, 5]
    assert await problems(bank) == []


async def test_taking_back_in_a_fork_leaves_the_parent_alone(session: Session) -> None:
    await fill(session, 3)
    fork = await session.fork("planner/fork", at=3)
    await fill(fork, 1, first=4)
    assert await fork.undo(2) == [3, 4]
    assert numbers(await whole(fork)) == [1, 2]
    assert numbers(await whole(session)) == [1, 2, 3]


# Deleting what is shared ----------------------------------------------------------------------


async def test_a_parent_with_forks_is_not_forgotten(bank: Bank, session: Session) -> None:
    await fill(session, 3)
    fork = await session.fork("planner/fork", at=2)
    with pytest.raises(Conflict, match=r"shares turns with planner/fork"):
        await bank.forget("planner/auth")
    await assert_whole(session, 1, 2, 3)
    await assert_whole(fork, 1, 2)
    await bank.forget("planner/fork")
    await assert_whole(session, 1, 2, 3)
    await bank.forget("planner/auth")
    assert await bank.sessions() == []


@everywhere
async def test_rerooting_keeps_everything_readable(bank: Bank, session: Session) -> None:
    await fill(session, 5)
    child = await session.fork("planner/child", at=4)
    await fill(child, 2, first=15)
    grandchild = await child.fork("planner/grandchild", at=5)
    await fill(grandchild, 1, first=26)
    sibling = await session.fork("planner/sibling", at=2)
    nephew = await sibling.fork("planner/nephew", at=1)
    await fill(nephew, 1, first=32)

    await bank.forget("planner/auth", reroot=True)
    assert {info.name: info.parent for info in await bank.sessions()} == {
        "planner/child": None,
        "planner/grandchild": "planner/child",
        "planner/sibling": None,
        "planner/nephew": "planner/sibling",
    }
    # The sessions that were open when it happened, and those that are opened now.
    for opened in (True, False):
        for fork, turns in {
            child: (1, 2, 3, 4, 15, 16),
            grandchild: (1, 2, 3, 4, 15, 26),
            sibling: (1, 2),
            nephew: (1, 32),
        }.items():
            await assert_whole(fork if opened else await bank.session(fork.name), *turns)
    assert await problems(bank) == []
    for fork in (child, grandchild, sibling, nephew):
        await fork.append(chat(99))
    assert await problems(bank) == []
    await assert_whole(nephew, 1, 32, 99)

    await bank.forget("planner/child", reroot=True)
    await assert_whole(grandchild, 1, 2, 3, 4, 15, 26, 99)
    assert await problems(bank) == []


async def test_rerooting_a_fork_below_the_first_fork_point(bank: Bank, session: Session) -> None:
    await fill(session, 4)
    child = await session.fork("planner/child", at=3)
    await fill(child, 1, first=14)
    below = await child.fork("planner/below", at=2)  # all it has is the grandparent's
    await fill(below, 1, first=23)
    await bank.forget("planner/child", reroot=True)
    await assert_whole(below, 1, 2, 23)
    assert below.record.parent == "planner/auth"
    assert await problems(bank) == []
    with pytest.raises(Conflict):
        await bank.forget("planner/auth")
    await bank.forget("planner/auth", reroot=True)
    await assert_whole(below, 1, 2, 23)
    assert await problems(bank) == []


@pytest.mark.parametrize("names", [("x/a", "x/b"), ("x/b", "x/a")])
async def test_forgetting_an_agent_orphans_no_fork_of_a_fork(
    bank: Bank, names: tuple[str, str]
) -> None:
    """Whichever of the two is looked at first."""
    session = await bank.session(names[0])
    await fill(session, 3)
    child = await session.fork(names[1], at=2)
    await fill(child, 1, first=13)
    staying = await child.fork("y/fork", at=3)
    await fill(staying, 1, first=24)
    with pytest.raises(Conflict):
        await bank.forget_agent("x")
    await assert_whole(staying, 1, 2, 13, 24)
    await bank.forget_agent("x", reroot=True)
    assert [info.name for info in await bank.sessions()] == ["y/fork"]
    await assert_whole(staying, 1, 2, 13, 24)
    assert await problems(bank) == []
    assert await bank.collection(TurnPiece).query().prefix("x/").count() == 0


async def test_a_whole_tree_is_forgotten_at_once(bank: Bank, session: Session) -> None:
    await fill(session, 3)
    child = await session.fork("planner/child", at=2)
    await child.fork("planner/grandchild", at=1)
    forgotten = await bank.forget_agent("planner")
    assert sorted(forgotten.sessions) == ["planner/auth", "planner/child", "planner/grandchild"]
    assert forgotten.turns == 3
    assert await bank.collection(TurnPiece).query().count() == 0


async def test_a_long_stretch_is_rerooted_in_steps(bank: Bank, session: Session) -> None:
    await session.append(chats(*range(1, 231)))
    fork = await session.fork("planner/fork", at=220)
    await bank.forget("planner/auth", reroot=True)
    await assert_whole_quickly(fork, 220)
    assert await problems(bank) == []


async def assert_whole_quickly(session: Session, turns: int) -> None:
    assert await said(session) == chats(*range(1, turns + 1))


async def test_artifacts_of_shared_turns_survive_rerooting(bank: Bank, session: Session) -> None:
    large = Message("user", (Text("x" * 20_000),))
    await session.append([large, assistant("ok")])
    fork = await session.fork("planner/fork")
    await bank.forget("planner/auth", reroot=True)
    turn = await fork.turn(1, resolve=True)
    assert turn.messages[0] == large
    forgotten = await bank.forget("planner/fork")
    assert forgotten.artifacts == 1
    assert [place async for place in bank.artifacts.located()] == []


async def test_a_forgotten_turn_is_forgotten_for_forks_too(bank: Bank, session: Session) -> None:
    await fill(session, 3)
    fork = await session.fork("planner/fork")
    with pytest.raises(InvalidInput, match=r"not a turn of planner/fork's own.*planner/auth"):
        await bank.forget("planner/fork", turns=[2])
    await bank.forget("planner/auth", turns=[2])
    assert (await fork.turn(2)).status == "forgotten"
    assert texts(await said(fork)) == ["prompt 1", "reply 1", "prompt 3", "reply 3"]
    await bank.forget("planner/auth", reroot=True)
    assert (await fork.turn(2)).status == "forgotten"
    assert await problems(bank) == []


async def test_a_turn_in_many_pieces_is_shared_whole(bank: Bank, session: Session) -> None:
    for message in work(1):
        await session.append(message)
    fork = await session.fork("planner/fork")
    assert await said(fork) == work(1)
    await bank.forget("planner/auth", reroot=True)
    assert await said(fork) == work(1)
    assert await problems(bank) == []
