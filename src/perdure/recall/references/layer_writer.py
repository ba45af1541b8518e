"""Writes reference layers, each in one transaction with the index."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection
from typing import TypeAlias, TypeVar

import msgspec

from perdure.core.clock import SECOND
from perdure.core.errors import InvalidInput
from perdure.recall.memories.memory_writer import Indexer
from perdure.recall.memory_records import LastNumber
from perdure.recall.places import REFERENCES
from perdure.recall.references.layers import Layer, LayerRecord, LayerText, Origin
from perdure.recall.values import Note
from perdure.storage.store import Store
from perdure.storage.transaction import Transaction

T = TypeVar("T")
#: Runs in the transaction that writes or removes a layer.
WithLayer: TypeAlias = Callable[[Transaction, LayerRecord], Awaitable[None]]

_NUMBERS = "references"


class LayerWriter:
    """Writes layers, each in one transaction with the index."""

    def __init__(self, store: Store, index: Indexer | None) -> None:
        #: How often something was changed.
        self.changes = 0
        self._store = store
        self._index = index

    async def put(
        self,
        layer: Layer,
        *,
        origin: Origin | None = None,
        copied: Origin | None = None,
        replace: bool = False,
        vacated: Collection[str] = (),
        canon: tuple[str, ...] | None = None,
        within: WithLayer | None = None,
    ) -> LayerRecord:
        """Write a layer; raises `InvalidInput` if another one has its name.

        Another one is what was made from another file, or from none. With `replace`, a record takes
        the place of another record. Names that are `vacated` are no file's any more.
        `canon` makes it part of the canon, for these readers; `within` runs in the transaction.
        """

        async def body(transaction: Transaction) -> LayerRecord:
            records = transaction.collection(LayerRecord)
            old = await records.get(layer.name)
            if old is not None and (old.canon is None) != (canon is None):
                raise InvalidInput(
                    f"The name {layer.name} is that of {_maker(old)}, too.",
                    hint="Give one of them another name.",
                )
            is_free = old is None or (old.origin is not None and old.name in vacated)
            if old is not None and not is_free and not await _may_replace(old.origin, origin):
                raise InvalidInput(
                    f"The name {layer.name} is that of {_maker(old)}, too.",
                    hint="Give one of them another name.",
                )
            if old is not None and not replace and not await _is_same(old.copied, copied):
                raise InvalidInput(
                    f"There is a reference layer {layer.name} already, from {_source(old)}.",
                    hint="Give this one another name in its front matter; or let it take the place"
                    " of that one: --replace, `replace=True`.",
                )
            record = LayerRecord(
                name=layer.name,
                ordinal=await _next(transaction) if old is None else old.ordinal,
                title=layer.title,
                tags=layer.tags,
                weight=layer.weight,
                triggers=layer.triggers,
                tokens=layer.tokens,
                origin=origin,
                copied=copied,
                canon=canon,
                updated=self._store.now(),
            )
            await records.put(record)
            await transaction.collection(LayerText).put(LayerText(layer.name, layer.text))
            await self._index_it(transaction, record, layer.text)
            if within is not None:
                await within(transaction, record)
            return record

        return await self._transact(body)

    async def touch(self, name: str, origin: Origin) -> None:
        """Note that a file says what it said."""

        async def body(transaction: Transaction) -> None:
            records = transaction.collection(LayerRecord)
            record = await records.get(name)
            if record is not None:
                await records.put(msgspec.structs.replace(record, origin=origin))

        await self._transact(body)

    async def remove(
        self, name: str, *, made_from: Origin | None = None, within: WithLayer | None = None
    ) -> bool:
        """Remove a layer, in the index too; no error if there is none. Whether there was one.

        Not if it was made from another file by now than the one that is named.
        """

        async def body(transaction: Transaction) -> bool:
            records = transaction.collection(LayerRecord)
            record = await records.get(name)
            if record is None or not (made_from is None or _is_file(record.origin, made_from)):
                return False
            await records.delete(name)
            await transaction.collection(LayerText).delete(name)
            if self._index is not None:
                await self._index.withdraw(transaction, REFERENCES, record.ordinal)
            if within is not None:
                await within(transaction, record)
            return True

        return await self._transact(body)

    async def _transact(self, body: Callable[[Transaction], Awaitable[T]]) -> T:
        try:
            return await self._store.transact(body)
        finally:
            self.changes += 1

    async def reindex(self, transaction: Transaction, name: str) -> None:
        """Put a layer into the index again."""
        record = await transaction.collection(LayerRecord).get(name)
        text = await transaction.collection(LayerText).get(name)
        if record is not None and text is not None:
            await self._index_it(transaction, record, text.text)

    async def _index_it(self, transaction: Transaction, record: LayerRecord, text: str) -> None:
        if self._index is None:
            return
        note = Note(time=record.updated // SECOND, tags=dict.fromkeys(record.tags, ""))
        head = " ".join((record.name, record.title, *record.tags))
        await self._index.put(transaction, REFERENCES, record.ordinal, f"{head}\n{text}", note)


async def is_there(origin: Origin) -> bool:
    """Whether the file that a layer was made from is still there."""
    return await asyncio.to_thread(origin.file.is_file)


async def _may_replace(old: Origin | None, new: Origin | None) -> bool:
    """Whether both are records, or the same file; or the older one's file is gone: it was moved."""
    if old is None or new is None:
        return old is new
    return _is_file(old, new) or not await is_there(old)


def _is_file(origin: Origin | None, other: Origin) -> bool:
    return origin is not None and (origin.folder, origin.path) == (other.folder, other.path)


async def _is_same(old: Origin | None, new: Origin | None) -> bool:
    """Whether two records were copied from the same file, or neither from any."""
    if old is None or new is None:
        return old is new
    return await asyncio.to_thread(lambda: old.file.resolve() == new.file.resolve())


async def _next(transaction: Transaction) -> int:
    numbers = transaction.collection(LastNumber)
    last = await numbers.get(_NUMBERS) or LastNumber(_NUMBERS)
    await numbers.put(msgspec.structs.replace(last, last=last.last + 1))
    return last.last + 1


def _source(record: LayerRecord) -> str:
    return "a text that was given" if record.copied is None else str(record.copied.file)


def _maker(record: LayerRecord) -> str:
    if record.canon is not None:
        return "an entry of the canon"
    return "a record in the bank" if record.origin is None else str(record.origin.file)
