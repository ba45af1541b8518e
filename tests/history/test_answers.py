"""Answers that arrive piece by piece: saved while they do, and never lost, doubled or misplaced."""

from __future__ import annotations

import asyncio
import gc
import random
import weakref
from typing import Any

import msgspec
import pytest

from perdure.bank import Bank
from perdure.core.errors import Conflict, InvalidInput, Unavailable
from perdure.core.messages import Message, Reasoning, Text, ToolCall, Usage, assistant, user
from perdure.history.answer_drafts import Partial
from perdure.history.answer_feed import AnswerChange
from perdure.history.log_records import ALIVE_FOR, AnswerDraft
from perdure.history.streamed_answers import StreamedAnswer
from perdure.sessions.session import Session
from perdure.storage.middleware import Call, Commit, Handler
from perdure.storage.rows import Delete
from perdure.testing import ManualClock
from tests.conftest import DURABLE
from tests.history.conftest import MakeBank, everywhere
from tests.history.talk import (
    Fault,
    chat,
    numbers,
    one,
    problems,
    result,
    said,
    shape,
    texts,
    whole,
)

#: Shorter than any test waits for.
BEAT = 0.02


async def drafted(session: Session, turn: int = 1) -> tuple[object, ...]:
    """The parts of the draft, as a process that comes later would find them."""
    found = [partial for partial in await session.partials() if partial.turn == turn]
    return found[0].message.parts if found else ()


async def until_drafted(session: Session, *parts: object) -> None:
    async with asyncio.timeout(60):
        while await drafted(session) != parts:  # noqa: ASYNC110 (nobody tells)
            await asyncio.sleep(0.002)


async def abandon(session: Session, *chunks: str) -> Partial:
    """Begin an answer and leave it as a dead process does."""
    answer = session.answer(model="m")
    await answer.__aenter__()
    for chunk in chunks:
        await answer.text(chunk)
    await answer._save()
    (partial,) = [p for p in await session.partials() if p.turn == answer._number]
    return partial


# While it arrives -----------------------------------------------------------------------------


@everywhere
async def test_an_answer_becomes_a_message_of_its_turn(
    bank: Bank, session: Session, clock: ManualClock
) -> None:
    await session.append(user("1"))
    began = clock()
    async with session.answer(model="large") as answer:
        await answer.reasoning("let me ")
        await answer.reasoning("see")
        await answer.text("It ")
        await answer.text("is")
        clock.advance("3s")
        turn = await answer.finish(usage=Usage(output=7), id="msg_1")
    reply = Message(
        "assistant",
        (Reasoning("let me see"), Text("It is")),
        id="msg_1",
        model="large",
        usage=Usage(output=7),
        time=began,
        ended=clock(),
    )
    assert turn.messages == (reply,)
    assert (turn.number, turn.status) == (1, "closed")
    assert await said(session) == [user("1"), reply]
    assert await session.partials() == []
    assert await bank.collection(AnswerDraft).query().count() == 0
    assert await problems(bank) == []


async def test_leaving_the_block_finishes(session: Session) -> None:
    await session.append(user("1"))
    async with session.answer() as answer:
        await answer.text("yes")
    assert answer.turn is not None
    assert await answer.finish() is answer.turn
    (found,) = await whole(session)
    assert (found.status, texts(found.messages)) == ("closed", ["1", "yes"])


@everywhere
async def test_what_arrives_is_saved_at_each_heartbeat(make_bank: MakeBank) -> None:
    bank = await make_bank(heartbeat=BEAT)
    session = await bank.session("a/b")
    await session.append(user("1"))
    async with session.answer() as answer:
        await answer.reasoning("hm")
        await until_drafted(session, Reasoning("hm"))
        await answer.reasoning(", yes")
        await until_drafted(session, Reasoning("hm, yes"))
        turn = await session.turn(1)
        assert turn.status == "partial"
        assert turn.messages[-1].parts == (Reasoning("hm, yes"),)
        assert turn.messages[-1].partial


async def test_heartbeats_are_not_more_frequent_than_they_have_to_be(bank: Bank) -> None:
    """Two seconds, unless configured: a thousand chunks do not make a thousand writes."""
    session = await bank.session("a/b")
    await session.append(user("1"))
    async with session.answer() as answer:
        for _ in range(1_000):
            await answer.text("x")
        (row,) = await bank.collection(AnswerDraft).query().execute()
        assert row.version == 1


