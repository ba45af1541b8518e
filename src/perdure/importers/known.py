"""What a session has of a conversation whose file was written anew."""

from __future__ import annotations

from typing import Self

import msgspec

from perdure.core.messages import Message
from perdure.importers.steps import PIECE
from perdure.session import Session


class Known:
    """Tells which messages of a file a session has already.

    They are known again by what does not change when a file is copied: the ids of tool calls, the
    provider's name of a reply, or the moment when they were said, and then by their number. What
    has none of these is always new.
    """

    def __init__(self) -> None:
        self._parts: dict[str, int] = {}
        #: Something new was seen. What comes before was there already, undone turns included.
        self.passed = False

    @classmethod
    async def of(cls, session: Session) -> Self:
        """What this session has."""
        known = cls()
        async for turn in session.read(undone=True):
            for message in turn.messages:
                name = _identity(message)
                known._parts[name] = known._parts.get(name, 0) + _weight(message)
        return known

    def news(self, message: Message) -> Message | None:
        """What of the message is new: all, some parts of a reply, or nothing."""
        name = _identity(message)
        left = self._parts.get(name, 0) if name else 0
        self._parts[name] = max(left - _weight(message), 0)
        if left >= _weight(message):
            return None
        self.passed = True
        if not left:
            return message
        return msgspec.structs.replace(message, parts=message.parts[left:], usage=None)


def _weight(message: Message) -> int:
    return max(len(message.parts), 1)


def _identity(message: Message) -> str:
    if message.results:
        return "results " + " ".join(result.call for result in message.results)
    if message.id and not message.id.startswith(PIECE):
        return f"id {message.id}"
    if message.calls:
        return "calls " + " ".join(call.id for call in message.calls)
    return "" if message.time is None else f"{message.role} {message.name} {message.time}"
