"""HTTP to a provider: one client for each event loop; keys are never shown.

Three timeouts: `connect`; `silence`, for a provider that has begun to answer; and the caller's
`timeout` for everything. Before it begins to answer, a provider may be silent for the whole time
(models think), or for a stream's `patience`. Raised, with provider and model:

    Rejected      the request is refused, or its address or headers cannot be used
    RateLimited   … for now
    ProviderDown  unreachable, broken off, or not done within the timeout
    BadAnswer     neither JSON nor a stream of events, or too large
"""

from __future__ import annotations

import asyncio
import importlib
import math
import sys
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import asynccontextmanager, suppress
from http.cookiejar import CookieJar, DefaultCookiePolicy
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit
from urllib.request import getproxies

import msgspec

from perdure.core.errors import InvalidConfig
from perdure.gateway import provider_errors
from perdure.gateway.calls import Headers
from perdure.gateway.http_call import CallTimeouts, HttpCall
from perdure.gateway.providers import Provider
from perdure.gateway.requests import ProviderRequest

if TYPE_CHECKING:
    import ssl

    import httpx2

#: Seconds for what comes behind an answer in a stream that is complete.
_DRAIN = 0.05
#: Of an error's body, so many bytes are read, for at most so many seconds.
_MAX_ERROR = 65_536
_ERROR_PATIENCE = 5.0
#: Of a list of models: those of routers are long.
_MAX_LIST = 2 * 2**20
#: The pool looks at every idle connection, with a system call, whenever it hands one out.
_MAX_IDLE = 32
_LOOPBACK = ("all://127.0.0.1", "all://localhost", "all://[::1]")


class ProviderResponse(msgspec.Struct, frozen=True):
    """What came back."""

    body: dict[str, Any]
    headers: Headers


