"""What a storage backend is: a small interface, and the values that cross it.

A backend keeps *collections*. A collection is a table of rows: a key, opaque value bytes, a few
facts about them, and one real column per declared index. A backend neither encodes nor decodes
values; it does not know record types. It promises that

* `commit` applies a whole batch or nothing of it, after checking every expectation;
* what `commit` acknowledged is seen by every later strong call, everywhere, and by every later call
  of this process;
* an expired row is not seen by any read, whether or not it has been swept;
* a row written with a newer schema is never overwritten with an older one.

What else it can do it declares in `Adapter.capabilities`. Nobody probes with `hasattr`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Sequence
from contextlib import AbstractAsyncContextManager
from enum import StrEnum
from typing import ClassVar

from perdure.core.errors import Conflict, NewerSchema, Unsupported
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
    """A store as it was at one moment, whatever is written meanwhile. Rows are as stored.

    Used by one reader, who reads one thing after another. Pages are bounded, so that memory does
    not grow with the store.
    """

    @abstractmethod
    async def layouts(self) -> list[Layout]:
        """The collections, by name.

        Columns that not every row holds yet are left out, and so are the indexes over them.
        """

    @abstractmethod
    async def count(self, collection: str) -> int:
        """How many rows a collection has, perhaps with some that have expired."""

    @abstractmethod
    def entries(self, collection: str) -> AsyncIterator[list[RowCopy]]:
        """All rows of a collection, in pages, in no particular order; expired ones left out."""

    @abstractmethod
    def events(self) -> AsyncIterator[list[Delivered]]:
        """The events that are still kept, in order, in pages."""

    @abstractmethod
    async def last_event(self) -> int:
        """The highest id that an event was given, also one that is no longer kept; 0 if none."""


class Adapter(ABC):
    """A storage backend.

    Made from a URL, then `initialize`d, used from one event loop, and `close`d. Methods raise
    errors of the `perdure.core.errors` tree only.
    """

    capabilities: ClassVar[frozenset[Capability]] = frozenset()
    #: What OpenTelemetry calls the database (``db.system.name``).
    system: ClassVar[str] = "perdure"

    async def exists(self) -> bool:
        """Whether there is a store at the address. Called before `initialize`; makes nothing.

        Raises the same errors as `initialize` if that cannot be told.
        """
        return True

    @abstractmethod
    async def initialize(self) -> None:
        """Connect, and make what is missing. Safe to call on a store in use elsewhere."""

    @abstractmethod
    async def close(self) -> None:
        """Finish what was accepted, then release everything. Safe to call twice."""

    @abstractmethod
    async def prepare(self, layout: Layout, *, make: bool = True) -> frozenset[str] | None:
        """Make the collection, or bring it to this layout.

        With ``make=False`` a collection that is not there need not be made: None says that it is
        not. Whoever only reads leaves no empty tables behind.

        Returns the columns that existing rows do not hold yet. The caller passes their values to
        `fill`, then calls `activate`; until then those columns answer wrongly. Interrupted, the
        next `prepare` names the same columns again.
        """

    @abstractmethod
    async def fill(self, collection: str, fills: Sequence[Fill]) -> None:
        """Set the columns of rows that are still the given ones; skip the others."""

    async def is_prepared(self, layout: Layout) -> bool:
        """Whether what this declaration needs is still as `prepare` and `activate` left it.

        Somebody who opens the collection with another declaration can change that.
        """
        return True

    async def unfilled(
        self, collection: str, position: str, limit: int
    ) -> tuple[list[str], str] | None:
        """Keys of up to `limit` rows that lack a declared column, and a position behind them.

        They lack it because it was added and not filled yet, or because they were written by
        somebody else whose declaration lacks it. The order is the backend's; the empty position
        stands before the first, and no keys say that there are no more. None if the backend cannot
        tell: all rows have to be filled then, and what others leave out stays so.
        """
        return None

    @abstractmethod
    async def activate(self, layout: Layout) -> None:
        """Every row holds every column now: build the indexes and remember the layout.

        Others read and write meanwhile; each backend says if they have to wait.
        """

    @abstractmethod
    async def get(self, collection: str, keys: Sequence[str], options: Options) -> list[Row | None]:
        """The rows of these keys, in this order."""

    @abstractmethod
    async def commit(self, batch: Batch, options: Options) -> list[int]:
        """Apply the batch. Returns the version of each write (0 for a delete), in order.

        Cancelled, it either did nothing or is carried to its end before `CancelledError` is
        raised: afterwards nothing is in flight.

        Raises `Conflict` if an expectation or a check does not hold, `NewerSchema` if a row of a
        newer schema would be overwritten, and `Unavailable` if the store went away; its message
        says so if it could not be learnt whether the batch was applied.
        """

    async def recode(
        self, collection: str, recodes: Sequence[Recode], checks: Sequence[Check]
    ) -> int:
        """Keep the content of rows in other bytes, all in one transaction.

        Everything else about a row stays, its version and times included: nobody who has read it
        can tell. Rows that are no longer as they were read are skipped; returns how many were not.

        Raises `Conflict`, having changed nothing, if a check does not hold.
        """
        raise self._unsupported(Capability.TRANSACTIONS)

    async def generation(self) -> int | None:
        """A number that differs from an earlier one if somebody else has committed since.

        Somebody else is whoever does not write through this adapter. None if that cannot be told
        at once and for next to nothing.
        """
        return None

    def lacks(self, collection: str) -> bool:
        """Whether nobody has made this collection, as far as that is known for next to nothing."""
        return False

    @property
    def replicated(self) -> bool:
        """Whether reads that are not strong may be answered by a replica."""
        return False

    async def identity(self) -> str | None:
        """A text that everybody has who has this very store open, and nobody else.

        It may change when the store is restored or its machine is restarted. None if there is no
        such text.
        """
        return None

    def snapshot(self) -> AbstractAsyncContextManager[Snapshot]:
        """The whole store as it is when the context is entered, for as long as that lasts.

        Others read and write meanwhile. What they delete or overwrite has to be kept for it, so
        it should not last longer than needed.
        """
        raise self._unsupported(Capability.SNAPSHOTS)

    async def load(self, source: Snapshot, *, replace: bool = False) -> int:
        """Take over everything from a snapshot of any backend, all of it or nothing.

        Rows keep their versions, times and checksums, events their order and their ids; ids that
        are given later are higher. A position from `events` of another store, or of this one
        before, either still stands before the same events or starts over: nothing is passed by.
        With `replace`, whatever is in this store is gone afterwards. Returns how many rows there
        were.

        Nobody else may have the store open meanwhile, and nobody may use this adapter.
        Afterwards it is as after `initialize`: collections have to be prepared again. Cancelled
        or interrupted, the store is as it was before.

        Raises `Conflict` if the store holds records or events and `replace` was not given, and
        `Unavailable` if others have it open, where that can be told.
        """
        raise self._unsupported(Capability.SNAPSHOTS)

    async def scrub(self) -> None:
        """Make unreadable whatever was deleted or overwritten before this call.

        That means the store's own files, as far as the backend can see to them; each says how
        far that is. It makes no promise about backups, replicas and logs that an administrator
        keeps. Others go on, or wait for it. It takes time in proportion to what the store holds,
        and may be repeated.

        Raises `Unavailable` if others who have the store open did not let it finish: bytes may
        still be there then.
        """
        raise self._unsupported(Capability.ERASURE)

    async def find(self, query: Query, options: Options) -> list[Row]:
        """Rows in order. `Capability.LISTING` for prefixes, QUERY and TAGS for conditions."""
        raise self._unsupported(Capability.LISTING)

    async def summarize(self, summary: Summary, options: Options) -> list[tuple[Scalar, ...]]:
        """One tuple per group: the group's values, then its figures. Ordered by group."""
        raise self._unsupported(Capability.AGGREGATE)

    async def remove(self, query: Query, options: Options) -> int:
        """Delete the rows the query finds; returns how many."""
        raise self._unsupported(Capability.QUERY)

    async def sweep(self, limit: int) -> int:
        """Delete up to `limit` expired rows; returns how many."""
        raise self._unsupported(Capability.TTL)

    async def events(self, position: str, limit: int) -> tuple[list[Delivered], str]:
        """Up to `limit` events after a position, and the position behind the last of them.

        Everybody reads them in the same order: those of one key as they were committed, with
        growing ids; those of different keys may interleave. The empty position stands before the
        first event. No event that commits later is ever placed at or before a position that was
        returned. An empty list may come with a new position; keep it. A position that a backend
        of another kind gave out stands before the first event.
        """
        raise self._unsupported(Capability.OUTBOX)

    async def trim(self, position: str, before: int) -> int:
        """Delete events at or before the position that are older than `before`."""
        raise self._unsupported(Capability.OUTBOX)

    def attach(self, extension: Extension) -> None:
        """Let an extension take part in commits; see `perdure.storage.extension`.

        Called before `initialize`. One of the same name is replaced.
        """
        raise self._unsupported(Capability.EXTENSIONS)

    def extension(self, name: str) -> Extension | None:
        """What was attached under this name."""
        return None

    async def sizes(self) -> list[Size]:
        """What each collection takes, by name."""
        return []

    async def census(self, collection: str) -> list[Count]:
        """How many rows there are of each schema and content type, without the expired ones."""
        counts: dict[tuple[int, str], int] = {}
        after: tuple[Scalar, ...] | None = None
        while rows := await self.find(Query(collection, after=after, limit=_COUNTED), DEFAULT):
            for row in rows:
                kind = (row.schema, row.content_type)
                counts[kind] = counts.get(kind, 0) + 1
            after = (rows[-1].key,)
        return [Count(*kind, rows) for kind, rows in sorted(counts.items())]

    def inspect(self) -> AsyncIterator[str]:
        """The backend's own integrity check: yields one sentence per fault it finds."""
        return _nothing()

    async def salvage(self, collection: str, after: str, limit: int) -> list[Row]:
        """Rows in key order even where parts cannot be read, for `perdure verify`.

        A row that cannot be read comes back empty, with checksum -1.
        """
        mark = (after,) if after else None
        return await self.find(Query(collection, after=mark, limit=limit), DEFAULT)

    def _unsupported(self, capability: Capability) -> Unsupported:
        return Unsupported(
            f"{type(self).__name__} has no capability {capability.value!r}.",
            hint="Open the bank on a backend that has it, such as sqlite:// or postgresql://.",
        )


def newer_schema(collection: str, key: str, stored: int, ours: int) -> NewerSchema:
    """The error for a row that newer code wrote."""
    return NewerSchema(
        f"{collection}/{key} has schema version {stored}, newer than this code's {ours}.",
        hint="Upgrade Perdure or your record type; the record was left untouched.",
    )


def not_empty(collection: str) -> Conflict:
    """The error for a store that something would be loaded into, and that is not empty."""
    what = f"records in {collection!r}" if collection else "events"
    return Conflict(
        collection,
        "",
        message=f"The bank holds {what} already; nothing was changed.",
        hint="Choose an empty one, or say that it may be overwritten (--overwrite).",
    )


async def _nothing() -> AsyncIterator[str]:
    no_lines: tuple[str, ...] = ()
    for line in no_lines:
        yield line


def require(adapter: Adapter, capability: Capability) -> None:
    """Raises `Unsupported` if the backend does not have it."""
    if capability not in adapter.capabilities:
        raise Unsupported(
            f"{type(adapter).__name__} has no capability {capability.value!r}.",
            hint="Open the bank on a backend that has it, such as sqlite:// or postgresql://.",
        )
