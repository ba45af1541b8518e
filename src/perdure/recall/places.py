"""Numbers for what is indexed, so that neighbours have neighbouring numbers.

A place is a group (a session, an agent's memories, the reference layers), a turn, a round, and a
part: what one append added to that round. `PassageGroup` gives a session its number, once and never
again.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Sequence
from typing import Annotated, NamedTuple

import msgspec

from perdure.search.engine import Range, SearchIndex
from perdure.storage.records import Indexed, Key, system_record

#: The one index of a bank: what users said, what models answered, what tools were asked and said.
INDEX = SearchIndex("perdure_recall", ("said", "answered", "tools"))
SAID, ANSWERED, TOOLS = range(3)

_PART, _ROUND, _TURN = 6, 12, 20
PART_BITS, ROUND_BITS, TURN_BITS = _PART, _PART + _ROUND, _PART + _ROUND + _TURN
#: The last part of a round.
LAST_PART = 2**_PART - 1


@system_record("recall_groups")
class PassageGroup(msgspec.Struct, frozen=True):
    """The number of a session, or of something else that has an order of its own."""

    id: Annotated[str, Key()]
    number: Annotated[int, Indexed()]
    #: A session that was forked from another.
    is_fork: bool = False


def memories_of(agent: str) -> str:
    """The group of an agent's memories; no session's name begins with a space."""
    return f" memories/{agent}"


#: The group of the reference layers.
REFERENCES = " references"


class Spot(NamedTuple):
    """A place, taken apart. Numbers begin at 0 for a group and a part, at 1 for turn and round."""

    group: int
    turn: int
    round: int = 1
    part: int = 0

    @property
    def place(self) -> int:
        """Beyond what fits, several share the last number: turn 1,048,575, round 4,095."""
        return (
            self.group << TURN_BITS
            | min(self.turn, (1 << _TURN) - 1) << ROUND_BITS
            | min(self.round, (1 << _ROUND) - 1) << PART_BITS
            | min(self.part, (1 << _PART) - 1)
        )


def spot(place: int) -> Spot:
    """Where a place is."""
    return Spot(
        place >> TURN_BITS,
        place >> ROUND_BITS & 2**_TURN - 1,
        place >> PART_BITS & 2**_ROUND - 1,
        place & 2**_PART - 1,
    )


def turns(group: int, first: int = 0, last: int = 2**_TURN - 1) -> Range:
    """All places of a group's turns from `first` to `last`."""
    start = Spot(group, first, 0, 0).place
    return start, Spot(group, last, 2**_ROUND - 1, LAST_PART).place


def joined(*sets: Iterable[Range]) -> tuple[Range, ...]:
    """Everything that one of them covers, in as few ranges as possible."""
    found = list[Range]()
    first, last = 0, -2
    for start, end in sorted(each for ranges in sets for each in ranges):
        if start > last + 1:
            if last >= 0:
                found.append((first, last))
            first, last = start, end
        elif end > last:
            last = end
    if last >= 0:
        found.append((first, last))
    return tuple(found)


def without(ranges: Sequence[Range], holes: Sequence[Range]) -> tuple[Range, ...]:
    """What `ranges` cover and `holes` do not. Both as `joined` returns them."""
    if not holes:
        return tuple(ranges)
    found = list[Range]()
    left = iter(ranges)
    current = next(left, None)
    for first, last in holes:
        while current is not None and current[0] <= last:
            start, end = current
            if start < first:
                found.append((start, min(end, first - 1)))
            if end > last:
                current = (last + 1, end)
                break
            current = next(left, None)
    if current is not None:
        found.append(current)
    found += left
    return tuple(found)


def common(ranges: Sequence[Range], others: Sequence[Range]) -> tuple[Range, ...]:
    """What both cover. Both as `joined` returns them."""
    found = list[Range]()
    mine = theirs = 0
    while mine < len(ranges) and theirs < len(others):
        first = max(ranges[mine][0], others[theirs][0])
        last = min(ranges[mine][1], others[theirs][1])
        if first <= last:
            found.append((first, last))
        if ranges[mine][1] < others[theirs][1]:
            mine += 1
        else:
            theirs += 1
    return tuple(found)


def covers(ranges: Sequence[Range], place: int) -> bool:
    """Whether a place lies in one of them."""
    found = bisect_right(ranges, place, key=lambda each: each[0]) - 1
    return found >= 0 and place <= ranges[found][1]
