"""The newest items of a session as its framework has them, kept in memory.

A framework reads the newest items before each run, and writes the new ones behind it. Whoever wrote
them need not read and convert them again: only the session's head is read, which tells whether
somebody else wrote, undid or forgot anything meanwhile.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import msgspec

from perdure.core import messages as canonical
from perdure.core.messages import Message
from perdure.history.log_records import Head
from perdure.history.turn_log import Written
from perdure.integrations.framework_messages import all_messages
from perdure.sessions.session import Session
from perdure.storage.transaction import Transaction

_MOST = 512
_PAGE = 32  # Turns that are read at once, at most.


class RecentItems:
    """Items as JSON, oldest first, and the head up to which they are known."""

    def __init__(self) -> None:
        self._head: Head | None = None
        self._items: list[bytes] = []
        self._is_whole = False
        self._written: Written | None = None

    async def read(
        self, session: Session, limit: int | None, items_of: Callable[[list[Message]], list[Any]]
    ) -> list[Any]:
        """The newest items, or all, oldest of them first. `items_of` makes them of messages."""
        head = await session.head()
        known = self._newest(head, limit)
        if known is not None:
            return known
        if limit is None:
            items = items_of(await all_messages(session))
            self._fill(head, items, whole=True)
            return items
        items, before = [], None
        while len(items) < limit:
            count = min((limit - len(items) + 1) // 2, _PAGE)
            turns = await session.turns(count, before=before, resolve=True)
            if not turns:
                break
            items[:0] = items_of([message for turn in turns for message in turn.messages])
            before = turns[0].number
        self._fill(head, items, whole=len(items) < limit)
        return items[max(len(items) - limit, 0) :]

    async def known(self, session: Session, limit: int | None) -> list[Any] | None:
        """The same, if they are known. The session may have been forgotten: then they are not."""
        if self._head is None or not self._head.pieces:
            return None
        return self._newest(await session.head(), limit)

    async def note(self, _: Transaction, written: Written) -> None:
        """A hook for ``append(within=…)``; what it was told last is what was committed."""
        self._written = written

    def extend(self, items: Sequence[Any]) -> None:
        """What the append wrote. Forgets all if it was not written as it was given, or not right
        behind what is known.
        """
        written, self._written, head = self._written, None, self._head
        if head is None or written is None:
            return
        follows = (
            written.head.pieces == head.pieces + len(written.pieces)
            and written.head.undone == head.undone
            and written.head.forgets == head.forgets
            and not written.head.answering
        )
        said = [message for round in written.rounds for message in round.messages]
        if not follows or any(p.masked for p in written.pieces) or canonical.references(said):
            self.clear()
            return
        self._head = written.head
        self._items += map(msgspec.json.encode, items)
        self._is_whole = self._is_whole and len(self._items) <= _MOST
        del self._items[:-_MOST]

    def _fill(self, head: Head, items: Sequence[Any], *, whole: bool) -> None:
        """What was read; `whole` if there is nothing before it."""
        kept = items[-_MOST:]
        self._head, self._items = head, [msgspec.json.encode(item) for item in kept]
        self._is_whole = whole and len(kept) == len(items)

    def _newest(self, head: Head, limit: int | None) -> list[Any] | None:
        """The newest, or all; None if they are not known."""
        enough = self._is_whole or (limit is not None and len(self._items) >= limit)
        if head != self._head or not enough:
            return None
        first = 0 if limit is None else max(len(self._items) - limit, 0)
        return [msgspec.json.decode(item) for item in self._items[first:]]

    def clear(self) -> None:
        self._head, self._items, self._is_whole = None, [], False
