"""Asking the index: occurrences of words, notes, vectors; and what they say, ranked.

Two stages. The first counts occurrences around every turn, in numbers alone, and keeps the best.
The second reads the notes of those few, and ranks them by all that is known. No text is read.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING, TypeAlias

import msgspec

from perdure.core.turns import Position
from perdure.recall.cues import Cues, cues
from perdure.recall.evidence import Evidence, gathered, sittings
from perdure.recall.features import Features, Meanings, features, spoken_by
from perdure.recall.filters import Passing, narrowed, passes
from perdure.recall.places import INDEX, PART_BITS, ROUND_BITS, Spot, spot
from perdure.recall.ranking import Telling, ranked
from perdure.recall.values import Candidate, Filters, Kind, Note, Question
from perdure.storage.options import DEFAULT
from perdure.storage.searching import TextFound, TextSearch, VectorSearch

if TYPE_CHECKING:
    import numpy as np

    from perdure.recall.embedders import Embedder
    from perdure.recall.scope import Scope
    from perdure.storage.store import Store

    Array: TypeAlias = np.ndarray

#: Candidates that are answered with, at most: what a few thousand tokens have room for.
MOST = 200
#: Rows whose notes are read first, to learn who speaks; and then. Read on if filters leave fewer
#: than asked for, …
_FIRST, _CHUNK, _CHUNKS = 40, 200, 8
#: … for which so many turns are counted, instead of the few that are enough without filters.
_TURNS_FILTERED = 3_000
#: Documents that are taken from the dense leg.
_NEAREST = 60
#: Turns on each side whose vectors are a candidate's surroundings, and those of its stretch.
_AROUND, _STRETCH = 2, 12
_note = msgspec.msgpack.Decoder(Note).decode


class Found(msgspec.Struct, frozen=True, kw_only=True):
    """What was found so far: ranked, and what is needed to rank it again with more."""

    question: Question
    scope: Scope
    cues: Cues
    text: TextFound
    #: Best first, those that the filters let through, at most `MOST`.
    candidates: tuple[Candidate, ...] = ()
    #: What was weighed, for whoever fits the weights.
    weighed: Weighed | None = None

    @property
    def terms(self) -> tuple[str, ...]:
        """The terms that were looked for."""
        return self.cues.terms


class Weighed(msgspec.Struct, frozen=True):
    """Features of every candidate whose notes were read, before anything was cut off."""

    places: Array
    features: Features
    evidence: Evidence
    notes: Sequence[Note]


class Searcher:
    """Finds what may answer a question. Reads the index only; writes nothing."""

    def __init__(self, store: Store, embedder: Embedder | None = None) -> None:
        self._store = store
        self._embedder = embedder

    async def keyword(self, question: Question, scope: Scope, also: Sequence[str] = ()) -> Found:
        """By words. `also` are further ones, which the first hits brought up.

        A question of nothing but stop words finds nothing here. Raises `Corrupted` if the index is
        damaged.
        """
        scope = narrowed(scope, question.filters)
        asked = cues(question.text, question.moment, tuple(also))
        search = TextSearch(index=INDEX.name, terms=asked.terms, within=scope.ranges)
        text = TextFound(0, ())
        if asked.terms and scope.ranges:
            text = await self._store.adapter.search_text(search, DEFAULT)
        found = Found(question=question, scope=scope, cues=asked, text=text)
        return await self._ranked(found, {}) if asked.terms else found

    async def vector(self, found: Found) -> Found:
        """By meaning as well: candidates join those found by words, and all are ranked again.

        Without an embedder, or without a single vector of its model, the same comes back.
        """
        if self._embedder is None or not found.scope.ranges or not found.question.text.strip():
            return found
        [asked] = await self._embedder.embed([found.question.text])
        search = VectorSearch(
            index=INDEX.name,
            model=self._embedder.name,
            vector=asked,
            within=found.scope.ranges,
            limit=_NEAREST,
        )
        nearest = await self._store.adapter.search_vectors(search, DEFAULT)
        if not nearest:
            return found
        return await self._ranked(found, {near.place: near.score for near in nearest}, asked)

    async def _ranked(
        self, found: Found, nearest: dict[int, float], asked: bytes | None = None
    ) -> Found:
        view = _View(self._store, found, self._evidence(found, tuple(nearest)))
        kept = await view.read(nearest)
        if not kept:
            return msgspec.structs.replace(found, candidates=(), weighed=None)
        evidence = view.evidence(kept)
        meanings = None
        if asked is not None and self._embedder is not None:
            vectors = _Vectors(self._store, self._embedder.name, found.scope)
            meanings = await vectors.meanings(evidence, asked, nearest)
        notes = [view.notes[int(place)] for place in evidence.places]
        before = [view.before.get(int(place)) for place in evidence.places]
        weighed = features(evidence, found.cues, notes, before, meanings)
        return msgspec.structs.replace(
            found,
            candidates=_candidates(found, evidence, weighed, notes),
            weighed=Weighed(evidence.places, weighed, evidence, notes),
        )

    def _evidence(self, found: Found, also: Sequence[int]) -> Evidence:
        numbers = {term: number for number, term in enumerate(found.cues.terms)}
        pairs = [(numbers[a], numbers[b]) for a, b in found.cues.pairs]
        scope = found.scope

        def alone(place: int) -> bool:
            return scope.name(place)[0] != "turn"

        if found.question.filters == Filters():
            return gathered(found.text, pairs, alone=alone, also=also)
        return gathered(found.text, pairs, alone=alone, also=also, turns=_TURNS_FILTERED)


class _View:
    """The notes of candidates, of all their parts that have a term; and who passes the filters."""

    def __init__(self, store: Store, found: Found, evidence: Evidence) -> None:
        self._store, self._found, self._evidence = store, found, evidence
        self.notes = dict[int, Note]()
        #: By the place of a candidate, the note of the turn before.
        self.before = dict[int, Note]()
        self._seen = list[int]()

    async def read(self, nearest: Collection[int]) -> list[int]:
        """Rows that are there and pass: the nearest ones, then the best by words, until enough.

        The first notes tell who speaks. The name of a speaker stands where others address them,
        so it is left out of account for the rest.
        """
        import numpy as np  # noqa: PLC0415 - not with the command

        evidence, cues = self._evidence, self._found.cues
        enough = min(MOST, max(self._found.question.limit, _CHUNK // 2))
        rounds = np.array(list(nearest), np.int64) >> PART_BITS << PART_BITS
        order = ranked(features(evidence, cues)).order
        near = np.isin(evidence.places, rounds)[order]
        kept = await self._chunk(np.concatenate([order[near], order[~near][:_FIRST]]))
        if speaker := spoken_by(cues, [*self.notes.values(), *self.before.values()]):
            order = ranked(features(evidence, cues, speaker=speaker)).order
        left = order[~np.isin(order, self._seen)]
        for start in range(0, _CHUNK * _CHUNKS, _CHUNK):
            chunk = left[start : start + _CHUNK]
            kept += await self._chunk(chunk)
            if len(kept) >= enough or not len(chunk):
                break
        return kept

    def evidence(self, rows: Sequence[int]) -> Evidence:
        """The evidence of these rows alone, in order of place, cut where people paused."""
        import numpy as np  # noqa: PLC0415

        whole = self._evidence
        axis, times = self._known_times()
        return whole.only(np.sort(np.array(rows)), sittings(axis, times))

    def _known_times(self) -> tuple[Array, Array]:
        import numpy as np  # noqa: PLC0415

        whole = self._evidence
        known = dict[int, int]()
        for row in self._seen:
            place, at = int(whole.places[row]), int(whole.axis[row])
            if (note := self.notes.get(place)) is not None:
                known[at] = note.time
            if (note := self.before.get(place)) is not None:
                known[at - 1] = note.time
        axis = np.array(sorted(known), np.int64)
        return axis, np.array([known[at] for at in axis.tolist()], np.int64)

    async def _chunk(self, rows: Array) -> list[int]:
        scope, evidence = self._found.scope, self._evidence
        self._seen += rows.tolist()
        rows = rows[_allowed(scope, evidence.places[rows])]
        candidates = [int(place) for place in evidence.places[rows]]
        parts = {place: [place] for place in candidates}
        for part in evidence.parts.tolist():
            whole = part >> PART_BITS << PART_BITS
            if part != whole and whole in parts:
                parts[whole].append(part)
        earlier = {place: _turn_before(place) for place in candidates}
        visible = [place for place in earlier.values() if place is not None and scope.allows(place)]
        wanted = list(dict.fromkeys([*(p for each in parts.values() for p in each), *visible]))
        read = await self._store.adapter.notes(INDEX.name, wanted)
        there = {
            place: _note(note) for place, note in zip(wanted, read, strict=True) if note is not None
        }
        for place, each in parts.items():
            if known := [there[part] for part in each if part in there]:
                self.notes[place] = _merged(known)
        for place, previous in earlier.items():
            if previous in there:
                self.before[place] = there[previous]
        return [row for row in map(int, rows) if self._passes(row)]

    def _passes(self, row: int) -> bool:
        place = int(self._evidence.places[row])
        note = self.notes.get(place)
        if note is None:
            return False  # a neighbour that is not there
        if self._found.question.filters == Filters():
            return True
        kind, session = self._found.scope.name(place)
        fields = self._evidence.own[:, row].any(axis=1)
        return passes(
            self._found.question.filters,
            Passing(
                kind=kind,
                spot=spot(place),
                note=note,
                session=session,
                fields=frozenset(int(field) for field in fields.nonzero()[0]),
            ),
        )


def _merged(notes: Sequence[Note]) -> Note:
    """What the notes of a round's parts say together. Most rounds have one or two."""
    first = notes[0]
    if len(notes) == 1:
        return first
    lengths = [sum(each) for each in zip(*(note.lengths for note in notes), strict=True)]
    return Note(
        time=first.time,
        lengths=(lengths[0], lengths[1], lengths[2]),
        asks=any(note.asks for note in notes),
        speaker=next((note.speaker for note in notes if note.speaker), ""),
        tools=tuple(dict.fromkeys(tool for note in notes for tool in note.tools)),
        tags={name: value for note in notes for name, value in note.tags.items()},
        timed=any(note.timed for note in notes),
    )


