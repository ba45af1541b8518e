"""The planner: which round stands at which level.

`plan` is a pure function from the last manifest, token counts, marks and a budget to a new
manifest. The unit is the round. Tiers (R, S, C, T) work like those of a log-structured merge tree:
an epoch takes the oldest of a tier down to the next one, the newest tier first, until the window is
at its goal; an older tier is touched only if that was not enough, because all that follows a change
is written to the provider's cache anew. The oldest of a tier merge into ranges, and ranges into
wider ranges::

    T-1-through-512-T   T-880-T   T-881-through-890-C   T-891-C   T-902-S   T-903.1-S   (native)

A turn goes to T as a whole. Rounds of a turn that is still under way, or of a very long one, merge
into ranges at C inside their turn.

Marks are shares of the goal, and the goal is a share of the room: the budget without the prompt and
what is injected with it. While there is not enough history to fill the old tiers, the fresh ones
take their room. The newest round stays raw, and is reduced inside if it alone does not fit. The
prompt is not the planner's: what it takes is given as `fixed`.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import accumulate, groupby, islice, takewhile
from typing import Any

import msgspec

from perdure.core.band_marks import FULL, BandMarks
from perdure.core.errors import BudgetTooSmall
from perdure.core.levels import Level
from perdure.history.manifest import Element, EpochManifest, Reduced, RoundId

#: What an element's tags take, at most: of a turn, of a range or a run of rounds.
TURN_TAGS, RANGE_TAGS = 14, 30
FAN = 8  # Neighbours at T that merge into one range.


class Sized(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A round, and its tokens at R, S and C."""

    place: RoundId
    raw: int
    smooth: int
    compact: int
    together: bool = False  # At C it is told together with its neighbours: see `run_text`.


class PlannerInput(msgspec.Struct, frozen=True, kw_only=True):
    """The planner's input, in tokens."""

    budget: int
    fixed: int = 0  # What the prompt and what is injected with it take.
    turn: int  # The turn under way: it cannot go to T.
    rounds: Sequence[Sized]  # All behind the last element at T, oldest first.
    #: What turns take at T: those of the rounds.
    tiny: Mapping[int, int]
    least: int = 0  # What the newest round takes at least, however it is reduced.
    marks: BandMarks = FULL


def total(manifest: EpochManifest, rounds: Iterable[Sized]) -> int:
    text = sum(element.tokens for element in manifest.shown())
    return text + sum(
        min(each.raw, manifest.cap(each.place) or each.raw)
        for each in rounds
        if manifest.is_native(each.place)
    )


