"""A session as a file, for other programs: JSON, one object a line, and back.

    {"perdure": 1, "session": {"name": "planner/auth", "agent": "planner", …}}
    {"turn": 12, "status": "closed", "started": 1770912120000000, "ended": …, "tags": {…}}
    {"turn": 12, "round": 1, "message": {"role": "user", "parts": [{"kind": "text", …}]}}
    {"turn": 12, "round": 1, "message": {"role": "assistant", …}}
    {"end": {"turns": 12, "messages": 40}}

The file stands by itself: what lies in the artifact store is put back into the messages, and a fork
brings the turns that it shares. Turns that were undone are there and say so; of one that was
forgotten, its number and its times are. Times are microseconds since 1970; bytes are base64. Where
JSON cannot say what a message holds (NaN, a key that is no text), its stored form stands beside it.

The same session gives the same bytes. Writing and reading take memory for some turns, not for all.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterable
from datetime import datetime
from typing import Any, Protocol

import msgspec

from perdure.core import messages as canonical
from perdure.core.errors import (
    ArtifactMissing,
    Corrupted,
    InvalidInput,
    NewerSchema,
    PerdureError,
)
from perdure.core.messages import Message
from perdure.core.turns import Status, Turn
from perdure.history.log_records import Head, Link, SessionRecord

VERSION = 1  # Goes up when a reader of this version could misunderstand the file.
ORIGIN = "forked_from"  # In the state: what it was forked from, if in another bank.


class ExportSource(Protocol):
    """The session that is exported."""

    @property
    def record(self) -> SessionRecord: ...
    async def head(self) -> Head: ...
    def read(self, *, undone: bool = False) -> AsyncIterator[Turn]: ...
    async def resolve(self, messages: Iterable[Message]) -> tuple[Message, ...]: ...


OnMissing = Callable[[PerdureError], None]  # The reference of an unreadable artifact stays then.


class Header(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Which session a file holds."""

    name: str
    agent: str
    type: str = "session"
    state: dict[str, Any] = {}
    tags: dict[str, str] = {}
    active: datetime | None = None
    archived: datetime | None = None
    #: What it was forked from, and behind which turn. The file holds those turns, too.
    parent: str | None = None
    forked_at: int = 0
    link: Link | None = None  # The tool call that started it.


