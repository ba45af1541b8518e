"""Reading turns back: pages, times, tags, single turns, and following what is appended."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from perdure.bank import Bank
from perdure.core.errors import InvalidInput
from perdure.core.messages import Message, Text, assistant, user
from perdure.core.turns import Position
from perdure.history.log_records import TurnPiece
from perdure.sessions.session import Session
from perdure.sessions.session_reader import TailMessage
from perdure.testing import ManualClock
from tests.conftest import DURABLE
from tests.history.conftest import MakeBank, everywhere
from tests.history.talk import (
    Ledger,
    call,
    chat,
    fill,
    numbers,
    problems,
    result,
    said,
    shape,
    texts,
    whole,
    work,
)
from tests.waiting import until

DAY = datetime(2026, 1, 1, tzinfo=UTC)


# Pages ----------------------------------------------------------------------------------------


@everywhere
async def test_the_newest_twenty_come_first_and_older_ones_on_demand(session: Session) -> None:
    await session.append([message for number in range(1, 51) for message in chat(number)])
    page = await session.turns()
    assert numbers(page) == list(range(31, 51))
    assert page[-1].messages == tuple(chat(50))
    page = await session.turns(before=page[0].id)
    assert numbers(page) == list(range(11, 31))
    page = await session.turns(before=page[0].id)
    assert numbers(page) == list(range(1, 11))
    assert await session.turns(before=page[0].id) == []


async def test_pages_of_any_size_and_place(session: Session) -> None:
    await fill(session, 5)
    assert numbers(await session.turns(2)) == [4, 5]
    assert numbers(await session.turns(2, before=4)) == [2, 3]
    assert numbers(await session.turns(9, before=Position(3))) == [1, 2]
    assert numbers(await session.turns(9, before="T-99")) == [1, 2, 3, 4, 5]
    assert await session.turns(before=1) == []
    assert await session.turns(before=0) == []
    for wrong in (0, -1):
        with pytest.raises(InvalidInput, match="1 or more"):
            await session.turns(wrong)


async def test_an_empty_session_has_no_pages(session: Session) -> None:
    assert await session.turns() == []
    assert await whole(session) == []
    with pytest.raises(InvalidInput, match="no turns yet"):
        await session.turn(1)


async def test_undone_turns_do_not_count_for_a_page(session: Session) -> None:
    await fill(session, 6)
    await session.undo(2)
    await fill(session, 1, first=7)
    assert numbers(await session.turns(3)) == [3, 4, 7]
    assert numbers(await session.turns(3, undone=True)) == [5, 6, 7]
    assert numbers(await session.turns(9, since=datetime(1970, 1, 1, tzinfo=UTC))) == [
        1,
        2,
        3,
        4,
        7,
    ]


async def test_a_page_is_read_in_a_few_steps_however_long_the_session_is(
    make_bank: MakeBank,
) -> None:
    ledger = Ledger()
    bank = await make_bank(middleware=(ledger,))
    session = await bank.session("a/b")
    looks = list[list[str]]()
    for start in (1, 1_000):
        await session.append([m for n in range(start, start + 500) for m in chat(n)])
        await bank.settle()
        ledger.kinds()
        await session.turns()
        await session.turn(200)
        looks.append(ledger.kinds())
    assert looks[0] == looks[1]
    assert len(looks[0]) <= 6


# By time and tag ------------------------------------------------------------------------------


@everywhere
async def test_turns_by_time(session: Session, clock: ManualClock) -> None:
    clock.set(DAY)
    for number in range(1, 31):
        await session.append(work(number))
        clock.advance("1d")
    later = DAY + timedelta(days=9, hours=1)
    assert numbers(await session.turns(since=later)) == list(range(11, 31))
    assert numbers(await session.turns(until=later)) == list(range(1, 11))
    assert numbers(await session.turns(5, since=later, until=later + timedelta(days=3))) == [
        *(11, 12, 13),
    ]
    assert numbers(await session.turns(4, until=later)) == [7, 8, 9, 10]
    assert numbers(await session.turns(4, until=later, before=7)) == [3, 4, 5, 6]
    # From the moment of its first message on, and not at that of the next turn's.
    exact = DAY + timedelta(days=9)
    assert numbers(await session.turns(since=exact, until=exact + timedelta(days=1))) == [10]


@everywhere
async def test_a_clock_that_jumps_back_hides_no_turn_from_paging_by_time(
    session: Session, clock: ManualClock
) -> None:
    for number in range(1, 46):
        # Back by a day at 16 and at 31.
        clock.set(DAY + timedelta(days=-((number - 1) // 15), minutes=number))
        await session.append(chat(number))
    since = DAY - timedelta(days=9)
    pages = list[int]()
    before: int | None = None
    while page := await session.turns(20, since=since, before=before):
        assert numbers(page) == sorted(numbers(page))
        pages = numbers(page) + pages
        before = page[0].number
    assert pages == list(range(1, 46))
    assert numbers(await session.turns(99, since=DAY)) == list(range(1, 16))
    yesterday = DAY - timedelta(days=1)
    assert numbers(await session.turns(99, since=yesterday, until=DAY)) == list(range(16, 31))
    assert numbers(await session.turns(99, until=yesterday)) == list(range(31, 46))


async def test_many_turns_of_one_moment(session: Session) -> None:
    """More than one page of the database has."""
    await session.append([message for number in range(1, 301) for message in chat(number)])
    since = datetime(1970, 1, 1, tzinfo=UTC)
    assert numbers(await session.turns(290, since=since)) == list(range(11, 301))
    assert numbers(await session.turns(20, since=since, before=150)) == list(range(130, 150))


async def test_times_without_a_zone_are_local(session: Session, clock: ManualClock) -> None:
    local = datetime(2026, 1, 1)  # noqa: DTZ001 (it is what is tested)
    clock.set(local.astimezone() - timedelta(hours=1))
    for number in (1, 2, 3):
        await session.append(chat(number))
        clock.advance("1h")
    assert numbers(await session.turns(since=local)) == [2, 3]


@everywhere
async def test_turns_by_tag(session: Session, clock: ManualClock) -> None:
    clock.set(DAY)
    for number in range(1, 31):
        clock.advance("1h")
        await session.append(
            chat(number), tags={"parity": "odd" if number % 2 else "even", "n": str(number % 3)}
        )
    await session.append(chat(31))
    assert numbers(await session.turns(tags={"parity": "odd"})) == list(range(1, 31, 2))
    assert numbers(await session.turns(3, tags={"parity": "odd"})) == [25, 27, 29]
    assert numbers(await session.turns(3, tags={"parity": "odd"}, before=25)) == [19, 21, 23]
    assert numbers(await session.turns(tags={"parity": "even", "n": "0"})) == [6, 12, 18, 24, 30]
    half = DAY + timedelta(hours=15)
    assert numbers(await session.turns(tags={"parity": "even", "n": "0"}, until=half)) == [6, 12]
    assert await session.turns(tags={"parity": "none"}) == []


async def test_tags_go_to_each_turn_that_begins(session: Session) -> None:
    await session.append([*chat(1), *chat(2), user("3")], tags={"a": "1"})
    await session.append(assistant("3"), tags={"b": "2"})
    assert [turn.tags for turn in await whole(session)] == [{"a": "1"}] * 3
    assert await session.turns(tags={"b": "2"}) == []


# Single turns ---------------------------------------------------------------------------------


@everywhere
async def test_one_turn_or_one_round_of_it(session: Session) -> None:
    await session.append([*chat(1), *work(2), *chat(3)])
    assert (await session.turn("T-2")).messages == tuple(work(2))
    assert (await session.turn(2)).messages == tuple(work(2))
    assert (await session.turn("planner/auth#T-2")).messages == tuple(work(2))
    assert (await session.turn("T-2.1")).messages == tuple(work(2)[:3])
    assert (await session.turn("planner/auth#T-2.2")).messages == tuple(work(2)[3:])
    with pytest.raises(InvalidInput, match=r"no turn T-4.*newest is T-3"):
        await session.turn(4)
    with pytest.raises(InvalidInput, match=r"no round 3"):
        await session.turn("T-2.3")
    with pytest.raises(InvalidInput, match=r"not a turn of planner/auth"):
        await session.turn("planner/other#T-2")


@pytest.mark.slow
async def test_a_turn_of_a_thousand_rounds(bank: Bank, session: Session) -> None:
    messages = [user("go")]
    for number in range(1_000):
        messages += [call(f"c{number}"), result(f"c{number}", text=f"line {number}\n" * 9)]
    for start in range(0, len(messages), 300):
        await session.append(messages[start : start + 300])
    await session.append(assistant("done"))
    turn = await session.turn(1)
    assert turn.messages == (*messages, assistant("done"))
    assert [round.number for round in turn.rounds] == list(range(1, 1_002))
    assert (await session.turn("T-1.500")).messages == tuple(messages[999:1001])
    await bank.settle()
    assert (await session.turn(1)).tokens is not None


@everywhere
async def test_what_was_written_is_what_is_read(bank: Bank, session: Session) -> None:
    rich = [
        Message(
            "user",
            (Text("a\x00b \U0001f600 </T-1> \u202e"),),
            id="m",
            name="ada",
            time=5,
            wire="chat",
            native={"chat": {"x": [1, None, {"y": 0.5}], "empty": {}}},
        ),
        Message("assistant", (Text(""),), model="m", partial=True),
        Message("user", ()),
    ]
    await session.append(rich)
    assert await said(session) == rich
    assert await problems(bank) == []


async def test_reading_does_not_see_what_comes_after_its_head(bank: Bank, session: Session) -> None:
    await session.append(user("1"))
    head = await session.head()
    await session.append([assistant("1"), *chat(2)])
    reader = session._services.reader
    (turn,) = await reader.turns(session.record, head, 1, 99)
    assert texts(turn.messages) == ["1"]
    assert turn.status == "open"


async def test_a_piece_that_is_damaged_is_named(bank: Bank, session: Session) -> None:
    await session.append(chat(1))
    pieces = bank.collection(TurnPiece)
    (piece,) = await pieces.query().values()
    broken = TurnPiece(id=piece.id, content=b"\xc1", link=piece.link, round=1, time=1, ended=1)
    await pieces.put(broken)
    with pytest.raises(Exception, match=r"planner/auth/00000001.00000001 cannot be read"):
        await session.turns()


# Following ------------------------------------------------------------------------------------


class Follower:
    """Collects what a session's tail yields, in the background."""

    def __init__(self, session: Session, **options: Any) -> None:
        self.heard: list[TailMessage] = []
        self._session = session
        self._stream: AsyncIterator[TailMessage] = session.tail(**options)
        self._task = asyncio.create_task(self._follow())

    async def _follow(self) -> None:
        async for message in self._stream:
            self.heard.append(message)

    async def begun(self) -> None:
        """Wait until it waits for what comes next."""
        watchers, name = self._session._services.log._watchers, self._session.name
        await until(lambda: any(event._waiters for event in watchers.get(name, ())))

    async def until(self, count: int) -> list[str]:
        """What was heard, once it is so much; where, and the words."""
        async with asyncio.timeout(60):
            while len(self.heard) < count:  # noqa: ASYNC110 (nobody tells)
                await asyncio.sleep(0.002)
        return [f"{each.id} {texts([each.message])[0]}" for each in self.heard]

    async def stop(self) -> None:
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)


