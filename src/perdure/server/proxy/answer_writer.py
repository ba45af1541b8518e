"""An answer of the gateway, in the wire format of a client: as events of a stream, or whole.

    writer = answer_writer("messages", model)
    for delta in deltas: events += writer.write(delta)
    events += writer.end(reply)

What a whole body holds is what a reader of those events would have gathered.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable
from typing import Any, ClassVar

import msgspec

from perdure.core.clock import new_id, now
from perdure.core.messages import Reasoning, Usage
from perdure.gateway.calls import (
    CallBegan,
    CallDelta,
    Delta,
    Finish,
    ReasoningDelta,
    Reply,
    TextDelta,
)
from perdure.gateway.providers import CallWire
from perdure.gateway.streams.sse import ServerEvent
from perdure.wire.plain import Item

_MICROSECONDS = 1_000_000


class AnswerWriter(ABC):
    """Writes one answer."""

    def __init__(self, model: str) -> None:
        self._model = model
        self._id = new_id()
        self._created = now() // _MICROSECONDS

    @abstractmethod
    def begin(self) -> Iterable[ServerEvent]: ...

    @abstractmethod
    def write(self, delta: Delta) -> Iterable[ServerEvent]: ...

    @abstractmethod
    def end(self, reply: Reply) -> Iterable[ServerEvent]: ...


class _MessagesWriter(AnswerWriter):
    _STOP: ClassVar[dict[Finish, str]] = {
        "stop": "end_turn",
        "length": "max_tokens",
        "tools": "tool_use",
        "filter": "refusal",
        "other": "end_turn",
    }

    def __init__(self, model: str) -> None:
        super().__init__(model)
        self._next = 0
        self._open = ""  # The kind of block that is being written.
        self._calls = dict[int, int]()  # The block of each call.

    def begin(self) -> Iterable[ServerEvent]:
        message: Item = {
            "id": f"msg_{self._id}",
            "type": "message",
            "role": "assistant",
            "model": self._model,
            "content": [],
            "stop_reason": None,
            "stop_sequence": None,
            "usage": _messages_usage(Usage()),
        }
        yield _typed("message_start", message=message)

    def write(self, delta: Delta) -> Iterable[ServerEvent]:
        if isinstance(delta, TextDelta):
            yield from self._in("text", {"type": "text", "text": ""})
            yield self._delta(self._next - 1, type="text_delta", text=delta.text)
        elif isinstance(delta, ReasoningDelta):
            empty = {"type": "thinking", "thinking": "", "signature": ""}
            yield from self._in("thinking", empty)
            yield self._delta(self._next - 1, type="thinking_delta", thinking=delta.text)
        elif isinstance(delta, CallBegan):
            self._calls[delta.index] = self._next
            block = {"type": "tool_use", "id": delta.id, "name": delta.name, "input": {}}
            yield from self._in(f"call {delta.index}", block)
        elif isinstance(delta, CallDelta):
            at = self._calls[delta.index]
            yield self._delta(at, type="input_json_delta", partial_json=delta.arguments)
        elif isinstance(delta.part, Reasoning):
            if self._open == "thinking" and delta.part.signature:
                at = self._next - 1
                yield self._delta(at, type="signature_delta", signature=delta.part.signature)
            yield from self._close()

    def end(self, reply: Reply) -> Iterable[ServerEvent]:
        yield from self._close()
        end = {"stop_reason": self._STOP[reply.finish], "stop_sequence": None}
        usage = _messages_usage(reply.usage or Usage())
        yield _typed("message_delta", delta=end, usage=usage)
        yield _typed("message_stop")

    def _in(self, kind: str, block: Item) -> Iterable[ServerEvent]:
        if self._open == kind:
            return
        # Calls of one answer may arrive at the same time: each stays open until something else.
        yield from self._close()
        yield _typed("content_block_start", index=self._next, content_block=block)
        self._open = kind
        self._next += 1

    def _close(self) -> Iterable[ServerEvent]:
        if self._open:
            yield _typed("content_block_stop", index=self._next - 1)
            self._open = ""

    def _delta(self, at: int, **delta: Any) -> ServerEvent:
        return _typed("content_block_delta", index=at, delta=delta)


class _ChatWriter(AnswerWriter):
    _FINISH: ClassVar[dict[Finish, str]] = {
        "stop": "stop",
        "length": "length",
        "tools": "tool_calls",
        "filter": "content_filter",
        "other": "stop",
    }

    def __init__(self, model: str) -> None:
        super().__init__(model)
        self._numbers = dict[int, int]()

    def begin(self) -> Iterable[ServerEvent]:
        yield self._chunk({"role": "assistant", "content": ""})

    def write(self, delta: Delta) -> Iterable[ServerEvent]:
        if isinstance(delta, TextDelta):
            yield self._chunk({"content": delta.text})
        elif isinstance(delta, ReasoningDelta):
            yield self._chunk({"reasoning_content": delta.text})
        elif isinstance(delta, CallBegan):
            number = self._numbers[delta.index] = len(self._numbers)
            said = {"name": delta.name, "arguments": ""}
            call = {"index": number, "id": delta.id, "type": "function", "function": said}
            yield self._chunk({"tool_calls": [call]})
        elif isinstance(delta, CallDelta):
            more = {"arguments": delta.arguments}
            call = {"index": self._numbers[delta.index], "function": more}
            yield self._chunk({"tool_calls": [call]})

    def end(self, reply: Reply) -> Iterable[ServerEvent]:
        yield self._chunk({}, self._FINISH[reply.finish])
        usage = reply.usage
        if usage is not None and usage.input is not None:
            told = {
                "prompt_tokens": usage.input,
                "completion_tokens": usage.output or 0,
                "total_tokens": usage.input + (usage.output or 0),
                "prompt_tokens_details": {"cached_tokens": usage.cache_read or 0},
                "completion_tokens_details": {"reasoning_tokens": usage.reasoning or 0},
            }
            yield _event("", {**self._frame(), "choices": [], "usage": told})
        yield ServerEvent("message", "[DONE]")

    def _chunk(self, delta: Item, finish: str | None = None) -> ServerEvent:
        choice = {"index": 0, "delta": delta, "finish_reason": finish}
        return _event("", {**self._frame(), "choices": [choice]})

    def _frame(self) -> Item:
        return {
            "id": f"chatcmpl-{self._id}",
            "object": "chat.completion.chunk",
            "created": self._created,
            "model": self._model,
        }


class _ResponsesWriter(AnswerWriter):
    def __init__(self, model: str) -> None:
        super().__init__(model)
        self._number = 0
        self._output = list[Item]()
        self._open: int | None = None  # The item that is being written; calls aside.
        self._calls = dict[int, int]()

    def begin(self) -> Iterable[ServerEvent]:
        yield self._event("response.created", response=self._response("in_progress"))
        yield self._event("response.in_progress", response=self._response("in_progress"))

    def write(self, delta: Delta) -> Iterable[ServerEvent]:
        if isinstance(delta, TextDelta):
            yield from self._text(delta.text)
        elif isinstance(delta, ReasoningDelta):
            yield from self._summary(delta.text)
        elif isinstance(delta, CallBegan):
            yield from self._close()
            at = self._calls[delta.index] = len(self._output)
            said = {"call_id": delta.id, "name": delta.name, "arguments": ""}
            item = {"type": "function_call", "id": f"fc_{self._id}_{at}", **said}
            yield from self._add(item)
        elif isinstance(delta, CallDelta):
            at = self._calls[delta.index]
            self._output[at]["arguments"] += delta.arguments
            name = "response.function_call_arguments.delta"
            yield self._event(name, **self._place(at), delta=delta.arguments)
        elif isinstance(delta.part, Reasoning):
            if delta.part.encrypted and not self._is_open("reasoning"):
                yield from self._close()
                yield from self._add({"type": "reasoning", "id": self._name("rs"), "summary": []})
                self._open = len(self._output) - 1
            if self._is_open("reasoning") and delta.part.encrypted:
                self._output[-1]["encrypted_content"] = delta.part.encrypted
            yield from self._close()

    def end(self, reply: Reply) -> Iterable[ServerEvent]:
        yield from self._close()
        for at in self._calls.values():
            given = self._output[at]["arguments"]
            name = "response.function_call_arguments.done"
            yield self._event(name, **self._place(at), arguments=given)
            yield from self._done(at)
        if not self._output:
            yield from self._text("")
            yield from self._close()
        why = {"length": "max_output_tokens", "filter": "content_filter"}.get(reply.finish)
        status = "incomplete" if why else "completed"
        response = self._response(status)
        response["incomplete_details"] = {"reason": why} if why else None
        usage = reply.usage
        if usage is not None and usage.input is not None:
            response["usage"] = {
                "input_tokens": usage.input,
                "input_tokens_details": {"cached_tokens": usage.cache_read or 0},
                "output_tokens": usage.output or 0,
                "output_tokens_details": {"reasoning_tokens": usage.reasoning or 0},
                "total_tokens": usage.input + (usage.output or 0),
            }
        yield self._event(f"response.{status}", response=response)

    def _text(self, text: str) -> Iterable[ServerEvent]:
        if not self._is_open("message"):
            yield from self._close()
            item = {"type": "message", "id": self._name("msg"), "role": "assistant", "content": []}
            yield from self._add(item)
            part = {"type": "output_text", "text": "", "annotations": []}
            self._output[-1]["content"] = [part]
            self._open = at = len(self._output) - 1
            place = {**self._place(at), "content_index": 0}
            yield self._event("response.content_part.added", **place, part=part)
        place = {**self._place(len(self._output) - 1), "content_index": 0}
        self._output[-1]["content"][0]["text"] += text
        if text:
            name = "response.output_text.delta"
            yield self._event(name, **place, delta=text, logprobs=[])

    def _summary(self, text: str) -> Iterable[ServerEvent]:
        if not self._is_open("reasoning"):
            yield from self._close()
            yield from self._add({"type": "reasoning", "id": self._name("rs"), "summary": []})
            part = {"type": "summary_text", "text": ""}
            self._output[-1]["summary"] = [part]
            self._open = len(self._output) - 1
            place = {**self._place(self._open), "summary_index": 0}
            yield self._event("response.reasoning_summary_part.added", **place, part=part)
        self._output[-1]["summary"][0]["text"] += text
        place = {**self._place(len(self._output) - 1), "summary_index": 0}
        yield self._event("response.reasoning_summary_text.delta", **place, delta=text)

    def _close(self) -> Iterable[ServerEvent]:
        if self._open is None:
            return
        at, self._open = self._open, None
        item, place = self._output[at], self._place(at)
        if item["type"] == "message":
            part, place = item["content"][0], {**place, "content_index": 0}
            text = part["text"]
            yield self._event("response.output_text.done", **place, text=text, logprobs=[])
            yield self._event("response.content_part.done", **place, part=part)
        elif item["summary"]:
            part, place = item["summary"][0], {**place, "summary_index": 0}
            name = "response.reasoning_summary"
            yield self._event(f"{name}_text.done", **place, text=part["text"])
            yield self._event(f"{name}_part.done", **place, part=part)
        yield from self._done(at)

    def _done(self, at: int) -> Iterable[ServerEvent]:
        if self._output[at]["type"] != "reasoning":
            self._output[at]["status"] = "completed"
        yield self._event("response.output_item.done", output_index=at, item=self._output[at])

    def _add(self, item: Item) -> Iterable[ServerEvent]:
        if item["type"] != "reasoning":
            item["status"] = "in_progress"
        self._output.append(item)
        at = len(self._output) - 1
        yield self._event("response.output_item.added", output_index=at, item=item)

    def _is_open(self, kind: str) -> bool:
        return self._open is not None and self._output[self._open]["type"] == kind

    def _place(self, at: int) -> Item:
        return {"item_id": self._output[at]["id"], "output_index": at}

    def _name(self, prefix: str) -> str:
        return f"{prefix}_{self._id}_{len(self._output)}"

    def _response(self, status: str) -> Item:
        return {
            "id": f"resp_{self._id}",
            "object": "response",
            "created_at": self._created,
            "status": status,
            "model": self._model,
            "output": self._output if status != "in_progress" else [],
            "error": None,
            "incomplete_details": None,
            "instructions": None,
            "metadata": {},
            "parallel_tool_calls": True,
            "temperature": None,
            "tool_choice": "auto",
            "tools": [],
            "top_p": None,
            "usage": None,
        }

    def _event(self, name: str, **said: Any) -> ServerEvent:
        self._number += 1
        return _typed(name, **said, sequence_number=self._number - 1)


_WRITERS: dict[CallWire, type[AnswerWriter]] = {
    "messages": _MessagesWriter,
    "chat": _ChatWriter,
    "responses": _ResponsesWriter,
}


def answer_writer(wire: CallWire, model: str) -> AnswerWriter:
    return _WRITERS[wire](model)


def whole_body(wire: CallWire, body: Item) -> Item:
    """What a decoder gathered of a writer's events, as a body of that format."""
    if wire != "chat":
        return body
    choices = [{"index": 0, "logprobs": None, **choice} for choice in body["choices"]]
    return {**body, "object": "chat.completion", "choices": choices}


def _messages_usage(usage: Usage) -> Item:
    read, written = usage.cache_read or 0, usage.cache_write or 0
    return {
        "input_tokens": max((usage.input or 0) - read - written, 0),
        "cache_read_input_tokens": read,
        "cache_creation_input_tokens": written,
        "output_tokens": usage.output or 0,
    }


def _typed(name: str, **said: Any) -> ServerEvent:
    return _event(name, {"type": name, **said})


def _event(name: str, said: Item) -> ServerEvent:
    return ServerEvent(name or "message", msgspec.json.encode(said).decode())
