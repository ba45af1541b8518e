"""Texts as sets of words, and how to find those that have many in common. Pure."""

from __future__ import annotations

import math


def word_set(text: str) -> frozenset[str]:
    """The words of a text that count, as the search sees them: without case and endings."""
    from perdure.recall.words import terms  # it loads the stemmer

    return frozenset(terms(text))


def prefix_size(words: int, least: float) -> int:
    """Two texts of which each has that share of the other's words have one in common of so many
    that are the first of each, in whatever order of words (the rarest first is the fastest).
    """
    return words - math.ceil(least * words) + 1
