"""Which terms of a long question count: what it says often, and what is rare but there."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import msgspec

from perdure.recall.searching.cues import MOST_TERMS, Cues, weight
from perdure.search.engine import TextFound

if TYPE_CHECKING:
    from perdure.search.engine import Postings


def chosen(cues: Cues, found: TextFound) -> tuple[Cues, TextFound]:
    """The question with as many of its terms as count, and what was found of them.

    Of many, those that stand nowhere do not: a log that somebody pasted is full of them, and what
    was found would be a small share of it, however well it fits.
    """
    if len(cues.terms) <= MOST_TERMS:
        return cues, found
    weights = [
        _weight(*each, found.documents)
        for each in zip(cues.terms, cues.counts, found.terms, strict=True)
    ]
    there = [at for at, each in enumerate(weights) if each > 0]
    there.sort(key=weights.__getitem__, reverse=True)
    kept = sorted(there[:MOST_TERMS])
    terms = tuple(cues.terms[at] for at in kept)
    less = msgspec.structs.replace(
        cues,
        terms=terms,
        counts=tuple(cues.counts[at] for at in kept),
        pairs=tuple(pair for pair in cues.pairs if set(pair).issubset(terms)),
    )
    return less, TextFound(found.documents, tuple(found.terms[at] for at in kept))


def _weight(term: str, count: int, postings: Postings, documents: int) -> float:
    if not len(postings.found):
        return 0.0
    return weight(term, count) * math.log1p(documents / max(postings.documents, 1))
