"""Writes the messages of a thread as turns of its session, and reads them again."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from itertools import takewhile

from langchain_core.messages import BaseMessage

from perdure.core.messages import Message
from perdure.history.turn_log import Written
from perdure.integrations.langgraph.graph_messages import to_canonical
from perdure.integrations.langgraph.thread_messages import (
    Entry,
    MessageAddress,
    Span,
    ThreadMessages,
    new_entries,
    read_spans,
    spans_of,
)
from perdure.services import Services
from perdure.sessions.session import Session
from perdure.storage.transaction import Transaction

#: The channel whose list is the conversation: what it drops at its end is undone.
CONVERSATION = "|messages"
Spans = Mapping[str, list[Span]]


class CheckpointMessages:
    """The lists of a checkpoint, by channel: which of their messages are in the log already."""

    def __init__(self) -> None:
        self.lists: dict[str, list[BaseMessage]] = {}
        self.entries: dict[str, list[Entry | None]] = {}
        self._said: dict[int, tuple[BaseMessage, Message]] = {}

    def add(self, channel: str, messages: list[BaseMessage], known: ThreadMessages) -> bool:
        """False if one of them holds what is no plain data: then the list cannot be turns."""
        entries = known.known(channel, messages)
        for message, entry in zip(messages, entries, strict=True):
            if entry is None and not self._convert(message):
                return False
        self.lists[channel], self.entries[channel] = messages, entries
        return True

    def write_again(self, turns: set[int]) -> None:
        """What is in these turns counts as not written."""
        for channel, entries in self.entries.items():
            for at, entry in enumerate(entries):
                if entry is not None and entry.address.turn in turns:
                    self._convert(self.lists[channel][at])
                    entries[at] = None

    def unwritten(self) -> dict[int, tuple[BaseMessage, Message]]:
        """By identity, since a message may be in several lists; in the order of the lists."""
        return {
            id(message): self._said[id(message)]
            for channel, entries in self.entries.items()
            for message, entry in zip(self.lists[channel], entries, strict=True)
            if entry is None
        }

    def complete(self, new: Mapping[int, Entry]) -> dict[str, list[Entry]]:
        return {
            channel: [
                new[id(message)] if entry is None else entry
                for message, entry in zip(self.lists[channel], entries, strict=True)
            ]
            for channel, entries in self.entries.items()
        }

    def _convert(self, message: BaseMessage) -> bool:
        if id(message) not in self._said:
            said = to_canonical(message)
            if said is None:
                return False
            self._said[id(message)] = message, said
        return True


class ThreadLog:
    """The messages of one thread. Hold `lock` while writing."""

    def __init__(self, services: Services) -> None:
        self.known = ThreadMessages()
        self._end: MessageAddress | None = None  # of the conversation, as it was written last
        self.lock = asyncio.Lock()
        self._services = services

    async def write(
        self,
        session: Session,
        given: CheckpointMessages,
        newest: Callable[[], Awaitable[Sequence[Span]]],
        inside: Callable[[Transaction, Spans], Awaitable[None]],
    ) -> None:
        """Append what is new; `inside` runs in the same transaction, with the spans of all.
        `newest` reads those of the conversation in the thread's newest checkpoint.
        """
        await self._rewind(session, given, newest)
        fresh = given.unwritten()
        new: list[Entry] = []
        complete: dict[str, list[Entry]] = {}
        spans: dict[str, list[Span]] = {}

        async def within(transaction: Transaction, written: Written | None = None) -> None:
            nonlocal new, complete, spans
            messages = [message for message, _ in fresh.values()]
            new = [] if written is None else new_entries(messages, written, self.known.last)
            complete = given.complete(dict(zip(fresh, new, strict=True)))
            spans = {name: spans_of(each) for name, each in complete.items()}
            await inside(transaction, spans)

        if fresh:
            await session.append([said for _, said in fresh.values()], within=within)
        else:
            async with self._services.store.transaction() as transaction:
                await within(transaction)
        self.known.add(new)
        for channel, entries in complete.items():
            self.known.note(channel, given.lists[channel], entries, spans[channel])
        if CONVERSATION in complete:
            self._end = complete[CONVERSATION][-1].address

    async def read(
        self, session: Session, channel: str, spans: Sequence[Span]
    ) -> list[BaseMessage]:
        head = await session.head()
        copies = self.known.copies(channel, spans, head.forgets)
        if copies is not None:
            return copies
        record = await session.current_record()
        entries = await read_spans(session, record, self._services.reader, spans)
        self.known.learn(channel, head.forgets, entries)
        return [entry.message for entry in entries]

    async def _rewind(
        self,
        session: Session,
        given: CheckpointMessages,
        newest: Callable[[], Awaitable[Sequence[Span]]],
    ) -> None:
        """If the graph goes on from an earlier point, undo the turns that it left behind. Messages
        that it drops from the beginning, to keep its state short, stay.
        """
        entries = given.entries.get(CONVERSATION, [])
        kept = [each.address for each in takewhile(bool, entries) if each is not None]
        if not kept or kept[-1] == self._end:
            return
        behind = [span for span in await newest() if MessageAddress(*span[3:]) > kept[-1]]
        if not behind:
            return
        record = await session.current_record()
        before = await read_spans(session, record, self._services.reader, behind)
        there = {each.address for each in entries if each is not None}
        turns = {
            each.address.turn
            for each in before
            if each.address > kept[-1] and each.address not in there
        }
        if turns:
            await session.undo(numbers=sorted(turns))
            self.known.drop_turns(turns)
            given.write_again(turns)  # the rest of a turn that was cut
