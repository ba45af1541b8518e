"""A second store beside a bank's own, for state that expires; opened when it is first used."""

from __future__ import annotations

import asyncio

from perdure.config import Config
from perdure.core.clock import Clock, now
from perdure.core.errors import InvalidConfig
from perdure.storage import registry
from perdure.storage.adapter import Capability
from perdure.storage.assembly import open_store
from perdure.storage.store import Store

_NEEDED = frozenset({Capability.TRANSACTIONS, Capability.TTL, Capability.VERSIONS})


class SideStore:
    """The store at `url`, or the bank's own if that is empty. The storage settings of the bank
    apply to it: compression, encryption, metrics.
    """

    def __init__(self, own: Store, url: str, config: Config, clock: Clock = now) -> None:
        self._own = own
        self._url = url
        self._config = config
        self._clock = clock
        self._store: Store | None = None
        self._lock = asyncio.Lock()

    async def opened(self) -> Store:
        """Raises `InvalidConfig` if it cannot be used, and `Unavailable`."""
        if not self._url:
            return self._own
        async with self._lock:
            if self._store is None:
                self._store = await self._open()
            return self._store

    async def close(self) -> None:
        store, self._store = self._store, None
        if store is not None:
            await store.close()

    async def _open(self) -> Store:
        if self._config.encryption.whole_file:
            raise InvalidConfig(
                "With encryption.whole_file a second store would hold records in clear.",
                hint="Leave agents.working_store out; or use encryption.everything.",
            )
        store = open_store(self._url, config=self._config, clock=self._clock)
        missing = sorted(_NEEDED - store.adapter.capabilities)
        if missing:
            raise InvalidConfig(
                f"{registry.shown(self._url)} cannot hold what expires: it has no"
                f" {', '.join(missing)}.",
                hint="Use valkey://, sqlite:// or postgresql://.",
            )
        await store.open()
        return store
