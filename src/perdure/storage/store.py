"""A store: an adapter, the middleware around it, and the collections in it.

The walk of a write: `Collection.put` encodes the record into a `Put`; the store wraps it in a
`Commit` and sends it down the middleware chain; the innermost step seals each value with a checksum
and hands the batch to the adapter. A read comes back up the same way, checked before anything
decodes it.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import Any, Self, TypeVar, cast

import msgspec

from perdure.core.clock import Clock, now
from perdure.core.errors import (
    Conflict,
    Corrupted,
    InvalidRecordType,
    PerdureError,
    Unsupported,
)
from perdure.storage.adapter import (
    DEFAULT,
    Adapter,
    Batch,
    Capability,
    Check,
    Delete,
    Fill,
    Options,
    Put,
    Recode,
    Row,
    checksum,
)
from perdure.storage.collection import ATTEMPTS, Collection, back_off
from perdure.storage.middleware import (
    Call,
    Commit,
    Find,
    Get,
    Handler,
    Middleware,
    Remove,
    Resident,
    Rewrite,
    Summarize,
    compose,
)
from perdure.storage.query import All, Query, Scalar, Summary
from perdure.storage.records import RecordType
from perdure.storage.transaction import Transaction

T = TypeVar("T", bound=msgspec.Struct)
R = TypeVar("R")

#: Tells how far a long work has come: what, done, of how many (0 if unknown).
Progress = Callable[[str, int, int], None]

_log = logging.getLogger(__name__)
_EVERYTHING = All(())
_FILL_PAGE = 500


class Store:
    """Collections of records in one backend. An async context manager, or `open` and `close` it."""

    def __init__(
        self,
        adapter: Adapter,
        *,
        middleware: Sequence[Middleware] = (),
        clock: Clock = now,
        progress: Progress | None = None,
    ) -> None:
        self.adapter = adapter
        self._clock = clock
        self._progress = progress
        self._chain = tuple(middleware)
        self._handlers = compose(middleware, self._perform)
        self._handle = self._handlers[0]
        self._residents = [each for each in self._chain if isinstance(each, Resident)]
        self._declared: dict[str, RecordType[Any]] = {}
        self._declaring: dict[str, asyncio.Lock] = {}
        #: Called after a commit that emitted events, so that delivery need not wait for a poll.
        self.on_events: Callable[[], None] = lambda: None
        for resident in self._residents:
            resident.attach(self)

    async def open(self) -> None:
        """Connect to the backend."""
        await self.adapter.initialize()
        try:
            for resident in self._residents:
                await resident.open()
        except BaseException:
            await self.close()  # nobody else closes a store that could not be opened
            raise

    async def close(self) -> None:
        """Finish what was accepted and release the backend."""
        try:
            for resident in self._residents:
                await resident.close()
        finally:
            await self.adapter.close()

    async def __aenter__(self) -> Self:
        await self.open()
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self.close()

    # What callers use -------------------------------------------------------------------------

    def collection(self, cls: type[T]) -> Collection[T]:
        """The collection of a declared record type; its tables are made at first use."""
        return Collection(self, cls)

    def transaction(self, options: Options = DEFAULT) -> Transaction:
        """A transaction, as an async context manager: commits at the end, or does nothing.

        Raises `Conflict` at the end if a record that it read was changed meanwhile; `transact`
        repeats it then.
        """
        self.require(Capability.TRANSACTIONS)
        return Transaction(self, options)

    async def transact(
        self, body: Callable[[Transaction], Awaitable[R]], options: Options = DEFAULT
    ) -> R:
        """Run `body` in a transaction, again if others wrote what it read; returns its result.

        The body may run several times; what it does outside the store must bear that.
        """
        for attempt in range(ATTEMPTS):
            try:
                async with self.transaction(options) as transaction:
                    return await body(transaction)
            except Conflict:
                if attempt == ATTEMPTS - 1:
                    raise
                await back_off(attempt)
        raise AssertionError("unreachable")

    async def declare(self, *classes: type[msgspec.Struct]) -> None:
        """Make the collections of these types now, rather than at first use."""
        for cls in classes:
            await self.ready(Collection(self, cls).declared)

    @property
    def declared(self) -> dict[str, RecordType[Any]]:
        """The collections in use, by name."""
        return self._declared

    def require(self, capability: Capability) -> None:
        """Raises `Unsupported` if the backend does not have it."""
        if capability not in self.adapter.capabilities:
            raise Unsupported(
                f"{type(self.adapter).__name__} has no capability {capability.value!r}.",
                hint="Open the bank on a backend that has it, such as sqlite:// or postgresql://.",
            )

    # What collections and transactions use ----------------------------------------------------

    def now(self) -> int:
        """The store's clock."""
        return self._clock()

    async def ready(self, declared: RecordType[Any], *, make: bool = True) -> bool:
        """Make sure that the collection exists and has every column declared.

        With ``make=False`` it need not exist: False says that it does not, and so holds nothing.
        """
        known = self._declared.get(declared.name)
        if known is declared:
            return True
        if known is not None and _full_name(known) != _full_name(declared):
            raise InvalidRecordType(
                f"Both {known.cls.__name__} and {declared.cls.__name__} are declared as the"
                f" collection {declared.name!r}.",
                hint="Give one of them another name.",
            )
        # One lock each: filling an index of one collection may need another's records.
        async with self._declaring.setdefault(declared.name, asyncio.Lock()):
            if self._declared.get(declared.name) is not declared:
                missing = await self.adapter.prepare(declared.layout, make=make)
                if missing is None:
                    return False
                if missing:
                    await self._fill(declared)
                    await self.adapter.activate(declared.layout)
                self._declared[declared.name] = declared
        return True

    async def read(self, name: str, keys: Sequence[str], options: Options) -> list[Row | None]:
        return cast("list[Row | None]", await self._handle(Get(name, keys, options)))

    async def find(self, query: Query, options: Options) -> list[Row]:
        if query.where != _EVERYTHING:
            self.require(Capability.QUERY)
        return cast("list[Row]", await self._handle(Find(query, options)))

    async def summarize(self, summary: Summary, options: Options) -> list[tuple[Scalar, ...]]:
        self.require(Capability.AGGREGATE)
        return cast("list[tuple[Scalar, ...]]", await self._handle(Summarize(summary, options)))

    def write(self, writes: Sequence[Put | Delete], options: Options) -> Awaitable[list[int]]:
        return self._handle(Commit(Batch(tuple(writes)), options))

    async def remove(self, query: Query, options: Options) -> int:
        return cast("int", await self._handle(Remove(query, options)))

    async def commit(self, batch: Batch, options: Options) -> list[int]:
        """Write a batch through the chain."""
        if batch.events:
            self.require(Capability.OUTBOX)
        versions = await self._handle(Commit(batch, options))
        if batch.events:
            self.on_events()
        return cast("list[int]", versions)

    async def rewrite(
        self, collection: str, recodes: Sequence[Recode], checks: Sequence[Check] = ()
    ) -> int:
        """Keep the content of rows in other bytes; returns how many were still as read."""
        call = Rewrite(collection, tuple(recodes), DEFAULT, tuple(checks))
        return cast("int", await self._handle(call))

    def below(self, middleware: Middleware) -> Handler:
        """What the rest of the chain does, below one that is in it: rows as it gets them."""
        return self._handlers[self._chain.index(middleware) + 1]

    # The innermost step -----------------------------------------------------------------------

    async def _perform(self, call: Call) -> Any:
        adapter = self.adapter
        if isinstance(call, Commit):
            return await adapter.commit(_sealed(call.batch), call.options)
        if isinstance(call, Get):
            rows = await adapter.get(call.collection, call.keys, call.options)
            _verify(call.collection, rows)
            return rows
        if isinstance(call, Find):
            found = await adapter.find(call.query, call.options)
            _verify(call.query.collection, found)
            return found
        if isinstance(call, Summarize):
            return await adapter.summarize(call.summary, call.options)
        if isinstance(call, Rewrite):
            sealed = [_seal_recode(recode) for recode in call.recodes]
            return await adapter.recode(call.collection, sealed, call.checks)
        return await adapter.remove(call.query, call.options)

    async def _readable(self, name: str, after: tuple[str, ...] | None) -> list[Row]:
        """A page of rows without the damaged ones, which `verify` names."""
        rows: list[Row] = []
        position = after[0] if after else ""
        while not rows:
            page = await self.adapter.salvage(name, position, _FILL_PAGE)
            if not page:
                break
            for row in page:
                try:
                    (found,) = await self._handle(Get(name, (row.key,), DEFAULT))
                except Corrupted as exc:
                    _log.warning("not indexed: %s", exc)
                else:
                    rows += [found] if found is not None else []
            position = page[-1].key
        return rows

    async def _fill(self, declared: RecordType[Any]) -> None:
        """Give existing rows the columns they lack: the migration that adds an index."""
        done, after = 0, None
        while True:
            query = Query(declared.name, limit=_FILL_PAGE, after=after)
            try:
                rows: list[Row] = await self._handle(Find(query, DEFAULT))
            except Corrupted:
                rows = await self._readable(declared.name, after)
            if not rows:
                return
            await self.adapter.fill(declared.name, list(_fills(declared, rows)))
            after = (rows[-1].key,)
            done += len(rows)
            if self._progress is not None:
                self._progress(f"indexing {declared.name}", done, 0)


