"""The records of the turn log.

Each append writes one or more *pieces*: neighbouring messages of one turn, at most some 192 KB
unless a single round is larger. Pieces never change until their turn is forgotten. The head is one
small row, rewritten by each append: it numbers turns, links the chain, and lets only one writer
win.

Keys: ``planner/auth`` for a session and its head, ``planner/auth/00000183.00000412`` for a piece
(turn, place in the chain), ``planner/auth/00000183`` for what is known about a turn.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Annotated

import msgspec

from perdure.core import messages as canonical
from perdure.core.errors import Corrupted, InvalidInput
from perdure.core.messages import Message
from perdure.core.turns import ConversationState, WriterStatus
from perdure.storage.record_keys import numbered
from perdure.storage.records import Compressed, Indexed, Key, Tags, system_record
from perdure.storage.rows import Index
from perdure.storage.state_records import STATE_INDEXES, StateRecord

#: Microseconds after its last heartbeat until the writer of an answer counts as gone.
ALIVE_FOR = 15_000_000
MAX_NAME = 120  # Long names would make keys that no index can hold.
#: What no name may have: separators of ours, and what would end a line or turn its direction in
#: the prompts and tables where names stand.
_UNFIT = (
    r"/#\x00-\x1f\x7f-\x9f\u2028\u2029\ud800-\udfff"
    r"\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069\ufeff"
)
_name = re.compile(rf"[^\s{_UNFIT}][^{_UNFIT}]*").fullmatch


class SharedTurns(msgspec.Struct, frozen=True, array_like=True):
    """Turns that a fork shares with an ancestor: those up to `turn`, as of `piece` in its chain."""

    session: str
    turn: int
    piece: int


class Link(msgspec.Struct, frozen=True):
    """The tool call that started a session of a sub-agent."""

    session: str
    call: str = ""
    turn: int | None = None


@system_record("sessions", indexes=STATE_INDEXES)
class SessionRecord(StateRecord, frozen=True, kw_only=True):
    """A session: a state record whose state is whatever its user keeps with it."""

    agent: Annotated[str, Indexed()]
    parent: Annotated[str | None, Indexed()] = None  # The session that it was forked from.
    #: The session of the call that started it.
    started_by: Annotated[str | None, Indexed()] = None
    link: Link | None = None
    #: The turns it shares, oldest first. Its own begin behind the last of them.
    line: tuple[SharedTurns, ...] = ()
    root: bytes = b""  # What its own chain is tied to: the link of the last shared piece.
    #: How its history is shown, and in how many tokens; empty and 0: as configured.
    strategy: str = ""
    budget: int = 0
    #: How full the gradient plans its window: a profile, or marks; empty: as configured.
    profile: str | dict[str, float] = ""

    @property
    def forked_at(self) -> int:
        return self.line[-1].turn if self.line else 0

    @property
    def facts(self) -> dict[str, str]:
        """Its tags, and what of its state can be one, such as the branch that importers
        keep there.
        """
        found = {name: value for name, value in self.state.items() if isinstance(value, str)}
        return found | self.tags


class TurnSpan(msgspec.Struct, frozen=True, array_like=True):
    """Turns from `first` to `last`."""

    first: int
    last: int


@system_record("heads")
class Head(msgspec.Struct, frozen=True, omit_defaults=True, gc=False):
    """The current state of a session."""

    id: Annotated[str, Key()]
    mark: ConversationState = ConversationState()
    #: Pieces, and messages, in its line so far.
    pieces: int = 0
    messages: int = 0
    link: bytes = b""  # The hash of the newest piece, over all that came before it.
    time: int = 0  # When the newest message was written. Microseconds.
    said: int = 0  # When it was said, which is earlier if it was imported. Microseconds.
    closed: bool = False  # The newest turn was closed by hand.
    undone: tuple[TurnSpan, ...] = ()  # Turns that were taken back.
    forgets: int = 0  # How often turns of its line were forgotten: caches check it.
    answering: tuple[int, ...] = ()  # Turns with a draft.

    @property
    def turn(self) -> int:
        return self.mark.turn

    @property
    def newest(self) -> int:
        """Like `turn`, counting one that has begun with an answer and is not written yet."""
        return max(self.mark.turn, *self.answering) if self.answering else self.mark.turn

    def is_undone(self, turn: int) -> bool:
        return bool(self.undone) and any(s.first <= turn <= s.last for s in self.undone)


@system_record("turns", indexes=[Index(("session", "time"))])
class TurnPiece(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True, gc=False):
    """Neighbouring messages of one turn, as one append wrote them."""

    id: Annotated[str, Key()]
    content: Annotated[bytes, Compressed()] = b""  # The stored messages; empty once forgotten.
    #: Hides the content from whoever knows the hash alone.
    salt: bytes = b""
    link: bytes
    #: The round of the first message, and the places in `content` where further rounds begin.
    round: int
    breaks: tuple[int, ...] = ()
    #: When its first and its last message were said. Microseconds.
    time: int
    ended: int
    commitment: bytes = b""  # The hash of salt and content, in their stead once they are forgotten.
    session: str | None = None  # Set if it opens a turn: to find turns by time.
    #: Secrets that were masked in it: how many of which kind.
    masked: dict[str, int] = {}
    tags: Annotated[dict[str, str], Tags()] = {}

    @property
    def turn(self) -> int:
        return int(self.id[-17:-9])

    @property
    def number(self) -> int:
        return int(self.id[-8:])

    @property
    def forgotten(self) -> bool:
        return bool(self.commitment)

    def messages(self) -> tuple[Message, ...]:
        """Raises `Corrupted` if the content is not what a log writes."""
        if self.forgotten:
            return ()
        try:
            return canonical.decode(self.content)
        except msgspec.MsgspecError as exc:
            raise Corrupted(
                f"The content of {self.id} cannot be read: {exc}.",
                hint="Run `perdure verify`; restore the bank from a backup.",
                record=f"perdure_turns/{self.id}",
            ) from exc

    def by_round(self) -> list[tuple[int, tuple[Message, ...]]]:
        said, round, start = self.messages(), self.round, 0
        found: list[tuple[int, tuple[Message, ...]]] = []
        for end in self.breaks:
            found.append((round, said[start:end]))
            round, start = round + 1, end
        found.append((round, said[start:]))
        return found


class RoundCount(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """The o200k tokens of so many messages of a round."""

    tokens: int = 0
    messages: int = 0


@system_record("counts")
class TurnCount(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """The tokens of a turn's rounds. One row for all: a row for each would take more
    than it says.
    """

    id: Annotated[str, Key()]  # session/turn
    tokens: Annotated[int, Indexed()] = 0
    rounds: Annotated[int, Indexed()] = 0
    counted: tuple[RoundCount, ...] = ()

    @property
    def turn(self) -> int:
        return int(self.id[-8:])

    def of(self, round: int) -> RoundCount:
        return self.counted[round - 1] if round <= self.rounds else RoundCount()

    def having(self, round: int, counted: RoundCount) -> TurnCount:
        missing = (RoundCount(),) * (round - self.rounds)
        rounds = [*self.counted, *missing]
        rounds[round - 1] = counted
        tokens = sum(each.tokens for each in rounds)
        return TurnCount(self.id, tokens, len(rounds), tuple(rounds))


@system_record("receipts")
class Receipt(msgspec.Struct, frozen=True):
    """An append with a key was written, and where: it is not written twice."""

    id: Annotated[str, Key()]  # session/hash of the key
    first: int
    last: int


@system_record("drafts")
class AnswerDraft(msgspec.Struct, frozen=True, kw_only=True):
    """An answer that is still arriving."""

    id: Annotated[str, Key()]  # session/turn
    content: Annotated[bytes, Compressed()]
    #: When it began, when it last grew, when its writer last gave a sign of life; 0 once the writer
    #: has left it. Microseconds.
    started: int
    updated: int
    heartbeat: int = 0

    @property
    def message(self) -> Message:
        (message,) = canonical.decode(self.content)
        return message

    def writer(self, now: int) -> WriterStatus:
        return "alive" if now - self.heartbeat < ALIVE_FOR else "gone"


@system_record("uses")
class Use(msgspec.Struct, frozen=True):
    """A turn refers to an artifact. The hash is only in the row, not in an index: it identifies the
    content.
    """

    id: Annotated[str, Key()]  # session/turn.hash
    artifact: Annotated[str, Indexed()]


def agent_of(session: object) -> str:
    """Raises `InvalidInput` if the session's name is not ``agent/name``."""
    text = session if isinstance(session, str) else ""
    agent, slash, name = text.partition("/")
    length = len(text.encode("utf-8", "surrogatepass"))
    if not slash or not _name(agent) or not _name(name) or length > MAX_NAME:
        raise InvalidInput(
            f"{session!r} cannot be the name of a session.",
            hint=f"Write agent/name: no '#', no control characters, at most {MAX_NAME} bytes.",
        )
    return agent


