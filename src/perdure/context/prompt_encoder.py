"""Encodes a window in a wire format, repaired for its provider piece by piece.

`wire.repaired` would change what was sent before when something is said later: a result that comes
late would move. Here each piece (a round, a prompt) is repaired by itself, and only ids that two
rounds share are changed, in the later one. So what was sent stays as it was, and
`PromptEncoder` can remember it; the bytes are the same without.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import cache
from importlib import import_module
from typing import Any, Final, Literal, TypeAlias, cast
from uuid import UUID, uuid5

import msgspec
from msgspec.structs import replace

from perdure.context import prompt_assembly
from perdure.context.prompt_assembly import PromptPiece
from perdure.core.messages import Message, Part, ToolCall, ToolResult, Unknown, sound, user
from perdure.core.tokens import o200k
from perdure.history.manifest import Injected, Native, RoundId, ShownHistory
from perdure.history.strategies.raw_rounds import sent_tokens
from perdure.wire import codec, repaired
from perdure.wire.keep import Group, items_of
from perdure.wire.plain import Item, kind_of
from perdure.wire.responses.form import CALLS, OUTPUTS, side_of

Wire: TypeAlias = Literal["chat", "responses", "messages"]

# Changing it would change ids in prompts, and with them void every prompt cache.
_IDS = UUID("0b1f5c0e-6f0e-5b55-8f4b-6a0f3f0f7a11")
_FRONT: Final = user("…")  # In front of a piece while it is repaired: it may begin otherwise.

_Key: TypeAlias = RoundId | int


class EncodedPiece(msgspec.Struct, frozen=True, gc=False):
    """A piece in a wire format. Its items are shared: callers get copies."""

    piece: PromptPiece
    items: list[Item]
    #: The ids of its calls, as they were and as they are sent.
    asked: frozenset[str] = frozenset()
    calls: frozenset[str] = frozenset()
    clash: frozenset[str] = frozenset()  # Which of them were used before it.


class PromptEncoder:
    """Lays out windows and encodes them, and remembers the newest one of each wire format. A
    session keeps one, so that a request costs what is new in it. Results never change, so threads
    can share it.
    """

    def __init__(self) -> None:
        self._rounds = dict[RoundId, tuple[Native, bool, str, tuple[Message, ...]]]()
        self._encoded = dict[Wire, dict[_Key, EncodedPiece]]()
        self._counted: tuple[tuple[Message, ...], int] = ((), 0)

    def pieces(
        self,
        shown: ShownHistory,
        injection: Injected | None,
        prompt: tuple[Message, ...],
        turn: int,
        *,
        model: str = "",
    ) -> tuple[PromptPiece, ...]:
        rounds = dict[RoundId, tuple[Native, bool, str, tuple[Message, ...]]]()

        def prepare(native: Native, tagged: bool, model: str) -> tuple[Message, ...]:  # noqa: FBT001
            known = self._rounds.get(native.place)
            if known is None or known[:3] != (native, tagged, model):
                known = (native, tagged, model, prompt_assembly.prepared(native, tagged, model))
            rounds[native.place] = known
            return known[3]

        laid = prompt_assembly.pieces(shown, injection, prompt, turn, model=model, prepare=prepare)
        self._rounds = rounds
        return tuple(laid)

    def tokens(self, prompt: tuple[Message, ...]) -> int:
        """The tokens of a prompt apart from a round, with its tags."""
        if prompt and self._counted[0] != prompt:
            self._counted = (prompt, sent_tokens(o200k(), prompt))
        return self._counted[1] if prompt else 0

    def encode(self, pieces: Sequence[PromptPiece], wire: Wire) -> list[EncodedPiece]:
        """None breaks the format's rules, whatever is in them. System text that the history begins
        with is left out: the caller adds it to the rest.
        """
        known, kept = self._encoded.get(wire, {}), dict[_Key, EncodedPiece]()
        found, used = list[EncodedPiece](), set[str]()
        for piece in pieces:
            if piece.is_system:
                continue
            key: _Key = piece.place or len(found)
            encoded = known.get(key)
            if encoded is None or encoded.piece != piece:
                encoded = encode_piece(piece, wire)
            if encoded.clash != (clash := encoded.asked & used):
                encoded = encode_piece(piece, wire, clash)
            used |= encoded.calls
            kept[key] = encoded
            found.append(encoded)
        self._encoded[wire] = kept
        if wire == "messages":
            _begin_with_user(found)
        return found


def handed_out(encoded: Sequence[EncodedPiece], wire: Wire) -> list[Item]:
    """The items of all pieces, as copies that the caller may change."""
    items = [copied(item) for each in encoded for item in each.items]
    if wire == "responses":
        return named_once(items)
    return items


def encode_piece(
    piece: PromptPiece, wire: Wire, clash: frozenset[str] = frozenset()
) -> EncodedPiece:
    """One piece in a wire format, repaired by itself; calls with an id in `clash` get another."""
    fit: Sequence[Message] = piece.messages
    written = _writer(wire)
    items = None if _holds_unknown(fit) else items_of(written(fit))
    # To look whether it is in order takes a fraction of the time to put it there.
    if items is None or codec(wire).violations([_opening(wire), *items]):
        _, *fit = repaired((_FRONT, *fit), wire)
        items = items_of(written(fit))
    asked = calls = frozenset([call.id for message in fit for call in message.calls])
    if clash:
        fit = _renamed(fit, clash, piece.place)
        calls = frozenset([call.id for message in fit for call in message.calls])
        items = items_of(written(fit))
    return EncodedPiece(
        piece, [_in_order(item) for item in _made(items, wire)], asked, calls, clash
    )


@cache
def _writer(wire: Wire) -> Callable[[Iterable[Message]], list[Group]]:
    # A process that speaks one format need not load the others.
    writer = import_module(f"perdure.wire.{wire}.writing").groups_of
    return cast("Callable[[Iterable[Message]], list[Group]]", writer)


@cache
def _opening(wire: Wire) -> Item:
    return _writer(wire)([_FRONT])[0].items[0]


def _holds_unknown(messages: Sequence[Message]) -> bool:
    for message in messages:
        for part in message.parts:
            if isinstance(part, Unknown) or (
                isinstance(part, ToolResult) and any(isinstance(p, Unknown) for p in part.content)
            ):
                return True
    return False


def _made(items: list[Item], wire: Wire) -> list[Item]:
    if wire == "responses":
        return sendable(items)
    return [_in_blocks(item) for item in items] if wire == "messages" else items


def _begin_with_user(found: list[EncodedPiece]) -> None:
    first = next((item for each in found for item in each.items), None)
    if first is not None and first["role"] != "user":
        from perdure.wire.repair import FIRST

        block = {"text": FIRST, "type": "text"}
        found.insert(0, EncodedPiece(PromptPiece(()), [{"content": [block], "role": "user"}]))


def _renamed(fit: Sequence[Message], clash: frozenset[str], place: RoundId | None) -> list[Message]:
    names = {name: f"call_{uuid5(_IDS, sound(f'{place} {name}')).hex}" for name in clash}

    def part(part: Part) -> Part:
        if isinstance(part, ToolCall) and part.id in names:
            return replace(part, id=names[part.id])
        if isinstance(part, ToolResult) and part.call in names:
            return replace(part, call=names[part.call])
        return part

    return [replace(each, parts=tuple(map(part, each.parts))) for each in fit]


def _in_blocks(item: Item) -> Item:
    content = item["content"]
    if isinstance(content, str):
        return {**item, "content": [{"type": "text", "text": content}]}
    return item


#: What is in them is the model's own, or a tool's: it stays as it is.
_AS_IT_IS = frozenset({"input", "arguments", "parameters", "input_schema", "action", "operation"})
#: Those of callers are left out: providers take few, and they are ours to place.
MARKERS: Final = frozenset({"cache_control", "prompt_cache_breakpoint"})


def _in_order(value: Any) -> Any:
    if isinstance(value, dict):
        return {
            name: value[name]
            if name in _AS_IT_IS or (name == "output" and isinstance(value[name], dict))
            else _in_order(value[name])
            for name in sorted(value)
            if name not in MARKERS
        }
    if isinstance(value, list):
        return [_in_order(inner) for inner in value]
    return value


def copied(value: Any) -> Any:
    # Almost all of it is text in small dicts: only what is nested takes a call of its own.
    kind = value.__class__
    if kind is dict:
        new = value.copy()
        for name, inner in value.items():
            if inner.__class__ is dict or inner.__class__ is list:
                new[name] = copied(inner)
        return new
    if kind is list:
        return [copied(inner) for inner in value]
    return value


#: Responses items that are whole without the name that the provider gave them. It keeps nothing for
#: us, so a name says nothing, and one that it does not find is an error.
_NAMELESS = frozenset({"message", "reasoning", "web_search_call", *CALLS, *OUTPUTS}) - {
    "computer_call",
    "local_shell_call",
    "local_shell_call_output",
}


def sendable(items: list[Item]) -> list[Item]:
    """Without names, and without items that a name stands for."""
    return _led([_forgotten(item) for item in items if not _is_lost(item)])


def named_once(items: list[Item]) -> list[Item]:
    """Of items with the same name, only the first. A call goes on without it."""
    names, out = set[str](), list[Item]()
    for item in items:
        name, kind = item.get("id"), kind_of(item)
        # The output of a local shell has its call's id under this name.
        if isinstance(name, str) and kind != "local_shell_call_output":
            if name in names and kind not in CALLS and kind not in OUTPUTS:
                continue
            if name in names:
                del item["id"]
            names.add(name)
        out.append(item)
    return items if len(out) == len(items) else _led(out)


def _is_lost(item: Item) -> bool:
    kind = kind_of(item)
    if kind == "reasoning":
        return not item.get("encrypted_content") and not item.get("content")
    return kind == "item_reference" or (not kind and "role" not in item)


def _forgotten(item: Item) -> Item:
    if "id" in item and (kind_of(item) in _NAMELESS or "type" not in item):
        return {name: value for name, value in item.items() if name != "id"}
    return item


def _led(items: list[Item]) -> list[Item]:
    """The items without thoughts of which nothing came: that may not have been kept."""
    out = list[Item]()
    after = ""
    for item in reversed(items):
        if kind_of(item) != "reasoning" or after == "assistant":
            after = side_of(item)
            out.append(item)
    return out[::-1]
