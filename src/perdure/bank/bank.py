"""The bank: opened by `perdure.open`. Its parts are in `perdure.services`."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self, TypeVar

import msgspec

from perdure import config as configuration
from perdure.bank.artifact_location import make_folder
from perdure.bank.bank_info import BankInfo
from perdure.bank.bank_transaction import BankTransaction
from perdure.bank.contexts import Contexts
from perdure.bank.wiring import is_temporary, make_forgetting, make_services, verify_services
from perdure.config import Config, ModelsConfig
from perdure.core.band_marks import BandMarks
from perdure.core.clock import Clock, now
from perdure.core.errors import Closed, KeyRefused, PerdureError
from perdure.core.input_types import require_path, require_text
from perdure.core.turns import Position
from perdure.gateway.batches import BATCHES, RETRIES, TIMEOUT
from perdure.history.forget_sessions import Forgetting, Forgotten
from perdure.history.log_records import Link
from perdure.history.turn_log import AppendHook
from perdure.jobs import Job
from perdure.sessions.session import Session
from perdure.sessions.session_info import SessionInfo, list_sessions, turn_numbers
from perdure.sessions.sessions import Sessions
from perdure.storage import registry
from perdure.storage.collection import Collection
from perdure.storage.memory_windows import MemoryWindows
from perdure.storage.middleware import Middleware
from perdure.storage.options import DEFAULT, Options
from perdure.storage.schemas.schema_registry import SchemaRegistry
from perdure.storage.store import Progress, transact
from perdure.storage.subscriptions import Handler
from perdure.storage.verify import Problem

if TYPE_CHECKING:
    from perdure.agents.agent import Agent
    from perdure.agents.agent_identity import Identities
    from perdure.agents.agent_memory import AgentMemory
    from perdure.agents.agent_records import AgentLimits
    from perdure.agents.agents import Agents
    from perdure.agents.canon import Canon
    from perdure.agents.one_shot.one_shot_runs import OneShotRuns
    from perdure.bank.backup import Backup
    from perdure.bank.bank_copy import BankCopy
    from perdure.gateway.gateway import Gateway
    from perdure.learning.learning import Learning
    from perdure.project.project import Project
    from perdure.recall.indexing.index import RecallIndex
    from perdure.recall.memories.memories import Memories
    from perdure.recall.references.references import References
    from perdure.reflection.inbox import Inbox
    from perdure.reflection.reflection import Reflection
    from perdure.reflection.reflection_records import ReflectionRun
    from perdure.storage.audit import AuditTrail
    from perdure.storage.cache import RowCache
    from perdure.storage.encryption import Encryption
    from perdure.storage.encryption.master_keys import Source
    from perdure.storage.record_migrations import Migrated

T = TypeVar("T", bound=msgspec.Struct)
R = TypeVar("R")

_RELEASE_PATIENCE = 2.0  # Seconds to give leases back in, when the bank is closed.
_START_RECALL_AFTER = 0.5  # Seconds after which recall starts, if nothing is appended before.


def open(
    url: str | None = None,
    *,
    config: Config | None = None,
    middleware: Sequence[Middleware] = (),
    master_key: Source | None = None,
    progress: Progress | None = None,
) -> Bank:
    """The bank at a URL, to be used in ``async with``.

    Without a URL, the configured one, or a file in the user's data folder. `middleware` is put
    around every storage operation; `master_key` names or gives the encryption key, as
    `encryption.key` does in the configuration; `progress` is called during long work.
    """
    return Bank(url, config=config, middleware=middleware, master_key=master_key, progress=progress)


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
        self.url = self.config.bank_url() if url is None else url
        self._master_key = master_key
        self._is_default = url is None and not self.config.bank
        self._is_open = self._is_looked_at = self._was_closed = False
        self.services = services = make_services(
            self.url,
            self.config,
            middleware=middleware,
            master_key=master_key,
            progress=progress,
            clock=clock,
            is_open=lambda: self._is_open or self._is_looked_at,
        )
        self.store, self.jobs, self.artifacts = services.store, services.jobs, services.artifacts
        self.subscriptions, self.metrics = services.subscriptions, services.chain.metrics
        self.windows = MemoryWindows(self.store)
        self.contexts = Contexts(self.store, services.mask_data)
        self._sessions = Sessions(services, is_open=lambda: self._is_open)
        self._forgetting: Forgetting | None = None
        self._reflection: Reflection | None = None
        self._agents: Agents | None = None
        self._starting_recall: asyncio.Task[None] | None = None

    # Its life ---------------------------------------------------------------------------------

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
        services = self.services
        await self.store.open()
        self._is_open = True
        try:
            await self.artifacts.open()
            await self.jobs.start()
            services.maintenance.schedule()
            await services.renditions.start()
            if self.config.reflects_by_itself:
                self.reflection.schedule()
            if self.config.gateway.models != ModelsConfig():
                # Batches that an earlier process sent. Without models there are none.
                self.jobs.register(BATCHES, self._drive_batch, retries=RETRIES, timeout=TIMEOUT)
            # Nobody who only opens or reads a bank waits for recall.
            self._starting_recall = asyncio.create_task(self._start_recall(), name="perdure-recall")
        except BaseException:
            await self.close()  # nobody else closes a bank that could not be opened
            raise

    async def close(self) -> None:
        """Let running jobs end, finish every write, and release everything. Safe to call twice."""
        if not self._is_open:
            return
        self._is_open, self._was_closed = False, True
        services = self.services
        try:
            if self._agents is not None:
                await self._agents.stop(self.config.jobs.grace)
            await services.renditions.stop()
            await self.jobs.unregister(BATCHES)
            await self._stop_lazy()
            await self.jobs.stop(self.config.jobs.grace)
            with suppress(PerdureError, TimeoutError):  # leases run out by themselves
                async with asyncio.timeout(_RELEASE_PATIENCE):
                    await self.subscriptions.release()
                    await services.maintenance.close()
        finally:
            await services.side_store.close()
            await self.store.close()
            if is_temporary(self.url, self.config):
                import shutil

                shutil.rmtree(self.artifacts.root, ignore_errors=True)

    @asynccontextmanager
    async def looked_at(self) -> AsyncIterator[Self]:
        """Open without background work: for commands that read, or do one thing. What recall began
        meanwhile ends before the store is closed.
        """
        await self.store.open()
        self._is_looked_at = True
        try:
            yield self
        finally:
            self._is_looked_at = False
            try:
                await self._stop_lazy()
            finally:
                await self.services.side_store.close()
                await self.store.close()

    async def settle(self) -> None:
        """Wait until background work that is due is done."""
        services = self.services
        await self.jobs.settle()
        await services.recall.start()
        await services.recall.settle()
        if services.made("gateway"):
            await services.gateway.settle()
        await services.maintenance.settle()
        await self.jobs.settle()

    async def __aenter__(self) -> Self:
        await self.open()
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self.close()

    async def _drive_batch(self, job: Job) -> None:
        await self.services.gateway.batch.drive(job)

    async def _start_recall(self) -> None:
        await asyncio.sleep(_START_RECALL_AFTER)
        await self.services.recall.start()

    async def _stop_lazy(self) -> None:
        services = self.services
        if self._starting_recall is not None:
            self._starting_recall.cancel()
            await asyncio.wait({self._starting_recall})
        if services.made("recall"):
            await services.recall.stop()
        if services.made("gateway"):
            await services.gateway.close()

    # What it offers ---------------------------------------------------------------------------

    @property
    def gateway(self) -> Gateway:
        """The gateway to models, made on first use. Raises `InvalidConfig` if its configuration is
        unusable.
        """
        return self.services.gateway

    @property
    def learning(self) -> Learning:
        """What agents learn from their calls: docs/learning.md."""
        made: Learning = self.services.learning
        return made

    @property
    def index(self) -> RecallIndex:
        """The search index: see `perdure index`."""
        return self.services.recall.index

    @property
    def memories(self) -> Memories:
        """Distilled lessons, preferences, patterns, decisions, facts, topics."""
        return self.services.recall.memories

    @property
    def references(self) -> References:
        return self.services.recall.references

    @property
    def reflection(self) -> Reflection:
        """Memories distilled from past turns: runs, which can be listed and undone."""
        if self._reflection is None:
            from perdure.reflection.reflection import Reflection

            self._reflection = Reflection(self.services)
        return self._reflection

    async def reflect(
        self,
        agent: str | None = None,
        *,
        session: str | None = None,
        again: bool = False,
        live: bool = False,
        wait: bool = True,
    ) -> list[ReflectionRun]:
        """Distil memories from what is new; see `Reflection.reflect`."""
        return await self.reflection.reflect(
            agent, session=session, again=again, live=live, wait=wait
        )

    @property
    def inbox(self) -> Inbox:
        """Messages for the administrator."""
        return self.reflection.inbox

    def agent_memory(self, agent: str, *, tiers: Mapping[str, Any] | None = None) -> AgentMemory:
        """The four tiers of an agent's memory, also for one whose loop is your own. `tiers` are
        settings of its own: see `AgentMemory`.
        """
        from perdure.agents.agent_memory import AgentMemory

        return AgentMemory(self.services, agent, tiers=tiers)

    @property
    def canon(self) -> Canon:
        """Knowledge that agents share, written by people or promoted from memories."""
        from perdure.agents.canon import Canon

        return Canon(self.services)

    @property
    def identities(self) -> Identities:
        """Who the agents are: durable ids, public keys, signatures."""
        from perdure.agents.agent_identity import Identities

        return Identities(self.store)

    @property
    def one_shot(self) -> OneShotRuns:
        """Runs of agents that are woken again and again until their tasks are done."""
        from perdure.agents.one_shot.one_shot_runs import OneShotRuns

        return OneShotRuns(self._sessions)

    def project(self, path: Path | str = ".") -> Project:
        """The memory of the repository that `path` is in. Raises `NotFound` if it has none."""
        from perdure.project.project import Project
        from perdure.project.project_location import ProjectLocation

        return Project(self.services, ProjectLocation.find(require_path(path, "path")))

    @property
    def encryption(self) -> Encryption:
        """Keys and their rotation. Raises `KeyRefused` if no master key is configured."""
        found = self.services.chain.encryption
        if found is None:
            raise KeyRefused(
                "This bank was opened without a master key.",
                hint="Name it in encryption.key or give it as master_key=…. A bank that has none"
                " gets one by `perdure keys make FILE`.",
            )
        return found

    @property
    def cache(self) -> RowCache | None:
        """The cache of records; None unless `cache.entries` is set."""
        return self.services.chain.cache

    @property
    def forgetting(self) -> Forgetting:
        """Forgets in every collection that holds content."""
        if self._forgetting is None:
            self._forgetting = make_forgetting(self.services)
        return self._forgetting

    # Sessions ---------------------------------------------------------------------------------

    async def session(
        self,
        name: str,
        *,
        strategy: str | None = None,
        budget: int | None = None,
        profile: str | Mapping[str, float] | BandMarks | None = None,
        type: str = "session",
        state: Mapping[str, Any] | None = None,
        tags: Mapping[str, str] | None = None,
        link: Link | None = None,
    ) -> Session:
        """The session of this name (``agent/name``), made if it is not there.

        `strategy` (``gradient``, ``regular``, ``one-shot``, or one that was registered) and
        `budget` (in tokens) say how its history is shown to a model, `profile` how full the
        gradient plans its window (``full``, ``thrifty``, or marks of one's own); for an existing
        session they change that. `type`, `state`, `tags` and `link` (the tool call that started it)
        matter only if it is made.
        """
        return await self._sessions.open(
            name,
            strategy=strategy,
            budget=budget,
            profile=profile,
            type=type,
            state=state,
            tags=tags,
            link=link,
        )

    async def existing_session(self, name: str) -> Session:
        """Raises `NotFound` if there is no session of this name."""
        return await self._sessions.existing(name)

    async def sessions(
        self, *, agent: str | None = None, archived: bool = False
    ) -> list[SessionInfo]:
        """All sessions, the most recently used first; archived ones only if asked."""
        return await list_sessions(self.store, agent=agent, archived=archived)

    async def forget(
        self,
        session: str,
        *,
        turns: str | int | Position | Iterable[str | int | Position] | None = None,
        reroot: bool = False,
    ) -> Forgotten:
        """Forget a session for good, with the sub-agents it started; or the content of some turns.

        Raises `InvalidInput`, having forgotten nothing, if `turns` is empty, or names a round or a
        turn that does not exist; `Conflict` if a fork shares the session's turns, unless `reroot`
        copies them to it first.
        """
        found = await self.existing_session(session)
        if turns is not None:
            return await self.forgetting.turns(found.record, turn_numbers(turns, found.record))
        return await self.forgetting.sessions([session], reroot=reroot)

    async def forget_agent(self, name: str, *, reroot: bool = False) -> Forgotten:
        """Forget an agent for good: its sessions and all that is kept under its name."""
        return await self.forgetting.agent(name, reroot=reroot)

    # Agents -----------------------------------------------------------------------------------

    @property
    def agents(self) -> Agents:
        """The agents of this bank: found, paused, their messages, questions and schedules."""
        if self._agents is None:
            from perdure.agents.agents import Agents

            self._agents = Agents(self._sessions)
        return self._agents

    async def agent(
        self,
        name: str = "",
        *,
        file: Path | str | None = None,
        prompt: str | None = None,
        model: str | None = None,
        tools: Iterable[Callable[..., Any]] | None = None,
        description: str | None = None,
        skills: Iterable[str] | None = None,
        tasks: Iterable[str] | None = None,
        limits: AgentLimits | Mapping[str, Any] | None = None,
        tiers: Mapping[str, Any] | None = None,
        strategy: str | None = None,
        budget: int | None = None,
        recall: bool | None = None,
        history_tools: bool | None = None,
        state: type[Any] = dict,
        serve: bool = True,
        reason: str = "",
    ) -> Agent:
        """The agent of this name, made if there is none and a prompt or a file is given.

        `file` is a Claude Code agent file; what is given beside it counts more. What differs from
        the current version makes another. `tools` are Python functions (see `perdure.tool`);
        `limits` what one message may take (steps, tokens, dollars, seconds); `tiers` settings of
        its memory; `strategy`, `budget` and `recall` as for a session and its contexts; `state` the
        type of `agent.state`. With `serve`, this process does its messages from now on, if it has
        all its tools.

        Raises `NotFound` if there is no such agent and nothing to make it from, `Conflict` if the
        file is of another project than the agent, `InvalidInput`.
        """
        from perdure.agents.agent_opening import open_agent

        return await open_agent(
            self.agents,
            name,
            file=file,
            prompt=prompt,
            model=model,
            tools=tools,
            description=description,
            skills=skills,
            tasks=tasks,
            limits=limits,
            tiers=tiers,
            strategy=strategy,
            budget=budget,
            recall=recall,
            history_tools=history_tools,
            state=state,
            serve=serve and self._is_open,
            reason=reason,
        )

    def join(self, hook: AppendHook) -> None:
        """Run a hook inside the transaction of every append: see `history.turn_log`."""
        self.services.log.join(hook)

    # Records ----------------------------------------------------------------------------------

    def collection(self, cls: type[T]) -> Collection[T]:
        """The collection of a declared record type."""
        return self.store.collection(cls)

    def transaction(self, options: Options = DEFAULT) -> BankTransaction:
        """A transaction across collections, contexts and windows; see `Store.transaction`."""
        return BankTransaction(self.store, self.services.mask_data, options)

    async def transact(
        self, body: Callable[[BankTransaction], Awaitable[R]], options: Options = DEFAULT
    ) -> R:
        """Run `body` in a transaction, repeated on conflict; see `Store.transact`."""
        return await transact(lambda: self.transaction(options), body)

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
        """The record types' current and past schemas."""
        return self.store.schemas

    @property
    def audit(self) -> AuditTrail:
        """The audit trail of the collections in `audit.collections`."""
        from perdure.storage.audit import AuditTrail

        return AuditTrail(self.store, actor=self.config.audit.actor)

    # Care -------------------------------------------------------------------------------------

    def verify(self, progress: Progress | None = None) -> AsyncIterator[Problem]:
        """Check every record and artifact; yields what is damaged."""
        return verify_services(self.services, progress)

    async def migrate(
        self,
        cls: type[msgspec.Struct] | None = None,
        *,
        dry_run: bool = False,
        progress: Progress | None = None,
    ) -> list[Migrated]:
        """Bring all records of one type, or of all, to their newest schema."""
        from perdure.storage.record_migrations import migrate

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
        """Back up this bank as it is now to a folder; see `perdure.bank.backup`."""
        from perdure.bank.backup import backup

        return await backup(
            self.services,
            require_path(folder, "folder"),
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
    ) -> BankCopy:
        """Copy this bank as it is now to another address; see `perdure.bank.bank_copy`."""
        from perdure.bank.bank_copy import copy_bank

        return await copy_bank(
            self.services,
            require_text(url, "url", hint=f"Write sqlite:///{url}"),
            config=config,
            overwrite=overwrite,
            verify=verify,
            master_key=self._master_key,
            progress=progress,
        )

    async def info(self) -> BankInfo:
        """What this bank is and holds."""
        return BankInfo(
            url=registry.shown(self.url),
            backend=type(self.store.adapter).__name__,
            capabilities=sorted(self.store.adapter.capabilities),
            artifacts=str(self.artifacts.place),
            collections=await self.store.adapter.sizes(),
        )
