"""Reading the notes of candidates: of the best by words, until enough of them pass the filters."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from itertools import compress
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from perdure.recall.indexing.documents import read_notes
from perdure.recall.places import INDEX, PART_BITS, ROUND_BITS, TURN_BITS, spot
from perdure.recall.scoping.filters import Passing, passes
from perdure.recall.searching.cues import Cues
from perdure.recall.searching.evidence import Array, Evidence, sittings
from perdure.recall.searching.features import spoken_by
from perdure.recall.searching.ranking import rough_order
from perdure.recall.searching.searcher import MOST
from perdure.recall.searching.sets import among, distinct, inside
from perdure.recall.values import Filters, Note, Question
from perdure.search.engine import engine_of

if TYPE_CHECKING:
    from perdure.recall.scoping.scope import Scope
    from perdure.storage.store import Store


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
    ) -> None:
        self._store, self._question, self._scope, self._cues = store, question, scope, cues
        self.filtered = question.filters != Filters()
        #: By place; None where there is no document.
        self.known = {} if known is None else known
        self.known[NOWHERE] = None

    async def read(self, evidence: Evidence, nearest: Collection[int] = ()) -> Noted | None:
        """What passes: the nearest ones, then the best by words. None if nothing does."""
        view = _View(self, evidence)
        if evidence.rows <= AT_ONCE:
            await view.look(np.arange(evidence.rows))
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
        if speaker := spoken_by(self._cues, list(self.known.values())):
            order = rough_order(evidence, self._cues, speaker)
        is_left = np.ones(evidence.rows, bool)
        is_left[first] = False
        left = order[is_left[order]]
        enough = max(self._question.limit, CHUNK // 2)
        chunk = max(CHUNK, DEPTH * min(self._question.limit, MOST))
        for start in range(0, chunk * CHUNKS, chunk):
            await view.look(left[start : start + chunk])
            if view.count >= enough or start + chunk >= len(left):
                break

    async def fetch(self, places: Sequence[int]) -> None:
        """Make sure that these are known."""
        wanted = [place for place in dict.fromkeys(places) if place not in self.known]
        if wanted:
            read = await engine_of(self._store.adapter).notes(INDEX.name, wanted)
            self.known.update(zip(wanted, read_notes(read), strict=True))

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

    async def look(self, rows: Array) -> None:
        rows = rows[self._allowed[rows]]
        places = self._evidence.places[rows].tolist()
        before = self._before[rows].tolist()
        further = [
            part for place in places if place in self._further for part in self._further[place]
        ]
        await self._noting.fetch([*places, *further, *before])
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
    )
