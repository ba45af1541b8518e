"""How the store lies in the keys of a server.

With the prefix ``perdure``::

    perdure:meta              a hash: the format of all this
    perdure:collections       a hash: the layout of each collection, as JSON
    perdure:r:NAME:KEY        a row of collection NAME: a header, its content type, its value
    perdure:i:NAME            a sorted set of the keys, all with score 0: ordered by their bytes
    perdure:x:NAME            a sorted set of the keys that expire, by the time when they do
    perdure:w                 a hash: what the last writes of writers returned; see `writer`

A row is one string, not a hash: of 100 bytes it takes 180 in memory, not 700. Its header has the
facts that scripts look at, and they read nothing but the header.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator

from perdure.core.clock import Clock
from perdure.storage import record_keys
from perdure.storage.backends.valkey import scripts
from perdure.storage.backends.valkey.links import ValkeyLink
from perdure.storage.query import Query
from perdure.storage.rows import Put, Recode, Row

#: Raised when any of this changes; a newer one than ours is refused.
FORMAT = 1
#: Milliseconds that the server keeps a row after its time has come. Whether a row has expired is
#: decided by the clock that the adapter was given; the server, whose clock may be ahead, only
#: frees the memory.
GRACE = 60_000

# Version and created, which the server decides; updated and expires; then checksum, schema and the
# length of the content type. `scripts.HEADER` is the same in Lua.
_IDENTITY = struct.Struct(">QQ")
_TIMES = struct.Struct(">Qq")
_FACTS = struct.Struct(">qIH")
_HEADER = _IDENTITY.size + _TIMES.size + _FACTS.size
_NEVER = -1
_ANY = -1

_WRITE = struct.Struct(">Hqqqq")
_CHECK = struct.Struct(">QQ")
_AS_READ = struct.Struct(">QQqI")


class ValkeyNames:
    """The keys of a store."""

    def __init__(self, prefix: str) -> None:
        self._prefix = prefix
        self.meta = f"{prefix}:meta".encode()
        self.collections = f"{prefix}:collections".encode()
        self.tickets = f"{prefix}:w".encode()

    def rows(self, collection: str) -> bytes:
        return f"{self._prefix}:r:{collection}:".encode()

    def row(self, collection: str, key: str) -> bytes:
        return f"{self._prefix}:r:{collection}:{key}".encode()

    def index(self, collection: str) -> bytes:
        return f"{self._prefix}:i:{collection}".encode()

    def expiry(self, collection: str) -> bytes:
        return f"{self._prefix}:x:{collection}".encode()

    def probe(self, name: str) -> bytes:
        return f"{self._prefix}:p:{name}".encode()


def write(number: int, put: Put, moment: int) -> Iterator[bytes]:
    """A put as the script `COMMIT` takes it: what to check, and the row without its identity."""
    expires = _NEVER if put.expires is None else put.expires
    life = 0 if put.expires is None else max(0, put.expires - moment) // 1_000 + 1 + GRACE
    expected = _ANY if put.expected is None else put.expected
    yield _WRITE.pack(number, expected, put.schema, expires, life)
    facts = _tail(put.checksum, put.schema, put.content_type)
    yield b"".join((_TIMES.pack(moment, expires), facts, put.value))


def delete(number: int, expected: int | None) -> Iterator[bytes]:
    """A delete as the script `COMMIT` takes it: its row is empty."""
    yield _WRITE.pack(number, _ANY if expected is None else expected, 0, _NEVER, 0)
    yield b""


def check(version: int, created: int) -> bytes:
    return _CHECK.pack(version, created)


def recode(recode: Recode) -> Iterator[bytes]:
    """A recode as the script `RECODE` takes it: the row as it was read, and its new end. Rows of
    a newer schema are left alone.
    """
    row = recode.row
    schema = row.schema if recode.schema is None else recode.schema
    yield _AS_READ.pack(row.version, row.created, row.checksum, schema)
    yield _tail(recode.checksum, schema, recode.content_type) + recode.value


def unpack(key: str, stored: bytes) -> Row:
    """The row stored under a key; if the bytes cannot be a row, it is empty, with checksum -1,
    and so is found to be damaged.
    """
    try:
        version, created = _IDENTITY.unpack_from(stored)
        updated, expires = _TIMES.unpack_from(stored, _IDENTITY.size)
        checksum, schema, length = _FACTS.unpack_from(stored, _IDENTITY.size + _TIMES.size)
        content_type = stored[_HEADER : _HEADER + length].decode()
    except (struct.error, UnicodeDecodeError):
        return Row(key, b"", "", 0, 0, 0, 0, None, -1)
    return Row(
        key,
        stored[_HEADER + length :],
        content_type,
        schema,
        version,
        created,
        updated,
        None if expires == _NEVER else expires,
        checksum,
    )


def _tail(checksum: int, schema: int, content_type: str) -> bytes:
    encoded = content_type.encode()
    return _FACTS.pack(checksum, schema, len(encoded)) + encoded


#: Rows that one step returns at most, bytes after which it ends, and keys that it looks at.
PAGE = 500
_PAGE_BYTES = 8 * 1024 * 1024
_LOOKED_AT = 2_000


async def find(link: ValkeyLink, names: ValkeyNames, query: Query, clock: Clock) -> list[Row]:
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
        found += [unpack(key.decode(errors="replace"), stored) for key, stored in pairs]
        if last is None:
            break
        start = b"(" + last
        offset -= passed
        left = None if left is None else left - len(flat) // 2
    return found


def _range(query: Query, *, descending: bool) -> tuple[bytes, bytes]:
    """The lower and the upper end of a listing, as the server wants them."""
    first, end = query.prefix, record_keys.after_prefix(query.prefix)
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
