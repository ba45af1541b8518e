"""Renewal: the dictionaries of a stock are replaced, and nothing of the old ones stays.

1. A new dictionary is trained on the values that are there, and becomes the one in use. From then
   on no value can be added that needs an older one: see the package's docstring.
2. Page by page, rows that need an older one are written anew. A row that somebody changed meanwhile
   needs none of them any more, and is passed over.
3. The older dictionaries are deleted.

Each step can be interrupted and done again, and two who do the same at once do not harm each other.
Rows are read and rewritten through what stands below compression in the chain, so that encrypted
ones are opened and closed again on the way.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping, Sequence
from typing import NamedTuple, cast

import msgspec
import zstandard

from perdure.core.errors import Conflict, Corrupted, KeyRefused
from perdure.storage.adapter import Adapter
from perdure.storage.compression.dictionaries import (
    WORTH_IT,
    Edition,
    Samples,
    Shelf,
    form,
    is_hidden,
    named,
    train,
)
from perdure.storage.conflicts import ATTEMPTS, back_off
from perdure.storage.middleware import Get, Handler, Rewrite
from perdure.storage.options import DEFAULT, STRONG
from perdure.storage.rows import Check, Recode, Row, checksum
from perdure.storage.store import Progress

_log = logging.getLogger(__name__)
#: Rows on a page, and the bytes it should not exceed: pages become shorter where rows are large.
#: How large they are is learnt from the first, which is short.
_ROWS = 200
_FIRST_ROWS = 10
_BYTES = 4 * 1024 * 1024
#: How often all rows are gone through, if others change rows that are being written anew.
_PASSES = 3


class Renewal(msgspec.Struct, frozen=True):
    """What the renewal of a collection's dictionaries did."""

    collection: str
    #: Rows that were written anew.
    rewritten: int = 0
    #: Dictionaries that were deleted.
    deleted: int = 0


class Page(NamedTuple):
    """Some rows of a stock."""

    #: As they were when compression handed them down.
    rows: list[Row]
    #: The keys of those that are stored encrypted.
    secret: set[str]
    #: Those that cannot be opened here, as they are stored: they are damaged, or there is no key.
    closed: list[Row]


