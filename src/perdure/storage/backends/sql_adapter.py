"""What backends have in common that keep their layouts, and those with SQL tables."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Coroutine
from typing import Any, ClassVar, TypeVar

from perdure.core.clock import Clock
from perdure.core.errors import Closed
from perdure.storage.adapter import Adapter, Capability, Snapshot, no_collection
from perdure.storage.backends.sql_catalog import SQLCatalog
from perdure.storage.extension import Extension, Extensions
from perdure.storage.rows import Layout
from perdure.storage.tables import Prepared

T = TypeVar("T")


def not_open() -> Closed:
    return Closed("This store is not open.", hint="Open it with perdure.open(…).")


class LayoutAdapter(Adapter):
    """Knows the layouts of all collections, also of those that nobody declares in this process:
    `verify` reads them, and what has expired in them is swept.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._layouts: dict[str, Layout] = {}

    @abstractmethod
    async def _load_layouts(self) -> dict[str, Layout]: ...

    async def _known(self, collection: str) -> Layout:
        """The layout, also of a collection that was made since this was opened."""
        if collection not in self._layouts:
            self._layouts = await self._load_layouts() | self._layouts
        return self._layout(collection)

    def _layout(self, collection: str) -> Layout:
        try:
            return self._layouts[collection]
        except KeyError:
            raise no_collection(collection) from None


class SQLAdapter(LayoutAdapter):
    """Prepares tables, and remembers which this process has prepared."""

    capabilities: ClassVar[frozenset[Capability]] = frozenset(Capability)

    def __init__(self, clock: Clock, extensions: Extensions[Any]) -> None:
        super().__init__(clock)
        self._extensions = extensions
        self._prepared: dict[str, Prepared] = {}

    @abstractmethod
    async def _look(self, work: Callable[[SQLCatalog], Coroutine[Any, Any, T]]) -> T:
        """Read the catalog. Raises `Closed` unless the bank is open."""

    @abstractmethod
    async def _change(
        self, work: Callable[[SQLCatalog], Coroutine[Any, Any, T]], *, strong: bool = False
    ) -> T:
        """Change the catalog, in a transaction."""

    @abstractmethod
    def _define(self, prepared: Prepared) -> None:
        """From now on, write to the table as it was prepared."""

    @abstractmethod
    async def _build(self, prepared: Prepared) -> None:
        """Build the indexes that are missing."""

    @abstractmethod
    async def _check_open(self) -> None:
        """Raises `Closed` unless the bank is open."""

    @abstractmethod
    async def _load(self, source: Snapshot, *, replace: bool) -> int:
        """`load`, while the bank is closed."""

    async def load(self, source: Snapshot, *, replace: bool = False) -> int:
        await self._check_open()
        await self.close()
        try:
            return await self._load(source, replace=replace)
        finally:
            await self.initialize()

    def attach(self, extension: Extension) -> None:
        self._extensions.attach(extension)

    def extension(self, name: str) -> Extension | None:
        return self._extensions.attached.get(name)

    async def prepare(self, layout: Layout, *, make: bool = True) -> frozenset[str] | None:
        # A look comes first: whoever only opens a bank need not wait for those who write.
        moment = self._clock()
        is_there, known = await self._look(lambda catalog: catalog.peek(layout, moment))
        if known is None:
            if not make and not is_there:
                return None
            known = await self._change(lambda catalog: catalog.prepare(layout, moment))
        self._define(known)
        self._prepared[layout.name] = known
        self._layouts[layout.name] = known.layout
        if not known.missing:
            await self._build(known)
        return known.missing

    async def is_prepared(self, layout: Layout) -> bool:
        known = self._prepared.get(layout.name)
        return known is not None and await self._look(lambda catalog: catalog.is_current(known))

    async def activate(self, layout: Layout) -> None:
        await self._build(self._prepared[layout.name])
        await self._change(lambda catalog: catalog.activate(layout), strong=True)

    async def _load_layouts(self) -> dict[str, Layout]:
        return await self._look(lambda catalog: catalog.load())

    def _moment(self, layout: Layout) -> int | None:
        return self._clock() if layout.expires else None
