"""One request of a client from start to end.

The body goes upstream as it came, or with a window in place of old messages; the answer goes back
as it arrives. What is new is recorded beside that. Whatever fails in our own part, the request
still goes upstream unchanged: memory never breaks the agent (unless `strict`).
"""

from __future__ import annotations

import asyncio
import logging
import re
from collections.abc import Awaitable, Callable, MutableMapping
from typing import TYPE_CHECKING, Any

import msgspec

from perdure.bank.bank import Bank
from perdure.config import ProxyConfig
from perdure.core.errors import ProviderDown
from perdure.gateway.providers import CallWire
from perdure.server.proxy.gateway_upstream import GatewayUpstream
from perdure.server.proxy.upstream import Upstreams, request_headers, response_headers

if TYPE_CHECKING:
    import httpx2

_log = logging.getLogger(__name__)

Connection = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]

#: The path of ours in a request's, which may have a token in front.
_path = re.compile(r"(?:/t/[^/]+)?(/v1(?:/.*)?)").fullmatch
_WIRES: dict[str, CallWire] = {
    "/v1/messages": "messages",
    "/v1/responses": "responses",
    "/v1/chat/completions": "chat",
}


def make_proxy(bank: Bank, settings: ProxyConfig) -> Proxy:
    """The proxy over an open bank, as an ASGI app for all paths ``/v1/…``, with or without
    ``/t/{token}`` in front, which it does not check. Close it. Raises `InvalidInput` if an upstream
    cannot be used.
    """
    return Proxy(bank, settings)


class Proxy:
    """An ASGI app. See `make_proxy`."""

    def __init__(self, bank: Bank, settings: ProxyConfig) -> None:
        self.bank = bank
        self.settings = settings
        self.upstreams: Upstreams | GatewayUpstream
        if settings.via_gateway:
            self.upstreams = GatewayUpstream(bank.gateway)
        else:
            self.upstreams = Upstreams({str(n): url for n, url in settings.upstreams.items()})

    async def close(self) -> None:
        await self.upstreams.close()

    async def __call__(self, connection: Connection, receive: Receive, send: Send) -> None:
        if connection["type"] == "websocket":
            await _refuse_socket(receive, send)
            return
        raw: bytes = connection.get("raw_path") or connection["path"].encode()
        found = _path(raw.partition(b"?")[0].decode("latin-1"))
        if found is None:
            await _answer(
                send, 404, error_body("chat", "not_found_error", "There is no such path.")
            )
            return
        body = await _read(receive)
        if body is None:
            return  # the client left before it had said all
        exchange = asyncio.ensure_future(self._exchange(connection, found[1], body, send))
        gone = asyncio.ensure_future(_left(receive))
        try:
            await asyncio.wait({exchange, gone}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            gone.cancel()
            if not exchange.done():
                exchange.cancel()
            await asyncio.wait({exchange, gone})
        if not exchange.cancelled():
            exchange.result()

    async def _exchange(self, connection: Connection, path: str, body: bytes, send: Send) -> None:
        headers = {
            name.decode("latin-1").lower(): value.decode("latin-1")
            for name, value in connection["headers"]
        }
        query: bytes = connection.get("query_string", b"")
        address = self.upstreams.address(path, query, headers)
        try:
            response = await self.upstreams.send(
                connection["method"], address, request_headers(connection["headers"]), body
            )
        except ProviderDown as exc:
            wire = _WIRES.get(path, "chat")
            await _answer(send, 502, error_body(wire, "api_error", exc.message))
            return
        try:
            await self._pass_on(response, send)
        finally:
            await response.aclose()

    async def _pass_on(self, response: httpx2.Response, send: Send) -> None:
        await send(
            {
                "type": "http.response.start",
                "status": response.status_code,
                "headers": response_headers(response.headers.raw),
            }
        )
        async for chunk in response.aiter_raw():
            await send({"type": "http.response.body", "body": chunk, "more_body": True})
        await send({"type": "http.response.body", "body": b""})


async def _read(receive: Receive) -> bytes | None:
    """The body of a request; None if the client left."""
    parts: list[bytes] = []
    while True:
        message = await receive()
        if message["type"] == "http.disconnect":
            return None
        parts.append(message.get("body", b""))
        if not message.get("more_body"):
            return parts[0] if len(parts) == 1 else b"".join(parts)


async def _left(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


async def _refuse_socket(receive: Receive, send: Send) -> None:
    """Codex tries a WebSocket first; on 426 it goes on with HTTP at once."""
    await receive()
    body = error_body("responses", "invalid_request_error", "Use HTTP: there is no WebSocket here.")
    headers = [(b"content-type", b"application/json"), (b"connection", b"close")]
    await send({"type": "websocket.http.response.start", "status": 426, "headers": headers})
    await send({"type": "websocket.http.response.body", "body": body})


def error_body(wire: CallWire, kind: str, message: str) -> bytes:
    """An error in the words of a wire format."""
    error: dict[str, Any] = {"type": kind, "message": message}
    if wire == "messages":
        return msgspec.json.encode({"type": "error", "error": error})
    return msgspec.json.encode({"error": {**error, "param": None, "code": None}})


async def _answer(send: Send, status: int, body: bytes) -> None:
    headers = [
        (b"content-type", b"application/json"),
        (b"content-length", str(len(body)).encode()),
    ]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})
