"""The numbers of groups: a session's, that of an agent's memories, of the reference layers.

A number is given once and never again: the places of a session that was forgotten are not reborn
with a new one, even if that has its name. Whoever writes documents of a group lets its commit fail
unless the group still has its number; so nothing is written for what was forgotten meanwhile.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, NamedTuple

import msgspec

from perdure.history.log_records import Head, SessionRecord
from perdure.recall.places import PassageGroup
from perdure.storage.options import STRONG
from perdure.storage.records import Key, system_record, type_of
from perdure.storage.store import Store
from perdure.storage.transaction import Transaction

_GROUPS = type_of(PassageGroup).name
_COUNTER = "groups"


@system_record("recall_numbers")
class Numbers(msgspec.Struct, frozen=True):
    """The next number to be given."""

    id: Annotated[str, Key()]
    next: int = 0


class _Numbered(NamedTuple):
    number: int
    #: Of its record.
    version: int
    created: int


class Groups:
    """Gives and knows the numbers of groups."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._known: dict[str, _Numbered] = {}
        #: Groups that a transaction relies on which has not been committed, and perhaps was not.
        self._relied: dict[str, Transaction] = {}
        self._numbers: dict[str, int] = {}
        #: Sessions that are forks, as of `all`.
        self.forks: set[str] = set()
        self._names: dict[int, str] = {}
        self._last = -1
        #: `Adapter.generation` when they were last looked for; None: look again.
        self._generation: int | None = None

    async def relied_on(self, transaction: Transaction, name: str) -> int | None:
        """A group's number, for documents that this transaction writes: it fails if that changes.

        A group that has none gets one, in a transaction of its own. None for a session that does
        not exist any more. It reads nothing if this process has written there before.
        """
        known = self._known.get(name)
        if known is None or self._relied.get(name, transaction) is not transaction:
            # What relied on it last may have failed because it is no longer so.
            known = await self._looked_up(name)
            if known is None:
                return None
        self._relied[name] = transaction
        transaction.expect(_GROUPS, name, known.version, known.created)

        def committed() -> None:
            if self._relied.get(name) is transaction:
                del self._relied[name]
                self._known[name] = known

        transaction.after_commit(committed)
        return known.number

    async def give(self, name: str) -> int | None:
        """A group's number; it gets one if it has none. None for a session that is gone."""
        found = await self._looked_up(name)
        return None if found is None else found.number

    async def all(self) -> Mapping[str, int]:
        """The number of each group by its name. Do not change it.

        Groups that were forgotten may be among them: they have no documents.
        """
        await self._look_for_new()
        return self._numbers

    async def names(self) -> Mapping[int, str]:
        """The name of each group by its number. Do not change it."""
        await self._look_for_new()
        return self._names

    async def forget(self, transaction: Transaction, name: str) -> int | None:
        """Remove a group's name; returns the number that it had."""
        groups = transaction.collection(PassageGroup)
        found = await groups.get(name)
        if found is None:
            return None
        await groups.delete(name)
        self._known.pop(name, None)
        return found.number

    async def of_agent(self, agent: str) -> list[str]:
        """The names of all groups that belong to sessions of an agent."""
        found = (
            await self._store.collection(PassageGroup).query().prefix(f"{agent}/").values(STRONG)
        )
        return [group.id for group in found]

    # ------------------------------------------------------------------------------------------

    async def _looked_up(self, name: str) -> _Numbered | None:
        groups = self._store.collection(PassageGroup)
        found = await groups.fetch(name, STRONG)
        if found is None:
            await self._store.transact(lambda transaction: _give(transaction, name))
            self._generation = None
            found = await groups.fetch(name, STRONG)
            if found is None:
                return None
        known = _Numbered(found.value.number, found.version, found.created_us)
        self._known[name] = known
        self._relied.pop(name, None)
        return known

    async def _look_for_new(self) -> None:
        """Numbers grow, and are committed in their order: what is new has a higher one."""
        generation = await self._store.adapter.generation()
        if generation is not None and generation == self._generation:
            return
        finder = self._store.collection(PassageGroup).query().where("number", ">", self._last)
        for group in await finder.order_by("number").values(STRONG):
            self._numbers[group.id] = group.number
            self._names[group.number] = group.id
            if group.is_fork:
                self.forks.add(group.id)
            self._last = max(self._last, group.number)
        self._generation = generation


async def _give(transaction: Transaction, name: str) -> None:
    groups, numbers = transaction.collection(PassageGroup), transaction.collection(Numbers)
    if await groups.get(name) is not None:
        return
    is_fork = False
    if not name.startswith(" "):  # a session
        # Forgetting it begins with its head: after that, its name does not come back here.
        if await transaction.collection(Head).get(name) is None:
            return
        record = await transaction.collection(SessionRecord).get(name)
        is_fork = record is not None and record.parent is not None
    counter = await numbers.get(_COUNTER) or Numbers(_COUNTER)
    await groups.put(PassageGroup(name, counter.next, is_fork))
    await numbers.put(Numbers(_COUNTER, counter.next + 1))
