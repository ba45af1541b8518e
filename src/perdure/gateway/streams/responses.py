"""Answers of OpenAI Responses.

The last event holds the whole response. Where its output is missing, as with some servers, the
items that arrived one by one are used.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from perdure.core.errors import BadAnswer
from perdure.gateway.calls import (
    CallBegan,
    CallDelta,
    Delta,
    Finish,
    ModelAnswer,
    PartEnded,
    ReasoningDelta,
    TextDelta,
)
from perdure.gateway.providers import CallWire
from perdure.gateway.streams.stream_decoder import (
    StreamDecoder,
    answered,
    message_of,
    present,
    shown,
)
from perdure.wire.plain import Item, kind_of
from perdure.wire.responses import decode
from perdure.wire.responses.form import CALLS

WIRE: CallWire = "responses"

#: What of a response is the answer's. The rest repeats the request.
_KEPT = frozenset(
    {"created_at", "id", "incomplete_details", "model", "output", "service_tier", "status", "usage"}
)
_FINISH: dict[Any, Finish] = {"max_output_tokens": "length", "content_filter": "filter"}
_UNFINISHED = frozenset({"queued", "in_progress", "cancelled"})
#: The last event of a stream. Some servers call it `response.done`.
_LAST = frozenset({"response.completed", "response.done", "response.failed", "response.incomplete"})
#: Events that bring a piece of text: the block that it grows, and where the block's place stands.
_GROWING: Final = {
    "response.output_text.delta": ("output_text", "content_index"),
    "response.refusal.delta": ("refusal", "content_index"),
    "response.reasoning_text.delta": ("reasoning_text", "content_index"),
    "response.reasoning_summary_text.delta": ("summary_text", "summary_index"),
    "response.function_call_arguments.delta": ("arguments", ""),
    "response.custom_tool_call_input.delta": ("input", ""),
}
_SHOWN: dict[str, Callable[[str], Delta]] = {
    "output_text": TextDelta,
    "refusal": TextDelta,
    "reasoning_text": ReasoningDelta,
    "summary_text": ReasoningDelta,
}


def _tidy(body: Item) -> Item:
    kept = {name: value for name, value in present(body).items() if name in _KEPT}
    return {**kept, "object": "response"}


class _Open:
    __slots__ = ("item", "pieces")

    def __init__(self, item: Item) -> None:
        self.item = item
        self.pieces: dict[tuple[int, str], list[str]] = {}

    def so_far(self) -> Item:
        if not self.pieces:
            return self.item
        item = dict(self.item)
        for at, kind in sorted(self.pieces):
            text = "".join(self.pieces[at, kind])
            if kind in {"arguments", "input"}:
                item[kind] = text
                continue
            field = "summary" if kind == "summary_text" else "content"
            key = "refusal" if kind == "refusal" else "text"
            item[field] = [*item.get(field, ()), {"type": kind, key: text}]
        return item


class ResponsesDecoder(StreamDecoder):
    """Of Responses. A call's index is the place of its item in the output."""

    wire = WIRE

    def __init__(self, where: str = "") -> None:
        super().__init__(where)
        self._response: Item = {}
        self._open: dict[int, _Open] = {}
        self._whole: dict[int, Item] = {}
        self._began: set[int] = set()

    def _take(self, said: Item, name: str) -> list[Delta]:
        kind = said.get("type") or name
        growing = _GROWING.get(kind)
        if growing is not None:
            return self._grow(said, *growing)
        if kind == "response.output_item.added":
            at = self._place(said)
            self._open[at] = _Open(said["item"])
            return self._call(at, said["item"])
        if kind == "response.output_item.done":
            return self._ended(self._place(said), said["item"])
        if kind in _LAST:
            self._response = said["response"]
            self.done = True
            if kind == "response.failed" or self._response.get("status") == "failed":
                raise self._failed(self._response.get("error") or "The response failed.")
        elif kind in {"response.created", "response.in_progress"}:
            self._response = said["response"]
        elif kind == "error" or said.get("error"):
            raise self._failed(said.get("error") or said)
        return []

    def _place(self, said: Item) -> int:
        at = said.get("output_index")
        if isinstance(at, int):
            return at
        if kind_of(said) == "response.output_item.added":
            return len(self._open) + len(self._whole)
        return max((*self._open, *self._whole), default=0)

    def _grow(self, said: Item, kind: str, index: str) -> list[Delta]:
        at, text = said.get("output_index"), said["delta"]
        if not isinstance(at, int):
            at = self._place(said)
        growing = self._open.get(at)
        if growing is None:
            if at in self._whole:
                return []
            growing = self._open[at] = _Open({"type": "message", "role": "assistant"})
        place = (said.get(index, 0), kind)
        pieces = growing.pieces.get(place)
        if pieces is None:
            growing.pieces[place] = [text]
        else:
            pieces.append(text)
        if not text:
            return []
        make = _SHOWN.get(kind)
        return [CallDelta(at, shown(text)) if make is None else make(shown(text))]

    def _call(self, at: int, item: Item) -> list[Delta]:
        form = CALLS.get(item["type"])
        if form is None or at in self._began:
            return []
        self._began.add(at)
        return [CallBegan(at, item["call_id"], form.name or item["name"])]

    def _ended(self, at: int, item: Item) -> list[Delta]:
        growing = self._open.pop(at, None)
        self._whole[at] = item
        deltas = self._call(at, item)
        messages = decode([item])
        if growing is None or not growing.pieces:
            deltas += _at_once(at, item)
        deltas += [PartEnded(part) for message in messages for part in message.parts]
        return deltas

    def _body(self) -> Item:
        body = dict(self._response)
        if not body.get("output"):
            items = dict(self._whole)
            items |= {at: growing.so_far() for at, growing in self._open.items()}
            body["output"] = [items[at] for at in sorted(items)]
        return _tidy(body)

    @staticmethod
    def read(body: Item) -> ModelAnswer:
        status = body.get("status")
        if status in _UNFINISHED:
            raise BadAnswer(
                f"The response is {status}.", hint="Ask for it without `background`, or try again."
            )
        message = message_of(WIRE, _tidy(body))
        if status == "incomplete":
            reason = (body.get("incomplete_details") or {}).get("reason")
            return answered(message, WIRE, _FINISH.get(reason, "other"))
        return answered(message, WIRE, "stop")

    def _has_ended(self) -> bool:
        return self.done


def _at_once(at: int, item: Item) -> list[Delta]:
    form = CALLS.get(item["type"])
    if form is not None:
        given = item.get(form.key)
        return [CallDelta(at, shown(given))] if given and isinstance(given, str) else []
    deltas: list[Delta] = []
    for field in ("summary", "content"):
        for block in item.get(field) or ():
            make = _SHOWN.get(kind_of(block))
            text = block.get("text") or block.get("refusal") if make else None
            if make and text:
                deltas.append(make(shown(text)))
    return deltas
