"""The planner: which round stands at which level.

`plan` is a pure function from the last manifest, token counts, marks and a budget to a new
manifest. The unit is the round. Tiers (R, S, C, T) work like those of a log-structured merge tree:
an epoch takes the oldest of a tier down to the next one, the newest tier first, until the window is
at its goal; an older tier is touched only if that was not enough, because all that follows a change
is written to the provider's cache anew. The oldest of a tier merge into ranges, and ranges into
wider ranges::

    T-1-through-512-T   T-880-T   T-881-through-890-C   T-891-C   T-902-S   T-903.1-S   (native)

How rounds merge and go to T is told in `range_merging`.

Marks are shares of what is shown, and what is shown is a share of the room: the budget without the
prompt and what is injected with it. A tier that has more than its share goes down as long as the
window stays full enough: while there is not enough history to fill the old tiers, the fresh ones
keep their room. The newest round stays raw, and is reduced inside if it alone does not fit. The
prompt is not the planner's: what it takes is given as `fixed`.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import groupby

import msgspec

from perdure.core.band_marks import FULL, BandMarks
from perdure.core.errors import BudgetTooSmall
from perdure.core.levels import Level
from perdure.history.manifest import Element, EpochManifest, Reduced, RoundId
from perdure.history.range_merging import OldRounds, merged, shed
from perdure.history.sized_rounds import (
    RANGE_TAGS,
    TURN_TAGS,
    Item,
    Sized,
    at_c,
    at_s,
    capped,
    size_at,
    turn_of,
)

__all__ = ["RANGE_TAGS", "TURN_TAGS", "PlannerInput", "Sized", "plan", "total"]


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
    planner = _Planner(last, window)
    if not planner.is_too_empty():
        return planner.plan()
    # What went down for want of room comes up again: most was injected, and is gone.
    tiny = tuple(each for each in last.elements if each.level == "T")
    native = RoundId(tiny[-1].last.turn + 1) if tiny else _behind(last.hidden)
    risen = msgspec.structs.replace(last, elements=tiny, native=native, reduced=())
    planned = _Planner(risen, window, known=last.elements).plan()
    # Ranges that merged again as they had been.
    known = {element: element for element in last.elements}
    elements = tuple([known.get(element, element) for element in planned.elements])
    return msgspec.structs.replace(planned, elements=elements)


def _behind(hidden: RoundId) -> RoundId:
    return RoundId(hidden.turn, hidden.round + 1) if hidden.turn else RoundId(1)


#: What is left of a round that is reduced: a stub that names it, and a few lines.
_LEAST_ROUND = 120
#: Inside a turn nothing is injected: a window that is planned lower is as full on average.
_INSIDE = 0.03
_OFTEN = 32  # Rounds since the last epoch below which epochs come often.
#: What one round takes at most: of the room at S or C, of the goal raw.
_LARGEST, _LARGEST_RAW = 1 / 8, 0.3
#: Of the goal, what rounds and turns at C have together when they merge into one range.
_CHUNK = 1 / 20
#: A window may be planned up to this share of the room where a large round takes most of it.
_CEILING = 0.88
#: A tier that goes down goes so far below its share, in parts of `drift`, that it can grow again.
_DEPTH = 0.6
_TOO_EMPTY = 0.97  # Of what a window does not go below.
_PASSES = 3  # What goes down makes the window smaller, and shares larger.


class _Tiers(msgspec.Struct):
    tiny: list[Element]
    compact: list[Item]
    smooth: list[Sized]
    raw: list[Sized]

    def sizes(self) -> tuple[int, int, int, int]:
        """What R, S, C and T take."""
        return (
            sum(each.raw for each in self.raw),
            sum(map(at_s, self.smooth)),
            sum(map(at_c, self.compact)),
            sum(each.tokens for each in self.tiny),
        )


class _Planner:
    def __init__(
        self, last: EpochManifest, window: PlannerInput, known: Sequence[Element] | None = None
    ) -> None:
        self._known = last.elements if known is None else known  # They stay as they are.
        self._last, self._window, self._marks = last, window, window.marks
        self._room = max(window.budget - window.fixed, 1)
        newest = window.rounds[-1].place if window.rounds else RoundId(0)
        #: The newest round has results that its model has not seen.
        self._unseen = newest.turn == window.turn
        marks, fill = window.marks, self._fill()
        #: What the window is planned down to; what is left rather than touch S, C or T; and what
        #: it does not go below for the sake of a share.
        self._goal = self._room * fill
        self._most = self._room * min(fill + marks.slack, marks.keep)
        self._floor = self._room * max(fill - marks.slack, 0)
        #: Where R, S and C end, as shares of what is shown, the newest first.
        raw = marks.raw_inside if self._unseen else marks.raw
        self._ends = raw, marks.raw + marks.smooth, marks.raw + marks.smooth + marks.compact
        #: What a round takes at S or C at most: a larger one would leave no room for others.
        self._cap = max(int(self._room * _LARGEST), _LEAST_ROUND)
        #: What the newest takes raw: it is reduced inside, or all others would go down for it.
        self._newest = max(int(self._goal * _LARGEST_RAW), _LEAST_ROUND, window.least)
        self._standing = self._tiers()

    def is_too_empty(self) -> bool:
        """Whether what stands there leaves much of the room empty, though there is more to show."""
        standing = self._standing
        return bool(standing.smooth or standing.compact) and (
            self._taken(standing) < self._floor * _TOO_EMPTY
        )

    def plan(self) -> EpochManifest:
        tiers = self._demoted(1)
        for scale in (0.5, 0.25, 0.0):
            if self._taken(tiers) <= self._room * _CEILING:
                break
            tiers = self._demoted(scale)
        return self._squeezed(self._manifest(tiers))

    def _fill(self) -> float:
        """The share of the room that is planned. Where epochs come with every other prompt, because
        what is injected takes much of a small window, less would not make them fewer.
        """
        marks, since = self._marks, sum(e.place >= self._last.at for e in self._window.rounds)
        if self._unseen:
            return max(marks.fill - _INSIDE, marks.fill / 2)
        if not self._last.elements or since >= _OFTEN:
            return marks.fill
        return marks.keep - (marks.keep - marks.fill) * since / _OFTEN

    def _tiers(self) -> _Tiers:
        hidden = self._last.hidden
        rounds = deque(capped(e, self._cap) for e in self._window.rounds if e.place > hidden)
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
        """Tiers taken down, the newest first, until the window is at its goal and each has its
        share. None goes below that times `scale`.
        """
        tiers = msgspec.structs.replace(self._standing)
        if scale == 1 and self._may_stay(tiers):
            return tiers  # What was injected is gone, and that is enough.
        for _ in range(_PASSES):
            before = self._taken(tiers)
            self._lower_raw(tiers, scale, keep)
            self._lower_smooth(tiers, scale)
            self._merge_tiny(tiers, scale, room=False)  # first: so C need not make that room
            self._lower_compact(tiers, scale)
            self._merge_tiny(tiers, scale, room=True)
            if self._taken(tiers) == before:
                break
        return tiers

    def _may_stay(self, tiers: _Tiers) -> bool:
        taken, above = self._taken(tiers), 0
        for size, end in zip(tiers.sizes()[:3], self._ends, strict=True):
            above += size
            if tiers.tiny and above > taken * (end + self._marks.drift):
                return False
        raw = tiers.sizes()[0]
        return taken <= self._room * self._marks.keep and raw <= taken * (
            self._ends[0] + self._marks.drift
        )

    def _lower_raw(self, tiers: _Tiers, scale: float, keep: int) -> None:
        sizes = [(each.raw, at_s(each)) for each in tiers.raw]
        edge = self._edge(tiers, sizes, 0, scale, keep=keep)
        tiers.smooth = tiers.smooth + tiers.raw[:edge]
        tiers.raw = tiers.raw[edge:]

    def _lower_smooth(self, tiers: _Tiers, scale: float) -> None:
        sizes = [(at_s(each), at_c(each)) for each in tiers.smooth]
        edge = self._edge(tiers, sizes, 1, scale)
        tiers.compact = [*tiers.compact, *tiers.smooth[:edge]]
        tiers.smooth = tiers.smooth[edge:]

    def _edge(
        self,
        tiers: _Tiers,
        sizes: Sequence[tuple[int, int]],
        tier: int,
        scale: float,
        *,
        keep: int = 0,
    ) -> int:
        """How many of the oldest of R or S go down; `sizes` has what each takes, and then takes.
        At least `keep` stay.
        """
        taken, above = self._taken(tiers), sum(tiers.sizes()[: tier + 1])
        most, least, low = self._limits(taken, self._ends[tier], scale)
        if above <= most and taken <= (self._most if tier else self._goal):
            return 0
        stop = self._floor if above > most and scale == 1 else self._goal
        edge = 0
        while edge < len(sizes) - keep and above > low and taken > stop:
            now, then = sizes[edge]
            if above <= most and above - now < least:
                break  # one large round: it is nearer to its share if it stays
            above, taken = above - now, taken - now + then
            edge += 1
        return edge

    def _lower_compact(self, tiers: _Tiers, scale: float) -> None:
        taken, (raw, smooth, compact, _) = self._taken(tiers), tiers.sizes()
        above = raw + smooth + compact
        most, _, low = self._limits(taken, self._ends[2], scale)
        if above <= most and taken <= self._most:
            return
        stop = self._floor if above > most and scale == 1 else self._goal
        fresher = {each.place.turn for each in (*tiers.smooth, *tiers.raw)}
        old = OldRounds(
            self._window.rounds,
            self._window.tiny,
            fresher | {self._window.turn},
            self._goal * _CHUNK,
        )
        done = shed(
            tiers.compact,
            old,
            excess=taken - stop,
            room=range(max(int(low) - raw - smooth, 0), max(int(most) - raw - smooth, 0)),
            spare=taken - self._floor if taken <= self._most and scale == 1 else taken,
        )
        tiers.compact, tiers.tiny = done.compact, [*tiers.tiny, *done.tiny]

    def _merge_tiny(self, tiers: _Tiers, scale: float, *, room: bool) -> None:
        taken, tiny = self._taken(tiers), tiers.sizes()[3]
        most, _, low = self._limits(taken, 1 - self._ends[2], scale)
        if tiny > most:
            tiers.tiny = merged(tiers.tiny, "T", low)
        elif room and taken > self._most:
            tiers.tiny = merged(tiers.tiny, "T", max(tiny - (taken - self._goal), low))

    def _limits(self, taken: float, share: float, scale: float) -> tuple[float, float, float]:
        """Where a share ends at most and at least, and to where it goes down."""
        shown, drift = min(max(taken, self._floor), self._most) * scale, self._marks.drift
        return (
            shown * (share + drift),
            shown * (share - drift),
            shown * (share - drift * _DEPTH),
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
            + sum(map(at_c, loose))
            + sum(map(at_s, tiers.smooth))
            + sum(each.raw for each in tiers.raw)
            # Where two tiers meet, one turn may stand in both.
            + RANGE_TAGS * (kept + 3)
            + sum(pin.tokens for pin in self._last.pins)
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
        self, items: Sequence[Item], level: Level, unfinished: set[int]
    ) -> Iterator[Element]:
        """An element stays as it was, unless a part of it went further down, or its turn is whole
        at this level only now.
        """
        before = [e for e in self._known if e.level == level and not e.generation]
        for turn, of in groupby(items, turn_of):
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
        words = sum(size_at(each, level) + 1 for each in rounds)
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
            if not together and any(size_at(e, level) >= self._cap for e in rounds)
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


def _holder(elements: Iterable[Element], place: RoundId) -> Element | None:
    return next((e for e in elements if e.first <= place <= e.last), None)
