"""The planner: which round stands at which level.

`plan` is a pure function from the last manifest, token counts, marks and a budget to a new
manifest. The unit is the round. Tiers (R, S, C, T) work like those of a log-structured merge tree:
each has a high and a low mark, as shares of the budget. An epoch takes rounds down from R until it
is at its low mark; where a tier below is then over its high mark, its oldest go further down, to
its low mark; what is oldest of all merges into ranges, and ranges into wider ranges::

    T-1-through-512-T   …   T-880-T   T-881-C   …   T-902-S   T-903.1-through-903.9-S   (native)

A turn goes to T as a whole. Rounds of a turn that cannot (it is still under way, or part of it is
fresher) merge into ranges at C.

If that is more than the budget, the marks are scaled down until it fits: from one state, a larger
budget never shows a round at a lower level. The newest round stays raw, and is reduced inside if it
alone does not fit. The prompt is not the planner's: what it takes is given as `fixed`.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import groupby, islice
from typing import Any

import msgspec

from perdure.core.errors import BudgetTooSmall
from perdure.core.levels import Level
from perdure.history.manifest import Element, EpochManifest, Reduced, RoundId

#: What an element's tags take, at most: of a turn, of a range or a run of rounds.
TURN_TAGS, RANGE_TAGS = 14, 30
FAN = 8  # Neighbours that merge into one range.
#: A range takes a share of the budget, within limits: below the first it could name nothing, above
#: the second the oldest past would crowd out what is between.
_RANGE_SHARE, _RANGE_LEAST, _RANGE_MOST = 1 / 600, 48, 160


class BandMark(msgspec.Struct, frozen=True, array_like=True):
    """The shares of the budget at which a tier overflows, and down to which it is then emptied."""

    high: float
    low: float


class BandMarks(msgspec.Struct, frozen=True):
    """The marks of all tiers; docs/why.md says where they come from."""

    raw: BandMark = BandMark(0.60, 0.10)
    smooth: BandMark = BandMark(0.12, 0.06)
    compact: BandMark = BandMark(0.08, 0.05)
    tiny: BandMark = BandMark(0.18, 0.14)


class Sized(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A round, and its tokens at R, S and C."""

    place: RoundId
    raw: int
    smooth: int
    compact: int


class PlannerInput(msgspec.Struct, frozen=True, kw_only=True):
    """The planner's input, in tokens."""

    budget: int
    fixed: int = 0  # What the prompt and what is injected with it take.
    turn: int  # The turn under way: it cannot go to T.
    rounds: Sequence[Sized]  # Unmerged rounds at R, S or C, and new ones, oldest first.
    #: What turns take at T: those that have a round at C, or may get there.
    tiny: Mapping[int, int]
    marks: BandMarks = BandMarks()


def range_tokens(budget: int) -> int:
    return round(min(max(budget * _RANGE_SHARE, _RANGE_LEAST), _RANGE_MOST)) + RANGE_TAGS


def total(manifest: EpochManifest, rounds: Iterable[Sized]) -> int:
    text = sum(element.tokens for element in manifest.shown())
    return text + sum(
        min(each.raw, manifest.cap(each.place) or each.raw)
        for each in rounds
        if manifest.is_native(each.place)
    )


def plan(last: EpochManifest, window: PlannerInput) -> EpochManifest:
    """The manifest of an epoch that is made now, after `last`.

    Demotes even if that is not needed (the caller decides), unless the whole history fits raw.
    Unchanged elements are the same objects as before; new ones have no digest yet, and an upper
    bound for their tokens. `at` is left as it was. Raises `BudgetTooSmall` if the prompt leaves no
    room for the newest round of an open turn.
    """
    if not last.elements and not last.pins:
        whole = sum(each.raw for each in window.rounds) + window.fixed
        if whole <= window.budget:
            return msgspec.structs.replace(last, reduced=())
    return _Planner(last, window).plan()


#: What is left of a round that is reduced: a stub that names it, and a few lines.
_LEAST_ROUND = 120
_LEAST_WORDS = 10  # What a range says at least.

_Item = Element | Sized


class _Tiers(msgspec.Struct):
    tiny: list[Element]
    compact: list[_Item]
    smooth: list[Sized]
    raw: list[Sized]


