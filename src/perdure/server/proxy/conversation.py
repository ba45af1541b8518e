"""One conversation that a client has through the proxy: its session, and the line of what is
recorded of it.

What is kept in memory can be made again from the log at any time, so a restart doubles nothing, and
others (importers, hooks, another proxy) may write to the same session.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from typing import NamedTuple, Protocol

from perdure.bank.bank import Bank
from perdure.core.messages import Message
from perdure.core.turns import Turn
from perdure.history.log_records import Head, SessionRecord, TurnSpan, undone_before
from perdure.history.message_identity import COMPACTION, identities, is_weak, with_texts
from perdure.history.turn_log import Written
from perdure.server.proxy.alignment import Recorded, gap
from perdure.sessions.session import Session
from perdure.storage.options import STRONG

#: The event that stands where nothing was recorded, because of `perdure pause`.
PAUSED = "paused"
#: In a session's state: it took the place of one that was forgotten, whose words its client has.
FORGOTTEN = "forgotten"


class AnswerInProgress(Protocol):
    """An answer of this process that is not written yet."""

    #: Its end has come; it is written, or left.
    ended: asyncio.Event
    done: asyncio.Event

    async def leave(self) -> None:
        """Write nothing more: what has arrived stays as a draft."""


class Said(NamedTuple):
    """A message of the line, its identities, and its place."""

    message: Message
    identities: tuple[str, ...]
    turn: int
    round: int


class OthersWrote(Exception):
    """A conversation is not as it was when a request was compared with it."""


class SessionGone(Exception):
    """The session of a conversation was forgotten."""

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.name = name


class Conversation:
    """One conversation: its session, and the line of what is recorded of it."""

    def __init__(self, bank: Bank, session: Session) -> None:
        self.session = session
        #: Held while the line is compared, and written to.
        self.lock = asyncio.Lock()
        self.line: list[Recorded] = []
        #: Answers that are arriving in this process, by turn.
        self.answers: dict[int, AnswerInProgress] = {}
        #: When it was spoken in, counted over all conversations.
        self.spoken = 0
        #: The turn that `session` wrote to last; 0 if it did not write.
        self.own_turn = 0
        self._bank = bank
        self._head: Head | None = None
        self._ended = (0, 0)  # the newest turn, and how many messages it has

    async def refresh(self) -> Head:
        """Read what others wrote. Call it with the lock. Raises `SessionGone`."""
        head = await self.session.head()
        before, self._head = self._head, head
        if before is not None and _is_same(before, head):
            return head
        if self.line and not head.pieces:
            raise SessionGone(self.session.name)
        record = self.session.record
        if before is not None or record.line:
            found = await self._bank.store.collection(SessionRecord).get(record.id, STRONG)
            record = found or record
        first = 1
        if before is not None and before.undone == head.undone and before.forgets == head.forgets:
            first = max(before.turn, 1)
        if before is not None:
            self.session = Session(self._bank.services, record)
            self.own_turn = 0
        self.line = [part for part in self.line if part.turn < first] if first > 1 else []
        if first == 1 and record.state.get(FORGOTTEN):
            self.line = [gap(0)]
        forgotten = await self._bank.services.reader.forgotten(record, head, first)
        walk = self._bank.services.reader.walk(record, head, first, arriving=False)
        async for turn in walk:
            if not head.is_undone(turn.number):
                if turn.number in forgotten:
                    self._add_gap(turn.number)
                await self._take(turn)
        return head

    def _add_gap(self, turn: int) -> None:
        if self.line and self.line[-1].is_gap:
            self.line.pop()
        self.line.append(gap(turn))

    @property
    def head(self) -> Head | None:
        """As of the last look; None if others wrote since."""
        return self._head

    def wrote(self, head: Head, pieces: int, *, undone: bool = False) -> None:
        """We wrote so many pieces ourselves: they need no reading, unless others wrote between."""
        before = self._head
        is_ours = (
            before is not None
            and before.pieces + pieces == head.pieces
            and before.forgets == head.forgets
            and (undone or before.undone == head.undone)
        )
        self._head = head if is_ours else None

    def check(self, written: Written) -> None:
        """In the transaction of an append: raises `OthersWrote` if somebody, such as an importer,
        wrote to the session since the last look. What they wrote may be the same.
        """
        before = self._head
        if before is not None and written.head.pieces - len(written.pieces) != before.pieces:
            raise OthersWrote

    def said(self, messages: Iterable[Said]) -> list[int]:
        """Add messages to the line. Returns for each the place of its last part; -1 if it has no
        identity.
        """
        found: list[int] = []
        for message, parts, turn, round in messages:
            ordinal = self._ended[1] if self._ended[0] == turn else self._count(turn)
            self._ended = turn, ordinal + 1
            by_model = message.role == "assistant"
            compaction = message.role == "event" and message.name == COMPACTION
            if message.role == "event" and message.name == PAUSED:
                self._add_gap(turn)
            self.line += [
                Recorded(identity, turn, round, ordinal, by_model, compaction) for identity in parts
            ]
            found.append(len(self.line) - 1 if parts else -1)
        return found

    def forget_from(self, turn: int) -> None:
        """Turns from this one on are no longer part of the line."""
        self.line = [part for part in self.line if part.turn < turn]
        self._ended = (0, 0)

    @property
    def last_reply(self) -> str:
        """The identity of what the model said last, as of the last look; empty: nothing."""
        replies = (part.identity for part in reversed(self.line) if part.by_model)
        return next((each for each in replies if not is_weak(each)), "")

    @property
    def is_settled(self) -> bool:
        """Whether every answer whose end has come is written."""
        return not any(answer.ended.is_set() for answer in self.answers.values())

    async def settle(self) -> None:
        """Wait for answers whose end has come and is not written yet."""
        for answer in list(self.answers.values()):
            if answer.ended.is_set():
                await answer.done.wait()

    def _count(self, turn: int) -> int:
        """How many messages a turn has, as far as the line tells."""
        return max((part.message + 1 for part in self.line if part.turn == turn), default=0)

    async def _take(self, turn: Turn) -> None:
        self._ended = turn.number, 0
        for round in turn.rounds:
            messages = await with_texts(round.messages, self._bank.artifacts)
            self.said(
                Said(message, identities(message), turn.number, round.number)
                for message in messages
            )

    async def branches(self) -> list[tuple[TurnSpan, list[Recorded]]]:
        """What was taken back, each with the line that it was part of."""
        head = await self.session.head()
        found: list[tuple[TurnSpan, list[Recorded]]] = []
        for span in head.undone:
            other = Conversation(self._bank, self.session)
            hidden = undone_before(head, span.last)
            walk = self._bank.services.reader.walk(
                self.session.record, head, 1, span.last, arriving=False
            )
            async for turn in walk:
                if not any(each.first <= turn.number <= each.last for each in hidden):
                    await other._take(turn)
            found.append((span, other.line))
        return found


def _is_same(one: Head, other: Head) -> bool:
    return (one.pieces, one.undone, one.forgets) == (other.pieces, other.undone, other.forgets)