async def test_nothing_is_saved_while_nothing_arrives(make_bank: MakeBank) -> None:
    bank = await make_bank(heartbeat=BEAT)
    session = await bank.session("a/b")
    async with session.answer() as answer:
        await answer.text("x")
        await until_drafted(session, Text("x"))
        (before,) = await bank.collection(AnswerDraft).query().execute()
        await asyncio.sleep(4 * BEAT)
        (after,) = await bank.collection(AnswerDraft).query().execute()
        assert after.version == before.version


@everywhere
async def test_each_finished_part_is_saved_at_once(session: Session) -> None:
    await session.append(user("1"))
    async with session.answer() as answer:  # the heartbeat is far away
        await answer.reasoning("hm")
        await answer.text("so")
        assert await drafted(session) == (Reasoning("hm"),)
        await answer.end_part()
        assert await drafted(session) == (Reasoning("hm"), Text("so"))
        await answer.call("c1", "shell")
        await answer.arguments('{"command":')
        await answer.arguments(' "ls"}')
        assert await drafted(session) == (Reasoning("hm"), Text("so"))
        await answer.call("c2", "shell")
        first = ToolCall("c1", "shell", '{"command": "ls"}')
        assert await drafted(session) == (Reasoning("hm"), Text("so"), first)
        signed = Reasoning("deep", signature="abc")
        await answer.part(signed)
        assert await drafted(session) == (
            *(Reasoning("hm"), Text("so"), first),
            *(ToolCall("c2", "shell"), signed),
        )
    (turn,) = await whole(session)
    assert (turn.status, shape(turn)) == ("open", [2])
    await session.append(result("c1", "c2"))
    await session.append(assistant("done"))
    assert shape(await session.turn(1)) == [3, 1]


async def test_arguments_need_a_call(session: Session) -> None:
    async with session.answer() as answer:
        with pytest.raises(InvalidInput, match="No tool call"):
            await answer.arguments("{}")
        await answer.text("x")
        with pytest.raises(InvalidInput, match="No tool call"):
            await answer.arguments("{}")


async def test_nothing_can_be_added_to_a_finished_answer(session: Session) -> None:
    async with session.answer() as answer:
        await answer.text("x")
        await answer.finish()
        for more in (answer.text("y"), answer.part(Text("z")), answer.call("c", "d")):
            with pytest.raises(InvalidInput, match="finished"):
                await more
    assert texts(await said(session)) == ["x"]


async def test_drafts_are_replaced_and_leave_nothing_in_the_artifact_store(
    make_bank: MakeBank,
) -> None:
    """However often a long answer is saved, only the complete one moves out."""
    bank = await make_bank(offload_over=256)
    session = await bank.session("a/b")
    await session.append(user("1"))
    dice = random.Random(7)
    async with session.answer() as answer:
        for _ in range(5):
            await answer.text(dice.randbytes(40_000).hex())
            await answer._save()
        assert [place async for place in bank.artifacts.located()] == []
        assert len((await session.turn(1)).messages[-1].text) == 400_000
    assert len([place async for place in bank.artifacts.located()]) == 1
    (message,) = await session.resolve((await session.turn(1)).messages[1:])
    assert len(message.text) == 400_000


async def test_secrets_are_masked_in_drafts_too(bank: Bank, session: Session) -> None:
    key = "ghp_" + "A1b2C3d4E5f6G7h8I9j0K1l2M3n4O5p6Q7r8"[:36]
    async with session.answer() as answer:
        await answer.text(f"the token is {key} ok")
        await answer.end_part()
        (part,) = await drafted(session)
        assert key not in str(part)
    assert key not in str(await said(session))
    assert sum((await session.turn(1)).masked.values()) == 1


# Where it belongs -----------------------------------------------------------------------------