class Source:
    """The rows of a stock, as compression sees them.

    `belongs` tells whether the record of a key is written from this stock. Unless `keeps_secrets`,
    dictionaries of this stock are stored in clear, as far as this process knows.
    """

    def __init__(
        self,
        adapter: Adapter,
        below: Handler,
        stock: str,
        belongs: Callable[[str], bool],
        *,
        keeps_secrets: bool,
    ) -> None:
        self.stock = stock
        self.collection, self._own, scope = stock.partition("/")
        self._belongs = belongs
        self._keeps_secrets = keeps_secrets
        self._prefix = f"{scope}/" if self._own else ""
        self._adapter = adapter
        self._below = below

    async def pages(self) -> AsyncIterator[Page]:
        """All rows in key order, also those that have expired by our clock but not by another's."""
        after, limit = self._prefix, _FIRST_ROWS
        while page := await self._adapter.salvage(self.collection, after, limit):
            inside = [row for row in page if row.key.startswith(self._prefix)]
            yield await self._opened(inside)
            if len(inside) < len(page):
                return
            after = page[-1].key
            size = sum(len(row.value) for row in page) // len(page)
            limit = max(1, min(_ROWS, _BYTES // (size + 1)))

    def samples(self, page: Page) -> list[Row]:
        """What a dictionary may be trained with: nothing that is encrypted, if it would not be."""
        return [
            row
            for row in page.rows
            if self._belongs(row.key) and (self._keeps_secrets or row.key not in page.secret)
        ]

    def named(self, rows: Iterable[Row]) -> set[int]:
        """The numbers of dictionaries of this stock that rows need, also encrypted ones."""
        found = {named(row.content_type) for row in rows}
        return {each[0] for each in found if each is not None and each[1] == bool(self._own)}

    def needs(self, row: Row) -> int:
        """The number of the dictionary of this stock that a row needs; 0 if it needs none."""
        made = form(row.content_type)
        return made.number if made is not None and made.own == bool(self._own) else 0

    async def rewrite(self, recodes: Sequence[Recode], checks: tuple[Check, ...]) -> int:
        """Send the rows back; returns how many were still as they were read."""
        call = Rewrite(self.collection, tuple(recodes), DEFAULT, checks)
        return cast("int", await self._below(call))

    async def _opened(self, rows: list[Row]) -> Page:
        hidden = [row.key for row in rows if is_hidden(row.content_type)]
        secret = set(hidden)
        shown = {row.key: row for row in rows if row.key not in secret and self._is_sound(row)}
        gone: set[str] = set()
        await self._read(hidden, shown, gone)
        return Page(
            [shown[row.key] for row in rows if row.key in shown],
            secret,
            [row for row in rows if row.key not in shown and row.key not in gone],
        )

    async def _read(self, keys: list[str], shown: dict[str, Row], gone: set[str]) -> None:
        """Read rows through the chain: what can be opened is shown, what was deleted is gone."""
        if not keys:
            return
        try:
            found = await self._below(Get(self.collection, keys, STRONG))
        except (Corrupted, KeyRefused) as exc:
            if len(keys) == 1:
                _log.warning("not renewed, because it cannot be read: %s", exc.message)
                return
            for key in keys:
                await self._read([key], shown, gone)
            return
        for key, row in zip(keys, found, strict=True):
            if row is None:
                gone.add(key)
            elif not is_hidden(row.content_type):
                shown[key] = row

    def _is_sound(self, row: Row) -> bool:
        sound = row.checksum == checksum(row.key, row.content_type, row.schema, row.value)
        if not sound:
            _log.warning("not renewed, because it is damaged: %s/%s", self.collection, row.key)
        return sound


async def begin(source: Source, shelf: Shelf, progress: Progress | None) -> None:
    """Put another dictionary in use, trained on what the stock holds now, or none.

    Also where there was none yet: somebody might be about to train one on what is to be forgotten.
    """
    for attempt in range(ATTEMPTS):
        before = await shelf.edition(source.stock)
        samples = Samples()
        if before.learnt:
            await sample(source, shelf, samples, progress)
        content = b""
        if samples.suffice():
            content = await asyncio.to_thread(train, samples.values)
        try:
            await shelf.publish(source.stock, before, content, samples, only=True)
        except Conflict:
            # Somebody else put one in use. It may know what was deleted after they had read it.
            if attempt == ATTEMPTS - 1:
                raise
            await back_off(attempt)
        else:
            return


async def finish(
    source: Source,
    shelf: Shelf,
    edition: Callable[[], Awaitable[Edition]],
    progress: Progress | None,
) -> Renewal:
    """Write rows anew that need a withdrawn dictionary, then delete those dictionaries.

    `edition` tells what the stock is written with now. A dictionary that is needed by a row that
    cannot be read here is kept: there may be somebody who can.
    """
    old = await shelf.withdrawn(source.stock)
    if not old:
        return Renewal(source.collection)
    tools = await _loaded(source, shelf, old)
    rewritten, left = 0, set[int]()
    for _ in range(_PASSES):
        done = await _write_anew(source, tools, old, edition, progress)
        rewritten, left = rewritten + done.rewritten, done.left | done.missed
        if not done.missed:
            break
    if left:
        _log.warning(
            "dictionaries of %s are kept, because rows need them that cannot be written anew: %s",
            source.stock,
            ", ".join(map(str, sorted(left))),
        )
    await shelf.discard(source.stock, sorted(old - left))
    return Renewal(source.collection, rewritten, len(old - left))


class _Done(NamedTuple):
    """What became of the rows that need an old dictionary."""

    rewritten: int
    #: The dictionaries of those that cannot be read here.
    left: set[int]
    #: And of those that were changed by others. They may need it no more; but if their keys were
    #: rotated they do.
    missed: set[int]


async def _write_anew(
    source: Source,
    tools: Mapping[int, zstandard.ZstdDecompressor],
    old: set[int],
    edition: Callable[[], Awaitable[Edition]],
    progress: Progress | None,
) -> _Done:
    rewritten = seen = 0
    left, missed = set[int](), set[int]()
    async for page in source.pages():
        left |= source.named(page.closed) & old
        rows = [row for row in page.rows if source.needs(row) in old]
        if rows:
            recodes, written = await _rewrite(source, rows, tools, edition)
            moved = {recode.row.key for recode in recodes}
            left |= {source.needs(row) for row in rows if row.key not in moved}
            rewritten += written
            if written < len(recodes):
                missed |= {source.needs(recode.row) for recode in recodes}
        seen += len(page.rows)
        if progress is not None:
            progress(f"rewriting {source.collection}", seen, 0)
    return _Done(rewritten, left, missed)


async def _rewrite(
    source: Source,
    rows: Sequence[Row],
    tools: Mapping[int, zstandard.ZstdDecompressor],
    edition: Callable[[], Awaitable[Edition]],
) -> tuple[list[Recode], int]:
    """Write rows anew; returns those that could be, and how many were still as they were read."""
    for attempt in range(ATTEMPTS):
        current = await edition()
        recodes = await asyncio.to_thread(_recoded, rows, tools, current)
        try:
            return recodes, await source.rewrite(recodes, current.checks)
        except Conflict:  # by now, another dictionary is in use
            if attempt == ATTEMPTS - 1:
                raise
            await back_off(attempt)
    raise AssertionError("unreachable")


async def sample(
    source: Source, shelf: Shelf, samples: Samples, progress: Progress | None = None
) -> None:
    """Note what a stock holds."""
    tools = _tools({})
    done = 0
    async for page in source.pages():
        rows = source.samples(page)
        tools |= await _loaded(source, shelf, {source.needs(row) for row in rows} - tools.keys())
        await asyncio.to_thread(_note, rows, tools, samples)
        done += len(page.rows)
        if progress is not None:
            progress(f"sampling {source.collection}", done, 0)


async def _loaded(
    source: Source, shelf: Shelf, numbers: set[int]
) -> dict[int, zstandard.ZstdDecompressor]:
    """Decompressors for these dictionaries, as far as they can be read."""
    found: dict[int, bytes] = {}
    for number in numbers:
        try:
            found[number] = await shelf.content(source.stock, number)
        except (Corrupted, KeyRefused) as exc:
            _log.warning("a dictionary cannot be read: %s", exc.message)
    return _tools({number: content for number, content in found.items() if content})


def _tools(dictionaries: Mapping[int, bytes]) -> dict[int, zstandard.ZstdDecompressor]:
    """Decompressors of our own: none must be used by two threads at once."""
    tools = {
        number: zstandard.ZstdDecompressor(dict_data=zstandard.ZstdCompressionDict(content))
        for number, content in dictionaries.items()
    }
    return {0: zstandard.ZstdDecompressor(), **tools}


# In a thread --------------------------------------------------------------------------------------


def _note(
    rows: Sequence[Row], tools: Mapping[int, zstandard.ZstdDecompressor], samples: Samples
) -> None:
    for row in rows:
        value, _ = _plain(row, tools)
        if len(value) >= WORTH_IT:
            samples.note(value)


def _recoded(
    rows: Sequence[Row], tools: Mapping[int, zstandard.ZstdDecompressor], edition: Edition
) -> list[Recode]:
    compress = edition.compressor()
    recodes = []
    for row in rows:
        value, content_type = _plain(row, tools)
        if not content_type:
            _log.warning("not renewed, because it cannot be expanded: %s", row.key)
            continue
        packed = compress(value)
        if len(packed) < len(value):
            content_type, value = content_type + edition.mark, packed
        recodes.append(Recode(row, value, content_type))
    return recodes


def _plain(row: Row, tools: Mapping[int, zstandard.ZstdDecompressor]) -> tuple[bytes, str]:
    """Value and content type as they were before compression; both empty if that cannot be told."""
    made = form(row.content_type)
    if made is None:
        return row.value, row.content_type
    if made.number not in tools:
        return b"", ""
    try:
        return tools[made.number].decompress(row.value), made.content_type
    except zstandard.ZstdError:
        return b"", ""
