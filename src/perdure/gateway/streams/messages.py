"""Answers of Anthropic Messages."""

from __future__ import annotations

from typing import Any

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
from perdure.wire.arguments import text_of, value_of
from perdure.wire.messages import decode
from perdure.wire.plain import Item, kind_of

WIRE: CallWire = "messages"

_FINISH: dict[Any, Finish] = {
    "end_turn": "stop",
    "stop_sequence": "stop",
    "max_tokens": "length",
    "model_context_window_exceeded": "length",
    "tool_use": "tools",
    "refusal": "filter",
}
_GROWING = {"text_delta": "text", "thinking_delta": "thinking", "input_json_delta": "partial_json"}


def _tidy(block: Any) -> Any:
    return present(block) if kind_of(block) == "text" else block


class _Block:
    __slots__ = ("block", "pieces", "whole")

    def __init__(self, block: Item) -> None:
        self.block = dict(block)
        self.pieces: dict[str, list[str]] = {}
        self.whole: Item | None = None

    def so_far(self) -> Item:
        if self.whole is not None:
            return self.whole
        block = dict(self.block)
        for name, pieces in self.pieces.items():
            text = "".join(pieces)
            if name == "partial_json":
                # Cut off by the limit on tokens, it may not be JSON; the codec keeps it as text.
                block["input"] = value_of(text, objects=True) if text else block.get("input", {})
            else:
                block[name] = (block.get(name) or "") + text
        return block


class MessagesDecoder(StreamDecoder):
    """Of Anthropic Messages."""

    wire = WIRE

    def __init__(self, where: str = "") -> None:
        super().__init__(where)
        self._head: Item = {}
        self._usage: Item = {}
        self._blocks: dict[int, _Block] = {}

    def _take(self, said: Item, name: str) -> list[Delta]:
        kind = said.get("type") or name
        if kind == "content_block_delta":
            return self._delta(said["index"], said["delta"])
        if kind == "content_block_start":
            return self._began(said["index"], said["content_block"])
        if kind == "content_block_stop":
            return self._ended(said["index"])
        if kind == "message_start":
            self._head |= said["message"]
            self._count(self._head.get("usage"))
            for index, block in enumerate(self._head.get("content") or ()):
                self._blocks[index] = _Block(block)
        elif kind == "message_delta":
            self._head |= present(said["delta"])
            self._head |= {
                field: value
                for field, value in said.items()
                if field not in {"type", "delta", "usage"} and value is not None
            }
            self._count(said.get("usage"))
        elif kind == "message_stop":
            self.done = True
        elif kind == "error" or said.get("error"):
            raise self._failed(said.get("error") or said)
        return []

    def _count(self, usage: Any) -> None:
        """Counts are totals; what is left out stays as it was."""
        if isinstance(usage, dict):
            self._usage |= {
                name: count
                for name, count in usage.items()
                if count is not None or name not in self._usage
            }

    def _began(self, index: int, block: Item) -> list[Delta]:
        self._blocks[index] = _Block(block)
        kind = block["type"]
        if kind == "tool_use":
            began: list[Delta] = [CallBegan(index, block["id"], block["name"])]
            if block.get("input"):  # some servers send it at once
                began.append(CallDelta(index, text_of(block["input"], objects=True)))
            return began
        if kind == "text" and block.get("text"):
            return [TextDelta(shown(block["text"]))]
        if kind == "thinking" and block.get("thinking"):
            return [ReasoningDelta(shown(block["thinking"]))]
        return []

    def _delta(self, index: int, delta: Item) -> list[Delta]:
        growing = self._blocks[index]
        kind = delta["type"]
        field = _GROWING.get(kind)
        if field is None:
            self._set(growing.block, kind, delta)
            return []
        text: str = delta[field]
        pieces = growing.pieces.get(field)
        if pieces is None:
            growing.pieces[field] = [text]
        else:
            pieces.append(text)
        if not text:
            return []
        if kind == "text_delta":
            return [TextDelta(shown(text))]
        if kind == "thinking_delta":
            return [ReasoningDelta(shown(text))]
        return [CallDelta(index, shown(text))] if growing.block["type"] == "tool_use" else []

    def _set(self, block: Item, kind: str, delta: Item) -> None:
        if kind == "citations_delta":
            block["citations"] = [*(block.get("citations") or ()), delta["citation"]]
            return
        for name, value in delta.items():
            if name == "type":
                continue
            before = block.get(name)
            grows = kind != "signature_delta" and isinstance(before, str) and isinstance(value, str)
            block[name] = f"{before}{value}" if grows else value

    def _ended(self, index: int) -> list[Delta]:
        growing = self._blocks[index]
        growing.whole = _tidy(growing.so_far())
        (message,) = decode([{"role": "assistant", "content": [growing.whole]}])
        return [PartEnded(part) for part in message.parts]

    def _body(self) -> Item:
        blocks = [self._blocks[index].so_far() for index in sorted(self._blocks)]
        body = {**self._head, "content": blocks}
        if self._usage:
            body["usage"] = self._usage
        return body

    @staticmethod
    def read(body: Item) -> ModelAnswer:
        if not isinstance(body.get("content"), list):
            raise BadAnswer(
                "The answer has no content.",
                hint="Check that the provider speaks the wire format messages.",
            )
        tidy = present(body)
        tidy["content"] = [_tidy(block) for block in tidy["content"]]
        tidy |= {"type": "message", "role": "assistant"}
        message = message_of(WIRE, tidy)
        return answered(message, WIRE, _FINISH.get(body.get("stop_reason"), "other"))

    def _has_ended(self) -> bool:
        return bool(self._head) and (self.done or self._head.get("stop_reason") is not None)
