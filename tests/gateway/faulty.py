"""A real HTTP/1.1 server on loopback that misbehaves as a test tells it to.

    async with FaultyServer() as server:
        server.script(rate_limited(retry_after=2), reset(), always=chat("Hello."))
        provider = Provider(name="faulty", base_url=server.url + "/v1", needs_key=False)
        …
        assert server.count == 3

Requests take their answers from the script in the order in which they arrive; when it is used up,
`always` answers. An answer is any coroutine function that is given an `Exchange` and writes to it:
those below can be combined, and others written where they are needed.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
import socket
import ssl
import struct
from collections import deque
from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import Any, Literal, NamedTuple, Self, TypeAlias

from tests.gateway.bodies import chat_body, chat_events, message_body, message_events
from tests.gateway.certificates import self_signed

JSON = {"content-type": "application/json"}
SSE = {"content-type": "text/event-stream; charset=utf-8"}
FOREVER = 3_600.0
#: How an answer that has begun ends: as it should, never, with a closed or with a reset connection.
Ending: TypeAlias = Literal["well", "hang", "cut", "reset"]


class Received(NamedTuple):
    """One request."""

    method: str
    path: str
    headers: dict[str, str]  # names in lower case
    body: bytes

    def json(self) -> Any:
        return json.loads(self.body)


class Exchange:
    """One request, and the connection to answer it on."""

    def __init__(self, received: Received, writer: asyncio.StreamWriter) -> None:
        self.received = received
        self._writer = writer
        self.closing = False

    async def write(self, data: bytes) -> None:
        self._writer.write(data)
        await self._writer.drain()

    async def head(self, status: int, headers: dict[str, str]) -> None:
        lines = [f"HTTP/1.1 {status} Status", *(f"{key}: {headers[key]}" for key in headers)]
        await self.write(("\r\n".join(lines) + "\r\n\r\n").encode())

    async def chunk(self, data: bytes) -> None:
        """A chunk of a chunked body; an empty one ends it."""
        await self.write(f"{len(data):x}\r\n".encode() + data + b"\r\n")

    def close(self) -> None:
        self.closing = True

    def reset(self) -> None:
        """The peer sees RST instead of an orderly end."""
        self.closing = True
        raw: socket.socket | None = self._writer.get_extra_info("socket")
        if raw is not None:
            raw.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self._writer.transport.abort()

    async def end(self, ending: Ending) -> None:
        match ending:
            case "hang":
                await asyncio.sleep(FOREVER)
            case "cut":
                self.close()
            case "reset":
                await asyncio.sleep(0.01)  # what was written is to arrive before the RST does
                self.reset()
            case "well":
                pass


Answer: TypeAlias = Callable[[Exchange], Awaitable[None]]


class FaultyServer:
    """Listens while its `async with` block runs; what still hangs then is dropped.

    With `tls` it has a certificate of its own making, for `name`, that nobody trusts but
    `trusting`.
    """

    def __init__(self, *, tls: bool = False, name: str = "127.0.0.1") -> None:
        self.requests: list[Received] = []
        #: Requests that are being answered now, and the most that were at a time.
        self.running = 0
        self.most = 0
        self.connections = 0
        self._script: deque[Answer] = deque()
        self._always: Answer = chat("Hello.")
        self._tls: ssl.SSLContext | None = None
        self._certificate = ""
        if tls:
            self._tls, self._certificate = self_signed(name)
        self._tasks: set[asyncio.Task[None]] = set()
        self._server: asyncio.Server | None = None
        self.port = 0

    @property
    def url(self) -> str:
        return f"{'https' if self._tls else 'http'}://127.0.0.1:{self.port}"

    @property
    def count(self) -> int:
        """Requests so far."""
        return len(self.requests)

    def script(self, *answers: Answer, always: Answer | None = None) -> None:
        """What the next requests get, one after another, and what all others get."""
        self._script = deque(answers)
        if always is not None:
            self._always = always

    def trusting(self) -> ssl.SSLContext:
        """A client's context that trusts this server and no other."""
        return ssl.create_default_context(cadata=self._certificate)

    async def __aenter__(self) -> Self:
        # A backlog for the tests that open a thousand connections at once.
        self._server = await asyncio.start_server(
            self._serve, "127.0.0.1", 0, ssl=self._tls, backlog=2_048
        )
        self.port = self._server.sockets[0].getsockname()[1]
        return self

    async def __aexit__(self, *_: object) -> None:
        assert self._server is not None
        self._server.close()
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self._server.wait_closed()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        self.connections += 1
        try:
            # A client that goes away is what many tests are about. A cancelled task ends here too:
            # the callback of asyncio's streams would log it as an error.
            with contextlib.suppress(OSError, EOFError, asyncio.CancelledError):
                while (received := await _receive(reader, writer)) is not None:
                    exchange = Exchange(received, writer)
                    await self._answer(exchange)
                    if exchange.closing:
                        break
        finally:
            self._tasks.discard(task)
            writer.close()
            if task.cancelling():
                writer.transport.abort()

    async def _answer(self, exchange: Exchange) -> None:
        self.requests.append(exchange.received)
        answer = self._script.popleft() if self._script else self._always
        self.running += 1
        self.most = max(self.most, self.running)
        try:
            await answer(exchange)
        finally:
            self.running -= 1


