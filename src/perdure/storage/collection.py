"""Typed collections: where records go in and come out."""

from __future__ import annotations

import builtins
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from typing import TypeVar

import msgspec

from perdure.core.errors import Conflict
from perdure.storage import record_keys, record_references
from perdure.storage.collection_reader import CollectionReader
from perdure.storage.concurrency import retry_conflicts
from perdure.storage.finder import Page, QueryBuilder
from perdure.storage.options import DEFAULT, STRONG, Options
from perdure.storage.query import Query, SortOrder
from perdure.storage.rows import Delete, Put

T = TypeVar("T", bound=msgspec.Struct)
R = TypeVar("R", bound=msgspec.Struct)

_WALK = 500  # Records that `walk` reads at once.
_UP, _DOWN = (SortOrder("key"),), (SortOrder("key", descending=True),)


class Collection(CollectionReader[T]):
    """The records of one type, in a store or in a transaction.

    In a transaction, reads see its own writes, writes take effect when it commits, and the versions
    they return are 0.
    """

    _made = False
    #: Finds what its records refer to, if they can and the backend keeps track of it.
    _gather: record_references.Gather | None = None

    async def put(self, record: T, options: Options = DEFAULT) -> int:
        """Returns the new version. Raises `Conflict` if `options.expected` is another."""
        if not self._made:
            await self.make()
        put = self.declared.encode(record, self._expiry(), options.expected)
        if self._gather is not None:
            (version,) = await self._write_referring((put,), (record,), self._gather, options)
            return version
        (version,) = await self._executor.write((put,), options)
        return version

    async def put_many(self, records: Iterable[T], options: Options = DEFAULT) -> list[int]:
        """Store all or none; of equal keys the last wins. `options.expected` applies to each."""
        await self.make()
        expires = self._expiry()
        given = list(records)
        puts = [self.declared.encode(record, expires, options.expected) for record in given]
        unique = {put.key: (put, record) for put, record in zip(puts, given, strict=True)}
        if not unique:
            return []
        last = [put for put, _ in unique.values()]
        if self._gather is None:
            versions = await self._executor.write(last, options)
        else:
            kept = [record for _, record in unique.values()]
            versions = await self._write_referring(last, kept, self._gather, options)
        by_key = dict(zip(unique, versions, strict=True))
        return [by_key[put.key] for put in puts]

    async def delete(self, key: str, options: Options = DEFAULT) -> None:
        """Remove the record; no error if there is none, unless a version was expected."""
        await self.delete_many((key,), options)

    async def delete_many(self, wanted: Iterable[str], options: Options = DEFAULT) -> None:
        await self.make()
        checked = dict.fromkeys(record_keys.check_many(wanted))
        deletes = [Delete(self.name, key, options.expected) for key in checked]
        if self._gather is not None:
            deletes += [record_references.no_row_of(self.name, key) for key in checked]
        if deletes:
            await self._executor.write(deletes, options)

    async def change(
        self, key: str, change: Callable[[T | None], T], options: Options = DEFAULT
    ) -> T:
        """Read, apply a function, write; repeated when others write in between.

        The function gets None if there is no record, may be called several times, and must return a
        record with the same key.
        """

        async def attempt(number: int) -> T:
            found = await self.fetch(key, STRONG if number else options)
            record = change(None if found is None else found.value)
            expected = 0 if found is None else found.version or None
            await self.put(record, msgspec.structs.replace(options, expected=expected))
            return record

        return await retry_conflicts(attempt)

    def query(self) -> QueryBuilder[T]:
        return QueryBuilder(self)

    async def list(
        self,
        prefix: str = "",
        *,
        limit: int = 20,
        after: str | None = None,
        before: str | None = None,
        descending: bool = False,
        options: Options = DEFAULT,
    ) -> Page[T]:
        """A page of records in key order; `after` and `before` take a page's cursors."""
        finder = self.query().prefix(prefix).order_by("-key" if descending else "key").limit(limit)
        return await finder.page(after=after, before=before, options=options)

    async def behind(
        self,
        key: str,
        prefix: str = "",
        *,
        limit: int | None = None,
        descending: bool = False,
        options: Options = DEFAULT,
    ) -> builtins.list[T]:
        """The records behind this key, which need not exist, in key order."""
        if not self._there and not await self.is_there():
            return []
        order, prefix = _DOWN if descending else _UP, record_keys.check_prefix(prefix)
        query = Query(
            self.name,
            prefix=prefix,
            order=order,
            limit=limit,
            after=(record_keys.check_prefix(key),),
        )
        return self.declared.decode_all(await self._executor.find(query, options))

    async def walk(
        self, prefix: str = "", *, after: str = "", options: Options = DEFAULT
    ) -> AsyncIterator[T]:
        """All records, or those behind a key, in key order. Reads 500 at a time."""
        page: builtins.list[T] | None = None
        while page is None or len(page) == _WALK:
            page = await self.behind(after, prefix, limit=_WALK, options=options)
            for record in page:
                yield record
            after = self.declared.key(page[-1]) if page else ""

    async def make(self) -> None:
        self.declared = await self._executor.ready(self._type) or self._type
        if self._executor.capabilities >= record_references.NEEDED:
            self._gather = record_references.gatherer(self._type.cls)
        if self._gather is not None:
            for declared in record_references.TYPES:
                await self._executor.ready(declared)
        self._there = self._made = True

    async def _write_referring(
        self,
        puts: Sequence[Put],
        records: Sequence[T],
        gather: record_references.Gather,
        options: Options,
    ) -> builtins.list[int]:
        """Raises `Conflict` if content that a record refers to was deleted since it was stored."""
        writes = [*puts, *record_references.writes_of(puts, records, gather)]
        hashes = {hash_: None for record in records for hash_ in gather(record)}
        absent = [(record_references.CONDEMNED, hash_) for hash_ in hashes]
        try:
            return (await self._executor.write(writes, options, absent))[: len(puts)]
        except Conflict as exc:
            raise record_references.clarified(exc) from None

    def _expiry(self) -> int | None:
        ttl = self.declared.ttl
        return None if ttl is None else self._executor.now() + ttl
