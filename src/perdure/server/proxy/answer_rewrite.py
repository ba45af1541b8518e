"""An answer as the client sees it: without calls of tools that are ours, its numbers in order.

One `AnswerRewriter` serves all upstream requests of one answer (`tool_loop`). It takes the events
of a stream, or a whole body, and gives what the client gets of them. What ends an answer is held
back until it is known whether another request follows. Where nothing is hidden, events pass as they
are.

Usage told to the client: input as of the last request, which holds all before it, plus what
`unsent` says that the client would have sent without a window; output of all requests together.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from typing import Any

import msgspec

from perdure.context.prompt_encoder import sendable
from perdure.core.messages import Message, ToolCall
from perdure.gateway.providers import CallWire
from perdure.gateway.streams import StreamDecoder, decoder, read_answer
from perdure.gateway.streams.sse import ServerEvent, write_event
from perdure.server.proxy.client_request import decode_json
from perdure.wire.arguments import text_of
from perdure.wire.plain import Item, kind_of

_DONE = "[DONE]"


class AnswerStep(msgspec.Struct, frozen=True):
    """What one upstream request gave."""

    #: As they are sent upstream again.
    items: list[Item]
    ours: list[ToolCall]
    #: It is complete, and asks for tools.
    asks: bool
    #: The client has calls of its own to answer.
    mixed: bool
    message: Message


class AnswerRewriter(ABC):
    """See the module. `step` begins what comes of another upstream request."""

    wire: CallWire

    def __init__(self, ours: frozenset[str] = frozenset(), unsent: int = 0) -> None:
        self._ours, self._unsent = ours, unsent
        self._decoder: StreamDecoder = decoder(self.wire)
        self._output = 0  # tokens of the requests before
        self._is_counted = False  # `_output` has those of the newest request, too
        self._steps = 0
        self._hidden = set[int]()  # by the server's number, in this step
        self._numbers = dict[int, int]()  # the client's, by the server's
        self._next = 0

    def step(self) -> None:
        usage = self._decoder.so_far().usage
        self._output += (usage.output or 0) if usage is not None else 0
        self._steps += 1
        self._decoder = decoder(self.wire)
        self._hidden, self._numbers = set(), {}

    def feed(self, event: ServerEvent) -> bytes:
        """What the client gets of an event. Raises `GatewayError` for one that tells of an error,
        or that cannot be read.
        """
        self._decoder.feed(event)
        if event.data.startswith(_DONE) or event.data.isspace() or not event.data:
            return b""  # `last` says it, where it belongs
        return b"".join(map(write_event, self._passed(event)))

    def ended(self) -> AnswerStep:
        """What came of this request. Raises `BadAnswer` if its end never came."""
        answer = self._decoder.finish()
        asks = answer.finish == "tools"
        return self._step(self._decoder.body(), answer.message, asks=asks)

    @abstractmethod
    def last(self, *, asks: bool) -> bytes:
        """The end of the answer. `asks`: the client has calls to answer."""

    def read(self, body: Item) -> AnswerStep:
        """The same of a whole body; see `whole`."""
        answer = read_answer(self.wire, body)
        self._keep(body)
        self._is_counted = True
        self._output += (answer.message.usage.output or 0) if answer.message.usage else 0
        return self._step(body, answer.message, asks=answer.finish == "tools")

    @abstractmethod
    def whole(self, *, asks: bool) -> Item:
        """The body for the client."""

    @abstractmethod
    def results(self, answers: Sequence[tuple[ToolCall, str]]) -> list[Item]:
        """The items that answer calls of ours."""

    @abstractmethod
    def _passed(self, event: ServerEvent) -> Iterable[ServerEvent]: ...

    @abstractmethod
    def _calls_in(self, body: Item) -> list[ToolCall]:
        """Without a name if no tool of ours can be meant."""

    @abstractmethod
    def _items_in(self, body: Item) -> list[Item]:
        """As they are sent upstream again."""

    @abstractmethod
    def _keep(self, body: Item) -> None: ...

    def _step(self, body: Item, message: Message, *, asks: bool) -> AnswerStep:
        calls = self._calls_in(body)
        ours = [call for call in calls if call.name in self._ours]
        return AnswerStep(self._items_in(body), ours, asks, len(ours) < len(calls), message)

    def _number(self, number: int) -> int:
        if number not in self._numbers:
            self._numbers[number] = self._next
            self._next += 1
        return self._numbers[number]


class MessagesRewriter(AnswerRewriter):
    """Of Anthropic Messages."""

    wire: CallWire = "messages"

    def __init__(self, ours: frozenset[str] = frozenset(), unsent: int = 0) -> None:
        super().__init__(ours, unsent)
        self._body: Item = {}
        self._shown: list[Item] = []
        self._delta: Item = {"type": "message_delta", "delta": {}, "usage": {}}
        self._input: Item = {}

    def _passed(self, event: ServerEvent) -> Iterable[ServerEvent]:
        said = decode_json(event.data.encode())
        kind = said.get("type") or event.event
        if kind == "message_start":
            self._input = said["message"].get("usage") or {}
            if self._steps:
                return
            if self._unsent:
                usage = self._told(self._input)
                said = {**said, "message": {**said["message"], "usage": usage}}
                event = _event(event.event, said)
        elif kind == "message_delta":
            self._delta = said
            return
        elif kind == "message_stop":
            return
        elif isinstance(number := said.get("index"), int):
            block = said.get("content_block") or {}
            if kind_of(block) == "tool_use" and block.get("name") in self._ours:
                self._hidden.add(number)
            if number in self._hidden:
                return
            shown = self._number(number)
            if shown != number:
                event = _event(event.event, {**said, "index": shown})
        yield event

    def last(self, *, asks: bool) -> bytes:
        delta, usage = self._delta["delta"], self._delta.get("usage") or {}
        if self._steps or self._unsent:
            output = (usage.get("output_tokens") or 0) + self._output
            usage = self._told({**self._input, **_present(usage)}) | {"output_tokens": output}
        said = {**self._delta, "delta": _stopped(delta, asks=asks), "usage": usage}
        ends = _event("message_delta", said), _event("message_stop", {"type": "message_stop"})
        return b"".join(map(write_event, ends))

    def _keep(self, body: Item) -> None:
        self._body = body
        self._shown += [block for block in body["content"] if not self._is_ours(block)]

    def whole(self, *, asks: bool) -> Item:
        usage = self._told(self._body.get("usage") or {}) | {"output_tokens": self._output}
        return {**_stopped(self._body, asks=asks), "content": self._shown, "usage": usage}

    def results(self, answers: Sequence[tuple[ToolCall, str]]) -> list[Item]:
        blocks = [
            {"type": "tool_result", "tool_use_id": call.id, "content": text}
            for call, text in answers
        ]
        return [{"role": "user", "content": blocks}]

    def _calls_in(self, body: Item) -> list[ToolCall]:
        return [
            ToolCall(each["id"], each["name"], text_of(each.get("input") or {}, objects=True))
            for each in body["content"]
            if kind_of(each) == "tool_use"
        ]

    def _items_in(self, body: Item) -> list[Item]:
        return [{"role": "assistant", "content": body["content"]}]

    def _is_ours(self, block: Item) -> bool:
        return kind_of(block) == "tool_use" and block.get("name") in self._ours

    def _told(self, usage: Item) -> Item:
        return _with_unsent(usage, self._unsent, ("cache_read_input_tokens", "input_tokens"))


class ChatRewriter(AnswerRewriter):
    """Of Chat Completions. Text of a later request begins a paragraph."""

    wire: CallWire = "chat"

    def __init__(self, ours: frozenset[str] = frozenset(), unsent: int = 0) -> None:
        super().__init__(ours, unsent)
        self._body: Item = {}
        self._frame: Item = {}  # what all chunks begin with
        self._end: Item = {}
        self._usage: Item | None = None
        self._said = self._paragraph = False
        self._texts: list[str] = []
        self._calls: list[Item] = []
        self._newest = 0

    def step(self) -> None:
        super().step()
        self._paragraph = self._said

    def _passed(self, event: ServerEvent) -> Iterable[ServerEvent]:
        said = decode_json(event.data.encode())
        if not self._frame:
            self._frame = {n: v for n, v in said.items() if n not in {"choices", "usage"}}
        changed = {**said, "id": self._frame.get("id")} if self._steps else said
        if usage := said.get("usage"):
            self._usage = usage
        choices = said.get("choices") or []
        if not choices and usage:
            return
        if choices:
            choice = self._choice(choices[0])
            if choice is None:
                return
            if choice is not choices[0]:
                changed = {**changed, "choices": [choice, *choices[1:]]}
        if usage and changed is not said:
            changed = {**changed, "usage": None}
        yield event if changed is said else _event("", changed)

    def _choice(self, choice: Item) -> Item | None:
        """The choice as it is shown; None if nothing is left of it."""
        delta = choice.get("delta") or {}
        shown = delta
        if delta.get("tool_calls"):
            entries = [each for each in map(self._entry, delta["tool_calls"]) if each is not None]
            shown = {name: value for name, value in delta.items() if name != "tool_calls"}
            if entries:
                shown["tool_calls"] = entries
            if entries == delta["tool_calls"]:
                shown = delta
        if isinstance(text := delta.get("content"), str) and text:
            if self._paragraph:
                shown, self._paragraph = {**shown, "content": f"\n\n{text}"}, False
            self._said = True
        if choice.get("finish_reason"):
            self._end = {**choice, "delta": {}}
            return {**choice, "delta": shown, "finish_reason": None} if _says(shown) else None
        if shown is delta:
            return choice
        return {**choice, "delta": shown} if _says(shown) else None

    def _entry(self, entry: Item) -> Item | None:
        number = entry.get("index")
        if isinstance(number, int):
            self._newest = number
        else:
            number = self._newest
        if (entry.get("function") or {}).get("name") in self._ours:
            self._hidden.add(number)
        if number in self._hidden:
            return None
        shown = self._number(number)
        return entry if shown == number else {**entry, "index": shown}

    def last(self, *, asks: bool) -> bytes:
        end = _finished({"index": 0, "delta": {}, "finish_reason": "stop", **self._end}, asks=asks)
        events = [_event("", {**self._frame, "choices": [end]})]
        if self._usage is not None:
            told = self._told(self._usage)
            events.append(_event("", {**self._frame, "choices": [], "usage": told}))
        return b"".join(map(write_event, (*events, ServerEvent("message", _DONE))))

    def _keep(self, body: Item) -> None:
        self._body = body
        message = body["choices"][0]["message"]
        if message.get("content"):
            self._texts.append(message["content"])
        calls = message.get("tool_calls") or ()
        self._calls += [call for call in calls if not self._is_ours(call)]

    def whole(self, *, asks: bool) -> Item:
        choice = self._body["choices"][0]
        message = {n: v for n, v in choice["message"].items() if n != "tool_calls"}
        message["content"] = "\n\n".join(self._texts) or None
        if self._calls:
            message["tool_calls"] = self._calls
        body = {**self._body, "choices": [_finished({**choice, "message": message}, asks=asks)]}
        if body.get("usage"):
            usage = self._told({**body["usage"], "completion_tokens": 0})
            body["usage"] = usage
        return body

    def results(self, answers: Sequence[tuple[ToolCall, str]]) -> list[Item]:
        return [
            {"role": "tool", "tool_call_id": call.id, "content": text} for call, text in answers
        ]

    def _calls_in(self, body: Item) -> list[ToolCall]:
        calls = body["choices"][0]["message"].get("tool_calls") or []
        functions = [each.get("function") or {} for each in calls]
        return [
            ToolCall(call["id"], said.get("name") or "", said.get("arguments") or "")
            for call, said in zip(calls, functions, strict=True)
        ]

    def _items_in(self, body: Item) -> list[Item]:
        said = _present(body["choices"][0]["message"])
        return [{"content": None, **said, "role": "assistant"}]

    def _is_ours(self, call: Item) -> bool:
        return (call.get("function") or {}).get("name") in self._ours

    def _told(self, usage: Item) -> Item:
        told = _with_unsent(usage, self._unsent, ("prompt_tokens",))
        output = (told.get("completion_tokens") or 0) + self._output
        total = (told.get("prompt_tokens") or 0) + output
        return {**told, "completion_tokens": output, "total_tokens": total}


class ResponsesRewriter(AnswerRewriter):
    """Of Responses."""

    wire: CallWire = "responses"

    def __init__(self, ours: frozenset[str] = frozenset(), unsent: int = 0) -> None:
        super().__init__(ours, unsent)
        self._response: Item = {}
        self._id = ""  # the client's: of the first request
        self._end = "response.completed"
        self._shown: list[Item] = []
        self._sequence = 0

    def _passed(self, event: ServerEvent) -> Iterable[ServerEvent]:
        said = decode_json(event.data.encode())
        kind = said.get("type") or event.event
        response, number = said.get("response"), said.get("output_index")
        if isinstance(response, dict) and kind in {
            "response.completed",
            "response.done",
            "response.incomplete",
        }:
            self._end = kind
            self._keep(response)
            return
        if isinstance(response, dict):
            if self._steps:
                return
            self._id = self._id or str(response.get("id", ""))
        changed = said
        if isinstance(number, int):
            item = said.get("item") or {}
            if kind_of(item) == "function_call" and item.get("name") in self._ours:
                self._hidden.add(number)
            if number in self._hidden:
                return
            if (shown := self._number(number)) != number:
                changed = {**changed, "output_index": shown}
        yield self._numbered(event, changed, said)

    def _numbered(self, event: ServerEvent, said: Item, as_sent: Item | None = None) -> ServerEvent:
        if "sequence_number" in said:
            if said["sequence_number"] != self._sequence:
                said = {**said, "sequence_number": self._sequence}
            self._sequence += 1
        return event if said is as_sent else _event(event.event, said)

    def last(self, *, asks: bool) -> bytes:
        said = {"type": self._end, "response": self.whole(asks=asks), "sequence_number": 0}
        return write_event(self._numbered(ServerEvent(self._end, ""), said))

    def _keep(self, body: Item) -> None:
        self._response = body
        # Some servers end a stream without the output.
        output = body.get("output") or self._decoder.body().get("output") or []
        self._shown += [item for item in output if not self._is_ours(item)]

    def whole(self, *, asks: bool) -> Item:
        body = {**self._response, "output": self._shown}
        if self._id:
            body["id"] = self._id
        if isinstance(usage := body.get("usage"), dict) and (self._output or self._unsent):
            told = _with_unsent(usage, self._unsent, ("input_tokens",))
            done = self._output if self._is_counted else self._output + usage["output_tokens"]
            told |= {"output_tokens": done, "total_tokens": told["input_tokens"] + done}
            body["usage"] = told
        return body

    def results(self, answers: Sequence[tuple[ToolCall, str]]) -> list[Item]:
        return [
            {"type": "function_call_output", "call_id": call.id, "output": text}
            for call, text in answers
        ]

    def _calls_in(self, body: Item) -> list[ToolCall]:
        return [
            ToolCall(
                item["call_id"],
                item["name"] if kind_of(item) == "function_call" else "",
                item.get("arguments") or "",
            )
            for item in body.get("output") or ()
            if kind_of(item).endswith("_call") and "call_id" in item
        ]

    def _items_in(self, body: Item) -> list[Item]:
        return sendable(body.get("output") or [])

    def _is_ours(self, item: Item) -> bool:
        return kind_of(item) == "function_call" and item.get("name") in self._ours


_REWRITERS: dict[CallWire, type[AnswerRewriter]] = {
    "messages": MessagesRewriter,
    "chat": ChatRewriter,
    "responses": ResponsesRewriter,
}


def rewriter(wire: CallWire, ours: frozenset[str] = frozenset(), unsent: int = 0) -> AnswerRewriter:
    return _REWRITERS[wire](ours, unsent)


def _with_unsent(usage: Item, unsent: int, fields: tuple[str, ...]) -> Item:
    """The usage with so many more tokens of input, in the first field that it has."""
    name = next((each for each in fields if usage.get(each)), fields[-1])
    return {**usage, name: (usage.get(name) or 0) + unsent} if unsent else usage


def _stopped(said: Item, *, asks: bool) -> Item:
    """If all calls were ours, nothing is left for the client to answer."""
    if said.get("stop_reason") == "tool_use" and not asks:
        return {**said, "stop_reason": "end_turn"}
    return said


def _finished(choice: Item, *, asks: bool) -> Item:
    if choice.get("finish_reason") == "tool_calls" and not asks:
        return {**choice, "finish_reason": "stop"}
    return choice


def _says(delta: Item) -> bool:
    return any(value not in (None, "", []) for name, value in delta.items() if name != "role")


def _present(item: Item) -> Item:
    return {name: value for name, value in item.items() if value is not None}


def _event(name: str, said: Any) -> ServerEvent:
    return ServerEvent(name or "message", msgspec.json.encode(said).decode())
