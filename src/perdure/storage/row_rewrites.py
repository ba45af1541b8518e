"""Rewrites the rows of a collection: the common part of migrations and key rotation.

Page by page, outdated rows are read through the chain, remade, and sent back as rewrites. Versions
and times stay; reads and writes go on; a row changed in between is skipped, because it was written
the new way.

After an interruption, even kill -9, call it again: rows that are done are read, and left alone. A
row that cannot be remade is left as it is and reported; the others are rewritten. Two runs at once
are harmless. Rows that old code writes behind the current position are not seen: call it again.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import suppress

import msgspec

from perdure.core.errors import Corrupted, PerdureError
from perdure.storage.adapter import Adapter
from perdure.storage.concurrency import Pace
from perdure.storage.options import STRONG, Options
from perdure.storage.query import Query
from perdure.storage.rows import Recode, Row

#: Rows on a page, and the bytes it should not exceed: what a middleware does to a page it does in
#: one go, on the event loop. How large rows are is learnt from the first page, which is short.
_ROWS = 50
_FIRST_ROWS = 10
_BYTES = 128 * 1024
#: Failures that are told one by one; further ones are counted.
MOST_FAILURES = 100


class Failure(msgspec.Struct, frozen=True):
    """A row that could not be remade, and why. It is unchanged."""

    key: str
    what: str


class Rewritten(msgspec.Struct, frozen=True):
    """The result of a rewrite."""

    collection: str
    #: Rows that were written anew, or would be.
    rewritten: int = 0
    #: Rows that somebody changed, or deleted, before they could be.
    passed_over: int = 0
    #: Rows that could not be, all of them, and the first of them by name.
    failed: int = 0
    failures: tuple[Failure, ...] = ()


#: Reads the rows of these keys of a collection.
Read = Callable[[str, Sequence[str], Options], Awaitable[list[Row | None]]]
#: Writes a page of rows; returns how many were still as read, and which could not be written.
Write = Callable[[Sequence[Recode]], Awaitable[tuple[int, list[Failure]]]]


async def rewrite_collection(
    adapter: Adapter,
    collection: str,
    *,
    wanted: Callable[[Row], bool],
    read: Read,
    remade: Callable[[Row], Recode],
    write: Write,
    what: str = "rewriting",
    progress: Callable[[str, int, int], None] | None = None,
) -> Rewritten:
    """Rewrite every row that is `wanted`; returns the totals when all is done.

    `wanted` gets rows as stored; `remade` gets them as `read` reads them and may raise Perdure's
    errors. Both run on the event loop, a few milliseconds at a time.
    """
    total = sum(count.rows for count in await adapter.census(collection))
    done, seen, pace = Rewritten(collection), 0, Pace()
    async for page in _pages(adapter, collection):
        keys = []
        for row in page:
            if wanted(row):
                keys.append(row.key)
            await pace.breathe()
        recodes, failures, written = list[Recode](), list[Failure](), 0
        for found in await plain_rows(read, collection, keys):
            if isinstance(found, Failure):
                failures.append(found)
                continue
            try:
                recodes.append(remade(found))
            except PerdureError as exc:
                failures.append(Failure(found.key, exc.message))
            await pace.breathe()
        if recodes:
            written, refused = await write(recodes)
            failures += refused
        done = Rewritten(
            collection,
            done.rewritten + written,
            done.passed_over + len(keys) - written - len(failures),
            done.failed + len(failures),
            (*done.failures, *failures)[:MOST_FAILURES],
        )
        seen += len(page)
        if progress is not None:
            progress(f"{what} {collection}", seen, max(total, seen))
    return done


async def plain_rows(read: Read, collection: str, keys: list[str]) -> list[Row | Failure]:
    """The rows of these keys, decoded; missing ones left out, a damaged one is a `Failure`."""
    if not keys:
        return []
    with suppress(Corrupted):
        return [row for row in await read(collection, keys, STRONG) if row is not None]
    found: list[Row | Failure] = []
    for key in keys:
        try:
            found += [row for row in await read(collection, [key], STRONG) if row is not None]
        except Corrupted as exc:
            found.append(Failure(key, exc.message))
    return found


async def _pages(adapter: Adapter, collection: str) -> AsyncIterator[list[Row]]:
    after, limit = "", _FIRST_ROWS
    while True:
        query = Query(collection, limit=limit, after=(after,) if after else None)
        try:
            page = await adapter.find(query, STRONG)
        except Corrupted:
            page = await adapter.salvage(collection, after, limit)
        if not page:
            return
        yield page
        after = page[-1].key
        size = sum(len(row.value) for row in page) // len(page)
        limit = max(1, min(_ROWS, _BYTES // (size + 1)))
