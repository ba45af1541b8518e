"""What calls leave behind in a bank, and how it is forgotten."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Protocol

from perdure.storage.store import Store


class Scope(Protocol):
    """What is to be forgotten: sessions, or some turns of one, or all of an agent."""

    @property
    def sessions(self) -> tuple[str, ...]: ...
    @property
    def turns(self) -> tuple[int, ...]: ...
    @property
    def agent(self) -> str | None: ...


class Traces:
    """Cached answers, outcomes, budgets: a place that forgets (see `history.forgetting`).

    Cached answers of a session go with any of its turns, since they are not kept by turn. Outcomes
    lose the names in them and stay: what was spent stays spent. Works in a process that calls no
    models, too; `flush` writes what this one has noted and not written.
    """

    collections = frozenset({"perdure_answers", "perdure_outcomes", "perdure_budgets"})

    def __init__(self, store: Store, flush: Callable[[], Awaitable[None]]) -> None:
        self._store = store
        self._flush = flush

    async def forget(self, scope: Scope) -> None:
        from perdure.gateway import ledger, outcomes
        from perdure.gateway.cache import ResponseCache

        await self._flush()
        await ResponseCache(self._store, ttl=1.0).forget(scope.sessions, scope.agent)
        if scope.turns:
            return
        await outcomes.forget(self._store, scope.sessions, scope.agent)
        if scope.agent is not None:
            await ledger.Ledger(self._store).forget(scope.agent)
