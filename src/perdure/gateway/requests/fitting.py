"""Which of the messages, and which parts of them, go to a model."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

from msgspec.structs import replace

from perdure.core.errors import InvalidInput, NoModel
from perdure.core.messages import Media, Message, Part, Reasoning, Reference, ToolCall, ToolResult
from perdure.gateway.providers import CallWire
from perdure.wire import codec, repaired
from perdure.wire.plain import Item, kind_of

#: How providers date their models: ``claude-sonnet-4-5-20250929``, ``gpt-5-2025-08-07``.
_date = re.compile(r"-(?:20\d{2}-?\d{2}-?\d{2}|latest)$")

_WORDS = frozenset({"text", "input_text"})


def fitted(messages: Iterable[Message], wire: CallWire, model: str) -> tuple[Message, ...]:
    """The messages as this model may get them, sound by the rules of its wire format.

    Raises `InvalidInput` if one of them is not whole or if there is nothing to answer, and
    `NoModel` if the prompt shows something that the format has no way to show. What was shown
    earlier is named in words then, and so is what a tool showed where results hold text only.
    """
    whole = tuple(
        _own(message, at, wire, model)
        for at, message in enumerate(messages)
        if message.role != "event"
    )
    view = repaired(whole, wire)
    if all(message.role in {"system", "developer"} for message in view):
        raise InvalidInput(
            "There is no message to answer.", hint="Pass at least one message of a user."
        )
    _check_shown(view, wire)
    return view


def _own(message: Message, at: int, wire: CallWire, model: str) -> Message:
    for part in message.parts:
        _check_whole(part, at)
    if message.role == "assistant":
        if message.model and not _is_same(message.model, model):
            parts = tuple(part for part in message.parts if not isinstance(part, Reasoning))
            if len(parts) < len(message.parts):
                return replace(message, parts=parts)
    elif message.role == "user" and not message.wire and _names_files(message):
        # A file's name means something to the provider that gave it, so codecs write it only where
        # it came from. What came from nowhere is taken to be meant for whoever is asked.
        return replace(message, wire=wire)
    return message


def _names_files(message: Message) -> bool:
    return any(isinstance(part, Media) and part.file_id for part in message.parts)


def _is_same(one: str, other: str) -> bool:
    """Whether both names are of one model, dated or not, with or without who made it."""
    return _bare(one) == _bare(other)


def _bare(model: str) -> str:
    return _date.sub("", model.rpartition("/")[2].lower())


def _check_whole(part: Part, at: int) -> None:
    for inner in part.content if isinstance(part, ToolResult) else (part,):
        found = inner.reference if isinstance(inner, ToolCall) else inner
        if isinstance(found, Reference | Media) and found.artifact:
            raise InvalidInput(
                f"messages[{at}] holds a reference to {found.artifact}, not the content.",
                hint="Pass the messages through `session.resolve` first.",
            )


def _check_shown(messages: Sequence[Message], wire: CallWire) -> None:
    """That what the user shows now, since the last reply, is seen."""
    for message in reversed(messages):
        if message.role == "assistant":
            return
        if message.role != "user":
            continue
        for part in message.parts:
            if isinstance(part, Media) and not _is_shown(part, message, wire):
                what = part.media_type or "file"
                raise NoModel(
                    f"The wire format {wire} cannot show this {what} to a model.",
                    hint="Pass it in another form (its bytes, or an address), or ask a model of"
                    " another provider.",
                )


def _is_shown(part: Media, message: Message, wire: CallWire) -> bool:
    items: list[Item] = codec(wire).encode([replace(message, parts=(part,), native={})])
    content = items[0]["content"] if items else ""
    return not isinstance(content, str) and kind_of(content[0]) not in _WORDS
