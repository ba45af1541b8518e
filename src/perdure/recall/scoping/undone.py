"""Turns that were taken back, as recall needs them: without reading the head of every session.

A head says what is undone in its session. It is rewritten by every append, so it has no index that
would find the few heads that say so. Whoever takes turns back notes it here in the same commit.
"""

from __future__ import annotations

from typing import Annotated

import msgspec

from perdure.history.forgetting import AgentOnly
from perdure.history.records import Head, Span, Stretch
from perdure.storage.options import STRONG
from perdure.storage.records import Key, system_record
from perdure.storage.store import Store
from perdure.storage.transaction import Transaction


@system_record("undone")
class Undone(msgspec.Struct, frozen=True):
    """A session has turns that were taken back: `Head.undone`."""

    id: Annotated[str, Key()]  # session
    spans: tuple[Span, ...]


class UndoneTurns(AgentOnly):
    """Where that is kept: a place that forgetting asks."""

    def __init__(self, store: Store) -> None:
        super().__init__(store, Undone)
        self._store = store

    async def inherit(self, shared: Stretch, fork: str) -> None:
        """A fork gets turns as its own, with those that had been taken back before it left."""
        del shared  # its head tells

        async def body(transaction: Transaction) -> None:
            head = await transaction.collection(Head).get(fork)
            if head is not None:
                await note_undone(transaction, head)

        await self._store.transact(body)


async def note_undone(transaction: Transaction, head: Head) -> None:
    """Keep in mind what is undone; to be called in the transaction that writes the head."""
    if head.undone:
        await transaction.collection(Undone).put(Undone(head.id, head.undone))


async def undone_of(store: Store, agent: str) -> list[Undone]:
    """What is undone in the sessions of an agent, as it is now."""
    return await store.collection(Undone).query().prefix(f"{agent}/").values(STRONG)
