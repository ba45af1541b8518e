"""The bank: everything one installation remembers, where the rooms are tied together.

async with perdure.open("sqlite:///memory.db") as bank:
    notes = bank.collection(Note)
    await notes.put(Note(id="ada/1", text="…"))
"""

from __future__ import annotations

import asyncio
import shutil
import tempfile
import zlib
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Self, TypeVar
from urllib.parse import urlsplit

import msgspec

from perdure import config as configuration
from perdure.artifacts import ARTIFACT_ROWS, ArtifactStore
from perdure.config import Config
from perdure.core.clock import Clock, now
from perdure.core.errors import AccessDenied, Closed, PerdureError
from perdure.core.ids import new_id
from perdure.jobs import Runner
from perdure.storage import registry, urls
from perdure.storage.adapter import DEFAULT, Capability, Options, Size
from perdure.storage.collection import Collection
from perdure.storage.compression import Compression
from perdure.storage.contexts import Context, ContextStore
from perdure.storage.metrics import Metrics
from perdure.storage.middleware import Middleware
from perdure.storage.store import Progress, Store
from perdure.storage.subscriptions import Handler, Subscriptions
from perdure.storage.transaction import Transaction
from perdure.storage.verify import Problem, verify_store
from perdure.storage.windows import MemoryWindows

T = TypeVar("T", bound=msgspec.Struct)
R = TypeVar("R")

_SWEEP_PAGE = 1_000
#: Seconds to give leases back in, when the bank is closed.
_RELEASE_PATIENCE = 2.0
_TRIM_EVERY = 300.0
_TRAIN_EVERY = 30.0


class Info(msgspec.Struct, frozen=True):
    """What a bank is and holds."""

    url: str
    backend: str
    capabilities: list[str]
    artifacts: str
    collections: list[Size]


