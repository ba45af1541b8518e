"""Appending: numbers, one small transaction, two writers, keys, expectations, hooks."""

from __future__ import annotations

import asyncio
from collections import deque
from datetime import UTC, datetime
from itertools import pairwise
from typing import Annotated, Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

import perdure
from perdure.bank import Bank
from perdure.core.errors import Conflict, InvalidInput
from perdure.core.messages import Message, Text, assistant, event, user
from perdure.core.turns import Position, rounds
from perdure.history.log_records import Head, Receipt, SessionRecord, TurnPiece
from perdure.history.piece_packing import PIECE_BYTES
from perdure.history.turn_log import Written
from perdure.sessions.session import Session
from perdure.storage.middleware import Commit
from perdure.storage.options import STRONG
from perdure.storage.transaction import Transaction
from perdure.testing import ManualClock
from tests.history.conftest import MakeBank, everywhere
from tests.history.talk import (
    Ledger,
    call,
    chat,
    fill,
    note,
    numbers,
    one,
    problems,
    result,
    said,
    several,
    shape,
    texts,
    whole,
    work,
)


@perdure.record("log_marks")
class Marker(msgspec.Struct, frozen=True):
    """What a hook writes."""

    id: Annotated[str, perdure.Key()]
    turn: int


@pytest.fixture
def recalls() -> bool:
    """The index is written in the same transactions."""
    return True


# Whole turns, and messages one by one ---------------------------------------------------------


@everywhere
async def test_a_turn_is_written_and_comes_back(session: Session, clock: ManualClock) -> None:
    moment = clock()
    turn = one(await session.append(work(1), tags={"topic": "auth"}))
    assert (turn.id, turn.session, turn.status) == ("T-1", "planner/auth", "closed")
    assert shape(turn) == [3, 1]
    assert turn.messages == tuple(work(1))
    assert (turn.started, turn.ended) == (moment, moment)
    found = await session.turn("T-1")
    assert msgspec.structs.replace(found, rounds=turn.rounds) == turn
    assert found.messages == turn.messages
    assert found.tags == {"topic": "auth"}


async def test_turns_are_numbered_from_one_without_gaps(session: Session) -> None:
    await fill(session, 7)
    assert numbers(await whole(session)) == list(range(1, 8))


async def test_several_turns_in_one_append(session: Session) -> None:
    turns = several(await session.append([*work(1), *chat(2), user("prompt 3")]))
    assert numbers(turns) == [1, 2, 3]
    assert [turn.status for turn in turns] == ["closed", "closed", "open"]
    assert [shape(turn) for turn in turns] == [[3, 1], [2], [1]]
    assert await said(session) == [*work(1), *chat(2), user("prompt 3")]
    assert [turn.status for turn in await whole(session)] == ["closed", "closed", "open"]


async def test_message_by_message_into_an_open_turn(session: Session) -> None:
    statuses = []
    for message in work(1):
        turn = one(await session.append(message))
        assert turn.messages == (message,)  # what was written now
        statuses.append(turn.status)
    assert statuses == ["open", "open", "open", "closed"]
    (found,) = await whole(session)
    assert shape(found) == [3, 1]
    assert found.messages == tuple(work(1))


@everywhere
async def test_another_session_object_goes_on_with_an_open_turn(bank: Bank) -> None:
    for message in work(1):  # a server that opens the session for each request
        await (await bank.session("a/b")).append([message])
    session = await bank.session("a/b")
    (turn,) = await whole(session)
    assert turn.messages == tuple(work(1))
    assert shape(turn) == [3, 1]


async def test_a_text_is_a_prompt(session: Session) -> None:
    turn = one(await session.append("What now?"))
    assert turn.prompt == "What now?"


async def test_dicts_of_any_wire_format_are_taken(session: Session) -> None:
    await session.append(
        [
            {"role": "user", "content": "list"},
            {
                "role": "assistant",
                "tool_calls": [
                    {"id": "c1", "type": "function", "function": {"name": "ls", "arguments": "{}"}}
                ],
            },
            {"role": "tool", "tool_call_id": "c1", "content": "a.py"},
        ]
    )
    await session.append({"role": "assistant", "content": [{"type": "text", "text": "one file"}]})
    await session.append(
        [
            {"role": "user", "content": [{"type": "input_text", "text": "again"}]},
            {"type": "function_call", "call_id": "c2", "name": "ls", "arguments": "{}"},
            {"type": "function_call_output", "call_id": "c2", "output": "a.py"},
        ]
    )
    first, second = await whole(session)
    assert texts(first.messages) == ["list", "", "a.py", "one file"]
    assert texts(second.messages) == ["again", "", "a.py"]
    assert [first.status, second.status] == ["closed", "open"]
    for wrong in (7, [object()], {"neither": "nor"}, b"bytes"):
        with pytest.raises(InvalidInput):
            await session.append(wrong)
    assert len(await whole(session)) == 2