def checked_agent(agent: object) -> str:
    """Raises `InvalidInput` if no agent can be called that."""
    if not isinstance(agent, str):
        raise InvalidInput(
            f"{agent!r} cannot be an agent.", hint="Give the agent's name as text, like 'coder'."
        )
    try:
        return agent_of(f"{agent}/x")
    except InvalidInput:
        raise InvalidInput(
            f"{agent!r} cannot be an agent.", hint="Name the agent, not a session of it."
        ) from None


def piece_key(session: str, turn: int, piece: int) -> str:
    return f"{session}/{numbered(turn)}.{numbered(piece)}"


def turn_prefix(session: str, turn: int) -> str:
    return f"{session}/{numbered(turn)}."


def turn_key(session: str, turn: int) -> str:
    return f"{session}/{numbered(turn)}"


ENDLESS = 2**53  # More than any session will have.


class Owned(msgspec.Struct, frozen=True):
    """Turns of a line that are in one session's log, and the last piece of it that counts."""

    session: str
    first: int
    last: int
    piece: int = ENDLESS


def owners(record: SessionRecord, first: int, last: int) -> Iterator[Owned]:
    start = 1
    for stretch in record.line:
        if start <= last and stretch.turn >= first:
            found = Owned(
                stretch.session, max(first, start), min(last, stretch.turn), stretch.piece
            )
            if found.first <= found.last:
                yield found
        start = stretch.turn + 1
    if max(first, start) <= last:
        yield Owned(record.id, max(first, start), last)