@everywhere
async def test_an_answer_goes_to_its_turn_though_others_have_begun_theirs(bank: Bank) -> None:
    ours, theirs = await bank.session("a/b"), await bank.session("a/b")
    await ours.append(user("1"))
    async with ours.answer() as answer:
        await answer.text("to 1")
        await theirs.append([user("2"), assistant("to 2"), user("3")])
        assert (await ours.turn(1)).status == "partial"
    assert [texts(turn.messages) for turn in await whole(ours)] == [
        *(["1", "to 1"], ["2", "to 2"], ["3"]),
    ]
    await theirs.append(assistant("to 3"))
    assert texts((await ours.turn(3)).messages) == ["3", "to 3"]
    assert await problems(bank) == []


async def test_an_answer_to_a_prompt_of_another_writer_stays_with_it(bank: Bank) -> None:
    """One process takes prompts, another answers them."""
    front, worker = await bank.session("a/b"), await bank.session("a/b")
    await front.append(user("1"))
    async with worker.answer() as answer:
        await answer.text("to 1")
        await front.close_turn()
        await front.append(user("2"))
    async with worker.answer() as answer:
        await answer.text("to 2")
    assert [texts(turn.messages) for turn in await whole(front)] == [["1", "to 1"], ["2", "to 2"]]


async def test_two_answers_at_the_same_time(bank: Bank) -> None:
    first, second = await bank.session("a/b"), await bank.session("a/b")
    await first.append(user("1"))
    await second.append(user("2"))
    async with first.answer() as one_, second.answer() as two:
        await one_.text("to 1")
        await two.text("to 2")
        await one_.end_part()
        await two.end_part()
        assert [turn.status for turn in await whole(first)] == ["partial", "partial"]
        assert numbers(await whole(first)) == [1, 2]
    assert [texts(turn.messages) for turn in await whole(first)] == [["1", "to 1"], ["2", "to 2"]]
    assert await problems(bank) == []


async def test_a_session_goes_on_in_its_own_turn_when_an_older_answer_ends(
    session: Session,
) -> None:
    """The same session object, used by two tasks."""
    await session.append(user("1"))
    answer = session.answer()
    await answer.__aenter__()
    await answer.text("to 1")
    await session.close_turn()
    await session.append(user("2"))
    await answer.finish()
    await session.append(assistant("to 2"))
    assert [texts(turn.messages) for turn in await whole(session)] == [["1", "to 1"], ["2", "to 2"]]


async def test_an_answer_without_a_prompt_opens_a_turn(bank: Bank, session: Session) -> None:
    async with session.answer() as answer:
        await answer.text("hello")
        await answer.end_part()
        (turn,) = await whole(session)
        assert (turn.number, turn.status) == (1, "partial")
        assert numbers(await session.turns()) == [1]
    await session.append(chat(2))
    async with session.answer() as answer:
        await answer.text("one more thing")
    turns = await whole(session)
    assert [texts(turn.messages) for turn in turns] == [
        ["hello"],
        ["prompt 2", "reply 2", "one more thing"],
    ]
    await session.close_turn()
    async with session.answer() as answer:
        await answer.text("and another")
    assert numbers(await whole(session)) == [1, 2, 3]
    assert await problems(bank) == []


async def test_a_greeting_does_not_answer_the_prompt_that_was_faster(bank: Bank) -> None:
    ours, theirs = await bank.session("a/b"), await bank.session("a/b")
    async with ours.answer() as answer:
        await answer.text("hello")
        await theirs.append(user("first"))
    assert [texts(turn.messages) for turn in await whole(ours)] == [["first"], ["hello"]]
    assert await ours.partials() == []


# What is left of it ---------------------------------------------------------------------------


@everywhere
async def test_an_error_leaves_a_partial_turn(bank: Bank, session: Session) -> None:
    await session.append(user("1"))

    async def stream() -> None:
        async with session.answer(model="m") as answer:
            await answer.reasoning("hm")
            await answer.text("It i")
            raise LookupError("the provider hung up")

    with pytest.raises(LookupError):
        await stream()
    (turn,) = await whole(session)
    assert turn.status == "partial"
    assert turn.messages[1].parts == (Reasoning("hm"), Text("It i"))
    (partial,) = await session.partials()
    assert (partial.turn, partial.message.partial, partial.message.model) == (1, True, "m")
    assert await problems(bank) == []


