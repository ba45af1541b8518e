"""Sessions under fire: kill -9 while turns are appended, while answers arrive; many processes.

PERDURE_KILLS says how often; `make crash` asks for a thousand.
"""

from __future__ import annotations

import asyncio
import os
import random
import time
from pathlib import Path

import pytest

from perdure.bank import Bank
from perdure.core.messages import Message, Reasoning, Text, ToolCall, assistant, user
from perdure.core.tokens import count_messages, o200k
from perdure.core.turns import Turn
from perdure.sessions.session import Session
from tests.conftest import DURABLE
from tests.fire.talkers import (
    BEAT,
    THOUGHTS,
    WORDS,
    bank_at,
    kind_of,
    label_of,
    session_of,
    turn_of,
    turns_of,
)
from tests.fire.test_kill import wait_until_alone
from tests.fire.zygote import Zygote

pytestmark = pytest.mark.parametrize("store_url", DURABLE, indirect=True)

KILLS = int(os.environ.get("PERDURE_KILLS", "10"))
LANES = 3
PROCESSES = 8


@pytest.fixture
def folder(tmp_path: Path) -> str:
    return str(tmp_path / "artifacts")


def settle_down(url: str, request: pytest.FixtureRequest) -> None:
    if "postgres" in url:
        wait_until_alone(url, request.getfixturevalue("postgres_server"))


async def problems(bank: Bank) -> list[tuple[str, str]]:
    return [(problem.subject, problem.what) async for problem in bank.verify()]


async def turns_in(session: Session) -> list[Turn]:
    """All turns, with what lies in the artifact store put back in; numbered without gaps."""
    found = await session.turns(100_000, resolve=True)
    assert [turn.number for turn in found] == list(range(1, len(found) + 1))
    return found


async def assert_counted(session: Session) -> None:
    for turn in await turns_in(session):
        for round in turn.rounds:
            assert round.tokens == count_messages(o200k(), round.messages), turn.id


# kill -9 ------------------------------------------------------------------------------------------


class Lane:
    """What one lane of a process had acknowledged, and what it was doing when it was killed."""

    def __init__(self, run: int, lane: int, told: list[str]) -> None:
        self.session = session_of(run, lane, LANES)
        prefix = f"{run:04d}/{lane}/"
        own = [line for line in told if line.startswith(prefix)]
        self.done = [line for line in own if " " not in line]
        assert self.done == [label_of(run, lane, number) for number in range(len(self.done))]
        self.last = label_of(run, lane, len(self.done))
        #: How much of the last was acknowledged: messages of it.
        self.part = len([line for line in own if line.startswith(f"{self.last} ")])


class Auditor:
    """Knows what has to be in the sessions, and checks that it is, and nothing else."""

    def __init__(self) -> None:
        #: By session: the messages of each turn, by their prompt.
        self.expected: dict[str, dict[str, list[Message]]] = {}
        self.done = self.undone = 0

    async def audit(self, bank: Bank, lanes: list[Lane]) -> None:
        for name in sorted({lane.session for lane in lanes}):
            session = await bank.session(name)
            for partial in await session.partials():
                await session.drop_partial(partial)
            found = {turn.prompt: turn for turn in await turns_in(session)}
            for lane in lanes:
                if lane.session == name:
                    await self._add(session, lane, found)
            await self._compare(session)

    async def audit_all(self, bank: Bank) -> None:
        for name in self.expected:
            session = await bank.session(name)
            await self._compare(session)
        await bank.settle()
        for name in self.expected:
            await assert_counted(await bank.session(name))
        assert await problems(bank) == []

    async def _add(self, session: Session, lane: Lane, found: dict[str, Turn]) -> None:
        expected = self.expected.setdefault(lane.session, {})
        for label in lane.done:
            for messages in turns_of(label):
                expected[messages[0].text] = messages
        turns = turns_of(lane.last)
        first = turns[0]
        kind = kind_of(lane.last)
        there = len(found[first[0].text].messages) if first[0].text in found else 0
        if kind in ("messages", "answer"):
            assert lane.part <= there <= lane.part + 1, lane.last
        elif kind == "keyed":
            # Whoever was to be told asks again: it is written once.
            await session.append(first, key=lane.last)
            there = len(first)
        else:
            assert there in (0, len(first)), lane.last
        self.done += there == len(first)
        self.undone += there == 0
        if there:
            for messages in turns:
                expected[messages[0].text] = messages[:there]

    async def _compare(self, session: Session) -> None:
        turns = await turns_in(session)
        expected = self.expected[session.name]
        found = {turn.prompt: [_plain(message) for message in turn.messages] for turn in turns}
        assert len(found) == len(turns), "a turn is there twice"
        assert found == expected


