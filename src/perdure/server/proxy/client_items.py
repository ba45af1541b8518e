"""The items of clients' histories as canonical messages, and what is known of each.

A client sends the same items again and again. What was found out about one is remembered by a hash
of its bytes, so that only new items are parsed.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from typing import Any, Generic, TypeVar

import msgspec

from perdure.core.errors import InvalidInput
from perdure.core.messages import Media, Message, Part, Text, ToolResult, Unknown
from perdure.core.tokens import count_message
from perdure.gateway.providers import CallWire
from perdure.history.hook_context import without_hook_context
from perdure.history.message_identity import identities, is_injected
from perdure.server.proxy.alignment import ItemFacts, NewItem
from perdure.server.proxy.client_habits import is_summary
from perdure.server.proxy.client_request import decode_json
from perdure.services import Services
from perdure.wire import codec
from perdure.wire.responses.form import side_of

#: Items that are remembered; some hundred bytes each.
_KNOWN = 30_000
#: Seconds for which others wait while items are read.
_SLICE = 0.005
_SYSTEM = frozenset({"system", "developer"})
V = TypeVar("V")


class _KnownItems(Generic[V]):
    """What was found out about items, remembered by a hash of their bytes."""

    def __init__(self, find: Callable[[CallWire, msgspec.Raw], V]) -> None:
        self._find = find
        self._known: dict[tuple[CallWire, int, int], V] = {}
        #: The items that were asked about last, and the answer: one request asks several times.
        self._newest: tuple[object, list[V]] = (None, [])

    def of(self, wire: CallWire, items: Sequence[msgspec.Raw]) -> list[V]:
        if items is self._newest[0]:
            return self._newest[1]
        found = [self._one(wire, item) for item in items]
        if len(found) > 1:
            self._newest = items, found
        return found

    async def read(self, wire: CallWire, items: Sequence[msgspec.Raw]) -> list[V]:
        """The same; others run in between if it takes long, as for a history that is new here."""
        if items is not self._newest[0]:
            since = time.perf_counter()
            for item in items:
                self._one(wire, item)
                if time.perf_counter() - since > _SLICE:
                    await asyncio.sleep(0)
                    since = time.perf_counter()
        return self.of(wire, items)

    def _one(self, wire: CallWire, item: msgspec.Raw) -> V:
        raw = bytes(item)
        key = wire, len(raw), hash(raw)
        found = self._known.get(key)
        if found is None:
            found = self._known[key] = self._find(wire, item)
            if len(self._known) > _KNOWN:
                self._known.pop(next(iter(self._known)))
        return found


class ClientItems:
    """Reads items. One for all conversations."""

    def __init__(self, services: Services) -> None:
        self._services = services
        self.facts = _KnownItems(self._read)
        #: Of each item, in o200k tokens.
        self.tokens = _KnownItems(self._count)

    def _count(self, wire: CallWire, item: msgspec.Raw) -> int:
        counter = self._services.counter
        return sum(count_message(counter, each) for each in decoded(wire, [item]))

    def masked(self, messages: tuple[Message, ...]) -> tuple[Message, ...]:
        """With the secrets in their own texts masked, as they are stored."""
        return self._services.mask_messages(messages)

    def _read(self, wire: CallWire, item: msgspec.Raw) -> ItemFacts:
        messages = decoded(wire, [item])
        found = [each for message in messages for each in self.identities(message)]
        first = messages[0] if messages else Message("user")
        text = first.text if first.role == "user" else ""
        return ItemFacts(tuple(found), summary=is_summary(text), by_model=first.role == "assistant")

    def identities(self, message: Message) -> tuple[str, ...]:
        """Of a message as it would be stored."""
        if any(_may_hold_secret(part) for part in message.parts):
            # Results have no part in it, and are what is long.
            light = tuple(
                ToolResult(part.call, name=part.name) if isinstance(part, ToolResult) else part
                for part in message.parts
            )
            (message,) = self.masked((msgspec.structs.replace(message, parts=light),))
        return identities(message)


def _may_hold_secret(part: Part) -> bool:
    return isinstance(part, Text) or (isinstance(part, Media) and part.url is not None)


def new_messages(
    wire: CallWire, items: Sequence[msgspec.Raw], new: Sequence[NewItem]
) -> list[tuple[Message, list[int]]]:
    """The messages that new items make, each with its items. System text in front of everything is
    left out, and so are lists of tools: they belong to the request, not to the conversation. So is
    what our own hooks put in.
    """
    found: list[tuple[Message, list[int]]] = []
    group: list[int] = []
    side = ""
    for item, known in new:
        if _is_setting(items[item]):
            continue
        if known:
            found += _flushed(wire, items, group)
            found += _rest(wire, items, item, known)
            group, side = [], ""
            continue
        own = side_of(_plain(items[item])) if wire == "responses" else ""
        if not own or own == "other" or own != side:
            found += _flushed(wire, items, group)
            group = []
        group.append(item)
        side = own
    found += _flushed(wire, items, group)
    leading = _leading(items)
    return [
        (kept, of)
        for said, of in found
        if (of[0] >= leading or said.role not in _SYSTEM)
        and (kept := without_hook_context(said)) is not None
    ]


def _is_setting(item: msgspec.Raw) -> bool:
    """Whether the system sets something that is not said, as Codex' ``additional_tools`` does."""
    raw = bytes(item)
    if b'"developer"' not in raw and b'"system"' not in raw:
        return False
    said = _plain(item)
    return isinstance(said, dict) and said.get("role") in _SYSTEM and "content" not in said


