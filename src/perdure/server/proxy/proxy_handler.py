"""The proxy as an ASGI app: an unchanged client's requests, each in an exchange of its own."""

from __future__ import annotations

import asyncio
import re

import msgspec

from perdure.bank.bank import Bank
from perdure.config import ProxyConfig
from perdure.server.proxy.client_errors import error_body
from perdure.server.proxy.client_exchange import (
    ClientExchange,
    Connection,
    ProxyServices,
    Receive,
    Send,
    send_error,
)
from perdure.server.proxy.conversation_windows import ConversationWindows
from perdure.server.proxy.gateway_upstream import GatewayUpstream
from perdure.server.proxy.proxy_report import ProxyReport
from perdure.server.proxy.recorder import Recorder
from perdure.server.proxy.recording_backlog import RecordingBacklog
from perdure.server.proxy.recording_order import RecordingOrder
from perdure.server.proxy.upstream import Upstreams

#: The path of ours in a request's, which may have a token in front.
_path = re.compile(r"(?:/t/[^/]+)?(/v1(?:/.*)?)").fullmatch


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
            self.upstreams = GatewayUpstream(bank)
        else:
            self.upstreams = Upstreams({str(n): url for n, url in settings.upstreams.items()})
        self.recorder = Recorder(bank)
        self.windows = ConversationWindows(bank, settings, self.recorder.items)
        self.recorder.conversations.dropped = self.windows.drop
        self.report = ProxyReport(bank)
        self.backlog = RecordingBacklog()
        self._services = ProxyServices(
            settings,
            self.upstreams,
            self.recorder,
            self.windows,
            self.report,
            self.backlog,
            RecordingOrder(),
        )

    async def close(self) -> None:
        """What has arrived is written, and connections end."""
        await self.backlog.close()
        await self.upstreams.close()

    async def __call__(self, connection: Connection, receive: Receive, send: Send) -> None:
        if connection["type"] == "websocket":
            await _refuse_socket(receive, send)
            return
        raw: bytes = connection.get("raw_path") or connection["path"].encode()
        found = _path(raw.partition(b"?")[0].decode("latin-1"))
        if found is None:
            await send_error(send, "chat", 404, "not_found_error", "There is no such path.")
            return
        said = await _read(receive)
        if said is None:
            return  # the client left before it had said all
        await self.backlog.catch_up()
        with self.backlog.request():
            wanted = ClientExchange(self._services, connection, found[1], said, send)
            await self._serve(wanted, receive)

    async def _serve(self, wanted: ClientExchange, receive: Receive) -> None:
        """Until it is done, or the client has left."""
        exchange = asyncio.ensure_future(wanted.run())
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
    told = "Use HTTP: there is no WebSocket here."
    body = msgspec.json.encode(error_body("responses", "invalid_request_error", told))
    headers = [(b"content-type", b"application/json"), (b"connection", b"close")]
    await send({"type": "websocket.http.response.start", "status": 426, "headers": headers})
    await send({"type": "websocket.http.response.body", "body": body})
