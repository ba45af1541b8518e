"""The provider behind the proxy: bytes go there and come back as they are.

Headers that are about one connection stay behind, and so do ours (``x-perdure-…``). The client's
credentials pass through; they are neither kept nor logged. Of the content encodings that a client
accepts, those are asked for that we can read.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from perdure.core.errors import InvalidInput, ProviderDown
from perdure.gateway.transport import make_client

if TYPE_CHECKING:
    import httpx2

#: The public API of each format.
PUBLIC = {"anthropic": "https://api.anthropic.com", "openai": "https://api.openai.com/v1"}
#: Where ChatGPT logins of Codex go.
CHATGPT = "https://chatgpt.com/backend-api/codex"

_HOP = frozenset(
    {
        b"connection", b"keep-alive", b"proxy-authenticate", b"proxy-authorization",
        b"proxy-connection", b"te", b"trailer", b"transfer-encoding", b"upgrade",
    }
)  # fmt: skip
#: Set anew for the connection, the body or the encoding.
_OWN = frozenset({b"host", b"content-length", b"expect", b"accept-encoding"})
_READABLE = ("gzip", "deflate", "zstd")

RawHeaders = list[tuple[bytes, bytes]]


class Upstreams:
    """The providers that requests go to. `given` are addresses by format: ``anthropic``,
    ``openai``. Raises `InvalidInput` if one cannot be used.
    """

    def __init__(self, given: Mapping[str, str]) -> None:
        for name, address in given.items():
            parts = urlsplit(address)
            if name not in PUBLIC or parts.scheme not in {"http", "https"} or not parts.netloc:
                raise InvalidInput(
                    f"{name}={address} is no upstream.",
                    hint="Write anthropic=https://… or openai=https://…/v1.",
                )
        self._given = {name: address.rstrip("/") for name, address in given.items()}
        self._client: httpx2.AsyncClient | None = None
        timeouts = {"connect": 30.0, "read": None, "write": None, "pool": None}
        self._extensions = {"timeout": timeouts}

    def address(self, path: str, query: bytes, headers: Mapping[str, str]) -> str:
        """Where a request to a path of ours (``/v1/…``) goes."""
        tail = path.removeprefix("/v1")
        asked = f"?{query.decode('latin-1')}" if query else ""
        if _is_anthropic(path, headers):
            base = self._given.get("anthropic", PUBLIC["anthropic"])
            return f"{base}{'' if base.endswith('/v1') else '/v1'}{tail}{asked}"
        given = self._given.get("openai")
        if given is None and "chatgpt-account-id" in headers:
            return f"{CHATGPT}{tail}{asked}"
        base = given or PUBLIC["openai"]
        return f"{base}{'' if urlsplit(base).path else '/v1'}{tail}{asked}"

    async def send(
        self,
        method: str,
        address: str,
        headers: RawHeaders,
        body: bytes,
        sent: Callable[[], None] = lambda: None,
    ) -> httpx2.Response:
        """The response, its body unread; close it. `sent` is called as soon as the request is on
        its way. Raises `ProviderDown` if there is none.
        """
        import httpx2

        async def trace(name: str, _: object) -> None:
            if name.endswith(".send_request_body.complete"):
                sent()

        request = httpx2.Request(
            method,
            address,
            headers=[(name, value) for name, value in headers if name != b"content-length"],
            content=body or None,
            extensions={**self._extensions, "trace": trace},
        )
        if self._client is None:
            self._client = make_client(None)
        try:
            return await self._client.send(request, stream=True)
        except (httpx2.HTTPError, httpx2.InvalidURL) as exc:
            host = urlsplit(address).netloc.rpartition("@")[2]  # without a password
            raise ProviderDown(
                f"{host} cannot be reached: {str(exc) or type(exc).__name__}.",
                hint="Check the network, and the address given with --upstream.",
            ) from exc

    async def close(self) -> None:
        if self._client is not None:
            await self._client.aclose()


def _is_anthropic(path: str, headers: Mapping[str, str]) -> bool:
    return (
        path.startswith(("/v1/messages", "/v1/complete"))
        or "anthropic-version" in headers
        or "x-api-key" in headers
    )


def request_headers(headers: Iterable[tuple[bytes, bytes]]) -> RawHeaders:
    """What of a client's headers goes upstream."""
    found: RawHeaders = []
    accepted = b""
    for name, value in headers:
        lower = name.lower()
        if lower == b"accept-encoding":
            accepted = value
        elif lower not in _HOP and lower not in _OWN and not lower.startswith(b"x-perdure-"):
            found.append((name, value))
    found.append((b"accept-encoding", _accepted(accepted)))
    return found


def response_headers(headers: Iterable[tuple[bytes, bytes]]) -> RawHeaders:
    return [(name, value) for name, value in headers if name.lower() not in _HOP]


def _accepted(given: bytes) -> bytes:
    names = [each.partition(";")[0].strip() for each in given.decode("latin-1").lower().split(",")]
    readable = [name for name in names if name in _READABLE]
    return ", ".join(readable).encode() or b"identity"


def unpacker(encoding: str) -> Callable[[bytes], bytes]:
    """What takes the content encoding of an answer away, piece by piece. Raises `InvalidInput` for
    an encoding that was not asked for.
    """
    name = encoding.strip().lower()
    if name in {"", "identity"}:
        return lambda piece: piece
    if name in {"gzip", "x-gzip"}:
        return zlib.decompressobj(zlib.MAX_WBITS | 32).decompress
    if name == "deflate":
        return _Deflate()
    if name == "zstd":
        import zstandard

        made: Any = zstandard.ZstdDecompressor().decompressobj()
        unpack: Callable[[bytes], bytes] = made.decompress
        return unpack
    raise InvalidInput(
        f"The answer has the content encoding {name}.", hint="It is passed on, but not recorded."
    )


class _Deflate:
    """With or without a header: servers do not agree."""

    def __init__(self) -> None:
        self._made: Any = None

    def __call__(self, piece: bytes) -> bytes:
        if self._made is None:
            bits = zlib.MAX_WBITS if piece[:1] == b"\x78" else -zlib.MAX_WBITS
            self._made = zlib.decompressobj(bits)
        unpacked: bytes = self._made.decompress(piece)
        return unpacked
