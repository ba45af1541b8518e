"""Occurrences of terms, counted around each turn: the first stage of ranking.

Nothing but numbers is looked at here. A place says which turn it belongs to, and neighbouring turns
have neighbouring numbers, so what was said around a turn is a difference of two running sums. There
is no loop over occurrences: with 12,000 of them this takes a few milliseconds.
"""

from __future__ import annotations

import functools
from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

import msgspec
import numpy as np

from perdure.recall.places import ANSWERED, PART_BITS, ROUND_BITS, SAID, TOOLS, TURN_BITS
from perdure.recall.searching.rounds import Positions, among, distinct, numbered

if TYPE_CHECKING:
    from perdure.search.engine import TextFound


Array: TypeAlias = np.ndarray

#: What an occurrence counts: long answers and output of tools drown what was said otherwise.
FIELD_WEIGHTS = {SAID: 1.0, ANSWERED: 0.6, TOOLS: 0.3}
_WEIGHTS = np.array([FIELD_WEIGHTS[each] for each in (SAID, ANSWERED, TOOLS)])
#: That it stands there at all counts more: a name that only a tool ever printed is still a name.
_PRESENCE = 2.5
#: How soon more of the same term counts no more (as in BM25).
SATURATION = 1.2
#: Turns on each side that may belong to the same conversation.
STRETCH = 20
#: Turns before and behind that are looked at together, by the name of their feature.
WINDOWS = {
    "pair": (-1, 0),
    "around": (-3, 3),
    "wider": (-6, 6),
    "stretch": (-STRETCH, STRETCH),
}
#: The numbers of windows by their names: arrays have them in this order.
NUMBERS = {name: number for number, name in enumerate(WINDOWS)}
_WIDER = NUMBERS["wider"]
_STARTS, _ENDS = np.array(list(WINDOWS.values()), np.int64).T
#: What stands in a window is what stands up to its end, without what stands up to before its start.
_BOUNDS = np.unique([*_STARTS - 1, *_ENDS])
_BEFORE_START, _AT_END = np.searchsorted(_BOUNDS, _STARTS - 1), np.searchsorted(_BOUNDS, _ENDS)
#: Documents of a bank in which a count tells something. In one of a few, a word that stands in one
#: of them would be a common one, and one that stands nowhere all that the question is about.
_FEW = 50
#: Seconds after which what is said next is another conversation.
PAUSE = 2 * 3_600
#: Turns that are looked at closely; how far their neighbours are taken along: an answer need not
#: have a word of its question. With 400 no more is found, and a question takes a seventh more.
TURNS, REACH = 100, 2
#: Rounds of one turn that may be candidates; more, if so many in all are not reached.
_ROUNDS_OF_TURN, _ROUNDS = 4, 400
#: A turn's number has so many bits; turns of groups without an order are put so far apart.
_TURN_SPAN, _APART = TURN_BITS - ROUND_BITS, 6


class Evidence(msgspec.Struct, frozen=True, kw_only=True, dict=True):
    """How much stands in and around each candidate. A row for each, in order of place."""

    #: `Spot.place` of part 0.
    places: Array
    #: Where it stands among its neighbours; `axis + 1` is the next turn.
    axis: Array
    #: The weight of each term, of the rarest most.
    rarity: Array
    #: The same by (window, term): what stands in nearly every stretch of turns tells nothing there.
    rarities: Array
    #: How often terms stand in the round itself, by field: (field, row, term), unweighted.
    own: Array
    #: Pairs of terms that stand side by side in the round, weighed.
    phrases: Array
    #: Parts of rounds that have a term.
    parts: Array
    #: What windows are made of.
    counted: Counted
    #: Where rounds stand in them.
    positions: Positions
    #: Positions beyond which no window reaches, see `sittings`; None if that is not known.
    begins: Array | None = None

    @property
    def rows(self) -> int:
        return len(self.places)

    @functools.cached_property
    def windows(self) -> Array:
        """How often terms stand around it: (window, row, term), weighted by field."""
        return self.counted.windows(self.positions(self.axis, self.places), self.begins)

    def window(self, name: str) -> Array:
        """What stands in one of `WINDOWS`: (row, term)."""
        found: Array = self.windows[NUMBERS[name]]
        return found

    def only(self, rows: Array, sittings: Array) -> Evidence:
        """These rows alone, with windows that do not reach beyond a sitting: see `sittings`."""
        return msgspec.structs.replace(
            self,
            places=self.places[rows],
            axis=self.axis[rows],
            own=self.own[:, rows],
            phrases=self.phrases[rows],
            begins=self.positions.first(sittings),
        )


