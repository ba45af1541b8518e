"""The tables of a bank's collections: what SQLite and PostgreSQL have in common.

Written once, as coroutines. On SQLite they never wait, so that `run_now` can run them in whichever
thread has the connection.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Coroutine, Iterable, Mapping, Sequence
from typing import Any, ClassVar, TypeVar

import msgspec

from perdure.storage import tables
from perdure.storage.adapter import not_empty
from perdure.storage.rows import Kind, Layout
from perdure.storage.sql import literal
from perdure.storage.tables import Built, Plan, Prepared, TableState

T = TypeVar("T")


def run_now(work: Coroutine[Any, Any, T]) -> T:
    """The result of a coroutine that never waits."""
    try:
        work.send(None)
    except StopIteration as done:
        result: T = done.value
        return result
    work.close()
    raise RuntimeError("it waits")


class SQLCatalog(ABC):
    """The collections of a bank, through one connection. Changes are made in a transaction."""

    #: A parameter, "is not the same as" for NULLs and others, and the column that identifies a row.
    mark: ClassVar[str]
    differs: ClassVar[str]
    row_id: ClassVar[str]
    kinds: ClassVar[Mapping[Kind, str]]

    @abstractmethod
    async def execute(self, text: str, params: Sequence[Any] = ()) -> None: ...

    @abstractmethod
    async def fetch(self, text: str, params: Sequence[Any] = ()) -> list[Any]: ...

    @abstractmethod
    def place(self, name: str) -> str:
        """A table or an index, as SQL."""

    @abstractmethod
    async def lay_out(self, layout: Layout) -> None:
        """Make the table of a collection that is not there, without indexes."""

    @abstractmethod
    async def clear(self) -> None:
        """Remove every collection and event."""

    @abstractmethod
    async def _create_key(self, name: str) -> None: ...

    @abstractmethod
    def _indexed(self, column: str) -> str:
        """A column of an index, as SQL; NULLs come first."""

    @abstractmethod
    def _label(self, table: str, words: str, definition: str) -> str:
        """The name of an index."""

    async def lock(self) -> None:  # noqa: B027 (not all need it)
        """Keep others from changing tables until the transaction ends."""

    async def _before_change(self) -> None:  # noqa: B027 (not all need it)
        """A table that others use is about to be changed."""

    async def _extend(self, before: Layout, asked: Layout) -> None:  # noqa: B027 (not all need it)
        """Let a table hold expiry and tags, which it did not before."""

    async def load(self) -> dict[str, Layout]:
        rows = await self.fetch(
            f"SELECT layout FROM {self.place('perdure_collections')} ORDER BY name"
        )
        layouts = [msgspec.json.decode(text, type=Layout) for (text,) in rows]
        return {layout.name: layout for layout in layouts}

    async def complete(self) -> list[Layout]:
        """All collections, by name, without the columns that not every row has."""
        found = []
        for name in await self.load():
            layout, table = await self._known(name) or (Layout(name), TableState())
            lacking = await self._unfilled(name, table, table.columns)
            found.append(layout.without(table.stale() | lacking))
        return found

    async def check_empty(self, moment: int) -> None:
        """Raises `Conflict` if there are events, or records that have not expired."""
        for layout in (await self.load()).values():
            alive = f" WHERE _expires IS NULL OR _expires > {moment}" if layout.expires else ""
            if await self.fetch(f"SELECT 1 FROM {self.place(layout.name)}{alive} LIMIT 1"):
                raise not_empty(layout.name)
        if await self.fetch(f"SELECT 1 FROM {self.place('perdure_outbox')} LIMIT 1"):
            raise not_empty("")

    async def peek(self, layout: Layout, moment: int) -> tuple[bool, Prepared | None]:
        """Whether the collection was made, and what `prepare` would return if it would change
        nothing and leave nothing to be done but to fill what others left out.
        """
        known = await self._known(layout.name)
        if known is None:
            return False, None
        before, table = known
        asked = tables.as_declared(layout, before)
        planned, wanted = self._planned(table, asked, moment, empty=False)
        if (
            planned.table != table
            or not wanted.keys() <= table.indexes.keys()
            or table.missing(layout)
            or (asked.expires, asked.tagged) != (before.expires, before.tagged)
        ):
            return True, None
        marked = table.marked(layout)
        return True, Prepared(asked, marked, await self._unfilled(layout.name, table, marked))

    async def is_current(self, prepared: Prepared) -> bool:
        """Whether the table still is as it was prepared."""
        known = await self._known(prepared.layout.name)
        wanted = self.definitions(prepared.layout, prepared.marked)
        return known is not None and known[1].suits(prepared, wanted)

    async def prepare(self, layout: Layout, moment: int) -> Prepared:
        """Bring the table to this layout, but for its values and indexes."""
        await self.lock()
        name = layout.name
        known = await self._known(name)
        if known is None:
            await self.lay_out(layout)
            await self.index(layout)
            return Prepared(layout)
        before, table = known
        asked = tables.as_declared(layout, before)
        empty = not await self.fetch(f"SELECT 1 FROM {self.place(name)} LIMIT 1")
        planned, wanted = self._planned(table, asked, moment, empty=empty)
        await self._change(name, table, planned)
        await self._extend(before, asked)
        await self._remember(tables.merged(before, layout, planned.table), planned.table)
        marked = planned.table.marked(layout)
        return Prepared(
            asked,
            marked,
            planned.table.missing(layout) | await self._unfilled(name, planned.table, marked),
            tuple(label for label in wanted if label not in planned.table.indexes),
        )

    async def unbuilt(self, layout: Layout) -> dict[str, Built]:
        """The indexes of a declaration that are not complete."""
        known = await self._known(layout.name)
        if known is None:
            return {}
        wanted = self.definitions(layout, known[1].marked(layout))
        return {label: each for label, each in wanted.items() if label not in known[1].indexes}

    async def built(self, layout: Layout, labels: Iterable[str]) -> None:
        """Indexes that `prepare` named are complete."""
        await self.lock()
        known = await self._known(layout.name)
        if known is not None:
            before, table = known
            wanted = self.definitions(layout, table.marked(layout))
            for label in labels:
                if label in wanted:
                    table = table.with_index(label, wanted[label])
            await self._remember(before, table)

    async def activate(self, layout: Layout) -> None:
        """The columns are filled: trust them from now on."""
        await self.lock()
        known = await self._known(layout.name)
        if known is not None:
            before, table = known
            if (activated := table.activated(layout)) != table:
                await self._remember(before, activated)

    async def index(self, layout: Layout) -> None:
        """Make the indexes of a table that `lay_out` made."""
        await self._create_key(layout.name)
        made = self.definitions(layout, ())
        for label, each in made.items():
            await self.create_index(layout.name, label, each)
        await self._remember(layout, TableState.of(layout, made))

    async def create_index(self, table: str, label: str, wanted: Built) -> None:
        await self.execute(f'CREATE INDEX "{label}" ON {self.place(table)} {wanted.sql}')

    def definitions(self, layout: Layout, marked: Iterable[str]) -> dict[str, Built]:
        """The indexes of a declaration, by name."""
        wanted: dict[str, Built] = {}

        def want(words: str, text: str, columns: Iterable[str] = ()) -> None:
            wanted[self._label(layout.name, words, text)] = Built(text, tuple(sorted(columns)))

        for index in layout.indexes:
            columns = ", ".join(self._indexed(column) for column in index.columns)
            where = " AND ".join(f'"{column}" = {literal(value)}' for column, value in index.where)
            words = "_".join(
                [*index.columns, *(str(part) for pair in index.where for part in pair)]
            )
            text = f"({columns})" + (f" WHERE {where}" if where else "")
            want(f"by_{words}", text, tables.columns_of(index))
        for column in marked:
            condition = self.unfilled(column, layout.schema)
            want(
                f"unfilled_{layout.schema}_{column}",
                f"({self.row_id}) WHERE {condition}",
                [column],
            )
        if layout.expires:
            want("expiry", "(_expires) WHERE _expires IS NOT NULL")
        return wanted

    def unfilled(self, column: str, schema: int) -> str:
        """The condition of rows written by code that does not know this column."""
        return f"{tables.mark_of(column)} {self.differs} {tables.mark(schema)}"

    async def _unfilled(
        self, name: str, table: TableState, columns: Iterable[str]
    ) -> frozenset[str]:
        """Those of the columns that somebody who does not know them has left out in some row."""
        found = set()
        for column in columns:
            held = table.columns[column]
            if held.marked and not held.stale:  # then its index of such rows is there
                condition = self.unfilled(column, held.schema)
                if await self.fetch(f"SELECT 1 FROM {self.place(name)} WHERE {condition} LIMIT 1"):
                    found.add(column)
        return frozenset(found)

    def _planned(
        self, table: TableState, layout: Layout, moment: int, *, empty: bool
    ) -> tuple[Plan, dict[str, Built]]:
        planned = tables.plan(table, layout, moment, empty=empty)
        wanted = self.definitions(layout, planned.table.marked(layout))
        return planned.wanting(table, wanted, moment), wanted

    async def _change(self, name: str, before: TableState, planned: Plan) -> None:
        alter = f"ALTER TABLE {self.place(name)}"
        changes = [f"DROP INDEX IF EXISTS {self.place(label)}" for label in planned.drop]
        for column in planned.replace:  # SQLite's affinity would turn its values into others
            changes.append(f'{alter} DROP COLUMN "{column}"')
            if before.columns[column].marked:
                changes.append(f"{alter} DROP COLUMN {tables.mark_of(column)}")
        changes += [
            f'{alter} ADD COLUMN "{new.name}" {self.kinds[new.kind]}' for new in planned.add
        ]
        number = self.kinds["integer"]
        changes += [f"{alter} ADD COLUMN {tables.mark_of(name)} {number}" for name in planned.mark]
        if changes:
            await self._before_change()
        for change in changes:
            await self.execute(change)

    async def _known(self, name: str) -> tuple[Layout, TableState] | None:
        """The layout of a collection, and what its table holds; None if it was not made."""
        rows = await self.fetch(
            f"SELECT layout, held FROM {self.place('perdure_collections')}"
            f" WHERE name = {self.mark}",
            (name,),
        )
        for layout, held in rows:
            return (
                msgspec.json.decode(layout, type=Layout),
                msgspec.json.decode(held, type=TableState),
            )
        return None

    async def _remember(self, layout: Layout, table: TableState) -> None:
        values = layout.name, msgspec.json.encode(layout), msgspec.json.encode(table)
        await self.execute(
            f"INSERT INTO {self.place('perdure_collections')}"
            f" VALUES({self.mark}, {self.mark}, {self.mark}) ON CONFLICT (name)"
            " DO UPDATE SET layout = excluded.layout, held = excluded.held",
            [value if isinstance(value, str) else value.decode() for value in values],
        )
