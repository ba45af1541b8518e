"""Sets of places as ranges: in order, without overlap, neighbours joined. Pure."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Sequence

from perdure.search.engine import Range


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
