"""Runs the app on a socket, and stops it without losing anything.

    async with perdure.open(...) as bank, serving(make_app(bank)) as server:
        server.listen_to_signals()
        print(server.url)
        await server.asked_to_stop()

Stopping: no new connections; live sockets are closed (`ServerState.stopping`); requests and chats
under way get `server.grace` seconds; then chats are ended, and a second later what is still running
is cancelled. What arrived of an answer stays a draft. Nothing is logged of requests, because paths
may hold tokens.
"""

from __future__ import annotations

import asyncio
import errno
import ipaddress
import math
import socket
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress

import uvicorn
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol
from uvicorn.protocols.websockets.websockets_sansio_impl import WebSocketsSansIOProtocol
from websockets.exceptions import InvalidState

from perdure.core.errors import InvalidInput, Unavailable
from perdure.server.access_tokens import AccessTokens
from perdure.server.server_app import ServerApp
from perdure.server.stop_signals import StopSignals

#: Seconds between two looks of uvicorn at its limits.
_TICK = 1.0
#: Seconds between two looks whether everything has ended.
_LOOK = 0.005
#: Seconds for which an idle connection is kept. Longer than clients keep theirs: of two who close
#: at the same moment, the client loses a request.
_KEEP_ALIVE = 75
#: Bytes of a message that a client sends over a WebSocket.
_MAX_MESSAGE = 1 << 20
#: Bytes of a request's first line and headers, and seconds in which they have to come.
_MAX_HEAD, _HEAD_SECONDS = 64 << 10, 30.0


class HttpServer:
    """A running server."""

    def __init__(self, app: ServerApp, listening: socket.socket) -> None:
        self.app = app
        host, port = listening.getsockname()[:2]
        address = ipaddress.ip_address(host.partition("%")[0])
        outer = host
        if address.is_unspecified:
            host = "::1" if ":" in host else "127.0.0.1"  # where this machine reaches it
            outer = _outer_address(listening.family)
        self.port: int = port
        self.url = _url(host, port)
        #: Where other machines reach it; empty if they cannot, or that is not known.
        self.outer_url = "" if address.is_loopback or not outer else _url(outer, port)
        self.is_loopback = address.is_loopback
        self._signals = StopSignals()
        self.stop = self._signals.stop
        self.listen_to_signals = self._signals.listen

    async def asked_to_stop(self) -> None:
        """Wait for `stop`, and for SIGINT or SIGTERM once `listen_to_signals` was called."""
        await self._signals.wait()


@asynccontextmanager
async def serving(app: ServerApp) -> AsyncIterator[HttpServer]:
    """Serve on `server.host` and `server.port` until the block ends. Raises `Unavailable` if the
    port is taken, `InvalidInput` if the address is not loopback and the bank has no tokens.
    """
    config = app.state.config.server
    listening = _bind(config.host, config.port)
    try:
        await _check_reach(app, listening)
        server = HttpServer(app, listening)
        inner = _Uvicorn(
            uvicorn.Config(
                app,
                http=_BoundedHeads,
                ws=_BoundedPongs,
                ws_max_size=_MAX_MESSAGE,
                ws_per_message_deflate=False,  # each event is encoded once, for all sockets
                lifespan="off",
                log_config=None,
                # It complains of each WebSocket that is refused. What fails, the router logs.
                log_level="critical",
                access_log=False,
                proxy_headers=False,  # or a client could say which address it has
                server_header=False,
                timeout_keep_alive=_KEEP_ALIVE,
                date_header=False,  # the guard's
                # A second more: chats that are ended then tell it to their readers.
                timeout_graceful_shutdown=math.ceil(config.grace) + 1,
            )
        )
        async with app.running():
            running = asyncio.create_task(inner.serve([listening]), name="perdure-http")
            try:
                await inner.wait_started(running)
                yield server
            finally:
                app.state.stopping.set()
                inner.stop()
                await running
    finally:
        listening.close()


