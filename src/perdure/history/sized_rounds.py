"""Rounds and elements as the planner sees them: where they stand, and what they take."""

from __future__ import annotations

from typing import Any, TypeAlias

import msgspec

from perdure.core.levels import Level
from perdure.history.manifest import Element, RoundId

#: What an element's tags take, at most: of a turn, of a range or a run of rounds.
TURN_TAGS, RANGE_TAGS = 14, 30


class Sized(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A round, and its tokens at R, S and C."""

    place: RoundId
    raw: int
    smooth: int
    compact: int
    together: bool = False  # At C it is told together with its neighbours: see `run_text`.


Item: TypeAlias = Element | Sized
"""What stands at C: a range, or a round by itself."""


def capped(each: Sized, cap: int) -> Sized:
    if each.smooth <= cap:
        return each
    return msgspec.structs.replace(each, smooth=cap, compact=min(each.compact, cap))


def is_loose(item: Item) -> bool:
    """Whether it may merge with its neighbours into a range."""
    return isinstance(item, Sized) and not item.together


def turn_of(item: Any) -> int:
    return item.last.turn if isinstance(item, Element) else item.place.turn


def first_of(item: Item) -> RoundId:
    return item.first if isinstance(item, Element) else item.place


def last_of(item: Item) -> RoundId:
    return item.last if isinstance(item, Element) else item.place


def at_c(item: Item) -> int:
    return item.tokens if isinstance(item, Element) else item.compact + _tags(item)


def at_s(each: Sized) -> int:
    return each.smooth + _tags(each)


def _tags(each: Sized) -> int:
    """A line break, and the tags of its turn with the first round."""
    return 1 + (TURN_TAGS if each.place.round == 1 else 0)


def size_at(each: Sized, level: Level) -> int:
    return each.compact if level == "C" else each.smooth
