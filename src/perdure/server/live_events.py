"""What is said on ``/api/v1/live``: JSON in text frames, told apart by ``type``. See docs/live.md.

A session's *cursor* is the number of the newest piece of its log that a reader was told of; pieces
are numbered without gaps, in the order in which they were written. The cursor of an agent, or of
all, is a `LiveCursor`.
"""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec

from perdure.core.messages import Message, Part, Reasoning, Text, ToolCall, words_of
from perdure.history.answer_feed import DeltaOf
from perdure.history.log_records import Head, TurnPiece

Topic = Literal["turns", "answers", "jobs"]
TOPICS: tuple[Topic, ...] = ("turns", "answers", "jobs")
#: Bytes of an event; a larger one comes without its messages.
MOST_EVENT = 256 << 10


class LiveCursor(msgspec.Struct, frozen=True):
    """Where a reader of several sessions stands: at `sessions`' own cursors; in all others, behind
    what was written before `time` (microseconds). A reader that heard a turn of a session notes its
    cursor under its name.
    """

    time: Annotated[int, msgspec.Meta(ge=0, lt=1 << 56)]
    sessions: dict[str, Annotated[int, msgspec.Meta(ge=0)]] = {}


# What clients say -----------------------------------------------------------------------------


class _Request(msgspec.Struct, frozen=True, tag_field="type", forbid_unknown_fields=True):
    #: The client's name for the subscription.
    id: Annotated[str, msgspec.Meta(min_length=1, max_length=64)]


class Subscribe(_Request, frozen=True, tag="subscribe", kw_only=True):
    """Hear a session, an agent, or all: exactly one. `after` is the cursor to go on from; without
    it, from now on.
    """

    session: str = ""
    agent: str = ""
    all: bool = False
    after: Annotated[int, msgspec.Meta(ge=0)] | LiveCursor | None = None
    topics: tuple[Topic, ...] = TOPICS


class Unsubscribe(_Request, frozen=True, tag="unsubscribe"):
    """Hear no more of it."""


# What the server says -------------------------------------------------------------------------


class _Event(msgspec.Struct, frozen=True, tag_field="type", omit_defaults=True):
    pass


class SubscriptionBegan(_Event, frozen=True, tag="subscribed"):
    """It was understood. What was missed since its cursor follows, then ``live``."""

    id: str


class SubscriptionLive(_Event, frozen=True, tag="live"):
    """Everything up to this cursor was told; from now on, events come as they happen. Also said
    from time to time to whoever hears several sessions: a shorter cursor than it has gathered.
    """

    id: str
    cursor: int | LiveCursor


class SubscriptionEnded(_Event, frozen=True, tag="unsubscribed"):
    """The client asked for it."""

    id: str


class LiveFault(_Event, frozen=True, tag="error"):
    """A frame was not understood, or not allowed. The others go on."""

    code: str
    message: str
    hint: str = ""
    #: The subscription that it is about, if it is known.
    id: str = ""


class SkippedTurns(msgspec.Struct, frozen=True):
    """What was written to a session behind the cursor `after`, up to the cursor `through`, in these
    turns; `first` is 0 if it is not known.
    """

    after: int
    through: int
    first: int
    last: int


class EventsSkipped(_Event, frozen=True, tag="skipped"):
    """The client read too slowly. Turns are read from their cursor by subscribing again, or by
    the API; answers come whole with their turn.
    """

    turns: dict[str, SkippedTurns] = {}
    #: How many other events about sessions, about answers, about jobs.
    sessions: int = 0
    answers: int = 0
    jobs: int = 0


class RoundSaid(msgspec.Struct, frozen=True):
    """Messages that were added to a round."""

    number: int
    messages: tuple[Message, ...]


class TurnGrew(_Event, frozen=True, tag="turn", kw_only=True):
    """Messages were written: a whole turn, or more of one. Times are microseconds."""

    session: str
    cursor: int
    turn: int
    rounds: tuple[RoundSaid, ...]
    open: bool = False
    undone: bool = False
    forgotten: bool = False
    started: int
    ended: int
    tags: dict[str, str] = {}
    #: Bytes of the messages, if they are too many to be sent: read the turn by the API.
    omitted: int = 0