class Bank:
    """An open bank. Made by `perdure.open`; an async context manager."""

    def __init__(
        self,
        url: str | None = None,
        *,
        config: Config | None = None,
        middleware: Sequence[Middleware] = (),
        progress: Progress | None = None,
        clock: Clock = now,
    ) -> None:
        self.config = config if config is not None else configuration.load()
        self.url = self.config.bank_url() if url is None else url
        self._is_open = self._was_closed = False
        self._is_default = url is None and not self.config.bank
        self._is_temporary = self.url.startswith("memory:") and not self.config.artifacts.folder
        self.metrics = Metrics()
        self._compression = Compression(writing=self.config.storage.compression)
        chain: list[Middleware] = [self.metrics, *middleware, self._compression]
        adapter = registry.adapter_for(self.url, clock)
        self.store = Store(adapter, middleware=chain, clock=clock, progress=progress)
        self._compression.attach(self.store)
        self.jobs = Runner(self.store, concurrency=self.config.jobs.concurrency)
        self.subscriptions = Subscriptions(self.store)
        self.windows = MemoryWindows(self.store)
        self.contexts = ContextStore(self.store, Context)
        self.artifacts = ArtifactStore(self.store, self._artifact_folder())

    async def open(self) -> None:
        """Connect, and start the background work. Safe to call on an open bank."""
        if self._is_open:
            return
        if self._was_closed:
            raise Closed(
                "A bank that was closed stays closed.", hint="Open it anew with perdure.open(…)."
            )
        if self._is_default:
            _make_folder(configuration.data_folder())
        await self.store.open()
        try:
            await self.artifacts.open()
            await self.jobs.start()
        except BaseException:
            await self.store.close()  # nobody calls `close` on a bank that could not be opened
            raise
        self._is_open = True
        self._schedule()

    async def close(self) -> None:
        """Let running jobs end, finish every write, and release everything. Safe to call twice."""
        if not self._is_open:
            return
        self._is_open, self._was_closed = False, True
        try:
            await self.jobs.stop(self.config.jobs.grace)
            with suppress(PerdureError, TimeoutError):  # leases run out by themselves
                async with asyncio.timeout(_RELEASE_PATIENCE):
                    await self.subscriptions.release()
        finally:
            await self.store.close()
            if self._is_temporary:
                shutil.rmtree(self.artifacts.root, ignore_errors=True)

    async def __aenter__(self) -> Self:
        await self.open()
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self.close()

    # Records ----------------------------------------------------------------------------------

    def collection(self, cls: type[T]) -> Collection[T]:
        """The collection of a declared record type."""
        return self.store.collection(cls)

    def transaction(self, options: Options = DEFAULT) -> Transaction:
        """A transaction across collections; see `Store.transaction`."""
        return self.store.transaction(options)

    async def transact(
        self, body: Callable[[Transaction], Awaitable[R]], options: Options = DEFAULT
    ) -> R:
        """Run `body` in a transaction, repeated on conflict; see `Store.transact`."""
        return await self.store.transact(body, options)

    async def subscribe(
        self,
        name: str,
        handler: Handler,
        topics: Sequence[str] = ("*",),
        *,
        from_start: bool = False,
    ) -> None:
        """Deliver events to a handler, at least once and in order per key."""
        await self.subscriptions.subscribe(name, handler, topics, from_start=from_start)

    # Care -------------------------------------------------------------------------------------

    async def settle(self) -> None:
        """Wait until background work that is due is done."""
        await self._compression.train()
        if Capability.OUTBOX in self.store.adapter.capabilities:
            while await self.subscriptions.deliver():
                pass
        await self.jobs.settle()

    async def verify(self, progress: Progress | None = None) -> AsyncIterator[Problem]:
        """Check every record and artifact; yields what is damaged."""
        async for problem in verify_store(self.store, progress, skip=ARTIFACT_ROWS):
            yield problem
        async for fault in self.artifacts.check():
            yield Problem(fault.artifact, fault.what)

    async def info(self) -> Info:
        """What this bank is and holds."""
        return Info(
            url=urls.shown(self.url),
            backend=type(self.store.adapter).__name__,
            capabilities=sorted(self.store.adapter.capabilities),
            artifacts=str(self.artifacts.root),
            collections=await self.store.adapter.sizes(),
        )

    def _schedule(self) -> None:
        storage = self.config.storage
        capabilities = self.store.adapter.capabilities
        if Capability.TTL in capabilities:
            self.jobs.every("sweep", storage.sweep_every, self._sweep)
        if Capability.OUTBOX in capabilities:
            self.jobs.every("deliver", storage.deliver_every, self.subscriptions.deliver)
            self.jobs.every("trim", _TRIM_EVERY, self.subscriptions.trim)
            self.store.on_events = lambda: self.jobs.wake("deliver")
        if storage.compression:
            self.jobs.every("train", _TRAIN_EVERY, self._compression.train)
            self._compression.on_due = lambda: self.jobs.wake("train")

    async def _sweep(self) -> None:
        while await self.store.adapter.sweep(_SWEEP_PAGE) == _SWEEP_PAGE:
            pass

    def _artifact_folder(self) -> Path:
        if self.config.artifacts.folder:
            return Path(self.config.artifacts.folder).expanduser().absolute()
        address = urls.parse(self.url)
        if address.scheme == "sqlite":
            file = Path(address.path).absolute()
            return file.with_name(f"{file.name}.artifacts")
        if self._is_temporary:
            return Path(tempfile.gettempdir()) / f"perdure-{new_id()}"
        return configuration.data_folder() / "artifacts" / _slug(self.url)


def open(
    url: str | None = None,
    *,
    config: Config | None = None,
    middleware: Sequence[Middleware] = (),
    progress: Progress | None = None,
) -> Bank:
    """The bank at a URL, to be used in ``async with``.

    Without a URL, the one in the configuration, or a file in the user's data folder. `middleware`
    is put around every storage operation; `progress` is told about work that takes long.
    """
    return Bank(url, config=config, middleware=middleware, progress=progress)


def _slug(url: str) -> str:
    """A folder name for a bank on a server: two banks never share one."""
    parts, options = urlsplit(url), urls.parse(url).options
    host = parts.hostname or options.get("host", "local")
    schema = options.get("schema", "perdure")
    place = f"{host}-{parts.port or 5432}-{parts.path.strip('/')}-{schema}"
    readable = "".join(char if char.isalnum() or char in "-_." else "_" for char in place)
    return f"{readable}-{zlib.crc32(place.encode()):08x}"


def _make_folder(folder: Path) -> None:
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError as exc:
        raise AccessDenied(
            f"The folder {folder} cannot be made: {exc.strerror}.",
            hint="Set PERDURE_BANK to an address that you may write to.",
        ) from exc
