"""The old end of a window: rounds at C merge into ranges, go to T, and ranges into wider ranges.

A turn goes to T as a whole. Rounds of a turn that is still under way, or of a very long one, merge
into ranges at C inside their turn. All of it takes time in proportion to what is shown.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from itertools import accumulate, groupby, islice, takewhile

import msgspec

from perdure.core.levels import Level
from perdure.history.manifest import Element, RoundId
from perdure.history.sized_rounds import (
    RANGE_TAGS,
    TURN_TAGS,
    Item,
    Sized,
    at_c,
    first_of,
    is_loose,
    last_of,
    turn_of,
)

FAN = 8  # Neighbours at T that merge into one range.
#: What a range says at least; and what a turn has at C to begin a range there: a shorter one has
#: nothing to lose by T.
_LEAST_WORDS, _WORTH_A_RANGE = 26, 80
_NEARLY = 0.8  # Of the least that C should have: so much is enough.
_UNTAGGED = TURN_TAGS - 6  # What a turn saves in a range: its tags, but for its name.
#: Of C, what stays as single rounds while older ones merge into ranges.
_LOOSE = 0.6
#: A turn of many rounds of work may take this share of it at T: its words alone are few.
_MOST_AT_T = 0.05


class OldRounds(msgspec.Struct, frozen=True):
    """What is to be known of rounds that leave C."""

    rounds: Sequence[Sized]  # All behind the last element at T, oldest first.
    tiny: Mapping[int, int]  # What turns take at T.
    #: Turns of which a part is fresher than C, and the one under way: they cannot go to T.
    busy: AbstractSet[int]
    chunk: float  # What rounds and turns at C have together when they merge into one range.


class Shed(msgspec.Struct):
    """What is left at C, and what went to T."""

    compact: list[Item]
    tiny: list[Element]


def shed(
    items: Sequence[Item], old: OldRounds, *, excess: float, room: range, spare: float
) -> Shed:
    """Merge the oldest at C into ranges, and take the oldest ranges and turns to T, until that
    saves `excess` tokens, or C is at the beginning of its `room`. A large turn stays if C would
    leave its room without it, or more than `spare` would be saved.
    """
    least = room.start
    #: What is in front of the first single round that may merge, and the rest.
    front, rest, gone_down = deque[Item](), deque(items), list[Element]()
    size, size_loose = sum(map(at_c, rest)), sum(at_c(each) for each in rest if is_loose(each))
    while excess > 0 and size > least:
        while rest and not is_loose(rest[0]):
            front.append(rest.popleft())
        chunk, whole = _chunk(rest, old) if size_loose > least * _LOOSE else ([], False)
        if chunk:
            wider = range_of(chunk, "C", 1, whole=whole)
            saved = sum(map(at_c, chunk)) - wider.tokens
            if saved > 0:
                for _ in chunk:
                    size_loose -= at_c(rest.popleft())
                front.append(wider)
                size, excess = size - saved, excess - saved
                continue
        gone = _to_tiny(front, rest, old)
        if not gone:
            break
        of, elements = gone
        was = sum(map(at_c, of))
        saved = was - sum(each.tokens for each in elements)
        if saved > spare or (size < room.stop and size - was < least * _NEARLY):
            front.extendleft(reversed(of))
            break
        size_loose -= sum(at_c(item) for item in of if is_loose(item))
        size, excess, spare = size - was, excess - saved, spare - saved
        gone_down += elements
    left = [*front, *rest]
    if excess > 0:
        left = _merged_inside(left, old.busy, excess)
    return Shed(left, gone_down)


def _merged_inside(items: list[Item], busy: AbstractSet[int], excess: float) -> list[Item]:
    """Ranges of turns that cannot go to T merge."""

    def is_inside(item: Item) -> bool:
        return isinstance(item, Element) and not item.whole and item.first.turn in busy

    ranges = [each for each in items if isinstance(each, Element) and is_inside(each)]
    if not ranges:
        return items
    at = items.index(ranges[0])
    others = [item for item in items if not is_inside(item)]
    left = sum(map(at_c, ranges)) - excess
    return [*others[:at], *merged(ranges, "C", left), *others[at:]]


def _chunk(items: Iterable[Item], old: OldRounds) -> tuple[list[Sized], bool]:
    """The oldest single rounds at C that merge into one range, and whether they are whole turns.
    Rounds of one turn merge if it is under way, or has more than enough of them.
    """
    found, size = list[Sized](), 0
    for turn, of in groupby(takewhile(is_loose, items), turn_of):
        rounds = [each for each in of if isinstance(each, Sized)]
        takes = sum(map(at_c, rounds))
        if turn not in old.busy and rounds[0].place.round == 1 and takes <= old.chunk:
            if not found and takes < _WORTH_A_RANGE:
                break
            found, size = [*found, *rounds], size + takes
            if size >= old.chunk:
                break
        elif found:
            break
        else:
            sizes = list(accumulate(map(at_c, rounds)))
            return rounds[: bisect_left(sizes, old.chunk) + 1], False
    return found if len(found) > 1 else [], True


def _to_tiny(
    front: deque[Item], rest: deque[Item], old: OldRounds
) -> tuple[list[Item], list[Element]] | None:
    """Take the oldest turn at C, or the turns of the oldest range, away: what it was, and its
    elements at T. None if it cannot go there.
    """
    if not front and not rest:
        return None
    oldest = (front or rest)[0]
    if isinstance(oldest, Element) and oldest.whole:
        (front or rest).popleft()
        said = old.rounds
        first = bisect_left(said, oldest.first, key=lambda each: each.place)
        behind = bisect_right(said, oldest.last, key=lambda each: each.place)
        by_turn = groupby(said[first:behind], lambda each: each.place.turn)
        return [oldest], [_tiny_of(turn, list(of), old) for turn, of in by_turn]
    turn = turn_of(oldest)
    if turn in old.busy:
        return None
    of = list[Item]()
    while (items := front or rest) and turn_of(items[0]) == turn:
        of.append(items.popleft())
    return of, [_tiny_of(turn, of, old)]


def _tiny_of(turn: int, of: Sequence[Item], old: OldRounds) -> Element:
    """A turn at T. One of many rounds, told together at C, is cut to its share of T instead of to
    its few words: as a range of one turn.
    """
    size, raw = sum(map(at_c, of)), sum(item.raw for item in of)
    tokens = min(old.tiny.get(turn, size), size) + TURN_TAGS
    most = min(int(raw * _MOST_AT_T), size)
    at = bisect_left(old.rounds, RoundId(turn), key=lambda each: each.place)
    is_work = at < len(old.rounds) and old.rounds[at].together
    is_rich = is_work and most > tokens + RANGE_TAGS
    return Element(
        level="T",
        first=RoundId(turn),
        last=last_of(of[-1]),
        whole=True,
        tokens=most if is_rich else tokens,
        raw=raw,
        generation=1 if is_rich else 0,
    )


def merged(items: Sequence[Element], level: Level, target: float) -> list[Element]:
    """Neighbours merged into ranges, and ranges into wider ones, until they take `target`."""
    size = sum(each.tokens for each in items)
    generations = _Generations(items)
    while size > target and (sources := generations.choice()):
        merging = generations.oldest(sources)
        while len(sources) > 2 and sum(e.tokens for e in merging[:-1]) // 2 >= size - target:
            sources, merging = sources[:-1], merging[:-1]  # half of it goes: that is enough
        was = sum(each.tokens for each in merging)
        left = was - (size - target)
        wider = range_of(merging, level, max(sources) + 1, whole=level == "T", least=left)
        saved = was - wider.tokens
        if saved <= 0:
            break
        generations.merge(sources, wider)
        size -= saved
    return generations.items()


def range_of(
    of: Sequence[Item], level: Level, generation: int, *, whole: bool, least: float = 0
) -> Element:
    """One element for neighbours, with half of the words that they have; or with `least` tokens, if
    they have so many without their tags.
    """
    size = sum(map(at_c, of))
    tokens = max(min(int(least), size - len(of) * _UNTAGGED), size // 2)
    return Element(
        level=level,
        first=first_of(of[0]),
        last=last_of(of[-1]),
        whole=whole,
        tokens=max(tokens, RANGE_TAGS + _LEAST_WORDS),
        raw=sum(item.raw for item in of),
        generation=generation,
    )


class _Generations:
    """Items by generation. None is of a lower one than what is newer: ranges widen with age."""

    def __init__(self, items: Sequence[Element]) -> None:
        self._tiers = dict[int, deque[Element]]()
        generation = 0
        for item in reversed(items):
            generation = max(generation, item.generation)
            self._tiers.setdefault(generation, deque()).appendleft(item)

    def items(self) -> list[Element]:
        return [item for g in sorted(self._tiers, reverse=True) for item in self._tiers[g]]

    def choice(self) -> list[int]:
        """The generations of the neighbours to merge next: those of the largest one, if they are
        enough, else the two oldest. Empty if nothing can be merged.
        """
        full = [g for g, tier in self._tiers.items() if len(tier) >= FAN]
        if full:
            return [max(full, key=lambda g: (len(self._tiers[g]), g))] * FAN
        left = sorted((g for g, tier in self._tiers.items() if tier), reverse=True)
        two = [g for g in left for _ in self._tiers[g]][:2]
        return two if len(two) == 2 else []

    def oldest(self, sources: Sequence[int]) -> list[Element]:
        return [
            item
            for g in dict.fromkeys(sources)
            for item in islice(self._tiers[g], sources.count(g))
        ]

    def merge(self, sources: Sequence[int], wider: Element) -> None:
        for generation in sources:
            self._tiers[generation].popleft()
        tier = self._tiers.setdefault(wider.generation, deque())
        tier.append(wider)
