"""What the integrations of frameworks share: the bank they write to, and how they name sessions."""

from __future__ import annotations

import asyncio
import hashlib
import re
from collections.abc import Coroutine
from typing import Any, Self, TypeVar

from perdure.bank.bank import Bank
from perdure.core.display import install_hint
from perdure.core.errors import InvalidInput, Unsupported
from perdure.history.log_records import Link, SessionRecord, agent_of
from perdure.sessions.session import Session
from perdure.sync import SyncBank, sync_loop

R = TypeVar("R")

_MOST = 64  # Characters of a framework's id that stay readable.
_unfit = re.compile(r"[^A-Za-z0-9._@+-]+")


class MissingFramework(Unsupported, ImportError):
    """The framework of an integration is not installed."""


def missing(package: str, extra: str) -> MissingFramework:
    return MissingFramework(
        f"This needs {package}, which is not installed.",
        hint=install_hint(extra),
    )


def session_name(agent: str, *ids: str) -> str:
    """``agent/id``. Ids that no session could have, or several, become readable ones with a hash,
    so that two never meet.
    """
    if len(ids) == 1:
        plain = f"{agent}/{ids[0]}"
        try:
            agent_of(plain)
        except InvalidInput:
            pass
        else:
            return plain
    digest = hashlib.sha256("\0".join(ids).encode("utf-8", "surrogatepass")).hexdigest()[:12]
    words = readable("-".join(ids))
    name = f"{agent}/{words}-{digest}" if words else f"{agent}/{digest}"
    agent_of(name)  # the agent's name is the user's own: an error says what is wrong with it
    return name


def readable(id: str) -> str:
    """What of an id can be part of any name."""
    return _unfit.sub("-", id).strip("-")[:_MOST]


class FrameworkBank:
    """A bank that is given open, or that the first use opens at its URL and `close` closes.

    One opened at a URL lives on the loop of `perdure.open_sync`, so that it may be used from any
    loop and thread, one after another or at once. A given one is used on its own loop.
    """

    def __init__(self, bank: Bank | SyncBank | str | None) -> None:
        given = bank.__dict__["_target"] if isinstance(bank, SyncBank) else bank
        self._given: Bank | None = given if isinstance(given, Bank) else None
        self._url = given if isinstance(given, str) else None
        self._loop = None if isinstance(bank, Bank) else sync_loop()
        self._opened: Bank | None = None
        self._opening: asyncio.Lock | None = None
        self._sessions: dict[str, Session] = {}

    async def run(self, work: Coroutine[Any, Any, R]) -> R:
        """Awaited from any loop, run on the bank's. An agent waits: background work holds off."""
        bank = self._given or self._opened
        if bank is not None:
            bank.services.jobs.hold_off()
        running = asyncio.get_running_loop()
        loop = self._loop = self._loop or running
        if loop is running:
            return await work
        return await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(work, loop))

    def wait(self, work: Coroutine[Any, Any, R]) -> R:
        """For callers without `await`. Raises `InvalidInput` on the bank's own loop."""
        try:
            running = asyncio.get_running_loop()
        except RuntimeError:
            running = None
        if self._loop is None or self._loop is running:
            work.close()
            raise InvalidInput(
                "This call would block the event loop that the bank was opened on.",
                hint="Await the method whose name begins with an a, or give the bank's URL.",
            )
        return asyncio.run_coroutine_threadsafe(work, self._loop).result()

    # All below runs on the bank's loop.

    async def bank(self) -> Bank:
        if self._given is not None:
            return self._given
        self._opening = self._opening or asyncio.Lock()
        async with self._opening:
            if self._opened is None:
                bank = Bank(self._url)
                await bank.open()
                self._opened = bank
        return self._opened

    async def session(self, name: str, *, link: Link | None = None, **facts: Any) -> Session:
        """The session of this name, made if needed. One object for all who write to it here."""
        found = await self.existing(name)
        if found is None:
            made = await (await self.bank()).session(name, state=facts, link=link)
            found = self._sessions.setdefault(name, made)
        return found

    def known(self, name: str) -> Session | None:
        """Without a look whether it is still there."""
        return self._sessions.get(name)

    async def existing(self, name: str) -> Session | None:
        """Looks each time: it may have been forgotten meanwhile."""
        bank = await self.bank()
        if await bank.collection(SessionRecord).get(name) is None:
            self._sessions.pop(name, None)
            return None
        if name not in self._sessions:
            self._sessions[name] = await bank.existing_session(name)
        return self._sessions[name]

    async def forget(self, name: str, *, reroot: bool = False) -> None:
        """Forget a session for good, if there is one. Raises `Conflict` if a fork shares it, unless
        `reroot` copies what is shared.
        """
        if await self.existing(name) is not None:
            await (await self.bank()).forget(name, reroot=reroot)
        self._sessions.pop(name, None)

    async def close(self) -> None:
        opened, self._opened = self._opened, None
        self._sessions.clear()
        if opened is not None:
            await opened.close()


class FrameworkStore:
    """Base of what is handed to a framework: ``async with``, or ``with``, closes the bank that it
    opened.
    """

    def __init__(self, bank: Bank | SyncBank | str | None = None) -> None:
        self._access = FrameworkBank(bank)

    async def close(self) -> None:
        """Close the bank, unless it was given. Safe to call twice."""
        await self._access.run(self._access.close())

    async def __aenter__(self) -> Self:
        await self._access.run(self._access.bank())
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self.close()

    def __enter__(self) -> Self:
        self._access.wait(self._access.bank())
        return self

    def __exit__(self, *exc: object) -> None:
        self._access.wait(self._access.close())