async def test_nothing_cannot_be_appended(session: Session) -> None:
    with pytest.raises(InvalidInput, match="no messages"):
        await session.append([])
    assert await whole(session) == []


async def test_closing_a_turn_by_hand(session: Session) -> None:
    await session.append([user("1"), call("c1")])
    assert (await session.turn(1)).status == "open"
    await session.close_turn()
    assert (await session.turn(1)).status == "closed"
    await session.append(result("c1"))
    await session.append(assistant("2"))
    assert [texts(turn.messages) for turn in await whole(session)] == [["1", ""], ["done", "2"]]


async def test_a_turn_that_is_opened_on_purpose(bank: Bank, session: Session) -> None:
    """What was exported comes back as it was: turns without a prompt, and their times."""
    await session.append([user("1"), call("c")])
    turn = one(await session.append(result("c"), fresh=True, times=(5, 9)))
    assert (turn.number, turn.started, turn.ended) == (2, 5, 9)
    await session.append([user("3"), user("3, too")], fresh=True)
    await session.append(user("4"), fresh=True)
    turns = await whole(session)
    assert [texts(turn.messages) for turn in turns] == [
        *(["1", ""], ["done"], ["3", "3, too"], ["4"]),
    ]
    assert (turns[1].started, turns[1].ended) == (5, 9)
    assert await problems(bank) == []


async def test_times_are_those_of_the_messages_where_they_are_known(
    session: Session, clock: ManualClock
) -> None:
    timed = [
        Message("user", (Text("a"),), time=1_000),
        Message("assistant", (Text("b"),), time=2_000, ended=3_000),
    ]
    await session.append(timed)
    turn = await session.turn(1)
    assert (turn.started, turn.ended) == (1_000, 3_000)
    await session.append(user("unknown"))
    assert (await session.turn(2)).started == clock()


_PLAYERS = st.sampled_from(
    [
        *(user("u"), note("n"), assistant("a"), event("e"), Message("system", (Text("s"),))),
        *(call("x"), call("x", "y"), result("x"), result("y")),
    ]
)


@pytest.mark.parametrize("store_url", ["memory"], indirect=True)
@given(messages=st.lists(_PLAYERS, min_size=1, max_size=12), cuts=st.sets(st.integers(1, 11)))
async def test_how_messages_are_split_over_appends_does_not_matter(
    bank: Bank, messages: list[Message], cuts: set[int]
) -> None:
    session = await bank.session("a/b")
    edges = sorted({0, len(messages), *(cut for cut in cuts if cut < len(messages))})
    for start, end in pairwise(edges):
        await session.append(messages[start:end])
    found = [
        (turn.number, round.number, list(round.messages))
        for turn in await whole(session)
        for round in turn.rounds
    ]
    assert found == rounds(messages)
    assert await problems(bank) == []
    assert (await session.head()).messages == len(messages)
    await bank.forget("a/b")


async def test_long_turns_are_stored_in_several_pieces(bank: Bank, session: Session) -> None:
    long = [user("go")]
    for number in range(30):
        long += [call(f"c{number}"), result(f"c{number}", text=f"{number} " * 5_000)]
    await session.append([*long, assistant("done"), *chat(2)])
    pieces = await bank.collection(TurnPiece).query().values()
    assert len(pieces) > 3
    assert max(len(piece.content) for piece in pieces) <= PIECE_BYTES
    assert [piece.number for piece in pieces] == list(range(1, len(pieces) + 1))
    first, second = await whole(session)
    assert first.messages == (*long, assistant("done"))
    assert [round.number for round in first.rounds] == list(range(1, 32))
    assert second.messages == tuple(chat(2))
    assert await problems(bank) == []


# One small transaction ------------------------------------------------------------------------


