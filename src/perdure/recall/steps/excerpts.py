"""Words that were asked for in a text: the part that has most of them, and how they stand there."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable
from functools import lru_cache

from perdure.history.searching import folded
from perdure.recall import languages, words
from perdure.recall.small_words import STOP_WORDS

#: Of a part, so much stands before the first word that was found.
_BEFORE = 160
#: Words that are looked for, and places at which each is.
_WORDS, _PLACES = 40, 50
#: Characters of a text that are looked at.
_TEXT = 200_000
#: Of a word with another ending, so much at least is the same.
_SAME = 4

#: Shorter words stand everywhere.
_pieces = re.compile(r"\w{3,}").findall
#: A word in a reason: see `searching.ranking`.
_named = re.compile("‘([^’]+)’").sub  # noqa: RUF001


def looked_for(question: str) -> tuple[str, ...]:
    """What of a question may stand in a text, folded: its longer words, no stop words."""
    found = list(dict.fromkeys(_pieces(folded(question[:10_000]))))
    small = STOP_WORDS | languages.small_words(languages.told(found))
    return tuple(word for word in found if word not in small)[:_WORDS]


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


def as_it_stands(why: str, text: str) -> str:
    """What spoke for a hit, with words as they stand in the text: "migration", not "migrating".

    Words that do not stand there, since the text is shortened, are left as they were asked for.
    """
    plain = folded(text[:_TEXT])

    def standing(found: re.Match[str]) -> str:
        other = _standing(folded(found[1]), plain)
        if not other:
            return found[0]
        as_written = (word for word in _pieces(text) if folded(word) == other)
        return f"‘{next(as_written, other)}’"  # noqa: RUF001

    return _named(standing, why)


def _standing(low: str, plain: str) -> str:
    """The word of a text that differs by its ending, or not at all; empty if there is none."""
    if not low.isalpha():
        return ""
    # What it begins with is looked for first: that takes a tenth of what a border of words takes.
    begin = re.compile(rf"{re.escape(low[:_SAME])}\w*")
    there = dict.fromkeys(
        found[0]
        for found in begin.finditer(plain)
        if not plain[max(found.start() - 1, 0) : found.start()].isalnum()
    )
    if low in there:
        return ""
    alike = (word for word in there if not _stems(low).isdisjoint(_stems(word)))
    return next(alike, "")


@lru_cache(maxsize=1_000)
def _stems(word: str) -> frozenset[str]:
    return frozenset((*words.terms(word), *languages.any_form(word)))
