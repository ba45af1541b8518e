"""Finds what a text names: paths, URLs, numbers, versions, hashes, identifiers, errors, names.

These are the things that a reader cannot guess once they are gone. They score sentences, measure
renditions, and show what a model made up::

    facts("I fixed `login()` in src/auth.py; 3 of 12 tests still fail for Caroline.")
    ("login()", "src/auth.py", "3", "12", "caroline")

Names are capitalised words that do not owe their capital to standing first in a sentence; a name of
several words counts as several. In languages that capitalise all nouns, all nouns are names; in
those without capitals, only what is written in Latin letters is. Takes time in proportion to the
length of the text.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

# The alternatives are tried in this order at each place, and words in small letters, most of all,
# are passed over. All repeat one class at a time, and a bounded number of times, so that none can
# take quadratic time over a megabyte without blanks.
_fact = re.compile(
    r"""
    (?P<url>\b[a-z][a-z0-9+]{1,10}://[^\s<>"'`|\])}]{1,500})
  | `(?P<code>[^`\n]{1,120})`
  | (?P<figure>(?<![\w.,])\d{1,3}(?:,\d{3}){1,6}(?:\.\d{1,9})?%?(?!\w|,\d))
  | (?P<word>(?<!\w)(?![a-z]{1,30}(?:[\s,;!?'"’)]|[.:]\s|[.:]?$))
      (?:~|\.{0,2})/?[\w@+-][\w@+./:\\-]{0,300}(?:\(\))?)
  """,
    re.VERBOSE,
)
_extension = re.compile(r"\w\.[A-Za-z][A-Za-z0-9]{0,5}$").search
_number = re.compile(r"[+-]?\d[\d,.:]*(?:[a-zA-Z%]{1,4}|(?:st|nd|rd|th))?$").match
_version = re.compile(r"v\d+(?:\.\d+)*[\w.+-]*$").match
_hash = re.compile(r"[0-9a-f]{7,64}$").match
_camel = re.compile(r"[a-z0-9][A-Z]|[A-Z]{2,}[a-z]{2}").search
_list_marker = re.compile(r"\d{1,3}[.)]$").match
_numbered = re.compile(r"\d\)$").search
#: What separates two words that are written as one: ``add/update/same``, ``Printer/Filament``.
_between = re.compile(r"[/\\:]")
_PLACES = 100
_TRAILING = ".,:;-/\\"
#: Where a sentence or a line ends: a capital behind it says nothing. What may stand between.
_ENDS, _OPENING = frozenset("\n.!?:;—–|>。！？"), " \t*_\"“‘'([#-•+"  # noqa: RUF001
_NOTHING = frozenset({"-", "--", "/", "+", "@", ".", "e.g", "i.e", "etc", "vs", "a.k.a", "and/or"})
#: Capitalised, and yet no names.
_NO_NAMES = frozenset(
    """i i'm i'll i've i'd the a an and or but if in on at to for of it is this that we you he she
    they my your his her our their no yes ok okay not so as by with from what when where why how
    who which there here then also now all any each every some note todo please thanks thank hi
    hello hey let let's don't can't it's that's there's what's won't doesn't didn't isn't i’m i’ll
    i’ve i’d let’s don’t can’t it’s that’s mr mrs ms dr oh wow yeah haha lol btw""".split()  # noqa: SIM905 (a text is easier to read)
)
#: Written in capitals to be heard.
_LOUD = frozenset(
    """not must never only always no do dont don't please important note todo warning stop all any
    and or very now before after every none""".split()  # noqa: SIM905 (a text is easier to read)
)


def facts(text: str) -> tuple[str, ...]:
    """In the order of first mention, each once, in lower case."""
    return tuple(dict.fromkeys(fact.casefold() for fact, _ in mentions(text)))


def mentions(text: str) -> Iterator[tuple[str, int]]:
    for found in _fact.finditer(text):
        kind = found.lastgroup
        start = found.start(kind or 0)
        written = found[kind or 0]
        if kind == "url":
            yield written.rstrip(_TRAILING + "?!"), start
        elif kind == "figure":
            yield written, start
        elif kind == "code":
            yield from _in_code(written, start)
        elif not (written.isalpha() and written.islower()):  # most words: nothing to look at
            yield from _in_word(text, written.rstrip(_TRAILING), start)


def names_in(text: str) -> tuple[str, ...]:
    """Paths, URLs and numbers only: what a model must not invent, in lower case."""
    return tuple(
        dict.fromkeys(
            fact.casefold()
            for fact, _ in mentions(text)
            if "/" in fact or "\\" in fact or fact[0].isdigit() or _extension(fact)
        )
    )


def holds(lowered: str, fact: str) -> bool:
    """Whether a lower-case text names the fact, and not a longer word that contains it. Checks the
    first hundred occurrences.
    """
    at = -1
    for _ in range(_PLACES):
        at = lowered.find(fact, at + 1)
        if at < 0:
            return False
        end = at + len(fact)
        joined = at > 0 and fact[0].isalnum() and lowered[at - 1].isalnum()
        if not joined and not (fact[-1].isalnum() and lowered[end : end + 1].isalnum()):
            return True
    return False


def _in_code(code: str, start: int) -> Iterator[tuple[str, int]]:
    if not code.strip():
        return
    if " " not in code:
        yield code, start
        return
    for found in _fact.finditer(code):
        if found.lastgroup in {"url", "word", "figure"}:
            word = found[0].rstrip(_TRAILING)
            if word and (_is_technical(word) or _number(word)):
                yield word, start + found.start()


def _in_word(text: str, word: str, start: int) -> Iterator[tuple[str, int]]:
    if not word or word.casefold() in _NOTHING or (word.isupper() and word.casefold() in _LOUD):
        return
    if _is_technical(word):
        yield word, start
    elif _number(word):
        if not (_list_marker(text[start : start + len(word) + 1]) and _is_first(text, start)):
            yield word.rstrip("."), start
    elif word.isupper() and 1 < len(word) <= 12 and "/" not in word:
        yield word, start
    elif _between.search(word):
        at = start
        for each in _between.split(word):
            if each and (_is_technical(each) or _number(each) or _is_name(text, each, at)):
                yield each, at
            at += len(each) + 1
    elif _is_name(text, word, start):
        yield word, start


def _is_first(text: str, start: int) -> bool:
    line = text.rfind("\n", max(0, start - 40), start) + 1
    return not text[line:start].strip(" \t*-#") if line or start < 40 else False


def _is_technical(word: str) -> bool:
    if word.isalpha():
        return bool(_camel(word)) or (len(word) > 1 and word.isupper())
    if word.endswith("()") or "_" in word.strip("_") or word.startswith(("--", "@")):
        return True
    if "/" in word or "\\" in word:
        return (
            word.startswith(("/", "./", "../", "~"))
            or bool(_extension(word))
            or word.count("/") + word.count("\\") > 2
            or any(mark in word for mark in "_.@")
            or (word[0].islower() and "/" in word and word.count("/") == 2 and "-" in word)
        )
    if _version(word):
        return True
    if _hash(word) and not word.isdigit() and not word.isalpha():
        return True
    if word[0].isdigit():
        return False
    return bool(_camel(word) or ("." in word and not word.endswith(".") and _extension(word))) or (
        any(letter.isdigit() for letter in word)
    )


def _is_name(text: str, word: str, start: int) -> bool:
    if not word[0].isupper() or word.casefold() in _NO_NAMES:
        return False
    if len(word) == 1:
        return False
    before = text[max(0, start - 24) : start].rstrip(_OPENING)
    return bool(before) and before[-1] not in _ENDS and not _numbered(before)