def _plain(message: Message) -> Message:
    """A message without the times that only an answer has."""
    return Message(message.role, message.parts)


@pytest.mark.repeated
def test_no_turn_is_lost_doubled_or_torn(
    store_url: str, folder: str, zygote: Zygote, request: pytest.FixtureRequest
) -> None:
    dice = random.Random(f"turns {KILLS}")
    auditor = Auditor()
    fresh = list[Lane]()
    acknowledged = 0

    async def audit(*, everything: bool) -> None:
        async with bank_at(store_url, folder) as bank:
            await auditor.audit(bank, fresh)
            fresh.clear()
            if everything:
                await auditor.audit_all(bank)

    for run in range(KILLS):
        worker = zygote.start("talk", store_url, folder=folder, run=run, lanes=LANES)
        if dice.random() < 0.2:
            worker.listen(dice.uniform(0, 0.15))  # may hit while the bank is being opened
        else:
            worker.listen(10, dice.randrange(60))
            worker.listen(dice.uniform(0, 0.01))
        told = worker.kill()
        settle_down(store_url, request)
        fresh += [Lane(run, lane, told) for lane in range(LANES)]
        acknowledged += len(told)
        # Not always: the next writer also has to cope with what this one left.
        if dice.random() < 0.4:
            asyncio.run(audit(everything=False))
    asyncio.run(audit(everything=True))
    print(
        f"{KILLS} kills, {acknowledged} appends acknowledged;"
        f" of those interrupted, {auditor.done} took place and {auditor.undone} did not"
    )
    assert acknowledged > 3 * KILLS
    assert auditor.undone, "no kill came in the middle of an append"


