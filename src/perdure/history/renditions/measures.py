"""How much of what was said a rendition keeps."""

from __future__ import annotations

from collections.abc import Iterable

from perdure.core.messages import ArtifactPointer, Message, Text, words_of
from perdure.history.renditions.facts import facts, holds


def keeps(source_words: str, rendition: str) -> float | None:
    """The share of the named entities, numbers and paths of some words that a rendition names.

    Each counts once, however often it is named. None if there are none.
    """
    named = facts(source_words)
    if not named:
        return None
    lowered = rendition.casefold()
    return sum(holds(lowered, fact) for fact in named) / len(named)


def words_said(messages: Iterable[Message]) -> str:
    """What users and assistants said: no tools, no reasoning, no notes of a harness, no events."""
    return "\n".join(
        words_of(part)
        for message in messages
        if message.role in {"user", "assistant"} and not message.injected
        for part in message.parts
        if isinstance(part, Text | ArtifactPointer)
    )
