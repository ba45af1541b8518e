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
#: Terms of names that one passage has, and characters of a name.
_NAMED, _NAME = 96, 60

# None of these looks at a character more than some sixty times: a tool may have written one word
# of 40,000 letters, such as a file in hexadecimal. So what comes before a joint is bounded, and
# taken as a whole (``{0,60}+``); what is longer than `_NAME` is no name anyway.

#: What JSON writes for the end of a line, a tab, a quotation mark.
_without_escapes = re.compile(r"(?<!\\)\\++[ntr\"']").sub
_lines_of_faults = re.compile(
    r"^.*?(?:[A-Z]\w{0,60}(?:Error|Exception|Warning)\b"
    r"|\b(?:[Ee]rror|ERROR|[Ff]atal|FATAL|[Ff]ailed|FAILED|[Pp]anic|denied|not found)\b"
    r"|\*\* \().*$",
    re.MULTILINE,
).finditer
#: What code defines, with the word before it; what is written like a name; numbers of versions.
_names_in = re.compile(
    r"\b(?:def|class|fn|func|function|interface|struct|enum|trait|defmodule|defp)[ \t]+"
    r"([A-Za-z_]\w+)"
    r"|([A-Za-z_]\w{0,60}+(?:[./:-]\w+)+"
    r"|[a-z][a-z0-9]{0,60}+(?:_[a-z0-9]+)+"
    r"|[a-z]{1,60}+[A-Z]\w+|[A-Z][a-z0-9]++(?:[A-Z][a-z0-9]+)+"
    r"|\d{1,60}+\.\d+(?:\.\d+)?)"
).findall


class Excerpt(NamedTuple):
    """What is taken of one text."""

    words: str
    faults: Sequence[str] = ()
    names: Sequence[str] = ()


def asked(arguments: str) -> Excerpt:
    """What is taken of the arguments of a call, which are JSON."""
    return _excerpt(_without_escapes(" ", arguments))


def answered(result: str) -> Excerpt:
    """What is taken of the result of a call."""
    return _excerpt(result)


def terms_of(names: Iterable[str], known: Sequence[str]) -> list[str]:
    """The terms of names that are not `known`, each once; not those of folders before a file."""
    there = set(known)
    found = dict.fromkeys(terms("\n".join(dict.fromkeys(names))))
    new = (each for each in found if each not in there and "/" not in each and len(each) > 2)
    return list(islice(new, _NAMED))


def _excerpt(text: str) -> Excerpt:
    if len(text) <= 2 * _HALF:
        return Excerpt(text)
    between = text[_HALF:-_HALF][:_LOOKED_AT]
    faults = [line[0].strip()[:_LINE] for line in islice(_lines_of_faults(between), _FAULTS)]
    return Excerpt(f"{text[:_HALF]}\n{text[-_HALF:]}", faults, list(_named(between)))


def _named(text: str) -> Iterator[str]:
    for found in _names_in(text):
        name = found[0] or found[1]
        if len(name) <= _NAME:
            yield name
