"""The rooms of a bank, tied together, and their life: made, opened, settled, closed."""

from __future__ import annotations

import asyncio
import functools
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from typing import TYPE_CHECKING, Any, Self

from perdure import config as configuration
from perdure.artifacts import ArtifactStore
from perdure.bank.care import Care
from perdure.bank.folders import artifact_place, former_place, make_folder
from perdure.bank.recalling import Recalling
from perdure.bank.sealing import SealedObjects, object_sealer
from perdure.config import Config
from perdure.context.composer import Rooms as ContextRooms
from perdure.context.places import Shows
from perdure.core.clock import Clock, now
from perdure.core.errors import Closed, KeyRefused, PerdureError, Unsupported
from perdure.core.messages import Message
from perdure.gateway.response_cache import GatewayRecords
from perdure.history.epochs import Epochs
from perdure.history.forgetting import Forgetting
from perdure.history.intake import Intake
from perdure.history.log import TurnLog
from perdure.history.reading import Reader
from perdure.history.renditions.rendition_service import Scribe
from perdure.history.strategies import Desk
from perdure.history.token_counts import TokenCounts
from perdure.history.uses import Uses
from perdure.jobs import Runner
from perdure.session import Rooms
from perdure.storage import assembly, urls
from perdure.storage.adapter import Capability
from perdure.storage.contexts import Context, ContextStore
from perdure.storage.middleware import Middleware
from perdure.storage.store import Progress
from perdure.storage.subscriptions import Subscriptions
from perdure.storage.windows import MemoryWindows

if TYPE_CHECKING:
    from perdure.gateway.gateway import Gateway
    from perdure.history.secrets import Masker
    from perdure.recall.indexing.index import RecallIndex
    from perdure.recall.memories.memories import Memories
    from perdure.recall.recall import Recall
    from perdure.recall.references.references import References
    from perdure.storage.cache import Cache
    from perdure.storage.encryption import Encryption
    from perdure.storage.encryption.masters import Source

#: What a bank cannot do without.
_NEEDED = frozenset(
    {
        Capability.AGGREGATE,
        Capability.LISTING,
        Capability.OUTBOX,
        Capability.QUERY,
        Capability.TAGS,
        Capability.TRANSACTIONS,
        Capability.TTL,
        Capability.VERSIONS,
    }
)
#: Seconds to give leases back in, when the bank is closed.
_RELEASE_PATIENCE = 2.0


