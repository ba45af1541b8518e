"""Recall as a bank has it: its parts, made, started and stopped together."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from perdure.config import Config, data_folder
from perdure.core.errors import PerdureError
from perdure.history.forgetting import Forgetting
from perdure.history.reading import Reader
from perdure.history.renditions.scribe import Scribe
from perdure.recall.embedders import embedder
from perdure.recall.indexing.forgetting import IndexPlace
from perdure.recall.indexing.index import RecallIndex
from perdure.recall.memories.forgetting import MemoryTraces
from perdure.recall.memories.memories import Memories
from perdure.recall.recall import Parts, Recall
from perdure.recall.references.references import References
from perdure.recall.scoping.scope import Scopes
from perdure.recall.scoping.sharing import Sharing
from perdure.recall.scoping.undone import UndoneTurns
from perdure.recall.searching.ahead import Ahead
from perdure.recall.searching.scanning import Scan
from perdure.recall.searching.searcher import Searcher
from perdure.recall.steps import cabinets, naming
from perdure.recall.steps.pipeline import Pipeline
from perdure.recall.steps.showing import Showing
from perdure.recall.ticklers import Ticklers
from perdure.storage.store import Store

if TYPE_CHECKING:
    from perdure.core.tokens import Counter
    from perdure.gateway.gateway import Gateway

_log = logging.getLogger(__name__)

#: Reference layers lie here, beside the default bank, unless the configuration says where.
_FOLDER = "references"


class RecallRoom:
    """The index and what is made of it; one for each bank."""

    def __init__(
        self,
        store: Store,
        reader: Reader,
        scribe: Scribe,
        config: Config,
        *,
        gateway: Callable[[], Gateway],
        counter: Callable[[], Counter],
        plain: Callable[[Mapping[str, Any]], dict[str, Any]],
        cleanse: Callable[[Iterable[str]], Awaitable[bool]],
        withdraw: Callable[[Iterable[str]], Awaitable[None]],
        encrypts: Callable[[str], bool] | None,
    ) -> None:
        settings = config.recall
        self._ahead = Ahead(embedder(settings, gateway, config.gateway))
        self.index = RecallIndex(store, reader, settings, self._ahead, encrypts=encrypts)
        self.memories = Memories(
            store,
            self.index,
            plain=plain,
            cleanse=cleanse,
            withdraw=withdraw,
            embedder=self._ahead,
        )
        folder = Path(settings.references) if settings.references else data_folder() / _FOLDER
        self.references = References(
            store,
            folder,
            counter,
            self.index,
            plain=plain,
            cleanse=cleanse,
            needs_folder=bool(settings.references),
        )
        self.index.sources += [self.memories.refill, self.references.refill]
        scopes = Scopes(store, self.index)
        models = config.gateway.models
        self._pipeline = Pipeline(
            Searcher(store, self._ahead),
            scopes.of,
            Showing(
                store,
                scribe,
                reader,
                cabinets.memories(self.memories),
                cabinets.layers(self.references),
            ),
            settings,
            gateway=gateway if models.filter or models.judge else None,
            scan=Scan(reader),
            covers=self.index.covers,
            is_behind=lambda: not self.index.is_complete,
            triggered=cabinets.called_for(self.references, self.index, store),
            named=naming.names(store),
            expect=self._ahead.expect,
        )
        self.recall = Recall(
            store,
            settings,
            Parts(
                self.index, scopes, self._pipeline, self.memories, self.references, Ticklers(store)
            ),
            counter,
        )
        self._store = store
        self._is_started = False
        self._starting = asyncio.Lock()
        self._syncing: asyncio.Task[None] | None = None

    def join(self, forgetting: Forgetting) -> None:
        """Forget what is forgotten."""
        index, traces = IndexPlace(self.index), MemoryTraces(self._store, self.memories)
        undone = UndoneTurns(self._store)
        for place in (
            index,
            traces,
            Sharing(self._store),
            undone,
            self.recall.ticklers,
        ):
            forgetting.join(place)
        forgetting.rerooting += [index.inherit, traces.inherit, undone.inherit]
        forgetting.rerooted.append(index.rerooted)

    async def start(self) -> None:
        """Begin the work in the background. Safe to call again; a damaged index does not raise."""
        if self._is_started:
            return
        async with self._starting:
            if not self._is_started:
                await self._start()

    async def _start(self) -> None:
        try:
            await self.index.start()
            self._is_started = True
        except PerdureError as exc:  # nobody's append fails for it; the next tries again
            _log.warning("The index of recall cannot be used: %s", exc)
        if self._syncing is None:
            self._syncing = asyncio.create_task(self._sync(), name="perdure-references")

    async def _sync(self) -> None:
        try:
            await self.references.sync()
        except PerdureError as exc:
            _log.warning("The reference layers could not be read: %s", exc)

    async def stop(self) -> None:
        """End what is under way in the background; what is left is done later."""
        if self._syncing is not None:
            self._syncing.cancel()
            await asyncio.wait({self._syncing})
        await self._pipeline.close()
        await self._ahead.close()
        await self.index.stop()

    async def settle(self) -> None:
        """Wait until everything is indexed and has its vector."""
        if self._syncing is not None:
            await asyncio.wait({self._syncing})
        await self.index.settle()
