"""A bank that is to be filled with another one's records."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

import msgspec

from perdure import config as configuration
from perdure.artifacts import ArtifactStore
from perdure.artifacts.addresses import PlaceAddress, S3Address
from perdure.bank.bank import Bank
from perdure.bank.folders import make_folder
from perdure.config import Config
from perdure.core.errors import InvalidInput
from perdure.storage import assembly, urls
from perdure.storage.adapter import Capability, Snapshot, not_empty
from perdure.storage.rows import Delivered, Entry
from perdure.storage.snapshots import (
    HeldCollection,
    HeldSnapshot,
    OverlaidSnapshot,
    WatchedSnapshot,
    closing,
)
from perdure.storage.store import Progress, Store
from perdure.storage.verify import Problem

if TYPE_CHECKING:
    from perdure.storage.encryption.master_keys import MasterKeys, Source

#: The collection of data keys.
_KEYS = "perdure_keys"


class Target:
    """The bank at an address. It is opened for each step anew: loading wants it closed.

    Raises `InvalidInput` if its backend cannot take over a snapshot, or does not last.
    """

    def __init__(
        self,
        url: str | None,
        config: Config | None,
        progress: Progress | None,
        *,
        master_key: Source | None = None,
    ) -> None:
        self.config = config if config is not None else configuration.load()
        self._master_key = master_key
        self._is_default = url is None and not self.config.bank
        self.url = self.config.bank_url() if url is None else url
        self.shown = urls.shown(self.url)
        self._progress: Progress = progress or _nobody
        capabilities = self._store().adapter.capabilities
        if not {Capability.SNAPSHOTS, Capability.DURABLE} <= capabilities:
            raise InvalidInput(
                f"A bank at {self.shown} cannot be filled from another one.",
                hint="Use sqlite:///… or postgresql://….",
            )

    @property
    def masters(self) -> MasterKeys | None:
        """The master keys that it is opened with."""
        return assembly.master_keys(self.config, self._master_key)

    def bank(self) -> Bank:
        return Bank(self.url, config=self.config, master_key=self._master_key)

    def _store(self) -> Store:
        """Its records as they are stored. Opening it writes nothing."""
        storage = msgspec.structs.replace(self.config.storage, replica="")
        config = Config(storage=storage, encryption=self.config.encryption)
        chain = assembly.Chain(config)
        return assembly.store(self.url, config, chain, master_key=self._master_key)

    async def refuse(self, *, overwrite: bool) -> None:
        """Raises `Conflict` if it holds records that may not be overwritten.

        Only a look, so that nothing is done in vain: `load` looks again, in its transaction.
        """
        if self._is_default:
            make_folder(configuration.data_folder())
        store = self._store()
        if overwrite or not await store.adapter.exists():
            return
        async with store:
            for size in await store.adapter.sizes():
                if size.rows:
                    raise not_empty(size.collection)

    @asynccontextmanager
    async def opened(self) -> AsyncIterator[Bank]:
        """The bank, open for looking: without background work."""
        bank = self.bank()
        await bank.store.open()
        try:
            yield bank
        finally:
            await bank.store.close()

    async def keys_of(self, source: Snapshot) -> HeldSnapshot:
        """The data keys of a snapshot, by themselves."""
        for layout in await source.layouts():
            if layout.name == _KEYS:
                async with closing(source.entries(_KEYS)) as pages:
                    entries = [entry async for page in pages for entry in page]
                return HeldSnapshot([HeldCollection(layout, entries)])
        return HeldSnapshot([])

    @asynccontextmanager
    async def beforehand(
        self, source: Snapshot
    ) -> AsyncIterator[tuple[ArtifactStore, Callable[[], Awaitable[Snapshot]]]]:
        """The artifacts of the bank as it will be, with the data keys of a snapshot.

        Objects put there are in the target's place; nothing else of the target is touched. The
        function gives the snapshot again, with data keys that were made for them meanwhile.
        """
        place = self.bank().artifacts.place
        bank = Bank("memory://", config=self._in_memory(place), master_key=self._master_key)
        await bank.store.adapter.load(await self.keys_of(source))
        await bank.store.open()

        async def complete() -> Snapshot:
            async with bank.store.adapter.snapshot() as held:
                return OverlaidSnapshot(source, await self.keys_of(held))

        try:
            yield bank.artifacts, complete
        finally:
            await bank.store.close()

    async def load(self, source: Snapshot, *, overwrite: bool) -> int:
        """Take over a snapshot, all of it or nothing; see `Adapter.load`."""
        total: dict[str, int] = {}
        done: dict[str, int] = {}
        for layout in await source.layouts():
            total[layout.name] = await source.count(layout.name)

        def see(collection: str, page: Sequence[Entry | Delivered]) -> None:
            done[collection] = done.get(collection, 0) + len(page)
            what = f"loading {collection or 'events'}"
            self._progress(what, done[collection], total.get(collection, 0))

        async with self._store() as store:
            return await store.adapter.load(WatchedSnapshot(source, see), replace=overwrite)

    async def verify(self) -> tuple[Problem, ...]:
        """What `perdure verify` finds."""
        async with self.opened() as bank:
            return tuple([problem async for problem in bank.verify(self._progress)])

    def _in_memory(self, place: PlaceAddress) -> Config:
        """The configuration of a bank that keeps artifacts as this one does, and nothing else."""
        artifacts, encryption = self.config.artifacts, self.config.encryption
        if not isinstance(place, S3Address):
            artifacts = msgspec.structs.replace(artifacts, folder=str(place))
        if encryption.whole_file:  # there is no file here; artifacts are encrypted all the same
            encryption = msgspec.structs.replace(encryption, whole_file=False, everything=True)
        return Config(artifacts=artifacts, encryption=encryption)


def _nobody(what: str, done: int, total: int) -> None:
    """Progress that nobody wants to see."""
