"""Ranks parts of files by the words they have, and passages of them by words and by meaning. Pure:
nothing is read or asked here.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

from perdure.search.engine import TextFound

if TYPE_CHECKING:
    import numpy as np

#: Characters of a passage, about and at most.
_PASSAGE, _LONGEST = 500, 1_000
#: What a word in the path adds, to one in the text.
_PATH = 0.5
#: How much counts what stands in the passage, anywhere in its part, and what it means.
_HERE, _AROUND, _MEANING = 0.55, 0.25, 0.35


class Query(NamedTuple):
    """What is asked: each word by its terms, any of which will do, and how rare it is."""

    words: tuple[tuple[str, ...], ...]
    weights: tuple[float, ...] = ()

    @property
    def terms(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(term for word in self.words for term in word))

    @property
    def total(self) -> float:
        return sum(self.weights) or 1.0


class Candidate(NamedTuple):
    """A part of a content: the number of the blob, that of the part, and its score from 0 on."""

    number: int
    part: int
    score: float


class Passage(NamedTuple):
    """Some lines of a part: numbers of the first and the last, counted from 0."""

    first: int
    last: int
    text: str


def parse_query(text: str) -> Query:
    from perdure.recall import words

    asked = words.asked(text)
    terms = dict.fromkeys(asked.terms)
    return Query(tuple((each, *filter(None, [asked.forms.get(each)])) for each in terms))


def weigh(query: Query, found: TextFound) -> Query:
    """The query with weights: the rarer a word, the more it says."""
    counts = dict(zip(query.terms, (each.documents for each in found.terms), strict=True))
    weights = []
    for word in query.words:
        count = max(counts[term] for term in word)
        weights.append(math.log(1 + (found.documents - count + 0.5) / (count + 0.5)))
    return Query(query.words, tuple(max(each, 0.05) for each in weights))


def score_places(query: Query, found: TextFound) -> tuple[np.ndarray, np.ndarray]:
    """Places where a word of the query stands, and the weight of the words that do."""
    import numpy as np

    rows = dict(zip(query.terms, (each.found[:, 0] for each in found.terms), strict=True))
    places, weights = list[np.ndarray](), list[np.ndarray]()
    for word, weight in zip(query.words, query.weights, strict=True):
        own = np.unique(np.concatenate([rows[term] for term in word]))
        places.append(own)
        weights.append(np.full(len(own), weight))
    if not places:
        return np.empty(0, dtype=np.int64), np.empty(0)
    distinct, at = np.unique(np.concatenate(places), return_inverse=True)
    return distinct, np.bincount(at, weights=np.concatenate(weights), minlength=len(distinct))


def best_parts(
    numbers: np.ndarray,
    parts: np.ndarray,
    scores: np.ndarray,
    *,
    is_there: np.ndarray,
    by_path: Mapping[int, float],
    most: int,
) -> list[Candidate]:
    """The best parts of blobs that are there, with what their paths add."""
    import numpy as np

    kept = np.flatnonzero(is_there[numbers]) if len(numbers) else np.empty(0, dtype=np.int64)
    numbers, parts, scores = numbers[kept], parts[kept], scores[kept].copy()
    if by_path:
        bonus = np.zeros(len(is_there))
        for number, weight in by_path.items():
            bonus[number] = _PATH * weight
        scores += bonus[numbers]
    order = np.argsort(-scores, kind="stable")[:most]
    return [Candidate(int(numbers[at]), int(parts[at]), float(scores[at])) for at in order]


def passages_of(text: str) -> list[Passage]:
    """A part in passages: they end at empty lines, where there are some."""
    found, lines, size, first = list[Passage](), list[str](), 0, 0
    for number, line in enumerate(text.split("\n")):
        is_gap = not line.strip()
        if lines and (size + len(line) > _LONGEST or (is_gap and size >= _PASSAGE)):
            found.append(Passage(first, number - 1, "\n".join(lines)))
            lines, size = [], 0
        if is_gap and not lines:
            continue
        if not lines:
            first = number
        lines.append(line)
        size += len(line) + 1
    if any(line.strip() for line in lines):
        found.append(Passage(first, first + len(lines) - 1, "\n".join(lines)))
    return found


def score_passage(query: Query, terms: Sequence[str], around: float, meaning: float) -> float:
    """From 0 to about 1. `around` is the share of the query that stands in its part or path,
    `meaning` the cosine with the query.
    """
    counts = Counter(terms)
    here = 0.0
    for word, weight in zip(query.words, query.weights, strict=True):
        times = sum(counts[term] for term in word)
        here += weight * times / (times + 0.5) if times else 0.0
    return _HERE * 1.5 * here / query.total + _AROUND * around + _MEANING * max(meaning, 0.0)
