"""Answers of Chat Completions, of OpenAI and compatible servers."""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any
from uuid import UUID, uuid5

from perdure.core.errors import BadAnswer
from perdure.core.messages import sound
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
from perdure.wire.arguments import text_of
from perdure.wire.chat.form import REASONING
from perdure.wire.plain import Item, kind_of

WIRE: CallWire = "chat"

#: OpenAI's words, and those of servers that pass on what their engine says.
_FINISH: dict[Any, Finish] = {
    "stop": "stop",
    "eos_token": "stop",
    "stop_sequence": "stop",
    "length": "length",
    "max_tokens": "length",
    "tool_calls": "tools",
    "function_call": "tools",
    "content_filter": "filter",
}
#: Fields of a chunk that are not the answer's, or have a place of their own.
_CHUNK = frozenset({"choices", "created", "id", "model", "object", "obfuscation", "usage"})
_CHOICE = frozenset({"delta", "finish_reason", "index", "logprobs"})
_DELTA = frozenset({"content", "refusal", "role", "tool_calls", *REASONING})
#: Strings that are the same in each piece of an object, and do not grow.
_FIXED = frozenset({"format", "id", "type"})


def _seed(head: Item) -> str:
    return str(head.get("id") or head.get("created") or "")


def _words(content: Any) -> tuple[Any, str]:
    if not isinstance(content, list):
        return content, ""
    if any(kind_of(block) not in {"text", "thinking"} for block in content):
        return content, ""
    texts = [block["text"] for block in content if block["type"] == "text"]
    thoughts = [block["thinking"] for block in content if block["type"] == "thinking"]
    return "".join(texts), "".join(_thought(each) for each in thoughts)


def _thought(thinking: str | list[Item]) -> str:
    return thinking if isinstance(thinking, str) else "".join(each["text"] for each in thinking)


