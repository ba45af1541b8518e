"""Answers of this process as they arrive, for those who show them at once.

The drafts of `answer_drafts` are for everybody, and up to a heartbeat old; this is neither stored
nor masked, and costs nothing while nobody listens.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal, Protocol
from weakref import WeakValueDictionary

import msgspec

from perdure.core.messages import Message

#: What a part is of which more arrives; ``other`` is one that comes whole.
DeltaOf = Literal["text", "reasoning", "call", "other"]


class AnswerChange(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """Something that happened to an answer. ``left`` ends it incomplete, as a draft."""

    session: str
    turn: int
    kind: Literal["began", "grew", "heartbeat", "written", "left"]
    #: If it grew: which part of it, from 0; what that is; how many characters of it were there
    #: before; what is new. A call begins with its id and name, and no text.
    part: int = 0
    of: DeltaOf = "text"
    at: int = 0
    text: str = ""
    id: str = ""
    name: str = ""


class ArrivingAnswer(Protocol):
    """An answer that is being written."""

    def so_far(self) -> Message: ...


AnswerListener = Callable[[AnswerChange], None]  # Called on the event loop. Must be quick.


class AnswerFeed:
    """Tells listeners what becomes of answers."""

    def __init__(self) -> None:
        self._listeners: list[AnswerListener] = []
        #: By session and turn.
        self.arriving: WeakValueDictionary[tuple[str, int], ArrivingAnswer] = WeakValueDictionary()

    @property
    def is_heard(self) -> bool:
        return bool(self._listeners)

    def listen(self, listener: AnswerListener) -> Callable[[], None]:
        """Returns what ends it."""
        self._listeners.append(listener)
        return lambda: self._listeners.remove(listener)

    def tell(self, change: AnswerChange) -> None:
        for listener in self._listeners:
            listener(change)