@everywhere
async def test_a_partial_answer_says_whether_its_writer_lives(
    bank: Bank, session: Session, clock: ManualClock
) -> None:
    await session.append(user("1"))

    async def writers() -> tuple[str | None, str]:
        (partial,) = await session.partials()
        return (await session.turn(1)).writer, partial.writer

    answer = session.answer()
    await answer.__aenter__()
    await answer.text("It i")
    assert await writers() == ("alive", "alive")
    clock.advance("14s")
    assert await writers() == ("alive", "alive")
    clock.advance("1s")
    assert await writers() == ("gone", "gone")
    await answer._save()  # a heartbeat, by a writer that was only slow
    assert await writers() == ("alive", "alive")

    hung_up = LookupError("the provider hung up")
    await answer.__aexit__(LookupError, hung_up, None)
    assert await writers() == ("gone", "gone")
    (partial,) = await session.partials()
    async with session.answer(resume=partial) as again:
        assert await writers() == ("alive", "alive")
        await again.text("s so")
    assert (await session.turn(1)).writer is None


async def test_a_writer_to_whom_nothing_comes_still_gives_signs_of_life(
    bank: Bank, session: Session, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("perdure.history.streamed_answers._IDLE_BEAT", BEAT)
    async with session.answer() as answer:
        await answer.text("hm")
        await answer.end_part()
        (before,) = await session.partials()
        clock.advance("60s")
        async with asyncio.timeout(60):
            while (await session.partials())[0].writer == "gone":  # noqa: ASYNC110 (nobody tells)
                await asyncio.sleep(0.002)
        (after,) = await session.partials()
        assert after.updated == before.updated  # it did not grow


async def test_an_answer_that_nobody_holds_has_no_writer(
    bank: Bank, session: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("perdure.history.streamed_answers._IDLE_BEAT", 0.0)
    answer = session.answer()
    await answer.__aenter__()
    await answer.text("hm")
    await answer.end_part()
    held = weakref.ref(answer)
    async with asyncio.timeout(60):
        drafts = bank.collection(AnswerDraft).query()
        while (await drafts.execute())[0].version < 4:  # noqa: ASYNC110 (nobody tells)
            await asyncio.sleep(0)
    del answer
    async with asyncio.timeout(60):
        while held() is not None:  # until the last heartbeat is written
            gc.collect()
            await asyncio.sleep(0)


async def test_cancelling_leaves_a_partial_turn(session: Session) -> None:
    await session.append(user("1"))
    begun = asyncio.Event()

    async def stream() -> None:
        async with session.answer() as answer:
            await answer.text("It i")
            begun.set()
            await asyncio.sleep(60)

    task = asyncio.create_task(stream())
    await begun.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert (await session.turn(1)).status == "partial"
    assert await drafted(session) == (Text("It i"),)


@everywhere
async def test_cancelling_while_it_is_written_does_not_double_it(session: Session) -> None:
    for number in range(1, 7):
        await session.append(user(f"{number}"))

        async def stream() -> None:
            async with session.answer() as answer:
                await answer.text("yes")

        task = asyncio.create_task(stream())
        for _ in range(number * 3):
            await asyncio.sleep(0)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        for partial in await session.partials():
            await session.drop_partial(partial)
        turn = await session.turn(number)
        assert texts(turn.messages) in ([f"{number}"], [f"{number}", "yes"])
        await session.close_turn()
    assert await session.partials() == []


class _Slow:
    """Middleware that lets the end of an answer be written, and does not tell for a while."""

    def __init__(self) -> None:
        self.written, self.told = asyncio.Event(), asyncio.Event()

    async def __call__(self, call: Call, proceed: Handler) -> Any:
        answer = await proceed(call)
        if isinstance(call, Commit) and any(
            isinstance(write, Delete) and write.collection == "perdure_drafts"
            for write in call.batch.writes
        ):
            self.written.set()
            await self.told.wait()
        return answer


@pytest.mark.parametrize("explicitly", [True, False])
async def test_a_complete_answer_is_not_interrupted(make_bank: MakeBank, explicitly: bool) -> None:
    slow = _Slow()
    bank = await make_bank(middleware=(slow,))
    session = await bank.session("a/b")
    await session.append(user("1"))

    async def stream() -> None:
        async with session.answer() as answer:
            await answer.text("yes")
            if explicitly:
                await answer.finish()

    task = asyncio.create_task(stream())
    await slow.written.wait()
    task.cancel()
    await asyncio.sleep(0)
    slow.told.set()
    with pytest.raises(asyncio.CancelledError):
        await task
    (turn,) = await whole(session)
    assert (turn.status, texts(turn.messages)) == ("closed", ["1", "yes"])
    assert await session.partials() == []


@pytest.mark.parametrize("store_url", DURABLE, indirect=True)
async def test_a_partial_turn_is_continued_by_another_process(make_bank: MakeBank) -> None:
    first = await make_bank()
    session = await first.session("a/b")
    await session.append(user("1"))
    partial = await abandon(session, "It i")

    second = await make_bank()
    later = await second.session("a/b")
    assert await later.partials() == [partial]
    async with later.answer(model="other", resume=partial) as answer:
        await answer.text("s so")
    (turn,) = await whole(later)
    assert turn.status == "closed"
    assert turn.messages[1].parts == (Text("It is so"),)
    assert not turn.messages[1].partial
    assert turn.messages[1].model == "m"
    assert await later.partials() == []
    assert await problems(second) == []


@everywhere
async def test_a_partial_turn_is_resumed_once(bank: Bank, session: Session) -> None:
    await session.append(user("1"))
    partial = await abandon(session, "It i")
    async with session.answer(resume=partial) as answer:
        await answer.text("s so")
    with pytest.raises(InvalidInput, match="no partial answer any more"):
        async with session.answer(resume=partial):
            pytest.fail("there is nothing to resume")
    assert await session.partials() == []
    assert texts(await said(session)) == ["1", "It is so"]
    assert await problems(bank) == []


@everywhere
async def test_of_two_who_resume_at_once_the_first_to_finish_wins(bank: Bank) -> None:
    session, other = await bank.session("a/b"), await bank.session("a/b")
    await session.append(user("1"))
    partial = await abandon(session, "It i")
    one, two = session.answer(resume=partial), other.answer(resume=partial)
    await one.__aenter__()
    await two.__aenter__()
    await two.text("s not")
    await one.text("s so")
    await one.finish()  # though the other saved its draft last
    with pytest.raises(InvalidInput, match="no partial answer any more"):
        await two.end_part()
    with pytest.raises(InvalidInput, match="no partial answer any more"):
        await two.finish()
    await two.__aexit__(InvalidInput, None, None)
    assert await session.partials() == []
    assert texts(await said(session)) == ["1", "It is so"]
    assert await problems(bank) == []


def test_a_draft_without_a_sign_of_life_is_readable_and_has_no_writer() -> None:
    whole = AnswerDraft(id="a/b/1", content=b"", started=1, updated=2, heartbeat=3)
    written = msgspec.msgpack.decode(msgspec.msgpack.encode(whole))
    del written["heartbeat"]
    draft = msgspec.msgpack.decode(msgspec.msgpack.encode(written), type=AnswerDraft)
    assert draft.writer(now=ALIVE_FOR) == "gone"


async def test_each_kind_of_part_goes_on_where_it_was_cut(session: Session) -> None:
    await session.append(user("1"))

    async def resumed(*chunks: str) -> StreamedAnswer:
        (partial,) = await session.partials()
        answer = session.answer(resume=partial)
        await answer.__aenter__()
        return answer

    answer = session.answer()
    await answer.__aenter__()
    await answer.reasoning("h")
    await answer._save()
    answer = await resumed()
    await answer.reasoning("m")
    await answer.call("c", "shell")
    await answer.arguments('{"a":')
    await answer._save()
    answer = await resumed()
    await answer.arguments(" 1}")
    await answer.text("first")
    await answer.end_part()
    answer = await resumed()
    await answer.end_part()  # it was complete
    await answer.text("second")
    await answer.finish()
    assert (await session.turn(1)).messages[1].parts == (
        *(Reasoning("hm"), ToolCall("c", "shell", '{"a": 1}'), Text("first"), Text("second")),
    )


async def test_signed_reasoning_does_not_go_on(session: Session) -> None:
    answer = session.answer()
    await answer.__aenter__()
    await answer.part(Reasoning("hm", signature="s"))
    (partial,) = await session.partials()
    async with session.answer(resume=partial) as answer:
        await answer.reasoning("more")
    parts = (await session.turn(1)).messages[0].parts
    assert parts == (Reasoning("hm", signature="s"), Reasoning("more"))


@everywhere
async def test_a_partial_turn_is_closed(bank: Bank, session: Session) -> None:
    await session.append(user("1"))
    partial = await abandon(session, "It i")
    await session.append(user("2"))
    turn = await session.close_partial(partial)
    assert (turn.number, texts(turn.messages)) == (1, ["It i"])
    assert turn.messages[0].partial
    assert turn.messages[0].ended == partial.updated
    turns = await whole(session)
    assert [(turn.status, texts(turn.messages)) for turn in turns] == [
        ("closed", ["1", "It i"]),
        ("open", ["2"]),
    ]
    await session.append(assistant("to 2"))
    assert texts((await session.turn(2)).messages) == ["2", "to 2"]
    assert await session.partials() == []
    assert await problems(bank) == []


@everywhere
async def test_a_partial_turn_is_dropped(bank: Bank, session: Session) -> None:
    await session.append(user("1"))
    partial = await abandon(session, "It i")
    await session.drop_partial(partial)
    await session.drop_partial(partial)
    turn = await session.turn(1)
    assert (turn.status, texts(turn.messages)) == ("open", ["1"])
    assert await bank.collection(AnswerDraft).query().count() == 0
    await session.append(assistant("It is"))
    assert texts(await said(session)) == ["1", "It is"]
    assert await problems(bank) == []


@everywhere
async def test_a_partial_turn_is_closed_once_however_many_try(bank: Bank) -> None:
    session = await bank.session("a/b")
    await session.append(user("1"))
    partial = await abandon(session, "It i")
    workers = [await bank.session("a/b") for _ in range(4)]
    done = await asyncio.gather(
        *(worker.close_partial(partial) for worker in workers), return_exceptions=True
    )
    assert sum(not isinstance(each, BaseException) for each in done) == 1
    assert all(isinstance(each, Conflict | InvalidInput) or each for each in done)
    assert texts(await said(session)) == ["1", "It i"]
    with pytest.raises(InvalidInput, match="no partial answer any more"):
        await session.close_partial(partial)


async def test_a_partial_turn_that_began_with_its_answer(session: Session) -> None:
    partial = await abandon(session, "hel")
    assert numbers(await whole(session)) == [1]
    await session.drop_partial(partial)
    assert await whole(session) == []
    partial = await abandon(session, "hel")
    assert one_turn(await session.close_partial(partial)) == (1, ["hel"])


def one_turn(turn: object) -> tuple[int, list[str]]:
    found = one(turn)  # type: ignore[arg-type]
    return found.number, texts(found.messages)


async def test_a_partial_turn_does_not_stop_the_conversation(session: Session) -> None:
    await session.append(user("1"))
    await abandon(session, "It i")
    await session.append(chat(2))
    assert [turn.status for turn in await whole(session)] == ["partial", "closed"]


# A store that fails ---------------------------------------------------------------------------


class _Drafts(Fault):
    def picks(self, call: Call) -> bool:
        return isinstance(call, Commit) and any(
            write.collection == "perdure_drafts" for write in call.batch.writes
        )


async def test_a_heartbeat_that_fails_is_repeated(
    make_bank: MakeBank, caplog: pytest.LogCaptureFixture
) -> None:
    fault = _Drafts()
    bank = await make_bank(heartbeat=BEAT, middleware=(fault,))
    session = await bank.session("a/b")
    await session.append(user("1"))
    async with session.answer() as answer:
        fault.error = Unavailable("gone")
        await answer.reasoning("hm")
        await answer.text("It is")  # ends a part: not saved, and no error either
        async with asyncio.timeout(60):
            while fault.hit < 3:  # noqa: ASYNC110 (nobody tells)
                await asyncio.sleep(0.002)
        assert await drafted(session) == ()
        assert "could not be saved" in caplog.text
        with pytest.raises(Unavailable):
            await answer.end_part()
        fault.error = None
        await until_drafted(session, Reasoning("hm"), Text("It is"))
    assert (await session.turn(1)).messages[1].parts == (Reasoning("hm"), Text("It is"))


async def test_an_answer_that_cannot_be_written_can_be_finished_again(make_bank: MakeBank) -> None:
    fault = Fault()
    bank = await make_bank(middleware=(fault,))
    session = await bank.session("a/b")
    await session.append(user("1"))
    answer = session.answer()
    await answer.__aenter__()
    await answer.text("It is")
    await answer.end_part()
    fault.error = Unavailable("gone")
    with pytest.raises(Unavailable):
        await answer.finish()
    fault.error = None
    assert (await session.turn(1)).status == "partial"
    await answer.finish()
    assert texts(await said(session)) == ["1", "It is"]
    assert await session.partials() == []


async def test_an_answer_whose_session_is_gone_leaves_nothing(
    make_bank: MakeBank, caplog: pytest.LogCaptureFixture
) -> None:
    bank = await make_bank(heartbeat=BEAT)
    session = await bank.session("a/b")
    await session.append(user("1"))
    answer = session.answer()
    await answer.__aenter__()
    await answer.text("It")
    await answer.end_part()
    await bank.forget("a/b")
    await answer.text(" is")
    async with asyncio.timeout(60):
        while "could not be saved" not in caplog.text:  # noqa: ASYNC110 (nobody tells)
            await asyncio.sleep(0.002)
    with pytest.raises(InvalidInput, match="does not exist any more"):
        await answer.finish()
    await answer.__aexit__(InvalidInput)
    assert await bank.collection(AnswerDraft).query().count() == 0
    assert await bank.sessions() == []


# Those who watch it arrive --------------------------------------------------------------------


async def test_listeners_hear_of_everything_at_once(bank: Bank, session: Session) -> None:
    await session.append(user("1"))
    heard: list[AnswerChange] = []
    end = bank.services.log.answers.listen(heard.append)
    async with session.answer() as answer:
        await answer.text("It ")
        await answer.text("is")
        await answer.call("c1", "ls")
        await answer.arguments("{}")
        await answer.part(ToolCall("c2", "cat", "[1]"))
        arriving = bank.services.log.answers.arriving[session.name, 1]
        assert arriving.so_far().text == "It is"
    assert not bank.services.log.answers.arriving
    told = [(c.kind, c.part, c.of, c.at, c.text, c.id) for c in heard if c.kind != "heartbeat"]
    assert told == [
        ("began", 0, "text", 0, "", ""),
        ("grew", 0, "text", 0, "It ", ""),
        ("grew", 0, "text", 3, "is", ""),
        ("grew", 1, "call", 0, "", "c1"),
        ("grew", 1, "call", 0, "{}", "c1"),
        ("grew", 2, "call", 0, "[1]", "c2"),
        ("written", 3, "text", 0, "", ""),
    ]
    end()
    heard.clear()
    await session.append(user("2"))
    async with session.answer() as answer:
        await answer.text("unheard")
    assert heard == []


async def test_listeners_hear_that_an_answer_was_left(bank: Bank, session: Session) -> None:
    await session.append(user("1"))
    heard: list[AnswerChange] = []
    bank.services.log.answers.listen(heard.append)
    answer = session.answer()
    await answer.__aenter__()
    await answer.text("half")
    await answer.__aexit__(ZeroDivisionError)
    assert [change.kind for change in heard] == ["began", "grew", "left"]
    assert not bank.services.log.answers.arriving
    (partial,) = await session.partials()
    async with session.answer(resume=partial) as answer:
        await answer.text(" done")
    assert heard[4] == AnswerChange(session=session.name, turn=1, kind="grew", at=4, text=" done")


async def test_a_whole_message_takes_the_place_of_what_arrived(session: Session) -> None:
    await session.append(user("1"))
    signed = Message(
        "assistant", (Reasoning("so", signature="s"), Text("It is")), id="m1", usage=Usage(1, 2)
    )
    async with session.answer(model="large") as answer:
        await answer.reasoning("so")
        await answer.text("It ")
        await answer.finish(message=signed)
    (message,) = (await session.turn(1)).messages[1:]
    assert (message.parts, message.id, message.usage) == (signed.parts, "m1", Usage(1, 2))
    assert message.model == "large"
    assert not message.partial
