"""A manifest: which rounds are shown in a window, at which level.

It names elements, oldest first. An *element* is text for a round, some rounds of a turn, a turn, or
a range of turns. Raw rounds follow as native messages, from `native` on. A manifest holds no text:
the planner (`gradient_planner`) decides it and an epoch records it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import msgspec

from perdure.core.levels import Level
from perdure.core.messages import Message
from perdure.core.turns import Position
from perdure.history.turn_tags import name_of


class RoundId(msgspec.Struct, frozen=True, array_like=True, order=True, gc=False):
    """A round: its turn, and its number in it."""

    turn: int
    round: int = 1

    def __str__(self) -> str:
        return f"T-{self.turn}.{self.round}"


class Element(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """Text for a stretch of rounds."""

    level: Level
    first: RoundId
    last: RoundId
    whole: bool  # It stands for all rounds of its turns, and is named after them.
    #: What it takes in a prompt, its tags included. An upper bound until it is rendered.
    tokens: int
    raw: int  # What it stands for takes in o200k tokens.
    generation: int = 0  # 0: renditions, one after the other. Above: a range, merged so many times.
    #: Which rendition of each round (of the turn, at T) it was made from: see
    #: `rendition_records`.
    variants: bytes = b""
    digest: bytes = b""  # Of its text; empty until it is rendered.
    cap: int = 0  # To so many tokens each of its rounds is cut; 0: none is so long.

    @property
    def name(self) -> str:
        """``T-183``, ``T-183.4``, ``T-50-through-100``, ``T-183.1-through-183.40``."""
        if self.whole:
            return name_of(Position(self.first.turn), Position(self.last.turn))
        first, last = self.first, self.last
        return name_of(Position(first.turn, first.round), Position(last.turn, last.round))

    def covers(self, turn: int) -> bool:
        return self.first.turn <= turn <= self.last.turn


class Reduced(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A raw round that did not fit, and its limit in tokens."""

    place: RoundId
    tokens: int


class EpochManifest(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """What a window shows. The empty one shows everything raw."""

    elements: tuple[Element, ...] = ()  # All rounds in front of `native`, oldest first.
    #: Whole turns at a level that somebody asked for, instead of the gradient's.
    pins: tuple[Element, ...] = ()
    native: RoundId = RoundId(1)  # The first round that is shown as native messages.
    #: The round that was about to be made when this was decided. What a model thought before it is
    #: void, and what was injected before its turn is gone.
    at: RoundId = RoundId(1)
    reduced: tuple[Reduced, ...] = ()  # Native rounds that are shown in part.
    hidden: RoundId = RoundId(0, 0)  # Rounds up to this one are not shown: they do not fit.

    def shown(self) -> Iterator[Element]:
        pins = {pin.first.turn: pin for pin in self.pins}
        if not pins:
            yield from self.elements
            return
        placed = set[int]()
        for element in self.elements:
            turn = element.first.turn
            pin = pins.get(turn) if element.last.turn == turn and not element.generation else None
            if pin is not None:
                if turn not in placed:
                    placed.add(turn)
                    yield pin
                continue
            if turn not in placed or element.last.turn != turn:
                yield element
            for covered in sorted(pins.keys() - placed):
                if element.last.turn == covered == turn or (
                    element.whole and element.covers(covered)
                ):
                    placed.add(covered)
                    yield pins[covered]
        for turn in sorted(pins.keys() - placed):
            if turn >= self.native.turn:
                yield pins[turn]

    def is_native(self, place: RoundId) -> bool:
        return place >= self.native and all(pin.first.turn != place.turn for pin in self.pins)

    def cap(self, place: RoundId) -> int | None:
        return next((each.tokens for each in self.reduced if each.place == place), None)


class Band(msgspec.Struct, frozen=True, gc=False):
    """A run of neighbours at one level."""

    level: Level
    #: ``T-50``, or ``T-183.4``.
    first: str
    last: str
    tokens: int
    raw: int  # What it stands for takes in o200k tokens.


def bands(parts: Iterable[tuple[Level, RoundId, RoundId, int, int]]) -> list[Band]:
    found = list[Band]()
    for level, first, last, tokens, raw in parts:
        if found and found[-1].level == level:
            before = found[-1]
            found[-1] = Band(
                level, before.first, str(last), before.tokens + tokens, before.raw + raw
            )
        else:
            found.append(Band(level, str(first), str(last), tokens, raw))
    return found


class ShownBlock(msgspec.Struct, frozen=True, gc=False):
    """A text element: an old turn, a part of one, a range."""

    element: Element
    text: str  # As it is sent, in its tags, escaped.
    why: str = ""  # Why it stands there at this level, in a few words.


class Native(msgspec.Struct, frozen=True, gc=False):
    """A round that is shown as native messages."""

    place: RoundId
    #: As they are sent, but for tags: resolved, reduced if they did not fit. Events left out.
    messages: tuple[Message, ...]
    tokens: int
    raw: int  # What the round takes raw.
    #: What its model thought is still valid: nothing in front of it has changed since.
    thinking: bool = False
    reduced: bool = False  # It is shown in part.


class Injected(msgspec.Struct, frozen=True, gc=False):
    """Text injected in front of a turn's prompt; it stays until an epoch."""

    turn: int
    text: str
    tokens: int
    strategy: str = ""  # The strategy that it was sent by; empty: that which shows it.


class ShownHistory(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """The visible history."""

    #: Text, oldest first. An element that stands for rounds behind the first native one is sent in
    #: its place, with the next prompt.
    blocks: tuple[ShownBlock, ...] = ()
    rounds: tuple[Native, ...] = ()
    injected: tuple[Injected, ...] = ()  # Of the native turns.
    #: The turn under way; or, until the next epoch, one whose prompt stands apart (see `prompt`).
    open_turn: int | None = None
    #: The prompt of that turn, if its first round is not among `rounds`: an epoch was made inside
    #: the turn, and whatever becomes of the round, its prompt is sent as it was.
    prompt: tuple[Message, ...] = ()
    tagged: bool = True  # Turns are wrapped in elements named after them.
    epoch: int = 0  # How often the window was planned anew.
    hidden: RoundId = RoundId(0, 0)  # Rounds up to this one are not shown at all.
    #: The round that was about to be made at the last epoch: what was thought before it is void.
    at: RoundId = RoundId(1)
    raw: int = 0  # Tokens of the whole history, raw.

    @property
    def begins_inside(self) -> bool:
        """Whether the first native round is not the first of its turn: its tag stands alone."""
        return self.tagged and bool(self.rounds) and self.rounds[0].place.round > 1
