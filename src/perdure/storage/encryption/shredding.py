"""Destroying the keys of a scope, so that nobody can ever read what is in it.

What was learnt from its records goes with them: in the same transaction its dictionaries are
deleted and taken out of use, so that whoever is about to train one, or to write with one, starts
over.
"""

from __future__ import annotations

import msgspec

from perdure.core.errors import InvalidInput, Unavailable
from perdure.storage.adapter import Adapter, Capability
from perdure.storage.collection import Collection
from perdure.storage.compression.dictionaries import Dictionary, InUse
from perdure.storage.encryption.keyring import KeyRing
from perdure.storage.encryption.keys import DataKeys, Host
from perdure.storage.encryption.rotation import scopes_with_keys
from perdure.storage.encryption.scopes import (
    DICTIONARIES,
    OF_AGENTS,
    check_dispensable,
    row_key,
    scope_at,
)
from perdure.storage.options import STRONG
from perdure.storage.transaction import Transaction

_PAGE = 200


async def shred(host: Host, keys: DataKeys, scope: str, confirm: str) -> bool:
    """Destroy them; whether nothing of them is left in the store's files."""
    if confirm != scope:
        raise InvalidInput(
            f"Shredding {scope} makes everything in it unreadable for ever.",
            hint=f"If that is meant, confirm it: shred({scope!r}, confirm={scope!r}).",
        )
    check_dispensable(scope)
    await scopes_with_keys(keys, scope)
    await _refuse_sessions(host.adapter, scope)

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


async def _refuse_sessions(adapter: Adapter, scope: str) -> None:
    """Raises `InvalidInput` if the agent still has sessions: they could be neither read nor left
    out, and nothing that lists sessions would work.
    """
    kind, _, name = scope.partition(":")
    if kind != "agent":
        return
    for size in await adapter.sizes():
        if size.collection in OF_AGENTS:
            found = await adapter.salvage(size.collection, f"{name}/", 1)
            if any(row.key.startswith(f"{name}/") for row in found):
                raise InvalidInput(
                    f"The agent {name} still has sessions, or memories.",
                    hint=f"Forget it first: `perdure forget --agent {name}`. Then shred {scope}.",
                )


async def _give_up_dictionaries(host: Host, scope: str, transaction: Transaction) -> None:
    # Which are in use is read first, and checked by the commit: a dictionary that is published
    # after they are listed makes it start over.
    stocks = await _stocks(host, scope)
    in_use = transaction.collection(InUse)
    numbers = {stock: await _number(in_use, stock) for stock in stocks}
    found = await _dictionaries(host, scope)
    for stock in {key.rpartition("/")[0] for key in found} - stocks:
        numbers[stock] = await _number(in_use, stock)
    for stock, number in sorted(numbers.items()):
        await in_use.put(InUse(stock, number + 1, learnt=0, kept=number + 1))
    await transaction.collection(Dictionary).delete_many(found)


async def _number(in_use: Collection[InUse], stock: str) -> int:
    found = await in_use.get(stock)
    return 0 if found is None else found.number


async def _stocks(host: Host, scope: str) -> set[str]:
    """What has a dictionary of the scope, or where somebody may be about to train the first."""
    known = {each.id for each in await host.collection(InUse).query().values(STRONG)}
    plain = {each.name for each in host.declared.values() if not each.compressed}
    collections = {each.collection for each in await host.adapter.sizes()} - plain
    kind, _, name = scope.partition(":")
    agent = f"/{name}" if kind == "agent" else ""
    known |= {f"{collection}{agent}" for collection in collections}
    return {stock for stock in known if _scope_of(stock) == scope}


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