class Transport:
    """Carries calls to providers. A call after `close` opens connections again.

    Connections are reused, by event loop. Redirects are not followed, since the key would go along;
    cookies are not kept. Proxies are those of the environment, never for loopback. `trust` replaces
    the system's certificates.
    """

    def __init__(
        self,
        *,
        connect: float = 10.0,
        silence: float = 120.0,
        max_bytes: int = 64 * 2**20,
        trust: ssl.SSLContext | None = None,
    ) -> None:
        self._silence = silence
        self._max_bytes = max_bytes
        self._trust = trust
        # Silence is our own business (`CallTimeouts`): httpx2 would have one limit for all of it.
        timeouts = {"connect": connect, "read": None, "write": None, "pool": None}
        self._extensions = {"timeout": timeouts}
        self._clients: dict[asyncio.AbstractEventLoop, httpx2.AsyncClient] = {}

    async def post(
        self,
        provider: Provider,
        request: ProviderRequest,
        key: str | None,
        *,
        timeout: float,  # noqa: ASYNC109
    ) -> ProviderResponse:
        """Send a call and read the whole answer. An error object with status 200 is raised."""
        call = HttpCall(provider, request, key)
        watch = CallTimeouts(timeout, self._silence)
        with call.translated(watch):
            async with watch.limit:
                response = await self._send(call, "application/json")
                try:
                    raw = await self._whole(call, response, watch)
                finally:
                    await response.aclose()
        body = call.parsed(raw)
        if _complains(body):
            raise call.complaint(call.parsed(call.masked(raw)))
        return ProviderResponse(body, response.headers)

    @asynccontextmanager
    async def stream(
        self,
        provider: Provider,
        request: ProviderRequest,
        key: str | None,
        *,
        timeout: float,  # noqa: ASYNC109
        patience: float = math.inf,
    ) -> AsyncIterator[ResponseStream]:
        """Send a call and give its answer as it arrives.

        Entering raises the error of the status, or of a JSON body instead of a stream, or after
        `patience` seconds of silence. Iterating raises `ProviderDown` if the stream breaks off.
        Whether the answer is complete is for its decoder to say.
        """
        call = HttpCall(provider, request, key)
        watch = CallTimeouts(timeout, self._silence, patience)
        with call.translated(watch):
            async with watch.limit:
                response = await self._send(call, "text/event-stream")
                try:
                    if _type_of(response) != "text/event-stream":
                        await self._no_stream(call, response, watch)
                except BaseException:
                    await response.aclose()
                    raise
        incoming = ResponseStream(call, watch, response, self._max_bytes)
        try:
            yield incoming
        finally:
            await incoming.close()

    async def lines(
        self,
        provider: Provider,
        request: ProviderRequest,
        key: str | None,
        *,
        timeout: float,  # noqa: ASYNC109
    ) -> AsyncGenerator[bytes, None]:
        """The lines of an answer that is read as it arrives, however long; empty ones are left out.

        Raises as a call; `BadAnswer` for a line that is longer than a whole answer may be, and
        `ProviderDown` if it breaks off: what was yielded is a part then.
        """
        call = HttpCall(provider, request, key)
        watch = CallTimeouts(timeout, self._silence)
        with call.translated(watch):
            async with watch.limit:
                response = await self._send(call, "application/octet-stream")
        # Each line is limited, the whole is not.
        incoming = ResponseStream(call, watch, response, None)
        rest = b""
        try:
            async for part in incoming:
                *whole, rest = (rest + part).split(b"\n")
                if len(rest) > self._max_bytes:
                    raise call.too_much(self._max_bytes)
                for line in whole:
                    if line.strip():
                        yield line
            if rest.strip():
                yield rest
        finally:
            await incoming.close()

    async def reach(
        self,
        provider: Provider,
        key: str | None,
        *,
        timeout: float,  # noqa: ASYNC109
    ) -> tuple[str, ...] | None:
        """Ask a provider for its models, to see whether it is there and takes the key. Free.

        Returns their names; None if there is no list, or it is too long or unreadable. Raises as a
        call, and `Rejected` for an address without a path that has no list: few APIs begin there.
        """
        headers = {"anthropic-version": "2023-06-01"} if provider.wire == "messages" else {}
        call = HttpCall(provider, ProviderRequest("/models", {}, headers), key)
        watch = CallTimeouts(timeout, self._silence)
        with call.translated(watch):
            async with watch.limit:
                response = await self._send(call, "application/json", also=(404, 405, 501))
                try:
                    if response.status_code >= 400:
                        if response.status_code != 501 and not _path_of(provider.base_url):
                            raise call.nowhere(response.status_code)
                        return None
                    raw = await _beginning(response, _MAX_LIST)
                finally:
                    await response.aclose()
        return _names(raw)

    async def warm(self) -> None:
        """Have a client for this loop. It is made in a thread, as that takes long: imports, and the
        certificates of this machine.
        """
        loop = asyncio.get_running_loop()
        if loop not in self._clients:
            made = await asyncio.to_thread(_loaded_client, self._trust)
            self._clients.setdefault(loop, made)

    async def close(self) -> None:
        """End the connections of this loop, and forget those of loops that are gone."""
        client = self._clients.pop(asyncio.get_running_loop(), None)
        self._forget()
        if client is not None:
            await client.aclose()

    async def _send(
        self, call: HttpCall, accept: str, also: tuple[int, ...] = ()
    ) -> httpx2.Response:
        """The response, its body unread. Raises the error of a status that is not in `also`."""
        client = self._client()
        request = call.request(accept, self._extensions)
        response = await client.send(request, stream=True, auth=call.auth)
        if 200 <= response.status_code < 300 or response.status_code in also:
            return response
        try:
            body = await _beginning(response)
        finally:
            await response.aclose()
        # One that sends us elsewhere may do so with the key in the address.
        headers = {name: call.masked_text(value) for name, value in response.headers.items()}
        raise provider_errors.from_response(
            response.status_code,
            headers,
            call.masked(body),
            where=call.where,
            keyless=call.keyless,
        )

    def _client(self) -> httpx2.AsyncClient:
        loop = asyncio.get_running_loop()
        client = self._clients.get(loop)
        if client is None:
            self._forget()
            client = self._clients[loop] = make_client(self._trust)
        return client

    def _forget(self) -> None:
        for loop in [each for each in list(self._clients) if each.is_closed()]:
            del self._clients[loop]

    async def _whole(self, call: HttpCall, response: httpx2.Response, watch: CallTimeouts) -> bytes:
        found = _type_of(response)
        if found and "json" not in found:
            raise call.bad(f"answered with {found} instead of JSON")
        parts = []
        left = self._max_bytes
        async for part in response.aiter_bytes():
            watch.heard()
            parts.append(part)
            left -= len(part)
            if left < 0:
                raise call.too_much(self._max_bytes)
        return parts[0] if len(parts) == 1 else b"".join(parts)

    async def _no_stream(
        self, call: HttpCall, response: httpx2.Response, watch: CallTimeouts
    ) -> None:
        """Raise the error of an answer that is no stream. One of unknown type may be a stream."""
        found = _type_of(response)
        if not found:
            return
        if "json" in found:
            body = call.parsed(call.masked(await self._whole(call, response, watch)))
            if _complains(body):
                raise call.complaint(body)
        raise call.bad(f"answered with {found} instead of a stream of events")


