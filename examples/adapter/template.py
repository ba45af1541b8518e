"""A backend to start from: copy it, and fill in your storage.

This one keeps rows in a dictionary and has no capability but the core. It passes the conformance
kit at level 1, "key-value". Replace `self._tables` by your storage, run the kit, then add
capabilities one by one: declare it, implement its methods, and run the kit again.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from perdure.core.clock import Clock, now
from perdure.core.errors import Closed, InvalidInput
from perdure.storage.adapter import Adapter, Capability, newer_schema
from perdure.storage.options import Options
from perdure.storage.rows import Batch, Delete, Fill, Layout, Put, Row


class TemplateAdapter(Adapter):
    """Rows by key, and nothing else."""

    # What you declare here is what the kit tries. Declare only what you can keep.
    capabilities: ClassVar[frozenset[Capability]] = frozenset()

    def __init__(self, url: str, clock: Clock = now) -> None:
        # `perdure.storage.registry.parse(url)` gives the path and the options of the address.
        # Ask this clock for the time, and no other: tests set it.
        self._clock = clock
        self._tables: dict[str, dict[str, Row]] = {}
        self._open = False

    async def initialize(self) -> None:
        # Connect, and make what is missing.
        self._open = True

    async def close(self) -> None:
        # Finish what was accepted, then disconnect. It may be called twice.
        self._open = False

    async def prepare(self, layout: Layout, *, make: bool = True) -> frozenset[str]:
        self._refuse_what_is_not_declared(layout)
        # Make the table. Without `Capability.QUERY`, `layout.columns` need not be kept.
        self._tables.setdefault(layout.name, {})
        return frozenset()

    async def fill(self, collection: str, fills: Sequence[Fill]) -> None:
        # Nothing was named as missing by `prepare`, so there is nothing to fill in.
        pass

    async def activate(self, layout: Layout) -> None:
        pass

    async def get(self, collection: str, keys: Sequence[str], options: Options) -> list[Row | None]:
        table = self._table(collection)
        return [table.get(key) for key in keys]

    async def commit(self, batch: Batch, options: Options) -> list[int]:
        self._refuse_what_is_not_declared(batch)
        return [self._write(write) for write in batch.writes]

    def _write(self, write: Put | Delete) -> int:
        table = self._table(write.collection)
        if isinstance(write, Delete):
            table.pop(write.key, None)
            return 0
        old = table.get(write.key)
        if old is not None and old.schema > write.schema:
            raise newer_schema(write.collection, write.key, old.schema, write.schema)
        moment = self._clock()
        table[write.key] = Row(
            write.key,
            write.value,
            write.content_type,
            write.schema,
            1 if old is None else old.version + 1,
            moment if old is None else old.created,
            moment,
            None,
            write.checksum,
        )
        return table[write.key].version

    def _table(self, name: str) -> dict[str, Row]:
        if not self._open:
            raise Closed("This store is closed.", hint="Open it again.")
        try:
            return self._tables[name]
        except KeyError:
            raise InvalidInput(
                f"There is no collection {name!r} in this store.", hint="Call prepare first."
            ) from None

    def _refuse_what_is_not_declared(self, asked: Layout | Batch) -> None:
        """What is not declared is refused, never ignored: a row that should expire and does not
        would be worse than an error. Remove a line when you declare its capability.
        """
        if isinstance(asked, Layout):
            needed = {Capability.TTL: asked.expires, Capability.TAGS: asked.tagged}
        else:
            needed = {
                Capability.VERSIONS: any(write.expected is not None for write in asked.writes),
                Capability.TRANSACTIONS: len(asked.writes) > 1 or bool(asked.checks),
                Capability.OUTBOX: bool(asked.events),
            }
        for capability, wanted in needed.items():
            if wanted and capability not in self.capabilities:
                raise self._unsupported(capability)
