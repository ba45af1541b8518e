"""One request of a client from start to end.

The body goes upstream as it came; the answer goes back as it arrives. What is new is recorded
beside that. Whatever fails in our own part, the request still goes upstream unchanged: memory never
breaks the agent (unless `strict`).
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Awaitable, Callable, Mapping, MutableMapping
from typing import TYPE_CHECKING, Any

import msgspec

from perdure.bank.bank import Bank
from perdure.config import ProxyConfig
from perdure.core.errors import InvalidInput, ProviderDown
from perdure.gateway.providers import CallWire
from perdure.server.proxy.answer_recorder import AnswerRecorder
from perdure.server.proxy.answer_tap import AnswerTap
from perdure.server.proxy.client_habits import parse
from perdure.server.proxy.client_request import ClientRequest
from perdure.server.proxy.proxy_report import ProxyReport
from perdure.server.proxy.recorder import Recorder, Recording
from perdure.server.proxy.upstream import Upstreams, request_headers, response_headers

if TYPE_CHECKING:
    import httpx2

Connection = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]

#: The path of ours in a request's, which may have a token in front.
_path = re.compile(r"(?:/t/[^/]+)?(/v1(?:/.*)?)").fullmatch
_WIRES: dict[str, CallWire] = {
    "/v1/messages": "messages",
    "/v1/messages/count_tokens": "messages",
    "/v1/responses": "responses",
    "/v1/chat/completions": "chat",
}
#: What is recorded, and may be rewritten.
_CONVERSATIONS = frozenset({"main", "subagent"})
#: Seconds that answers get to be written when the proxy is closed.
_PATIENCE = 10.0


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
        self.upstreams = Upstreams({str(name): url for name, url in settings.upstreams.items()})
        self.recorder = Recorder(bank)
        self.report = ProxyReport(bank.config.gateway.prices)
        self._tasks: set[asyncio.Task[Any]] = set()

    async def close(self) -> None:
        """What has arrived is written, and connections end."""
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=_PATIENCE)
        for task in self._tasks:
            task.cancel()
        await self.upstreams.close()

    async def __call__(self, connection: Connection, receive: Receive, send: Send) -> None:
        if connection["type"] == "websocket":
            await _refuse_socket(receive, send)
            return
        raw: bytes = connection.get("raw_path") or connection["path"].encode()
        found = _path(raw.partition(b"?")[0].decode("latin-1"))
        if found is None:
            body = error_body("chat", "not_found_error", "There is no such path.")
            await _answer(send, 404, body)
            return
        said = await _read(receive)
        if said is None:
            return  # the client left before it had said all
        exchange = asyncio.ensure_future(_Exchange(self, connection, found[1], said, send).run())
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

    def spawn(self, work: Awaitable[Any]) -> asyncio.Task[Any]:
        """Do something that goes on when its request has ended."""
        task = asyncio.ensure_future(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task


class _Exchange:
    """One request and its answer."""

    def __init__(
        self, proxy: Proxy, connection: Connection, path: str, body: bytes, send: Send
    ) -> None:
        self._proxy = proxy
        self._connection = connection
        self._path = path
        self._body = body
        self._send = send
        self._wire: CallWire = _WIRES.get(path, "chat")
        self._headers: Mapping[str, str] = {
            name.decode("latin-1").lower(): value.decode("latin-1")
            for name, value in connection["headers"]
        }
        self._request: ClientRequest | None = None
        self._answer: AnswerRecorder | None = None
        self._start_recording: Callable[[], None] = lambda: None

    async def run(self) -> None:
        try:
            request = self._request = self._parsed()
            if request is not None and request.kind in _CONVERSATIONS:
                recording = self._recording(request)
                if self._proxy.settings.strict:
                    self._start_recording()
                    await recording
        except Exception as exc:  # noqa: BLE001  # memory never breaks the agent
            self._proxy.report.failed(exc)
            if self._proxy.settings.strict:
                kind = "api_error" if self._wire == "messages" else "server_error"
                await _answer(self._send, 503, error_body(self._wire, kind, _words(exc)))
                return
        try:
            await self._forward(self._body)
        finally:
            if self._answer is not None:
                self._answer.finish(None)
            self._start_recording()

    def _parsed(self) -> ClientRequest | None:
        """None for what can only be passed on."""
        if self._connection["method"] != "POST" or self._path not in _WIRES:
            return None
        try:
            request = parse(self._wire, self._headers, self._path, self._body)
        except InvalidInput:
            return None
        self._proxy.report.seen(request)
        return request

    def _recording(self, request: ClientRequest) -> asyncio.Future[Recording]:
        """Of the request, and then of its answer; begins with `_start_recording`. In strict mode it
        raises what went wrong.
        """
        proxy, report = self._proxy, self._proxy.report
        found: asyncio.Future[Recording] = asyncio.get_running_loop().create_future()
        found.add_done_callback(lambda done: done.cancelled() or done.exception())
        answer = AnswerRecorder(proxy.recorder.items, request.model, report.failed)

        async def recorded() -> Recording | None:
            try:
                made = await proxy.recorder.record(request, answer, self._agent())
            except Exception as exc:  # noqa: BLE001  # as above
                report.failed(exc)
                if not found.done():
                    found.set_exception(exc)
                return None
            if not found.done():
                found.set_result(made)
            return made

        def start() -> None:
            self._start_recording = lambda: None
            proxy.spawn(answer.run(recorded()))

        self._answer, self._start_recording = answer, start
        return found

    def _agent(self) -> str | None:
        """The only agent that the caller's token allows."""
        caller = self._connection.get("state", {}).get("perdure_caller")
        agent: str | None = getattr(caller, "agent", None)
        return agent

    async def _forward(self, body: bytes) -> None:
        upstreams = self._proxy.upstreams
        query: bytes = self._connection.get("query_string", b"")
        address = upstreams.address(self._path, query, self._headers)
        headers = request_headers(self._connection["headers"])
        try:
            # What the provider waits for goes first: the bank is written to while it thinks.
            response = await upstreams.send(
                self._connection["method"], address, headers, body, self._start_recording
            )
        except ProviderDown as exc:
            await _answer(self._send, 502, error_body(self._wire, "api_error", exc.message))
            return
        try:
            await self._pass_on(response)
        finally:
            await response.aclose()

    async def _pass_on(self, response: httpx2.Response) -> None:
        headers = response_headers(response.headers.raw)
        note = self._proxy.report.note
        if note:
            headers.append((b"x-perdure-note", note.encode("ascii", "replace")))
        start = {"type": "http.response.start", "status": response.status_code, "headers": headers}
        tap: AnswerTap | None = None
        if self._answer is not None and 200 <= response.status_code < 300:
            tap = AnswerTap(
                self._wire,
                response.headers.get("content-type", ""),
                response.headers.get("content-encoding", ""),
                self._answer,
                self._proxy.report.failed,
            )
        try:
            await self._send(start)
            async for chunk in response.aiter_raw():
                if tap is not None:
                    tap.feed(chunk)
                await self._send({"type": "http.response.body", "body": chunk, "more_body": True})
            if tap is not None:
                tap.end()
            await self._send({"type": "http.response.body", "body": b""})
        finally:
            if tap is not None:
                tap.leave()
                self._proxy.report.answered(tap.usage, self._request)


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


def _words(exc: Exception) -> str:
    return f"Perdure could not record this request: {type(exc).__name__}."


async def _answer(send: Send, status: int, body: bytes) -> None:
    headers = [
        (b"content-type", b"application/json"),
        (b"content-length", str(len(body)).encode()),
    ]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})
