"""Objects of provider libraries as plain data, and the check that what was decoded can be stored.

Neither `openai` nor `anthropic` is imported: their objects are known by having ``model_dump``.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias

import msgspec
from msgspec.structs import replace

from perdure.core.errors import InvalidInput
from perdure.core.messages import Message, ToolResult, Unknown, sound

#: A message, an item or a content block, as a wire format writes it.
Item: TypeAlias = dict[str, Any]

#: The only key of what is unknown and had to be written down as text to be stored.
AS_JSON = "perdure_json"

# Not all objects that have one of these say that it is not to be sent.
_PARSED = frozenset({"parsed", "parsed_arguments", "parsed_output"})

# Unlike the log's own, this one does not put up with half surrogate pairs.
_store = msgspec.msgpack.Encoder().encode


def kind_of(block: Any) -> str:
    kind = block.get("type") if isinstance(block, dict) else None
    return kind if isinstance(kind, str) else ""


def role_of(item: Any) -> str:
    role = item.get("role") if isinstance(item, dict) else None
    return role if isinstance(role, str) else ""


def plain(value: Any) -> Any:
    """Replaces objects of provider libraries by dictionaries that can be sent back: fields that
    were set, under the provider's names, without what its library adds (``parsed``).
    """
    if isinstance(value, str | int | float | bytes | None):
        return value
    if isinstance(value, Mapping):
        return {key: plain(item) for key, item in value.items()}
    if isinstance(value, Sequence):
        return [plain(item) for item in value]
    if is_object(value):
        dumped = value.model_dump(mode="json", exclude_unset=True, by_alias=True, warnings=False)
        return _without_extras(dumped, value)
    return value


def is_object(value: Any) -> bool:
    return callable(getattr(value, "model_dump", None)) and not isinstance(value, type)


def _without_extras(dumped: Any, source: Any) -> Any:
    if isinstance(dumped, dict):
        extras = getattr(source, "__api_exclude__", None) or ()
        # A nested exclusion is a mapping whose values are not True; those are seen to below.
        whole = {name for name in extras if not isinstance(extras, Mapping) or extras[name] is True}
        whole |= _PARSED if is_object(source) else set()
        return {
            name: _without_extras(value, _field(source, name))
            for name, value in dumped.items()
            if name not in whole
        }
    if isinstance(dumped, list) and isinstance(source, list) and len(dumped) == len(source):
        return [_without_extras(value, item) for value, item in zip(dumped, source, strict=True)]
    return dumped


def _field(source: Any, name: str) -> Any:
    return source.get(name) if isinstance(source, Mapping) else getattr(source, name, None)


def decoded(
    items: list[Any], decode: Callable[[list[Any]], tuple[Message, ...]]
) -> tuple[Message, ...]:
    """What `decode` makes of the items, such that it can be stored.

    Library objects become plain data and half surrogate pairs U+FFFD; nothing is copied without
    need. Raises `InvalidInput` for what cannot be stored, such as whole numbers beyond 64 bits in a
    provider's own fields (in arguments and unknown blocks they are fine).
    """
    for item in items:
        if not isinstance(item, dict):
            items = [plain(each) for each in items]
            break
    try:
        messages = decode(items)
        _store(messages)
    except (TypeError, OverflowError, RecursionError, ValueError):
        found = decode(sound(plain(items)))
        messages = tuple(_storable(message, at) for at, message in enumerate(found))
    return messages


def _storable(message: Message, position: int) -> Message:
    try:
        message = replace(message, parts=tuple(_with_numbers(part) for part in message.parts))
        _store(message)
    except (TypeError, OverflowError, RecursionError, ValueError) as exc:
        raise InvalidInput(
            f"Message {position} ({message.role}) cannot be stored: {exc}.",
            hint="Pass what JSON can hold, with whole numbers of at most 64 bits.",
        ) from exc
    return message


def _with_numbers(part: Any) -> Any:
    """Unknown content becomes JSON if it holds numbers that cannot be stored."""
    if isinstance(part, ToolResult):
        return replace(part, content=tuple(_with_numbers(inner) for inner in part.content))
    if isinstance(part, Unknown):
        try:
            _store(part)
        except OverflowError:
            return Unknown(part.wire, {AS_JSON: json.dumps(part.data)})
    return part


def verbatim(part: Unknown) -> Any:
    """What came from the wire; a dictionary is a copy, which callers may change."""
    data = part.data
    if not isinstance(data, dict):
        return data
    return json.loads(data[AS_JSON]) if data.keys() == {AS_JSON} else dict(data)
