"""What a history strategy shows of a session: the values that a prompt is assembled from.

A strategy decides which rounds stand in a window, and how; `context.assembly` makes messages of it.
Everything here is resolved: no reference to an artifact, nothing to be read.
"""

from __future__ import annotations

import msgspec

from perdure.core.messages import Message
from perdure.history.manifest import Element, Place


class Block(msgspec.Struct, frozen=True, gc=False):
    """A text element: an old turn, a part of one, a range."""

    element: Element
    #: As it is sent, in its tags, escaped.
    text: str
    #: Why it stands there at this level, in a few words.
    why: str = ""


class Native(msgspec.Struct, frozen=True, gc=False):
    """A round that is shown as it was said."""

    place: Place
    #: As they are sent, but for tags: resolved, reduced if they did not fit. Events left out.
    messages: tuple[Message, ...]
    tokens: int
    #: What the round takes raw.
    raw: int
    #: What its model thought is still valid: nothing in front of it has changed since.
    thinking: bool = False
    #: It is shown in part.
    reduced: bool = False


class Injected(msgspec.Struct, frozen=True, gc=False):
    """What was put in front of the prompt of a turn, once, and stands there until an epoch."""

    turn: int
    text: str
    tokens: int
    #: The strategy that it was sent by; empty: that which shows it.
    strategy: str = ""


class Shown(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """What is shown of a history."""

    #: Text, oldest first. An element that stands for rounds behind the first native one is sent in
    #: its place, with the next prompt.
    blocks: tuple[Block, ...] = ()
    rounds: tuple[Native, ...] = ()
    #: Of the native turns.
    injected: tuple[Injected, ...] = ()
    #: The turn under way; or, until the next epoch, one whose prompt stands apart (see `prompt`).
    open_turn: int | None = None
    #: The prompt of that turn, if its first round is not among `rounds`: an epoch was made inside
    #: the turn, and whatever becomes of the round, its prompt is sent as it was.
    prompt: tuple[Message, ...] = ()
    #: Turns are wrapped in elements named after them.
    tagged: bool = True
    #: How often the window was planned anew.
    epoch: int = 0
    #: Rounds up to this one are not shown at all.
    hidden: Place = Place(0, 0)
    #: Tokens of the whole history, raw.
    raw: int = 0

    @property
    def begins_inside(self) -> bool:
        """Whether the first native round is not the first of its turn: its tag stands alone."""
        return self.tagged and bool(self.rounds) and self.rounds[0].place.round > 1