def plan(last: EpochManifest, window: PlannerInput) -> EpochManifest:
    """The manifest of an epoch that is made now, after `last`.

    Demotes nothing while the whole history fits raw, or what is shown takes little enough.
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
#: Of the goal, what T takes where it is a tier of its own: tools leave nothing there, and then C
#: has its room.
_ENOUGH_TINY = 0.12
_MOST_TINY = 0.30  # Of the goal, what T takes at most when C has just come down to it.
#: What a range says at least; and what a turn has at C to begin a range there: a shorter one has
#: nothing to lose by T.
_LEAST_WORDS, _WORTH_A_RANGE = 26, 80
_OFTEN = 32  # Rounds since the last epoch below which epochs come often.
#: Of the room, what one round takes at most: at S or C, and raw.
_LARGEST, _LARGEST_RAW = 1 / 8, 0.3
#: Of the goal, what rounds and turns at C have together when they merge into one range.
_CHUNK = 1 / 20
#: Of C, what stays as single rounds while older ones merge into ranges.
_LOOSE = 0.6
#: A window may be planned up to this share of the room where a large round takes most of it.
_CEILING = 0.88

_Item = Element | Sized


class _Tiers(msgspec.Struct):
    tiny: list[Element]
    compact: list[_Item]
    smooth: list[Sized]
    raw: list[Sized]


class _Planner:
    def __init__(self, last: EpochManifest, window: PlannerInput) -> None:
        self._last, self._window, self._marks = last, window, window.marks
        self._room = max(window.budget - window.fixed, 1)
        newest = window.rounds[-1].place if window.rounds else RoundId(0)
        #: The newest round has results that its model has not seen.
        self._unseen = newest.turn == window.turn
        fill = self._fill()
        self._goal = self._room * fill
        self._most = self._room * min(fill + window.marks.slack, window.marks.keep)
        #: What a round takes at S or C at most: a larger one would leave no room for others.
        self._cap = max(int(self._room * _LARGEST), _LEAST_ROUND)
        #: What the newest takes raw: it is reduced inside, or all others would go down for it.
        self._newest = max(int(self._room * _LARGEST_RAW), _LEAST_ROUND, window.least)
        self._standing = self._tiers()

    def plan(self) -> EpochManifest:
        tiers = self._demoted(1)
        for scale in (0.5, 0.25, 0.0):
            if self._taken(tiers) <= self._room * _CEILING:
                break
            tiers = self._demoted(scale)
        return self._squeezed(self._manifest(self._refilled(tiers)))

    def _fill(self) -> float:
        """The share of the room that is planned. Where epochs come with every other prompt, because
        what is injected takes much of a small window, less would not make them fewer.
        """
        marks, since = self._marks, sum(e.place >= self._last.at for e in self._window.rounds)
        if self._unseen or not self._last.elements or since >= _OFTEN:
            return marks.fill
        return marks.keep - (marks.keep - marks.fill) * since / _OFTEN

    def _tiers(self) -> _Tiers:
        hidden = self._last.hidden
        rounds = deque(_capped(e, self._cap) for e in self._window.rounds if e.place > hidden)
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
        if tiers.raw and tiers.raw[-1].raw > self._newest:
            tiers.raw[-1] = msgspec.structs.replace(tiers.raw[-1], raw=self._newest)
        return tiers

    def _demoted(self, scale: float, *, keep: int = 1) -> _Tiers:
        """Tiers taken down, the newest first, until the window is at its goal. None goes below its
        own share of it times `scale`.
        """
        marks, standing = self._marks, self._standing
        taken, raw = self._taken(standing), sum(each.raw for each in standing.raw)
        if scale == 1 and taken <= self._room * marks.keep and raw <= taken * marks.raw_most:
            return standing  # What was injected is gone, and that is enough.
        raw_share = marks.raw_inside if self._unseen else marks.raw
        edge = _edge([each.raw for each in standing.raw], self._goal * raw_share * scale, keep)
        # Not further than needed: an old history of few words leaves room for more.
        tiers = msgspec.structs.replace(
            standing,
            raw=standing.raw[edge:],
            smooth=standing.smooth + standing.raw[:edge],
        )
        sizes = [_at_s(each) for each in tiers.smooth]
        wide = bool(tiers.tiny) and sum(sizes) > self._goal * marks.smooth_most
        if wide or self._taken(tiers) > self._most:
            edge = _edge(sizes, self._goal * marks.smooth * scale, 0)
            tiers.compact = [*tiers.compact, *tiers.smooth[:edge]]
            tiers.smooth = tiers.smooth[edge:]
        least = self._goal * marks.tiny * scale
        if sum(each.tokens for each in tiers.tiny) > self._goal * marks.tiny_most:
            tiers.tiny = _merged(tiers.tiny, "T", least)  # first: so C need not make that room
        excess = self._taken(tiers) - self._goal
        tiny, compact = sum(e.tokens for e in tiers.tiny), sum(map(_at_c, tiers.compact))
        if tiny > self._goal * _ENOUGH_TINY and compact > self._goal * marks.compact_most:
            over = compact - self._goal * (marks.compact + marks.compact_most) / 2
            self._shed_compact(tiers, max(excess, over), scale)
        elif excess + self._goal > self._most:
            self._shed_compact(tiers, excess, scale)
        tiny, most = sum(each.tokens for each in tiers.tiny), self._goal * _MOST_TINY
        excess = self._taken(tiers) - self._goal
        if excess + self._goal > self._most or tiny > most:
            tiers.tiny = _merged(tiers.tiny, "T", max(min(tiny - excess, most), least))
        return tiers

    def _refilled(self, tiers: _Tiers) -> _Tiers:
        """Where the old tiers do not fill the window, S and R keep more than their shares: rounds
        that would have gone down in this epoch stay, the newest first.
        """
        if self._taken(tiers) >= self._goal:
            return tiers
        standing = self._standing
        first = len(standing.compact) and _last_of(standing.compact[-1])
        fresh, stay = deque[Sized](), list(tiers.compact)
        while stay and isinstance(each := stay[-1], Sized) and (not first or each.place > first):
            fresh.appendleft(each)
            stay.pop()
        pool = [*fresh, *tiers.smooth, *tiers.raw]
        was_raw = {each.place for each in standing.raw}
        taken = self._taken(tiers)
        raws, smooths = len(tiers.raw), len(tiers.smooth)
        share = self._marks.raw / (self._marks.raw + self._marks.smooth)
        size_r = sum(each.raw for each in tiers.raw)
        size_s = sum(map(_at_s, tiers.smooth))
        # To keep more raw helps little where few words are noise; at first there is nothing else.
        most_r = self._goal * (self._marks.raw_most if tiers.tiny else 1)
        most_s = self._goal * (self._marks.smooth_most if tiers.tiny else 1)
        while True:
            # The newest at S comes up to R, or the newest at C to S, whichever is behind its share.
            at_r = len(pool) - raws - 1
            at_s = at_r - smooths
            up_r = smooths and pool[at_r].place in was_raw and size_r + pool[at_r].raw <= most_r
            up_s = at_s >= 0 and size_s + _at_s(pool[at_s]) <= most_s
            if up_s and (not up_r or size_s * share <= size_r * (1 - share)):
                each = pool[at_s]
                more = _at_s(each) - _at_c(each)
                if taken + more > self._goal:
                    break
                smooths, size_s = smooths + 1, size_s + _at_s(each)
            elif up_r:
                each = pool[at_r]
                more = each.raw - _at_s(each)
                if taken + more > self._goal:
                    break
                raws, smooths = raws + 1, smooths - 1
                size_r, size_s = size_r + each.raw, size_s - _at_s(each)
            else:
                break
            taken += more
        at_r = len(pool) - raws
        return _Tiers(
            tiers.tiny,
            [*stay, *pool[: at_r - smooths]],
            pool[at_r - smooths : at_r],
            pool[at_r:],
        )

    def _taken(self, tiers: _Tiers) -> int:
        """What the tiers take, at most. It never grows when something goes down."""
        loose = [item for item in tiers.compact if isinstance(item, Sized)]
        merged = [item for item in tiers.compact if isinstance(item, Element)]
        text = (*loose, *tiers.smooth)
        runs = [e for e in self._last.elements if not e.whole and not e.generation]
        first = text[0].place if text else self._last.native
        kept = sum(1 for run in runs if run.last >= first)
        return (
            sum(element.tokens for element in (*tiers.tiny, *merged))
            + sum(map(_at_c, loose))
            + sum(map(_at_s, tiers.smooth))
            + sum(each.raw for each in tiers.raw)
            # Where two tiers meet, one turn may stand in both.
            + RANGE_TAGS * (kept + 3)
            + sum(pin.tokens for pin in self._last.pins)
        )

    def _shed_compact(self, tiers: _Tiers, excess: float, scale: float) -> None:
        """Merge the oldest at C into ranges, and take the oldest ranges and turns to T."""
        least = self._goal * self._marks.compact * scale
        # Turns of which a part is fresher than C, and the one under way, cannot go to T.
        busy = {each.place.turn for each in (*tiers.smooth, *tiers.raw)} | {self._window.turn}
        #: What is in front of the first single round that may merge, and the rest.
        front, rest, gone_down = deque[_Item](), deque(tiers.compact), list[Element]()
        size, size_loose = sum(map(_at_c, rest)), sum(_at_c(e) for e in rest if _is_loose(e))
        while excess > 0 and size > least:
            while rest and not _is_loose(rest[0]):
                front.append(rest.popleft())
            chunk, whole = self._chunk(rest, busy) if size_loose > least * _LOOSE else ([], False)
            if chunk:
                merged = _range_of(chunk, "C", 1, whole=whole)
                saved = sum(map(_at_c, chunk)) - merged.tokens
                if saved > 0:
                    for _ in chunk:
                        size_loose -= _at_c(rest.popleft())
                    front.append(merged)
                    size, excess = size - saved, excess - saved
                    continue
            gone = self._to_tiny(front, rest, busy)
            if not gone:
                break
            of, elements = gone
            was = sum(map(_at_c, of))
            size_loose -= sum(_at_c(item) for item in of if _is_loose(item))
            size -= was
            excess -= was - sum(each.tokens for each in elements)
            gone_down += elements
        tiers.compact = [*front, *rest]
        inside = [each for each in tiers.compact if self._is_inside(each, busy)]
        if excess > 0 and inside:  # A turn that cannot go to T: its ranges merge.
            left = sum(map(_at_c, inside)) - excess
            at = tiers.compact.index(inside[0])
            others = [item for item in tiers.compact if not self._is_inside(item, busy)]
            ranges = [each for each in inside if isinstance(each, Element)]
            tiers.compact = [*others[:at], *_merged(ranges, "C", left), *others[at:]]
        tiers.tiny = [*tiers.tiny, *gone_down]

    @staticmethod
    def _is_inside(item: _Item, busy: set[int]) -> bool:
        return isinstance(item, Element) and not item.whole and item.first.turn in busy

    def _chunk(self, items: Iterable[_Item], busy: set[int]) -> tuple[list[Sized], bool]:
        """The oldest single rounds at C that merge into one range, and whether they are whole
        turns. Rounds of one turn merge if it is under way, or has more than enough of them.
        """
        most = self._goal * _CHUNK
        found, size = list[Sized](), 0
        for turn, of in groupby(takewhile(_is_loose, items), _turn_of):
            rounds = [each for each in of if isinstance(each, Sized)]
            takes = sum(map(_at_c, rounds))
            if turn not in busy and rounds[0].place.round == 1 and takes <= most:
                if not found and takes < _WORTH_A_RANGE:
                    break
                found, size = [*found, *rounds], size + takes
                if size >= most:
                    break
            elif found:
                break
            else:
                sizes = list(accumulate(map(_at_c, rounds)))
                return rounds[: bisect_left(sizes, most) + 1], False
        return found if len(found) > 1 else [], True

    def _to_tiny(
        self, front: deque[_Item], rest: deque[_Item], busy: set[int]
    ) -> tuple[list[_Item], list[Element]] | None:
        """Take the oldest turn at C, or the turns of the oldest range, away: what it was, and its
        elements at T. None if it cannot go there.
        """
        if not front and not rest:
            return None
        oldest = (front or rest)[0]
        if isinstance(oldest, Element) and oldest.whole:
            (front or rest).popleft()
            said = self._window.rounds
            first = bisect_left(said, oldest.first, key=lambda each: each.place)
            behind = bisect_right(said, oldest.last, key=lambda each: each.place)
            by_turn = groupby(said[first:behind], lambda each: each.place.turn)
            return [oldest], [self._tiny_of(turn, list(of)) for turn, of in by_turn]
        turn = _turn_of(oldest)
        if turn in busy:
            return None
        of = list[_Item]()
        while (items := front or rest) and _turn_of(items[0]) == turn:
            of.append(items.popleft())
        return of, [self._tiny_of(turn, of)]

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

    def _manifest(self, tiers: _Tiers) -> EpochManifest:
        unfinished = {each.place.turn for each in tiers.raw} | {self._window.turn}
        fresher = {each.place.turn for each in tiers.smooth} | unfinished
        elements = (
            *tiers.tiny,
            *self._grouped(tiers.compact, "C", fresher),
            *self._grouped(tiers.smooth, "S", unfinished),
        )
        native = tiers.raw[0].place if tiers.raw else RoundId(self._window.turn)
        newest = self._window.rounds[-1] if tiers.raw else None
        large = newest is not None and newest.raw > self._newest
        reduced = (Reduced(newest.place, self._newest),) if newest is not None and large else ()
        return msgspec.structs.replace(
            self._last, elements=elements, native=native, reduced=reduced
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
        together = level == "C" and all(each.together for each in rounds)
        return Element(
            level=level,
            first=first,
            last=last,
            whole=whole,
            tokens=words + (TURN_TAGS if whole else RANGE_TAGS),
            raw=sum(each.raw for each in rounds),
            generation=1 if together else 0,
            cap=self._cap
            if not together and any(_size(e, level) >= self._cap for e in rounds)
            else 0,
        )

    def _left(self, manifest: EpochManifest) -> int:
        return self._window.budget - total(manifest, self._window.rounds) - self._window.fixed

    def _squeezed(self, manifest: EpochManifest) -> EpochManifest:
        """Nothing can go further down: give up pins, then reduce the newest round, then hide."""
        while manifest.pins and self._left(manifest) < 0:
            manifest = msgspec.structs.replace(manifest, pins=manifest.pins[1:])
        newest = self._window.rounds[-1] if self._window.rounds else None
        raw = newest.raw if newest is not None and manifest.is_native(newest.place) else 0
        if newest is not None and raw:
            raw = manifest.cap(newest.place) or raw
        least = max(min(raw, _LEAST_ROUND), self._window.least if raw else 0)
        manifest = self._hidden(manifest, least - raw)
        room = self._left(manifest) + raw
        if room < least and not self._unseen:
            # A large prompt: the newest round goes down like any other.
            lowest = self._manifest(self._demoted(0, keep=0))
            manifest = self._hidden(msgspec.structs.replace(lowest, pins=()), 0)
            raw = least = 0
            room = self._left(manifest)
        if room < least:
            raise BudgetTooSmall(self._window.budget, self._window.budget + least - room)
        if newest is not None and (room < raw or raw < least):
            cap = Reduced(newest.place, min(room, max(raw, least)))
            manifest = msgspec.structs.replace(manifest, reduced=(cap,))
        return manifest

    def _hidden(self, manifest: EpochManifest, least: int) -> EpochManifest:
        while manifest.elements and self._left(manifest) < least:
            oldest, *rest = manifest.elements
            manifest = msgspec.structs.replace(manifest, elements=tuple(rest), hidden=oldest.last)
        return manifest


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

    def merge(self, sources: Sequence[int], merged: Element) -> None:
        for generation in sources:
            self._tiers[generation].popleft()
        tier = self._tiers.setdefault(merged.generation, deque())
        tier.append(merged)


def _merged(items: Sequence[Element], level: Level, target: float) -> list[Element]:
    """Neighbours merged into ranges, and ranges into wider ones, until they take `target`."""
    size = sum(each.tokens for each in items)
    generations = _Generations(items)
    while size > target and (sources := generations.choice()):
        merging = generations.oldest(sources)
        while len(sources) > 2 and sum(e.tokens for e in merging[:-1]) // 2 >= size - target:
            sources, merging = sources[:-1], merging[:-1]  # half of it goes: that is enough
        merged = _range_of(merging, level, max(sources) + 1, whole=level == "T")
        saved = sum(each.tokens for each in merging) - merged.tokens
        if saved <= 0:
            break
        generations.merge(sources, merged)
        size -= saved
    return generations.items()


def _range_of(of: Sequence[_Item], level: Level, generation: int, *, whole: bool) -> Element:
    """One element for neighbours, with half of the words that they have."""
    return Element(
        level=level,
        first=_first_of(of[0]),
        last=_last_of(of[-1]),
        whole=whole,
        tokens=max(sum(map(_at_c, of)) // 2, RANGE_TAGS + _LEAST_WORDS),
        raw=sum(item.raw for item in of),
        generation=generation,
    )


def _capped(each: Sized, cap: int) -> Sized:
    if each.smooth <= cap:
        return each
    return msgspec.structs.replace(each, smooth=cap, compact=min(each.compact, cap))


def _edge(sizes: Sequence[int], target: float, keep: int) -> int:
    """How many of the oldest go, so that the others take `target`, or are only `keep`."""
    edge, size = 0, sum(sizes)
    while edge < len(sizes) - keep and size > target:
        size -= sizes[edge]
        edge += 1
    return edge


def _holder(elements: Iterable[Element], place: RoundId) -> Element | None:
    return next((e for e in elements if e.first <= place <= e.last), None)


def _turn_of(item: Any) -> int:
    return item.last.turn if isinstance(item, Element) else item.place.turn


def _is_loose(item: _Item) -> bool:
    return isinstance(item, Sized) and not item.together


def _first_of(item: _Item) -> RoundId:
    return item.first if isinstance(item, Element) else item.place


def _last_of(item: _Item) -> RoundId:
    return item.last if isinstance(item, Element) else item.place


def _at_c(item: _Item) -> int:
    return item.tokens if isinstance(item, Element) else item.compact + _tags(item)


def _at_s(each: Sized) -> int:
    return each.smooth + _tags(each)


def _tags(each: Sized) -> int:
    """A line break, and the tags of its turn with the first round."""
    return 1 + (TURN_TAGS if each.place.round == 1 else 0)


def _size(each: Sized, level: Level) -> int:
    return each.compact if level == "C" else each.smooth
