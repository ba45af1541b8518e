"""Tokens, login codes and tickets of one run of the server. In memory only: they end with it."""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable
from typing import Generic, TypeVar

import msgspec

from perdure.core.errors import Denied
from perdure.server.access_tokens import GRANTED, hash_of, new_secret
from perdure.server.operations import Caller

V = TypeVar("V")

#: Seconds.
CODE_LASTS, TICKET_LASTS = 60.0, 30.0
#: Of each kind, at a time. The oldest go.
_MOST = 1_024
Timer = Callable[[], float]


class _ExpiringValues(Generic[V]):
    """Values by the hash of a secret, each until its time."""

    def __init__(self, timer: Timer) -> None:
        self._timer = timer
        self._kept: dict[str, tuple[V, float]] = {}

    def add(self, id: str, value: V, seconds: float) -> None:
        now = self._timer()
        self._kept = {each: kept for each, kept in self._kept.items() if kept[1] > now}
        while len(self._kept) >= _MOST:
            del self._kept[next(iter(self._kept))]
        self._kept[id] = (value, now + seconds)

    def get(self, id: str) -> V | None:
        value, until = self._kept.get(id, (None, 0.0))
        return value if self._timer() < until else None

    def take(self, id: str) -> V | None:
        """The same, once."""
        value = self.get(id)
        self._kept.pop(id, None)
        return value


class LoginToken(msgspec.Struct, frozen=True):
    """What a login gives: a token, and the seconds for which it is good."""

    token: str
    expires_in: float


class RunTokens:
    """What was handed out in this run. Only hashes are kept; each is looked up by its own, so that
    no comparison takes longer the more of a guess is right.
    """

    def __init__(self, *, timer: Timer = time.monotonic) -> None:
        self._tokens = _ExpiringValues[Caller](timer)
        self._codes = _ExpiringValues[Caller](timer)
        self._tickets = _ExpiringValues[str](timer)

    def make(self, caller: Caller, seconds: float = float("inf")) -> str:
        secret = new_secret()
        id = hash_of(secret)
        self._tokens.add(id, msgspec.structs.replace(caller, token=id), seconds)
        return secret

    def caller_by_hash(self, id: str) -> Caller | None:
        return self._tokens.get(id)

    def login_code(self, name: str) -> str:
        """For the person at the terminal, for a minute, once."""
        code = secrets.token_urlsafe(32)
        self._codes.add(hash_of(code), Caller(name, None, frozenset(GRANTED)), CODE_LASTS)
        return code

    def log_in(self, code: str, seconds: float) -> LoginToken:
        """Raises what `take_code` raises."""
        return LoginToken(self.make(self.take_code(code), seconds), seconds)

    def take_code(self, code: str) -> Caller:
        """Who logs in. Raises `Denied` (401) if the code was used, is too old, or never was one."""
        caller = self._codes.take(hash_of(code))
        if caller is None:
            raise Denied(
                "This login code was used, or is older than a minute.",
                hint="Start `perdure serve` again, or use a token of `perdure token make`.",
                status=401,
            )
        return caller

    def ticket(self, caller: Caller) -> str:
        """For one WebSocket, once: browsers cannot send headers with one. It stands for the
        caller's token, and is worth nothing without it.
        """
        ticket = secrets.token_urlsafe(32)
        self._tickets.add(hash_of(ticket), caller.token, TICKET_LASTS)
        return ticket

    def redeem(self, ticket: str) -> str:
        """The hash of the token for which it stands; empty if it was used, or is too old."""
        return self._tickets.take(hash_of(ticket)) or ""