class ChatDecoder(StreamDecoder):
    """Decodes Chat Completions; only the first choice."""

    wire = WIRE

    def __init__(self, where: str = "") -> None:
        super().__init__(where)
        self._head: Item = {}
        self._choice: Item = {}
        self._heard = False
        self._text: list[str] = []
        self._refusal: list[str] = []
        self._reasoning: dict[str, list[str]] = {}  # by the field that it came in
        self._others: Item = {}
        self._calls: ToolCalls | None = None
        self._ended = 0  # parts that were said to be complete

    def _take(self, said: Item, name: str) -> list[Delta]:
        if said.get("error") or name == "error":
            raise self._failed(said.get("error") or said)
        head = self._head
        for field, value in said.items():
            if field not in _CHUNK:
                if value is not None:
                    head[field] = value
            elif field not in head and field in {"id", "created", "model"} and value:
                head[field] = value
        if usage := said.get("usage"):
            head["usage"] = usage
        deltas: list[Delta] = []
        for choice in said.get("choices") or ():
            if choice.get("index", 0) in {0, None}:
                self._take_choice(choice, deltas)
        return deltas

    def _take_choice(self, choice: Item, deltas: list[Delta]) -> None:
        self._heard = True
        for field, value in choice.items():
            if field not in _CHOICE and value is not None:
                self._choice[field] = value
        if (logprobs := choice.get("logprobs")) is not None:
            _merge(self._choice, "logprobs", logprobs)
        # Some servers end a stream with the whole message.
        delta = choice.get("delta") or ({} if self._text or self._calls else choice.get("message"))
        if delta:
            self._take_delta(delta, deltas)
        if reason := choice.get("finish_reason"):
            self._choice["finish_reason"] = reason
            deltas += self._parts()

    def _take_delta(self, delta: Item, deltas: list[Delta]) -> None:
        text, thought = _words(delta.get("content"))
        for name in REASONING:
            if words := delta.get(name):
                self._think(name, words, deltas)
        if thought:
            self._think(REASONING[0], thought, deltas)
        if text:
            self._text.append(text)
            deltas.append(TextDelta(shown(text)))
        if refusal := delta.get("refusal"):
            self._refusal.append(refusal)
            deltas.append(TextDelta(shown(refusal)))
        if entries := delta.get("tool_calls"):
            self._call(entries, deltas)
        for field, value in delta.items():
            if field not in _DELTA and value is not None:
                _merge(self._others, field, value)

    def _think(self, field: str, words: str, deltas: list[Delta]) -> None:
        # Servers that send both fields say the same in both: the first is shown.
        if not self._reasoning or field == next(iter(self._reasoning)):
            deltas.append(ReasoningDelta(shown(words)))
        self._reasoning.setdefault(field, []).append(words)

    def _call(self, entries: Iterable[Item], deltas: list[Delta]) -> None:
        if self._calls is None:
            self._calls = ToolCalls(_seed(self._head))
        for entry in entries:
            index, began, arguments = self._calls.add(entry)
            if began is not None:
                deltas.append(began)
            if arguments:
                deltas.append(CallDelta(index, shown(arguments)))

    def _last(self) -> list[Delta]:
        self.done = True
        return self._parts() if self._heard else []

    def _parts(self) -> list[Delta]:
        parts = message_of(WIRE, self._body()).parts
        ended, self._ended = self._ended, len(parts)
        return [PartEnded(part) for part in parts[ended:]]

    def _body(self) -> Item:
        message: Item = {"role": "assistant", "content": "".join(self._text) or None}
        message |= {name: value for name, value in self._others.items() if value not in ("", [])}
        message |= {name: "".join(words) for name, words in self._reasoning.items()}
        if self._refusal:
            message["refusal"] = "".join(self._refusal)
        if self._calls:
            message["tool_calls"] = self._calls.items()
        return {**self._head, "choices": [{**self._choice, "message": message}]}

    @staticmethod
    def read(body: Item) -> ModelAnswer:
        choices = body.get("choices")
        if not isinstance(choices, list) or not choices:
            raise BadAnswer(
                "The answer has no choices.", hint="Try again; if it stays so, try another model."
            )
        choice = present(choices[0])
        said = present(choice["message"])
        calls = ToolCalls(_seed(body))
        for call in said.pop("tool_calls", ()):
            calls.add(call, whole=True)
        text, reasoning = _words(said.pop("content", None))
        message: Item = {"role": "assistant", "content": text or None}
        message |= {
            name: value for name, value in said.items() if value not in ("", []) and name != "role"
        }
        if reasoning:
            message.setdefault(REASONING[0], reasoning)
        if calls:
            message["tool_calls"] = calls.items()
        head = present(body)
        head.pop("object", None)
        choice |= {"message": message}
        choice.pop("index", None)
        finish = _FINISH.get(choice.get("finish_reason"), "other")
        return answered(message_of(WIRE, {**head, "choices": [choice]}), WIRE, finish)

    def _has_ended(self) -> bool:
        return self._heard and (self.done or "finish_reason" in self._choice)


def _merge(into: Item, field: str, value: Any) -> None:
    """Strings and lists grow, objects field by field; numbered objects in a list by number."""
    before = into.get(field)
    if isinstance(before, str) and isinstance(value, str) and field not in _FIXED:
        into[field] = before + value
    elif isinstance(before, dict) and isinstance(value, dict):
        for name, each in value.items():
            if each is not None:
                _merge(before, name, each)
    elif isinstance(before, list) and isinstance(value, list):
        for each in value:
            _merge_entry(before, each)
    elif isinstance(value, list):
        into[field] = []
        _merge(into, field, value)
    else:
        into[field] = dict(value) if isinstance(value, dict) else value


def _merge_entry(entries: list[Any], entry: Any) -> None:
    index = entry.get("index") if isinstance(entry, dict) else None
    if index is not None:
        for before in entries:
            if isinstance(before, dict) and before.get("index") == index:
                for name, each in entry.items():
                    if each is not None:
                        _merge(before, name, each)
                return
    entries.append(dict(entry) if isinstance(entry, dict) else entry)