class _Planner:
    def __init__(self, last: EpochManifest, window: PlannerInput) -> None:
        self._last, self._window = last, window
        self._range = range_tokens(window.budget)
        self._standing = self._tiers()
        newest = window.rounds[-1].place if window.rounds else RoundId(0)
        #: The newest round has results that its model has not seen.
        self._unseen = newest.turn == window.turn

    def plan(self) -> EpochManifest:
        budget = self._window.budget
        tiers = self._at(budget)
        if self._cost(tiers) > budget:
            fitting, too_much = -1, budget
            while too_much - fitting > 1:
                target = (fitting + too_much) // 2
                if self._cost(self._at(target)) <= budget:
                    fitting = target
                else:
                    too_much = target
            tiers = self._at(max(fitting, 0))
        return self._squeezed(self._manifest(tiers))

    def _tiers(self) -> _Tiers:
        hidden = self._last.hidden
        rounds = deque(each for each in self._window.rounds if each.place > hidden)
        tiers = _Tiers([], [], [], [])
        for element in self._last.elements:
            if element.level == "T":
                tiers.tiny.append(element)
            elif element.generation:
                tiers.compact.append(element)
            while rounds and rounds[0].place <= element.last:
                each = rounds.popleft()
                if not element.generation and element.level == "C":
                    tiers.compact.append(each)
                elif element.level == "S":
                    tiers.smooth.append(each)
        tiers.raw.extend(rounds)
        return tiers

    def _at(self, target: int, *, keep: int = 1) -> _Tiers:
        marks, standing = self._window.marks, self._standing
        edge, size = 0, sum(each.raw for each in standing.raw)
        while edge < len(standing.raw) - keep and size > marks.raw.low * target:
            size -= standing.raw[edge].raw
            edge += 1
        raw = standing.raw[edge:]
        smooth = standing.smooth + standing.raw[:edge]
        edge, size = 0, sum(each.smooth for each in smooth)
        if size > marks.smooth.high * target:
            while edge < len(smooth) and size > marks.smooth.low * target:
                size -= smooth[edge].smooth
                edge += 1
        demoted, smooth = smooth[:edge], smooth[edge:]
        # Turns of which a part is fresher than C, and the one under way, cannot go to T.
        busy = {each.place.turn for each in (*smooth, *raw)} | {self._window.turn}
        compact, tiny = self._compacted([*standing.compact, *demoted], busy, target)
        tiny = self._merged([*standing.tiny, *tiny], "T", marks.tiny, target)
        return _Tiers(tiny, compact, smooth, raw)

    def _cost(self, tiers: _Tiers) -> int:
        """What the tiers take, at most. It never grows when something goes down."""
        loose = [item for item in tiers.compact if isinstance(item, Sized)]
        merged = [item for item in tiers.compact if isinstance(item, Element)]
        text = (*loose, *tiers.smooth)
        turns = {each.place.turn for each in (*text, *tiers.raw)}
        runs = [e for e in self._last.elements if not e.whole and not e.generation]
        first = text[0].place if text else self._last.native
        kept = sum(1 for run in runs if run.last >= first)
        extra = sum(pin.tokens for pin in self._last.pins)
        return (
            sum(element.tokens for element in (*tiers.tiny, *merged))
            + sum(each.compact + 1 for each in loose)
            + sum(each.smooth + 1 for each in tiers.smooth)
            + sum(each.raw for each in tiers.raw)
            + TURN_TAGS * len(turns)
            # Where two tiers meet, one turn may stand in both.
            + RANGE_TAGS * (kept + 3)
            + extra
            + self._window.fixed
        )

    def _manifest(self, tiers: _Tiers) -> EpochManifest:
        unfinished = {each.place.turn for each in tiers.raw} | {self._window.turn}
        fresher = {each.place.turn for each in tiers.smooth} | unfinished
        elements = (
            *tiers.tiny,
            *self._grouped(tiers.compact, "C", fresher),
            *self._grouped(tiers.smooth, "S", unfinished),
        )
        native = tiers.raw[0].place if tiers.raw else RoundId(self._window.turn)
        return msgspec.structs.replace(self._last, elements=elements, native=native, reduced=())

    def _compacted(
        self, items: list[_Item], busy: set[int], target: int
    ) -> tuple[list[_Item], list[Element]]:
        mark, tiny = self._window.marks.compact, list[Element]()
        size = sum(map(_at_c, items))
        if size <= mark.high * target:
            return items, tiny
        turns = deque((turn, list(of)) for turn, of in groupby(items, _turn_of))
        while turns and size > mark.low * target and turns[0][0] not in busy:
            turn, of = turns.popleft()
            size -= sum(map(_at_c, of))
            tiny.append(self._tiny_of(turn, of))
        stay = [item for _, of in turns for item in of]
        return self._merged(stay, "C", mark, target) if turns else stay, tiny

    def _tiny_of(self, turn: int, of: Sequence[_Item]) -> Element:
        size = sum(map(_at_c, of))
        return Element(
            level="T",
            first=RoundId(turn),
            last=_last_of(of[-1]),
            whole=True,
            tokens=min(self._window.tiny.get(turn, size), size) + TURN_TAGS,
            raw=sum(item.raw for item in of),
        )

    def _merged(self, items: list[Any], level: Level, mark: BandMark, target: int) -> list[Any]:
        size = sum(map(_at_c, items))
        if size <= mark.high * target:
            return items
        generations = _Generations(items)
        while size > mark.low * target and (sources := generations.choice()):
            merging = generations.oldest(sources)
            merged = self._range_of(merging, level, max(sources) + 1)
            saved = sum(map(_at_c, merging)) - merged.tokens
            if saved <= 0:
                break
            generations.merge(sources, merged)
            size -= saved
        return generations.items()

    def _range_of(self, of: Sequence[_Item], level: Level, generation: int) -> Element:
        size = sum(map(_at_c, of))
        return Element(
            level=level,
            first=_first_of(of[0]),
            last=_last_of(of[-1]),
            whole=level == "T",
            tokens=min(self._range, max(size // 2, RANGE_TAGS + _LEAST_WORDS)),
            raw=sum(item.raw for item in of),
            generation=generation,
        )

    def _grouped(
        self, items: Sequence[_Item], level: Level, unfinished: set[int]
    ) -> Iterator[Element]:
        """An element stays as it was, unless a part of it went further down, or its turn is whole
        at this level only now.
        """
        before = [e for e in self._last.elements if e.level == level and not e.generation]
        for turn, of in groupby(items, _turn_of):
            cells = list(of)
            rounds = [cell for cell in cells if isinstance(cell, Sized)]
            yield from (cell for cell in cells if isinstance(cell, Element))
            if not rounds:
                continue
            whole = len(rounds) == len(cells) and rounds[0].place.round == 1
            if whole and turn not in unfinished:
                yield self._element(rounds, level, before, whole=True)
                continue
            known = [e for e in before if e.first.turn == turn]
            runs = groupby(rounds, lambda each, known=known: _holder(known, each.place))  # type: ignore[misc]
            for _, run in runs:
                yield self._element(list(run), level, known, whole=False)

    def _element(
        self, rounds: Sequence[Sized], level: Level, before: Sequence[Element], *, whole: bool
    ) -> Element:
        first, last = rounds[0].place, rounds[-1].place
        for known in before:
            if known.first == first and known.last == last and known.whole == whole:
                return known
        words = sum(_size(each, level) + 1 for each in rounds)
        return Element(
            level=level,
            first=first,
            last=last,
            whole=whole,
            tokens=words + (TURN_TAGS if whole else RANGE_TAGS),
            raw=sum(each.raw for each in rounds),
        )

    def _room(self, manifest: EpochManifest) -> int:
        taken = total(manifest, self._window.rounds) + self._window.fixed
        return self._window.budget - taken

    def _fits(self, manifest: EpochManifest) -> bool:
        return self._room(manifest) >= 0

    def _squeezed(self, manifest: EpochManifest) -> EpochManifest:
        """Nothing can go further down: give up pins, then reduce the newest round, then hide."""
        while manifest.pins and not self._fits(manifest):
            manifest = msgspec.structs.replace(manifest, pins=manifest.pins[1:])
        newest = self._window.rounds[-1] if self._window.rounds else None
        raw = newest.raw if newest is not None and manifest.is_native(newest.place) else 0
        least = min(raw, _LEAST_ROUND)
        manifest = self._hidden(manifest, least - raw)
        room = self._room(manifest) + raw
        if room < least and not self._unseen:
            # A large prompt: the newest round goes down like any other.
            lowest = self._manifest(self._at(0, keep=0))
            manifest = self._hidden(msgspec.structs.replace(lowest, pins=()), 0)
            raw = least = 0
            room = self._room(manifest)
        if room < least:
            raise BudgetTooSmall(self._window.budget, self._window.budget + least - room)
        if newest is not None and room < raw:
            manifest = msgspec.structs.replace(manifest, reduced=(Reduced(newest.place, room),))
        return manifest

    def _hidden(self, manifest: EpochManifest, least: int) -> EpochManifest:
        while manifest.elements and self._room(manifest) < least:
            oldest, *rest = manifest.elements
            manifest = msgspec.structs.replace(manifest, elements=tuple(rest), hidden=oldest.last)
        return manifest


class _Generations:
    """Items by generation. None is of a lower one than what is newer: ranges widen with age."""

    def __init__(self, items: Sequence[_Item]) -> None:
        self._tiers = dict[int, deque[_Item]]()
        generation = 0
        for item in reversed(items):
            generation = max(generation, item.generation if isinstance(item, Element) else 0)
            self._tiers.setdefault(generation, deque()).appendleft(item)

    def items(self) -> list[_Item]:
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

    def oldest(self, sources: Sequence[int]) -> list[_Item]:
        return [
            item
            for g in dict.fromkeys(sources)
            for item in islice(self._tiers[g], sources.count(g))
        ]

    def merge(self, sources: Sequence[int], merged: Element) -> None:
        for generation in sources:
            self._tiers[generation].popleft()
        tier = self._tiers.setdefault(merged.generation, deque())
        tier.append(merged)


def _holder(elements: Iterable[Element], place: RoundId) -> Element | None:
    return next((e for e in elements if e.first <= place <= e.last), None)


def _turn_of(item: _Item) -> int:
    return item.last.turn if isinstance(item, Element) else item.place.turn


def _first_of(item: _Item) -> RoundId:
    return item.first if isinstance(item, Element) else item.place


def _last_of(item: _Item) -> RoundId:
    return item.last if isinstance(item, Element) else item.place


def _at_c(item: _Item) -> int:
    return item.tokens if isinstance(item, Element) else item.compact


def _size(each: Sized, level: Level) -> int:
    return each.compact if level == "C" else each.smooth
