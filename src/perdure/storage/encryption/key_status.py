"""The status of a store's keys, and the destruction of a scope's keys."""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncIterator
from typing import TYPE_CHECKING, Literal

import msgspec

from perdure.core.errors import InvalidInput
from perdure.storage.adapter import Adapter
from perdure.storage.encryption.data_keys import DataKeys, Generation, KeyRing
from perdure.storage.encryption.key_scopes import (
    CLEAR,
    OF_AGENTS,
    check_dispensable,
    check_scope,
    mark_of,
    row_key,
    scope_at,
)
from perdure.storage.options import STRONG
from perdure.storage.rows import Row
from perdure.storage.transaction import Transaction

if TYPE_CHECKING:
    from perdure.storage.store import Progress, Store

_PAGE = 200


class GenerationStanding(msgspec.Struct, frozen=True):
    """One data key of a scope. `master` is a fingerprint, `created` microseconds since 1970."""

    number: int
    master: str
    created: int
    #: Written with, or only read with until its rows are encrypted anew.
    state: Literal["current", "retiring"]
    #: Rows that need it; None if they were not counted.
    rows: int | None = None


class ScopeStanding(msgspec.Struct, frozen=True):
    """A scope and its data keys, oldest first; `shredded_at` is microseconds since 1970."""

    scope: str
    generations: tuple[GenerationStanding, ...]
    rotating: bool
    #: Generations up to this number were shredded; 0 if none were.
    shredded: int
    shredded_at: int
    #: Rows whose key was shredded; None if they were not counted.
    forgotten: int | None = None


Needs = Counter[tuple[str, int]]


async def standing(host: Store, keys: DataKeys, *, rows: bool) -> list[ScopeStanding]:
    """All scopes; with `rows`, every row of the store is read."""
    needs = await needed(host.adapter) if rows else None
    return [_standing(each.value, needs) for each in await keys.rings()]


async def needed(adapter: Adapter, progress: Progress | None = None) -> Needs:
    """How many rows need which data key, without expired ones: nobody can read them."""
    found: Needs = Counter()
    for size in await adapter.sizes():
        name = size.collection
        if name in CLEAR:
            continue
        kinds = [(mark_of(each.content_type), each.rows) for each in await adapter.census(name)]
        if not any(mark is not None and mark.agent for mark, _ in kinds):
            for mark, rows in kinds:
                if mark is not None:
                    found[f"collection:{name}", mark.generation] += rows
            continue
        done = 0
        async for row in _rows(adapter, name):
            mark = mark_of(row.content_type)
            if mark is not None:
                found[scope_at(name, row.key, agent=mark.agent), mark.generation] += 1
            done += 1
            if progress is not None and done % _PAGE == 0:
                progress(f"checking {name}", done, max(size.rows, done))
    return found


async def _rows(adapter: Adapter, collection: str) -> AsyncIterator[Row]:
    after = ""
    while page := await adapter.salvage(collection, after, _PAGE):
        for row in page:
            yield row
        after = page[-1].key


def _standing(ring: KeyRing, needs: Needs | None) -> ScopeStanding:
    def generation(each: Generation) -> GenerationStanding:
        rows = None if needs is None else needs[ring.scope, each.number]
        state: Literal["current", "retiring"] = (
            "current" if each is ring.generations[-1] else "retiring"
        )
        return GenerationStanding(each.number, each.master, each.created, state, rows)

    forgotten = None
    if needs is not None:
        forgotten = sum(
            count
            for (scope, number), count in needs.items()
            if scope == ring.scope and number <= ring.shredded
        )
    return ScopeStanding(
        ring.scope,
        tuple(generation(each) for each in ring.generations),
        ring.rotating,
        ring.shredded,
        ring.shredded_at,
        forgotten,
    )


async def scopes_with_keys(keys: DataKeys, scope: str | None) -> list[str]:
    """The scope asked for, or all with data keys. `InvalidInput` if it has none."""
    known = [each.value.scope for each in await keys.rings()]
    if scope is None:
        return known
    if check_scope(scope) not in known:
        there = f"There are those of {', '.join(known[:10])}." if known else "There are none."
        raise InvalidInput(f"There are no data keys of {scope}.", hint=there)
    return [scope]


async def shred(host: Store, keys: DataKeys, scope: str, confirm: str) -> bool:
    """Destroy the keys; True if nothing of them is left in the store's files."""
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

    await host.transact(destroy, STRONG)
    await keys.reload(scope)
    return await host.scrub()


async def _refuse_sessions(adapter: Adapter, scope: str) -> None:
    """Raises `InvalidInput` if the agent has sessions: listing them would fail for ever."""
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