def _leading(items: Sequence[msgspec.Raw]) -> int:
    """How many items stand in front of the first that is no system text."""
    for at, item in enumerate(items):
        said = _plain(item)
        if not isinstance(said, dict) or said.get("role") not in _SYSTEM:
            return at
    return len(items)


def _flushed(
    wire: CallWire, items: Sequence[msgspec.Raw], group: list[int]
) -> list[tuple[Message, list[int]]]:
    if not group:
        return []
    said = decoded(wire, [items[at] for at in group])
    return [(each, list(group)) for each in said if each.parts]


def _rest(
    wire: CallWire, items: Sequence[msgspec.Raw], item: int, known: int
) -> list[tuple[Message, list[int]]]:
    """What of an item is not recorded: the parts behind so many identities."""
    found: list[tuple[Message, list[int]]] = []
    for message in decoded(wire, [items[item]]):
        parts = list(message.parts)
        left = known
        while parts and left:
            one = msgspec.structs.replace(message, parts=(parts.pop(0),))
            left -= len(identities(one))
        if parts:
            rest = msgspec.structs.replace(message, parts=tuple(parts))
            if rest.role == "tool" and not rest.results:
                rest = msgspec.structs.replace(rest, role="user")
            found.append((_marked(rest), [item]))
    return found


def decoded(wire: CallWire, items: Sequence[msgspec.Raw]) -> list[Message]:
    """The canonical messages of items; what nobody can read is kept as it is."""
    plain = [_plain(item) for item in items]
    try:
        said = codec(wire).decode(plain)
    except (InvalidInput, TypeError, ValueError, RecursionError):
        said = tuple(_unknown(wire, item) for item in plain)
    return [_marked(message) for message in said]


def _marked(message: Message) -> Message:
    if is_injected(message):
        return msgspec.structs.replace(message, injected=True)
    return message


def _unknown(wire: CallWire, item: Any) -> Message:
    role = item.get("role") if isinstance(item, dict) else None
    return Message(
        "assistant" if role == "assistant" else "user",
        (Unknown(wire, item),),
        injected=role != "assistant",
        wire=wire,
    )


def _plain(item: msgspec.Raw) -> Any:
    try:
        said = decode_json(item)
    except ValueError:
        return None
    if isinstance(said, dict) and said.get("type") == "agent_message":
        # In Codex agents speak to each other: to the one that is asked, it is a prompt.
        return {"type": "message", "role": "user", "content": said.get("content")}
    return said
