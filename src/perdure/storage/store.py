"""A store: an adapter, the middleware around it, and the collections in it.

A write: `Collection.put` encodes the record into a `Put`; the store sends it in a `Commit` down the
middleware chain; the innermost step adds checksums and hands the batch to the adapter. A read comes
back up the same way; its checksum is verified before anything decodes it.
"""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Awaitable, Callable, Sequence
from typing import TYPE_CHECKING, Any, Self, TypeVar, cast

import msgspec

from perdure.core.clock import Clock, now
from perdure.core.errors import (
    Corrupted,
    InvalidRecordType,
    KeyRefused,
    Unavailable,
)
from perdure.storage.adapter import Adapter, Capability, require
from perdure.storage.collection import Collection
from perdure.storage.concurrency import retry_conflicts
from perdure.storage.filling import Filling
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
    SearchCall,
    Stage,
    Summarize,
    compose,
    is_due,
    stage_of,
)
from perdure.storage.options import DEFAULT, Options
from perdure.storage.query import All, Query, Scalar, Summary
from perdure.storage.records import RecordType
from perdure.storage.rows import Batch, Check, Delete, Put, Recode, Row, checksum
from perdure.storage.transaction import Transaction

if TYPE_CHECKING:
    from perdure.storage.schemas.schema_registry import SchemaRegistry

T = TypeVar("T", bound=msgspec.Struct)
R = TypeVar("R")
X = TypeVar("X", bound=Transaction)

#: Tells how far a long work has come: what, done, of how many (0 if unknown).
Progress = Callable[[str, int, int], None]

_EVERYTHING = All(())


class Store:
    """Collections in one backend. An async context manager, or `open` and `close` it."""

    def __init__(
        self,
        adapter: Adapter,
        *,
        middleware: Sequence[Middleware] = (),
        clock: Clock = now,
        progress: Progress | None = None,
        unlock: Callable[[], Awaitable[None]] | None = None,
    ) -> None:
        self.adapter = adapter
        self._clock = clock
        self._unlock = unlock
        self._chain = tuple(middleware)
        self._handlers = compose(middleware, self._perform)
        self._handle = self._handlers[0]
        self._residents = [each for each in self._chain if isinstance(each, Resident)]
        self._encrypts = unlock is not None or any(
            stage_of(each) is Stage.ENCRYPT for each in self._chain
        )
        self._declared: dict[str, RecordType[Any]] = {}
        self._declaring: dict[str, asyncio.Lock] = {}
        self._writable: set[str] = set()
        self._filling = Filling(self, progress)
        #: Called after a commit that emitted events, so that delivery need not wait for a poll.
        self.on_events: Callable[[], None] = lambda: None
        for resident in self._residents:
            resident.attach(self)

    async def open(self) -> None:
        if self._unlock is not None:
            await self._unlock()
        await self.adapter.initialize()
        try:
            for resident in self._residents:
                await resident.open()
        except BaseException:
            await self.close()  # nobody else closes a store that could not be opened
            raise

    async def close(self) -> None:
        await self._filling.close()
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

    def collection(self, cls: type[T]) -> Collection[T]:
        return Collection(self, cls)

    def transaction(self, options: Options = DEFAULT) -> Transaction:
        """Commits at the end, or does nothing; raises `Conflict` if a record it read changed."""
        if Capability.TRANSACTIONS not in self.adapter.capabilities:
            self.require(Capability.TRANSACTIONS)
        return Transaction(self, self.commit, self._declared, options)

    async def transact(
        self, body: Callable[[Transaction], Awaitable[R]], options: Options = DEFAULT
    ) -> R:
        """Run `body` in a transaction, and again after a `Conflict`: it may run several times."""
        return await transact(lambda: self.transaction(options), body)

    async def declare(self, *classes: type[msgspec.Struct]) -> None:
        """Create the collections of these types now, and fill all declared columns and indexes."""
        for cls in classes:
            declared = Collection(self, cls).declared
            await self.ready(declared)
            await self._filling.wait(declared.name)

    async def refill(self) -> int:
        """Fill columns of records written by code without them; returns how many.

        Call it every few seconds: until then queries miss such records. Costs next to nothing.
        """
        return await self._filling.refill()

    @functools.cached_property
    def schemas(self) -> SchemaRegistry:
        # Not before it is needed: a process that only knows Perdure's own types starts faster.
        from perdure.storage.schemas.schema_registry import SchemaRegistry

        return SchemaRegistry(self, self.adapter)

    @property
    def declared(self) -> dict[str, RecordType[Any]]:
        """The types of the collections in use, by name, bound to this store."""
        return self._declared

    @property
    def capabilities(self) -> frozenset[Capability]:
        return self.adapter.capabilities

    def require(self, capability: Capability) -> None:
        """Raises `Unsupported` if the backend does not have it."""
        require(self.adapter, capability)

    def now(self) -> int:
        return self._clock()

    async def ready(self, declared: RecordType[T], *, make: bool = True) -> RecordType[T] | None:
        """Prepare the collection for use; returns the type bound to this store.

        With ``make=False``, for reading, a missing collection is not created: returns None. Missing
        columns are filled in the background; queries by them wait for that.

        Raises `NewerSchema`, having changed nothing, if the collection is ahead of the type.
        """
        known = self._declared.get(declared.name)
        if (
            known is not None
            and known.origin is declared
            and (not make or declared.name in self._writable)
        ):
            return known
        if known is None and not make and self.adapter.lacks(declared.name):
            return None
        if known is not None and _full_name(known) != _full_name(declared):
            raise InvalidRecordType(
                f"Both {known.cls.__name__} and {declared.cls.__name__} are declared as the"
                f" collection {declared.name!r}.",
                hint="Give one of them another name.",
            )
        if make and declared.encrypted and not self._encrypts:
            raise KeyRefused(
                f"{declared.cls.__name__} has a field marked Encrypted, and would be stored in"
                " clear: the store was opened without a master key.",
                hint="Make one with `perdure keys make FILE`, and name it in encryption.key, or"
                " give it as master_key=….",
            )
        # One lock each: filling an index of one collection may need another's records.
        async with self._declaring.setdefault(declared.name, asyncio.Lock()):
            return await self._made_ready(declared, make=make)

    async def _made_ready(self, declared: RecordType[T], *, make: bool) -> RecordType[T] | None:
        name = declared.name
        known = self._declared.get(name)
        is_ready = known is not None and known.origin is declared
        if is_ready and (not make or name in self._writable):
            return known
        # First of all, whether the collection is ahead of us: preparing it would change it.
        bound = declared if declared.is_own else await self.schemas.bound(declared, make=make)
        if not is_ready:
            missing = await self.adapter.prepare(declared.layout, make=make)
            if missing is None:
                return None
            self._filling.begin(bound, missing)
        self._declared[name] = bound
        if make:
            self._writable.add(name)
        else:
            self._writable.discard(name)
        return bound

    async def read(self, name: str, keys: Sequence[str], options: Options) -> list[Row | None]:
        return cast("list[Row | None]", await self._handle(Get(name, keys, options)))

    async def find(self, query: Query, options: Options) -> list[Row]:
        if query.where != _EVERYTHING:
            self.require(Capability.QUERY)
        if self._filling.works:
            await self._filling.wait(query.collection, query.columns())
        return cast("list[Row]", await self._handle(Find(query, options)))

    async def summarize(self, summary: Summary, options: Options) -> list[tuple[Scalar, ...]]:
        self.require(Capability.AGGREGATE)
        if self._filling.works:
            await self._filling.wait(summary.query.collection, summary.columns())
        return cast("list[tuple[Scalar, ...]]", await self._handle(Summarize(summary, options)))

    def write(
        self,
        writes: Sequence[Put | Delete],
        options: Options,
        absent: Sequence[tuple[str, str]] = (),
    ) -> Awaitable[list[int]]:
        """Write a batch, unless one of the keys that must be absent exists."""
        checks = tuple([Check(collection, key, 0) for collection, key in absent])
        return self._handle(Commit(Batch(tuple(writes), checks), options))

    async def remove(self, query: Query, options: Options) -> int:
        if self._filling.works:
            await self._filling.wait(query.collection, query.columns())
        return cast("int", await self._handle(Remove(query, options)))

    async def commit(self, batch: Batch, options: Options) -> list[int]:
        if batch.events:
            self.require(Capability.OUTBOX)
        if batch.changes:
            self.require(Capability.EXTENSIONS)
        versions = await self._handle(Commit(batch, options))
        if batch.events:
            self.on_events()
        return cast("list[int]", versions)

    async def search(self, search: SearchCall) -> Any:
        return await self._handle(search)

    async def rewrite(
        self, collection: str, recodes: Sequence[Recode], checks: Sequence[Check] = ()
    ) -> int:
        """Replace the bytes of rows; returns how many were still as read."""
        call = Rewrite(collection, tuple(recodes), DEFAULT, tuple(checks))
        return cast("int", await self._handle(call))

    async def scrub(self) -> bool:
        """Make deleted and overwritten content unreadable; False if some may still be readable."""
        if Capability.ERASURE not in self.capabilities:
            return Capability.DURABLE not in self.capabilities
        try:
            await self.adapter.scrub()
        except Unavailable:
            return False
        return True

    async def put_off_filling(self, collection: str) -> None:
        """Leave filling to a rewrite, except for queries that need it and `declare`."""
        await self._filling.put_off(collection)

    def is_due(self, declared: RecordType[Any], row: Row) -> bool:
        return is_due(self._chain, declared, row)

    def below(self, middleware: Middleware) -> Handler:
        return self._handlers[self._chain.index(middleware) + 1]

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
        if isinstance(call, SearchCall):
            return await call.ask()
        return await adapter.remove(call.query, call.options)


