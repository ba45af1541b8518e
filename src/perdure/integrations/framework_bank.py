"""What the integrations of frameworks share: the bank they write to, and how they name sessions."""

from __future__ import annotations

import asyncio
import hashlib
import re
from types import TracebackType
from typing import Self

from perdure.bank.bank import Bank
from perdure.core.display import install_hint
from perdure.core.errors import InvalidInput, Unsupported
from perdure.history.log_records import SessionRecord, agent_of
from perdure.sessions.session import Session

_MOST = 64  # Characters of a framework's id that stay readable.
_unfit = re.compile(r"[^A-Za-z0-9._@+-]+")


class MissingFramework(Unsupported, ImportError):
    """The framework of an integration is not installed."""


def missing(package: str, extra: str) -> MissingFramework:
    return MissingFramework(
        f"This needs {package}, which is not installed.",
        hint=f"Run: pip install {package}. {install_hint(extra)}",
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
    readable = _unfit.sub("-", "-".join(ids)).strip("-")[:_MOST]
    name = f"{agent}/{readable}-{digest}" if readable else f"{agent}/{digest}"
    agent_of(name)  # the agent's name is the user's own: an error says what is wrong with it
    return name


class FrameworkBank:
    """A bank that is given open, or opened at its URL by the first use and closed by `close`."""

    def __init__(self, bank: Bank | str | None) -> None:
        self._given = bank if isinstance(bank, Bank) else None
        self._url = None if isinstance(bank, Bank) else bank
        self._opened: Bank | None = None
        self._opening = asyncio.Lock()
        self._sessions: dict[str, Session] = {}

    async def bank(self) -> Bank:
        if self._given is not None:
            return self._given
        if self._opened is None:
            async with self._opening:
                if self._opened is None:
                    bank = Bank(self._url)
                    await bank.open()
                    self._opened = bank
        return self._opened

    async def session(self, name: str, **facts: str) -> Session:
        """The session of this name, made if needed. One object for all who write to it here."""
        found = self._sessions.get(name)
        if found is None:
            made = await (await self.bank()).session(name, state=facts)
            found = self._sessions.setdefault(name, made)
        return found

    async def forget(self, name: str) -> None:
        """Forget a session for good, if there is one. Raises `Conflict` if a fork shares it."""
        self._sessions.pop(name, None)
        bank = await self.bank()
        if await bank.collection(SessionRecord).get(name) is not None:
            await bank.forget(name)

    async def close(self) -> None:
        """Close the bank, unless it was given. Safe to call twice."""
        opened, self._opened = self._opened, None
        self._sessions.clear()
        if opened is not None:
            await opened.close()


class FrameworkStore:
    """Base of what is handed to a framework: ``async with`` closes the bank that it opened."""

    def __init__(self, bank: Bank | str | None = None) -> None:
        self._access = FrameworkBank(bank)

    async def close(self) -> None:
        """Close the bank, unless it was given. Safe to call twice."""
        await self._access.close()

    async def __aenter__(self) -> Self:
        await self._access.bank()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.close()
