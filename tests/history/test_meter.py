"""Counting: exact, stored with each round, caught up after whatever came in between."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from perdure.bank import Bank
from perdure.core.errors import Unavailable
from perdure.core.messages import (
    Media,
    Message,
    Reasoning,
    Text,
    ToolCall,
    ToolResult,
    Usage,
    assistant,
    event,
    user,
)
from perdure.core.tokens import count_messages, o200k
from perdure.core.turns import Turn
from perdure.history.log_records import TurnCount
from perdure.jobs import PendingMark
from perdure.sessions.session import Session
from perdure.storage.middleware import Call, Commit, Handler
from perdure.testing import ManualClock
from tests.conftest import DURABLE
from tests.history.conftest import MakeBank, config_for, everywhere
from tests.history.talk import Fault, call, chat, fill, one, result, whole, work


def tokens_of(messages: Sequence[Message]) -> int:
    return count_messages(o200k(), messages)


async def assert_counted(session: Session) -> list[Turn]:
    """Every round has the count that its messages have, put together again."""
    turns = await whole(session)
    for turn in turns:
        for round in turn.rounds:
            assert round.tokens == tokens_of(await session.resolve(round.messages)), turn.id
    return turns


async def uncounted(session: Session) -> list[int]:
    return [turn.number for turn in await whole(session) if turn.tokens is None]


@everywhere
async def test_counts_appear_a_moment_later(bank: Bank, session: Session) -> None:
    turn = one(await session.append(work(1)))
    assert turn.tokens is None
    await bank.settle()
    (found,) = await assert_counted(session)
    assert found.tokens == tokens_of(work(1))


async def test_counts_appear_by_themselves(session: Session) -> None:
    await session.append(work(1))
    async with asyncio.timeout(60):
        while await uncounted(session):  # noqa: ASYNC110 (nobody tells)
            await asyncio.sleep(0.01)


async def test_counting_at_once(session: Session) -> None:
    await session.append([*work(1), *chat(2)], count=True)
    await assert_counted(session)
    for message in work(3):
        await session.append(message, count=True)
        await assert_counted(session)


async def test_everything_is_counted_as_a_prompt_would_carry_it(
    bank: Bank, session: Session
) -> None:
    await session.append(
        [
            Message("system", (Text("be brief"),)),
            user("look at this"),
            Message("user", (Media("image/png", data=b"\x89PNG" * 10_000),)),
            Message(
                "assistant",
                (
                    Reasoning("thinking " * 5_000),
                    Text("words " * 6_000),
                    ToolCall("c1", "write", '{"content": "' + "x " * 20_000 + '"}'),
                ),
            ),
            Message("tool", (ToolResult("c1", (Text("line\n" * 30_000),)),)),
            event("compacted", "nobody pays for this"),
            assistant("done"),
        ]
    )
    await bank.settle()
    (turn,) = await assert_counted(session)
    assert turn.tokens is not None
    assert turn.tokens > 60_000


async def test_message_by_message_counts_add_up(bank: Bank, session: Session) -> None:
    for message in [*work(1), *chat(2)]:
        await session.append(message)
        if message.role == "tool":
            await bank.settle()  # some of the round is stored, the rest is not
    await bank.settle()
    await assert_counted(session)


@pytest.mark.parametrize("moment", range(5))
async def test_counting_at_once_what_was_not_counted_so_far(
    bank: Bank, session: Session, moment: int
) -> None:
    for number, message in enumerate([user("go"), call("a", "b"), result("a"), result("b")]):
        await session.append(message, count=number == moment)
    await bank.settle()
    await assert_counted(session)


@everywhere
async def test_two_writers_of_one_round(make_bank: MakeBank, store_url: str) -> None:
    ours = await make_bank()
    theirs = ours if store_url.startswith("memory") else await make_bank()
    first, second = await ours.session("a/b"), await theirs.session("a/b")
    await first.append([user("go"), call("x", "y", "z", "w")])
    await second.append(result("x"))
    await first.append(result("y", text="longer " * 20))
    await theirs.settle()
    await second.append(result("z"))
    await first.append(result("w"))
    await asyncio.gather(ours.settle(), theirs.settle())
    await assert_counted(first)


async def test_a_round_that_is_half_counted_has_no_count(bank: Bank, session: Session) -> None:
    await session.append([user("go"), call("a")])
    await bank.settle()
    await session.append(result("a"))
    assert await uncounted(session) == [1]
    await bank.settle()
    await assert_counted(session)


@pytest.mark.slow
@pytest.mark.parametrize("store_url", ["sqlite"], indirect=True)
async def test_more_than_can_be_noted(bank: Bank, session: Session) -> None:
    """A large append is read again, and what comes behind it does not hide it."""
    await session.append([message for number in range(1, 2_501) for message in chat(number)])
    await session.append(work(2_501))
    await bank.settle()
    assert len(await assert_counted(session)) == 2_501


@pytest.mark.parametrize("store_url", ["sqlite"], indirect=True)
async def test_what_nobody_counted_is_found_at_the_next_opening(
    make_bank: MakeBank, tmp_path: Path, store_url: str
) -> None:
    dying = Bank(store_url, config=config_for(tmp_path))
    await dying.open()
    session = await dying.session("a/b")
    await fill(session, 3)
    await dying.settle()
    await fill(session, 4, first=4)
    dying.services.token_counts._noted.clear()
    dying.jobs._marks._own.clear()
    dying.services.renditions._noted.clear()
    await dying.close()

    bank = await make_bank()
    again = await bank.session("a/b")
    await again.append(chat(8))  # counted, and yet those before it are not passed over
    await bank.settle()
    assert len(await assert_counted(again)) == 8


@pytest.mark.parametrize("store_url", ["sqlite"], indirect=True)
async def test_gaps_that_a_dead_process_left_are_found(
    make_bank: MakeBank, tmp_path: Path, store_url: str, clock: ManualClock
) -> None:
    """Though others have counted what came later, and though some of a round was counted."""
    dying = Bank(store_url, config=config_for(tmp_path), clock=clock)
    await dying.open()
    lost, seen = await dying.session("a/b"), await dying.session("a/b")
    await lost.append([user("1"), call("c")])
    await seen.append(chat(2))
    await dying.settle()
    await lost.append(result("c"))
    await seen.append(chat(3))
    dying.services.token_counts._noted.clear()
    dying.jobs._marks._own.clear()
    dying.services.renditions._noted.clear()
    await dying.close()

    bank = await make_bank()
    other = await bank.session("a/b")
    bank.services.log._doubtful.clear()  # as if it had been open all the time
    await other.append(chat(4))
    await bank.settle()
    assert await uncounted(other) == [1]  # T-3 was looked at, to see whether it is closed

    again = await bank.session("a/b")
    await bank.settle()
    await assert_counted(again)
    # The mark stays while whoever left it may be alive, and no longer.
    marks = bank.collection(PendingMark)
    assert await marks.query().count() == 1
    clock.advance("5m")
    await bank.session("a/b")
    await bank.settle()
    assert await marks.query().count() == 0


class _LateAnswer:
    """Middleware that keeps the answer to the first commit of a turn until it is told to go on."""

    def __init__(self) -> None:
        self.committed, self.go_on = asyncio.Event(), asyncio.Event()

    async def __call__(self, call: Call, proceed: Handler) -> Any:
        answer = await proceed(call)
        if _writes(call, "perdure_turns") and not self.committed.is_set():
            self.committed.set()
            await self.go_on.wait()
        return answer


@pytest.mark.parametrize("store_url", DURABLE, indirect=True)
@pytest.mark.parametrize("is_lost", [False, True])
async def test_a_mark_covers_what_was_committed_before_the_answer_came(
    make_bank: MakeBank, is_lost: bool
) -> None:
    """Two writers of one session; the second appends before the first hears that it has."""
    late = _LateAnswer()
    dying = await make_bank(middleware=(late,))
    await dying.jobs._idle.stop(0)  # it counts nothing any more
    first, second = await dying.session("a/b"), await dying.session("a/b")
    appending = asyncio.create_task(first.append([*chat(1), *chat(2)]))
    async with asyncio.timeout(60):
        await late.committed.wait()
        if is_lost:
            appending.cancel()
            await asyncio.wait({appending})
        await second.append(chat(3))
        late.go_on.set()
        await asyncio.wait({appending})
    bank = await make_bank()
    again = await bank.session("a/b")
    assert await uncounted(again) == [1, 2, 3]
    await bank.settle()
    await assert_counted(again)


async def test_marks_are_left_once_and_go_when_all_is_counted(
    bank: Bank, session: Session, clock: ManualClock
) -> None:
    marks = bank.collection(PendingMark)
    for number in range(5):
        await session.append(chat(number))
    (mark,) = await marks.query().execute()
    assert (mark.value.first, mark.version) == (1, 1)
    clock.advance("30s")
    await session.append(chat(6))
    (mark,) = await marks.query().execute()
    assert (mark.value.first, mark.version) == (1, 2)  # still alive
    await bank.settle()
    assert await marks.query().count() == 0
    await session.append(chat(7), count=True)
    assert await marks.query().count() == 0
    await session.append(chat(8))
    (mark,) = await marks.query().execute()
    assert mark.value.first == 8


async def test_a_mark_goes_back_to_the_oldest_turn(bank: Bank) -> None:
    first, second = await bank.session("a/b"), await bank.session("a/b")
    await first.append(user("1"))
    await bank.settle()
    await second.append(chat(2))
    await first.append(assistant("late"))
    (mark,) = await bank.collection(PendingMark).query().values()
    assert mark.first == 1


async def test_nothing_is_counted_twice(bank: Bank, session: Session) -> None:
    await fill(session, 3)
    await bank.settle()
    before = [item.version for item in await bank.collection(TurnCount).query().execute()]
    await bank.session("planner/auth")  # looks for what is not counted
    await bank.settle()
    after = [item.version for item in await bank.collection(TurnCount).query().execute()]
    assert before == after == [1, 1, 1]


def _writes(call: Call, collection: str) -> bool:
    return isinstance(call, Commit) and any(
        write.collection == collection for write in call.batch.writes
    )


class _Refusing(Fault):
    def picks(self, call: Call) -> bool:
        return _writes(call, "perdure_counts")


async def test_a_store_that_fails_while_counting_loses_no_count(
    make_bank: MakeBank, caplog: pytest.LogCaptureFixture
) -> None:
    fault = _Refusing()
    bank = await make_bank(middleware=(fault,))
    session = await bank.session("a/b")
    await fill(session, 2)
    fault.error = Unavailable("gone")
    with pytest.raises(Unavailable):
        await bank.settle()
    await fill(session, 1, first=3)  # appends go on
    async with asyncio.timeout(60):
        while fault.hit < 2:  # noqa: ASYNC110 (nobody tells)
            await asyncio.sleep(0.01)
    assert await uncounted(session) == [1, 2, 3]
    fault.error = None
    await bank.settle()
    await assert_counted(session)
    assert "counting tokens failed" in caplog.text


@pytest.mark.parametrize("store_url", ["sqlite"], indirect=True)
async def test_counting_for_others_that_is_cancelled_is_not_forgotten(
    make_bank: MakeBank, clock: ManualClock
) -> None:
    """Its mark would go, though nobody has counted."""
    dying = await make_bank()
    await dying.jobs._idle.stop(0)  # it counts nothing any more
    await fill(await dying.session("a/b"), 2)
    clock.advance("5m")
    fault = _Refusing()
    fault.error = asyncio.CancelledError()
    bank = await make_bank(middleware=(fault,))
    session = await bank.session("a/b")
    with pytest.raises(asyncio.CancelledError):
        await bank.settle()
    assert await uncounted(session) == [1, 2]
    bank.services.renditions._noted.clear()  # what it reads, it counts
    fault.error = None
    await bank.settle()
    await assert_counted(session)


async def test_a_bank_can_be_closed_while_its_store_fails(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    fault = _Refusing()
    bank = Bank("memory://", config=config_for(tmp_path), middleware=(fault,))
    await bank.open()
    await fill(await bank.session("a/b"), 2)
    fault.error = Unavailable("gone")
    await bank.close()
    assert fault.hit
    assert "counting tokens failed" in caplog.text


async def test_what_is_gone_is_not_counted(bank: Bank) -> None:
    session = await bank.session("a/b")
    await fill(session, 3)
    await bank.forget("a/b")
    await bank.settle()
    assert await bank.collection(TurnCount).query().count() == 0


async def test_models_are_calibrated_from_what_their_providers_count(bank: Bank) -> None:
    session = await bank.session("a/b")
    for number in range(4):
        reply = Message(
            "assistant",
            (Text(f"words {number} " * 300),),
            model="acme/large",
            usage=Usage(output=1),
        )
        theirs = int(tokens_of([reply]) * 1.25)
        reply = Message(
            "assistant", reply.parts, model="acme/large", usage=Usage(input=9, output=theirs)
        )
        await session.append([user("go"), reply])
    await bank.settle()
    calibration = await bank.services.token_counts.calibrations.of("acme/large")
    assert calibration.samples == 4
    assert calibration.factor == pytest.approx(1.25, rel=0.01)
    assert (await bank.services.token_counts.calibrations.of("unheard of")).samples == 0


async def test_samples_that_compare_different_things_are_left_out(bank: Bank) -> None:
    session = await bank.session("a/b")
    text = Text("words " * 400)
    huge = Text("words " * 40_000)
    usage = Usage(output=500)
    for parts, figures, partial in (
        ((Reasoning("hidden"), text), usage, False),
        ((text,), Usage(output=500, reasoning=100), False),
        ((text,), usage, True),
        ((huge,), Usage(output=40_000), False),  # it moved out: only its beginning is here
    ):
        reply = Message("assistant", parts, model="m", usage=figures, partial=partial)
        await session.append([user("go"), reply])
    for model in ("", "a//b"):  # which cannot be a key
        await session.append([user("go"), Message("assistant", (text,), model=model, usage=usage)])
    await bank.settle()
    assert (await bank.services.token_counts.calibrations.of("m")).samples == 0


@pytest.mark.parametrize("store_url", DURABLE, indirect=True)
async def test_two_banks_count_at_the_same_time(make_bank: MakeBank) -> None:
    banks = [await make_bank() for _ in range(2)]
    sessions = [await bank.session("a/b") for bank in banks]
    for number in range(8):
        await asyncio.gather(*(session.append(chat(number)) for session in sessions))
    await asyncio.gather(*(bank.settle() for bank in banks))
    assert len(await assert_counted(sessions[0])) == 16
