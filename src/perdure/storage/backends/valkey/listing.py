"""Listing keys in order, step by step: other clients wait while the server does a step."""

from __future__ import annotations

from perdure.core.clock import Clock
from perdure.storage import keys
from perdure.storage.backends.valkey import rows, scripts
from perdure.storage.backends.valkey.links import Link
from perdure.storage.query import Query
from perdure.storage.rows import Row

#: Rows that one step returns at most, bytes after which it ends, and keys that it looks at.
PAGE = 500
_PAGE_BYTES = 8 * 1024 * 1024
_LOOKED_AT = 2_000


async def find(link: Link, names: rows.Names, query: Query, clock: Clock) -> list[Row]:
    """The rows of a query that is ordered by key and has no conditions."""
    descending = query.total_order()[0].descending
    low, high = _range(query, descending=descending)
    command = b"ZREVRANGEBYLEX" if descending else b"ZRANGEBYLEX"
    start, end = (high, low) if descending else (low, high)
    offset, left = query.offset, query.limit
    found: list[Row] = []
    while left is None or left > 0:
        page = PAGE if left is None else min(PAGE, left)
        flat, passed, last = await link.run(
            scripts.FIND,
            [names.index(query.collection)],
            [
                *(names.rows(query.collection), clock()),
                *(command, start, end),
                *(offset, page, _LOOKED_AT, _PAGE_BYTES),
            ],
        )
        pairs = zip(flat[::2], flat[1::2], strict=True)
        found += [rows.unpack(key.decode(errors="replace"), stored) for key, stored in pairs]
        if last is None:
            break
        start = b"(" + last
        offset -= passed
        left = None if left is None else left - len(flat) // 2
    return found


def _range(query: Query, *, descending: bool) -> tuple[bytes, bytes]:
    """The lower and the upper end of a listing, as the server wants them."""
    first, end = query.prefix, keys.after_prefix(query.prefix)
    low = b"[" + _encoded(first)
    high = b"+" if end is None else b"(" + _encoded(end)
    if query.after is not None:
        mark = str(query.after[0])
        if descending and (end is None or mark < end):
            high = b"(" + _encoded(mark)
        elif not descending and mark >= first:
            low = b"(" + _encoded(mark)
    return low, high


def _encoded(text: str) -> bytes:
    """Bytes that sort like the text, also where a mark holds what no key can."""
    return text.encode(errors="surrogatepass")
