"""What speaks for a candidate: a number for each of a few reasons that a person would give.

Evidence is divided by the most that any candidate of the question has, so that it is from 0 to 1,
whatever the question. What is not known is 0, and then speaks neither for nor against: a bank
without speakers, dates or vectors is ranked by what is left.

What stands around a turn tells much where people say a line each, and little where each turn is a
prompt with a page for an answer. So it counts the less the longer turns are: see `_by_length`.
"""

from __future__ import annotations

import itertools
from collections.abc import Collection, Mapping, Sequence
from typing import NamedTuple

import numpy as np

from perdure.history.turn_search import folded
from perdure.recall.places import ANSWERED, SAID
from perdure.recall.searching.cues import Cues
from perdure.recall.searching.evidence import (
    FIELD_WEIGHTS,
    NUMBERS,
    PAUSE,
    WINDOWS,
    Array,
    Evidence,
    covered,
    saturated,
    scaled,
)
from perdure.recall.values import Note

#: Features by the group that is known, or is not, as a whole.
GROUPS: Mapping[str, tuple[str, ...]] = {
    # What the round itself says.
    "own": ("own", "phrase"),
    # What was said around it: with the turn before, and so on.
    "context": ("around", "wider", "cover_pair", "cover_around", "cover_stretch"),
    # What it means, itself and with its neighbours.
    "meaning": ("alike", "alike_near"),
    # The question names somebody who said it: 1; or somebody else: -1.
    "speaker": ("speaker",),
    # It was said when the question says; it tells when, which the question wants to know.
    "time": ("in_time", "tells_when"),
    # A question that nobody answers there; an answer to one; what somebody says first after a
    # pause, which is what is new; how things are to be done from now on.
    "shape": ("asks", "answers", "opens", "binds"),
}
NAMES: tuple[str, ...] = tuple(name for group in GROUPS.values() for name in group)

#: The windows of which it counts how often the question's words stand in them; how much of it.
_SUMS = tuple(name for name in GROUPS["context"] if name in WINDOWS)
_SUMMED = [NUMBERS[name] for name in _SUMS]
_COVERS = tuple(name for name in NAMES if name.startswith("cover_"))
_COVERED = [NUMBERS[name.removeprefix("cover_")] for name in _COVERS]
_FIELDS = np.array(list(FIELD_WEIGHTS.values()))
#: How much length weighs in BM25.
_BY_LENGTH = 0.75
#: Terms of an average turn with which what stands around it counts half.
_LONG = 40.0
#: A question whose time is met is met by this share at least: "what did we do on Tuesday?"
_BY_TIME = 0.7
#: Terms that make an answer; fewer say that it was heard.
_AN_ANSWER = 4
#: A part is normalised by the average length of its field among the candidates, but at least this.
_LEAST_AVERAGE = 10.0


class Meanings(NamedTuple):
    """Cosines with the question, a number for each candidate; the average without a vector."""

    own: Array
    near: Array
    #: The largest cosine with the question as it was asked, names and all.
    likeness: float


class Features(NamedTuple):
    """A row for each candidate, a column for each of `NAMES`."""

    values: Array
    #: The largest share of the question that stands in one candidate and the turn before it; at
    #: least `_BY_TIME`, if one was said when the question says.
    coverage: float
    #: The largest cosine; 0 if nothing but stop words is asked: "yes please" is like every other
    #: one, and means nothing by itself.
    likeness: float
    #: Who is named by the question among those who speak, if it is one.
    speaker: str
    #: The weight of each term, without names of speakers.
    rarity: Array


def features(
    evidence: Evidence,
    cues: Cues,
    notes: Sequence[Note],
    before: Sequence[Note | None] = (),
    meanings: Meanings | None = None,
    *,
    named: Collection[str] = (),
) -> Features:
    """Features of the rows of `evidence`, from as much as is known about them.

    `named` are the speakers whom the question names: see `named_by`.
    """
    speaker = next(iter(named)) if len(named) == 1 else ""
    terms = kept(cues, named)
    lengths = _lengths(notes)
    near = _by_length(lengths)
    column = dict.fromkeys(NAMES, np.zeros(evidence.rows))
    column |= by_words(evidence, terms, lengths)
    coverage = float(column["cover_pair"].max(initial=0.0))
    if meanings is not None:
        alike = scaled(np.array([meanings.own, meanings.near]))
        column |= zip(GROUPS["meaning"], alike, strict=True)
    column["own"] = column["own"] * (2 - near)  # what is around says less: its own words say more
    for name in (*GROUPS["context"], "alike_near"):
        column[name] = column[name] * near
    _by_time(column, notes, cues)
    speakers = [note.speaker for note in notes]
    if any(speakers):
        if speaker:
            said = [(each == speaker) - (each not in {speaker, ""}) for each in speakers]
            column["speaker"] = np.array(said, float)
        _by_shape(column, notes, before)
    column["binds"] = np.array([note.binds for note in notes], float)
    if column["in_time"].any():
        coverage = max(coverage, _BY_TIME)
    return Features(
        values=np.stack([column[name] for name in NAMES], axis=1),
        coverage=coverage,
        likeness=_likeness(meanings, coverage, evidence, cues) if cues.terms else 0.0,
        speaker=speaker,
        rarity=evidence.rarity * terms,
    )


