"""Removes from appended messages what Perdure itself had put into the prompt. Some callers append
what they were sent: the whole list, or the prompt with the injection.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from msgspec.structs import replace

from perdure.context.context import Context
from perdure.core.messages import Message, Part, Text, sound
from perdure.history.turn_tags import closing, escape, opening, unescape
from perdure.wire import codec

_WIRES = ("chat", "responses", "messages")


def strip_echo(messages: Sequence[Message], context: Context) -> tuple[Message, ...]:
    """The messages that are new: to be written behind the context's prompt.

    Left out are a beginning that repeats the end, or all, of what was sent, in canonical form or
    any wire format; the prompt by itself; and in users' words the injected text and the tags of the
    prompt's turn, letter by letter. All else stays.
    """
    rest = list(messages)
    for sent in _sent(context, rest):
        if (known := _repeated(sent, rest)) > 0:
            rest = rest[known:]
            break
    else:
        rest = _without_prompt(rest, context)
    found = list[Message]()
    for message in rest:
        cleaned = _cleaned(message, context) if message.role == "user" else message
        if cleaned is not None:
            found.append(cleaned)
    return tuple(found)


def _sent(context: Context, given: Sequence[Message]) -> Iterable[Sequence[Message]]:
    """What was sent, as it may come back: in the forms that the given messages could have."""
    yield context.messages
    spoken = {message.wire for message in given}
    for wire in _WIRES:
        if wire in spoken:
            body = {
                "chat": context.to_chat,
                "responses": context.to_responses,
                "messages": context.to_messages,
            }[wire]()
            body.pop("tools", None)
            whole = codec(wire).decode(body)
            yield whole
            items = body["input" if wire == "responses" else "messages"]
            yield codec(wire).decode(items)


def _repeated(sent: Sequence[Message], given: Sequence[Message]) -> int:
    old, new = [_said(each) for each in sent], [_said(each) for each in given]
    for count in range(min(len(old), len(new)), 0, -1):
        if old[-count:] == new[:count]:
            return count
    return 0


def _without_prompt(given: list[Message], context: Context) -> list[Message]:
    prompt = [_said(each) for each in context.prompt]
    if prompt and [_said(each) for each in given[: len(prompt)]] == prompt:
        return given[len(prompt) :]
    return given


def _said(message: Message) -> tuple[str, list[Any]]:
    role = "user" if message.role == "tool" and not message.results else message.role
    return role, [_plain(part) for part in message.parts]


def _plain(part: Any) -> Any:
    if isinstance(part, Text):
        return sound(part.text)
    content = getattr(part, "content", None)
    if content is not None:
        return part.call, [_plain(inner) for inner in content]
    native = getattr(part, "native", None)
    return replace(part, native={}) if native else part


def _cleaned(message: Message, context: Context) -> Message | None:
    """A user's message without what the context put into it; None if nothing is left."""
    front = _in_front(context)
    parts, changed = list[Part](), False
    for part in message.parts:
        text = _bare(part.text, front, context) if isinstance(part, Text) else ""
        if not isinstance(part, Text) or text == part.text:
            parts.append(part)
            continue
        changed = True
        text = unescape(text)
        if text.strip() and not _is_prompt(text, context):
            parts.append(replace(part, text=text))
    if not changed:
        return message
    return replace(message, parts=tuple(parts)) if parts else None


def _bare(text: str, front: list[str], context: Context) -> str:
    """The text without what was put in front of the prompt: tags and old turns only there."""
    if context.injection is not None and context.injection.text:
        text = text.replace(context.injection.text, "", 1)
    rest = text
    while (ours := next((o for o in front if rest.lstrip("\n").startswith(o)), None)) is not None:
        rest = rest.lstrip("\n").removeprefix(ours)
        text = rest.removeprefix("\n")
    return text


def _in_front(context: Context) -> list[str]:
    if not context.shown.tagged:
        return []
    turns = [each.place.turn for each in context.shown.rounds if each.place.turn < context.turn]
    found = [closing(f"T-{turn}", "R") for turn in turns[-1:]]
    found.append(opening(f"T-{context.turn}", "R"))
    return [*found, *(block.text.strip("\n") for block in context.shown.blocks)]


def _texts(message: Message) -> list[str]:
    return [part.text for part in message.parts if isinstance(part, Text)]


def _is_prompt(text: str, context: Context) -> bool:
    said = "\n".join(text for each in context.prompt for text in _texts(each))
    return text.strip() in {said.strip(), escape(said).strip()}
