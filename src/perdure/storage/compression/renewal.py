"""Renewal: a collection's dictionaries are replaced, and nothing of the old ones stays.

1. A new dictionary is trained on the values that are there, and becomes the one in use. From then
   on no value can be added that needs an older one: see the package's docstring.
2. Page by page, rows that need an older one are written anew. A row that somebody changed meanwhile
   needs none of them any more, and is passed over.
3. The older dictionaries are deleted.

Each step can be interrupted and done again, and two who do the same at once do not harm each other.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence

import msgspec
import zstandard

from perdure.core.errors import Conflict
from perdure.storage.adapter import Adapter, Recode, Row, checksum
from perdure.storage.collection import ATTEMPTS, back_off
from perdure.storage.compression.dictionaries import (
    WORTH_IT,
    Edition,
    Host,
    Samples,
    Shelf,
    parts,
    train,
)
from perdure.storage.store import Progress

_log = logging.getLogger(__name__)
#: Rows on a page, and the bytes it should not exceed: pages become shorter where rows are large.
#: How large they are is learnt from the first, which is short.
_ROWS = 200
_FIRST_ROWS = 10
_BYTES = 4 * 1024 * 1024


class Renewal(msgspec.Struct, frozen=True):
    """What the renewal of a collection's dictionaries did."""

    collection: str
    #: Rows that were written anew.
    rewritten: int = 0
    #: Dictionaries that were deleted.
    deleted: int = 0


async def begin(host: Host, shelf: Shelf, collection: str, progress: Progress | None) -> None:
    """Put another dictionary in use, trained on what the collection holds now, or none.

    Also where there was none yet: somebody might be about to train one on what is to be forgotten.
    """
    for attempt in range(ATTEMPTS):
        before = await shelf.edition(collection)
        samples = Samples()
        if before.learnt:
            await _sample(host.adapter, shelf, collection, samples, progress)
        content = b""
        if samples.suffice():
            content = await asyncio.to_thread(train, samples.values)
        try:
            await shelf.publish(collection, before, content, samples, only=True)
        except Conflict:
            # Somebody else put one in use. It may know what was deleted after they had read it.
            if attempt == ATTEMPTS - 1:
                raise
            await back_off(attempt)
        else:
            return


async def finish(
    host: Host,
    shelf: Shelf,
    collection: str,
    edition: Callable[[], Awaitable[Edition]],
    progress: Progress | None,
) -> Renewal:
    """Write rows anew that need a withdrawn dictionary, then delete those dictionaries.

    `edition` tells what the collection is written with now.
    """
    old = await shelf.withdrawn(collection)
    if not old:
        return Renewal(collection)
    tools, current = _tools(old), await edition()
    rewritten = done = 0
    async for page in _pages(host.adapter, collection):
        rows = [row for row in page if _dictionary_of(row) in old]
        while rows:
            recodes = await asyncio.to_thread(_recoded, collection, rows, tools, current)
            try:
                rewritten += await host.adapter.recode(collection, recodes, current.checks)
                break
            except Conflict:
                current = await edition()  # by now, another dictionary is in use
        done += len(page)
        if progress is not None:
            progress(f"rewriting {collection}", done, 0)
    await shelf.discard(collection, list(old))
    return Renewal(collection, rewritten, len(old))


async def _sample(
    adapter: Adapter, shelf: Shelf, collection: str, samples: Samples, progress: Progress | None
) -> None:
    tools = _tools({})
    done = 0
    async for page in _pages(adapter, collection):
        for number in {_dictionary_of(row) for row in page} - tools.keys():
            if content := await shelf.content(collection, number):
                tools |= _tools({number: content})
        await asyncio.to_thread(_note, page, tools, samples)
        done += len(page)
        if progress is not None:
            progress(f"sampling {collection}", done, 0)


async def _pages(adapter: Adapter, collection: str) -> AsyncIterator[list[Row]]:
    """All rows in key order, also those that have expired by our clock but not by another's."""
    after, limit = "", _FIRST_ROWS
    while page := await adapter.salvage(collection, after, limit):
        yield page
        after = page[-1].key
        size = sum(len(row.value) for row in page) // len(page)
        limit = max(1, min(_ROWS, _BYTES // (size + 1)))


def _tools(dictionaries: Mapping[int, bytes]) -> dict[int, zstandard.ZstdDecompressor]:
    """Decompressors of our own: none must be used by two threads at once."""
    tools = {
        number: zstandard.ZstdDecompressor(dict_data=zstandard.ZstdCompressionDict(content))
        for number, content in dictionaries.items()
    }
    return {0: zstandard.ZstdDecompressor(), **tools}


def _dictionary_of(row: Row) -> int:
    """The number of the dictionary that a row needs; 0 if it needs none."""
    found = parts(row.content_type)
    return found[1] if found else 0


# In a thread --------------------------------------------------------------------------------------


def _note(
    rows: Sequence[Row], tools: Mapping[int, zstandard.ZstdDecompressor], samples: Samples
) -> None:
    for row in rows:
        value, _ = _plain(row, tools)
        if len(value) >= WORTH_IT:
            samples.note(value)


def _recoded(
    collection: str,
    rows: Sequence[Row],
    tools: Mapping[int, zstandard.ZstdDecompressor],
    edition: Edition,
) -> list[Recode]:
    compress = edition.compressor()
    recodes = []
    for row in rows:
        value, content_type = _plain(row, tools)
        if not content_type:
            _log.warning("not renewed, because it is damaged: %s/%s", collection, row.key)
            continue
        packed = compress(value)
        if len(packed) < len(value):
            content_type, value = content_type + edition.mark, packed
        sum_ = checksum(row.key, content_type, row.schema, value)
        recodes.append(Recode(row, value, content_type, sum_))
    return recodes


def _plain(row: Row, tools: Mapping[int, zstandard.ZstdDecompressor]) -> tuple[bytes, str]:
    """Value and content type as they were before compression; both empty if it is damaged."""
    damaged = row.checksum != checksum(row.key, row.content_type, row.schema, row.value)
    content_type, number = parts(row.content_type) or (row.content_type, None)
    if damaged or (number is not None and number not in tools):
        return b"", ""
    if number is None:
        return row.value, content_type
    try:
        return tools[number].decompress(row.value), content_type
    except zstandard.ZstdError:
        return b"", ""
