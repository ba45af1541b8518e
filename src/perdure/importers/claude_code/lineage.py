"""Where a record of a Claude Code transcript hangs: which turn, and whether it was there before.

Records name their parents, so a file is a tree in the order of time. Usually each hangs on the one
before. When the user rewinds, the next prompt hangs on an older one, and the turns behind that are
no longer part of the conversation.
"""

from __future__ import annotations

from collections.abc import Hashable
from typing import Any


class Recent:
    """A dictionary that remembers the newest entries: at least `size`, at most twice as many.

    Keys are kept as their hashes: a hundred thousand of them take ten megabytes.
    """

    def __init__(self, size: int = 50_000) -> None:
        self._size = size
        self._new: dict[int, int] = {}
        self._old: dict[int, int] = {}

    def __contains__(self, key: Hashable) -> bool:
        name = hash(key)
        return name in self._new or name in self._old

    def __getitem__(self, key: Hashable) -> int | None:
        name = hash(key)
        found = self._new.get(name)
        return self._old.get(name) if found is None else found

    def __setitem__(self, key: Hashable, value: int) -> None:
        if len(self._new) >= self._size:
            self._old, self._new = self._new, {}
        self._new[hash(key)] = value


class Lineage:
    """The turns of a conversation, and which of them a record leads back to."""

    def __init__(self) -> None:
        self._turns = Recent()  # uuid → turn
        self._said = Recent()  # what was said, and when
        self._live: list[int] = []  # turns that were not taken back
        self._counted = 0
        self._rooted: bool | None = None  # the first record hangs on nothing
        self._chained = False
        self._compacted = ""

    def known(self, uuid: Any, time: str, said: bytes) -> bool:
        """Whether a message was there before.

        After a compaction Claude Code may write messages again: under their old names, or under new
        ones, but with the times that they had.
        """
        repeated = isinstance(uuid, str) and uuid in self._turns
        if time:
            older = time < self._compacted
            repeated = repeated or (older and (time, said) in self._said)
            self._said[time, said] = 0
        return repeated

    def hang(self, uuid: Any, parent: Any, turn: int) -> None:
        """Note a record. One that hangs on a record of an older turn belongs to that turn."""
        if self._rooted is None:
            self._rooted = parent is None
        found = self._turns[parent] if isinstance(parent, str) else None
        self._chained = self._chained or found is not None
        if isinstance(uuid, str):
            self._turns[uuid] = turn if found is None else min(found, turn)

    def open(self, uuid: Any, parent: Any, turn: int) -> None:
        """Note a prompt: it is where its turn begins, whatever it hangs on."""
        self.hang(uuid, parent, turn)
        if isinstance(uuid, str):
            self._turns[uuid] = turn

    def compacted(self, time: str) -> None:
        """Records hang on nothing after a compaction; that is no return to the beginning."""
        self._rooted = False
        self._compacted = time

    def rewound(self, parent: Any, turn: int) -> int:
        """How many turns up to `turn` a user's record takes back by hanging on `parent`."""
        if isinstance(parent, str):
            base = self._turns[parent]
        else:
            # Back to the beginning; unless nothing in this file hangs on anything.
            base = 0 if parent is None and self._rooted and self._chained else None
        if base is None:  # it hangs on something that we have not seen, or not for long
            return 0
        self._live.extend(range(self._counted + 1, turn + 1))
        self._counted = turn
        keep = len(self._live)
        while keep and self._live[keep - 1] > base:
            keep -= 1
        taken = len(self._live) - keep
        del self._live[keep:]
        return taken
