"""Forgetting reaches reflection: a place of `history.forget_sessions`.

With a turn go the messages that cite it, the answers that models gave about its session, and what
runs noted to be undone, as far as it cites the turn: such a run cannot be undone any more. With an
agent goes everything under its name.
"""

from __future__ import annotations

from collections.abc import Iterable

from perdure.history.forget_sessions import ForgetScope, remove
from perdure.history.log_records import agent_of
from perdure.recall.memory_records import LastNumber, source_of
from perdure.reflection.inbox import InboxMessage
from perdure.reflection.memory_audit import AuditScore
from perdure.reflection.reflection_records import (
    ReflectionCursor,
    ReflectionLease,
    ReflectionRun,
    RunAnswer,
    RunChanges,
)
from perdure.storage.store import Store


class ReflectionTraces:
    """What is forgotten of runs and messages."""

    def __init__(self, store: Store) -> None:
        self._store = store

    @property
    def collections(self) -> frozenset[str]:
        types = (
            *(AuditScore, InboxMessage, ReflectionCursor, ReflectionLease, ReflectionRun),
            *(RunAnswer, RunChanges),
        )
        return frozenset(self._store.collection(cls).name for cls in types)

    async def forget(self, scope: ForgetScope) -> None:
        """Destroy what belongs to the scope."""
        store = self._store
        if scope.agent is not None:
            for cls in (InboxMessage, ReflectionRun, RunAnswer, RunChanges, AuditScore):
                await remove(store.collection(cls), f"{scope.agent}/")
            await remove(store.collection(ReflectionCursor), f"{scope.agent}/")
            await store.collection(ReflectionCursor).delete(scope.agent)
            await store.collection(ReflectionLease).delete(scope.agent)
            numbers = [f"{kind}/{scope.agent}" for kind in ("reflection", "inbox")]
            await store.collection(LastNumber).delete_many(numbers)
        for session in scope.sessions:
            if not scope.turns:
                await store.collection(ReflectionCursor).delete(session)
            await remove(store.collection(RunAnswer), f"{agent_of(session)}/")
        messages = store.collection(InboxMessage)
        async for message in messages.walk():
            if _is_cited((quote.turn for quote in message.quotes), scope):
                await messages.delete(message.id)
        changes = store.collection(RunChanges)
        async for change in changes.walk():
            if _is_cited(_turns_in(change), scope):
                await changes.delete(change.id)

    async def forget_memories(self, names: Iterable[str]) -> None:
        """Destroy what tells of deleted memories, by their names."""
        gone = frozenset(names)
        messages, changes = self._store.collection(InboxMessage), self._store.collection(RunChanges)
        async for message in messages.walk():
            if not gone.isdisjoint(_full_names(message)):
                await messages.delete(message.id)
        async for change in changes.walk():
            held = (m for r in change.revisions for m in (r.before, r.after) if m is not None)
            if any(memory.name in gone for memory in held):
                await changes.delete(change.id)


def _full_names(message: InboxMessage) -> list[str]:
    return [key if "/" in key else f"{message.agent}/{key}" for key in message.keys]


def _turns_in(changes: RunChanges) -> Iterable[str]:
    for revision in changes.revisions:
        for memory in filter(None, (revision.before, revision.after)):
            yield from memory.provenance
            yield from (quote.turn for quote in memory.quotes)
    for operation in changes.operations:
        yield from operation.evidence


def _is_cited(turns: Iterable[str], scope: ForgetScope) -> bool:
    for turn in turns:
        session, place = source_of(turn)
        if session in scope.sessions and (not scope.turns or place.turn in scope.turns):
            return True
    return False