def _turn_before(place: int) -> int | None:
    at = spot(place)
    return Spot(at.group, at.turn - 1).place if at.turn > 1 else None


def _allowed(scope: Scope, places: Array) -> Array:
    """Which places are inside the scope's ranges."""
    import numpy as np  # noqa: PLC0415

    bounds = np.array(scope.ranges, np.int64).reshape(-1, 2)
    # Any part of a round may be there: a range begins and ends with whole rounds.
    at = np.searchsorted(bounds[:, 0], places | (1 << PART_BITS) - 1, side="right") - 1
    inside: Array = (at >= 0) & (places <= bounds[np.maximum(at, 0), 1])
    return inside


class _Vectors:
    """Vectors of candidates and of what is around them."""

    def __init__(self, store: Store, model: str, scope: Scope) -> None:
        self._store, self._model, self._scope = store, model, scope

    async def meanings(
        self, evidence: Evidence, asked: bytes, nearest: dict[int, float]
    ) -> Meanings:
        import numpy as np  # noqa: PLC0415

        near = list(nearest)
        parts = evidence.parts[np.isin(evidence.parts >> PART_BITS << PART_BITS, evidence.places)]
        own = np.unique(np.concatenate([evidence.places, parts, np.array(near, np.int64)]))
        steps = np.array([step for step in range(-_AROUND, _AROUND + 1) if step]) << ROUND_BITS
        first = evidence.places >> ROUND_BITS << ROUND_BITS | 1 << PART_BITS
        beside = (first[:, None] + steps).ravel()
        ordered = np.repeat(self._ordered(evidence), len(steps))
        beside = np.unique(beside[ordered & (beside > 0)])
        beside = beside[_allowed(self._scope, beside)] if len(beside) else beside
        wanted = np.unique(np.concatenate([own, beside]))
        read = await self._store.adapter.vectors(INDEX.name, self._model, wanted.tolist())
        length = len(asked)
        blank = bytes(length)
        matrix = np.frombuffer(
            b"".join(row if row is not None and len(row) == length else blank for row in read),
            np.int8,
        ).reshape(-1, length)
        return _meanings(evidence, _Known(wanted, _unit(matrix)), _unit(_one(asked))[0], steps)

    def _ordered(self, evidence: Evidence) -> Array:
        import numpy as np  # noqa: PLC0415

        kinds = [self._scope.name(int(place))[0] == "turn" for place in evidence.places]
        return np.array(kinds, bool)


