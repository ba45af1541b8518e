"""Forgetting reaches the index: documents, notes, vectors, and the names of their groups."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from perdure.core.errors import Corrupted
from perdure.history.forget_sessions import ForgetScope
from perdure.history.log_records import SessionRecord, SharedTurns
from perdure.recall.indexing.index import RecallIndex
from perdure.recall.indexing.index_filler import RECIPE
from perdure.recall.places import INDEX, PassageGroup, memories_of, turns
from perdure.search.engine import Withdrawal, has_search
from perdure.storage.options import STRONG
from perdure.storage.records import type_of
from perdure.storage.transaction import Transaction


class IndexPlace:
    """What recall's index holds of sessions, turns and agents: a `ForgetPlace`."""

    collections = frozenset({type_of(PassageGroup).name})

    def __init__(self, index: RecallIndex) -> None:
        self._index = index
        self._store = index.store
        #: What `Filler.finish` asks for, of forks whose turns are about to be indexed.
        self._begun: dict[str, int] = {}

    async def forget(self, scope: ForgetScope) -> None:
        """Withdraw what belongs to the scope, whether or not turns are indexed now."""
        if not has_search(self._store.adapter):
            return
        if scope.turns:
            for session in scope.sessions:
                await self._forget_turns(session, scope.turns)
            return
        names = [*scope.sessions]
        if scope.agent is not None:
            names += [*await self._index.numbers.of_agent(scope.agent), memories_of(scope.agent)]
        for name in dict.fromkeys(names):
            await self._forget_group(name)

    async def inherit(self, shared: SharedTurns, fork: str) -> None:
        """A fork is about to get its parent's turns as its own: until they are indexed as such, the
        index is not complete, and whoever finds it so fills it.
        """
        del shared
        if self._index.is_on:
            await self._index.prepared()
            state = await self._index.filler.state()
            begun = await self._index.filler.begin()
            if state is not None and state.complete and state.recipe == RECIPE:
                self._begun[fork] = begun

    async def rerooted(self, session: str) -> None:
        """A fork was given its parent's turns as its own: they are indexed as such."""
        if self._index.is_on:
            await self._index.prepared()
            record = await self._store.collection(SessionRecord).get(session, STRONG)
            if record is not None:
                await self._index.filler.fill_session(record, self._index.embeddings)
            if session in self._begun:
                await self._index.filler.finish(self._begun.pop(session))

    async def _forget_turns(self, session: str, numbers: tuple[int, ...]) -> None:
        number = (await self._index.groups()).get(session)
        if number is None or not await self._index.exists():
            return
        ranges = [turns(number, turn, turn) for turn in numbers]

        async def forget(transaction: Transaction) -> None:
            transaction.include(*(Withdrawal(INDEX.name, *each) for each in ranges))

        await self._commit(forget)

    async def _forget_group(self, name: str) -> None:
        exists = await self._index.exists()

        async def forget(transaction: Transaction) -> None:
            number = await self._index.numbers.forget(transaction, name)
            if number is not None and exists:
                transaction.include(Withdrawal(INDEX.name, *turns(number)))

        await self._commit(forget)

    async def _commit(self, forget: Callable[[Transaction], Awaitable[None]]) -> None:
        if await self._index.exists():
            await self._index.prepared()
        try:
            await self._store.transact(forget)
        except Corrupted:
            # It may hold what is to be forgotten where nothing can be withdrawn any more.
            await self._index.erase()
            await self._store.transact(forget)