class Counted(NamedTuple):
    """Positions that have a term, and running sums of how often, by term."""

    occupied: Array
    running: Array

    @classmethod
    def of(cls, occupied: Array, counts: Array) -> Counted:
        """From positions in order, and how often each term stands there: (position, term)."""
        none = np.zeros((1, counts.shape[1]))
        return cls(occupied, np.concatenate([none, np.cumsum(counts, axis=0)]))

    def windows(self, axis: Array, sittings: Array | None = None) -> Array:
        """What stands around positions: (window, row, term)."""
        bounds = axis + _BOUNDS[:, None]
        if sittings is not None and len(sittings):
            begins = np.concatenate([[-1], sittings, [np.iinfo(np.int64).max]])
            at = np.searchsorted(sittings, axis, side="right")
            bounds = np.clip(bounds, begins[at] - 1, begins[at + 1] - 1)
        up_to = self._up_to(bounds)
        return _difference(up_to[_AT_END], up_to[_BEFORE_START])

    def window(self, axis: Array, name: str) -> Array:
        """The same in one window alone: (row, term)."""
        start, end = WINDOWS[name]
        return _difference(self._up_to(axis + end), self._up_to(axis + (start - 1)))

    def _up_to(self, positions: Array) -> Array:
        found: Array = self.running.take(
            np.searchsorted(self.occupied, positions, side="right"), axis=0
        )
        return found


def _difference(more: Array, less: Array) -> Array:
    more -= less
    more *= more > min(FIELD_WEIGHTS.values()) / 2  # what sums leave behind is no evidence
    return more


def sittings(axis: Array, times: Array) -> Array:
    """Where people sat down anew: the turns before which nothing was said for a while.

    `axis` and `times` (seconds) are of turns that are known, in order. Without times, or if nobody
    ever paused, there are none.
    """
    same = np.diff(axis) < 1 << _TURN_SPAN
    begins: Array = axis[1:][same & (np.diff(times) > PAUSE)]
    return begins


class Tally:
    """What was found, counted by turn and term. Evidence is taken from it, as often as needed."""

    def __init__(
        self,
        found: TextFound,
        pairs: Sequence[tuple[int, int]] = (),
        *,
        alone: Sequence[int] = (),
    ) -> None:
        """`pairs` are numbers of terms that stand side by side in the question.

        `alone` are the groups that have no order (memories, reference layers), smallest first:
        nothing is near what stands there.
        """
        self._pairs = pairs
        self._rarity = _rarity(found)
        occurrences = [postings.found.reshape(-1, 3) for postings in found.terms]
        whole = np.concatenate([np.zeros((0, 3), np.int64), *occurrences])
        term = np.repeat(np.arange(len(occurrences)), [len(each) for each in occurrences])
        self._all = _Occurrences(whole[:, 0], whole[:, 1], whole[:, 2], term)
        self._axis = _Axis(np.array(alone, np.int64))
        axis = self._axis.of(self._all.place)
        self._occupied, self._at = numbered(axis)
        self._counts = self._all.counts(self._at, len(self._occupied), len(occurrences))
        self._positions = Positions.of(axis, self._all.place)
        self._by_turn = self._counted = Counted.of(self._occupied, self._counts)
        occupied, counts = self._occupied, self._counts
        if len(self._positions.turns):
            occupied, at = numbered(self._positions(axis, self._all.place))
            counts = self._all.counts(at, len(occupied), len(occurrences))
            self._counted = Counted.of(occupied, counts)
        self._rarities = _rarities(found, occupied, counts)

    def evidence(
        self, also: Collection[int] = (), turns: int = TURNS, reach: int = REACH
    ) -> Evidence:
        """What stands around the best `turns` turns, their neighbours, and the places `also`."""
        given, spread = np.array(list(also), np.int64), self._axis
        axis = spread.with_neighbours(self._best_turns(turns), reach)
        axis = distinct(np.concatenate([axis, spread.of(given)]))
        here = among(self._occupied, axis)[self._at]
        chosen = _Occurrences(*(each[here] for each in self._all))
        rounds, own = _own(chosen, self._rarity, axis, spread, given)
        turn = spread.of(rounds)
        parts = distinct(chosen.place)
        return Evidence(
            places=rounds,
            axis=turn,
            rarity=self._rarity,
            rarities=self._rarities,
            own=own,
            phrases=_phrases(chosen, parts, rounds, self._pairs, self._rarity),
            parts=parts,
            counted=self._counted,
            positions=self._positions,
        )

    def _best_turns(self, turns: int) -> Array:
        """Those that have most themselves and around them, roughly."""
        if len(self._occupied) <= turns:
            return self._occupied
        wider, rarity = self._by_turn.window(self._occupied, "wider"), self._rarities[_WIDER]
        own, around = saturated(self._counts, self._rarity), saturated(wider, rarity)
        rough = scaled(own) + scaled(around) + covered(wider, rarity)
        best: Array = self._occupied[np.argpartition(-rough, turns)[:turns]]
        return best