@everywhere
async def test_tail_follows_what_is_appended(bank: Bank, session: Session) -> None:
    await fill(session, 2)
    follower = Follower(session)
    await follower.begun()
    await session.append(work(3))
    other = await bank.session("planner/auth")
    await other.append(user("4"))
    assert await follower.until(5) == [
        *("T-3.1 prompt 3", "T-3.1 ", "T-3.1 output 3", "T-3.2 reply 3", "T-4.1 4"),
    ]
    await other.append(assistant("4"))
    assert (await follower.until(6))[5] == "T-4.1 4"
    await follower.stop()


async def test_tail_can_begin_earlier(session: Session) -> None:
    await fill(session, 3)
    everything, later, none = (Follower(session, after=after) for after in (0, "T-2", 3))
    assert (await everything.until(6))[::2] == [f"T-{n}.1 prompt {n}" for n in (1, 2, 3)]
    assert await later.until(2) == ["T-3.1 prompt 3", "T-3.1 reply 3"]
    await fill(session, 1, first=4)
    for follower, count in ((everything, 8), (later, 4), (none, 2)):
        assert (await follower.until(count))[-2:] == ["T-4.1 prompt 4", "T-4.1 reply 4"]
        assert len(follower.heard) == count
        await follower.stop()


async def test_tail_yields_each_message_once_even_if_it_comes_while_the_old_ones_are_read(
    bank: Bank,
) -> None:
    session = await bank.session("a/b")
    await fill(session, 3)
    await session.append(user("4"))
    heard = list[str]()
    async with asyncio.timeout(60):
        async for message in session.tail(after=0):
            heard.append(f"{message.id} {message.message.text}")
            if len(heard) == 1:  # more is written while the tail is still reading
                await session.append(assistant("4"))
                await session.append(chat(5))
            if heard[-1] == "T-5.1 reply 5":
                break
    assert heard == [
        *(f"T-{n}.1 {who} {n}" for n in (1, 2, 3) for who in ("prompt", "reply")),
        *("T-4.1 4", "T-4.1 4", "T-5.1 prompt 5", "T-5.1 reply 5"),
    ]


