"""Features to an order, a score from 0 to 1, and reasons in words.

The order is that of a weighted sum; the weights are frozen in `weights`. The score says how likely
a candidate is what was asked for: a logistic function of how far it is behind the best one, and of
how well the question was met at all, by words and by meaning. So the best of nothing has a low
score, however few there are, and scores of different questions can be compared, roughly.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from functools import partial
from itertools import compress
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from perdure.core.turns import Position
from perdure.recall.indexing.passages import read_notes
from perdure.recall.places import INDEX, PART_BITS, ROUND_BITS, TURN_BITS, Spot, spot
from perdure.recall.scoping.filters import Passing, passes
from perdure.recall.searching.cues import Cues
from perdure.recall.searching.evidence import REACH, TURNS, Array, Evidence, Tally, sittings
from perdure.recall.searching.features import (
    GROUPS,
    NAMES,
    Features,
    by_words,
    features,
    kept,
    named_by,
)
from perdure.recall.searching.meanings import Meant, VectorsRead, compared_places, meanings
from perdure.recall.searching.rounds import among, distinct, inside
from perdure.recall.searching.weights import LIKELY, WEIGHTS
from perdure.recall.values import (
    MOST_CANDIDATES,
    Candidate,
    Filters,
    Kind,
    Note,
    Question,
    Reason,
    Reasons,
)
from perdure.search.engine import engine_of

if TYPE_CHECKING:
    from perdure.recall.scoping.scope import Scope
    from perdure.search.engine import TextFound
    from perdure.storage.store import Store

#: Reasons that are told, and words that are named in one; candidates that are told of together.
_REASONS, _WORDS, _TOGETHER = 4, 3, 10
#: A reason that has less than this share of what speaks for a candidate is not worth a word.
_WORTH = 0.03


class Ranked(NamedTuple):
    """Rows of the features, best first, with their scores."""

    order: Array
    #: By row, not by rank.
    scores: Array


def ranked(found: Features, weights: Mapping[str, float] = WEIGHTS) -> Ranked:
    """Best first; of equals, the one that stands first."""
    total = found.values @ np.array([weights[name] for name in NAMES])
    by_gap, by_coverage, by_likeness, constant = LIKELY
    asked = by_coverage * found.coverage + by_likeness * found.likeness + constant
    gap = total - total.max(initial=-np.inf)
    scores = 1 / (1 + np.exp(-(by_gap * gap + asked)))
    return Ranked(np.argsort(-total, kind="stable"), scores)


def rough_order(evidence: Evidence, cues: Cues, speakers: Collection[str] = ()) -> Array:
    """Rows best first by words alone: whose notes are worth reading.

    All evidence counts the same here. Fitted weights would choose what they are fitted to.
    `speakers` are those whom the question names, if that is known already.
    """
    found = by_words(evidence, kept(cues, speakers))
    total = np.sum([found[name] for name in _BY_WORDS], axis=0)
    order: Array = np.argsort(-total, kind="stable")
    return order


class Telling:
    """Says why: what contributed most to a candidate's score, in words.

    Not before somebody asks: most candidates are not shown, and it takes longer than to rank them.
    """

    def __init__(
        self, found: Features, evidence: Evidence, cues: Cues, rows: Array, notes: Sequence[Note]
    ) -> None:
        """`rows` are those of the candidates, best first, `notes` theirs."""
        self._found, self._evidence, self._cues = found, evidence, cues
        self._rows, self._notes = rows, notes
        self._known = dict[int, list[tuple[Reason, ...]]]()
        #: As they were asked for, not as they are looked for.
        self._words = {term: word for word, term in reversed(cues.names.items())}

    def reasons(self, rank: int) -> tuple[Reason, ...]:
        """For a candidate, the most important first. Shares are of all that speaks for it."""
        first = rank - rank % _TOGETHER
        if first not in self._known:
            some = slice(first, first + _TOGETHER)
            self._known[first] = self._of(self._rows[some], self._notes[some])
        return self._known[first][rank - first]

    def _of(self, rows: Array, notes: Sequence[Note]) -> list[tuple[Reason, ...]]:
        gains = self._found.values[rows] * np.array([WEIGHTS[name] for name in NAMES])
        total = np.maximum(np.maximum(gains, 0.0).sum(axis=1), 1e-9)
        shares = np.stack([gains[:, at].sum(axis=1) for at in _COLUMNS.values()], axis=1)
        shares /= total[:, None]
        own = self._evidence.own[:, rows].sum(axis=0)
        around = self._evidence.window("stretch")[rows] * (own == 0)
        named = {"own": self._named(own), "around": self._named(around)}
        best = np.argsort(-shares, axis=1)[:, :_REASONS]
        largest = np.take_along_axis(shares, best, axis=1)
        kinds = tuple(_COLUMNS)
        made = list[tuple[Reason, ...]]()
        for row, (note, *ranked) in enumerate(
            zip(notes, best.tolist(), largest.tolist(), strict=True)
        ):
            told = list[Reason]()
            for kind, exact in zip(*ranked, strict=True):
                share = round(exact, 3)
                if share < _WORTH:
                    break
                if words := self._told(kinds[kind], named, row, note):
                    told.append(Reason(words, share))
            made.append(tuple(told))
        return made

    def _told(self, kind: str, named: Mapping[str, list[str]], row: int, note: Note) -> str:
        if kind == "own":
            return f"{named[kind][row]} in its own words" if named[kind][row] else ""
        if kind == "around":
            words = named[kind][row]
            return f"{words} around it" if words else "more of it around"
        if kind == "speaker":
            return f"said by {note.speaker.title()}"
        if kind == "time":
            held = [time.name for time in self._cues.times if time.holds(note.time)]
            return f"said {held[0]}" if held else ""
        return _SAID[kind]

    def _named(self, counts: Array) -> list[str]:
        """For each row the terms that stand there, the rarest first."""
        weights = (counts > 0) * self._found.rarity
        best = np.argsort(-weights, axis=1)[:, :_WORDS]
        there = np.take_along_axis(weights, best, axis=1) > 0
        words = [f"‘{self._words.get(term, term)}’" for term in self._cues.terms]  # noqa: RUF001
        return [
            ", ".join(words[at] for at, is_there in zip(row, flags, strict=True) if is_there)
            for row, flags in zip(best.tolist(), there.tolist(), strict=True)
        ]


_BY_WORDS = (*GROUPS["own"], *GROUPS["context"])
#: Which features make up a reason.
_KINDS: Mapping[str, tuple[str, ...]] = {
    "own": ("own",),
    "phrase": ("phrase",),
    "around": GROUPS["context"],
    "meaning": GROUPS["meaning"],
    "speaker": GROUPS["speaker"],
    "time": ("in_time",),
    "when": ("tells_when",),
    "answers": ("answers",),
    "opens": ("opens",),
    "binds": ("binds",),
}
_COLUMNS = {kind: [NAMES.index(name) for name in names] for kind, names in _KINDS.items()}
_SAID = {
    "phrase": "side by side as asked",
    "meaning": "similar in meaning",
    "when": "tells when",
    "answers": "answers a question",
    "opens": "said first after a pause",
    "binds": "says how it is to be done",
}


#: Turns that are looked at if there are filters, which may leave few of them.
_TURNS_FILTERED = 3_000
#: Hits for each of which a turn more is taken along on either side of what has a term: who asks for
#: many wants to see what is less likely, too.
_A_TURN_MORE = 20


class Weighed(NamedTuple):
    """Candidates and their features: a row for each."""

    question: Question
    scope: Scope
    cues: Cues
    noted: Noted
    features: Features

    def candidates(self, most: int) -> tuple[Candidate, ...]:
        """Best first."""
        order, scores = ranked(self.features)
        best = order[:most]
        notes = [self.noted.notes[row] for row in best.tolist()]
        telling = Telling(self.features, self.noted.evidence, self.cues, best, notes)
        places = self.noted.evidence.places[best].tolist()
        tells = (partial(telling.reasons, rank) for rank in range(len(notes)))
        made = zip(places, notes, scores[best].tolist(), tells, strict=True)
        return tuple(self._candidate(*each) for each in made)

    def _candidate(self, place: int, note: Note, score: float, tell: Reasons) -> Candidate:
        kind, owner = self.scope.name(place)
        at = spot(place)
        return Candidate(
            kind=kind,
            place=place,
            key=_key(self.question, kind, owner, at),
            session=owner if kind == "turn" else "",
            turn=at.turn if kind == "turn" else 0,
            round=at.round if kind == "turn" else 0,
            score=round(score, 4),
            tell=tell,
            note=note,
        )


async def weighed(
    store: Store,
    question: Question,
    scope: Scope,
    cues: Cues,
    tally: Tally,
    *,
    meant: Meant | None = None,
    known: dict[int, Note | None],
) -> Weighed | None:
    """Weigh what was found; None if nothing was, or nothing passes the filters.

    `known` are notes that were read already; those that are read now are added.
    """
    nearest = () if meant is None else meant.nearest
    turns = TURNS if question.filters == Filters() else _TURNS_FILTERED
    noting = Noting(store, question, scope, cues, known, meant=meant)
    wanted = min(question.limit, MOST_CANDIDATES)
    reach = max(REACH, wanted // _A_TURN_MORE)
    found = tally.evidence(nearest, max(turns, DEPTH * wanted), reach)
    noted = await noting.read(found, nearest)
    if noted is None:
        return None
    alike = None
    named = named_by(cues, [*noted.notes, *noted.before])
    if meant is not None:
        meant = await meant.without(question.text, named)
        alike = await meanings(store, scope, noted.evidence, meant, noting.vectors)
    values = features(noted.evidence, cues, noted.notes, noted.before, alike, named=named)
    return Weighed(question, scope, cues, noted, values)


def tallied(scope: Scope, cues: Cues, text: TextFound) -> Tally:
    """What was found by words, counted."""
    numbers = {term: number for number, term in enumerate(cues.terms)}
    pairs = [(numbers[one], numbers[two]) for one, two in cues.pairs]
    return Tally(text, pairs, alone=scope.groups.alone)


def _key(question: Question, kind: Kind, owner: str, at: Spot) -> str:
    """The key of a turn or memory; of a reference layer, its number, which its shelf knows."""
    if kind == "turn":
        return f"{owner}#{Position(at.turn, at.round)}"
    if kind == "memory":
        return f"M-{at.turn}" if owner == question.record.agent else f"{owner}/M-{at.turn}"
    return str(at.turn)


#: A place where there is no document.
NOWHERE = -1
#: Rows whose notes are read at once. Of more, the best by words are chosen: so many to learn who
#: speaks; then so many; and how often, if filters leave fewer than are asked for.
AT_ONCE, FIRST, CHUNK, CHUNKS = 600, 40, 220, 8
#: Candidates that are weighed for each hit that is asked for, at least.
DEPTH = 4


class Noted(NamedTuple):
    """Candidates that are there and pass, in order of place."""

    evidence: Evidence
    notes: Sequence[Note]
    #: Of the turn before each, where there is one.
    before: Sequence[Note | None]


class Noting:
    """Reads notes for one question. What was read stays known."""

    def __init__(
        self,
        store: Store,
        question: Question,
        scope: Scope,
        cues: Cues,
        known: dict[int, Note | None] | None = None,
        *,
        meant: Meant | None = None,
    ) -> None:
        self._store, self._question, self._scope, self._cues = store, question, scope, cues
        self.filtered = question.filters != Filters()
        #: By place; None where there is no document.
        self.known = {} if known is None else known
        self.known[NOWHERE] = None
        self._meant = meant
        #: Of all that may be looked at, if that is not too much.
        self.vectors: VectorsRead | None = None

    async def read(self, evidence: Evidence, nearest: Collection[int] = ()) -> Noted | None:
        """What passes: the nearest ones, then the best by words. None if nothing does."""
        view = _View(self, evidence)
        if evidence.rows <= AT_ONCE:
            await view.look(np.arange(evidence.rows), self._meant)
        else:
            await self._look_at_best(view, evidence, nearest)
        return view.noted() if view.count else None

    async def _look_at_best(
        self, view: _View, evidence: Evidence, nearest: Collection[int]
    ) -> None:
        """The first notes tell who speaks. The name of a speaker stands where others address them,
        so it is left out of account for the rest.
        """
        order = rough_order(evidence, self._cues)
        rounds = np.array(list(nearest), np.int64) >> PART_BITS << PART_BITS
        near = among(evidence.places, distinct(rounds))[order]
        first = np.concatenate([order[near], order[~near][:FIRST]])
        await view.look(first)
        if speakers := named_by(self._cues, list(self.known.values())):
            order = rough_order(evidence, self._cues, speakers)
        is_left = np.ones(evidence.rows, bool)
        is_left[first] = False
        left = order[is_left[order]]
        enough = max(self._question.limit, CHUNK // 2)
        chunk = max(CHUNK, DEPTH * min(self._question.limit, MOST_CANDIDATES))
        for start in range(0, chunk * CHUNKS, chunk):
            await view.look(left[start : start + chunk])
            if view.count >= enough or start + chunk >= len(left):
                break

    async def fetch(
        self, places: Sequence[int], evidence: Evidence, meant: Meant | None = None
    ) -> None:
        """Make sure that these are known; if something is `meant`, with the vectors of all."""
        wanted = [place for place in dict.fromkeys(places) if place not in self.known]
        engine = engine_of(self._store.adapter)
        notes: Sequence[bytes | None] = ()
        if meant is not None:
            near = compared_places(self._scope, evidence, meant)
            found = await engine.vectors(INDEX.name, meant.model, near.tolist(), wanted)
            self.vectors, notes = VectorsRead(near, found), found.notes
        elif wanted:
            notes = await engine.notes(INDEX.name, wanted)
        self.known.update(zip(wanted, read_notes(notes), strict=True))

    def allowed(self, places: Array) -> Array:
        return inside(self._scope.ranges, places)

    def passes(self, place: int, note: Note, fields: frozenset[int]) -> bool:
        kind, session = self._scope.name(place)
        candidate = Passing(kind=kind, spot=spot(place), note=note, session=session, fields=fields)
        return passes(self._question.filters, candidate)


class _View:
    """Rows of the evidence, as far as their notes were read."""

    def __init__(self, noting: Noting, evidence: Evidence) -> None:
        self._noting, self._evidence = noting, evidence
        #: Of each row whose note was read: the row, the note, and that of the turn before it.
        self._rows = list[int]()
        self._notes = list[Note]()
        self._earlier = list[Note | None]()
        #: Whether it passes.
        self._passed = list[bool]()
        self._allowed = noting.allowed(evidence.places)
        turn = evidence.places >> ROUND_BITS
        self._before = (turn - 1) << ROUND_BITS | 1 << PART_BITS
        there = (turn & (1 << TURN_BITS - ROUND_BITS) - 1 > 1) & noting.allowed(self._before)
        self._before[~there] = NOWHERE
        further = evidence.parts[evidence.parts & (1 << PART_BITS) - 1 > 0]
        self._further = dict[int, list[int]]()
        for part, whole in zip(
            further.tolist(), (further >> PART_BITS << PART_BITS).tolist(), strict=True
        ):
            self._further.setdefault(whole, []).append(part)

    async def look(self, rows: Array, meant: Meant | None = None) -> None:
        rows = rows[self._allowed[rows]]
        places = self._evidence.places[rows].tolist()
        before = self._before[rows].tolist()
        further = [
            part for place in places if place in self._further for part in self._further[place]
        ]
        await self._noting.fetch([*places, *further, *before], self._evidence, meant)
        known = self._noting.known
        notes = [known[place] for place in places]
        if further:
            notes = [
                self._merged(place) if place in self._further else note
                for place, note in zip(places, notes, strict=True)
            ]
        is_there = [note is not None for note in notes]  # else a neighbour that is not there
        self._rows += compress(rows.tolist(), is_there)
        self._notes += [note for note in notes if note is not None]
        self._earlier += compress([known[place] for place in before], is_there)
        some = slice(len(self._passed), None)
        if self._noting.filtered:
            self._passed += map(self._passes, self._rows[some], self._notes[some])
        else:
            self._passed += [True] * len(self._rows[some])

    @property
    def count(self) -> int:
        """How many pass."""
        return sum(self._passed)

    def _passes(self, row: int, note: Note) -> bool:
        # The fields of the round that have a term.
        fields = self._evidence.own[:, row].sum(axis=1).nonzero()[0]
        place = int(self._evidence.places[row])
        return self._noting.passes(place, note, frozenset(fields.tolist()))

    def noted(self) -> Noted:
        """What passed, its surroundings cut where people paused."""
        rows = np.array(self._rows)
        order = np.argsort(rows)
        order = order[np.array(self._passed)[order]]
        numbers = order.tolist()
        return Noted(
            self._evidence.only(rows[order], self._sittings(rows)),
            [self._notes[number] for number in numbers],
            [self._earlier[number] for number in numbers],
        )

    def _sittings(self, rows: Array) -> Array:
        """Where people sat down anew, as far as the times of turns are known."""
        times = [note.time for note in self._notes]
        earlier = [-1 if note is None else note.time for note in self._earlier]
        axis = self._evidence.axis[rows]
        turns, at = (np.column_stack(each).ravel() for each in ((axis, axis - 1), (times, earlier)))
        is_known = at >= 0
        turns, at = turns[is_known], at[is_known]
        order = np.argsort(turns, kind="stable")
        turns, at = turns[order], at[order]
        is_last = np.append(turns[1:] != turns[:-1], True)  # a turn has one time
        return sittings(turns[is_last], at[is_last])

    def _merged(self, place: int) -> Note | None:
        """What the notes of a round's parts say together. Most rounds have one or two."""
        notes = map(self._noting.known.get, (place, *self._further[place]))
        return _merged([note for note in notes if note is not None])


def _merged(notes: Sequence[Note]) -> Note | None:
    if len(notes) < 2:
        return notes[0] if notes else None
    lengths = [sum(each) for each in zip(*(note.lengths for note in notes), strict=True)]
    return Note(
        time=notes[0].time,
        lengths=(lengths[0], lengths[1], lengths[2]),
        asks=any(note.asks for note in notes),
        speaker=next((note.speaker for note in notes if note.speaker), ""),
        tools=tuple(dict.fromkeys(tool for note in notes for tool in note.tools)),
        tags={name: value for note in notes for name, value in note.tags.items()},
        timed=any(note.timed for note in notes),
        binds=any(note.binds for note in notes),
    )
