"""Turns and rounds: how messages are cut up and numbered.

A turn is one prompt and all that follows until the next prompt. A round is one model call with its
tool calls and results; the prompt belongs to the first. Only `TurnSplitter` decides that.

    T-183       a turn
    T-183.4     its fourth round
    planner/auth#T-183    a turn of that session
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Literal, NamedTuple

import msgspec

from perdure.core.errors import InvalidInput
from perdure.core.messages import Message, ToolCall, ToolResult

#: ``open`` waits for more; for ``partial`` an answer is arriving, or was when its process died;
#: ``undone`` was taken back, and is kept but shown to no model; ``forgotten`` lost its content.
Status = Literal["open", "closed", "partial", "undone", "forgotten"]
#: Of a partial turn: whether who writes its answer gave a sign of life in the last 15 seconds.
WriterStatus = Literal["alive", "gone"]

_POSITION = re.compile(r"T-([1-9]\d{0,7})(?:\.([1-9]\d{0,5}))?", re.ASCII).fullmatch


class Position(NamedTuple):
    """A turn, or a round in it, of a session."""

    turn: int
    round: int | None = None

    def __str__(self) -> str:
        return f"T-{self.turn}" if self.round is None else f"T-{self.turn}.{self.round}"

    @classmethod
    def parse(cls, text: str | int | Position) -> Position:
        """From ``"T-183.4"``, ``"T-183"`` or ``183``. Raises `InvalidInput` for anything else."""
        if isinstance(text, Position):
            return text
        if isinstance(text, int) and not isinstance(text, bool):
            text = f"T-{text}"
        found = _POSITION(text) if isinstance(text, str) else None
        if found is None:
            raise InvalidInput(
                f"{text!r} does not name a turn.", hint="Write T-12, or T-12.3 for a round of it."
            )
        return cls(int(found[1]), int(found[2]) if found[2] else None)


class Round(msgspec.Struct, frozen=True, gc=False):
    """One model call with what belongs to it."""

    number: int
    messages: tuple[Message, ...]
    #: In o200k tokens; None until they have been counted, a moment after writing.
    tokens: int | None = None


class Turn(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """One prompt and all that followed."""

    session: str
    number: int
    rounds: tuple[Round, ...]
    status: Status
    #: When it began, and when the newest of it was written. Microseconds.
    started: int
    ended: int
    tags: dict[str, str] = {}
    #: Secrets that were masked in it before it was written: how many of which kind.
    masked: dict[str, int] = {}
    writer: WriterStatus | None = None  # None unless it is partial.
    #: The newest piece of the log that it is made of: the same turn with a greater one says more.
    #: Not counting an answer that arrives.
    version: int = 0

    @property
    def id(self) -> str:
        return f"T-{self.number}"

    @property
    def messages(self) -> tuple[Message, ...]:
        return tuple(message for round in self.rounds for message in round.messages)

    @property
    def prompt(self) -> str:
        """Empty if the turn began without one."""
        first = self.rounds[0].messages if self.rounds else ()
        return "\n".join(m.text for m in first if is_prompt(m))

    @property
    def arrival(self) -> str:
        """What became of the answer of a partial turn, in words; empty for another."""
        if self.status != "partial":
            return ""
        alive = self.writer == "alive"
        return (
            "its answer is still arriving"
            if alive
            else "its answer was cut off: its writer is gone"
        )

    @property
    def tokens(self) -> int | None:
        """In o200k tokens; None while a round of it has not been counted."""
        counts = [round.tokens for round in self.rounds]
        return None if None in counts else sum(counts)  # type: ignore[arg-type]


def is_prompt(message: Message) -> bool:
    """Whether the message opens a turn: a user's own words, not a tool's or a harness's."""
    return message.role == "user" and not message.injected and not message.results


class ConversationState(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """The newest turn and round, and what that round waits for."""

    turn: int = 0
    round: int = 0
    #: The next message opens a turn, whatever it is.
    fresh: bool = True
    waiting: tuple[str, ...] = ()
    #: The round has its reply; the reply's id; a tool has answered.
    replied: bool = False
    reply: str = ""
    resulted: bool = False
    #: Messages in the round.
    said: int = 0

    @property
    def closed(self) -> bool:
        """Whether the newest reply asks for no tool."""
        return self.replied and not self.waiting and not self.resulted


class TurnSplitter:
    """Gives each message its turn and round. Feed it messages in order.

    * A prompt opens a turn, unless the turn has no reply yet: a prompt may be several messages.
    * A reply opens a round, unless the round waits for its reply or for the first result of its
      calls, or the reply continues the same one (same id).
    * Everything else stays where it is; results stay behind their calls, in one round.

    A splitter made with `mark` continues from there.
    """

    def __init__(self, mark: ConversationState = ConversationState()) -> None:  # noqa: B008 (frozen)
        self.turn, self.round = mark.turn, mark.round
        self._fresh = mark.fresh
        self._waiting = dict.fromkeys(mark.waiting)
        self._replied, self._reply, self._resulted = mark.replied, mark.reply, mark.resulted
        self._said = mark.said

    @property
    def mark(self) -> ConversationState:
        return ConversationState(
            self.turn,
            self.round,
            self._fresh,
            tuple(self._waiting),
            self._replied,
            self._reply,
            self._resulted,
            self._said,
        )

    def feed(self, message: Message) -> tuple[int, int]:
        if self._fresh or (is_prompt(message) and (self._replied or self._resulted)):
            self._fresh = False
            self.turn, self.round = self.turn + 1, 1
            self._begin_round()
        elif message.role == "assistant" and self._opens_round(message):
            self.round += 1
            self._begin_round()
        self._said += 1
        is_reply = message.role == "assistant"
        if is_reply:
            # What a tool said before the first reply is answered by it.
            self._resulted = self._resulted and self._replied
            self._replied, self._reply = True, message.id
        for part in message.parts:
            if isinstance(part, ToolCall):
                self._waiting[part.id] = None
            elif isinstance(part, ToolResult):
                # A result inside the reply is of a tool that the provider ran: the reply goes on.
                self._resulted = self._resulted or not is_reply
                self._waiting.pop(part.call, None)
        return self.turn, self.round

    def _opens_round(self, message: Message) -> bool:
        if not self._replied or (message.id and message.id == self._reply):
            return False
        return self._resulted or not self._waiting

    def _begin_round(self) -> None:
        self._waiting = {}
        self._replied, self._reply, self._resulted, self._said = False, "", False, 0


def rounds(messages: Iterable[Message]) -> list[tuple[int, int, list[Message]]]:
    cutter = TurnSplitter()
    found: list[tuple[int, int, list[Message]]] = []
    for message in messages:
        place = cutter.feed(message)
        if not found or found[-1][:2] != place:
            found.append((*place, []))
        found[-1][2].append(message)
    return found
