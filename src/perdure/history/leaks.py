"""Tags that models wrote because they read them: hidden where people look, and counted.

A view. The log keeps what was said, and so does what programs get: JSON and exports. Only what a
model answered is looked at; a user may well quote a tag, and what a tool printed is evidence.
"""

from __future__ import annotations

from collections.abc import Iterable

from msgspec.structs import replace

from perdure.core.display import plural
from perdure.core.messages import ArtifactPointer, Message, Part, Text
from perdure.core.turns import Turn
from perdure.history.tags import without_tags


def hidden_tags(messages: Iterable[Message]) -> tuple[tuple[Message, ...], int]:
    """The messages with tags of ours taken out of what models said, and how many there were.

    Of what lies in the artifact store, only the beginning that stands in its reference is seen.
    """
    shown, count = list[Message](), 0
    for message in messages:
        parts, leaked = _hidden(message) if message.role == "assistant" else ((), 0)
        shown.append(replace(message, parts=parts) if leaked else message)
        count += leaked
    return tuple(shown), count


def hidden_in(turn: Turn) -> tuple[Turn, int]:
    """The turn with tags of ours taken out of what models said, and how many there were."""
    found = [hidden_tags(round.messages) for round in turn.rounds]
    count = sum(leaked for _, leaked in found)
    if not count:
        return turn, 0
    rounds = tuple(
        replace(round, messages=messages)
        for round, (messages, _) in zip(turn.rounds, found, strict=True)
    )
    return replace(turn, rounds=rounds), count


def told(count: int) -> str:
    """``2 leaked tags hidden``."""
    return f"{plural(count, 'leaked tag')} hidden"


def _hidden(message: Message) -> tuple[tuple[Part, ...], int]:
    parts, count = list[Part](), 0
    for part in message.parts:
        shown: Part = part
        leaked = 0
        if isinstance(part, Text):
            text, leaked = without_tags(part.text)
            shown = replace(part, text=text) if leaked else part
        elif isinstance(part, ArtifactPointer):
            head, leaked = without_tags(part.head)
            shown = replace(part, head=head) if leaked else part
        parts.append(shown)
        count += leaked
    return tuple(parts), count
