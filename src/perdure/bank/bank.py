"""The bank itself: where the rooms are tied together."""

from __future__ import annotations

import asyncio
import functools
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self, TypeVar

import msgspec

from perdure import config as configuration
from perdure.artifacts import ARTIFACT_ROWS, ArtifactStore
from perdure.bank import sessions
from perdure.bank.care import Care
from perdure.bank.folders import artifact_place, former_place, make_folder
from perdure.bank.infos import Info, SessionInfo
from perdure.bank.sealing import SealedObjects, object_sealer
from perdure.config import Config
from perdure.context.composer import Rooms as ContextRooms
from perdure.context.places import Shows
from perdure.core.clock import Clock, now
from perdure.core.errors import (
    Closed,
    KeyRefused,
    PerdureError,
    Unsupported,
)
from perdure.core.messages import Message
from perdure.core.turns import Position
from perdure.gateway.traces import Traces
from perdure.history.epochs import Epochs
from perdure.history.forgetting import Forgetting, Forgotten
from perdure.history.intake import Intake
from perdure.history.log import Hook, TurnLog, Written
from perdure.history.meter import Meter
from perdure.history.reading import Reader, position
from perdure.history.records import Link, SessionRecord
from perdure.history.renditions.scribe import Scribe
from perdure.history.strategies import Desk, parse_strategy
from perdure.history.uses import Uses
from perdure.history.verify import verify_chains
from perdure.jobs import Runner
from perdure.session import Rooms, Session
from perdure.session.given import budget_in
from perdure.storage import assembly, urls
from perdure.storage.adapter import Capability
from perdure.storage.collection import Collection
from perdure.storage.contexts import Context, ContextStore
from perdure.storage.middleware import Middleware
from perdure.storage.options import DEFAULT, Options
from perdure.storage.schemas.registry import SchemaRegistry
from perdure.storage.store import Progress
from perdure.storage.subscriptions import Handler, Subscriptions
from perdure.storage.transaction import Transaction
from perdure.storage.verify import Problem, verify_store
from perdure.storage.windows import MemoryWindows

if TYPE_CHECKING:
    from perdure.bank.backup import Backup
    from perdure.bank.recalling import RecallRoom
    from perdure.bank.restoring import Moved
    from perdure.gateway.gateway import Gateway
    from perdure.history.secrets import Masker
    from perdure.recall.indexing.index import RecallIndex
    from perdure.recall.memories.memories import Memories
    from perdure.recall.references.references import References
    from perdure.storage.audit import AuditTrail
    from perdure.storage.cache import Cache
    from perdure.storage.encryption import Encryption
    from perdure.storage.encryption.masters import Source
    from perdure.storage.migrating import Migrated

T = TypeVar("T", bound=msgspec.Struct)
R = TypeVar("R")

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
#: Seconds after which recall begins its work, if nothing is appended before.
_RECALL_AFTER = 0.5