@pytest.mark.slow
@everywhere
async def test_an_append_is_one_commit_and_reads_nothing(make_bank: MakeBank) -> None:
    ledger = Ledger()
    bank = await make_bank(middleware=(ledger,))
    session = await bank.session("a/b")
    seen = dict[int, tuple[list[str], int]]()
    await fill(session, 9)
    await bank.settle()
    ledger.kinds()
    await session.append(work(10))
    seen[10] = _looks(ledger)
    await session.append([message for number in range(11, 2_000) for message in chat(number)])
    await bank.settle()
    ledger.kinds()
    await session.append(work(2_000))
    seen[2_000] = _looks(ledger)
    # A piece, the head, and that there is something to count.
    assert seen[10] == seen[2_000] == (["Commit"], 3)
    await session.append(chat(2_001))
    assert _looks(ledger) == (["Commit"], 2)
    assert (await session.head()).turn == 2_001


def _looks(ledger: Ledger) -> tuple[list[str], int]:
    writes = sum(len(made.batch.writes) for made in ledger.calls if isinstance(made, Commit))
    return ledger.kinds(), writes


async def test_options_reach_the_commit(make_bank: MakeBank) -> None:
    ledger = Ledger()
    bank = await make_bank(middleware=(ledger,))
    session = await bank.session("a/b")
    ledger.kinds()
    await session.append(chat(1), options=STRONG)
    (commit,) = [made for made in ledger.calls if isinstance(made, Commit)]
    assert commit.options == STRONG


async def test_what_cannot_be_written_leaves_nothing(bank: Bank, session: Session) -> None:
    await session.append(chat(1))
    for wrong in (
        [Message("user", (Text("x"),), native={"chat": {"n": 2**70}})],
        [Message("user", (Text("x"),), native={"chat": {"n": object()}})],
        [*chat(2), Message("user", (Text("x"),), ended="soon")],  # type: ignore[arg-type]
    ):
        with pytest.raises(perdure.InvalidInput):
            await session.append(wrong)
        assert numbers(await whole(session)) == [1]
    await session.append(chat(2))
    assert await problems(bank) == []


async def test_half_surrogate_pairs_are_replaced(bank: Bank, session: Session) -> None:
    await session.append([user("half \ud800 a pair"), assistant("\ud83d\ude00 whole")])
    assert texts(await said(session)) == ["half \ufffd a pair", "\U0001f600 whole"]
    assert await problems(bank) == []


# Keys -----------------------------------------------------------------------------------------


@everywhere
async def test_the_same_key_writes_once(bank: Bank, session: Session) -> None:
    first = one(await session.append(work(1), key="request 7"))
    await session.append(chat(2))
    again = one(await session.append(work(1), key="request 7"))
    assert (again.number, again.messages) == (first.number, first.messages)
    elsewhere = await bank.session("planner/auth")
    assert one(await elsewhere.append(work(1), key="request 7")).number == 1
    assert numbers(await whole(session)) == [1, 2]
    other = await bank.session("planner/other")
    assert one(await other.append(chat(9), key="request 7")).messages == tuple(chat(9))


@everywhere
async def test_a_key_may_be_anything(session: Session) -> None:
    for key in ("", "x" * 5_000, "a//b/", "\x00\ud800", "🗝"):
        before = numbers(await whole(session))
        await session.append(chat(1), key=key)
        await session.append(chat(1), key=key)
        assert len(await whole(session)) == len(before) + 1


async def test_a_key_of_several_turns(session: Session) -> None:
    first = several(await session.append([*chat(1), *chat(2)], key="k"))
    again = several(await session.append([*chat(1), *chat(2)], key="k"))
    assert numbers(first) == numbers(again) == [1, 2]


@everywhere
async def test_one_key_at_the_same_time(bank: Bank) -> None:
    sessions = [await bank.session("a/b") for _ in range(5)]
    turns = await asyncio.gather(*(each.append(chat(1), key="k") for each in sessions))
    assert {one(turn).number for turn in turns} == {1}
    assert numbers(await whole(sessions[0])) == [1]


async def test_a_repeated_append_that_expects_a_turn_is_still_repeated(session: Session) -> None:
    """Whoever did not hear the answer asks again in the same words."""
    await session.append(chat(1), key="k", expected=0)
    again = one(await session.append(chat(1), key="k", expected=0))
    assert again.number == 1
    assert numbers(await whole(session)) == [1]


# Expectations ---------------------------------------------------------------------------------