def _by_length(lengths: Array) -> float:
    """What surroundings count: 1 where turns are lines, nearly 0 where they are pages.

    Output of tools is no matter: between two rounds of an agent it is what both are about.
    """
    words = lengths[[SAID, ANSWERED]].sum(axis=0)
    return 1 / (1 + (float(words.mean() if len(words) else 0.0) / _LONG) ** 2)


def _likeness(meanings: Meanings | None, coverage: float, evidence: Evidence, cues: Cues) -> float:
    """The largest cosine. Without vectors, what it would be at least, by how many words are met.

    The same holds for a question with an identifier that stands somewhere: it means nothing to an
    embedder.
    """
    by_words = coverage / 2
    if meanings is None:
        return by_words
    named = [number for number, term in enumerate(cues.terms) if term in cues.identifiers]
    stands = bool(named) and bool(evidence.own[:, :, named].any())
    return max(meanings.likeness, by_words) if stands else meanings.likeness


def named_by(cues: Cues, notes: Sequence[Note | None]) -> frozenset[str]:
    """The speakers whom the question names."""
    speakers = {note.speaker for note in notes if note is not None}
    return frozenset(
        speaker for speaker in speakers if not cues.names.keys().isdisjoint(folded(speaker).split())
    )


def kept(cues: Cues, speakers: Collection[str]) -> Array:
    """1 for each term, but 0 for the names of who speaks: they stand where others address them."""
    names = {cues.names.get(word) for speaker in speakers for word in folded(speaker).split()}
    flags = np.array([float(term not in names) for term in cues.terms])
    return flags if flags.any() else np.ones(len(cues.terms))


def by_words(evidence: Evidence, terms: Array, lengths: Array | None = None) -> dict[str, Array]:
    """The features that come from words alone, by name.

    `terms` says how much each term counts. Without `lengths` every passage has the same. Each field
    of a round is a passage of its own, whose score is added: in one with its prompt, a page of an
    answer would drown it.
    """
    rarity, rarities = evidence.rarity * terms, evidence.rarities * terms
    counts: Array = evidence.own
    if lengths is not None:
        counts = counts / _relative(lengths)[:, :, None]
    own = _FIELDS @ saturated(counts, rarity)
    found = dict(zip(GROUPS["own"], scaled(np.array([own, evidence.phrases])), strict=True))
    sums = saturated(evidence.windows[_SUMMED], rarities[_SUMMED])
    found |= zip(_SUMS, scaled(sums), strict=True)
    covers = covered(evidence.windows[_COVERED], rarities[_COVERED])
    return found | dict(zip(_COVERS, covers, strict=True))


def _lengths(notes: Sequence[Note]) -> Array:
    """By field and row."""
    flat = itertools.chain.from_iterable([note.lengths for note in notes])
    return np.fromiter(flat, float).reshape(len(notes), len(FIELD_WEIGHTS)).T


def _relative(lengths: Array) -> Array:
    """By field and row: what an occurrence is divided by, 1 for a passage of average length."""
    there = np.maximum((lengths > 0).sum(axis=1), 1)
    average = np.maximum(lengths.sum(axis=1) / there, _LEAST_AVERAGE)
    relative: Array = 1 - _BY_LENGTH + _BY_LENGTH * lengths / average[:, None]
    return relative


def _by_time(column: dict[str, Array], notes: Sequence[Note], cues: Cues) -> None:
    if cues.times:
        held = [any(time.holds(note.time) for time in cues.times) for note in notes]
        column["in_time"] = np.array(held, float)
    if cues.when:
        column["tells_when"] = np.array([note.timed for note in notes], float)


def _by_shape(
    column: dict[str, Array], notes: Sequence[Note], before: Sequence[Note | None]
) -> None:
    """How people talk with each other. A model answers in the same turn, whoever asks it."""
    column["asks"] = np.array([_only_asks(note) for note in notes], float)
    if before:
        answers = [
            asked is not None and _answers(note, asked)
            for note, asked in zip(notes, before, strict=True)
        ]
        column["answers"] = np.array(answers, float)
        column["opens"] = np.array(list(map(_opens, notes, before)), float)


def _only_asks(note: Note) -> bool:
    """A question that is answered in the same round is as good as its answer.

    Only people who talk with each other leave a question open: a model answers in the same turn.
    """
    return note.asks and note.speaker != "" and note.lengths[ANSWERED] < _AN_ANSWER


def _opens(note: Note, before: Note | None) -> bool:
    """Somebody sits down anew. Only people who talk with each other tell then what is new."""
    return note.speaker != "" and (before is None or note.time - before.time > PAUSE)


def _answers(note: Note, before: Note) -> bool:
    return _only_asks(before) and note.speaker not in {"", before.speaker}
