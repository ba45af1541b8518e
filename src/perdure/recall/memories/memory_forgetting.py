"""Forgetting reaches memories: a place of `history.forget_sessions`.

With an agent go its memories, their former versions, and its name in what others share with it.
Of sessions and turns that are forgotten, memories lose the names. What came from nowhere else:

* made by a machine, it is deleted. So is one whose text was put together or edited from several
  turns, if any of them is forgotten: nobody knows which words came from there. What had been merged
  into it comes back, as far as it came from other turns;
* written or edited by a person, it is kept. Of its former versions, those by machines go.

Of a memory that was only repeated, in the forgotten turn and elsewhere, the rest stays.

If a session goes whose forks keep the turns that they share with it, what the agents of these forks
remember of them comes from there.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import TypeVar

import msgspec
from msgspec.structs import replace

from perdure.history.forget_sessions import ForgetScope, remove
from perdure.history.log_records import Owned, SessionRecord, SharedTurns, agent_of
from perdure.history.turn_reader import TurnReader
from perdure.recall.memories.memories import Memories
from perdure.recall.memory_records import (
    FormerMemory,
    LastNumber,
    Memory,
    numbers_of,
    source_of,
)
from perdure.storage.options import STRONG
from perdure.storage.store import Store
from perdure.storage.transaction import Transaction

T = TypeVar("T", bound=msgspec.Struct)
_PAGE = 200


class MemoryTraces:
    """What is forgotten of memories."""

    collections = frozenset(
        {"perdure_memories", "perdure_memory_versions", "perdure_memory_numbers"}
    )

    def __init__(self, store: Store, memories: Memories) -> None:
        self._store = store
        self._memories = memories
        self._reader = TurnReader(store)

    async def forget(self, scope: ForgetScope) -> int:
        """Destroy what belongs to the scope; returns how many memories are gone."""
        self._memories.similarity.drop()
        touched = [
            (memory.id, memory.name)
            async for memory in self._all(Memory)
            if memory.agent == scope.agent or _is_touched(memory, scope)
        ]
        # First: once they are gone, nobody knows which of them prompts were told of.
        await self._memories.withdraw(name for _, name in touched)
        gone = 0 if scope.agent is None else await self._forget_agent(scope.agent)
        async for former in self._all(FormerMemory):
            if _is_touched(former.memory, scope):
                await self._forget_version(former, scope)
        for id, _ in touched:
            gone += await self._store.transact(
                lambda transaction, id=id: self._lose(transaction, id, scope)  # type: ignore[misc]
            )
        return gone

    async def inherit(self, shared: SharedTurns, fork: str) -> None:
        """A fork gets these turns as its own: see `history.rerooting`.

        Memories of its agent, and of those that forked it again, then come from the fork's. Not
        those of turns that went on after the fork left: they may tell of what it does not have.
        """
        for agent in await self._agents_of(fork):
            async for memory in self._all(Memory, f"{agent}/"):
                if _comes_from(memory, shared.session):
                    await self._store.transact(
                        lambda transaction, id=memory.id: self._move(transaction, id, shared, fork)  # type: ignore[misc]
                    )
            async for former in self._all(FormerMemory, f"{agent}/"):
                if _comes_from(former.memory, shared.session):
                    await self._store.transact(
                        lambda transaction, id=former.id: self._move_version(  # type: ignore[misc]
                            transaction, id, shared, fork
                        )
                    )

    async def _move_version(
        self, transaction: Transaction, id: str, shared: SharedTurns, fork: str
    ) -> None:
        versions = transaction.collection(FormerMemory)
        if (former := await versions.get(id)) is not None:  # it may have been forgotten meanwhile
            moved = await self._moved(former.memory, shared, fork)
            await versions.put(replace(former, memory=moved))

    async def _move(
        self, transaction: Transaction, id: str, shared: SharedTurns, fork: str
    ) -> None:
        memories = transaction.collection(Memory)
        if (memory := await memories.get(id)) is not None:
            await memories.put(await self._moved(memory, shared, fork))

    async def _moved(self, memory: Memory, shared: SharedTurns, fork: str) -> Memory:
        """A memory as it is once the fork has these turns as its own."""
        moved = dict[str, str]()
        for source in (*memory.provenance, *(quote.turn for quote in memory.quotes)):
            session, place = source_of(source)
            is_its = session == shared.session and await self._is_whole(shared, place.turn)
            moved[source] = f"{fork}#{place}" if is_its else source
        return replace(
            memory,
            provenance=tuple(dict.fromkeys(moved[source] for source in memory.provenance)),
            quotes=tuple(replace(quote, turn=moved[quote.turn]) for quote in memory.quotes),
        )

    async def _agents_of(self, fork: str) -> set[str]:
        """The agents of a session and of its forks, and theirs."""
        records, found, waiting = self._store.collection(SessionRecord), set[str](), [fork]
        while waiting:
            name = waiting.pop()
            found.add(agent_of(name))
            forks = await records.query().where("parent", "=", name).values(STRONG)
            waiting += [each.id for each in forks]
        return found

    async def _is_whole(self, shared: SharedTurns, turn: int) -> bool:
        """Whether a fork has all of a turn."""
        if turn > shared.turn:
            return False
        pieces = await self._reader.pieces(Owned(shared.session, turn, turn))
        return bool(pieces) and pieces[-1].number <= shared.piece

    async def _forget_agent(self, agent: str) -> int:
        """All memories of an agent; returns how many there were."""

        async def body(transaction: Transaction) -> int:
            memories = transaction.collection(Memory)
            found = await memories.query().prefix(f"{agent}/").limit(_PAGE).values(STRONG)
            # One may be gone with another that it was merged into.
            return sum(
                [
                    len(await self._memories.writer.remove(transaction, memory))
                    for memory in found
                    if await memories.get(memory.id) is not None
                ]
            )

        gone = 0
        while count := await self._store.transact(body):
            gone += count
        await remove(self._store.collection(FormerMemory), f"{agent}/")
        await self._store.collection(LastNumber).delete(numbers_of(agent))
        return gone

    async def _forget_version(self, former: FormerMemory, scope: ForgetScope) -> None:
        versions = self._store.collection(FormerMemory)
        left = _without(former.memory, scope)
        if left is None:
            await versions.delete(former.id)
        else:
            await versions.put(replace(former, memory=left))

    async def _lose(self, transaction: Transaction, id: str, scope: ForgetScope) -> int:
        """Take from a memory what belongs to the scope; returns how many are gone with that."""
        memories, writer = transaction.collection(Memory), self._memories.writer
        memory = await memories.get(id)
        if memory is None or not _is_touched(memory, scope):
            return 0
        left = _without(memory, scope)
        if left is not None:
            await writer.write(transaction, left)
            return 0
        for part in await memories.query().where("into", "=", id).values():
            freed = _without(part, scope)
            if part.status == "merged" and freed is not None:
                await writer.write(transaction, replace(freed, status="active", into=None))
        return len(await writer.remove(transaction, memory))

    async def _all(self, cls: type[T], prefix: str = "") -> AsyncIterator[T]:
        finder = self._store.collection(cls).query().prefix(prefix).order_by("key").limit(_PAGE)
        cursor: str | None = None
        while True:
            page = await finder.page(after=cursor, options=STRONG)
            for value in page.values:
                yield value
            cursor = page.next
            if cursor is None:
                return


def _comes_from(memory: Memory, session: str) -> bool:
    return any(source_of(each)[0] == session for each in memory.provenance)


def _is_touched(memory: Memory, scope: ForgetScope) -> bool:
    return scope.agent in memory.shared or any(_is_of(each, scope) for each in memory.provenance)


def _without(memory: Memory, scope: ForgetScope) -> Memory | None:
    """The memory without what belongs to the scope; None if it is to go."""
    left = tuple(each for each in memory.provenance if not _is_of(each, scope))
    gone = len(left) < len(memory.provenance) and (memory.mixed or not left)
    if gone and not memory.by_person:
        return None
    shared = tuple(agent for agent in memory.shared if agent != scope.agent)
    quotes = tuple(quote for quote in memory.quotes if not _is_of(quote.turn, scope))
    return replace(memory, provenance=left, quotes=quotes, shared=shared, is_shared=bool(shared))


def _is_of(source: str, scope: ForgetScope) -> bool:
    session, place = source_of(source)
    return session in scope.sessions and (not scope.turns or place.turn in scope.turns)
