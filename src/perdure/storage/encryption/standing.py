"""How the keys of a store stand."""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncIterator
from typing import Literal

import msgspec

from perdure.storage.adapter import Adapter
from perdure.storage.encryption.keyring import Generation, KeyRing
from perdure.storage.encryption.keys import DataKeys, Host
from perdure.storage.encryption.scopes import CLEAR, DICTIONARIES, mark_of, scope_at
from perdure.storage.rows import Row
from perdure.storage.store import Progress

_PAGE = 200


class GenerationStanding(msgspec.Struct, frozen=True):
    """One data key of a scope."""

    number: int
    #: The fingerprint of the master key that it is wrapped with.
    master: str
    #: Microseconds since 1970.
    created: int
    #: Written with, or only read with until its rows are encrypted anew.
    state: Literal["current", "retiring"]
    #: Rows that need it; None if they were not counted.
    rows: int | None = None


class ScopeStanding(msgspec.Struct, frozen=True):
    """A scope and its data keys, oldest first."""

    scope: str
    generations: tuple[GenerationStanding, ...]
    #: Its rows are being encrypted anew.
    rotating: bool
    #: Generations up to this number were shredded; 0 if none were.
    shredded: int
    #: Microseconds since 1970.
    shredded_at: int
    #: Rows whose key was shredded; None if they were not counted.
    forgotten: int | None = None


#: Rows by scope and generation.
Needs = Counter[tuple[str, int]]


async def standing(host: Host, keys: DataKeys, *, rows: bool) -> list[ScopeStanding]:
    """All scopes; with `rows`, every row of the store is looked at."""
    needs = await needed(host.adapter) if rows else None
    return [_standing(each.value, needs) for each in await keys.rings()]


async def needed(adapter: Adapter, progress: Progress | None = None) -> Needs:
    """How many rows need which data key. Expired ones are not counted: nobody can read them."""
    found: Needs = Counter()
    for size in await adapter.sizes():
        name = size.collection
        if name in CLEAR:
            continue
        kinds = [(mark_of(each.content_type), each.rows) for each in await adapter.census(name)]
        if name != DICTIONARIES and not any(mark is not None and mark.agent for mark, _ in kinds):
            # The content type alone tells the scope.
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
