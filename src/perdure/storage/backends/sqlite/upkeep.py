"""Changes tables to what is declared now, while others use them; see `perdure.storage.tables`."""

from __future__ import annotations

from collections.abc import Sequence

import apsw

from perdure.core.clock import Clock
from perdure.storage.backends.sqlite import catalog
from perdure.storage.backends.sqlite.apply import SQLiteApplier
from perdure.storage.backends.sqlite.reader import SQLiteReader
from perdure.storage.backends.sqlite.writer import SQLiteWriter
from perdure.storage.options import STRONG
from perdure.storage.rows import Fill, Layout
from perdure.storage.tables import Prepared

#: The weight of work that is never done on the event loop.
_HEAVY = 2**40


class SQLiteUpkeep:
    """What was prepared by this process, and how that is done."""

    def __init__(
        self, reader: SQLiteReader, writer: SQLiteWriter, applier: SQLiteApplier, clock: Clock
    ) -> None:
        self._reader = reader
        self._writer = writer
        self._applier = applier
        self._clock = clock
        self._prepared: dict[str, Prepared] = {}

    async def prepare(self, layout: Layout, *, make: bool) -> Prepared | None:
        # A look comes first: whoever only opens a bank need not wait for those who write.
        moment = self._clock()
        is_there, known = await self._reader.run(
            "peek", lambda db: catalog.peek(db, layout, moment)
        )
        if known is None:
            if not make and not is_there:
                return None
            known = await self._writer.run(
                lambda applier: catalog.prepare(applier.db, layout, moment)
            )
        self._applier.define(known.layout, known.marked)
        self._prepared[layout.name] = known
        if not known.missing:
            await self._build(known)
        return known

    async def is_prepared(self, layout: Layout) -> bool:
        known = self._prepared.get(layout.name)
        if known is None:
            return False
        return await self._reader.run("is current", lambda db: catalog.is_current(db, known))

    async def fill(self, collection: str, fills: Sequence[Fill]) -> None:
        await self._writer.run(lambda applier: applier.fill(collection, list(fills)), weight=_HEAVY)

    async def unfilled(self, collection: str, position: str, limit: int) -> tuple[list[str], str]:
        """Positions are row ids: rows lie in the file in their order."""
        known = self._prepared[collection]
        if not known.marked:
            return [], position
        conditions = [catalog.unfilled(column, known.layout.schema) for column in known.marked]

        def work(db: apsw.Connection) -> tuple[list[str], str]:
            found: dict[int, str] = {}
            for condition in conditions:
                text = (
                    f'SELECT r._id, f.path || r._name FROM "{collection}" AS r'
                    " CROSS JOIN perdure_folders AS f ON f.id = r._folder"
                    f" WHERE r._id > ? AND {condition} ORDER BY r._id LIMIT ?"
                )
                found |= dict(db.execute(text, (int(position or 0), limit)))
            ids = sorted(found)[:limit]
            return [found[id] for id in ids], str(ids[-1]) if ids else position

        return await self._reader.run(f"unfilled {collection}", work)

    async def activate(self, layout: Layout) -> None:
        await self._build(self._prepared[layout.name])
        await self._writer.run(lambda applier: catalog.activate(applier.db, layout), STRONG)

    async def _build(self, known: Prepared) -> None:
        """One index after another, so that others can write in between."""
        for label in known.unbuilt:
            await self._writer.run(
                lambda applier, label=label: catalog.build(applier.db, known.layout, label),  # type: ignore[misc]
                weight=_HEAVY,
            )
