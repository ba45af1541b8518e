"""One request of a client and its answer, from start to end.

The body goes upstream as it came, and what is new is recorded beside that; or, beyond the budget,
it is recorded first, and a window goes upstream. The answer goes back as it arrives. Whatever fails
in our own part, the request still goes upstream unchanged: memory never breaks the agent (unless
`strict`).
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping, MutableMapping, Sequence
from typing import Any

import msgspec

from perdure.config import ProxyConfig
from perdure.core import clock
from perdure.core.errors import GatewayError, PerdureError, ProviderDown
from perdure.core.messages import Usage
from perdure.gateway.provider_errors import from_response
from perdure.gateway.providers import CallWire
from perdure.gateway.streams.sse import write_event
from perdure.server.proxy.answer_recorder import AnswerRecorder
from perdure.server.proxy.answer_rewrite import rewriter
from perdure.server.proxy.answer_tap import AnswerListener, AnswerTap
from perdure.server.proxy.begun_response import BegunResponse
from perdure.server.proxy.client_errors import error_body, error_event
from perdure.server.proxy.client_habits import parse
from perdure.server.proxy.client_request import ClientRequest
from perdure.server.proxy.conversation_windows import ConversationWindows, SentRequest
from perdure.server.proxy.conversations import agent_of_conversation
from perdure.server.proxy.gateway_upstream import GatewayUpstream
from perdure.server.proxy.proxy_report import ProviderCall, ProxyReport
from perdure.server.proxy.recorder import Recorder, Recording
from perdure.server.proxy.recording_backlog import RecordingBacklog
from perdure.server.proxy.recording_order import RecordingOrder, UnrecordedExchange
from perdure.server.proxy.request_window import is_elsewhere, is_too_long
from perdure.server.proxy.tool_loop import UNKNOWN_FORM, HidingListener, ToolLoop
from perdure.server.proxy.upstream import (
    RawHeaders,
    Upstreams,
    request_headers,
    response_headers,
    unpacker,
)
from perdure.sessions.session import Session

_log = logging.getLogger("perdure.proxy")

Connection = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]

_WIRES: dict[str, CallWire] = {
    "/v1/messages": "messages",
    "/v1/messages/count_tokens": "messages",
    "/v1/responses": "responses",
    "/v1/chat/completions": "chat",
}
#: What is recorded, and may be rewritten.
_CONVERSATIONS = frozenset({"main", "subagent"})
#: What is about a conversation, and no part of it.
_BESIDE = frozenset({"count", "compaction"})
#: Seconds in which a window has to be made; then the request goes upstream as it came.
_REWRITING = 30.0
#: The same, where the client's own history would do: nobody waits for a bank that is locked.
_LOOKING = 5.0
#: Headers of an answer that are about its bytes.
_OF_BODY = frozenset({b"content-length", b"content-encoding"})


class ProxyServices(msgspec.Struct, frozen=True):
    """The parts of a proxy."""

    settings: ProxyConfig
    upstreams: Upstreams | GatewayUpstream
    recorder: Recorder
    windows: ConversationWindows
    report: ProxyReport
    backlog: RecordingBacklog
    order: RecordingOrder


class ClientExchange:
    """One request and its answer."""

    def __init__(
        self, proxy: ProxyServices, connection: Connection, path: str, body: bytes, send: Send
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
        self._answer: AnswerRecorder | None = None
        self._start_recording: Callable[[], None] = lambda: None
        self._seen: ClientRequest | None = None  # if it is a request to a model
        self._call: ProviderCall | None = None  # unless the gateway counts it
        self._request: ClientRequest | None = None
        self._recorded: asyncio.Future[Recording] | None = None
        self._sent: SentRequest | None = None  # in place of what the client sent

    async def run(self) -> None:
        try:
            if await self._prepare():
                await self._forward()
        finally:
            self._end_answer()
            self._start_recording()
            self._note_call()

    async def _prepare(self) -> bool:
        """Record and rewrite what has to be before it is sent; False if it is refused."""
        try:
            request = self._parsed()
            if request is not None and await self._proxy.recorder.is_of_pause(request):
                await self._pass_in_pause(request)
                return True
            if request is not None and request.kind in _CONVERSATIONS:
                self._request = request
                self._recorded = self._recording(request)
                if self._proxy.settings.strict:
                    self._start_recording()
                    await self._recorded
                self._sent = await self._rewritten(request)
            elif request is not None and request.kind in _BESIDE:
                self._request = request
                self._sent = await self._counted(request)
        except Exception as exc:  # noqa: BLE001  # memory never breaks the agent
            self._proxy.report.failed(exc)
            if self._proxy.settings.strict:
                kind = "api_error" if self._wire == "messages" else "server_error"
                self._end_answer()
                await send_error(self._send, self._wire, 503, kind, _words(exc))
                return False
        return True

    async def _pass_in_pause(self, request: ClientRequest) -> None:
        """It goes upstream as it came, and nothing is kept of it, what it cost neither."""
        self._seen = None
        self._proxy.report.figures.paused += 1
        if request.kind in _CONVERSATIONS:
            await self._proxy.recorder.hear(request)

    @property
    def _asks_model(self) -> ClientRequest | None:
        """The request, if a model answers it: counting tokens is for nothing."""
        return self._seen if self._seen is not None and self._seen.kind != "count" else None

    def _end_answer(self) -> None:
        """No more will come of the answer. Before the client hears of that: it may come back at
        once.
        """
        if self._answer is not None:
            self._answer.finish(None)

    def _parsed(self) -> ClientRequest | None:
        """None for what is no request to a model. Raises `InvalidInput` if it cannot be read."""
        if self._connection["method"] != "POST" or self._path not in _WIRES:
            return None
        folder = self._allowed("folder")
        request = parse(self._wire, self._headers, self._path, self._body, folder)
        if agent := self._allowed("agent"):
            who = msgspec.structs.replace(request.id, agent=agent)
            request = msgspec.structs.replace(request, id=who)
        self._proxy.report.seen(request)
        self._seen = request
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
                # A new id of a client's may be that of a fork, whose beginning others wrote.
                opened = proxy.recorder.conversations.opened(request.id)
                known = bool(request.id.session) or opened is not None
                await proxy.order.wait(exchange, known=known)
                made = await proxy.recorder.record(request, answer)
            except Exception as exc:  # noqa: BLE001  # as above
                report.failed(exc)
                if not found.done():
                    found.set_exception(exc)
                return None
            if not found.done():
                found.set_result(made)
            return made

        def start() -> None:
            if self._start_recording is start:
                self._start_recording = lambda: None
                work = proxy.backlog.spawn(answer.run(recorded()))
                work.add_done_callback(lambda _: proxy.order.written(exchange))

        exchange = UnrecordedExchange(request, answer, found, start)
        self._answer, self._start_recording = answer, start
        proxy.order.arrived(exchange)
        return found

    def _allowed(self, what: str) -> str:
        """What the caller's token is for: its ``agent``, or its ``folder``; empty: any."""
        caller = self._connection.get("state", {}).get("perdure_caller")
        return getattr(caller, what, None) or ""

    async def _rewritten(self, request: ClientRequest) -> SentRequest | None:
        """What is sent in place of the client's body; None: nothing is."""
        windows = self._proxy.windows
        if not await windows.may_be_due(request) and not self._proxy.settings.via_gateway:
            return None
        self._start_recording()
        fits = await windows.count(request) <= windows.budget
        async with asyncio.timeout(_LOOKING if fits else _REWRITING):
            made = await self._made()
            if made is None or not made.turn:
                return None
            session = made.conversation.session
            if not await windows.is_due(request, session.name):
                return None
            return await windows.rewrite(request, session, made.places)

    async def _counted(self, request: ClientRequest) -> SentRequest | None:
        """What is counted is what would be sent; unless clients are told of their whole history."""
        if request.kind != "count" or self._proxy.settings.usage == "whole":
            return None
        return await self._beside(request)

    async def _beside(self, request: ClientRequest) -> SentRequest | None:
        """A request about a conversation with a window in place of its history, if the conversation
        has one. Nothing is recorded.
        """
        recorder, windows = self._proxy.recorder, self._proxy.windows
        known = recorder.conversations.opened(request.id)
        if known is None or not windows.has_window(known.session.name):
            return None
        async with asyncio.timeout(_REWRITING):
            await self._proxy.order.wait()
            made = await recorder.look(request)
            if made is None or not made.turn:
                return None
            session = made.conversation.session
            return await windows.rewrite(request, session, made.places, keep=False)

    async def _made(self) -> Recording | None:
        """The recording of the request; None if it failed, which was told."""
        assert self._recorded is not None  # noqa: S101 (for the type checker)
        await asyncio.wait({self._recorded})
        failed = self._recorded.exception()
        if failed is not None and self._proxy.settings.strict:
            raise failed
        return None if failed is not None else self._recorded.result()

    async def _forward(self) -> None:
        if self._asks_model and not self._proxy.settings.via_gateway:
            self._call = ProviderCall(self._asks_model, clock.now())
        try:
            response = await self._ask(self._body if self._sent is None else self._sent.body)
            smaller = await self._smaller(response)
            if smaller is not None:
                await response.close()
                self._sent = smaller
                response = await self._ask(smaller.body)
        except ProviderDown as exc:
            self._end_answer()
            self._count_failure(exc)
            await send_error(self._send, self._wire, 502, "api_error", exc.message)
            return
        import httpx2

        try:
            await self._pass_on(response)
        except httpx2.HTTPError as exc:
            # Without an end the server cuts the connection: the client sees what we saw.
            _log.warning("An answer broke off: %s", type(exc).__name__)
            self._count_failure(ProviderDown("The answer broke off."))
        finally:
            await response.close()

    async def _ask(self, body: bytes) -> BegunResponse:
        upstreams = self._proxy.upstreams
        query: bytes = self._connection.get("query_string", b"")
        address = upstreams.address(self._path, query, self._headers)
        headers = request_headers(self._connection["headers"])
        if body is not self._body:
            headers = [each for each in headers if each[0].lower() != b"content-encoding"]
        asked = self._connection["method"], address, headers, body, self._start_recording
        if isinstance(upstreams, GatewayUpstream):
            session = self._session()
            agent, name = ("", "") if session is None else (session.agent, session.name)
            return BegunResponse(await upstreams.send(*asked, agent=agent, session=name))
        # What the provider waits for goes first: the bank is written to while it thinks.
        return BegunResponse(await upstreams.send(*asked))

    def _session(self) -> Session | None:
        """The session of the request, if it is recorded."""
        made = self._recorded
        if made is None or not made.done() or made.exception() is not None:
            return None
        return made.result().conversation.session

    async def _smaller(self, response: BegunResponse) -> SentRequest | None:
        """What to send after a refusal; None if it was none because of the prompt's length."""
        request, windows = self._request, self._proxy.windows
        if request is None or is_elsewhere(request):
            return None
        try:
            refusal = await self._refusal(response)
            if refusal is None:
                return None
            if self._recorded is None:
                return await self._beside(request)
            async with asyncio.timeout(_REWRITING):
                made = await self._made()
                if made is None or not made.turn:
                    return None
                session = made.conversation.session
                sent = windows.tokens(request) if self._sent is None else self._sent.tokens
                windows.shrink(session.name, request, sent, refusal)
                return await windows.rewrite(request, session, made.places)
        except Exception as exc:  # noqa: BLE001  # the client gets the refusal, as without us
            self._proxy.report.failed(exc)
            return None

    async def _refusal(self, response: BegunResponse) -> bytes | None:
        """The words in which a provider refused the prompt as too long, if it did."""
        status = response.status
        if status >= 400:
            raw = await response.read()
            plain = unpacker(response.headers.get("content-encoding", ""))(raw)
        elif self._wire == "responses" and _is_stream(response):
            status, error = 400, await response.failure()
            plain = msgspec.json.encode({"error": error}) if error is not None else b""
        else:
            return None
        return plain if plain and is_too_long(status, response.headers, plain) else None

    async def _pass_on(self, response: BegunResponse) -> None:
        headers = response_headers(response.headers.raw)
        note = self._proxy.report.note
        if note:
            headers.append((b"x-perdure-note", note.encode("ascii", "replace")))
        is_answer = 200 <= response.status < 300
        if response.status >= 400:
            self._count_failure(
                from_response(response.status, response.headers, b"", where="upstream")
            )
        if self._call is not None:
            self._call.streamed = _is_stream(response)
        sent = self._sent if is_answer and self._answer is not None else None
        if sent is not None and (sent.tools or self._unsent):
            await self._pass_rewritten(response, headers, sent)
            return
        start = {"type": "http.response.start", "status": response.status, "headers": headers}
        tap: AnswerTap | None = None
        if is_answer and self._asks_model:
            tap = self._tap(response.headers.get("content-encoding", ""), response, self._answer)
        else:
            self._end_answer()
        length = response.headers.get("content-length", "")
        left = int(length) if length.isdecimal() else -1
        try:
            await self._send(start)
            async for chunk in response.aiter_raw():
                left -= len(chunk)
                if tap is not None:
                    tap.feed(chunk)
                    if not left:
                        tap.end()  # the client knows, too
                await self._pass_piece(chunk)
            if tap is not None:
                tap.end()
            await self._send({"type": "http.response.body", "body": b""})
        finally:
            if tap is not None:
                tap.leave()
                self._count(tap.usage, tap)

    async def _pass_rewritten(
        self, response: BegunResponse, headers: RawHeaders, sent: SentRequest
    ) -> None:
        """Pass an answer on that the client does not see as it is: calls of ours are answered, and
        its usage is told as configured.
        """
        import httpx2

        answer, session = self._answer, self._session()
        assert answer is not None  # noqa: S101 (a request that is rewritten is recorded)
        assert session is not None  # noqa: S101 (as above)

        async def run(name: str, arguments: str) -> str:
            try:
                return await session.run_tool(name, arguments)
            except Exception as exc:  # noqa: BLE001  # the model goes on without
                self._proxy.report.failed(exc)
                return "The memory cannot be reached right now. Go on without."

        async def resend(items: Sequence[msgspec.Raw]) -> BegunResponse:
            return await self._ask(sent.with_more(items))

        loop = ToolLoop(rewriter(self._wire, sent.tools, self._unsent), run, resend)
        windows = self._proxy.windows
        listener = HidingListener(
            loop, answer, lambda: windows.hide(session.name, sent.request, loop, answer)
        )
        tap = self._tap("", response, listener)
        kept = [each for each in headers if each[0].lower() not in _OF_BODY]
        try:
            if _is_stream(response):
                await self._send({"type": "http.response.start", "status": 200, "headers": kept})
                try:
                    async for piece in loop.stream(response):
                        tap.feed(piece)
                        await self._pass_piece(piece)
                    tap.end()
                except GatewayError as exc:
                    tap.leave()
                    await self._pass_piece(write_event(error_event(self._wire, exc)))
                except UNKNOWN_FORM as exc:
                    self._proxy.report.failed(exc)
                    tap.leave()
                    await self._pass_piece(write_event(error_event(self._wire, exc)))
                await self._send({"type": "http.response.body", "body": b""})
            else:
                try:
                    status, body = await loop.body(response)
                except (GatewayError, httpx2.HTTPError) as exc:  # nothing was sent yet
                    said = exc.message if isinstance(exc, GatewayError) else type(exc).__name__
                    broken = exc if isinstance(exc, GatewayError) else ProviderDown(said)
                    self._count_failure(broken)
                    told = error_body(self._wire, "api_error", said)
                    status, body = 502, msgspec.json.encode(told)
                if status < 300:
                    tap.feed(body)
                    tap.end()
                tap.leave()
                await send_answer(self._send, status, body, kept)
        finally:
            tap.leave()
            self._count(loop.usage, tap)

    def _count(self, usage: Usage | None, tap: AnswerTap) -> None:
        """Count an answer, of which as much was read as came."""
        request, call = self._seen, self._call
        assert request is not None  # noqa: S101 (only its answers are tapped)
        left_out, sent = (0, 0) if self._sent is None else (self._sent.unsent, self._sent.tokens)
        if usage is None and not sent:
            sent = self._proxy.windows.tokens(request)
        self._proxy.report.answered(usage, request, sent=sent, left_out=left_out)
        if call is not None:
            call.usage = usage
            if tap.error is not None:
                call.error = tap.error.kind if isinstance(tap.error, GatewayError) else ""
            elif tap.is_complete:
                call.error = ""

    def _count_failure(self, exc: GatewayError) -> None:
        if self._seen is not None:
            self._proxy.report.figures.failed_upstream += 1
        if self._call is not None:
            self._call.error = exc.kind

    def _note_call(self) -> None:
        """As soon as it is known whose it is."""
        call, recorded = self._call, self._recorded
        if call is None:
            return
        call.end()

        def note(_: object = None) -> None:
            session = self._session()
            agent = agent_of_conversation(call.request.id) if session is None else session.agent
            try:
                self._proxy.report.ended(call, agent, "" if session is None else session.name)
            except PerdureError as exc:
                self._proxy.report.failed(exc)

        if recorded is None or recorded.done():
            note()
        else:
            recorded.add_done_callback(note)

    @property
    def _unsent(self) -> int:
        """Tokens that the client is told in addition to what was sent."""
        whole = self._proxy.settings.usage == "whole"
        return self._sent.unsent if whole and self._sent is not None else 0

    def _tap(
        self, encoding: str, response: BegunResponse, listener: AnswerListener | None
    ) -> AnswerTap:
        """Without a listener only what it took is read."""
        kind = response.headers.get("content-type", "")
        failed = self._proxy.report.failed if listener is not None else lambda _: None
        return AnswerTap(self._wire, kind, encoding, listener, failed)

    async def _pass_piece(self, piece: bytes) -> None:
        if self._call is not None:
            self._call.arrived()
        await self._send({"type": "http.response.body", "body": piece, "more_body": True})


def _is_stream(response: BegunResponse) -> bool:
    kind: str = response.headers.get("content-type", "")
    return kind.startswith("text/event-stream")


def _words(exc: Exception) -> str:
    return f"Perdure could not record this request: {type(exc).__name__}."


async def send_error(send: Send, wire: CallWire, status: int, kind: str, message: str) -> None:
    await send_answer(send, status, msgspec.json.encode(error_body(wire, kind, message)))


async def send_answer(send: Send, status: int, body: bytes, more: RawHeaders | None = None) -> None:
    headers = [
        *(more or [(b"content-type", b"application/json")]),
        (b"content-length", str(len(body)).encode()),
    ]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})