class SessionChanged(_Event, frozen=True, tag="session", kw_only=True):
    """Something else changed: turns were undone or forgotten, one was closed, or all is gone."""

    session: str
    cursor: int
    turn: int
    closed: bool = False
    undone: tuple[tuple[int, int], ...] = ()
    forgets: int = 0
    gone: bool = False


class AnswerArriving(_Event, frozen=True, tag="answer", kw_only=True):
    """An answer began, or was there when the subscription began: what there is of it. ``ended``:
    it is written, and comes with its turn; or it was dropped. ``left``: it is incomplete, and
    nobody writes it any more.
    """

    session: str
    turn: int
    state: Literal["arriving", "ended", "left"]
    message: Message | None = None


class AnswerGrew(_Event, frozen=True, tag="delta", kw_only=True, gc=False):
    """More of an answer: `text` follows the `at` characters of its part number `part`."""

    session: str
    turn: int
    part: int = 0
    of: DeltaOf = "text"
    at: int = 0
    text: str = ""
    #: Of a call.
    id: str = ""
    name: str = ""


class AnswerAlive(_Event, frozen=True, tag="heartbeat"):
    """Nothing arrived, and somebody still waits for it."""

    session: str
    turn: int


class JobChanged(_Event, frozen=True, tag="job", kw_only=True):
    """A job is in another state. One that is ``done`` is no longer there."""

    id: str
    kind: str
    state: Literal["pending", "running", "failed", "done"]
    attempts: int = 0
    error: str = ""
    session: str = ""


ClientFrame = Subscribe | Unsubscribe
_decoder = msgspec.json.Decoder(ClientFrame)
_encoder = msgspec.json.Encoder()


def read_frame(text: str | bytes) -> ClientFrame:
    """Raises `msgspec.MsgspecError`, or another `ValueError`."""
    frame: ClientFrame = _decoder.decode(text)
    return frame


def frame_text(event: msgspec.Struct) -> str:
    return _encoder.encode(event).decode()


def turn_event(session: str, piece: TurnPiece, head: Head) -> TurnGrew:
    turn, content = piece.turn, piece.content
    omitted = len(content) if len(content) > MOST_EVENT else 0
    rounds = () if omitted or piece.forgotten else piece.by_round()
    return TurnGrew(
        session=session,
        cursor=piece.number,
        turn=turn,
        rounds=tuple([RoundSaid(number, messages) for number, messages in rounds]),
        open=turn == head.turn and not (head.closed or head.mark.closed or head.mark.fresh),
        undone=head.is_undone(turn),
        forgotten=piece.forgotten,
        started=piece.time,
        ended=piece.ended,
        tags=piece.tags,
        omitted=omitted,
    )


def session_event(head: Head) -> SessionChanged:
    return SessionChanged(
        session=head.id,
        cursor=head.pieces,
        turn=head.turn,
        closed=head.closed,
        undone=tuple([(span.first, span.last) for span in head.undone]),
        forgets=head.forgets,
    )


def growth(session: str, turn: int, before: Message, after: Message) -> list[AnswerGrew] | None:
    """What arrived between two drafts of an answer; None if the later does not extend the earlier,
    because something in it was masked, say.
    """
    found: list[AnswerGrew] = []
    old, new = [_written(part) for part in before.parts], [_written(part) for part in after.parts]
    if len(new) < len(old):
        return None
    for number, (of, id, name, text) in enumerate(new):
        known = old[number] if number < len(old) else None
        if known is not None and (known[:3] != (of, id, name) or not text.startswith(known[3])):
            return None
        at = 0 if known is None else len(known[3])
        if known is None or len(text) > at:
            found.append(
                AnswerGrew(
                    session=session,
                    turn=turn,
                    part=number,
                    of=of,
                    at=at,
                    text=text[at:],
                    id=id,
                    name=name,
                )
            )
    return found


def _written(part: Part) -> tuple[DeltaOf, str, str, str]:
    if isinstance(part, ToolCall):
        return "call", part.id, part.name, part.arguments
    if isinstance(part, Text):
        return "text", "", "", part.text
    return ("reasoning" if isinstance(part, Reasoning) else "other"), "", "", words_of(part)
