"""A framework's own form of a message, folded over the canonical one.

Words, arguments and bytes that the canonical message has are not kept twice: in the framework's
form, each is replaced by a reference to its part, and the rest is kept in the message's `native`,
under the framework's name. `unfold` puts the form together again. So what is masked, moved to the
artifact store or forgotten is so in both.

    {"content": "List the files.", "id": "m1"}  →  {"content": {"$": [0]}, "id": "m1"}
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Iterable, Mapping
from contextlib import suppress
from typing import Any, TypeAlias

import msgspec
from msgspec.structs import replace

from perdure.core.messages import Media, Message, Part, Reasoning, Text, ToolCall, ToolResult, event
from perdure.sessions.session import Session

_REF = "$"
_SHORT = 12  # Characters of a text that is kept twice: a reference would take more.
Path: TypeAlias = tuple[int, ...]


def fold(message: Message, framework: str, form: Mapping[str, Any]) -> Message:
    """The message with the framework's form of it, which is plain data as JSON has it."""
    texts, objects = _contents(message)
    kept = _folded(form, texts, objects)
    return replace(message, native={**message.native, framework: {"form": kept}})


def unfold(message: Message, framework: str) -> dict[str, Any] | None:
    """The framework's form of a message whose content is resolved; None if it has none."""
    found = message.native.get(framework)
    if found is None or "form" not in found:
        return None
    form: dict[str, Any] = _unfolded(found["form"], message)
    return form


def unfold_all(messages: Iterable[Message], framework: str) -> list[dict[str, Any]]:
    """The forms of those that have one, oldest first."""
    return [form for each in messages if (form := unfold(each, framework)) is not None]


async def all_messages(session: Session, *, undone: bool = False) -> list[Message]:
    """Of the turns that were not undone, or of all; oldest first, with their content."""
    found: list[Message] = []
    async for turn in session.read(undone=undone):
        found += await session.resolve(turn.messages)
    return found


def folded_event(framework: str, kind: str, form: Mapping[str, Any]) -> Message:
    """What the framework keeps in the conversation and nobody said."""
    return fold(event(kind), framework, form)


def arguments_text(arguments: Any) -> str:
    """Arguments of a call as the canonical form has them: JSON."""
    return arguments if isinstance(arguments, str) else msgspec.json.encode(arguments).decode()


def _contents(message: Message) -> tuple[dict[str, Path], list[tuple[Any, Path]]]:
    """Where which text, and which object, is in a message."""
    texts: dict[str, Path] = {}
    objects: list[tuple[Any, Path]] = []
    for at, part in enumerate(message.parts):
        if isinstance(part, ToolResult):
            for inside, each in enumerate(part.content):
                _note(each, (at, inside), texts, objects)
        else:
            _note(part, (at,), texts, objects)
    return texts, objects


def _note(part: Part, path: Path, texts: dict[str, Path], objects: list[tuple[Any, Path]]) -> None:
    if isinstance(part, Text | Reasoning):
        if len(part.text) >= _SHORT:
            texts.setdefault(part.text, path)
    elif isinstance(part, ToolCall):
        if len(part.arguments) >= _SHORT:
            texts.setdefault(part.arguments, path)
            with suppress(msgspec.DecodeError):
                objects.append((msgspec.json.decode(part.arguments), path))
    elif isinstance(part, Media) and part.data:
        texts.setdefault(base64.b64encode(part.data).decode(), path)


def _folded(value: Any, texts: dict[str, Path], objects: list[tuple[Any, Path]]) -> Any:
    if isinstance(value, str):
        found = texts.get(value) if len(value) >= _SHORT else None
        return value if found is None else {_REF: list(found)}
    if isinstance(value, Mapping):
        if objects and value:
            for known, path in objects:
                if known == value:
                    return {_REF: list(path), "as": "object"}
        inner = {name: _folded(each, texts, objects) for name, each in value.items()}
        return {_REF: None, "of": inner} if _REF in inner else inner
    if isinstance(value, list | tuple):
        return [_folded(each, texts, objects) for each in value]
    return value


def _unfolded(value: Any, message: Message) -> Any:
    if isinstance(value, dict):
        if _REF not in value:
            return {name: _unfolded(each, message) for name, each in value.items()}
        if value[_REF] is None:
            return {name: _unfolded(each, message) for name, each in value["of"].items()}
        text = _text_at(message, tuple(value[_REF]))
        with suppress(msgspec.DecodeError):  # a mask may have broken it
            return msgspec.json.decode(text) if "as" in value else text
        return text
    if isinstance(value, list):
        return [_unfolded(each, message) for each in value]
    return value


def _text_at(message: Message, path: Path) -> str:
    part: Part = message.parts[path[0]]
    if len(path) > 1 and isinstance(part, ToolResult):
        part = part.content[path[1]]
    if isinstance(part, Text | Reasoning):
        return part.text
    if isinstance(part, ToolCall):
        return part.arguments
    if isinstance(part, Media):
        return base64.b64encode(part.data or b"").decode()
    return ""


def is_plain(value: Any) -> bool:
    """Whether JSON gives a value back as it is."""
    if isinstance(value, dict):
        return all(type(name) is str and is_plain(each) for name, each in value.items())
    if type(value) is list:
        return all(map(is_plain, value))
    if type(value) is int:
        return abs(value) < 2**63
    return value is None or type(value) in (str, float, bool)


def parts_of(content: Any) -> list[Part]:
    """The parts of a content that is a text, or a list of texts and blocks as providers have them.
    Blocks of other kinds are in the framework's form only.
    """
    if isinstance(content, str):
        return [Text(content)] if content else []
    found: list[Part] = []
    for block in content if isinstance(content, list | tuple) else ():
        if isinstance(block, str):
            found.append(Text(block))
        elif isinstance(block, Mapping):
            part = _part_of(block)
            if part is not None:
                found.append(part)
    return found


def _part_of(block: Mapping[str, Any]) -> Part | None:
    kind = block.get("type")
    if isinstance(block.get("text"), str) and kind in {"text", "input_text", "output_text", None}:
        return Text(block["text"])
    for name in ("thinking", "reasoning"):
        if kind in {"thinking", "reasoning"} and isinstance(block.get(name), str):
            return Reasoning(block[name])
    given = block.get("source")
    source = given if isinstance(given, Mapping) else block
    data = source.get("data") or source.get("base64")
    media = media_bytes(data) if isinstance(data, str) else None
    if media is None:
        return None
    named = source.get("media_type") or source.get("mime_type")
    return Media(named if isinstance(named, str) else "application/octet-stream", data=media)


def media_bytes(data: str) -> bytes | None:
    """Of base64; None if it is something else, or would not come back as it was."""
    try:
        found = base64.b64decode(data, validate=True)
    except (binascii.Error, ValueError):
        return None
    return found if found and base64.b64encode(found).decode() == data else None
