"""History tools that are answered inside the proxy, so that the client never sees them.

They are offered beside the client's own tools. What the model calls of them is held back and
answered here. If nothing else was called, another request follows at once, and the client gets one
answer made of both. If the client has calls to answer, too, it gets only those; with its next
request, what it did not see is put back where it was (`Restored`).
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping, Sequence
from hashlib import sha256
from typing import Any, Protocol, TypeAlias

import msgspec

from perdure.context.history_tools import definitions
from perdure.core.errors import BadAnswer, GatewayError
from perdure.core.messages import Message, ToolCall, Usage, event
from perdure.gateway.calls import Delta
from perdure.gateway.providers import CallWire
from perdure.gateway.streams.sse import EventParser
from perdure.server.proxy.answer_rewrite import AnswerRewriter, AnswerStep
from perdure.server.proxy.answer_tap import AnswerListener
from perdure.server.proxy.client_request import ClientRequest, decode_json
from perdure.wire.plain import Item

Raw: TypeAlias = msgspec.Raw
#: Answers a call of ours: its name and its arguments.
RunTool: TypeAlias = Callable[[str, str], Awaitable[str]]

#: How often a model may look something up in one answer; and after it was told so.
MOST_ROUNDS, _GRACE = 8, 2
_ENOUGH = "That were enough look-ups for one answer. Go on with what you have."
#: What reading an answer raises that is JSON, and in no form we know.
UNKNOWN_FORM = (AttributeError, LookupError, TypeError, ValueError)
#: The kind of event in the log that holds what the client did not see.
HIDDEN = "history-tools"


class Answer(Protocol):
    """A provider's answer to one request: see `BegunResponse`."""

    @property
    def status(self) -> int: ...

    def chunks(self) -> AsyncIterator[bytes]:
        """Its body, without a content encoding."""

    async def close(self) -> None: ...


#: Sends the request again with these items behind the others.
Resend: TypeAlias = Callable[[Sequence[Raw]], Awaitable[Answer]]


class HiddenItems(msgspec.Struct, frozen=True):
    """The items that stand for a reply of which the client saw a part."""

    items: tuple[Raw, ...]
    #: Of what the client saw: `seen_digest`.
    seen: str


class ToolLoop:
    """One answer to a client, made of as many upstream requests as the model's look-ups take."""

    def __init__(self, rewriter: AnswerRewriter, run: RunTool, resend: Resend) -> None:
        self._rewriter, self._run, self._resend = rewriter, run, resend
        self._sent = list[Raw]()  # behind the items of the request
        self._rounds = 0
        self._used = list[Usage]()
        self._calls = list[ToolCall]()
        #: What the client sees, a message for each request.
        self.seen = list[Message]()

    @property
    def usage(self) -> Usage | None:
        """Of all requests together, as the provider counted."""
        return total_usage(self._used)

    @property
    def calls(self) -> Sequence[ToolCall]:
        """The calls of ours that were answered."""
        return self._calls

    @property
    def hidden(self) -> Sequence[Raw]:
        """The items in place of what the client saw; empty if it saw all."""
        return self._sent if self._calls else ()

    async def stream(self, answer: Answer) -> AsyncIterator[bytes]:
        """The events for the client. Raises `GatewayError` if an answer breaks off, or tells of an
        error.
        """
        rewriter = self._rewriter
        while True:
            try:
                if answer.status >= 400:
                    raise BadAnswer("The provider refused to go on after a look-up.")
                parser = EventParser()
                async for chunk in answer.chunks():
                    passed = b"".join([rewriter.feed(event) for event in parser.feed(chunk)])
                    if passed:
                        yield passed
                if passed := b"".join([rewriter.feed(event) for event in parser.close()]):
                    yield passed
                step = rewriter.ended()
            finally:
                await answer.close()
            if not await self._goes_on(step):
                yield rewriter.last(asks=step.mixed)
                return
            rewriter.step()
            answer = await self._resend(self._sent)

    async def body(self, answer: Answer) -> tuple[int, bytes]:
        """The status and the body for the client; of an error, or of what cannot be read, as it
        came.
        """
        while True:
            try:
                raw = b"".join([chunk async for chunk in answer.chunks()])
            finally:
                await answer.close()
            if answer.status >= 400:
                return answer.status, raw
            try:
                step = self._rewriter.read(decode_json(raw))
            except (GatewayError, *UNKNOWN_FORM):
                return answer.status, raw  # the client may make something of it
            if not await self._goes_on(step):
                return 200, msgspec.json.encode(self._rewriter.whole(asks=step.mixed))
            answer = await self._resend(self._sent)

    async def _goes_on(self, step: AnswerStep) -> bool:
        """Answer the calls of ours; whether another request follows."""
        if step.message.usage is not None:
            self._used.append(step.message.usage)
        hidden = {call.id for call in step.ours}
        parts = [p for p in step.message.parts if not (isinstance(p, ToolCall) and p.id in hidden)]
        self.seen.append(Message("assistant", tuple(parts)))
        self._sent += _raw(step.items)
        if not step.ours or not step.asks:
            return False
        self._rounds += 1
        answers = list[tuple[ToolCall, str]]()
        for call in step.ours:
            text = _ENOUGH
            if self._rounds <= MOST_ROUNDS:
                text = await self._run(call.name, call.arguments)
            answers.append((call, text))
        self._calls += step.ours
        self._sent += _raw(self._rewriter.results(answers))
        return not step.mixed and self._rounds < MOST_ROUNDS + _GRACE