def scaled(values: Array) -> Array:
    """Divided by the largest; each row by its own, if there are several. 0 if that is."""
    most = values.max(axis=-1, keepdims=True, initial=0.0)
    found: Array = values / np.where(most > 0, most, np.inf)
    return found


def saturated(counts: Array, rarity: Array) -> Array:
    """One number for each row: rare terms count most, repetitions ever less."""
    shares = counts / (counts + SATURATION)
    return _weighed(shares, (SATURATION + 1) * rarity)


def covered(counts: Array, rarity: Array) -> Array:
    """The share of the question that stands there, by weight of its terms: from 0 to 1.

    A term that stands in the output of a tool only is not worth a whole one.
    """
    most = np.maximum(rarity.sum(axis=-1, keepdims=True), 1e-9)
    return _weighed(_present(counts), rarity / most)


def _weighed(shares: Array, rarity: Array) -> Array:
    """The sum over terms; of one array of rows, or of several, each with its own rarity."""
    total: Array = np.matmul(shares, rarity[..., None])[..., 0]
    return total


def _present(counts: Array) -> Array:
    """Whether terms stand there, by their weighted counts: from 0 to 1."""
    found: Array = np.minimum(_PRESENCE * counts, 1.0)
    return found


class _Occurrences(NamedTuple):
    place: Array
    field: Array
    offset: Array
    term: Array

    def counts(self, at: Array, rows: int, terms: int) -> Array:
        """How often terms stand in each row, weighed by field; `at` has the row of each."""
        weights = _WEIGHTS[self.field]
        counts = np.bincount(at * terms + self.term, weights, rows * terms)
        return counts.reshape(rows, terms)


class _Axis:
    """Places to numbers that differ by 1 for neighbouring turns, and by much for what has none."""

    def __init__(self, alone: Array) -> None:
        self._alone = alone

    def of(self, places: Array) -> Array:
        turn = places >> ROUND_BITS
        group, number = turn >> _TURN_SPAN, turn & (1 << _TURN_SPAN) - 1
        if len(self._alone):
            number = np.where(among(group, self._alone), number << _APART, number)
        axis: Array = (group << _TURN_SPAN + _APART) + number
        return axis

    def with_neighbours(self, axis: Array, reach: int) -> Array:
        """These turns, and those up to `reach` away; nothing is beside what is alone."""
        ordered = axis[~among(axis >> _TURN_SPAN + _APART, self._alone)]
        number = ordered & (1 << _TURN_SPAN + _APART) - 1
        steps = np.arange(1, reach + 1)
        before = (ordered[:, None] - steps)[number[:, None] > steps]
        everything: Array = np.concatenate([axis, before, (ordered[:, None] + steps).ravel()])
        return everything

    def first_round(self, axis: Array) -> Array:
        """The place of a turn's first round."""
        group = axis >> _TURN_SPAN + _APART
        number = axis & (1 << _TURN_SPAN + _APART) - 1
        number = np.where(among(group, self._alone), number >> _APART, number)
        places: Array = (group << _TURN_SPAN | number) << ROUND_BITS | 1 << PART_BITS
        return places


