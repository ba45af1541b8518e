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

from perdure.recall.words import terms

#: Characters from the beginning, and as many from the end.
_HALF = 80
#: Characters in which lines and names are looked for.
_LOOKED_AT = 40_000
#: Lines that tell of a fault, and characters of each.
_FAULTS, _LINE = 3, 160
#: Places of each sign of a fault that are looked at.
_TRIED = 8
#: Terms of names that one passage has, and characters of a name.
_NAMED, _NAME = 96, 60

# A tool may have written one word of 40,000 letters: nothing here looks at a character more than a
# few times.

#: What JSON writes for the end of a line, a tab, a quotation mark.
_without_escapes = re.compile(r"(?<!\\)\\++[ntr\"']").sub
#: Words, behind the number of a line, too; numbers of versions.
_words_in = re.compile(r"[^\W\d]\w*+(?:[./:-]++\w++)*+|(?<!\w)\d++\.\d++(?:\.\d++)?").findall
#: Ends of words, and words, by which a line tells of a fault.
_is_fault = re.compile(
    r"(?:Error|Exception|Warning|ERROR|FATAL|FAILED)\b"
    r"|\b(?:error|[Ff]atal|[Ff]ailed|[Pp]anic|denied|not found)\b|\*\* \("
).match
#: What each of them has. To look for these one by one takes a tenth of what the pattern takes.
_SIGNS = (
    *("Error", "Exception", "Warning", "ERROR", "FATAL", "FAILED", "** ("),
    *("error", "atal", "ailed", "anic", "denied", "not found"),
)
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
    faults = list(islice(_faults(between), _FAULTS))
    return Excerpt(ends, faults, list(islice(_named(between), _NAMED)))


def _faults(text: str) -> Iterator[str]:
    """The lines that tell of a fault."""
    end = -1
    for at in sorted(at for sign in _SIGNS for at in islice(_places(text, sign), _TRIED)):
        if at > end and (_is_fault(text, at) or _is_fault(text, max(at - 1, 0))):
            start = text.rfind("\n", 0, at) + 1
            end = text.find("\n", at)
            end = len(text) if end < 0 else end
            yield text[start:end].strip()[:_LINE]


def _places(text: str, sign: str) -> Iterator[int]:
    at = text.find(sign)
    while at >= 0:
        yield at
        at = text.find(sign, at + 1)


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
