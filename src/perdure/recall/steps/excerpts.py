"""A part of a long text: the one that has most of the words that were asked for."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable

from perdure.history.searching import folded
from perdure.recall.small_words import STOP_WORDS

#: Of a part, so much stands before the first word that was found.
_BEFORE = 160
#: Words that are looked for, and places at which each is.
_WORDS, _PLACES = 40, 50
#: Characters of a text that are looked at.
_TEXT = 200_000
#: Shorter words stand everywhere.
_SHORTEST = 3

_pieces = re.compile(r"\w{3,}").findall


def looked_for(question: str) -> tuple[str, ...]:
    """What of a question may stand in a text, folded: its longer words, no stop words."""
    found = dict.fromkeys(_pieces(folded(question[:10_000])))
    return tuple(w for w in found if len(w) >= _SHORTEST and w not in STOP_WORDS)[:_WORDS]


def count(text: str, wanted: Iterable[str]) -> int:
    """How many of the words stand in a text."""
    plain = folded(text[:_TEXT])
    return sum(word in plain for word in wanted)


def excerpt(text: str, wanted: Collection[str], most: int) -> str:
    """The text, or of a longer one about `most` characters; its beginning if no word is in it."""
    if len(text) <= most:
        return text
    plain = folded(text[:_TEXT])  # places in it may have moved a little
    places = sorted((at, word) for word in wanted for at in _places(plain, word))
    best, start = 0, 0
    for number, (at, _) in enumerate(places):
        there = {word for other, word in places[number:] if other < at + most - _BEFORE}
        if len(there) > best:
            best, start = len(there), max(at - _BEFORE, 0)
    if start:
        start = text.find(" ", start, start + _BEFORE) + 1 or start
    cut = text[start : start + most].strip()
    return f"{'… ' if start else ''}{cut}{' …' if start + most < len(text) else ''}"


def _places(plain: str, word: str) -> list[int]:
    found, at = list[int](), plain.find(word)
    while at >= 0 and len(found) < _PLACES:
        found.append(at)
        at = plain.find(word, at + 1)
    return found
