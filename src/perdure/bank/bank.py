"""The bank: what one does with it. What it consists of is in `house`."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import msgspec

from perdure.artifacts import ARTIFACT_ROWS
from perdure.bank import sessions
from perdure.bank.house import House
from perdure.bank.infos import Info, SessionInfo
from perdure.config import Config
from perdure.core.turns import Position
from perdure.history.forgetting import Forgotten
from perdure.history.log import Hook
from perdure.history.records import Link, SessionRecord
from perdure.history.strategies import parse_strategy
from perdure.history.verify import verify_chains
from perdure.session import Session
from perdure.session.given import budget_in
from perdure.storage import urls
from perdure.storage.collection import Collection
from perdure.storage.middleware import Middleware
from perdure.storage.options import DEFAULT, Options
from perdure.storage.schemas.registry import SchemaRegistry
from perdure.storage.store import Progress
from perdure.storage.subscriptions import Handler
from perdure.storage.transaction import Transaction
from perdure.storage.verify import Problem, verify_store

if TYPE_CHECKING:
    from perdure.bank.backup import Backup
    from perdure.bank.bank_copy import BankCopy
    from perdure.storage.audit import AuditTrail
    from perdure.storage.encryption.masters import Source
    from perdure.storage.migrating import Migrated

T = TypeVar("T", bound=msgspec.Struct)
R = TypeVar("R")


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


class Bank(House):
    """An open bank. Made by `perdure.open`; an async context manager.

    What it consists of is in `House`: its store, log, artifacts, jobs, gateway, index.
    """

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
        self,
        session: str,
        *,
        turns: str | int | Position | Iterable[str | int | Position] | None = None,
        reroot: bool = False,
    ) -> Forgotten:
        """Forget a session for good, with the sub-agents it started; or the content of some turns.

        Raises `InvalidInput`, having forgotten nothing, if `turns` is empty, or names a round or
        what is not there; `Conflict` if a fork shares the session's turns, unless `reroot` gives
        them to it first.
        """
        found = await self.existing_session(session)
        if turns is not None:
            return await self.forgetting.turns(
                found.record, sessions.whole_turns(turns, found.record)
            )
        return await self.forgetting.sessions([session], reroot=reroot)

    async def forget_agent(self, name: str, *, reroot: bool = False) -> Forgotten:
        """Forget an agent for good: its sessions and whatever is kept under its name."""
        return await self.forgetting.agent(name, reroot=reroot)

    def join(self, hook: Hook) -> None:
        """Have a hook run inside the transaction of every append: see `history.log`."""
        self.log.join(hook)

    def _session(self, record: SessionRecord) -> Session:
        if self._is_open:  # not if only its store is, by a command that looks and changes nothing
            self.log.look(record)
        return Session(self._rooms, record, self._intake(record.id))

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

    # Care -------------------------------------------------------------------------------------

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
    ) -> BankCopy:
        """Copy this bank as it is now to another address; see `perdure.bank.bank_copy`."""
        from perdure.bank.bank_copy import copy_bank

        return await copy_bank(
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
