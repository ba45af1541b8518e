"""Books that survive the process, one row for each agent and one for all of them.

A process keeps what it observed as events until it is idle; then it reads the row, applies the
events and writes it back in one transaction. So several processes add to one book without losing
anything of each other, and each sees what the others observed after its own next write, or after
`FRESH` seconds. A killed process loses what it observed in about the last second. None of this ever
makes a call fail.
"""

from __future__ import annotations

import hashlib
import logging
from typing import Annotated, TypeAlias

import msgspec

from perdure.core.clock import SECOND
from perdure.core.errors import PerdureError
from perdure.gateway.calls import indexable
from perdure.jobs import GoOn, Runner, Wake
from perdure.learning.learned_book import (
    PER_LABEL,
    PER_SHARED_LABEL,
    CallEvent,
    LabelEvent,
    LearnedBook,
    ResetEvent,
)
from perdure.storage.records import Indexed, Key, system_record
from perdure.storage.store import Store

Event: TypeAlias = CallEvent | LabelEvent | ResetEvent

#: The name of the book of all agents. No agent has it: calls without an agent teach nothing.
EVERYONE = ""
#: Seconds after which a book is read again, because other processes may have added to it.
FRESH = 30.0
#: Books in memory; the ones not used for longest go first.
_MOST_BOOKS = 2_000
#: Events that wait while the store cannot be written; the oldest go first.
_MOST_EVENTS = 5_000

_log = logging.getLogger(__name__)


@system_record("learned_agents", ttl="400d")
class LearnedAgent(msgspec.Struct, frozen=True, omit_defaults=True):
    """The book of an agent. Holds names of tasks and models, and nothing that was said."""

    id: Annotated[str, Key()]
    agent: Annotated[str, Indexed()]
    book: LearnedBook


class _Entry(msgspec.Struct):
    book: LearnedBook
    events: list[Event]
    #: When it was last read. Microseconds.
    read: int


class LearnedMemory:
    """The books of agents. Without a store they live as long as this object."""

    def __init__(self, store: Store | None = None, jobs: Runner | None = None) -> None:
        self._store = store
        self._rows = None if store is None else store.collection(LearnedAgent)
        self._entries: dict[str, _Entry] = {}
        self._wake: Wake | None = jobs.idle("learning", self._work) if jobs is not None else None

    def book(self, agent: str) -> LearnedBook:
        return self._entry(agent).book

    async def load(self, agent: str) -> None:
        """Read a book, unless it was read lately or has events to be written. Never raises."""
        if self._rows is None or self._store is None:
            return
        entry = self._entries.get(agent)
        now = self._store.now()
        if entry is not None and (entry.events or now - entry.read < FRESH * SECOND):
            return
        book = LearnedBook()
        try:
            found = await self._rows.get(_key(agent))
        except PerdureError as exc:
            _log.info("what %r learned cannot be read: %s", agent, exc)
        else:
            book = book if found is None else found.book
        entry = self._entry(agent)
        if not entry.events:  # else some came while we read: the next write brings both together
            entry.book = book
        entry.read = now

    def note(self, agent: str, event: Event) -> None:
        """Never waits."""
        entry = self._entry(agent)
        entry.book.apply(event, _discount(agent))
        if self._rows is None:
            return
        entry.events.append(event)
        del entry.events[:-_MOST_EVENTS]
        if self._wake is not None:
            self._wake()

    async def flush(self) -> None:
        """Write what was observed. Never raises; what cannot be written is kept for later."""
        for agent in [name for name, entry in self._entries.items() if entry.events]:
            await self._write(agent)

    def forget(self, agent: str) -> None:
        """Drop the book of an agent from memory; its row is the caller's business."""
        self._entries.pop(agent, None)

    async def _work(self, go_on: GoOn) -> bool:
        for agent in [name for name, entry in self._entries.items() if entry.events]:
            await self._write(agent)
            if not go_on():
                break
        return False  # what could not be written waits for the next event

    async def _write(self, agent: str) -> None:
        assert self._rows is not None and self._store is not None  # noqa: S101, PT018 (for mypy)
        entry = self._entries[agent]
        events, entry.events = entry.events, []

        def added(found: LearnedAgent | None) -> LearnedAgent:
            book = LearnedBook() if found is None else _copied(found.book)
            for event in events:
                book.apply(event, _discount(agent))
            return LearnedAgent(_key(agent), indexable(agent), book)

        try:
            written = await self._rows.change(_key(agent), added)
        except PerdureError as exc:
            _log.info("what %r learned cannot be written: %s", agent, exc)
            entry.events[:0] = events
            return
        book = _copied(written.book)
        for event in entry.events:  # that came meanwhile
            book.apply(event, _discount(agent))
        entry.book, entry.read = book, self._store.now()

    def _entry(self, agent: str) -> _Entry:
        entry = self._entries.pop(agent, None)
        if entry is None:
            if len(self._entries) >= _MOST_BOOKS:
                idle = next((n for n, e in self._entries.items() if not e.events and n), None)
                if idle is not None:
                    del self._entries[idle]
            entry = _Entry(LearnedBook(), [], 0)
        self._entries[agent] = entry
        return entry


async def forget_learned(store: Store, agent: str) -> None:
    await store.collection(LearnedAgent).delete(_key(agent))


def _discount(agent: str) -> float:
    return PER_SHARED_LABEL if agent == EVERYONE else PER_LABEL


def _copied(book: LearnedBook) -> LearnedBook:
    """The store may keep what it gave or was given."""
    return msgspec.msgpack.decode(msgspec.msgpack.encode(book), type=LearnedBook)


def _key(agent: str) -> str:
    """Hashed: an agent may be named by anything."""
    return hashlib.sha256(agent.encode("utf-8", "surrogatepass")).hexdigest()[:32]