class _BoundedHeads(HttpToolsProtocol):
    """Limits what is not a body, in size and time: httptools gathers it without end, and before
    any token.
    """

    _gathered = 0
    _late: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._await_head()

    def connection_lost(self, exc: Exception | None) -> None:
        self._has_head()
        super().connection_lost(exc)

    def on_message_begin(self) -> None:
        self._await_head()
        super().on_message_begin()

    def on_headers_complete(self) -> None:
        self._has_head()
        super().on_headers_complete()

    def _await_head(self) -> None:
        self._has_head()
        self._late = self.loop.call_later(_HEAD_SECONDS, self.transport.close)

    def _has_head(self) -> None:
        if self._late is not None:
            self._late.cancel()
            self._late = None

    def data_received(self, data: bytes) -> None:
        self._gathered += len(data)
        super().data_received(data)
        if self._gathered > _MAX_HEAD and not self.transport.is_closing():
            # There is no cycle before the first request, whatever its type says.
            if self.cycle is None or self.cycle.response_complete:  # type: ignore[redundant-expr]
                self.send_400_response("The headers are too large.")
            else:  # of a request that is being answered: what follows its body
                self.transport.abort()

    def on_body(self, body: bytes) -> None:
        self._gathered = 0
        super().on_body(body)

    def on_message_complete(self) -> None:
        self._gathered = 0
        super().on_message_complete()


class _BoundedPongs(WebSocketsSansIOProtocol):
    """Leaves pings unanswered while their answers are not read: they would be kept in memory."""

    def handle_ping(self) -> None:
        pong = b"".join(self.conn.data_to_send())
        if self.transport.get_write_buffer_size() < _MAX_MESSAGE:
            self.transport.write(pong)


class _Uvicorn(uvicorn.Server):
    """Leaves signals alone, and stops when it is told instead of looking ten times a second."""

    def __init__(self, config: uvicorn.Config) -> None:
        super().__init__(config)
        self._began, self._ended = asyncio.Event(), asyncio.Event()

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        self._began.set()

    async def main_loop(self) -> None:
        counter = 0
        while not await self.on_tick(counter):
            counter += 10  # it counts tenths of seconds
            with suppress(TimeoutError):
                async with asyncio.timeout(_TICK):
                    await self._ended.wait()

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """The same as uvicorn's, without its tenths of seconds, and its end is an end: what does
        not stop in time is cancelled and then waited for.
        """
        for each in (*self.servers, *(sockets or ())):
            each.close()
        state = self.server_state
        for connection in list(state.connections):
            try:
                connection.shutdown()
            except InvalidState:  # of a socket that its client closes right now: uvicorn asks late
                connection.transport.close()
        with suppress(TimeoutError):
            async with asyncio.timeout(self.config.timeout_graceful_shutdown):
                while state.connections or state.tasks:  # noqa: ASYNC110  # uvicorn has no event
                    await asyncio.sleep(_LOOK)
        for task in (left := set(state.tasks)):
            task.cancel()
        if left:
            await asyncio.wait(left)
        for connection in list(state.connections):
            connection.transport.abort()

    def stop(self) -> None:
        self.should_exit = True
        self._ended.set()

    async def wait_started(self, running: asyncio.Task[None]) -> None:
        waiting = asyncio.create_task(self._began.wait())
        await asyncio.wait({waiting, running}, return_when=asyncio.FIRST_COMPLETED)
        waiting.cancel()
        if running.done():
            running.result()


def _url(host: str, port: int) -> str:
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


def _outer_address(family: int) -> str:
    """The address of this machine on the way to others; empty if there is no way. Sends nothing."""
    elsewhere = "2001:db8::1" if family == socket.AF_INET6 else "192.0.2.1"
    with suppress(OSError), socket.socket(family, socket.SOCK_DGRAM) as asking:
        asking.connect((elsewhere, 9))
        return str(asking.getsockname()[0])
    return ""


def _bind(host: str, port: int) -> socket.socket:
    try:
        (family, *_, address), *_ = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )
        # With its protocol: asyncio turns off Nagle's delay (40 ms) only if a socket says TCP.
        listening = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    except OSError as exc:
        raise InvalidInput(
            f"{host!r} is no address of this machine: {exc.strerror}.", hint="Use 127.0.0.1."
        ) from exc
    try:
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listening.bind(address)
        listening.listen(2_048)
        listening.setblocking(False)
    except OSError as exc:
        listening.close()
        if exc.errno == errno.EADDRNOTAVAIL:
            raise InvalidInput(
                f"{host} is no address of this machine.",
                hint="Choose another with --host; 127.0.0.1 is for this machine alone.",
            ) from exc
        raise Unavailable(
            f"Port {port} of {host} cannot be listened on: {exc.strerror}.",
            hint="Choose another with --port; 0 takes any that is free.",
        ) from exc
    return listening


async def _check_reach(app: ServerApp, listening: socket.socket) -> None:
    address = listening.getsockname()[0]
    if ipaddress.ip_address(address.partition("%")[0]).is_loopback:
        return
    if not await app.state.part(AccessTokens).has_any():
        raise InvalidInput(
            f"Others can reach {address}, and this bank has no tokens.",
            hint="Make one with `perdure token make NAME`, or listen on 127.0.0.1.",
        )
