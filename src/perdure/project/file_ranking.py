"""Ranks parts of files by the words they have, and passages of them by words and by meaning. Pure:
nothing is read or asked here.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

from perdure.search.engine import TextFound

if TYPE_CHECKING:
    import numpy as np

#: Characters of a block, of a line, and of what is shown of a hit, about.
_BLOCK, _LONGEST, _SHOWN = 300, 500, 700
#: What a word in the path adds, to one in the text.
_PATH = 0.7
#: What a word counts that the path says, and one that stands elsewhere in the part.
_PATH_SAYS, _AROUND = 1.0, 0.2
#: The same of each of several words that the path says: together they name it.
_PATH_NAMES = 2.0
#: What a word says that is nowhere, of what a rare one does; and one that is everywhere.
_NOWHERE, _COMMON = 0.4, 0.05
#: Words of questions that ask for a measure or a kind; what they say of what a rare word does.
_ASKING = frozenset(
    """
    big default early ever far fast high kind large late least long many most much often old
    several size small sort still type until usually
    """.split()  # noqa: SIM905 - as a list it would take a page
)
_ASKS = 0.25
#: Letters of a word that is looked for in paths.
_IN_PATH = 3


class FileQuery(NamedTuple):
    """What is asked: its words as they stand there, the terms of each, any of which will do, and
    how rare it is.
    """

    texts: tuple[str, ...]
    words: tuple[tuple[str, ...], ...]
    weights: tuple[float, ...] = ()

    @property
    def terms(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(term for word in self.words for term in word))

    @property
    def total(self) -> float:
        return sum(self.weights) or 1.0


class PartCandidate(NamedTuple):
    """A part of a content: the number of the blob, that of the part, and its score from 0 on."""

    number: int
    part: int
    score: float


class Block(NamedTuple):
    """Some lines of a part: numbers of the first and the last, counted from 0."""

    first: int
    last: int
    text: str


def parse_query(text: str) -> FileQuery:
    from perdure.recall import words

    asked = words.asked(text)
    shown = {term: each for each in reversed(text.split()) for term in words.terms(each)}
    terms = tuple(dict.fromkeys(asked.terms))
    return FileQuery(
        tuple(shown.get(term, term) for term in terms),
        tuple((each, *filter(None, [asked.forms.get(each)])) for each in terms),
    )


def weigh(query: FileQuery, found: TextFound) -> FileQuery:
    """The query with weights: the rarer a word, the more it says; one that is nowhere says half."""
    counts = dict(zip(query.terms, (each.documents for each in found.terms), strict=True))
    weights = []
    for text, word in zip(query.texts, query.words, strict=True):
        count = max(counts[term] for term in word)
        rarity = math.log(1 + (found.documents - count + 0.5) / (count + 0.5))
        share = _ASKS if text.lower().strip("?.,") in _ASKING else 1.0 if count else _NOWHERE
        weights.append(max(rarity * share, _COMMON))
    return query._replace(weights=tuple(weights))


def score_places(query: FileQuery, found: TextFound) -> tuple[np.ndarray, np.ndarray]:
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
) -> list[PartCandidate]:
    """The best parts of blobs that are there, with what their paths add. Of one that only its path
    speaks for, the first part.
    """
    import numpy as np

    kept = np.flatnonzero(is_there[numbers]) if len(numbers) else np.empty(0, dtype=np.int64)
    numbers, parts, scores = numbers[kept], parts[kept], scores[kept].astype(np.float64)
    if by_path:
        bonus = np.zeros(len(is_there))
        bonus[list(by_path)] = np.fromiter(by_path.values(), dtype=np.float64) * _PATH
        alone = np.setdiff1d(np.fromiter(by_path, dtype=np.int64), numbers)
        numbers = np.concatenate((numbers, alone))
        parts = np.concatenate((parts, np.zeros(len(alone), dtype=np.int64)))
        scores = np.concatenate((scores, np.zeros(len(alone)))) + bonus[numbers]
    order = np.argsort(-scores, kind="stable")[:most]
    return [PartCandidate(int(numbers[at]), int(parts[at]), float(scores[at])) for at in order]


def blocks_of(text: str) -> list[Block]:
    """A part in blocks: what stands between empty lines, or a few lines of it."""
    found, first, size = list[Block](), 0, 0
    lines = text.split("\n")
    for number, line in enumerate(lines):
        if number > first and (size + len(line) > _BLOCK or not line.strip()):
            found.append(_block(lines, first, number))
            first, size = number, 0
        if not line.strip():
            first, size = number + 1, 0
        else:
            size += len(line) + 1
    if first < len(lines):
        found.append(_block(lines, first, len(lines)))
    return found


def _block(lines: Sequence[str], first: int, end: int) -> Block:
    return Block(first, end - 1, "\n".join(lines[first:end])[:_LONGEST])


def shown_around(text: str, block: Block) -> Block:
    """A block with the lines around it that help to read it."""
    lines = text.split("\n")
    first, last = block.first, block.last
    size = len(block.text)
    while size < _SHOWN and (first > 0 or last + 1 < len(lines)):
        if first > 0:
            first -= 1
            size += len(lines[first]) + 1
        if last + 1 < len(lines):
            last += 1
            size += len(lines[last]) + 1
    while first < block.first and not lines[first].strip():
        first += 1
    while last > block.last and not lines[last].strip():
        last -= 1
    cut = [
        line if len(line) <= _LONGEST else f"{line[:_LONGEST]}…" for line in lines[first : last + 1]
    ]
    return Block(first, last, "\n".join(cut))


def said_by(query: FileQuery, path: str) -> tuple[bool, ...]:
    """Which words of the query stand in a path."""
    low = path.lower()
    return tuple(any(len(t) >= _IN_PATH and t in low for t in word) for word in query.words)


def score_block(
    query: FileQuery,
    said: Sequence[bool],
    terms: Collection[str],
    around: Collection[str],
    alike: Sequence[float],
) -> float:
    """The share of the query, from 0 to 1, that a block with these terms tells. What the path says
    counts for all blocks alike, what stands elsewhere in the part only a little. `alike` says for
    each word how near the block has one in meaning.
    """
    found, path = 0.0, _PATH_NAMES if sum(said) > 1 else _PATH_SAYS
    for word, weight, is_said, near in zip(query.words, query.weights, said, alike, strict=True):
        if is_said:
            found += weight * path
        elif any(term in terms for term in word):
            found += weight
        else:
            found += weight * max(near, _AROUND if any(t in around for t in word) else 0.0)
    return found / query.total
