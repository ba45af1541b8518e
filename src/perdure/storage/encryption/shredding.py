"""Destroying the keys of a scope, so that nobody can ever read what is in it.

What was learnt from its records goes with them: in the same transaction its dictionaries are
deleted and taken out of use, so that whoever is about to train one, or to write with one, starts
over.
"""

from __future__ import annotations

import msgspec

from perdure.core.errors import InvalidInput, Unavailable
from perdure.storage.adapter import STRONG, Adapter, Capability
from perdure.storage.compression.dictionaries import Dictionary, InUse
from perdure.storage.encryption.keyring import KeyRing
from perdure.storage.encryption.keys import DataKeys, Host
from perdure.storage.encryption.rotation import scopes_with_keys
from perdure.storage.encryption.scopes import DICTIONARIES, row_key, scope_at
from perdure.storage.transaction import Transaction

_PAGE = 200


async def shred(host: Host, keys: DataKeys, scope: str, confirm: str) -> bool:
    """Destroy them; whether nothing of them is left in the store's files."""
    if confirm != scope:
        raise InvalidInput(
            f"Shredding {scope} makes everything in it unreadable for ever.",
            hint=f"If that is meant, confirm it: shred({scope!r}, confirm={scope!r}).",
        )
    await scopes_with_keys(keys, scope)

    async def destroy(transaction: Transaction) -> None:
        rings = transaction.collection(KeyRing)
        ring = await rings.get(row_key(scope))
        if ring is None or not ring.generations:
            return
        await rings.put(
            msgspec.structs.replace(
                ring,
                generations=(),
                rotating=False,
                shredded=ring.newest,
                shredded_at=host.now(),
            )
        )
        await _give_up_dictionaries(host, scope, transaction)

    await host.transact(destroy, STRONG)
    await keys.reload(scope)
    return await _scrubbed(host.adapter)


async def _give_up_dictionaries(host: Host, scope: str, transaction: Transaction) -> None:
    found = await _dictionaries(host, scope)
    stocks = {key.rpartition("/")[0] for key in found}
    stocks |= {stock for stock in _possible_stocks(host, scope) if _scope_of(stock) == scope}
    in_use = transaction.collection(InUse)
    for stock in sorted(stocks):
        before = await in_use.get(stock)
        number = before.number + 1 if before is not None else 1
        await in_use.put(InUse(stock, number, learnt=0, kept=number))
    await transaction.collection(Dictionary).delete_many(found)


def _possible_stocks(host: Host, scope: str) -> set[str]:
    """Where somebody may be about to train a first dictionary."""
    kind, _, name = scope.partition(":")
    compressed = {each.name for each in host.declared.values() if each.compressed}
    if kind == "agent":
        return {f"{collection}/{name}" for collection in compressed}
    return compressed & {name}


def _scope_of(stock: str) -> str:
    """The scope that the dictionaries of a stock are encrypted in."""
    return scope_at(DICTIONARIES, f"{stock}/0", agent="/" in stock)


async def _dictionaries(host: Host, scope: str) -> list[str]:
    """The keys of the dictionaries that were trained on what is in the scope."""
    if not await host.collection(Dictionary).is_there():
        return []
    found: list[str] = []
    after = ""
    while page := await host.adapter.salvage(DICTIONARIES, after, _PAGE):
        found += [row.key for row in page if _scope_of(row.key.rpartition("/")[0]) == scope]
        after = page[-1].key
    return found


async def _scrubbed(adapter: Adapter) -> bool:
    """Make unreadable what was overwritten; whether nothing of it is left."""
    if Capability.ERASURE not in adapter.capabilities:
        return Capability.DURABLE not in adapter.capabilities
    try:
        await adapter.scrub()
    except Unavailable:
        return False
    return True
