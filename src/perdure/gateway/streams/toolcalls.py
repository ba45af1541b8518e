"""The tool calls of a Chat Completions answer, put together from their pieces.

OpenAI numbers the pieces and names a call in its first one. Others send calls whole, one after the
other under the same number (Ollama, Gemini), or leave out number, id or both. A piece goes on with
the call of its number, unless it has another id, or names a tool where the call before it is whole.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any, NamedTuple
from uuid import UUID, uuid5

from perdure.core.messages import sound
from perdure.wire.arguments import text_of
from perdure.wire.plain import Item

# Changing it changes the ids of calls that have none from their server, in answers read again.
_IDS = UUID("5c2ad0f4-8a1e-5d0b-9d3b-1c6f0f0f7c11")
_ENTRY = frozenset({"custom", "function", "id", "index", "type"})
#: Where each kind of call says what the tool is given.
_KEYS = {"function": "arguments", "custom": "input"}


class Began(NamedTuple):
    """A call whose tool is known now."""

    id: str
    name: str


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
        """Whether its arguments are JSON as they stand."""
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
        """As a body would say them. A call without an id has one that depends on nothing else."""
        return [call.item() for call in self._calls]

    def add(self, entry: Item, *, whole: bool = False) -> tuple[int, Began | None, str]:
        """Takes up a piece, or a whole call.

        Gives its place; the call, if this piece names its tool; and its new arguments, which wait
        until the tool is named.
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
        return at, Began(call.id, name), call.text if call.whole is None else arguments

    def _place(self, entry: Item, name: str, arguments: Any) -> int | None:
        """Which call the piece belongs to; None for a new one."""
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
            return next(self._named(id_), None)
        if name and call.name and not id_:
            if not numbered:
                return None
            if arguments and call.is_complete():
                return None
        return at

    def _named(self, id_: str) -> Iterator[int]:
        return (at for at, call in enumerate(self._calls) if call.id == id_)

    def _name(self, call: _Call, at: int, id_: str) -> None:
        if call.id:
            return
        call.is_made_up = not id_
        call.id = id_ or f"call_{uuid5(_IDS, sound(f'{self._seed}/{at}')).hex}"

    def _argue(self, call: _Call, given: Any) -> str:
        if isinstance(given, dict):
            call.whole = given
            return text_of(given, objects=True)
        if not given:
            return ""
        call.pieces.append(given)
        text: str = given
        return text
