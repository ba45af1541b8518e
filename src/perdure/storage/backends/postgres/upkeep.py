"""Tables that suit what is declared now, while others use them; see `perdure.storage.tables`."""

from __future__ import annotations

from perdure.core.clock import Clock
from perdure.storage.backends.postgres import catalog, indexes
from perdure.storage.backends.postgres.address import Server
from perdure.storage.backends.postgres.apply import Applier
from perdure.storage.backends.postgres.errors import translated
from perdure.storage.backends.postgres.links import Links
from perdure.storage.backends.postgres.reader import Reader
from perdure.storage.backends.postgres.writer import Writer
from perdure.storage.layouts import Layout
from perdure.storage.tables import Prepared


class Upkeep:
    """What was prepared by this process, and how that is done."""

    def __init__(
        self, server: Server, links: Links, writer: Writer, applier: Applier, clock: Clock
    ) -> None:
        self._server = server
        self._schema = server.schema
        self._links = links
        self._reader = Reader(links, server)
        self._writer = writer
        self._applier = applier
        self._clock = clock
        self._prepared: dict[str, Prepared] = {}

    async def prepare(self, layout: Layout, *, make: bool) -> Prepared | None:
        """See `Adapter.prepare`."""
        moment, schema = self._clock(), self._schema
        is_there, known = await self._reader.run(
            lambda conn: catalog.peek(conn, schema, layout, moment)
        )
        if known is None:
            if not make and not is_there:
                return None
            known = await self._writer.run(
                lambda conn: catalog.prepare(conn, schema, layout, moment)
            )
        self._applier.define(known.layout, known.marked)
        self._prepared[layout.name] = known
        if not known.missing:
            await self._build(known)
        return known

    async def is_prepared(self, layout: Layout) -> bool:
        """See `Adapter.is_prepared`."""
        known = self._prepared.get(layout.name)
        if known is None:
            return False
        found = await self._reader.run(lambda conn: catalog.known(conn, self._schema, layout.name))
        wanted = indexes.definitions(known.layout, known.marked)
        return found is not None and found[1].suits(known, wanted)

    async def unfilled(self, collection: str, position: str, limit: int) -> tuple[list[str], str]:
        """See `Adapter.unfilled`. Positions are keys."""
        known = self._prepared[collection]
        found: set[str] = set()
        for column in known.marked:
            rows = await self._reader.fetch(
                f'SELECT _key FROM {self._schema}."{collection}" WHERE _key > %s'
                f" AND {indexes.unfilled(column, known.layout.schema)} ORDER BY _key LIMIT %s",
                (position, limit),
            )
            found |= {row[0] for row in rows}
        keys = sorted(found)[:limit]
        return keys, keys[-1] if keys else position

    async def activate(self, layout: Layout) -> None:
        """See `Adapter.activate`."""
        await self._build(self._prepared[layout.name])
        await self._writer.run(
            lambda conn: catalog.activate(conn, self._schema, layout), strong=True
        )

    async def _build(self, known: Prepared) -> None:
        if not known.unbuilt:
            return
        wanted = indexes.definitions(known.layout, known.marked)
        chosen = {label: wanted[label] for label in known.unbuilt}
        with translated(self._server):
            await indexes.build(self._links, self._server, known.layout, chosen)
        await self._writer.run(lambda conn: catalog.built(conn, self._schema, known.layout, chosen))