@pytest.mark.parametrize("form", ["T-2", 2, Position(2), "T-2.1"])
async def test_an_append_that_expects_the_newest_turn(
    session: Session, form: str | int | Position
) -> None:
    await fill(session, 2)
    assert one(await session.append(chat(3), expected=form)).number == 3


@everywhere
async def test_an_append_that_expects_another_turn(bank: Bank, session: Session) -> None:
    await session.append(chat(1), expected=0)
    await session.append(chat(2), expected="T-1")
    for wrong in (0, "T-1", "T-3"):
        with pytest.raises(Conflict, match=r"was expected to be .* but is T-2"):
            await session.append(chat(3), expected=wrong, key="k")
    assert numbers(await whole(session)) == [1, 2]
    assert await bank.collection(Receipt).query().count() == 0
    with pytest.raises(InvalidInput):
        await session.append(chat(3), expected="two")


@everywhere
async def test_of_two_that_expect_the_same_one_loses(bank: Bank) -> None:
    ours, theirs = await bank.session("a/b"), await bank.session("a/b")
    await ours.append(chat(1))
    await theirs.append(chat(2), expected="T-1")
    with pytest.raises(Conflict) as caught:  # though what it knows is old
        await ours.append(chat(3), expected="T-1")
    assert (caught.value.expected, caught.value.found) == (1, 2)
    await ours.append(chat(3), expected="T-2")
    results = await asyncio.gather(
        *(each.append(chat(4), expected="T-3") for each in (ours, theirs)), return_exceptions=True
    )
    assert sorted(type(each).__name__ for each in results) == ["Conflict", "Turn"]
    assert numbers(await whole(ours)) == [1, 2, 3, 4]


# Two writers ----------------------------------------------------------------------------------


@everywhere
async def test_two_writers_keep_their_own_turns(bank: Bank) -> None:
    first, second = await bank.session("a/b"), await bank.session("a/b")
    ones, twos = work(1), work(2)
    for mine, theirs in zip(ones, twos, strict=True):
        await first.append(mine)
        await second.append(theirs)
    turns = await whole(first)
    assert [turn.messages for turn in turns] == [tuple(ones), tuple(twos)]
    assert [shape(turn) for turn in turns] == [[3, 1], [3, 1]]
    # And both go on behind it.
    await first.append(chat(3))
    await second.append(chat(4))
    assert numbers(await whole(second)) == [1, 2, 3, 4]
    assert await problems(bank) == []


@everywhere
async def test_three_writers_interleave_in_any_order(bank: Bank) -> None:
    writers = [await bank.session("a/b") for _ in range(3)]
    left = [deque(work(number)) for number in range(3)]
    for writer in (0, 1, 2, 2, 0, 1, 1, 1, 0, 2, 2, 0):
        await writers[writer].append(left[writer].popleft())
    assert [turn.messages for turn in await whole(writers[0])] == [
        tuple(work(number)) for number in range(3)
    ]
    assert await problems(bank) == []


async def test_a_prompt_does_not_join_a_turn_of_somebody_else(bank: Bank) -> None:
    first, second = await bank.session("a/b"), await bank.session("a/b")
    await first.append(user("mine"))
    await second.append([note("a reminder"), user("yours"), assistant("to you")])
    await first.append(assistant("to me"))
    turns = await whole(first)
    assert [[text for text in texts(turn.messages) if text != "a reminder"] for turn in turns] == [
        ["mine", "to me"],
        ["yours", "to you"],
    ]


async def test_a_writer_that_closed_its_turn_does_not_go_back_to_it(bank: Bank) -> None:
    first, second = await bank.session("a/b"), await bank.session("a/b")
    await first.append([user("1"), call("c")])
    await first.close_turn()
    await second.append(user("2"))
    await first.append(event("resumed"))
    assert [texts(turn.messages) for turn in await whole(first)] == [["1", ""], ["2"], [""]]


async def test_a_turn_that_was_closed_stays_closed_while_others_finish_theirs(bank: Bank) -> None:
    first, second = await bank.session("a/b"), await bank.session("a/b")
    await first.append(user("1"))
    await second.append([user("2"), call("c")])
    await second.close_turn()
    await first.append(assistant("to 1"))
    await second.append(result("c"))
    assert [texts(turn.messages) for turn in await whole(first)] == [
        *(["1", "to 1"], ["2", ""], ["done"]),
    ]