class HidingListener:
    """Tells a recorder what the client saw, with what all requests of the answer took."""

    def __init__(self, loop: ToolLoop, listener: AnswerListener, hide: Callable[[], None]) -> None:
        self._loop, self._listener, self._hide = loop, listener, hide

    def grow(self, deltas: list[Delta], /) -> None:
        self._listener.grow(deltas)

    def finish(self, message: Message | None, /) -> None:
        if message is not None:
            self._hide()
            used = self._loop.usage or message.usage
            message = msgspec.structs.replace(message, usage=used)
        self._listener.finish(message)


def offered_names(request: ClientRequest) -> frozenset[str]:
    """The tools of ours that go with a request: none where the client's history is kept at the
    provider, or where several answers are asked for; none with the name of one of its own.
    """
    if request.wire == "responses" and bytes(request.fields.get("store", b"true")) != b"false":
        return frozenset()
    if request.wire == "chat" and request.field("n") not in {None, 1}:
        return frozenset()
    if _choice(request.field("tool_choice")) == "none":
        return frozenset()
    own = {_name(tool) for tool in request.field("tools") or ()}
    return frozenset(_name(tool) for tool in definitions(request.wire)) - own


def with_tools(request: ClientRequest, names: frozenset[str]) -> Raw | None:
    """The field ``tools`` with ours behind the client's own, which stay as they are."""
    ours = [tool for tool in definitions(request.wire) if _name(tool) in names]
    if not ours:
        return request.fields.get("tools")
    added = msgspec.json.encode(ours)
    own = bytes(request.fields.get("tools", b"[]")).strip()
    if own in {b"[]", b"null", b""}:
        return Raw(added)
    return Raw(own[:-1].rstrip() + b"," + added[1:])


def seen_digest(messages: Iterable[Message]) -> str:
    """Of a reply as a client saw it: the ids of its calls and its words."""
    said = list(messages)
    calls = [call.id for message in said for call in message.calls]
    words = "".join("".join(message.text.split()) for message in said)
    return sha256("\0".join((*calls, words)).encode("utf-8", "replace")).hexdigest()[:32]


def hidden_event(hidden: HiddenItems, wire: CallWire, calls: Sequence[ToolCall]) -> Message:
    """What is written to the log, in front of the reply."""
    text = "\n".join(f"{call.name}({call.arguments})" for call in calls)
    items = [msgspec.json.decode(raw) for raw in hidden.items]
    return event(HIDDEN, text, wire=wire, items=items, seen=hidden.seen)


def hidden_in(message: Message, wire: CallWire) -> HiddenItems | None:
    """What an event of the log holds for this format."""
    said: Mapping[str, Any] = message.native.get("event", {})
    if message.role != "event" or message.name != HIDDEN or said.get("wire") != wire:
        return None
    return HiddenItems(tuple(_raw(said["items"])), said["seen"])


def total_usage(used: Sequence[Usage]) -> Usage | None:
    if not used:
        return None
    if len(used) == 1:
        return used[0]

    def added(name: str) -> int | None:
        counts = [getattr(each, name) for each in used]
        return None if all(count is None for count in counts) else sum(c or 0 for c in counts)

    return Usage(
        input=added("input"),
        output=added("output"),
        cache_read=added("cache_read"),
        cache_write=added("cache_write"),
        reasoning=added("reasoning"),
    )


def _raw(items: Iterable[Item]) -> list[Raw]:
    return [Raw(msgspec.json.encode(item)) for item in items]


def _name(tool: Any) -> str:
    if not isinstance(tool, dict):
        return ""
    said = tool.get("function")
    return str((said if isinstance(said, dict) else tool).get("name", ""))


def _choice(given: Any) -> str:
    if isinstance(given, dict):
        return str(given.get("type", ""))
    return given if isinstance(given, str) else ""
