"""One HTTP call: its address, its timeouts, and the secrets that must not be shown."""

from __future__ import annotations

import asyncio
import json
import math
import re
from collections.abc import Iterator
from contextlib import contextmanager
from functools import lru_cache
from importlib.metadata import version
from typing import TYPE_CHECKING, Any

import msgspec

from perdure.core.errors import BadAnswer, GatewayError, Rejected
from perdure.core.messages import sound
from perdure.gateway import provider_errors
from perdure.gateway.catalog import ModelCandidate
from perdure.gateway.provider_keys import secrets_of
from perdure.gateway.providers import Provider
from perdure.gateway.requests import ProviderRequest, authorization

if TYPE_CHECKING:
    import httpx2

#: Names of headers that keys go by, besides the usual ones.
_holds_key = re.compile(r"auth|cookie|key|secret|token", re.IGNORECASE).search


class CallTimeouts:
    """Timeouts of one call: for all of it, until something comes, and between two parts."""

    __slots__ = (
        "_begins",
        "_clock",
        "_ends",
        "_patience",
        "_silence",
        "_timeout",
        "began",
        "limit",
    )

    def __init__(self, timeout: float, silence: float, patience: float = math.inf) -> None:
        self._clock = asyncio.get_running_loop().time
        self._timeout = timeout
        self._silence = silence
        self._patience = min(timeout, patience)
        now = self._clock()
        self._ends = now + timeout
        self._begins = now + self._patience
        self.began = False
        self.limit = asyncio.timeout_at(self._begins)

    def begin(self) -> None:
        silent_until = self._clock() + self._silence
        until = min(self._ends, silent_until) if self.began else self._begins
        self.limit = asyncio.timeout_at(until)

    def heard(self) -> None:
        self.began = True
        self.limit.reschedule(min(self._ends, self._clock() + self._silence))

    def overdue(self, where: str) -> GatewayError:
        return provider_errors.overdue(
            where=where,
            timeout=self._timeout if self.began else self._patience,
            silence=self._silence,
            began=self.began,
            # The loop may wake us a little early.
            silent=self.began and self._clock() < self._ends - 0.001,
        )


class HttpCall:
    """One call: where it goes, with what, and what must not be shown of it."""

    def __init__(self, provider: Provider, call: ProviderRequest, key: str | None) -> None:
        self._provider = provider
        self._call = call
        self._key = key or ""
        self._url: httpx2.URL | None = None
        #: User and password, if the address holds them.
        self.auth: tuple[str, str] | None = None

    @property
    def where(self) -> str:
        model = self._call.body.get("model")
        return ModelCandidate(self._provider, str(model)).name if model else self._provider.name

    @property
    def keyless(self) -> str:
        """How to have a key sent, if none is; else empty."""
        provider = self._provider
        if self._key or self.auth or any(map(_holds_key, provider.headers)):
            return ""
        if provider.key_variable:
            return f"Set the variable {provider.key_variable} to the key."
        if "://" in provider.name:
            return (
                f'Give the server a name: base_url = "{provider.base_url}" and key_variable ='
                ' "MY_KEY" under [gateway.providers.NAME], and call its models NAME/model; then'
                " set MY_KEY to the key."
            )
        return (
            f'Write key_variable = "MY_KEY" under [gateway.providers.{provider.name}], and set the'
            " variable MY_KEY to the key."
        )

    def request(self, accept: str, extensions: dict[str, Any]) -> httpx2.Request:
        """A POST, or a GET if there is no body, unless the call says otherwise."""
        import httpx2

        self._url, self.auth = _address(self._provider.base_url, self._call.path)
        headers = {
            "user-agent": _user_agent(),
            "accept": accept,
            # Compressed streams tend to be held back until there is something to compress.
            "accept-encoding": "gzip, deflate" if accept == "application/json" else "identity",
            **({"content-type": "application/json"} if self._call.body else {}),
            **self._call.headers,
            # What is configured comes later: a user may want another version of an API.
            **{name.lower(): value for name, value in self._provider.headers.items()},
            **authorization(self._provider, self._key),
        }
        content = self._call.content
        if self._call.body:
            try:
                content = msgspec.json.encode(self._call.body)
            except UnicodeEncodeError:
                content = msgspec.json.encode(sound(self._call.body))
        return httpx2.Request(
            self._call.method or ("POST" if content else "GET"),
            self._url,
            content=content or None,
            headers=headers,
            extensions=extensions,
        )

    @contextmanager
    def translated(self, watch: CallTimeouts) -> Iterator[None]:
        import httpx2

        try:
            yield
        except TimeoutError:
            if not watch.limit.expired():
                raise
            raise watch.overdue(self.where) from None
        except (httpx2.HTTPError, httpx2.InvalidURL, UnicodeEncodeError) as exc:
            said = self.masked_text(str(exc))
            error = provider_errors.from_exception(exc, said, where=self.where, url=self._url)
            if isinstance(exc, httpx2.RequestError) and self._url is not None:
                # Its request holds the key, and some reporters show all they find.
                exc.request = httpx2.Request("POST", self._url)
            # What breaks a protocol is quoted in the message; what broke a connection explains it.
            raise error from exc if isinstance(exc, httpx2.NetworkError) else None

    def parsed(self, raw: bytes) -> dict[str, Any]:
        try:
            body = msgspec.json.decode(raw)
        except (msgspec.DecodeError, RecursionError):
            # Half surrogate pairs are valid JSON, of models that were cut off inside an emoji.
            try:
                body = sound(json.loads(raw))
            except (ValueError, RecursionError):
                raise self.bad(
                    "answered with nothing" if not raw.strip() else "answered with broken JSON"
                ) from None
        if not isinstance(body, dict):
            raise self.bad("answered with JSON that is no object")
        return body

    def bad(self, what: str) -> BadAnswer:
        return BadAnswer(
            f"{self.where} {what}.",
            hint="Try again; if it stays, check that base_url is an API and which wire it speaks.",
        )

    def complaint(self, error: dict[str, Any]) -> GatewayError:
        return provider_errors.from_event(error, where=self.where, keyless=self.keyless)

    def nowhere(self, status: int) -> Rejected:
        return Rejected(
            f"{self.where} has no API there: {status} at {self._url}.",
            hint="Is base_url right? It usually ends with /v1.",
        )

    def too_much(self, limit: int) -> BadAnswer:
        return BadAnswer(
            f"{self.where} answered with more than {limit / 2**20:.3g} MB.",
            hint="Ask for less, or for a shorter answer.",
        )

    def masked(self, body: bytes) -> bytes:
        """The body without the secrets that were sent: some servers quote them."""
        for secret in self._secrets():
            body = body.replace(secret.encode(), b"[key]")
        return body

    def masked_text(self, text: str) -> str:
        for secret in self._secrets():
            text = text.replace(secret, "[key]")
        return text

    def _secrets(self) -> list[str]:
        return secrets_of(self._provider, self._key, *(self.auth or ()))


@lru_cache(maxsize=256)
def _address(base_url: str, path: str) -> tuple[httpx2.URL, tuple[str, str] | None]:
    """The address, and user and password apart from it: httpx2 logs addresses."""
    import httpx2

    url = httpx2.URL(base_url.rstrip("/") + path)
    if not (url.username or url.password):
        return url, None
    return url.copy_with(userinfo=b""), (url.username, url.password)


@lru_cache(maxsize=1)
def _user_agent() -> str:
    return f"perdure/{version('perdure')}"