class _Origin(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    parent: str
    at: int


class ExportedTurn(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Begins a turn; its messages follow. A forgotten one has none."""

    turn: int
    status: Status
    started: int
    ended: int
    tags: dict[str, str] = {}
    masked: dict[str, int] = {}
    tokens: int | None = None


class ExportedMessage(msgspec.Struct, frozen=True, omit_defaults=True):
    """A message of a turn."""

    turn: int
    round: int
    message: Message


class End(msgspec.Struct, frozen=True):
    """The file is complete: so much was written."""

    turns: int
    messages: int


Line = Header | ExportedTurn | ExportedMessage | End


class _Line(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    perdure: int | None = None
    session: Header | None = None
    turn: int | None = None
    round: int | None = None
    message: Message | None = None
    #: The message as it is stored, where JSON would lose something.
    exact: bytes | None = None
    status: Status | None = None
    started: int = 0
    ended: int = 0
    tags: dict[str, str] = {}
    masked: dict[str, int] = {}
    tokens: int | None = None
    end: End | None = None


_encoder = msgspec.json.Encoder()
_decoder = msgspec.json.Decoder(_Line)
_message = msgspec.json.Decoder(Message)


def header(record: SessionRecord) -> Header:
    state, parent, forked_at = dict(record.state), record.parent, record.forked_at
    if parent is None and (origin := _origin(state)) is not None:
        del state[ORIGIN]
        parent, forked_at = origin.parent, origin.at
    return Header(
        name=record.id,
        agent=record.agent,
        type=record.type,
        state=msgspec.to_builtins(state, str_keys=True),
        tags=record.tags,
        active=record.last_active,
        archived=record.archived,
        parent=parent,
        forked_at=forked_at,
        link=record.link,
    )


def restored_state(header: Header) -> dict[str, Any]:
    """The state of a session that is made from a file. A fork becomes a session of its own; what it
    was forked from is kept in the state, for the next export.
    """
    if header.parent is None:
        return header.state
    return {**header.state, ORIGIN: {"parent": header.parent, "at": header.forked_at}}


def _origin(state: dict[str, Any]) -> _Origin | None:
    try:
        return msgspec.convert(state.get(ORIGIN), _Origin)
    except msgspec.ValidationError:
        return None


async def jsonl(
    session: ExportSource, *, on_missing: OnMissing | None = None
) -> AsyncIterator[bytes]:
    """The lines of a session's file, each with its newline. Raises `ArtifactMissing` or `Corrupted`
    if content cannot be read, unless `on_missing` is given: then it is called instead.
    """
    yield _encoded(_Line(perdure=VERSION, session=header(session.record)))
    turns = messages = 0
    async for turn in session.read(undone=True):
        yield _encoder.encode(_opening(turn.number, turn.status, turn)) + b"\n"
        turns = turn.number
        for round in turn.rounds:
            for message in round.messages:
                whole = await resolved(session, message, on_missing)
                yield _spoken(turn.number, round.number, whole)
                messages += 1
    yield _encoded(_Line(end=End(turns, messages)))


async def resolved(
    session: ExportSource, message: Message, on_missing: OnMissing | None = None
) -> Message:
    try:
        (whole,) = await session.resolve((message,))
    except (ArtifactMissing, Corrupted) as exc:
        if on_missing is None:
            raise
        on_missing(exc)
        return message
    return whole


def parse(line: bytes | str) -> Line:
    """Raises `InvalidInput` for another kind of line, `NewerSchema` if a newer version wrote the
    file.
    """
    try:
        found = _decoder.decode(line)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as exc:
        version = _version_in(line)
        if version is not None and version > VERSION:
            raise _newer(version) from exc
        raise InvalidInput(
            f"This is no line of an export: {exc}.", hint="Check that the file is whole."
        ) from exc
    if found.session is not None:
        if found.perdure is None or found.perdure > VERSION:
            raise _newer(found.perdure)
        return found.session
    if found.message is not None and found.turn is not None and found.round is not None:
        message = found.message if found.exact is None else _exact(found.exact)
        return ExportedMessage(found.turn, found.round, message)
    if found.status is not None and found.turn is not None:
        return _opening(found.turn, found.status, found)
    if found.end is not None:
        return found.end
    raise InvalidInput(
        "This is no line of an export.", hint="Make the file with `perdure export --format jsonl`."
    )


def _newer(version: int | None) -> NewerSchema:
    return NewerSchema(
        f"The file has format {version}; this version of Perdure reads format {VERSION}.",
        hint="Read it with a newer Perdure.",
    )


def _version_in(line: bytes | str) -> int | None:
    try:
        found = msgspec.json.decode(line)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return None
    version = found.get("perdure") if isinstance(found, dict) else None
    return version if isinstance(version, int) else None


def _opening(number: int, status: Status, turn: Turn | _Line) -> ExportedTurn:
    return ExportedTurn(
        turn=number,
        status=status,
        started=turn.started,
        ended=turn.ended,
        tags=turn.tags,
        masked=turn.masked,
        tokens=turn.tokens,
    )


def _spoken(turn: int, round: int, message: Message) -> bytes:
    stored = canonical.encode((message,))
    try:
        said = _encoder.encode(message)
        lossless = canonical.encode((_message.decode(said),)) == stored
    except (msgspec.MsgspecError, TypeError, RecursionError):
        said, lossless = _encoder.encode(Message(message.role)), False
    exact = b"" if lossless else b',"exact":%b' % _encoder.encode(stored)
    return b'{"turn":%d,"round":%d,"message":%b%b}\n' % (turn, round, said, exact)


def _exact(stored: bytes) -> Message:
    try:
        (message,) = canonical.decode(stored)
    except (msgspec.MsgspecError, ValueError) as exc:
        raise InvalidInput(
            "The exact form of a message cannot be read.", hint="Export the session again."
        ) from exc
    return message


def _encoded(line: _Line) -> bytes:
    return _encoder.encode(line) + b"\n"