class House:
    """What a `Bank` consists of. Rooms that take long to make are made when first asked for."""

    def __init__(
        self,
        url: str | None = None,
        *,
        config: Config | None = None,
        middleware: Sequence[Middleware] = (),
        master_key: Source | None = None,
        progress: Progress | None = None,
        clock: Clock = now,
    ) -> None:
        self.config = config if config is not None else configuration.load()
        self._master_key = master_key
        self.url = self.config.bank_url() if url is None else url
        self._is_open = self._is_looked_at = self._was_closed = False
        self._is_default = url is None and not self.config.bank
        chosen = self.config.artifacts.folder or self.config.artifacts.url
        self._is_temporary = self.url.startswith("memory:") and not chosen
        masters = assembly.master_keys(self.config, master_key)
        self._chain = assembly.Chain(self.config, middleware, masters=masters, clock=clock)
        self.metrics = self._chain.metrics
        self.store = assembly.store(
            self.url,
            self.config,
            self._chain,
            master_key=master_key,
            progress=progress,
            clock=clock,
        )
        self._check_backend()
        self.jobs = Runner(self.store, concurrency=self.config.jobs.concurrency)
        self.subscriptions = Subscriptions(self.store)
        self._care = Care(self.store, self._chain, self.subscriptions, self.jobs, self.config)
        self.windows = MemoryWindows(self.store)
        self.contexts = ContextStore(self.store, Context)
        self.artifacts = ArtifactStore(
            self.store,
            artifact_place(self.url, self.config.artifacts, temporary=self._is_temporary),
            former=former_place(self.config.artifacts),
            sealer=object_sealer(self._chain.encryption, self.config.encryption),
        )
        self.artifacts.join(Uses(self.store))
        if self._chain.encryption is not None:
            self._chain.encryption.join(SealedObjects(self.artifacts))
        self.log = TurnLog(self.store, self.artifacts, self.jobs)
        reader = Reader(self.store)
        self.meter = TokenCounts(self.store, reader, self.artifacts, self.jobs)
        self._reader = reader
        self._masker: Masker | None = None
        self._gateway: Gateway | None = None
        self._clock = clock
        self.scribe = Scribe(
            self.store,
            reader,
            self.artifacts,
            self.meter,
            self.jobs,
            config=self.config.renditions,
            gateway=(lambda: self.gateway) if self.config.gateway.models.compress else None,
        )
        self.log.listen(self.meter.note, self.meter.missed)
        self.log.listen(self.scribe.note, self.scribe.missed)
        self.epochs = Epochs(self.store)
        self._shows = Shows(self.store, self.epochs)
        desk = Desk(reader, self.artifacts, self.meter, self.scribe, self.epochs)
        self._recalling = Recalling(self._make_recall)
        self.log.join(self._recalling.hook)
        self.log.listen(self._recalling.note, self._recalling.missed)
        self._rooms = Rooms(
            self.store,
            self.log,
            reader,
            self.meter,
            self.artifacts,
            tuple(self.config.history.prune),
            self.config.history.heartbeat,
            ContextRooms(
                self.store,
                desk,
                self.config.history,
                recalling=lambda: self._recalling.recall,
                plain=self._plain,
            ),
        )

    async def open(self) -> None:
        """Connect, and start the background work. Safe to call on an open bank."""
        if self._is_open:
            return
        if self._was_closed:
            raise Closed(
                "A bank that was closed stays closed.", hint="Open it anew with perdure.open(…)."
            )
        if self._is_default:
            make_folder(configuration.data_folder())
        await self.store.open()
        self._is_open = True
        try:
            await self.artifacts.open()
            await self.jobs.start()
            self._care.schedule()
            await self.scribe.start()
            self._recalling.begin_soon()
        except BaseException:
            await self.close()  # nobody else closes a bank that could not be opened
            raise

    async def close(self) -> None:
        """Let running jobs end, finish every write, and release everything. Safe to call twice."""
        if not self._is_open:
            return
        self._is_open, self._was_closed = False, True
        try:
            await self.scribe.stop()
            await self._recalling.stop()
            if self._gateway is not None:
                await self._gateway.close()
            await self.jobs.stop(self.config.jobs.grace)
            with suppress(PerdureError, TimeoutError):  # leases run out by themselves
                async with asyncio.timeout(_RELEASE_PATIENCE):
                    await self.subscriptions.release()
                    await self._care.close()
        finally:
            await self.store.close()
            if self._is_temporary:
                import shutil

                shutil.rmtree(self.artifacts.root, ignore_errors=True)

    @asynccontextmanager
    async def looked_at(self) -> AsyncIterator[Self]:
        """Connected, without any background work: for commands that look, or do one thing.

        What recall began meanwhile ends with it, before the store is closed.
        """
        await self.store.open()
        self._is_looked_at = True
        try:
            yield self
        finally:
            self._is_looked_at = False
            try:
                await self._recalling.stop()
                if self._gateway is not None:
                    await self._gateway.close()
            finally:
                await self.store.close()

    async def settle(self) -> None:
        """Wait until background work that is due is done."""
        await self.jobs.settle_idle()
        await self.scribe.settle()
        await self._recalling.settle()
        await self._flush_outcomes()
        await self._chain.compression.train()
        await self._care.settle()
        await self.jobs.settle()

    async def __aenter__(self) -> Self:
        await self.open()
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self.close()

    def _check_backend(self) -> None:
        missing = sorted(_NEEDED - self.store.adapter.capabilities)
        if missing:
            raise Unsupported(
                f"{urls.shown(self.url)} cannot hold a bank: it has no {', '.join(missing)}.",
                hint="Use it for records alone, with perdure.open_store(…); open the bank on"
                " sqlite:// or postgresql://.",
            )

    # Models -----------------------------------------------------------------------------------

    @property
    def gateway(self) -> Gateway:
        """The one way to call models; made when it is first asked for.

        Raises `InvalidConfig` if its configuration cannot be used.
        """
        if self._gateway is None:
            if not (self._is_open or self._is_looked_at):
                raise Closed("This bank is not open.", hint="Use it inside `async with`.")
            from perdure.gateway.gateway import Gateway

            self._gateway = Gateway(
                self.store, self.config.gateway, mask=self._without_secrets, clock=self._clock
            )
        return self._gateway

    async def _flush_outcomes(self) -> None:
        if self._gateway is not None:
            await self._gateway.settle()

    # Recall -----------------------------------------------------------------------------------

    @property
    def index(self) -> RecallIndex:
        """What recall searches in: see `perdure index`."""
        return self._recalling.recall.index

    @property
    def memories(self) -> Memories:
        """What was distilled: lessons, preferences, patterns, decisions, facts, topics."""
        return self._recalling.recall.memories

    @property
    def references(self) -> References:
        """The reference layers."""
        return self._recalling.recall.references

    def _make_recall(self) -> Recall:
        from perdure.recall.services import make_recall

        return make_recall(
            self.store,
            self._reader,
            self.scribe,
            self.jobs,
            self.config,
            gateway=lambda: self.gateway,
            counter=lambda: self.meter.counter,
            plain=self._plain,
            cleanse=self._care.cleanse,
            withdraw=self._shows.forget_memories,
            encrypts=self._chain.encryption.encrypts if self._chain.encryption else None,
        )

    # Forgetting -------------------------------------------------------------------------------

    @property
    def forgetting(self) -> Forgetting:
        """Forgets, everywhere that content is kept."""
        return self._forgetting

    @functools.cached_property
    def _forgetting(self) -> Forgetting:
        made = Forgetting(self.store, self._reader, self.artifacts, self._care.cleanse)
        made.join(GatewayRecords(self.store, self._flush_outcomes))
        made.join(self.epochs)
        self._recalling.recall.join(made)
        made.join(self._shows)
        return made

    # Keys and the cache -----------------------------------------------------------------------

    @property
    def encryption(self) -> Encryption:
        """Keys and their rotation. Raises `KeyRefused` if no master key is configured."""
        if self._chain.encryption is None:
            raise KeyRefused(
                "This bank was opened without a master key.",
                hint="Name it in encryption.key or give it as master_key=…. A bank that has none"
                " gets one by `perdure keys make FILE`.",
            )
        return self._chain.encryption

    @property
    def cache(self) -> Cache | None:
        """The cache of records, if `cache.entries` asks for one."""
        return self._chain.cache

    # What comes in, without secrets ----------------------------------------------------------

    def _plain(self, data: Mapping[str, Any]) -> dict[str, Any]:
        return self._intake("").plain(data)

    def _intake(self, session: str) -> Intake:
        return Intake(session, self.artifacts, self._get_masker, self.config.history)

    def _get_masker(self) -> Masker | None:
        """Made at the first append: reading a bank does not need the rules."""
        if self._masker is None and self.config.secrets.mask:
            from perdure.history.secrets import Masker

            self._masker = Masker(self.config.secrets)
        return self._masker

    def _without_secrets(self, messages: tuple[Message, ...]) -> tuple[Message, ...]:
        masker = self._get_masker()
        return messages if masker is None else masker.messages(messages)[0]
