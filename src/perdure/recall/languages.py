"""Words of languages other than English.

Where letters tell the language, or one whose endings are near enough, words lose their endings by
the rules of that language: Cyrillic by those of Russian, Greek, Arabic, Armenian by their own. The
vowel signs of Indic scripts are left out with all marks, and most endings go with them.

In Latin letters a word does not say what it is. A text does, by the small words that every sentence
has: `told`. Words of such a text get a further term, their *form*, beside the one that they would
have in English; so nothing that is found without forms is lost, and English text has none of them.
Forms begin with a mark, so that none is taken for an English word: the German form of “stripe” is
what is left of “strip”, too.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from functools import cache, lru_cache

from perdure.history.searching import folded
from perdure.recall.small_words import AMBIGUOUS, ARTICLES, ENGLISH, OTHERS

#: What forms begin with.
MARK = "="
#: Forms that are remembered, over all languages.
_REMEMBERED = 30_000
#: Pieces of a text that are looked at to tell its language.
_LOOKED_AT = 400
#: Shorter and longer words have no endings; those that were made of two are longer than this.
_SHORTEST, _LONGEST, _LONG = 3, 60, 10
#: Small words that tell a language although none does by itself.
_SURE = 3

#: The language whose rules hold for letters from the first of these to the last.
_SCRIPTS = (
    ("\u0370", "\u03ff", "greek"),
    ("\u0400", "\u04ff", "russian"),
    ("\u0530", "\u058f", "armenian"),
    ("\u0600", "\u06ff", "arabic"),
)

_words = re.compile(r"[^\W_]+").findall
#: Where German makes one word of two, there is an s behind these endings.
_joined = re.compile(r"(\w{2,}(?:ung|heit|keit|schaft|ion|tat))s(\w{4,})").fullmatch


def told(pieces: Sequence[str]) -> str:
    """The language that pieces of a text are in, by its small words; empty if that is English.

    It takes one that is nothing else, or three that may be; and more than there are of English.
    What is too short to tell, or in a language that is not known here, is empty, too.
    """
    some = pieces[:_LOOKED_AT]
    if _worth_a_look().isdisjoint(some):
        return ""
    low = set(_words(folded(" ".join(some))))
    best, most = "", 0
    for language, (own, english) in _signs().items():
        there = low & own
        is_sure = len(there) >= _SURE or not _telling().isdisjoint(there)
        if is_sure and len(there) > max(most, len(low & english)):
            best, most = language, len(there)
    return best


def small_words(language: str) -> frozenset[str]:
    """What says nothing by itself in a language that was told; nothing for none."""
    return OTHERS.get(language, frozenset())


@lru_cache(maxsize=_REMEMBERED)
def forms(word: str, language: str) -> tuple[str, ...]:
    """Further terms of a word in small letters, in a language that was told: none of a small word.

    The first is what is left of it without the endings of that language. If German made the word
    of two, these follow.
    """
    if not _has_endings(word) or word in OTHERS[language]:
        return ()
    stem = _stemmer(language)
    parts = _joined(word) if language == "german" and len(word) > _LONG else None
    whole = (word, *(() if parts is None else parts.groups()))
    return tuple(MARK + stem(each) for each in whole)


def any_form(word: str) -> tuple[str, ...]:
    """What would be left of a word, in small letters, in each of the languages in Latin letters."""
    if not _has_endings(word):
        return ()
    return tuple(dict.fromkeys(MARK + _stemmer(each)(word) for each in OTHERS))


def stemmed(word: str) -> str:
    """A word without its endings, if its letters tell the language; in small letters."""
    word = word.casefold()
    if _SHORTEST <= len(word) <= _LONGEST:
        for first, last, language in _SCRIPTS:
            if first <= word[0] <= last:
                return _stemmer(language)(word) or word
    return word


def _has_endings(word: str) -> bool:
    return word.isascii() and word.isalpha() and _SHORTEST <= len(word) <= _LONGEST


# What is known of languages: read when it is first needed


@cache
def _signs() -> dict[str, tuple[frozenset[str], frozenset[str]]]:
    """By language: the small words that English does not have, and those of English alone."""
    return {
        language: (frozenset(word for word in own - ENGLISH if len(word) > 1), ENGLISH - own)
        for language, own in OTHERS.items()
    }


@cache
def _telling() -> frozenset[str]:
    """The small words that tell a language, each by itself."""
    words = {word for own in OTHERS.values() for word in own - ENGLISH - AMBIGUOUS}
    return frozenset(word for word in words if len(word) >= _SHORTEST)


@cache
def _worth_a_look() -> frozenset[str]:
    """What a text has that may be in one of them, as it stands there or begins a sentence."""
    return frozenset(form for word in _telling() | ARTICLES for form in (word, word.title()))


@cache
def _stemmer(language: str) -> Callable[[str], str]:
    import Stemmer  # type: ignore[import-not-found,import-untyped,unused-ignore]

    stem: Callable[[str], str] = Stemmer.Stemmer(language).stemWord
    return stem
