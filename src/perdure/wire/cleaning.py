"""First half of a repair: each message by itself, without what no API takes."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import Any, TypeVar

from msgspec.structs import replace

from perdure.core.messages import (
    Media,
    Message,
    Native,
    Part,
    Reasoning,
    Text,
    ToolCall,
    ToolResult,
    Unknown,
)
from perdure.wire.formats import codec
from perdure.wire.limits import RULES, Limits
from perdure.wire.media import stand_in
from perdure.wire.notes import NOTES
from perdure.wire.plain import kind_of, verbatim
from perdure.wire.responses.form import CALLS, OUTPUTS, side_of
from perdure.wire.rules import is_name

UNNAMED = "unnamed"

_Named = TypeVar("_Named", Message, Text, ToolCall, ToolResult)

_not_in_names = re.compile(r"[^a-zA-Z0-9_-]")


def cleaned(messages: Iterable[Message], limits: Limits) -> list[Message]:
    """The messages, each with at least one part that it may have; events as they are."""
    seen: set[str] = set()  # names of Responses items, which may not be sent twice
    clean: list[Message] = []
    for message in messages:
        if message.role == "event":
            clean.append(message)
            continue
        for piece in _split(message):
            parts = _parts(piece, limits, seen)
            whole = piece if parts == piece.parts else replace(piece, parts=parts)
            sound = _in_shape(_once(whole, limits, seen), limits)
            if sound.parts or sound.native.get("chat", {}).get("audio"):
                clean.append(sound)
    return clean


def _split(message: Message) -> list[Message]:
    results = [part for part in message.parts if isinstance(part, ToolResult)]
    others = [part for part in message.parts if not isinstance(part, ToolResult)]
    if message.role == "tool":
        if not results and not all(isinstance(part, Unknown) for part in others):
            return [_as_user(message, others)]
        if _comes_first(message.parts):
            return [message]
    elif not results:
        return [message]
    elif message.role == "assistant":
        return [replace(message, parts=tuple(others)), Message("tool", tuple(results))]
    # Its own fields were those of another kind of message.
    native = message.native if message.role == "tool" else {}
    return [replace(message, role="tool", parts=(*results, *others), native=native)]


def _comes_first(parts: tuple[Part, ...]) -> bool:
    words = False
    for part in parts:
        if isinstance(part, ToolResult):
            if words:
                return False
        elif not isinstance(part, Unknown) or part.wire != "responses":
            words = True
    return True


def _as_user(message: Message, parts: Sequence[Part]) -> Message:
    kept = tuple(part for part in parts if not isinstance(part, Unknown))
    return Message("user", kept, time=message.time, injected=True)


def _parts(message: Message, limits: Limits, seen: set[str]) -> tuple[Part, ...]:
    parts: list[Part] = []
    for part in message.parts:
        kept = _part(part, message, limits, seen)
        if kept is not None:
            parts.append(kept)
    return tuple(
        part
        for at, part in enumerate(parts)
        if not isinstance(part, Reasoning) or _led_somewhere(parts[at + 1 :], message.wire)
    )


def _led_somewhere(parts: list[Part], wire: str) -> bool:
    for part in parts:
        if isinstance(part, Unknown):
            return part.wire == wire and _is_from_model(part, wire)
        if not isinstance(part, Reasoning):
            return True
    return False


def _is_from_model(part: Unknown, wire: str) -> bool:
    return wire != "responses" or side_of(verbatim(part)) == "assistant"


def _part(part: Part, message: Message, limits: Limits, seen: set[str]) -> Part | None:
    if isinstance(part, Text):
        return _once(part, limits, seen) if part.text.strip() else None
    if isinstance(part, Reasoning):
        fits = message.role == "assistant" and _is_signed(part, message.wire)
        return part if fits and _is_new(part.native, limits, seen) else None
    if isinstance(part, ToolCall):
        return _once(_named(part, limits), limits, seen) if message.role == "assistant" else None
    if isinstance(part, ToolResult):
        return _once(_result(part, message, limits), limits, seen)
    if isinstance(part, Unknown):
        return part if _is_sound(part, message, limits, seen) else None
    if isinstance(part, Media) and _is_misplaced(message):
        return Text(stand_in(part))
    return part


def _is_signed(part: Reasoning, wire: str) -> bool:
    return wire != "messages" or part.signature is not None or part.encrypted is not None


def _is_misplaced(message: Message) -> bool:
    places = {"chat": ("user",), "messages": ("user", "tool")}
    return message.role not in places.get(message.wire, (message.role,))


def _named(call: ToolCall, limits: Limits) -> ToolCall:
    if is_name(call.name, limits.tool_name):
        return call
    return replace(call, name=_legal(call.name, limits))


def _legal(name: str, limits: Limits) -> str:
    return _not_in_names.sub("_", name)[: limits.tool_name] or UNNAMED


def _result(result: ToolResult, message: Message, limits: Limits) -> ToolResult:
    content: list[Any] = []
    for part in result.content:
        if isinstance(part, Text) and not part.text.strip():
            continue
        if isinstance(part, Unknown) and not _is_sound(part, message, limits, set()):
            continue
        if isinstance(part, Media) and (_is_misplaced(message) or _only_text(result, limits)):
            content.append(Text(stand_in(part)))
        elif not isinstance(part, Unknown) or not _only_text(result, limits):
            content.append(part)
    if result.name and not is_name(result.name, limits.tool_name):
        result = replace(result, name=_legal(result.name, limits))
    return result if tuple(content) == result.content else replace(result, content=tuple(content))


def _only_text(result: ToolResult, limits: Limits) -> bool:
    return result.is_error and limits.wire in {None, "messages"}


def _is_sound(part: Unknown, message: Message, limits: Limits, seen: set[str]) -> bool:
    rules = RULES.get(part.wire)
    if rules is None:
        return True
    data = verbatim(part)
    kind = kind_of(data)
    if part.wire == "responses" and message.role in {"assistant", "tool"}:
        known = kind in {"message", "reasoning"} or kind in CALLS or kind in OUTPUTS
        if known or rules.shape_violations([data]):
            return False
        return not isinstance(name := data.get("id"), str) or _is_new(
            {part.wire: {"id": name}}, limits, seen
        )
    if kind in {"tool_use", "tool_result", "thinking", "redacted_thinking"}:
        return False
    role = "user" if message.role == "tool" and part.wire != "chat" else message.role
    return not rules.shape_violations([{"role": role, "content": [data]}])


def _in_shape(message: Message, limits: Limits) -> Message:
    for wire, rules in RULES.items():
        if limits.wire not in {None, wire} or not message.parts or not _has_form(message, wire):
            continue
        if rules.shape_violations(codec(wire).encode([message])):
            parts = tuple(_afresh(part, wire) for part in message.parts)
            message = replace(message, parts=parts, native=_without(message.native, wire))
    return message


def _has_form(message: Message, wire: str) -> bool:
    return wire in message.native or any(_keeps_form(part, wire) for part in message.parts)


def _keeps_form(part: Part, wire: str) -> bool:
    if isinstance(part, Unknown):
        return part.wire == wire
    if isinstance(part, ToolResult) and any(_keeps_form(inner, wire) for inner in part.content):
        return True
    return wire in part.native


def _afresh(part: Any, wire: str) -> Any:
    if isinstance(part, ToolResult):
        part = replace(part, content=tuple(_afresh(inner, wire) for inner in part.content))
    if isinstance(part, Unknown) or wire not in part.native:
        return part
    return replace(part, native=_without(part.native, wire))


def _without(native: Native, wire: str) -> Native:
    return {name: fields for name, fields in native.items() if name != wire}


def _once(value: _Named, limits: Limits, seen: set[str]) -> _Named:
    if _is_new(value.native, limits, seen):
        return value
    own = dict(value.native["responses"])
    own.pop("id", None)
    notes = own.get(NOTES, {})
    if "id" in notes.get("item", {}).get("fields", {}):
        item = notes["item"]
        fields = {name: field for name, field in item["fields"].items() if name != "id"}
        own[NOTES] = notes | {"item": item | {"fields": fields}}
    return replace(value, native=value.native | {"responses": own})


def _is_new(native: Native, limits: Limits, seen: set[str]) -> bool:
    own = native.get("responses")
    if not own or limits.wire not in {None, "responses"}:
        return True
    inner = own.get(NOTES, {}).get("item", {}).get("fields", {})
    names = [fields["id"] for fields in (own, inner) if isinstance(fields.get("id"), str)]
    if any(name in seen for name in names):
        return False
    seen.update(names)
    return True