class ResponseStream:
    """An answer on its way: its headers, and its bytes by iterating, in pieces of any size."""

    def __init__(
        self, call: HttpCall, watch: CallTimeouts, response: httpx2.Response, max_bytes: int | None
    ) -> None:
        self.headers: Headers = response.headers
        self._call = call
        self._watch = watch
        self._response = response
        self._parts: AsyncGenerator[bytes, None] = response.aiter_bytes()
        self._max_bytes = sys.maxsize if max_bytes is None else max_bytes
        self._left = self._max_bytes

    def __aiter__(self) -> AsyncIterator[bytes]:
        return self

    async def __anext__(self) -> bytes:
        watch = self._watch
        # Around each read alone: what the reader does in between is not the provider's delay.
        watch.begin()
        with self._call.translated(watch):
            async with watch.limit:
                part = await anext(self._parts)
        watch.began = True
        self._left -= len(part)
        if self._left < 0:
            raise self._call.too_much(self._max_bytes)
        return part

    async def drain(self) -> None:
        """Read the rest for a moment, so that the connection can be reused."""
        import httpx2

        with suppress(TimeoutError, httpx2.HTTPError):
            async with asyncio.timeout(_DRAIN):
                async for part in self._parts:
                    self._left -= len(part)
                    if self._left < 0:
                        return

    async def close(self) -> None:
        await self._parts.aclose()
        await self._response.aclose()


def _complains(body: dict[str, Any]) -> bool:
    if body.get("error"):  # Responses has the field in good answers too, as null
        return True
    return (
        (body.get("success") is False and bool(body.get("errors")))
        or body.get("object") == "error"
        or body.get("type") == "error"
    )


async def _beginning(response: httpx2.Response, limit: int = _MAX_ERROR) -> bytes:
    import httpx2

    body = b""
    try:
        async with asyncio.timeout(_ERROR_PATIENCE):
            async for part in response.aiter_bytes():
                body += part
                if len(body) >= limit:
                    break
    except (TimeoutError, httpx2.HTTPError):
        pass
    return body


def _names(raw: bytes) -> tuple[str, ...] | None:
    """The shapes of OpenAI, Anthropic, Ollama and Gemini; None for others and incomplete lists."""
    try:
        body = msgspec.json.decode(raw, type=_Listed)
    except (msgspec.DecodeError, RecursionError):  # a ValidationError is a DecodeError
        return None
    if body.has_more or (body.data is msgspec.UNSET and body.models is msgspec.UNSET):
        return None
    found = (body.data or []) + (body.models or [])
    return tuple(name for each in found for name in (each.id, each.name, each.model) if name)


class _Item(msgspec.Struct):
    id: str = ""
    name: str = ""
    model: str = ""


class _Listed(msgspec.Struct):
    """Anthropic's list comes in pages, and Ollama's is null if it is empty."""

    data: list[_Item] | msgspec.UnsetType | None = msgspec.UNSET
    models: list[_Item] | msgspec.UnsetType | None = msgspec.UNSET
    has_more: bool = False


def _path_of(address: str) -> str:
    return urlsplit(address).path.strip("/")


def _type_of(response: httpx2.Response) -> str:
    text: str = response.headers.get("content-type", "")
    return text.partition(";")[0].strip().lower()


def _loaded_client(trust: ssl.SSLContext | None) -> httpx2.AsyncClient:
    """With what it imports when it is first used."""
    importlib.import_module("anyio._backends._asyncio")
    return make_client(trust)


def make_client(trust: ssl.SSLContext | None) -> httpx2.AsyncClient:
    import httpx2

    try:
        return httpx2.AsyncClient(
            verify=True if trust is None else trust,
            http2=False,
            follow_redirects=False,
            limits=httpx2.Limits(
                # Gates limit the calls to each model. A common limit would let a provider that
                # hangs block the others.
                max_connections=None,
                max_keepalive_connections=_MAX_IDLE,
                keepalive_expiry=30.0,
            ),
            cookies=CookieJar(DefaultCookiePolicy(allowed_domains=())),
            # Each pattern costs time on each request, so none without need.
            mounts=dict.fromkeys(_LOOPBACK) if getproxies() else None,
        )
    except (ImportError, ValueError, httpx2.InvalidURL) as exc:
        raise InvalidConfig(
            f"The proxy that the environment names cannot be used: {exc}",
            hint="Check the variables HTTPS_PROXY, HTTP_PROXY, ALL_PROXY and NO_PROXY.",
        ) from exc
