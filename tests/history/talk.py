"""What is said in these tests, and how it is read back."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from typing import Any

from perdure.bank import Bank
from perdure.core.messages import Message, Text, ToolCall, ToolResult, assistant, user
from perdure.core.turns import Turn
from perdure.history.log_records import (
    AnswerDraft,
    Head,
    Receipt,
    SessionRecord,
    TurnCount,
    TurnPiece,
    Use,
)
from perdure.jobs import PendingMark
from perdure.sessions.session import Session
from perdure.storage.middleware import Call, Commit, Get, Handler, Rewrite, SearchCall, Summarize
from perdure.storage.records import type_of


def call(*ids: str, name: str = "shell", arguments: str = "{}") -> Message:
    """A reply that asks for tools."""
    return Message("assistant", tuple(ToolCall(id, name, arguments) for id in ids))


def result(*ids: str, text: str = "done") -> Message:
    return Message("tool", tuple(ToolResult(id, (Text(text),)) for id in ids))


def note(text: str) -> Message:
    return Message("user", (Text(text),), injected=True)


def chat(number: int) -> list[Message]:
    """A turn of two messages that tell which one it is."""
    return [user(f"prompt {number}"), assistant(f"reply {number}")]


def work(number: int) -> list[Message]:
    """A turn of two rounds and four messages."""
    return [
        user(f"prompt {number}"),
        call(f"c{number}"),
        result(f"c{number}", text=f"output {number}"),
        assistant(f"reply {number}"),
    ]


async def fill(session: Session, turns: int, first: int = 1) -> None:
    """So many turns, each in an append of its own."""
    for number in range(first, first + turns):
        await session.append(chat(number))


def one(written: Turn | list[Turn]) -> Turn:
    """What an append returned, if it was one turn."""
    assert isinstance(written, Turn)
    return written


def several(written: Turn | list[Turn]) -> list[Turn]:
    assert isinstance(written, list)
    return written


async def whole(session: Session, **options: Any) -> list[Turn]:
    """All turns of a session."""
    return [turn async for turn in session.read(**options)]


async def said(session: Session, **options: Any) -> list[Message]:
    """All messages of a session."""
    return [message for turn in await whole(session, **options) for message in turn.messages]


def numbers(turns: Iterable[Turn]) -> list[int]:
    return [turn.number for turn in turns]


def texts(messages: Iterable[Message]) -> list[str]:
    """The words of each message, whoever said them."""
    return [
        "|".join([message.text, *(found.text for found in message.results)]).strip("|")
        for message in messages
    ]


def shape(turn: Turn) -> list[int]:
    """How many messages each round has."""
    return [len(round.messages) for round in turn.rounds]


async def problems(bank: Bank) -> list[tuple[str, str]]:
    """What `perdure verify` would tell."""
    return [(problem.subject, problem.what) async for problem in bank.verify()]


_OF_THE_LOG = {
    type_of(kind).name
    for kind in (AnswerDraft, Head, TurnPiece, Receipt, TurnCount, SessionRecord, PendingMark, Use)
}


def _collections(call: Call) -> set[str]:
    match call:
        case Commit():
            return {write.collection for write in call.batch.writes}
        case Get() | Rewrite() | SearchCall():
            return {call.collection}
        case Summarize():
            return {call.summary.query.collection}
        case _:
            return {call.query.collection}


class Ledger:
    """Middleware that notes each operation of its own task on what the turn log keeps.

    Not what is done in the background: counting, compression, jobs, subscriptions.
    """

    def __init__(self) -> None:
        self.calls: list[Call] = []
        self._task = asyncio.current_task()

    async def __call__(self, call: Call, proceed: Handler) -> Any:
        own = asyncio.current_task() is self._task
        if own and not _collections(call).isdisjoint(_OF_THE_LOG):
            self.calls.append(call)
        return await proceed(call)

    def kinds(self) -> list[str]:
        """What was done since the last look."""
        found = [type(call).__name__ for call in self.calls]
        self.calls.clear()
        return found


class Fault:
    """Middleware that raises an error instead, as long as one is set, for calls that it picks."""

    def __init__(self) -> None:
        self.error: BaseException | None = None
        self.hit = 0

    def picks(self, call: Call) -> bool:
        return True

    async def __call__(self, call: Call, proceed: Handler) -> Any:
        if self.error is not None and self.picks(call):
            self.hit += 1
            raise self.error
        return await proceed(call)
