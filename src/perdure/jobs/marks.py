"""Marks: a process records, in a transaction, that it has work to do about what is written there.

Only the first transaction of a burst writes one; it is removed when the work is done. If the
process is killed, another finds its mark and does the work. One row for each kind, key and process.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from contextlib import suppress
from typing import Annotated

import msgspec

from perdure.core.clock import SECOND, new_id
from perdure.core.errors import Conflict
from perdure.storage.options import DEFAULT, Options
from perdure.storage.records import Key, system_record, type_of
from perdure.storage.store import Store
from perdure.storage.transaction import Transaction

#: Who goes on writing without a pause renews its mark so often. One that was not renewed for three
#: times as long is of a process that is dead.
_RENEW = 20 * SECOND


@system_record("marks")
class PendingMark(msgspec.Struct, frozen=True):
    """A process has work of a kind to do about a key, or had when it died."""

    id: Annotated[str, Key()]  # key/kind.process
    first: int  # From this number on: a turn, say.
    time: int  # When it said so. Microseconds.
    #: Work about it that is done, by name, while other work is not: the rest is left to do.
    done: tuple[str, ...] = ()

    @property
    def key(self) -> str:
        return self.id.rpartition("/")[0]

    @property
    def kind(self) -> str:
        return self.id.rpartition("/")[2].partition(".")[0]

    @property
    def process(self) -> str:
        return self.id.rpartition(".")[2]

    def is_abandoned(self, now: int) -> bool:
        return abs(now - self.time) > 3 * _RENEW


_MARKS = type_of(PendingMark)
_NAME = _MARKS.name


async def marks_of(store: Store, kind: str, key: str = "") -> list[PendingMark]:
    """All marks of a kind, of any process: those about a key, or all. One read."""
    query = store.collection(PendingMark).query()
    found = await (query.prefix(f"{key}/{kind}.") if key else query).values()
    return [mark for mark in found if mark.kind == kind]


class ProcessMarks:
    """The marks of one process, and those of dead ones whose work it does."""

    def __init__(self, store: Store) -> None:
        self.process = new_id()
        self._store = store
        #: By kind and key: what is stored, and its version.
        self._own: dict[str, dict[str, tuple[PendingMark, int]]] = {}
        self._adopted: dict[str, dict[str, int]] = {}
        #: By kind and key: the lowest number of all that was to be marked. Not only of `_own`: the
        #: next append may write the row again before we are told of a commit, or if we never are.
        self._lowest: dict[str, dict[str, int]] = {}
        self._made = False  # The collection.

    async def leave(self, transaction: Transaction, kind: str, key: str, first: int = 0) -> None:
        """Record work of a kind about a key, from a number on. Call it inside `Runner.writing`,
        which ends after the work was woken. Writes a row only if this process has none.
        """
        now = self._store.now()
        known = self._own.get(kind, {}).get(key)
        if known is not None:
            mark, _ = known
            if mark.first <= first and not mark.done and abs(now - mark.time) < _RENEW:
                return
        lowest = self._lowest.setdefault(kind, {})
        lowest[key] = min(first, lowest.get(key, first))
        new = PendingMark(f"{key}/{kind}.{self.process}", lowest[key], now)
        if not self._made:
            await self._store.declare(PendingMark)
            self._made = True
        await transaction.write([_MARKS.encode(new, None, None)], DEFAULT)

        def committed() -> None:
            self._own.setdefault(kind, {})[key] = new, transaction.version(_NAME, new.id)

        transaction.after_commit(committed)

    def own(self, kind: str) -> Mapping[str, int]:
        """Marks of this process: the first number by key. Reads nothing."""
        return {key: mark.first for key, (mark, _) in self._own.get(kind, {}).items()}

    async def others(self, kind: str, key: str = "") -> list[PendingMark]:
        """Marks of other processes, about this key or any. One read."""
        found = await marks_of(self._store, kind, key)
        return [mark for mark in found if mark.process != self.process]

    async def adopt(self, mark: PendingMark) -> bool:
        """Remove a mark of a dead process when the work of its kind is done here; False if that
        process may be alive.
        """
        if not mark.is_abandoned(self._store.now()):
            return False
        found = await self._store.collection(PendingMark).fetch(mark.id)
        if found is not None and found.value == mark:
            self._adopted.setdefault(mark.kind, {})[mark.id] = found.version
        return True

    async def divide(self, kind: str, done: Iterable[str]) -> None:
        """Say in all marks of a kind which work is done, though not all is.

        Nobody writes when this is called. Who does so meanwhile leaves a mark of which nothing is
        done, from the same number on.
        """
        own, names = self._own.get(kind, {}), tuple(sorted(done))
        before = {key: known for key, known in own.items() if known[0].done != names}
        told = {
            key: (msgspec.structs.replace(mark, done=names), version)
            for key, (mark, version) in before.items()
        }
        own |= told
        after = before  # unless it succeeds
        with suppress(Conflict):
            async with self._store.transaction() as transaction:
                records = transaction.collection(PendingMark)
                for mark, version in told.values():
                    await records.put(mark, Options(expected=version))
            after = {
                key: (mark, transaction.version(_NAME, mark.id)) for key, (mark, _) in told.items()
            }
        own |= {key: after[key] for key, known in told.items() if own.get(key) is known}

    async def remove(self, kind: str) -> None:
        own, adopted = self._own.pop(kind, {}), self._adopted.pop(kind, {})
        self._lowest.pop(kind, None)
        records = self._store.collection(PendingMark)
        for key, version in (adopted | {mark.id: at for mark, at in own.values()}).items():
            # Who writes from now on leaves another mark, and that one stays.
            with suppress(Conflict):
                await records.delete(key, Options(expected=version))
