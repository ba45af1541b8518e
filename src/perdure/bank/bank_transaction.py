"""A transaction of a bank: contexts, memory windows, events and records, all or nothing.

async with bank.transaction() as tx:
    context = await tx.contexts.get("ada/chat")
    await tx.contexts.update("ada/chat", msgspec.structs.replace(context, state={"step": 4}))
    await tx.memories.append("ada/chat", ["found a slow query", "added an index"])
    await tx.events.emit("context.updated", {"context": "ada/chat"})
"""

from __future__ import annotations

from perdure.bank.contexts import Contexts, Mask
from perdure.storage.memory_windows import MemoryWindows
from perdure.storage.options import Options
from perdure.storage.store import Store
from perdure.storage.transaction import Transaction


class TransactionEvents:
    """Events of a transaction, emitted if and only if it commits."""

    def __init__(self, transaction: Transaction) -> None:
        self._transaction = transaction

    async def emit(self, topic: str, payload: object = None, *, key: str = "") -> None:
        """The same as `Transaction.emit`."""
        self._transaction.emit(topic, payload, key=key)


class BankTransaction(Transaction):
    """A `Transaction` that knows what is in a bank. Made by `Bank.transaction`."""

    def __init__(self, store: Store, mask: Mask, options: Options) -> None:
        super().__init__(store, store.commit, store.declared, options)
        #: Sessions and other state records, as `bank.contexts`.
        self.contexts = Contexts(self, mask)
        #: Working memories: the memory windows of contexts, as `bank.windows`.
        self.memories = MemoryWindows(self)
        self.events = TransactionEvents(self)
