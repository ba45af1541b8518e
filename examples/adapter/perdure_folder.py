"""A bank in a folder of JSON files: ``folder:///notes``.

An example of a backend by a third party. It is good for small banks that people want to look into,
or keep in git: each row is a file that any editor opens. One process at a time; see
`FolderAdapter.capabilities` for what it can do, and docs/adapters.md for how it was made.
"""

from __future__ import annotations

import base64
import fcntl
import hashlib
from collections.abc import Sequence
from pathlib import Path
from typing import IO, ClassVar

import msgspec

from perdure.core.clock import Clock, now
from perdure.core.errors import (
    AccessDenied,
    Closed,
    Conflict,
    Corrupted,
    InvalidInput,
    InvalidURL,
    Unavailable,
)
from perdure.storage import registry
from perdure.storage.adapter import Adapter, Capability, newer_schema
from perdure.storage.options import Options
from perdure.storage.query import All, Query
from perdure.storage.rows import Batch, Delete, Fill, Layout, Put, Row

_EVERYTHING = All(())


class FolderAdapter(Adapter):
    """A folder for each collection, a file for each row, everything also in memory.

    A file is written beside its place and then moved there, so it is whole or not there; that is
    enough to survive kill -9, but not the loss of power, so STRONG is not declared. A file system
    cannot change several files at once, so TRANSACTIONS is not either. A lock keeps out other
    processes, which would not see our writes: so no SHARED.
    """

    capabilities: ClassVar[frozenset[Capability]] = frozenset(
        {Capability.VERSIONS, Capability.LISTING, Capability.TTL, Capability.DURABLE}
    )

    def __init__(self, url: str, clock: Clock = now) -> None:
        self._root = Path(registry.parse(url).path)
        if not self._root.name:
            raise InvalidURL(
                f"The address {url!r} names no folder.", hint="Write it like folder:///notes."
            )
        self._clock = clock
        self._tables: dict[str, dict[str, Row]] = {}
        self._lock: IO[str] | None = None

    # Life -------------------------------------------------------------------------------------

    async def initialize(self) -> None:
        try:
            self._root.mkdir(parents=True, exist_ok=True)
            self._lock = (self._root / "lock").open("w")
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as exc:
            await self.close()
            raise Unavailable(
                f"The bank {self._root} is open in another process.", hint="Close it there first."
            ) from exc
        except OSError as exc:
            raise AccessDenied(
                f"The bank {self._root} cannot be opened: {exc.strerror}.",
                hint="Choose a folder that you may write to.",
            ) from exc

    async def close(self) -> None:
        if self._lock is not None:
            self._lock.close()
            self._lock = None

    async def prepare(self, layout: Layout, *, make: bool = True) -> frozenset[str]:
        if layout.tagged:
            raise self._unsupported(Capability.TAGS)
        self._check_open()
        if layout.name not in self._tables:
            folder = self._root / layout.name
            folder.mkdir(exist_ok=True)
            rows = [_read(path) for path in folder.glob("*.json")]
            self._tables[layout.name] = {row.key: row for row in rows}
        return frozenset()  # columns are not kept: no query could ask for them

    async def fill(self, collection: str, fills: Sequence[Fill]) -> None:
        pass

    async def activate(self, layout: Layout) -> None:
        pass

    # Reading ----------------------------------------------------------------------------------

    async def get(self, collection: str, keys: Sequence[str], options: Options) -> list[Row | None]:
        self._table(collection)
        return [self._living(collection, key) for key in keys]

    async def find(self, query: Query, options: Options) -> list[Row]:
        order = query.total_order()[0]
        if query.where != _EVERYTHING or order.column != "key":
            raise self._unsupported(Capability.QUERY)
        keys = sorted(
            (key for key in self._table(query.collection) if key.startswith(query.prefix)),
            reverse=order.descending,
        )
        if query.after is not None:
            mark = str(query.after[-1])
            keys = [key for key in keys if (key < mark if order.descending else key > mark)]
        rows = [row for key in keys if (row := self._living(query.collection, key))]
        end = None if query.limit is None else query.offset + query.limit
        return rows[query.offset : end]

    # Writing ----------------------------------------------------------------------------------

    async def commit(self, batch: Batch, options: Options) -> list[int]:
        # There is no await in here, so nothing comes between a look and a write.
        if len(batch.writes) > 1 or batch.checks:
            raise self._unsupported(Capability.TRANSACTIONS)
        if batch.events:
            raise self._unsupported(Capability.OUTBOX)
        return [self._write(write) for write in batch.writes]

    async def sweep(self, limit: int) -> int:
        self._check_open()
        dead = [
            (name, key)
            for name, table in self._tables.items()
            for key in table
            if self._living(name, key) is None
        ]
        for name, key in dead[:limit]:
            self._drop(name, key)
        return len(dead[:limit])

    def _write(self, write: Put | Delete) -> int:
        table = self._table(write.collection)
        living = self._living(write.collection, write.key)
        found = 0 if living is None else living.version
        if write.expected is not None and write.expected != found:
            raise Conflict(write.collection, write.key, expected=write.expected, found=found)
        if isinstance(write, Delete):
            self._drop(write.collection, write.key)
            return 0
        stored = table.get(write.key)
        if stored is not None and stored.schema > write.schema:
            raise newer_schema(write.collection, write.key, stored.schema, write.schema)
        moment = self._clock()
        row = Row(
            write.key,
            write.value,
            write.content_type,
            write.schema,
            found + 1,
            moment if living is None else living.created,
            moment,
            write.expires,
            write.checksum,
        )
        self._save(write.collection, row)
        table[write.key] = row
        return row.version

    # Files ------------------------------------------------------------------------------------

    def _save(self, collection: str, row: Row) -> None:
        path = self._path(collection, row.key)
        fresh = path.with_suffix(".new")
        plain = msgspec.structs.asdict(row) | {"value": base64.b64encode(row.value).decode()}
        fresh.write_bytes(msgspec.json.format(msgspec.json.encode(plain), indent=2))
        fresh.replace(path)

    def _drop(self, collection: str, key: str) -> None:
        self._path(collection, key).unlink(missing_ok=True)
        self._table(collection).pop(key, None)

    def _path(self, collection: str, key: str) -> Path:
        # Keys may be longer than file names, and hold what those cannot.
        return self._root / collection / f"{hashlib.sha256(key.encode()).hexdigest()[:40]}.json"

    # ------------------------------------------------------------------------------------------

    def _living(self, collection: str, key: str) -> Row | None:
        row = self._tables[collection].get(key)
        if row is None or (row.expires is not None and row.expires <= self._clock()):
            return None
        return row

    def _table(self, name: str) -> dict[str, Row]:
        self._check_open()
        try:
            return self._tables[name]
        except KeyError:
            raise InvalidInput(
                f"There is no collection {name!r} in this store.", hint="Call prepare first."
            ) from None

    def _check_open(self) -> None:
        if self._lock is None:
            raise Closed("This bank is closed.", hint="Open it again.")


def _read(path: Path) -> Row:
    try:
        return msgspec.json.decode(path.read_bytes(), type=Row)
    except msgspec.MsgspecError as exc:
        raise Corrupted(
            f"{path} does not hold a row: {exc}.", hint="Restore it from a backup."
        ) from exc
