"""Rewrites the rows of a collection: the common part of migrations and key rotation.

Page by page, outdated rows are read through the chain, remade, and sent back as rewrites. Versions
and times stay; reads and writes go on; a row changed in between is skipped, because it was written
the new way.

Progress is saved about every second. After an interruption, even kill -9, it resumes there, then
scans all rows once more: earlier rows may have changed, and failed ones may succeed now. A row that
cannot be remade is left as it is and reported; the others are rewritten. Two runs at once are
harmless. Rows that old code writes behind the current position are not seen: call it again.
"""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Sequence
from contextlib import suppress
from typing import Annotated, Protocol, TypeVar

import msgspec

from perdure.core.errors import Corrupted, PerdureError
from perdure.storage.adapter import Adapter
from perdure.storage.collection import Collection
from perdure.storage.concurrency import Pace
from perdure.storage.options import STRONG, Options
from perdure.storage.query import Query
from perdure.storage.records import Key, system_record
from perdure.storage.rows import Check, Recode, Row

T = TypeVar("T", bound=msgspec.Struct)

#: Rows on a page, and the bytes it should not exceed: what a middleware does to a page it does in
#: one go, on the event loop. How large rows are is learnt from the first page, which is short.
_ROWS = 50
_FIRST_ROWS = 10
_BYTES = 128 * 1024
_NOTE_EVERY = 1.0  # seconds
#: Failures that are told one by one; further ones are counted.
MOST_FAILURES = 100


class Failure(msgspec.Struct, frozen=True):
    """A row that could not be remade, and why. It is unchanged."""

    key: str
    what: str


class Rewritten(msgspec.Struct, frozen=True):
    """The result of a rewrite."""

    collection: str
    #: Rows that were looked at, the last time that all were.
    seen: int = 0
    #: Rows that were written anew, or would be; also by the run that was interrupted.
    rewritten: int = 0
    #: Rows that somebody changed, or deleted, before they could be.
    passed_over: int = 0
    #: Rows that could not be, all of them, and the first of them by name.
    failed: int = 0
    failures: tuple[Failure, ...] = ()
    resumed: bool = False


@system_record("rewrites")
class _Position(msgspec.Struct, frozen=True):
    """The progress of a rewrite. Stored in clear, so it must hold nothing of the rows' content."""

    id: Annotated[str, Key()]  # collection/purpose
    after: str
    seen: int = 0
    rewritten: int = 0


class RewriteHost(Protocol):
    """What a rewrite needs of a store."""

    @property
    def adapter(self) -> Adapter: ...
    def collection(self, cls: type[T]) -> Collection[T]: ...
    async def read(self, name: str, keys: Sequence[str], options: Options) -> list[Row | None]: ...
    async def rewrite(
        self, collection: str, recodes: Sequence[Recode], checks: Sequence[Check] = ()
    ) -> int: ...


#: Reads the rows of these keys of a collection.
Read = Callable[[str, Sequence[str], Options], Awaitable[list[Row | None]]]
#: Writes a page of rows; returns how many were still as read, and which could not be written.
Write = Callable[[Sequence[Recode]], Awaitable[tuple[int, list[Failure]]]]


async def rewrite_collection(
    host: RewriteHost,
    collection: str,
    *,
    purpose: str,
    wanted: Callable[[Row], bool],
    remade: Callable[[Row], Recode],
    write: Write | None = None,
    dry_run: bool = False,
    progress: Callable[[str, int, int], None] | None = None,
) -> Rewritten:
    """Rewrite every row that is `wanted`; returns the totals when all is done.

    `wanted` gets rows as stored; `remade` gets them decoded by the chain and may raise Perdure's
    errors. Both run on the event loop, a few milliseconds at a time. `write` writes a page, if more
    is to be done than to rewrite it. `purpose`, such as ``schema=3``, names what rows are brought
    to; saved progress of other purposes of its kind is discarded.

    With `dry_run` nothing is written, and all rows are read.
    """

    async def rewrite(recodes: Sequence[Recode]) -> tuple[int, list[Failure]]:
        return await host.rewrite(collection, recodes), []

    async def pretend(recodes: Sequence[Recode]) -> tuple[int, list[Failure]]:
        return len(recodes), []

    bookmark = _Bookmark(host, collection, purpose, kept=not dry_run)
    work = _Work(host, collection, wanted, remade, pretend if dry_run else write or rewrite)
    after, begun = await bookmark.find()
    done = await work.carry_out(after, begun, bookmark, progress)
    if begun.resumed:
        again = Rewritten(collection, rewritten=done.rewritten, resumed=True)
        done = await work.carry_out("", again, bookmark, progress)
    await bookmark.remove()
    return done