class Bank:
    """An open bank. Made by `perdure.open`; an async context manager."""

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
        self._is_open = self._was_closed = False
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
        self.log = TurnLog(self.store, self.artifacts)
        reader = Reader(self.store)
        self.meter = Meter(self.store, reader, self.artifacts)
        self._reader = reader
        history = self.config.history
        self._masker: Masker | None = None
        self._gateway: Gateway | None = None
        self._clock = clock
        self.scribe = Scribe(
            self.store,
            reader,
            self.artifacts,
            self.meter,
            config=self.config.renditions,
            gateway=(lambda: self.gateway) if self.config.gateway.models.compress else None,
        )
        self.epochs = Epochs(self.store)
        self._shows = Shows(self.store, self.epochs)
        desk = Desk(reader, self.artifacts, self.meter, self.scribe, self.epochs)
        self._beginning: asyncio.Task[None] | None = None
        self.log.join(self._index)
        self._rooms = Rooms(
            self.store,
            self.log,
            reader,
            self.meter,
            self.artifacts,
            tuple(history.prune),
            history.heartbeat,
            ContextRooms(
                self.store,
                desk,
                history,
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
            self._beginning = asyncio.create_task(self._begin_recall(), name="perdure-recall")
        except BaseException:
            await self.close()  # nobody else closes a bank that could not be opened
            raise

    async def close(self) -> None:
        """Let running jobs end, finish every write, and release everything. Safe to call twice."""
        if not self._is_open:
            return
        self._is_open, self._was_closed = False, True
        try:
            await self.meter.stop()
            await self.scribe.stop()
            if self._beginning is not None:
                self._beginning.cancel()
                await asyncio.wait({self._beginning})
            if "_recalling" in self.__dict__:
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

    @property
    def schemas(self) -> SchemaRegistry:
        """What the record types look like, and looked like."""
        return self.store.schemas

    @property
    def audit(self) -> AuditTrail:
        """Who did what to records, where `audit.collections` asks for it."""
        from perdure.storage.audit import AuditTrail

        return AuditTrail(self.store, actor=self.config.audit.actor)

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

    # Recall -----------------------------------------------------------------------------------

    @functools.cached_property
    def _recalling(self) -> RecallRoom:
        """Made when it is first needed: who only reads a bank does not wait for it."""
        from perdure.bank.recalling import RecallRoom

        return RecallRoom(
            self.store,
            self._reader,
            self.scribe,
            self.config,
            gateway=lambda: self.gateway,
            counter=lambda: self.meter.counter,
            plain=self._plain,
            cleanse=self._care.cleanse,
            withdraw=self._shows.forget_memories,
            encrypts=self._chain.encryption.encrypts if self._chain.encryption else None,
        )

    async def _begin_recall(self) -> None:
        await asyncio.sleep(_RECALL_AFTER)
        await self._recalling.start()

    async def _index(self, transaction: Transaction, written: Written) -> None:
        await self._recalling.start()
        await self._recalling.index.hook(transaction, written)

    @property
    def index(self) -> RecallIndex:
        """What recall searches in: see `perdure index`."""
        return self._recalling.index

    @property
    def memories(self) -> Memories:
        """What was distilled: lessons, preferences, patterns, decisions, facts, topics."""
        return self._recalling.memories

    @property
    def references(self) -> References:
        """The reference layers."""
        return self._recalling.references

    # Models -----------------------------------------------------------------------------------

    @property
    def gateway(self) -> Gateway:
        """The one way to call models; made when it is first asked for.

        Raises `InvalidConfig` if its configuration cannot be used.
        """
        if self._gateway is None:
            if not self._is_open:
                raise Closed("This bank is not open.", hint="Use it inside `async with`.")
            from perdure.gateway.gateway import Gateway

            self._gateway = Gateway(
                self.store, self.config.gateway, mask=self._without_secrets, clock=self._clock
            )
        return self._gateway

    def _without_secrets(self, messages: tuple[Message, ...]) -> tuple[Message, ...]:
        masker = self._get_masker()
        return messages if masker is None else masker.messages(messages)[0]

    async def _flush_outcomes(self) -> None:
        if self._gateway is not None:
            await self._gateway.settle()

    # Sessions ---------------------------------------------------------------------------------

    async def session(
        self,
        name: str,
        *,
        strategy: str | None = None,
        budget: int | None = None,
        type: str = "session",
        state: Mapping[str, Any] | None = None,
        tags: Mapping[str, str] | None = None,
        link: Link | None = None,
    ) -> Session:
        """The session of this name (``agent/name``), made if it is not there.

        `strategy` (``gradient`` or ``regular``) and `budget` (in tokens) say how its history is
        shown to a model; given for a session that is there, they change that. `type`, `state`,
        `tags` and `link` (the tool call that started it) matter only if it is made.
        """
        if strategy is not None:
            parse_strategy(strategy)
        budget = budget_in(budget)
        record = await sessions.found_or_made(
            self.store,
            self._intake(name).plain,
            name,
            strategy=strategy or "",
            budget=budget or 0,
            type=type,
            state=state or {},
            tags=tags or {},
            link=link,
        )
        session = self._session(record)
        if strategy not in (None, record.strategy) or budget not in (None, record.budget):
            await session.change_strategy(strategy, budget=budget)
        return session

    async def existing_session(self, name: str) -> Session:
        """The session of this name. Raises `InvalidInput` if there is none."""
        return self._session(await sessions.existing(self.store, name))

    async def sessions(
        self, *, agent: str | None = None, archived: bool = False
    ) -> list[SessionInfo]:
        """The sessions there are, the most recently used first; archived ones only if asked."""
        return await sessions.listed(self.store, agent=agent, archived=archived)

    async def forget(
        self, session: str, *, turns: Iterable[str | int | Position] = (), reroot: bool = False
    ) -> Forgotten:
        """Forget a session for good, with the sub-agents it started; or the content of some turns.

        Raises `Conflict` if a fork shares its turns, unless `reroot` gives them to it first.
        """
        found = await self.existing_session(session)
        numbers = sorted({position(turn, found.record).turn for turn in turns})
        if numbers:
            return await self.forgetting.turns(found.record, numbers)
        return await self.forgetting.sessions([session], reroot=reroot)

    @property
    def forgetting(self) -> Forgetting:
        """Forgets, everywhere that content is kept."""
        return self._forgetting

    @functools.cached_property
    def _forgetting(self) -> Forgetting:
        made = Forgetting(self.store, self._reader, self.artifacts, self._care.cleanse)
        made.join(Traces(self.store, self._flush_outcomes))
        made.join(self.epochs)
        self._recalling.join(made)
        made.join(self._shows)
        return made

    async def forget_agent(self, name: str, *, reroot: bool = False) -> Forgotten:
        """Forget an agent for good: its sessions and whatever is kept under its name."""
        return await self.forgetting.agent(name, reroot=reroot)

    def join(self, hook: Hook) -> None:
        """Have a hook run inside the transaction of every append: see `history.log`."""
        self.log.join(hook)

    def _session(self, record: SessionRecord) -> Session:
        if self._is_open:  # not if only its store is, by a command that looks and changes nothing
            self.meter.look(record)
        return Session(self._rooms, record, self._intake(record.id))

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

    # Care -------------------------------------------------------------------------------------

    async def settle(self) -> None:
        """Wait until background work that is due is done."""
        await self.meter.settle()
        await self.scribe.settle()
        await self._recalling.start()
        await self._recalling.settle()
        await self._flush_outcomes()
        await self._chain.compression.train()
        await self._care.settle()
        await self.jobs.settle()

    async def verify(self, progress: Progress | None = None) -> AsyncIterator[Problem]:
        """Check every record and artifact; yields what is damaged."""
        async for problem in verify_store(self.store, progress, skip=ARTIFACT_ROWS):
            yield problem
        async for problem in verify_chains(self.store, progress):
            yield problem
        async for fault in self.artifacts.check(referred=True):
            yield Problem(fault.referrer or fault.artifact, fault.what)

    async def migrate(
        self,
        cls: type[msgspec.Struct] | None = None,
        *,
        dry_run: bool = False,
        progress: Progress | None = None,
    ) -> list[Migrated]:
        """Bring all records of a type, or of all, to their newest schema; see `migrating`."""
        from perdure.storage.migrating import migrate

        return await migrate(self.store, cls, dry_run=dry_run, progress=progress)

    async def backup(
        self,
        folder: Path | str,
        *,
        keep_last: int | None = None,
        verify: bool = True,
        plain: bool = False,
        progress: Progress | None = None,
    ) -> Backup:
        """Keep this bank as it is now in a folder of backups; see `perdure.bank.backup`."""
        from perdure.bank.backup import backup

        return await backup(
            self,
            folder,
            keep_last=keep_last,
            verify=verify,
            plain=plain,
            master_key=self._master_key,
            progress=progress,
        )

    async def copy_to(
        self,
        url: str,
        *,
        config: Config | None = None,
        overwrite: bool = False,
        verify: bool = True,
        progress: Progress | None = None,
    ) -> Moved:
        """Copy this bank as it is now to another address; see `perdure.bank.restoring`."""
        from perdure.bank.restoring import copy

        return await copy(
            self,
            url,
            config=config,
            overwrite=overwrite,
            verify=verify,
            master_key=self._master_key,
            progress=progress,
        )

    async def info(self) -> Info:
        """What this bank is and holds."""
        return Info(
            url=urls.shown(self.url),
            backend=type(self.store.adapter).__name__,
            capabilities=sorted(self.store.adapter.capabilities),
            artifacts=str(self.artifacts.place),
            collections=await self.store.adapter.sizes(),
        )


def open(
    url: str | None = None,
    *,
    config: Config | None = None,
    middleware: Sequence[Middleware] = (),
    master_key: Source | None = None,
    progress: Progress | None = None,
) -> Bank:
    """The bank at a URL, to be used in ``async with``.

    Without a URL, the one in the configuration, or a file in the user's data folder. `middleware`
    is put around every storage operation; `master_key` names or gives the key to encrypt with, as
    `encryption.key` does in the configuration; `progress` is told about work that takes long.
    """
    return Bank(url, config=config, middleware=middleware, master_key=master_key, progress=progress)