async def test_what_follows_results_of_an_older_turn(bank: Bank) -> None:
    """One append may finish the writer's own turn and open the next."""
    first, second = await bank.session("a/b"), await bank.session("a/b")
    await first.append([user("1"), call("c")])
    await second.append(chat(2))
    turns = several(await first.append([result("c"), assistant("to 1"), *work(3)]))
    assert numbers(turns) == [1, 3]
    assert [shape(turn) for turn in turns] == [[1, 1], [3, 1]]
    found = await whole(first)
    assert [shape(turn) for turn in found] == [[3, 1], [2], [3, 1]]
    assert found[2].messages == tuple(work(3))
    assert await problems(bank) == []


@everywhere
async def test_many_tasks_append_whole_turns(bank: Bank) -> None:
    sessions = [await bank.session("a/b") for _ in range(4)]
    await asyncio.gather(
        *(sessions[number % 4].append(work(number)) for number in range(40)),
    )
    turns = await whole(sessions[0])
    assert numbers(turns) == list(range(1, 41))
    assert sorted(turn.prompt for turn in turns) == sorted(f"prompt {n}" for n in range(40))
    for turn in turns:
        assert turn.messages == tuple(work(int(turn.prompt.split()[1])))
    assert await problems(bank) == []


@everywhere
async def test_many_tasks_append_message_by_message(bank: Bank) -> None:
    async def speak(number: int) -> None:
        session = await bank.session("a/b")
        for message in work(number):
            await session.append(message)

    await asyncio.gather(*(speak(number) for number in range(8)))
    turns = await whole(await bank.session("a/b"))
    assert sorted(turn.messages[0].text for turn in turns) == [f"prompt {n}" for n in range(8)]
    for turn in turns:
        assert turn.messages == tuple(work(int(turn.prompt.split()[1])))
    assert await problems(bank) == []


@everywhere
async def test_cancelled_appends_are_written_or_not(bank: Bank) -> None:
    session = await bank.session("a/b")
    tasks = list[asyncio.Task[Any]]()
    for number in range(30):
        tasks.append(asyncio.create_task(session.append(work(number))))
        if number % 3 == 0:
            await asyncio.sleep(0)
            tasks[-1].cancel()
    done = await asyncio.gather(*tasks, return_exceptions=True)
    turns = await whole(session)
    assert numbers(turns) == list(range(1, len(turns) + 1))
    prompts = [turn.prompt for turn in turns]
    assert len(set(prompts)) == len(prompts)
    acknowledged = [
        f"prompt {n}" for n, made in enumerate(done) if not isinstance(made, BaseException)
    ]
    assert set(acknowledged) <= set(prompts)
    assert all(turn.messages == tuple(work(int(turn.prompt.split()[1]))) for turn in turns)
    assert await problems(bank) == []


# Hooks ----------------------------------------------------------------------------------------


@everywhere
async def test_hooks_join_the_transaction(bank: Bank) -> None:
    async def mark(transaction: Transaction, written: Written) -> None:
        for round in written.rounds:
            key = f"{written.session.id}/{round.turn}.{round.round}"
            await transaction.collection(Marker).put(Marker(key, round.turn))

    seen = list[tuple[int, int, int, int]]()

    async def look(_: Transaction, written: Written) -> None:
        seen.append((written.first, written.last, len(written.pieces), written.head.turn))

    bank.join(mark)
    session = await bank.session("a/b")
    await session.append([*work(1), *chat(2)], within=look)
    await session.append(user("3"), within=look)
    await session.append(assistant("3"), within=look)
    keys = [found.key for found in await bank.collection(Marker).query().execute()]
    assert keys == ["a/b/1.1", "a/b/1.2", "a/b/2.1", "a/b/3.1"]
    assert seen == [(1, 2, 2, 2), (3, 3, 1, 3), (3, 3, 1, 3)]


@everywhere
async def test_a_hook_that_raises_writes_nothing(bank: Bank, session: Session) -> None:
    await session.append(chat(1))

    async def refuse(transaction: Transaction, written: Written) -> None:
        await transaction.collection(Marker).put(Marker("x", 1))
        raise LookupError("no")

    with pytest.raises(LookupError):
        await session.append(chat(2), within=refuse, key="k")
    assert numbers(await whole(session)) == [1]
    assert await bank.collection(Marker).get("x") is None
    # The same session goes on, and the key is not used up.
    await session.append(chat(2), key="k")
    assert await said(session) == [*chat(1), *chat(2)]
    assert await problems(bank) == []