@pytest.mark.repeated
def test_what_arrived_of_an_answer_survives(
    store_url: str, folder: str, zygote: Zygote, request: pytest.FixtureRequest
) -> None:
    dice = random.Random(f"answers {KILLS}")
    for run in range(max(3, KILLS // 3)):
        name = f"fire/stream-{run}"
        worker = zygote.start("stream", store_url, folder=folder, session=name)
        # In the reasoning, right behind it, or in the text.
        until = (dice.randrange(1, 20), 22, dice.randrange(30, 120))[run % 3]
        assert worker.listen(20, until)
        time.sleep(dice.uniform(0, 2 * BEAT))
        killed = time.monotonic()
        told = worker.kill()
        assert told[-1] != "done"
        settle_down(store_url, request)
        asyncio.run(_audit_stream(store_url, folder, name, told, how=run % 3))
        assert time.monotonic() - killed < 20


async def _audit_stream(url: str, folder: str, name: str, told: list[str], how: int) -> None:
    thoughts = [line for line in told if line in THOUGHTS]
    words = [line for line in told if line in WORDS]
    async with bank_at(url, folder) as bank:
        session = await bank.session(name)
        (turn,) = [turn async for turn in session.read()]
        assert turn.status == "partial"
        assert turn.prompt == "go on"
        reply = turn.messages[1]
        assert reply.partial
        assert reply.model == "slow"
        kept_thoughts, kept_words = _kept(reply)
        everything = "".join(THOUGHTS)
        assert everything.startswith(kept_thoughts)
        if "signed" in told:
            # A part that was complete is there, whole.
            assert kept_thoughts == everything
            assert Reasoning("signed", signature="s") in reply.parts
            assert "".join(WORDS).startswith(kept_words)
        # No more is missing than a heartbeat's worth, and what it takes to save it: the chunks
        # come every 2 ms, or later on a busy machine.
        missing = len("".join(thoughts + words)) - len(kept_thoughts + kept_words)
        assert missing <= len(max(WORDS, key=len)) * (BEAT / 0.002 + 40)

        (partial,) = await session.partials()
        match how:
            case 0:
                async with session.answer(resume=partial) as answer:
                    await answer.text("and so on")
                expected, partial_left = kept_words + "and so on", False
            case 1:
                await session.close_partial(partial)
                expected, partial_left = kept_words, True
            case _:
                await session.drop_partial(partial)
                await session.append(assistant("anew"))
                expected, partial_left = "anew", False
        (turn,) = [turn async for turn in session.read()]
        assert turn.status == "closed"
        assert len(turn.messages) == 2
        assert turn.messages[1].partial is partial_left
        assert _kept(turn.messages[1])[1] == expected
        assert await session.partials() == []
        await bank.settle()
        await assert_counted(session)
        assert await problems(bank) == []


def _kept(reply: Message) -> tuple[str, str]:
    """The reasoning, and the text, of a reply."""
    thoughts = [p.text for p in reply.parts if isinstance(p, Reasoning) and not p.signature]
    return "".join(thoughts), "".join(p.text for p in reply.parts if isinstance(p, Text))


# Many processes -----------------------------------------------------------------------------------


@pytest.mark.slow
async def test_eight_processes_append_to_one_session(
    store_url: str, folder: str, zygote: Zygote
) -> None:
    turns = 6
    workers = [
        zygote.start(
            "join_in", store_url, folder=folder, name=f"p{n}", session="fire/one", turns=turns
        )
        for n in range(PROCESSES)
    ]
    labels = [f"p{n}/{number}" for n in range(PROCESSES) for number in range(turns)]
    for n, worker in enumerate(workers):
        assert worker.wait() == ["ready", *labels[n * turns : (n + 1) * turns]]
    async with bank_at(store_url, folder) as bank:
        session = await bank.session("fire/one")
        found = await turns_in(session)
        assert sorted(turn.prompt for turn in found) == sorted(labels)
        for turn in found:
            assert list(turn.messages) == turn_of(turn.prompt)
            assert [len(round.messages) for round in turn.rounds] == [3, 1]
        for n in range(PROCESSES):  # each in its own order
            own = [turn.prompt for turn in found if turn.prompt.startswith(f"p{n}/")]
            assert own == labels[n * turns : (n + 1) * turns]
        assert len(await bank.sessions()) == 1
        await bank.settle()
        await assert_counted(session)
        assert await problems(bank) == []


@pytest.mark.slow
async def test_eight_processes_append_to_eight_sessions(
    store_url: str, folder: str, zygote: Zygote
) -> None:
    turns = 10
    workers = [
        zygote.start(
            "join_in", store_url, folder=folder, name=f"p{n}", session=f"fire/{n}", turns=turns
        )
        for n in range(PROCESSES)
    ]
    for worker in workers:
        worker.wait()
    async with bank_at(store_url, folder) as bank:
        for n in range(PROCESSES):
            session = await bank.session(f"fire/{n}")
            found = await turns_in(session)
            assert [list(turn.messages) for turn in found] == [
                turn_of(f"p{n}/{number}") for number in range(turns)
            ]
            await bank.settle()
            await assert_counted(session)
        assert await problems(bank) == []


@pytest.mark.slow
async def test_of_many_that_expect_the_same_turn_one_wins(
    store_url: str, folder: str, zygote: Zygote
) -> None:
    async with bank_at(store_url, folder) as bank:
        await bank.session("fire/one")
    workers = [
        zygote.start("compete", store_url, folder=folder, session="fire/one", times=5)
        for _ in range(4)
    ]
    won = [line for worker in workers for line in worker.wait()]
    assert sorted(won, key=lambda id: int(id[2:])) == [f"T-{number}" for number in range(1, 21)]
    async with bank_at(store_url, folder) as bank:
        assert len(await turns_in(await bank.session("fire/one"))) == 20
        assert await problems(bank) == []


@pytest.mark.slow
async def test_two_processes_write_one_round(store_url: str, folder: str, zygote: Zygote) -> None:
    calls = [f"c{number}" for number in range(12)]
    async with bank_at(store_url, folder) as bank:
        session = await bank.session("fire/one")
        asked = tuple(ToolCall(call, "shell", "{}") for call in calls)
        await session.append([user("go"), Message("assistant", asked)])
    workers = [
        zygote.start(
            "share_a_round", store_url, folder=folder, session="fire/one", calls=calls[half::2]
        )
        for half in range(2)
    ]
    for worker in workers:
        assert worker.wait() == ["done"]
    async with bank_at(store_url, folder) as bank:
        session = await bank.session("fire/one")
        (turn,) = await turns_in(session)
        (round,) = turn.rounds
        assert sorted(m.results[0].call for m in round.messages[2:]) == sorted(calls)
        # Nobody has to do anything for it: the two have counted it together.
        assert round.tokens == count_messages(o200k(), round.messages)
        assert await problems(bank) == []


async def test_a_process_hears_what_another_appends(
    store_url: str, folder: str, zygote: Zygote
) -> None:
    async with bank_at(store_url, folder) as bank:
        session = await bank.session("fire/one")
        await session.append([user("0"), assistant("0")])
        worker = zygote.start(
            "follow", store_url, folder=folder, session="fire/one", expected=2 * 11 + 1
        )
        assert worker.listen(20, 2)
        other = await bank.session("fire/one")
        await session.append(user("late"))
        for number in range(1, 11):
            await other.append([user(f"{number}"), assistant(f"{number}")])
        told = await asyncio.to_thread(worker.wait)
    assert told == [
        *("T-1.1 0", "T-1.1 0", "T-2.1 late"),
        *(f"T-{number + 2}.1 {number}" for number in range(1, 11) for _ in range(2)),
    ]
