"""The messages of one thread: which turn holds which, and which are new.

A channel's list of messages is kept as *spans* of the session's log, each from one message to
another. A list that grows is one span, whatever its length. A message that was replaced or removed
splits it.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from operator import is_
from typing import NamedTuple

from langchain_core.messages import BaseMessage

from perdure.core.messages import Message
from perdure.history.log_records import SessionRecord, owners
from perdure.history.turn_log import Written
from perdure.history.turn_reader import TurnReader
from perdure.integrations.langgraph.graph_messages import from_canonical
from perdure.sessions.session import Session

#: Messages at the end of a list that are looked at for changes in place.
_WATCHED = 64


class MessageAddress(NamedTuple):
    """The place of a message in a session's log."""

    turn: int
    piece: int
    at: int


#: Turn, piece and index of the first message, and of the last.
Span = tuple[int, int, int, int, int, int]


class Entry(NamedTuple):
    """A message that is in the log."""

    message: BaseMessage
    address: MessageAddress
    previous: MessageAddress | None  # What stands right before it in the log, if that is known.
    content: object
    calls: object


def entry_of(
    message: BaseMessage, address: MessageAddress, previous: MessageAddress | None
) -> Entry:
    calls = getattr(message, "tool_calls", None)
    content = message.content
    kept = content if isinstance(content, str) else list(content)
    return Entry(message, address, previous, kept, list(calls) if calls else None)


def is_unchanged(entry: Entry, message: BaseMessage) -> bool:
    """Whether the message says what it said when it was written."""
    calls = getattr(message, "tool_calls", None)
    return (message is entry.message or message == entry.message) and (
        message.content == entry.content and (calls or None) == entry.calls
    )


class KnownList(NamedTuple):
    """A channel's list as it was last seen."""

    messages: list[BaseMessage]
    entries: list[Entry]
    spans: list[Span]


_NOTHING = KnownList([], [], [])


class ThreadMessages:
    """What this process knows of the messages of one thread."""

    def __init__(self) -> None:
        self._by_id: dict[str, Entry] = {}
        self._lists: dict[str, KnownList] = {}  # by channel
        self.last: MessageAddress | None = None  # the newest in the log, as far as is known
        self._forgets = 0  # how often something was forgotten before it was read

    def known(self, channel: str, messages: Sequence[BaseMessage]) -> list[Entry | None]:
        """The entry of each message; None if it has to be written."""
        before, entries = (last := self._lists.get(channel, _NOTHING)).messages, last.entries
        same = 0
        if len(before) <= len(messages) and all(map(is_, before, messages)):
            same = len(before)
        else:
            for old, new in zip(before, messages, strict=False):
                if old is not new:
                    break
                same += 1
        sure = max(same - _WATCHED, 0)
        found: list[Entry | None] = list(entries[:sure])
        for at in range(sure, len(messages)):
            message = messages[at]
            entry = entries[at] if at < same else self._by_id.get(message.id or "")
            found.append(entry if entry is not None and is_unchanged(entry, message) else None)
        return found

    def note(
        self, channel: str, messages: list[BaseMessage], entries: list[Entry], spans: list[Span]
    ) -> None:
        self._lists[channel] = KnownList(list(messages), entries, spans)

    def learn(self, channel: str, forgets: int, entries: list[Entry]) -> None:
        """What was read."""
        self._forgets = forgets
        self.note(channel, [entry.message for entry in entries], entries, spans_of(entries))
        self.add(entries)

    def copies(self, channel: str, spans: Sequence[Span], forgets: int) -> list[BaseMessage] | None:
        """The messages of spans, if they are known. Copies: a graph may change its own."""
        known = self._lists.get(channel, _NOTHING)
        if not known.entries or known.spans != list(spans):
            return None
        if self._forgets != forgets:
            self.forget()
            return None
        copied = [_copied(message) for message in known.messages]
        self._lists[channel] = known._replace(messages=copied)
        return list(copied)

    def add(self, entries: Iterable[Entry]) -> None:
        """They are in the log."""
        for entry in entries:
            if entry.message.id:
                self._by_id[entry.message.id] = entry
            if self.last is None or entry.address > self.last:
                self.last = entry.address

    def forget(self) -> None:
        self._by_id, self._lists, self.last = {}, {}, None

    def drop_turns(self, turns: Iterable[int]) -> None:
        """They were undone: what they say has to be written again to be part of the session."""
        gone = set(turns)
        self._by_id = {k: e for k, e in self._by_id.items() if e.address.turn not in gone}
        self._lists = {
            channel: known
            for channel, known in self._lists.items()
            if not any(entry.address.turn in gone for entry in known.entries)
        }


def _copied(message: BaseMessage) -> BaseMessage:
    """As `model_copy`, in an eighth of its time: ten thousand are copied at once."""
    made = object.__new__(type(message))
    for name, value in (
        ("__dict__", dict(message.__dict__)),
        ("__pydantic_fields_set__", set(message.__pydantic_fields_set__)),
        ("__pydantic_extra__", message.__pydantic_extra__ and dict(message.__pydantic_extra__)),
        ("__pydantic_private__", message.__pydantic_private__),
    ):
        object.__setattr__(made, name, value)
    return made


def new_entries(
    messages: Sequence[BaseMessage], written: Written, before: MessageAddress | None
) -> list[Entry]:
    """Entries of what one append wrote, in its order."""
    addresses = [
        MessageAddress(piece.turn, piece.number, index)
        for piece in written.pieces
        for index in range(len(piece.messages()))
    ]
    if before is not None and addresses and addresses[0].piece != before.piece + 1:
        before = None  # others wrote in between
    found: list[Entry] = []
    for message, address in zip(messages, addresses, strict=True):
        found.append(entry_of(message, address, before))
        before = address
    return found


def spans_of(entries: Sequence[Entry]) -> list[Span]:
    found: list[tuple[MessageAddress, MessageAddress]] = []
    for entry in entries:
        if found and entry.previous == found[-1][1]:
            found[-1] = (found[-1][0], entry.address)
        else:
            found.append((entry.address, entry.address))
    return [(*first, *last) for first, last in found]


async def read_spans(
    session: Session, record: SessionRecord, reader: TurnReader, spans: Sequence[Span]
) -> list[Entry]:
    """The messages of spans. Forgotten ones are left out, and what others wrote in between."""
    found: list[Entry] = []
    for turn, piece, index, last_turn, last_piece, last_index in spans:
        said: list[tuple[MessageAddress, Message]] = []
        for owned in owners(record, turn, last_turn):
            for each in await reader.pieces(owned):
                if piece <= each.number <= last_piece:
                    said += [
                        (MessageAddress(each.turn, each.number, at), message)
                        for at, message in enumerate(each.messages())
                        if (each.number, at) >= (piece, index)
                        and (each.number, at) <= (last_piece, last_index)
                    ]
        said.sort(key=lambda each: each[0][1:])
        resolved = await session.resolve([message for _, message in said])
        previous: MessageAddress | None = None
        for (address, _), message in zip(said, resolved, strict=True):
            read = from_canonical(message)
            if read is not None:
                found.append(entry_of(read, address, previous))
                previous = address
    return found
