"""Tokens in the bank: who may call the server, for which agent, until when.

A token is ``pd_`` and 32 random bytes, shown once. The bank keeps its SHA-256, which says nothing
about it: guessing 256 random bits is out of reach, so no slow hash is needed.
"""

from __future__ import annotations

import asyncio
import hashlib
import re
import secrets
from datetime import datetime
from typing import Annotated

import msgspec

from perdure.core import clock
from perdure.core.errors import InvalidInput, NotFound, PerdureError
from perdure.history.log_records import checked_agent
from perdure.server.operations import Caller, TokenScope
from perdure.storage.options import STRONG
from perdure.storage.records import Key, system_record
from perdure.storage.store import Store

#: What a token can have.
GRANTED = (TokenScope.READ, TokenScope.WRITE, TokenScope.PROXY, TokenScope.ADMIN)
#: Characters of the hash that name a token in lists.
SHORT = 8
_MAX_NAME = 80
_NAMED = re.compile(r"[^\s\x00-\x1f\x7f][^\x00-\x1f\x7f]*").fullmatch
#: Seconds for which a token that was looked up is not looked up again: revoking takes so long.
_RECHECK = 1.0
#: Microseconds between two writes of a token's last use.
_USE_EVERY = 60_000_000
#: How the names of tokens begin that the web page got for a code.
_PAGE = "page of "
#: Tokens that were looked up and are kept in memory.
_MOST = 1_024


@system_record("access_tokens")
class AccessToken(msgspec.Struct, frozen=True, kw_only=True):
    """A token, by its hash."""

    id: Annotated[str, Key()]
    name: str
    agent: str | None = None
    scopes: tuple[TokenScope, ...]
    created: datetime
    expires: datetime | None = None

    @property
    def short(self) -> str:
        return self.id[:SHORT]

    @property
    def caller(self) -> Caller:
        return Caller(self.name, self.agent, frozenset(self.scopes), self.id)

    def is_good(self, now: datetime) -> bool:
        return self.expires is None or now < self.expires


@system_record("token_uses")
class TokenUse(msgspec.Struct, frozen=True):
    """When a token was last used, to the minute. Beside the token: writing it can never bring back
    one that was revoked.
    """

    id: Annotated[str, Key()]
    at: datetime


class TokenInfo(msgspec.Struct, frozen=True, kw_only=True):
    """A token, without the token."""

    id: str
    name: str
    agent: str | None
    scopes: tuple[TokenScope, ...]
    created: datetime
    expires: datetime | None
    used: datetime | None


def new_secret() -> str:
    return f"pd_{secrets.token_urlsafe(32)}"


def hash_of(token: str) -> str:
    return hashlib.sha256(token.encode("utf-8", "surrogatepass")).hexdigest()


