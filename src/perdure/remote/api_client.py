"""HTTP to a Perdure server: addresses, bodies, and its errors raised again as what they were."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator, Mapping
from typing import Any, TypeVar
from urllib.parse import quote

import httpx2
import msgspec

from perdure.core.errors import (
    DeadlineExceeded,
    InvalidInput,
    InvalidURL,
    InvalidValue,
    PerdureError,
    Unavailable,
)
from perdure.core.messages import sound
from perdure.gateway.transport import make_client
from perdure.remote.api_errors import ErrorAnswer

T = TypeVar("T")

_CONNECT = 10.0  # Seconds to reach the server.
_encode = msgspec.json.Encoder().encode


class ApiClient:
    """Asks one server. Connections are kept until `close`."""

    def __init__(self, url: str, token: str | None, timeout: float) -> None:
        if not re.match(r"https?://[^/]", str(url)):
            raise InvalidURL(
                f"{url!r} is not the address of a server.",
                hint='Write connect("http://127.0.0.1:7788"); a bank is opened by perdure.open.',
            )
        if token is not None and not re.fullmatch(r"[!-~]+", token):
            raise InvalidInput(
                "The token is empty." if not token else "The token has characters that none has.",
                hint="Give it as `perdure token make` printed it, without spaces and line ends.",
            )
        self.url = url.rstrip("/")
        headers = {} if token is None else {"authorization": f"Bearer {token}"}
        self._http = make_client(None)  # which asks no proxy for a server on this machine
        self._http.base_url = self.url
        self._http.headers.update(headers)
        self._http.timeout = httpx2.Timeout(timeout, connect=_CONNECT)

    async def close(self) -> None:
        await self._http.aclose()

    async def get(self, path: str, kind: type[T], /, **query: Any) -> T:
        return await self.call("GET", path, kind, query=query)

    async def call(
        self,
        method: str,
        path: str,
        kind: type[T],
        body: Mapping[str, Any] | None = None,
        *,
        query: Mapping[str, Any] | None = None,
    ) -> T:
        """What the server answers. What is None is left out of query and body.

        Raises what the server raised; `Unavailable` if it cannot be reached, `DeadlineExceeded` if
        it does not answer in time.
        """
        given: dict[str, Any] = {}
        if body is not None:
            given = {"content": _encoded(body), "headers": _JSON}
        try:
            answer = await self._http.request(
                method, f"/api/v1{path}", params=_texts(query or {}), **given
            )
        except httpx2.HTTPError as exc:
            raise self._unreached(exc) from exc
        if not answer.is_success:
            raise self._raised(answer.status_code, answer.content)
        if answer.status_code == 204:
            return None  # type: ignore[return-value]  # the caller asked for None
        return msgspec.json.decode(answer.content, type=kind)

    async def stream(self, path: str, **query: Any) -> AsyncIterator[bytes]:
        try:
            async with self._http.stream("GET", f"/api/v1{path}", params=_texts(query)) as answer:
                if not answer.is_success:
                    raise self._raised(answer.status_code, await answer.aread())
                async for chunk in answer.aiter_bytes():
                    yield chunk
        except httpx2.HTTPError as exc:
            raise self._unreached(exc) from exc

    def _unreached(self, exc: httpx2.HTTPError) -> PerdureError:
        why = str(exc) or type(exc).__name__
        if isinstance(exc, httpx2.TimeoutException) and not isinstance(exc, httpx2.ConnectTimeout):
            return DeadlineExceeded(
                f"The server at {self.url} did not answer in time.",
                hint="It may have done it all the same: append with a key to repeat it safely.",
            )
        return Unavailable(
            f"The server at {self.url} cannot be reached: {why}.",
            hint="Start it with `perdure serve`, or look at the address.",
        )

    def _raised(self, status: int, content: bytes) -> PerdureError:
        try:
            return msgspec.json.decode(content, type=ErrorAnswer).error.error()
        except msgspec.MsgspecError:
            return Unavailable(
                f"{self.url} answers with {status}, and not as a Perdure server does.",
                hint="Look at the address.",
            )


_JSON = {"content-type": "application/json"}


def segment(name: str) -> str:
    """A name as one segment of a path. ``.`` and ``..`` would otherwise be taken for folders."""
    if name in {".", ".."}:
        return name.replace(".", "%2E")
    return quote(name, safe="", errors="replace")


def _encoded(body: Mapping[str, Any]) -> bytes:
    given = _without_none(body)
    try:
        return _encode(given)
    except UnicodeEncodeError:  # half surrogate pairs: replaced as the log replaces them
        return _encode(sound(msgspec.to_builtins(given)))
    except TypeError as exc:
        raise InvalidValue(f"This cannot be sent: {exc}.", hint="Give plain data.") from exc


def _without_none(body: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in body.items() if value is not None}


def _texts(query: Mapping[str, Any]) -> dict[str, Any]:
    """Parameters of a URL. A list stands for several."""
    found = _without_none(query)
    return {
        name: str(value).lower() if isinstance(value, bool) else value
        for name, value in found.items()
    }