class _Known(msgspec.Struct, frozen=True):
    """Places in order, and their vectors of length 1; of length 0 where there is none."""

    places: Array
    vectors: Array


def _one(vector: bytes) -> Array:
    import numpy as np  # noqa: PLC0415

    return np.frombuffer(vector, np.int8).reshape(1, -1)


def _unit(vectors: Array) -> Array:
    import numpy as np  # noqa: PLC0415

    rows = vectors.astype(np.float32)
    unit: Array = rows / np.maximum(np.linalg.norm(rows, axis=1, keepdims=True), 1e-9)
    return unit


def _meanings(evidence: Evidence, known: _Known, asked: Array, steps: Array) -> Meanings:
    import numpy as np  # noqa: PLC0415

    cosines = known.vectors @ asked
    rounds = known.places >> PART_BITS << PART_BITS
    # The best of a round's parts.
    at = np.searchsorted(evidence.places, rounds)
    inside = np.minimum(at, len(evidence.places) - 1)
    mine = evidence.places[inside] == rounds
    own = np.zeros(evidence.rows)
    np.maximum.at(own, inside[mine], cosines[mine])
    return Meanings(own, _near(evidence, known, asked, steps), _best_of_stretch(evidence, own))


def _near(evidence: Evidence, known: _Known, asked: Array, steps: Array) -> Array:
    """The cosine of a candidate and its neighbours taken together."""
    import numpy as np  # noqa: PLC0415

    total = np.zeros((evidence.rows, known.vectors.shape[1]), np.float32)
    first = evidence.places >> ROUND_BITS << ROUND_BITS | 1 << PART_BITS
    for wanted in (evidence.places, *(first + step for step in steps)):
        at = np.minimum(np.searchsorted(known.places, wanted), len(known.places) - 1)
        total += known.vectors[at] * (known.places[at] == wanted)[:, None]
    near: Array = _unit(total) @ asked
    return near


