"""What a storage backend is: a small interface, and the values that cross it.

A collection is a table of rows: a key, opaque value bytes, a few facts about them, and one real
column per declared index. A backend neither encodes nor decodes values. It promises that

* `commit` applies a whole batch or nothing of it, after checking every expectation;
* a committed write is seen by every later strong read anywhere, and by every later read of this
  process;
* no read sees an expired row, swept or not;
* a row written with a newer schema is never overwritten with an older one.

Everything else is declared in `Adapter.capabilities`, never probed with `hasattr`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Sequence
from contextlib import AbstractAsyncContextManager
from enum import StrEnum
from typing import ClassVar

from perdure.core.errors import Conflict, InvalidInput, NewerSchema, Unsupported
from perdure.storage.extension import Extension
from perdure.storage.options import DEFAULT, Options
from perdure.storage.query import Query, Scalar, Summary
from perdure.storage.rows import (
    Batch,
    Check,
    Count,
    Delivered,
    Fill,
    Layout,
    Recode,
    Row,
    RowCopy,
    Size,
)

_COUNTED = 500


class Capability(StrEnum):
    """What a backend can do beyond `Adapter.get` and a `commit` of single writes."""

    #: Expected versions are checked; two writers never both win.
    VERSIONS = "versions"
    #: Keys are listed in order, by prefix, and paged by key in both directions.
    LISTING = "listing"
    #: Rows expire.
    TTL = "ttl"
    #: A batch over several collections is atomic, its checks included.
    TRANSACTIONS = "transactions"
    #: Conditions and orders over declared columns.
    QUERY = "query"
    #: Rows are found by ``name=value`` tags.
    TAGS = "tags"
    #: Sums, averages, counts and groups, computed where the data is.
    AGGREGATE = "aggregate"
    #: Events are committed with the batch and read back in order.
    OUTBOX = "outbox"
    #: What was acknowledged survives the death of the process (kill -9).
    DURABLE = "durable"
    #: `Consistency.STRONG` writes survive the loss of power.
    STRONG = "strong"
    #: Several processes may have the store open.
    SHARED = "shared"
    #: `Adapter.scrub`.
    ERASURE = "erasure"
    #: `Adapter.snapshot` and `Adapter.load`: the whole store as it was at one moment.
    SNAPSHOTS = "snapshots"
    #: `Adapter.attach`: others keep data beside the rows, and take part in commits.
    EXTENSIONS = "extensions"


class Snapshot(ABC):
    """A consistent view of a store at one moment, for one reader; rows are as stored."""

    @abstractmethod
    async def layouts(self) -> list[Layout]:
        """The collections by name, without columns that some rows lack, and their indexes."""

    @abstractmethod
    async def count(self, collection: str) -> int:
        """The number of rows of a collection; may include expired ones."""

    @abstractmethod
    def entries(self, collection: str) -> AsyncIterator[list[RowCopy]]:
        """All rows of a collection but the expired ones, in pages, in no particular order."""

    @abstractmethod
    def events(self) -> AsyncIterator[list[Delivered]]: ...

    @abstractmethod
    async def last_event(self) -> int:
        """The highest event id ever given, even if that event is gone; 0 if none."""


class Adapter(ABC):
    """A storage backend.

    Made from a URL, `initialize`d, used from one event loop, and `close`d. Methods raise errors of
    the `perdure.core.errors` tree only.
    """

    capabilities: ClassVar[frozenset[Capability]] = frozenset()
    #: What OpenTelemetry calls the database (``db.system.name``).
    system: ClassVar[str] = "perdure"

    async def exists(self) -> bool:
        """Whether there is a store, before `initialize`, with its errors. Creates nothing."""
        return True

    @abstractmethod
    async def initialize(self) -> None:
        """Connect, and create what is missing. Safe on a store in use elsewhere."""

    @abstractmethod
    async def close(self) -> None:
        """Finish accepted work, then release everything. Safe to call twice."""

    @abstractmethod
    async def prepare(self, layout: Layout, *, make: bool = True) -> frozenset[str] | None:
        """Create the collection, or bring it to this layout; None with ``make=False`` if missing.

        Returns the columns that some rows lack: new ones, or rows of code that does not declare
        them, if the backend can tell (see `unfilled`). The caller passes their values to `fill`,
        then calls `activate`; until then queries by those columns are wrong. After an interruption
        the next `prepare` names them again.
        """

    @abstractmethod
    async def fill(self, collection: str, fills: Sequence[Fill]) -> None:
        """Set the columns of rows that are still as given; skip the others."""

    async def is_prepared(self, layout: Layout) -> bool:
        """Whether the columns are as `activate` left them; another declaration can change that."""
        return True

    async def unfilled(
        self, collection: str, position: str, limit: int
    ) -> tuple[list[str], str] | None:
        """Keys of up to `limit` rows that lack a declared column, and the next position.

        The column was added and not filled yet, or the row was written by code that does not
        declare it. The order is the backend's; start with the empty position; no keys means the
        end. None if the backend cannot tell: then all rows have to be filled.
        """
        return None

    @abstractmethod
    async def activate(self, layout: Layout) -> None:
        """Build the indexes and store the layout once all rows are filled. Others go on."""

    @abstractmethod
    async def get(
        self, collection: str, keys: Sequence[str], options: Options
    ) -> list[Row | None]: ...

    @abstractmethod
    async def commit(self, batch: Batch, options: Options) -> list[int]:
        """Apply the batch. Returns the version of each write (0 for a delete), in order.

        Cancelled, it did nothing or runs to its end before `CancelledError` is raised.

        Raises `Conflict` if an expectation or a check fails, `NewerSchema` if a row of a newer
        schema would be overwritten, and `Unavailable` if the store went away; its message says so
        if it is unknown whether the batch was applied.
        """

    async def recode(
        self, collection: str, recodes: Sequence[Recode], checks: Sequence[Check]
    ) -> int:
        """Replace the bytes of rows in one transaction; versions and times stay.

        Rows changed since they were read are skipped; returns how many were replaced. Raises
        `Conflict`, having changed nothing, if a check fails.
        """
        raise self._unsupported(Capability.TRANSACTIONS)

    async def generation(self) -> int | None:
        """Changes when others commit; None if that cannot be told for next to nothing."""
        return None

    def lacks(self, collection: str) -> bool:
        """Whether the collection is known, at next to no cost, not to exist."""
        return False

    @property
    def replicated(self) -> bool:
        """Whether reads that are not strong may be answered by a replica."""
        return False

    async def identity(self) -> str | None:
        """Shared by all who have this store open, until a restore or restart; None if unknown."""
        return None

    def snapshot(self) -> AbstractAsyncContextManager[Snapshot]:
        """The whole store as it is on entry. Keep it short: replaced rows are retained for it."""
        raise self._unsupported(Capability.SNAPSHOTS)

    async def load(self, source: Snapshot, *, replace: bool = False) -> int:
        """Load everything from a snapshot of any backend, all of it or nothing.

        Rows keep their versions, times and checksums, events their order and ids; later ids are
        higher. An older position of `events` still stands before the same events or starts over: no
        event is skipped. `replace` discards what is in this store. Returns the number of rows.

        The store must not be in use elsewhere, nor this adapter. Afterwards collections have to be
        prepared again. Cancelled or interrupted, the store is unchanged.

        Raises `Conflict` if the store holds records or events and `replace` was not given, and
        `Unavailable` if others have it open, where that can be detected.
        """
        raise self._unsupported(Capability.SNAPSHOTS)

    async def scrub(self) -> None:
        """Make unreadable whatever was deleted or overwritten before this call.

        Covers the store's own files as far as the backend documents, not backups, replicas or logs.
        Takes time in proportion to the store; others go on, or wait; may be repeated.

        Raises `Unavailable` if others who have the store open kept it from finishing: bytes may
        still be there then.
        """
        raise self._unsupported(Capability.ERASURE)

    async def find(self, query: Query, options: Options) -> list[Row]:
        """Rows in order. `Capability.LISTING` for prefixes, QUERY and TAGS for conditions."""
        raise self._unsupported(Capability.LISTING)

    async def summarize(self, summary: Summary, options: Options) -> list[tuple[Scalar, ...]]:
        raise self._unsupported(Capability.AGGREGATE)

    async def remove(self, query: Query, options: Options) -> int:
        raise self._unsupported(Capability.QUERY)

    async def sweep(self, limit: int) -> int:
        raise self._unsupported(Capability.TTL)

    async def events(self, position: str, limit: int) -> tuple[list[Delivered], str]:
        """Up to `limit` events after a position, and the position behind the last of them.

        Everyone reads the same order: events of one key as committed, with growing ids; those of
        different keys may interleave. The empty position, and one from another kind of backend,
        stand before the first event. No later commit is placed at or before a returned position. An
        empty list may come with a new position; keep it.
        """
        raise self._unsupported(Capability.OUTBOX)

    async def trim(self, position: str, before: int) -> int:
        """Delete events at or before the position that are older than `before`."""
        raise self._unsupported(Capability.OUTBOX)

    def attach(self, extension: Extension) -> None:
        """Let an extension take part in commits. Before `initialize`; replaces its namesake."""
        raise self._unsupported(Capability.EXTENSIONS)

    def extension(self, name: str) -> Extension | None:
        return None

    async def sizes(self) -> list[Size]:
        """Rows and bytes of each collection, by name."""
        return []

    async def census(self, collection: str) -> list[Count]:
        """Rows per schema and content type, without the expired ones."""
        counts: dict[tuple[int, str], int] = {}
        after: tuple[Scalar, ...] | None = None
        while rows := await self.find(Query(collection, after=after, limit=_COUNTED), DEFAULT):
            for row in rows:
                kind = (row.schema, row.content_type)
                counts[kind] = counts.get(kind, 0) + 1
            after = (rows[-1].key,)
        return [Count(*kind, rows) for kind, rows in sorted(counts.items())]

    async def inspect(self) -> list[str]:
        """The backend's own integrity check: one sentence per fault that it finds."""
        return []

    async def salvage(self, collection: str, after: str, limit: int) -> list[Row]:
        """Rows in key order; a damaged one comes back empty, with checksum -1."""
        mark = (after,) if after else None
        return await self.find(Query(collection, after=mark, limit=limit), DEFAULT)

    def _unsupported(self, capability: Capability) -> Unsupported:
        return Unsupported(
            f"{type(self).__name__} has no capability {capability.value!r}.",
            hint="Open the bank on a backend that has it, such as sqlite:// or postgresql://.",
        )


def newer_schema(collection: str, key: str, stored: int, ours: int) -> NewerSchema:
    return NewerSchema(
        f"{collection}/{key} has schema version {stored}, newer than this code's {ours}.",
        hint="Upgrade Perdure or your record type; the record was left untouched.",
    )


def no_collection(name: str) -> InvalidInput:
    return InvalidInput(
        f"There is no collection {name!r} in this store.", hint="Call prepare first."
    )


def not_empty(collection: str) -> Conflict:
    what = f"records in {collection!r}" if collection else "events"
    return Conflict(
        collection,
        "",
        message=f"The bank holds {what} already; nothing was changed.",
        hint="Choose an empty one, or say that it may be overwritten (--overwrite).",
    )


def require(adapter: Adapter, capability: Capability) -> None:
    """Raises `Unsupported` if the backend does not have it."""
    if capability not in adapter.capabilities:
        raise Unsupported(
            f"{type(adapter).__name__} has no capability {capability.value!r}.",
            hint="Open the bank on a backend that has it, such as sqlite:// or postgresql://.",
        )
