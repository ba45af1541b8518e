"""What of the work of tools is indexed: they write too much for all of it.

Of what a tool was asked, and of what it answered, the beginning and the end are taken as they are;
of what stands between, lines that tell that something went wrong, and names: of functions, files,
settings, versions. That is what somebody asks for later.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from typing import NamedTuple

from perdure.history.excerpt import error_lines
from perdure.recall.words import terms

#: Characters from the beginning, and as many from the end.
_HALF = 80
#: Characters in which lines and names are looked for.
_LOOKED_AT = 40_000
#: Lines that tell of a fault, and characters of each.
_FAULTS, _LINE = 3, 160
#: Terms of names that one passage has, and characters of a name.
_NAMED, _NAME = 96, 60

# A tool may have written one word of 40,000 letters: nothing here looks at a character more than a
# few times.

#: What JSON writes for the end of a line, a tab, a quotation mark.
_without_escapes = re.compile(r"(?<!\\)\\++[ntr\"']").sub
#: Words, behind the number of a line, too; numbers of versions.
_words_in = re.compile(r"[^\W\d]\w*+(?:[./:-]++\w++)*+|(?<!\w)\d++\.\d++(?:\.\d++)?").findall
#: What stands before the name of something that is defined.
_DEFINES = frozenset(
    "def class fn func function interface struct enum trait defmodule defp".split()  # noqa: SIM905
)
_JOINTS = frozenset("_./:-")


class Excerpt(NamedTuple):
    """What is taken of one text."""

    words: str
    faults: Sequence[str] = ()
    names: Sequence[str] = ()


def asked(arguments: str) -> Excerpt:
    """What is taken of the arguments of a call, which are JSON."""
    return answered(_without_escapes(" ", arguments))


def terms_of(names: Iterable[str], known: Sequence[str]) -> list[str]:
    """The terms of names that are not `known`, each once; not those of folders before a file."""
    there, found = set(known), dict[str, None]()
    for name in dict.fromkeys(names):
        if len(found) >= _NAMED:
            break
        new = (each for each in terms(name) if each not in there and "/" not in each)
        found.update(dict.fromkeys(each for each in new if len(each) > 2))
    return list(found)[:_NAMED]


def answered(text: str) -> Excerpt:
    """What is taken of the result of a call."""
    if len(text) <= 2 * _HALF:
        return Excerpt(text)
    ends = f"{text[:_HALF]}\n{text[-_HALF:]}"
    between = text[_HALF:-_HALF][:_LOOKED_AT]
    lines = error_lines(between, 0, len(between))[:_FAULTS]
    faults = [between[start:end].strip()[:_LINE] for start, end in lines]
    return Excerpt(ends, faults, list(islice(_named(between), _NAMED)))


def _named(text: str) -> Iterator[str]:
    """Names, each once."""
    seen, before = set[str](), ""
    for word in _words_in(text):
        if word not in seen:
            seen.add(word)
            if len(word) <= _NAME and (before in _DEFINES or _is_name(word)):
                yield word
        before = word


def _is_name(word: str) -> bool:
    """Whether it is written like a name: ``foo_bar``, ``a/b.py``, ``fooBar``, ``1.2``."""
    if word.isalpha():
        return not (word.islower() or word.isupper() or word[1:].islower())
    return not _JOINTS.isdisjoint(word)
