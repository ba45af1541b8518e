"""What our own hooks put into a client's conversation, and how it is taken out before it is stored.

Clients hand it to the model in the user's or the system's name, some inside a reminder of their
own. If it were stored, the next recall would find what the last one said.
"""

from __future__ import annotations

import re

import msgspec

from perdure.core.messages import Message, Part, Text
from perdure.history.turn_tags import escape

OPEN, CLOSE = '<perdure-memory source="hook">', "</perdure-memory>"
#: A client may cut long text: then it goes to the end.
_ours = re.compile(rf"{re.escape(OPEN)}.*?(?:{re.escape(CLOSE)}|\Z)", re.DOTALL)
#: What is left of Claude Code's own words around it.
_SAID = r"(?:SessionStart|UserPromptSubmit)(?::\w+)? hook additional context:\s*"
_around = re.compile(rf"<system-reminder>\s*{_SAID}</system-reminder>\s*|^{_SAID}", re.MULTILINE)


def hook_context(text: str) -> str:
    """The element that a hook prints; what it says can neither end it nor open another."""
    return f"{OPEN}\n{escape(text.strip())}\n{CLOSE}"


def without_hook_context(message: Message) -> Message | None:
    """The message without what hooks put in; None if nothing else was in it."""
    if message.role == "assistant":
        return message
    parts: list[Part] = []
    for part in message.parts:
        if isinstance(part, Text) and OPEN in part.text:
            rest = _around.sub("", _ours.sub("", part.text))
            if not rest.strip():
                continue
            parts.append(msgspec.structs.replace(part, text=rest))
        else:
            parts.append(part)
    if len(parts) == len(message.parts) and all(map(_same, parts, message.parts)):
        return message
    return msgspec.structs.replace(message, parts=tuple(parts)) if parts else None


def _same(one: Part, other: Part) -> bool:
    return one is other
