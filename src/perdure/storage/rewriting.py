"""Writing the rows of a collection anew: what migrations and new keys have in common.

Page by page, rows that are not as they should be are read through the chain, remade, and sent back
as rewrites. Versions and times stay, everybody reads and writes meanwhile, and a row that somebody
changes in between is passed over: it was written the new way.

How far it came is kept in the store after each page. Interrupted, even by kill -9, it goes on from
there; at worst one page is looked at again. A row that cannot be remade is left as it is and told
of at the end; the others do not suffer from it.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import suppress
from typing import Annotated, Protocol, TypeVar

import msgspec

from perdure.core.errors import Corrupted, PerdureError
from perdure.storage.adapter import STRONG, Adapter, Check, Options, Recode, Row
from perdure.storage.collection import Collection
from perdure.storage.records import Key, system_record

T = TypeVar("T", bound=msgspec.Struct)

#: Rows on a page, and the bytes it should not exceed: pages become shorter where rows are large.
#: How large they are is learnt from the first, which is short.
_ROWS = 500
_FIRST_ROWS = 10
_BYTES = 4 * 1024 * 1024
#: Failures that are told one by one; further ones are counted.
MOST_FAILURES = 100


class Failure(msgspec.Struct, frozen=True):
    """A row that could not be remade, and why. It is unchanged."""

    key: str
    what: str


class Rewritten(msgspec.Struct, frozen=True):
    """What came of it."""

    collection: str
    #: Rows that were looked at.
    seen: int = 0
    #: Rows that were written anew, or would be.
    rewritten: int = 0
    #: Rows that could not be, all of them, and the first of them by name.
    failed: int = 0
    failures: tuple[Failure, ...] = ()
    #: Whether it went on with what an earlier run had begun.
    resumed: bool = False


@system_record("rewrites")
class _Position(msgspec.Struct, frozen=True):
    """How far a rewrite came."""

    id: Annotated[str, Key()]  # collection/purpose
    after: str
    so_far: Rewritten


class Host(Protocol):
    """What is needed of a store."""

    @property
    def adapter(self) -> Adapter: ...
    def collection(self, cls: type[T]) -> Collection[T]: ...
    async def read(self, name: str, keys: Sequence[str], options: Options) -> list[Row | None]: ...
    async def rewrite(
        self, collection: str, recodes: Sequence[Recode], checks: Sequence[Check] = ()
    ) -> int: ...


async def rewrite_collection(
    host: Host,
    collection: str,
    *,
    purpose: str,
    wanted: Callable[[Row], bool],
    remade: Callable[[Row], Recode],
    dry_run: bool = False,
    progress: Callable[[str, int, int], None] | None = None,
) -> Rewritten:
    """Write every row anew that is wanted; returns what came of it when all is done.

    `wanted` is asked about rows as they are stored; `remade` gets them as records are decoded from
    them, and may raise errors of Perdure's. `purpose` tells one rewrite of a collection from
    another: it names what the rows are brought to, such as ``schema=3``.

    With `dry_run` nothing is written, and all rows are looked at.
    """
    positions = host.collection(_Position)
    name = f"{collection}/{purpose}"
    begun = None if dry_run else await positions.get(name)
    so_far = Rewritten(collection)
    if begun is not None:
        so_far = msgspec.structs.replace(begun.so_far, resumed=True)
    total = await _rows(host.adapter, collection)
    async for page in _pages(host.adapter, collection, begun.after if begun else ""):
        rows = await _plain(host, collection, [row.key for row in page if wanted(row)])
        so_far = await _page_done(host, so_far, rows, remade, dry_run=dry_run)
        so_far = msgspec.structs.replace(so_far, seen=so_far.seen + len(page))
        if not dry_run:
            await positions.put(_Position(name, page[-1].key, so_far))
        if progress is not None:
            progress(f"rewriting {collection}", so_far.seen, max(total, so_far.seen))
    if not dry_run and (begun is not None or so_far.seen):
        await positions.delete(name)
    return so_far


async def _page_done(
    host: Host,
    so_far: Rewritten,
    rows: list[Row | Failure],
    remade: Callable[[Row], Recode],
    *,
    dry_run: bool,
) -> Rewritten:
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
    written = len(recodes)
    if recodes and not dry_run:
        written = await host.rewrite(so_far.collection, recodes)
    return msgspec.structs.replace(
        so_far,
        rewritten=so_far.rewritten + written,
        failed=so_far.failed + len(failures),
        failures=(*so_far.failures, *failures)[:MOST_FAILURES],
    )


async def _plain(host: Host, collection: str, keys: list[str]) -> list[Row | Failure]:
    """The rows of these keys as the chain hands them out; a damaged one does not hide the rest."""
    if not keys:
        return []
    with suppress(Corrupted):
        return [row for row in await host.read(collection, keys, STRONG) if row is not None]
    found: list[Row | Failure] = []
    for key in keys:
        try:
            found += [row for row in await host.read(collection, [key], STRONG) if row is not None]
        except Corrupted as exc:
            found.append(Failure(key, exc.message))
    return found


async def _pages(adapter: Adapter, collection: str, after: str) -> AsyncIterator[list[Row]]:
    """All rows as they are stored, damaged and expired ones included."""
    limit = _FIRST_ROWS
    while page := await adapter.salvage(collection, after, limit):
        yield page
        after = page[-1].key
        size = sum(len(row.value) for row in page) // len(page)
        limit = max(1, min(_ROWS, _BYTES // (size + 1)))


async def _rows(adapter: Adapter, collection: str) -> int:
    return sum(size.rows for size in await adapter.sizes() if size.collection == collection)