async def transact(begin: Callable[[], X], body: Callable[[X], Awaitable[R]]) -> R:
    async def attempt(_: int) -> R:
        async with begin() as transaction:
            return await body(transaction)

    return await retry_conflicts(attempt)


async def join(executor: Store | Transaction, body: Callable[[Transaction], Awaitable[R]]) -> R:
    """Run `body` as a part of a transaction, or in one of its own."""
    if isinstance(executor, Transaction):
        return await body(executor)
    return await executor.transact(body)


def _full_name(declared: RecordType[Any]) -> str:
    """The name of a class; one declared again, in a notebook, keeps its name."""
    return f"{declared.cls.__module__}.{declared.cls.__qualname__}"


def _sealed(batch: Batch) -> Batch:
    for write in batch.writes:
        if isinstance(write, Put) and not write.checksum:
            writes = tuple([_seal(write) for write in batch.writes])
            return Batch(writes, batch.checks, batch.events, batch.changes)
    return batch


def _seal(write: Put | Delete) -> Put | Delete:
    if isinstance(write, Delete) or write.checksum:
        return write
    sum_ = checksum(write.key, write.content_type, write.schema, write.value)
    return msgspec.structs.replace(write, checksum=sum_)


def _seal_recode(recode: Recode) -> Recode:
    if recode.checksum:
        return recode
    sum_ = checksum(recode.row.key, recode.content_type, recode.new_schema, recode.value)
    return msgspec.structs.replace(recode, checksum=sum_)


def _verify(collection: str, rows: Sequence[Row | None]) -> None:
    """Raises `Corrupted` if a row's checksum does not fit."""
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