def _full_name(declared: RecordType[Any]) -> str:
    """What a class is called; one that is declared again, in a notebook, keeps its name."""
    return f"{declared.cls.__module__}.{declared.cls.__qualname__}"


def _sealed(batch: Batch) -> Batch:
    """The batch with the checksums that whoever made its puts left to us."""
    for write in batch.writes:
        if isinstance(write, Put) and not write.checksum:
            writes = tuple(_seal(write) for write in batch.writes)
            return Batch(writes, batch.checks, batch.events)
    return batch


def _seal(write: Put | Delete) -> Put | Delete:
    if isinstance(write, Delete) or write.checksum:
        return write
    sum_ = checksum(write.key, write.content_type, write.schema, write.value)
    return msgspec.structs.replace(write, checksum=sum_)


def _seal_recode(recode: Recode) -> Recode:
    if recode.checksum:
        return recode
    row = recode.row
    schema = row.schema if recode.schema is None else recode.schema
    sum_ = checksum(row.key, recode.content_type, schema, recode.value)
    return msgspec.structs.replace(recode, checksum=sum_)


def _verify(collection: str, rows: Sequence[Row | None]) -> None:
    """Raises `Corrupted` if a row is not what was written."""
    for row in rows:
        if row is not None and row.checksum != checksum(
            row.key, row.content_type, row.schema, row.value
        ):
            name = f"{collection}/{row.key}"
            raise Corrupted(
                f"The record {name} is damaged: its checksum does not fit.",
                hint="Run `perdure verify` to see all damage; restore it from a backup.",
                record=name,
            )


def _fills(declared: RecordType[Any], rows: Iterable[Row]) -> Iterable[Fill]:
    for row in rows:
        try:
            yield Fill(row.key, row.version, declared.columns(declared.decode(row)))
        except PerdureError as exc:
            # It cannot be read by this code, so no query of this code needs to find it.
            _log.warning("not indexed: %s", exc)
