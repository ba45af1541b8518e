"""What a session has of a conversation whose file was written anew."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Self

import msgspec

from perdure.bank.session import Session
from perdure.core.messages import Message
from perdure.importers.steps import PIECE


class Known:
    """Tells which messages of a file a session has already.

    They are known again by what does not change when a file is copied: the ids of tool calls, the
    provider's name of a reply, or the moment when they were said, and then by their number. What
    has none of these is always new. Of a turn that was forgotten only its times are known: what
    was said between them stays forgotten.
    """

    def __init__(self) -> None:
        self._parts: dict[str, int] = {}
        self._forgotten: list[tuple[int, int]] = []  # from when to when
        #: Something new was seen. What comes before was there already, undone turns included.
        self.passed = False

    @classmethod
    async def of(cls, session: Session, own: Iterable[int] = ()) -> Self:
        """What this session has; `own` are the turns that came from the file."""
        known, opened = cls(), set(own)
        async for turn in session.read(undone=True):
            if turn.status == "forgotten" and turn.number in opened:
                known._forgotten.append((turn.started, turn.ended))
            for message in turn.messages:
                name = _identity(message)
                known._parts[name] = known._parts.get(name, 0) + _weight(message)
        return known

    def news(self, message: Message) -> Message | None:
        """What of the message is new: all, some parts of a reply, or nothing."""
        if self._is_forgotten(message):
            return None
        name = _identity(message)
        left = self._parts.get(name, 0) if name else 0
        self._parts[name] = max(left - _weight(message), 0)
        if left >= _weight(message):
            return None
        self.passed = True
        if not left:
            return message
        return msgspec.structs.replace(message, parts=message.parts[left:], usage=None)

    def _is_forgotten(self, message: Message) -> bool:
        """Whether it was said during a turn of the file that was forgotten since."""
        moment = message.time
        return moment is not None and any(
            started <= moment <= ended for started, ended in self._forgotten
        )


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