@everywhere
async def test_a_hook_runs_again_with_the_numbers_that_hold(bank: Bank) -> None:
    ours, theirs = await bank.session("a/b"), await bank.session("a/b")
    await ours.append(chat(1))
    await theirs.append(chat(2))
    seen = list[int]()

    async def look(transaction: Transaction, written: Written) -> None:
        seen.append(written.first)
        await transaction.collection(Marker).put(Marker(f"m{written.first}", written.first))

    await ours.append(chat(3), within=look)
    assert seen == [2, 3]
    assert [found.key for found in await bank.collection(Marker).query().execute()] == ["m3"]


# What a session is ----------------------------------------------------------------------------


@everywhere
async def test_a_session_is_a_context(bank: Bank, clock: ManualClock) -> None:
    clock.set(datetime(2026, 1, 1, tzinfo=UTC))
    session = await bank.session(
        "planner/auth", type="chat", state={"goal": "log in"}, tags={"team": "core"}
    )
    record = session.record
    assert (record.type, record.state, record.tags) == (
        "chat",
        {"goal": "log in"},
        {"team": "core"},
    )
    assert record.last_active == datetime(2026, 1, 1, tzinfo=UTC)
    assert record.archived is None
    again = await bank.session("planner/auth", type="other", state={"goal": "none"})
    assert again.record == record
    await session.describe({"model": "m"})
    assert (await bank.session("planner/auth")).state == {"goal": "log in", "model": "m"}


@everywhere
async def test_a_session_in_use_is_the_first_in_the_list(bank: Bank, clock: ManualClock) -> None:
    for name in ("a/1", "a/2", "b/3"):
        clock.advance("1h")
        await bank.session(name)
    assert [info.name for info in await bank.sessions()] == ["b/3", "a/2", "a/1"]
    clock.advance("1h")
    await (await bank.session("a/1")).append(chat(1))
    assert [info.name for info in await bank.sessions()] == ["a/1", "b/3", "a/2"]
    assert [info.name for info in await bank.sessions(agent="a")] == ["a/1", "a/2"]


@everywhere
async def test_an_archived_session_comes_back_when_it_is_used(bank: Bank) -> None:
    session = await bank.session("a/b")
    await session.append(chat(1))
    await session.archive()
    assert await bank.sessions() == []
    (info,) = await bank.sessions(archived=True)
    assert info.archived is not None
    assert info.active is None
    await session.append(chat(2))
    (info,) = await bank.sessions()
    assert info.archived is None
    assert info.active is not None


async def test_a_session_that_somebody_else_archived_comes_back_too(bank: Bank) -> None:
    ours, theirs = await bank.session("a/b"), await bank.session("a/b")
    await ours.append(chat(1))
    await theirs.archive()
    await ours.append(chat(2))
    assert [info.name for info in await bank.sessions()] == ["a/b"]


async def test_an_append_that_is_repeated_still_brings_a_session_back(bank: Bank) -> None:
    ours, theirs = await bank.session("a/b"), await bank.session("a/b")
    await ours.append(chat(1))
    await theirs.append(chat(2))
    await ours.archive()
    await ours.append(chat(3))  # its first attempt fails: it does not know of T-2
    record = await bank.collection(SessionRecord).get("a/b")
    assert record is not None
    assert record.archived is None


async def test_what_is_described_elsewhere_is_not_lost(bank: Bank, clock: ManualClock) -> None:
    ours, theirs = await bank.session("a/b"), await bank.session("a/b")
    await theirs.describe({"x": 1})
    clock.advance("1h")
    await ours.append(chat(1))
    await ours.describe({"y": 2})
    assert (await bank.session("a/b")).state == {"x": 1, "y": 2}


@pytest.mark.parametrize(
    "name",
    [
        *("", "a", "a/", "/b", "a/b/c", "a/b#T-1", "a b/\n", "a/\x00", " a/b", "a/\ud800"),
        *("a/" + "x" * 119, "ä/" + "ü" * 60, None, 7),
        *(f"a/b{char}c" for char in "\u2028\u2029\x85\x9b\u061c\u202e\u2066\u200f\ufeff"),
    ],
    ids=ascii,
)
async def test_names_that_cannot_be(bank: Bank, name: Any) -> None:
    with pytest.raises(InvalidInput, match="cannot be the name"):
        await bank.session(name)