def _best_of_stretch(evidence: Evidence, own: Array) -> Array:
    import numpy as np  # noqa: PLC0415

    # A few hundred rows: a square of them is small.
    close = np.abs(evidence.axis[:, None] - evidence.axis[None, :]) <= _STRETCH
    best: Array = np.where(close, own[None, :], 0.0).max(axis=1)
    return best


def _candidates(
    found: Found, evidence: Evidence, weighed: Features, notes: Sequence[Note]
) -> tuple[Candidate, ...]:
    order, scores = ranked(weighed)
    telling = Telling(weighed, evidence, found.cues)
    made = list[Candidate]()
    for row in order[:MOST].tolist():
        place = int(evidence.places[row])
        kind, owner = found.scope.name(place)
        at = spot(place)
        made.append(
            Candidate(
                kind=kind,
                place=place,
                key=_key(found.question, kind, owner, at),
                session=owner if kind == "turn" else "",
                turn=at.turn if kind == "turn" else 0,
                round=at.round if kind == "turn" else 0,
                score=round(float(scores[row]), 4),
                reasons=telling.reasons(row, notes[row]),
                note=notes[row],
            )
        )
    return tuple(made)


def _key(question: Question, kind: Kind, owner: str, at: Spot) -> str:
    """The key of a turn or memory; of a reference layer, its number, which its shelf knows."""
    if kind == "turn":
        return f"{owner}#{Position(at.turn, at.round)}"
    if kind == "memory":
        return f"M-{at.turn}" if owner == question.record.agent else f"{owner}/M-{at.turn}"
    return str(at.turn)