def line_at(record: SessionRecord, turn: int, piece: int) -> tuple[SharedTurns, ...]:
    shared = tuple(stretch for stretch in record.line if stretch.turn < turn)
    owner = next(owners(record, turn, turn))
    return (*shared, SharedTurns(owner.session, turn, min(piece, owner.piece)))


def newest(head: Head) -> int:
    number = head.turn
    while head.is_undone(number):
        number -= 1
    return number


def undone_at(head: Head, turn: int) -> tuple[TurnSpan, ...]:
    """What is undone in a fork behind `turn`. Forking from an undone turn restores the line as it
    was before that turn was undone.
    """
    return tuple(span for span in undone_before(head, turn) if span.last < turn)


def undone_before(head: Head, turn: int) -> tuple[TurnSpan, ...]:
    """What was undone already when this turn was; if it is not undone, all that is."""
    spans = head.undone
    found = [at for at, span in enumerate(spans) if span.first <= turn <= span.last]
    if not found:
        return spans
    at = found[0]
    # One undoing left several spans if there were undone turns in between.
    while at and _is_undone(spans[: at - 1], spans[at - 1].last + 1, spans[at].first - 1):
        at -= 1
    return spans[:at]


def _is_undone(spans: tuple[TurnSpan, ...], first: int, last: int) -> bool:
    """Whether there are turns from `first` to `last`, and all of them are in these spans."""
    return first <= last and all(
        any(span.first <= turn <= span.last for span in spans) for turn in range(first, last + 1)
    )