# Changing it changes the ids of calls that have none from their server, in answers read again.
_CALL_IDS = UUID("5c2ad0f4-8a1e-5d0b-9d3b-1c6f0f0f7c11")
_ENTRY = frozenset({"custom", "function", "id", "index", "type"})
_KEYS = {"function": "arguments", "custom": "input"}


class _Call:
    __slots__ = ("id", "is_made_up", "kind", "name", "others", "pieces", "said", "whole")

    def __init__(self, kind: str) -> None:
        self.kind = kind
        self.id = ""
        self.is_made_up = False
        self.name = ""
        self.pieces: list[str] = []
        self.whole: Item | None = None  # arguments of a server that forgets to write them as text
        self.others: Item = {}
        self.said: Item = {}

    @property
    def text(self) -> str:
        return "".join(self.pieces)

    def item(self) -> Item:
        arguments: Any = self.text if self.whole is None else self.whole
        said = {**self.said, "name": self.name, _KEYS[self.kind]: arguments}
        return {"id": self.id, "type": self.kind, **self.others, self.kind: said}

    def is_complete(self) -> bool:
        if self.whole is not None:
            return True
        try:
            json.loads(self.text)
        except (ValueError, RecursionError):
            return False
        return True


class ToolCalls:
    """Calls in the order in which they began. `seed` tells this answer from others."""

    def __init__(self, seed: str) -> None:
        self._seed = seed
        self._calls: list[_Call] = []
        self._places: dict[int, int] = {}  # by the server's number, the newest call under it

    def __len__(self) -> int:
        return len(self._calls)

    def items(self) -> list[Item]:
        """A call without an id gets a deterministic one."""
        return [call.item() for call in self._calls]

    def add(self, entry: Item, *, whole: bool = False) -> tuple[int, CallBegan | None, str]:
        """Take a piece, or a whole call: its index; the call, if this piece names its tool; its new
        arguments, which wait until the tool is named.
        """
        kind = "custom" if "custom" in entry else "function"
        said: Item = entry.get(kind) or {}
        name: str = said.get("name") or ""
        at = None if whole else self._place(entry, name, said.get(_KEYS[kind]))
        if at is None:
            at = len(self._calls)
            self._calls.append(_Call(kind))
            if isinstance(index := entry.get("index"), int):
                self._places[index] = at
        call = self._calls[at]
        self._name(call, at, entry.get("id") or "")
        for field, value in entry.items():
            if field not in _ENTRY and value is not None:
                call.others[field] = value
        for field, value in said.items():
            if field not in {"name", _KEYS[kind]} and value is not None:
                call.said[field] = value
        arguments = self._argue(call, said.get(_KEYS[kind]))
        if not name or name == call.name:  # some servers repeat it in each piece
            return at, None, arguments if call.name else ""
        if call.name:
            call.name += name
            return at, None, arguments
        call.name = name
        return at, CallBegan(at, call.id, name), call.text if call.whole is None else arguments

    def _place(self, entry: Item, name: str, arguments: Any) -> int | None:
        index, id_ = entry.get("index"), entry.get("id") or ""
        numbered = isinstance(index, int)
        if numbered:
            at = self._places.get(index)  # type: ignore[arg-type]  # is an int
        else:
            at = len(self._calls) - 1 if self._calls else None
        if at is None:
            return None
        call = self._calls[at]
        if id_ and not call.is_made_up and id_ != call.id:
            return next((at for at, each in enumerate(self._calls) if each.id == id_), None)
        if name and call.name and not id_:
            if not numbered:
                return None
            if arguments and call.is_complete():
                return None
        return at

    def _name(self, call: _Call, at: int, id_: str) -> None:
        if call.id:
            return
        call.is_made_up = not id_
        call.id = id_ or f"call_{uuid5(_CALL_IDS, sound(f'{self._seed}/{at}')).hex}"

    def _argue(self, call: _Call, given: Any) -> str:
        if isinstance(given, dict):
            call.whole = given
            return text_of(given, objects=True)
        if not given:
            return ""
        call.pieces.append(given)
        text: str = given
        return text