class _Bookmark:
    def __init__(self, host: RewriteHost, collection: str, purpose: str, *, kept: bool) -> None:
        self._positions = host.collection(_Position)
        self._collection = collection
        self._name = f"{collection}/{purpose}"
        self._kind = self._name.partition("=")[0]
        self._kept = kept
        self._is_there = False
        self._noted = time.monotonic()

    async def find(self) -> tuple[str, Rewritten]:
        begun = Rewritten(self._collection)
        if not self._kept:
            return "", begun
        for other in await self._positions.query().prefix(f"{self._kind}=").values():
            # Rows before its place are about to be changed.
            if other.id != self._name:
                await self._positions.delete(other.id)
        found = await self._positions.get(self._name, STRONG)
        if found is None:
            return "", begun
        self._is_there = True
        return found.after, msgspec.structs.replace(
            begun, seen=found.seen, rewritten=found.rewritten, resumed=True
        )

    async def reached(self, key: str, so_far: Rewritten) -> None:
        if self._kept and time.monotonic() - self._noted >= _NOTE_EVERY:
            position = _Position(self._name, key, so_far.seen, so_far.rewritten)
            await self._positions.put(position)
            self._is_there = True
            self._noted = time.monotonic()

    async def remove(self) -> None:
        if self._is_there:
            await self._positions.delete(self._name)


class _Work:
    def __init__(
        self,
        host: RewriteHost,
        collection: str,
        wanted: Callable[[Row], bool],
        remade: Callable[[Row], Recode],
        write: Write,
    ) -> None:
        self._host = host
        self._collection = collection
        self._wanted = wanted
        self._remade = remade
        self._write = write

    async def carry_out(
        self,
        after: str,
        so_far: Rewritten,
        bookmark: _Bookmark,
        progress: Callable[[str, int, int], None] | None,
    ) -> Rewritten:
        adapter, collection = self._host.adapter, self._collection
        total = sum(count.rows for count in await adapter.census(collection))
        pace = Pace()
        async for page in _pages(adapter, collection, after):
            so_far = await self._rewritten(page, so_far, pace)
            await bookmark.reached(page[-1].key, so_far)
            if progress is not None:
                progress(f"rewriting {collection}", so_far.seen, max(total, so_far.seen))
        return so_far

    async def _rewritten(self, page: list[Row], so_far: Rewritten, pace: Pace) -> Rewritten:
        keys = [row.key async for row in paced(page, pace) if self._wanted(row)]
        rows = await plain_rows(self._host.read, self._collection, keys)
        recodes, failures = await _remade(rows, self._remade, pace)
        written = 0
        if recodes:
            written, refused = await self._write(recodes)
            failures += refused
        return msgspec.structs.replace(
            so_far,
            seen=so_far.seen + len(page),
            rewritten=so_far.rewritten + written,
            passed_over=so_far.passed_over + len(keys) - written - len(failures),
            failed=so_far.failed + len(failures),
            failures=(*so_far.failures, *failures)[:MOST_FAILURES],
        )


async def paced(rows: Iterable[Row], pace: Pace) -> AsyncIterator[Row]:
    for row in rows:
        yield row
        await pace.breathe()


async def _remade(
    rows: Iterable[Row | Failure], remade: Callable[[Row], Recode], pace: Pace
) -> tuple[list[Recode], list[Failure]]:
    recodes: list[Recode] = []
    failures: list[Failure] = []
    for row in rows:
        if isinstance(row, Failure):
            failures.append(row)
            continue
        try:
            recodes.append(remade(row))
        except PerdureError as exc:
            failures.append(Failure(row.key, exc.message))
        await pace.breathe()
    return recodes, failures


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


async def _pages(adapter: Adapter, collection: str, after: str) -> AsyncIterator[list[Row]]:
    limit = _FIRST_ROWS
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
