"""Builds a store from its configuration: the middleware chain in its order, and the backend."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import TYPE_CHECKING
from urllib.parse import quote

from perdure.config import Config, load
from perdure.core.clock import Clock, now
from perdure.core.errors import InvalidConfig
from perdure.storage import registry
from perdure.storage.adapter import Adapter
from perdure.storage.compression import Compression
from perdure.storage.metrics import Metrics
from perdure.storage.middleware import Middleware
from perdure.storage.store import Progress, Store
from perdure.storage.tracing import Tracing

if TYPE_CHECKING:
    from perdure.storage.audit import Audit
    from perdure.storage.cache import RowCache
    from perdure.storage.encryption import Encryption
    from perdure.storage.encryption.master_keys import MasterKeys, Source


class Chain:
    """The middleware that a configuration asks for, including the user's own."""

    def __init__(
        self,
        config: Config,
        own: Sequence[Middleware] = (),
        *,
        masters: MasterKeys | None = None,
        clock: Clock = now,
    ) -> None:
        settings = config.encryption
        self.metrics = Metrics()
        self.audit: Audit | None = None
        self.encryption: Encryption | None = None
        self.cache: RowCache | None = None
        if config.audit.collections or config.audit.reads:
            from perdure.storage.audit import Audit

            self.audit = Audit(config.audit)
        if masters is not None:
            from perdure.storage.encryption import Encryption

            self.encryption = Encryption(
                masters,
                scope=settings.scope,
                everything=settings.everything,
                records=not settings.whole_file,
            )
        if settings.whole_file and config.cache.shared:
            raise InvalidConfig(
                "With encryption.whole_file a shared cache would hold records in clear.",
                hint="Leave cache.shared out; or use encryption.everything instead of whole_file.",
            )
        if config.cache.entries:
            from perdure.storage.cache import RowCache

            self.cache = RowCache(config.cache, clock)
        self.compression = Compression(
            writing=config.storage.compression, above=config.storage.compress_above
        )
        self.tracing = Tracing() if config.metrics.telemetry else None
        watching: list[Middleware] = [] if self.tracing is None else [self.tracing]
        inner = (self.audit, self.compression, self.encryption, self.cache)
        self.middleware: list[Middleware] = [
            *watching,
            self.metrics,
            *own,
            *(each for each in inner if each is not None),
        ]


def master_keys(config: Config, given: Source | None = None) -> MasterKeys | None:
    """The master keys, or None. Raises `InvalidConfig` if the configuration needs some."""
    current = given if given is not None else config.encryption.key or None
    if current is None:
        if config.encryption.everything or config.encryption.whole_file:
            raise InvalidConfig(
                "There is no master key to encrypt with.",
                hint="Set encryption.key, or give master_key=….",
            )
        return None
    from perdure.storage.encryption.master_keys import MasterKeys

    return MasterKeys(current, config.encryption.former_keys)


def store(
    url: str,
    config: Config,
    chain: Chain,
    *,
    master_key: Source | None = None,
    progress: Progress | None = None,
    clock: Clock = now,
) -> Store:
    """The store at an address. Raises `InvalidConfig` if its options do not fit."""
    if config.storage.replica:
        url = _with_replica(url, config.storage.replica)
    adapter = registry.adapter_for(url, clock)
    unlock = None
    if config.encryption.whole_file:
        unlock = _unlocking(
            adapter, url, config.encryption.key if master_key is None else master_key
        )
    return Store(
        adapter, middleware=chain.middleware, clock=clock, progress=progress, unlock=unlock
    )


def open_store(
    url: str,
    *,
    config: Config | None = None,
    middleware: Sequence[Middleware] = (),
    master_key: Source | None = None,
    progress: Progress | None = None,
    clock: Clock = now,
) -> Store:
    """Open a store without a bank, in ``async with``.

    The storage settings apply: compression, encryption, cache, audit, metrics. Any backend will do,
    also one that lacks what a bank needs, such as Valkey.
    """
    config = config if config is not None else load()
    chain = Chain(config, middleware, masters=master_keys(config, master_key), clock=clock)
    return store(url, config, chain, master_key=master_key, progress=progress, clock=clock)


def _with_replica(url: str, replica: str) -> str:
    if not url.startswith(("postgresql:", "postgres:")):
        raise InvalidConfig(
            f"storage.replica is set, but {registry.shown(url)} is no PostgreSQL bank.",
            hint="Leave it out, or open the bank that the replica follows.",
        )
    return f"{url}{'&' if '?' in url else '?'}replica={quote(replica, safe='')}"


def _unlocking(adapter: Adapter, url: str, source: Source) -> Callable[[], Awaitable[None]]:
    from perdure.storage.backends.sqlite import SQLiteAdapter
    from perdure.storage.encryption.master_keys import file_key, read_key

    if not isinstance(adapter, SQLiteAdapter):
        raise InvalidConfig(
            f"encryption.whole_file is set, but {registry.shown(url)} is no SQLite bank.",
            hint="Use encryption.everything instead.",
        )

    async def unlock() -> None:
        adapter.file_key = file_key(await read_key(source))

    return unlock