async def _receive(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> Received | None:
    try:
        start = await reader.readexactly(1)
        if start == b"\x16":  # a client that wants TLS gets what most servers say to it
            writer.write(b"HTTP/1.1 400 Bad Request\r\nconnection: close\r\n\r\n")
            return None
        head = start + await reader.readuntil(b"\r\n\r\n")
    except asyncio.IncompleteReadError:
        return None
    first, *lines = head.decode("latin-1").split("\r\n")
    method, path, _ = first.split(" ", 2)
    headers = {}
    for line in lines:
        name, _, value = line.partition(":")
        headers[name.lower()] = value.strip()
    body = await reader.readexactly(int(headers.get("content-length", "0")))
    return Received(method, path, headers, body)


# Answers that are in order ----------------------------------------------------------------------


def respond(body: Any = b"", status: int = 200, headers: dict[str, str] | None = None) -> Answer:
    """A body, as bytes or to be written as JSON, with its length."""
    raw = body if isinstance(body, bytes) else json.dumps(body).encode()

    async def answer(exchange: Exchange) -> None:
        given = {"content-length": str(len(raw)), **(JSON if headers is None else headers)}
        await exchange.head(status, given)
        await exchange.write(raw)

    return answer


def chat(text: str = "Hello.", *, headers: dict[str, str] | None = None) -> Answer:
    """A Chat Completions answer."""
    return respond(chat_body(text), headers={**JSON, **(headers or {})})


def message(text: str = "Hello.", *, headers: dict[str, str] | None = None) -> Answer:
    """An Anthropic Messages answer."""
    return respond(message_body(text), headers={**JSON, **(headers or {})})


def stream(
    data: bytes,
    *,
    sizes: Sequence[int] = (),
    delay: float = 0.0,
    after: int | None = None,
    ending: Ending = "well",
    headers: dict[str, str] | None = None,
) -> Answer:
    """A chunked answer, in pieces of these sizes, over and over; if none are given, by event.

    Only `after` pieces are sent if it is given; then comes the ending.
    """
    pieces = list(_cut(data, sizes) if sizes else _events(data))[:after]

    async def answer(exchange: Exchange) -> None:
        await exchange.head(200, {"transfer-encoding": "chunked", **SSE, **(headers or {})})
        for piece in pieces:
            await exchange.chunk(piece)
            if delay:
                await asyncio.sleep(delay)
        if ending == "well":
            await exchange.chunk(b"")
        await exchange.end(ending)

    return answer


def chat_stream(text: str = "Hello.", **options: Any) -> Answer:
    """A streamed Chat Completions answer; options as of `stream`."""
    return stream(chat_events(text), **options)


def message_stream(text: str = "Hello.", **options: Any) -> Answer:
    """A streamed Anthropic Messages answer; options as of `stream`."""
    return stream(message_events(text), **options)


def large(megabytes: int) -> Answer:
    """A valid Chat Completions answer of that size."""
    return chat("x" * (megabytes * 1_000_000))


# Answers that are not ---------------------------------------------------------------------------


def failing(
    status: int, message: str = "Something went wrong.", *, type: str = "", **headers: str
) -> Answer:
    """An error as OpenAI writes it. ``retry_after="2"`` becomes a header, with a hyphen."""
    named = {key.replace("_", "-"): value for key, value in headers.items()}
    body = {"error": {"message": message, "type": type or "server_error", "code": None}}
    return respond(body, status, {**JSON, **named})


def rate_limited(retry_after: float | str | None = None) -> Answer:
    named = {} if retry_after is None else {"retry_after": str(retry_after)}
    return failing(429, "Too many requests.", type="requests", **named)


def overloaded() -> Answer:
    """As Anthropic says it."""
    error = {"type": "overloaded_error", "message": "Overloaded"}
    return respond({"type": "error", "error": error}, 529)


def page(status: int = 200) -> Answer:
    """Somebody else's web page."""
    return respond(
        b"<html><head><title>Welcome</title></head></html>", status, {"content-type": "text/html"}
    )


def hang(seconds: float = FOREVER) -> Answer:
    """Nothing at all, and then a reset."""

    async def answer(exchange: Exchange) -> None:
        await asyncio.sleep(seconds)
        exchange.reset()

    return answer


def slow(seconds: float, then: Answer) -> Answer:
    """Another answer, later."""

    async def answer(exchange: Exchange) -> None:
        await asyncio.sleep(seconds)
        await then(exchange)

    return answer


def slow_headers(interval: float = 0.05) -> Answer:
    """A byte now and then, for ever: never silent, never done."""

    async def answer(exchange: Exchange) -> None:
        await exchange.write(b"HTTP/1.1 200 OK\r\nx-slow: ")
        while True:
            await exchange.write(b"x")
            await asyncio.sleep(interval)

    return answer


def partial(
    body: bytes, *, length: int | None = None, ending: Ending = "cut", status: int = 200
) -> Answer:
    """A body and what its Content-Length claims (twice as much, if not given), then the ending."""
    claimed = 2 * len(body) if length is None else length

    async def answer(exchange: Exchange) -> None:
        await exchange.head(status, {**JSON, "content-length": str(claimed)})
        await exchange.write(body)
        await exchange.end(ending)

    return answer


def truncated_json() -> Answer:
    """Half of an answer, as if it were a whole one."""
    raw = json.dumps(chat_body()).encode()
    return respond(raw[: len(raw) // 2])


def wrong_length() -> Answer:
    """A whole answer that claims to be longer; the connection is closed after it."""
    return partial(json.dumps(chat_body()).encode())


def reset() -> Answer:
    """The connection is reset before anything is said."""

    async def answer(exchange: Exchange) -> None:
        exchange.reset()

    return answer


def reset_inside() -> Answer:
    """The connection is reset in the middle of an answer."""
    return partial(b'{"id": "chatcmpl-1", ', ending="reset")


def garbage() -> Answer:
    """Not HTTP."""

    async def answer(exchange: Exchange) -> None:
        await exchange.write(b"220 smtp.example ESMTP ready\r\n")
        exchange.close()

    return answer


# ------------------------------------------------------------------------------------------------


def _events(data: bytes) -> Iterable[bytes]:
    return (piece + b"\n\n" for piece in data.split(b"\n\n") if piece)


def _cut(data: bytes, sizes: Sequence[int]) -> Iterable[bytes]:
    start = 0
    for size in itertools.cycle(sizes):
        if start >= len(data):
            return
        yield data[start : start + size]
        start += size