def _rarity(found: TextFound) -> Array:
    return _of_frequency(np.array([each.documents for each in found.terms], float), found.documents)


def _of_frequency(have: Array, documents: int) -> Array:
    total = np.maximum(max(documents, _FEW), have)
    rarity: Array = np.log1p((total - have + 0.5) / (have + 0.5))
    return rarity


def _rarities(found: TextFound, occupied: Array, counts: Array) -> Array:
    """How rare terms are among windows, from those that were found; the rest is like them."""
    sizes = (_ENDS - _STARTS + 1).astype(float)
    have = np.zeros((len(sizes), len(found.terms)))
    for number, postings in enumerate(found.terms):
        turns = occupied[counts[:, number] > 0]
        if len(turns):
            gaps = np.minimum(np.diff(turns)[None, :], sizes[:, None]).sum(axis=1) + sizes
            have[:, number] = gaps * max(1.0, postings.documents / len(turns))
        else:
            have[:, number] = postings.documents * sizes
    return _of_frequency(np.minimum(have, found.documents), found.documents)


def _own(
    chosen: _Occurrences, rarity: Array, axis: Array, spread: _Axis, also: Array
) -> tuple[Array, Array]:
    """The candidates, and what stands in each: the best rounds of each turn, or its first."""
    terms = len(rarity)
    rounds = chosen.place >> PART_BITS << PART_BITS
    there = distinct(rounds)
    there = there[_few_each(spread.of(there), _weights(rounds, there, chosen, rarity))]
    empty = axis[~among(axis, spread.of(there))]
    given = also >> PART_BITS << PART_BITS
    there = distinct(np.concatenate([there, spread.first_round(empty), given]))
    at = np.searchsorted(there, rounds)
    inside = np.minimum(at, len(there) - 1)
    kept = there[inside] == rounds if len(there) else np.zeros(0, bool)
    cell = (chosen.field[kept] * len(there) + at[kept]) * terms + chosen.term[kept]
    own = np.bincount(cell, minlength=len(FIELD_WEIGHTS) * len(there) * terms)
    return there, own.reshape(len(FIELD_WEIGHTS), len(there), terms)


def _weights(rounds: Array, there: Array, chosen: _Occurrences, rarity: Array) -> Array:
    at = np.searchsorted(there, rounds)
    weights: Array = np.bincount(at, weights=rarity[chosen.term], minlength=len(there))
    return weights


def _few_each(turns: Array, weights: Array) -> Array:
    """Rows of the heaviest few of each turn. Turns are in order."""
    if not (turns[1:] == turns[:-1]).any():
        return np.arange(len(turns))
    order = np.lexsort((-weights, turns))
    sorted_turns = turns[order]
    start = np.searchsorted(sorted_turns, sorted_turns)
    few = max(_ROUNDS_OF_TURN, _ROUNDS // len(distinct(turns)))
    chosen: Array = np.sort(order[np.arange(len(turns)) - start < few])
    return chosen


def _phrases(
    chosen: _Occurrences,
    documents: Array,
    rounds: Array,
    pairs: Sequence[tuple[int, int]],
    rarity: Array,
) -> Array:
    total = np.zeros(len(rounds))
    if not pairs or not len(chosen.place):
        return total
    document = np.searchsorted(documents, chosen.place)
    key = (document * len(FIELD_WEIGHTS) + chosen.field << 32) + chosen.offset
    row = np.searchsorted(rounds, documents >> PART_BITS << PART_BITS)
    known = rounds[np.minimum(row, len(rounds) - 1)] == documents >> PART_BITS << PART_BITS
    # Sorted once, so that a pair is looked up instead of compared.
    code = np.sort(key * len(rarity) + chosen.term)
    for first, second in pairs:
        wanted = (key[chosen.term == first] + 1) * len(rarity) + second
        at = np.minimum(np.searchsorted(code, wanted), len(code) - 1)
        where = distinct((wanted[code[at] == wanted] // len(rarity) >> 32) // len(FIELD_WEIGHTS))
        where = where[known[where]]
        np.add.at(total, row[where], float(rarity[first] + rarity[second]))
    return total
