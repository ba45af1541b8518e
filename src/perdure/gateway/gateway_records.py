"""What the gateway keeps of calls, forgotten with sessions and agents."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Protocol

from perdure.gateway import ledger, outcomes
from perdure.gateway.batches import forget_batches
from perdure.gateway.response_cache import ResponseCache
from perdure.storage.store import Store


class _Scope(Protocol):
    @property
    def sessions(self) -> tuple[str, ...]: ...
    @property
    def turns(self) -> tuple[int, ...]: ...
    @property
    def agent(self) -> str | None: ...


class GatewayRecords:
    """Forgets cached answers, batches, outcomes and budgets (see `history.forget_sessions`).

    Cached answers and batches are not kept by turn: forgetting any turn removes what its session
    said there. Outcomes
    lose their names and stay. Works without models; `flush` writes what is pending.
    """

    collections = frozenset(
        f"perdure_{name}" for name in ("answers", "outcomes", "budgets", "batches", "batch_items")
    )

    def __init__(self, store: Store, flush: Callable[[], Awaitable[None]]) -> None:
        self._store = store
        self._flush = flush

    async def forget(self, scope: _Scope) -> None:
        await self._flush()
        await ResponseCache(self._store, ttl=1.0).forget(scope.sessions, scope.agent)
        await forget_batches.forget(self._store, scope.sessions, scope.agent)
        if scope.turns:
            return
        await outcomes.forget(self._store, scope.sessions, scope.agent)
        if scope.agent is not None:
            await ledger.Ledger(self._store).forget(scope.agent)