class AccessTokens:
    """The tokens of a bank."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._tokens = store.collection(AccessToken)
        self._uses = store.collection(TokenUse)
        #: By hash: what was found, and until when that holds, on the loop's clock.
        self._known: dict[str, tuple[AccessToken | None, float]] = {}
        self._noted: dict[str, int] = {}
        self._writing = set[asyncio.Task[None]]()

    async def make(
        self,
        name: str,
        *,
        scopes: tuple[TokenScope, ...],
        agent: str | None = None,
        lasts: int | None = None,
    ) -> tuple[str, AccessToken]:
        """The token itself, which nobody can read again, and its record. Raises `InvalidInput` if
        the name is taken by one that still holds, or the scopes contradict the agent. `lasts` is
        in microseconds.
        """
        self._check(name, scopes, agent)
        now = clock.to_datetime(self._store.now())
        for other in await self.all():
            if other.name == name and other.is_good(now):
                raise InvalidInput(
                    f"There is a token named {name!r}.",
                    hint=f"Choose another name, or `perdure token revoke {other.short}` first.",
                )
        secret = new_secret()
        token = AccessToken(
            id=hash_of(secret),
            name=name,
            agent=agent,
            scopes=tuple(scope for scope in GRANTED if scope in scopes),
            created=now,
            expires=None if lasts is None else clock.to_datetime(self._store.now() + lasts),
        )
        await self._tokens.put(token, STRONG)
        return secret, token

    async def make_for_page(self, caller: Caller, seconds: float) -> str:
        """A token for a browser in which somebody logged in. Takes out those that have expired."""
        now = clock.to_datetime(self._store.now())
        for other in await self.all():
            if other.name.startswith(_PAGE) and not other.is_good(now):
                await self._tokens.delete(other.id)
                await self._uses.delete(other.id)
        secret, _ = await self.make(
            f"{_PAGE}{caller.name[: _MAX_NAME - 20]} {secrets.token_hex(3)}",
            scopes=tuple(caller.scopes),
            agent=caller.agent,
            lasts=round(seconds * clock.SECOND),
        )
        return secret

    async def all(self) -> list[AccessToken]:
        """All, the oldest first; those that have expired, too."""
        return sorted(await self._tokens.query().values(), key=lambda token: token.created)

    async def describe(self) -> list[TokenInfo]:
        """The same for people."""
        used = {use.id: use.at for use in await self._uses.query().values()}
        return [
            TokenInfo(
                id=token.short,
                name=token.name,
                agent=token.agent,
                scopes=token.scopes,
                created=token.created,
                expires=token.expires,
                used=used.get(token.id),
            )
            for token in await self.all()
        ]

    async def revoke(self, named: str) -> AccessToken:
        """By name, or by the beginning of its id. Raises `NotFound`, or `InvalidInput` if it names
        several.
        """
        tokens = await self.all()
        found = [token for token in tokens if token.name == named]
        found = found or [token for token in tokens if named and token.id.startswith(named)]
        if not found:
            raise NotFound(f"There is no token {named!r}.", hint="See `perdure token list`.")
        if len(found) > 1:
            ids = ", ".join(token.short for token in found)
            raise InvalidInput(f"{named!r} names several tokens: {ids}.", hint="Give an id.")
        (token,) = found
        await self._tokens.delete(token.id, STRONG)
        await self._uses.delete(token.id)
        self._known.pop(token.id, None)
        return token

    async def has_any(self) -> bool:
        """Whether one exists that still holds."""
        now = clock.to_datetime(self._store.now())
        return any(token.is_good(now) for token in await self.all())

    async def caller_by_hash(self, id: str) -> Caller | None:
        """Who has this token; None if nobody has, or not any more. Notes its use."""
        token = await self._look_up(id)
        now = self._store.now()
        if token is None or not token.is_good(clock.to_datetime(now)):
            return None
        if now - self._noted.get(id, 0) >= _USE_EVERY:
            self._noted[id] = now
            writing = asyncio.create_task(self._note_use(id, now), name="perdure-token-use")
            self._writing.add(writing)
            writing.add_done_callback(self._writing.discard)
        return token.caller

    async def settle(self) -> None:
        """Wait until all uses are written."""
        while self._writing:
            await asyncio.wait(self._writing)

    async def _look_up(self, id: str) -> AccessToken | None:
        time = asyncio.get_running_loop().time()
        known = self._known.get(id)
        if known is not None and time < known[1]:
            return known[0]
        token = await self._tokens.get(id)
        if len(self._known) >= _MOST:
            self._known.clear()
        self._known[id] = (token, time + _RECHECK)
        return token

    async def _note_use(self, id: str, now: int) -> None:
        try:
            await self._uses.put(TokenUse(id, clock.to_datetime(now)))
        except PerdureError:  # the next use is noted again; a request does not fail for it
            self._noted.pop(id, None)

    @staticmethod
    def _check(name: str, scopes: tuple[TokenScope, ...], agent: str | None) -> None:
        if not _NAMED(name) or len(name) > _MAX_NAME:
            raise InvalidInput(
                f"{name!r} cannot be the name of a token.",
                hint=f"Use at most {_MAX_NAME} characters on one line.",
            )
        if not scopes or not set(scopes) <= set(GRANTED):
            raise InvalidInput(
                "A token needs scopes.", hint=f"Give one or more of {', '.join(GRANTED)}."
            )
        if agent is not None:
            checked_agent(agent)
            if TokenScope.ADMIN in scopes:
                raise InvalidInput(
                    "A token for one agent cannot have the scope admin, which is about the whole"
                    " bank.",
                    hint="Leave out the agent, or the scope.",
                )