@pytest.mark.parametrize(
    "name",
    [
        "a/b",
        "planner v2/über uns",
        "a/" + "x" * 118,
        "日本/語",
        "a/~",
        "a/👩\u200d💻",
        "می\u200cخ/b",
    ],
)
async def test_names_that_can_be(bank: Bank, name: str) -> None:
    session = await bank.session(name)
    await fill(session, 2)
    assert numbers(await session.turns()) == [1, 2]
    assert (session.name, session.agent) == (name, name.partition("/")[0])


async def test_a_session_that_must_exist(bank: Bank) -> None:
    with pytest.raises(InvalidInput, match="no session a/b"):
        await bank.existing_session("a/b")
    await bank.session("a/b")
    assert (await bank.existing_session("a/b")).name == "a/b"


@everywhere
async def test_the_list_tells_what_each_session_holds(bank: Bank) -> None:
    session = await bank.session("a/b")
    await session.append([*work(1), *chat(2)])
    await bank.settle()
    (info,) = await bank.sessions()
    assert (info.turns, info.rounds, info.messages) == (2, 3, 6)
    assert info.tokens == sum(turn.tokens or 0 for turn in await whole(session)) > 0


@everywhere
async def test_sessions_whose_names_begin_alike_do_not_mix(bank: Bank) -> None:
    names = ["a/b", "a/b2", "a/b-", "a/b.", "aa/b", "a/~"]
    for number, name in enumerate(names):
        await fill(await bank.session(name), 3, first=10 * number)
    for number, name in enumerate(names):
        session = await bank.session(name)
        expected = [m for n in range(10 * number, 10 * number + 3) for m in chat(n)]
        assert await said(session) == expected
        assert len(await session.turns(2)) == 2
    assert await problems(bank) == []


# Taking turns back ----------------------------------------------------------------------------


async def test_turns_can_be_taken_back(bank: Bank, session: Session) -> None:
    await fill(session, 4)
    assert await session.undo(2) == [3, 4]
    assert numbers(await whole(session)) == [1, 2]
    assert numbers(await whole(session, undone=True)) == [1, 2, 3, 4]
    assert (await session.turn(3)).status == "undone"
    assert one(await session.append(chat(5))).number == 5
    assert await session.undo(2) == [2, 5]
    assert numbers(await session.turns()) == [1]
    assert numbers(await session.turns(undone=True)) == [1, 2, 3, 4, 5]
    assert await session.undo(9) == [1]
    assert await session.undo() == []
    assert await problems(bank) == []


async def test_what_follows_an_undone_open_turn_opens_another(session: Session) -> None:
    await session.append([user("1"), call("c")])
    await session.undo()
    await session.append(result("c"))
    assert [(turn.number, turn.status) for turn in await whole(session, undone=True)] == [
        (1, "undone"),
        (2, "open"),
    ]


async def test_a_hook_can_join_taking_back(bank: Bank, session: Session) -> None:
    await fill(session, 2)

    async def mark(transaction: Transaction, written: Written) -> None:
        await transaction.collection(Marker).put(Marker("undone", written.head.turn))

    await session.undo(within=mark)
    assert await bank.collection(Marker).get("undone") == Marker("undone", 2)


# The clock ------------------------------------------------------------------------------------


async def test_a_clock_that_jumps_back_breaks_no_order(
    bank: Bank, session: Session, clock: ManualClock
) -> None:
    clock.set(datetime(2026, 1, 2, tzinfo=UTC))
    await fill(session, 3)
    clock.set(datetime(2025, 1, 1, tzinfo=UTC))
    await fill(session, 3, first=4)
    for message in work(7):
        clock.set(clock() - 1_000_000)
        await session.append(message)
    assert numbers(await whole(session)) == list(range(1, 8))
    assert (await session.turn(7)).messages == tuple(work(7))
    assert await problems(bank) == []


async def test_heads_are_small(bank: Bank, session: Session) -> None:
    await session.append([message for number in range(500) for message in chat(number)])
    (row,) = await bank.store.adapter.get("perdure_heads", ["planner/auth"], perdure.Options())
    assert row is not None
    assert len(row.value) < 200
    assert isinstance(await bank.collection(Head).get("planner/auth"), Head)
