"""The server of a scripted model: HTTP/1.1 with keep-alive."""

from __future__ import annotations

import asyncio
import inspect
import socket
import struct
from collections.abc import Iterator
from http import HTTPStatus
from types import TracebackType
from typing import Any, Self

import msgspec

from perdure.config import ProviderConfig
from perdure.gateway.providers import CallWire
from perdure.testing.model import wire_answers
from perdure.testing.model.batch_server import BatchFaults, BatchServer, HttpAnswer
from perdure.testing.model.script import (
    Kind,
    Line,
    ReceivedRequest,
    Script,
    ScriptedAnswer,
    ScriptedFault,
    error_body,
)

_KINDS: dict[str, Kind] = {
    "/chat/completions": "chat",
    "/responses": "responses",
    "/messages": "messages",
    "/embeddings": "embeddings",
}
_ENDED = ScriptedFault(
    status=500, message="The script has ended: there were more requests than lines."
)


class ScriptedModel:
    """A model on loopback that follows a script; see `perdure.testing.model`.

    The script is one line for all requests (a text, a `ScriptedAnswer`, a `ScriptedFault`), a list
    of lines in the order of requests, or a function of the request. A request after the last line
    gets status 500. With a `key`, requests without it get 401. Keeps every request in memory. What
    a script raises drops the connection, and is raised again at the end of the block.
    """

    def __init__(
        self,
        script: Script = "Hello.",
        *,
        key: str | None = None,
        models: tuple[str, ...] = ("scripted",),
        dimension: int = 8,
        batch_faults: BatchFaults | None = None,
    ) -> None:
        self._script = script
        self._lines: Iterator[Line] | None = None
        if not isinstance(script, str | ScriptedAnswer | ScriptedFault) and not callable(script):
            self._lines = iter(script)
        self._key = key
        self._models = models
        self._dimension = dimension
        self._server: asyncio.Server | None = None
        self._busy: set[asyncio.Task[None]] = set()
        self._errors: list[BaseException] = []
        #: Its batch modes.
        self.batches = BatchServer(self._answer_item, batch_faults)
        #: Requests in the order in which they arrived; those of a batch as it is worked on.
        self.requests: list[ReceivedRequest] = []
        #: Connections that were made, and those that are open.
        self.connections = 0
        self.open_connections = 0

    async def __aenter__(self) -> Self:
        self._server = await asyncio.start_server(
            self._serve, "127.0.0.1", 0, backlog=4_096, limit=1 << 18
        )
        self._port = self._server.sockets[0].getsockname()[1]
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        assert self._server is not None
        self._server.close()
        await asyncio.sleep(0)  # a connection that was accepted last has its task begun by now
        while self._busy:
            for task in self._busy:
                task.cancel()
            await asyncio.gather(*self._busy, return_exceptions=True)
        await self._server.wait_closed()
        if self._errors and error is None:
            raise self._errors[0]

    @property
    def url(self) -> str:
        """Base URL of its API; stays known after it was closed."""
        return f"http://127.0.0.1:{self._port}/v1"

    def provider_config(self, wire: CallWire = "chat", **changes: Any) -> ProviderConfig:
        """For ``[gateway.providers]``."""
        settings = {"wire": wire, "base_url": self.url, "embeddings": "/embeddings", **changes}
        return ProviderConfig(**settings)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._busy.add(task)
        task.add_done_callback(self._ended)
        self.connections += 1
        self.open_connections += 1
        try:
            while await self._exchange(reader, writer):
                await writer.drain()
        except (ConnectionError, asyncio.IncompleteReadError, asyncio.LimitOverrunError):
            pass  # the client left, or does not speak HTTP
        except asyncio.CancelledError:
            pass  # the server is being closed
        finally:
            self.open_connections -= 1
            writer.close()

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._busy.discard(task)
        error = task.exception()
        if error is not None:
            self._errors.append(error)

    async def _exchange(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        """Returns whether the connection can be used again."""
        head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
        first, *lines = head.rstrip("\r\n").split("\r\n")
        pairs = (line.partition(":") for line in lines)
        headers = {name.strip().lower(): value.strip() for name, _, value in pairs}
        if headers.get("expect") == "100-continue":
            writer.write(b"HTTP/1.1 100 Continue\r\n\r\n")
        raw = await _body(reader, headers)
        method, _, target = first.rpartition(" ")[0].partition(" ")
        path = target.partition("?")[0]
        kind = next((k for end, k in _KINDS.items() if path.endswith(end)), None)
        again = headers.get("connection", "").lower() != "close"
        if method == "GET" and path.endswith("/models"):
            listed = [{"id": name, "object": "model", "type": "model"} for name in self._models]
            _answer(writer, 200, {"object": "list", "data": listed, "has_more": False})
            return again
        if kind is None and self._knows(headers):
            batched = await self.batches.serve(method, target, headers, raw)
            if batched is not None:
                return _send_batched(writer, batched) and again
        if kind is None or method != "POST":
            _answer(writer, 404, error_body("chat", 404, f"There is no {method} {path}."))
            return again
        try:
            body = msgspec.json.decode(raw, type=dict[str, Any])
        except (msgspec.MsgspecError, UnicodeDecodeError) as exc:
            _answer(writer, 400, error_body(kind, 400, f"The body is no JSON object: {exc}"))
            return again
        request = ReceivedRequest(kind, path, headers, body, len(self.requests))
        self.requests.append(request)
        return await self._reply(request, reader, writer) and again

    async def _reply(
        self, request: ReceivedRequest, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> bool:
        line = await self._line(request)
        await asyncio.sleep(line.delay)
        if isinstance(line, ScriptedFault):
            return await self._fail(line, request, reader, writer)
        if request.kind == "embeddings":
            given = request.body.get("input", [])
            texts = [given] if isinstance(given, str) else [str(text) for text in given]
            _answer(writer, 200, wire_answers.vectors(texts, self._dimension, request))
        elif request.stream:
            _begin_stream(writer, line)
            await _stream(writer, line, request)
            writer.write(_chunk(wire_answers.last_words(request)) + b"0\r\n\r\n")
        else:
            _answer(writer, 200, wire_answers.whole(line, request), line.headers)
        return True

    async def _line(self, request: ReceivedRequest) -> ScriptedAnswer | ScriptedFault:
        if not self._knows(request.headers):
            return ScriptedFault(status=401, message="The key is missing or wrong.")
        return await self._speak(request)

    def _knows(self, headers: dict[str, str]) -> bool:
        return self._key is None or self._key in (
            headers.get("authorization", "").removeprefix("Bearer "),
            headers.get("x-api-key"),
        )

    async def _answer_item(self, request: ReceivedRequest) -> ScriptedAnswer | ScriptedFault:
        self.requests.append(request)
        return await self._speak(request)

    async def _speak(self, request: ReceivedRequest) -> ScriptedAnswer | ScriptedFault:
        script = self._script
        line: Line
        if isinstance(script, str | ScriptedAnswer | ScriptedFault):
            line = script
        elif callable(script):
            said = script(request)
            line = await said if inspect.isawaitable(said) else said
        elif request.kind == "embeddings":
            line = ""
        else:
            assert self._lines is not None
            line = next(self._lines, _ENDED)
        return ScriptedAnswer(line) if isinstance(line, str) else line

    async def _fail(
        self,
        fault: ScriptedFault,
        request: ReceivedRequest,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
    ) -> bool:
        streamed = request.stream and fault.after > 0
        if streamed:
            _begin_stream(writer, fault.answer)
            await _stream(writer, fault.answer, request, fault.after)
        match fault.how:
            case "status" if streamed:
                name, data = wire_answers.fault_event(fault, request)
                writer.write(_chunk(_event(name, data)) + b"0\r\n\r\n")
                return True
            case "status":
                body = error_body(request.kind, fault.status, fault.message)
                _answer(writer, fault.status, body, fault.headers)
                return True
            case "hang":
                await writer.drain()
                await reader.read()
            case "truncated" if not request.stream:
                whole = msgspec.json.encode(wire_answers.whole(fault.answer, request))
                writer.write(_head(200, len(whole), {}) + whole[: len(whole) // 2])
            case "truncated" if not streamed:
                _begin_stream(writer, fault.answer)
            case "reset":
                await writer.drain()
                if streamed:
                    await asyncio.sleep(0.01)  # a reset may overtake what was sent before it
                connection: socket.socket = writer.get_extra_info("socket")
                connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
                writer.transport.abort()
        return False


async def _body(reader: asyncio.StreamReader, headers: dict[str, str]) -> bytes:
    if "chunked" not in headers.get("transfer-encoding", ""):
        length = headers.get("content-length", "0")
        return await reader.readexactly(int(length) if length.isdecimal() else 0)
    parts = []
    while size := int((await reader.readline()).split(b";")[0], 16):
        parts.append(await reader.readexactly(size))
        await reader.readline()
    await reader.readline()
    return b"".join(parts)


def _answer(
    writer: asyncio.StreamWriter, status: int, body: Any, headers: dict[str, str] | None = None
) -> None:
    raw = msgspec.json.encode(body)
    writer.write(_head(status, len(raw), headers or {}) + raw)


def _send_batched(writer: asyncio.StreamWriter, answer: HttpAnswer) -> bool:
    if answer.body is None:
        return False
    head = _head(answer.status, len(answer.body), {"content-type": answer.kind})
    writer.write(head + answer.body)
    return True


def _head(status: int, length: int | None, headers: dict[str, str]) -> bytes:
    reason = HTTPStatus(status).phrase if status in set(HTTPStatus) else "Unknown"
    if length is None:
        own = {"content-type": "text/event-stream", "transfer-encoding": "chunked"}
    else:
        own = {"content-type": "application/json", "content-length": str(length)}
    lines = [f"{name}: {value}" for name, value in {**own, **headers}.items()]
    return "\r\n".join([f"HTTP/1.1 {status} {reason}", *lines, "", ""]).encode("latin-1")


def _begin_stream(writer: asyncio.StreamWriter, answer: ScriptedAnswer) -> None:
    writer.write(_head(200, None, answer.headers))


async def _stream(
    writer: asyncio.StreamWriter,
    answer: ScriptedAnswer,
    request: ReceivedRequest,
    count: int | None = None,
) -> None:
    for at, (name, data) in enumerate(wire_answers.events(answer, request)):
        if at == count:
            return
        if answer.chunk_delay:
            await asyncio.sleep(answer.chunk_delay)
        writer.write(_chunk(_event(name, data)))
        await writer.drain()


def _event(name: str, data: dict[str, Any]) -> bytes:
    first = f"event: {name}\n".encode() if name else b""
    return first + b"data: " + msgspec.json.encode(data) + b"\n\n"


def _chunk(data: bytes) -> bytes:
    return b"%x\r\n%b\r\n" % (len(data), data) if data else b""