async def test_tail_tells_late_pieces_of_older_turns(bank: Bank) -> None:
    first, second = await bank.session("a/b"), await bank.session("a/b")
    await first.append(user("1"))
    follower = Follower(first)
    await follower.begun()
    await second.append(chat(2))
    await first.append(call("c"))
    await second.append(chat(3))
    await first.append([result("c"), assistant("late")])
    assert await follower.until(7) == [
        *("T-2.1 prompt 2", "T-2.1 reply 2", "T-1.1 ", "T-3.1 prompt 3", "T-3.1 reply 3"),
        *("T-1.1 done", "T-1.2 late"),
    ]
    await follower.stop()


async def test_tail_says_nothing_of_answers_that_are_not_complete(session: Session) -> None:
    await session.append(user("1"))
    async with session.answer() as answer:
        await answer.text("half of")
        await answer.end_part()
        assert (await session.turn(1)).status == "partial"
        follower = Follower(session, after=0)
        assert await follower.until(1) == ["T-1.1 1"]
        await answer.text(" it")
    assert len(await follower.until(2)) == 2
    assert follower.heard[1].message.partial is False
    await follower.stop()


@pytest.mark.parametrize("store_url", DURABLE, indirect=True)
async def test_tail_hears_another_bank(make_bank: MakeBank) -> None:
    ours, theirs = await make_bank(), await make_bank()
    follower = Follower(await ours.session("a/b"))
    await follower.begun()
    writer = await theirs.session("a/b")
    await fill(writer, 3)
    assert (await follower.until(6))[-1] == "T-3.1 reply 3"
    await follower.stop()


async def test_whoever_stops_following_leaves_nothing_behind(bank: Bank, session: Session) -> None:
    follower = Follower(session)
    await follower.begun()
    assert bank.services.log._watchers
    await follower.stop()
    assert not bank.services.log._watchers
    await session.append(chat(1))


async def test_shapes_survive_reading_in_steps(session: Session) -> None:
    """More turns than are read at once."""
    await session.append([message for number in range(1, 121) for message in work(number)])
    turns = await whole(session)
    assert numbers(turns) == list(range(1, 121))
    assert all(shape(turn) == [3, 1] for turn in turns)
    assert numbers(await whole(session, first=60, last=62)) == [60, 61, 62]
