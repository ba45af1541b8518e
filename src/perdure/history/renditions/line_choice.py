"""Chooses lines of a long tool output: those that name most that no other line has named.

What an agent comes back to, twenty calls later, is mostly a name: a function, a path, a key, a
code. The two ends of a file name few of those in it. So of a long output the lines are kept that
name most for their length, each name once, in their order, with its first and its last lines.
"""

from __future__ import annotations

import heapq
import re
from collections.abc import Iterator

_FEWEST = 12  # Lines to choose from.
_LONGEST = 400  # Characters of a line that may be chosen.
_numbered = re.compile(r"^ *\d+(?:→|\t|: | \| )", re.MULTILINE)
_word = re.compile(r"[A-Za-z_$][\w$]*(?:[./:-]+[\w$]+)*|\d[\d.,:]{2,}").findall
_has_sign = re.compile(r"[_$./:\d-]|[a-z][A-Z]").search


def telling_lines(text: str, cap: int, *, ends: int = 3) -> dict[int, str] | None:
    """Lines of at most `cap` characters together, by their number from 0, in order; `ends` of them
    at either end, as far as these take a quarter of the room. None if there are too few lines to
    choose from, or if they name nothing. Where names leave room, more of both ends fills it.
    """
    lines = _numbered.sub("", text).split("\n")
    if len(lines) < _FEWEST:
        return None
    chosen, left, told = dict[int, str](), cap, False
    for at in _both_ends(len(lines), ends):
        if cap - left + len(lines[at]) + 1 <= cap // 4:
            chosen[at] = lines[at]
            left -= len(lines[at]) + 1
    named = {name for line in chosen.values() for name in _names(line)}
    names = [set(_names(line)) if len(line) <= _LONGEST else set[str]() for line in lines]
    worth = [(-len(names[at]) / (len(lines[at]) + 8), at) for at in range(len(lines)) if names[at]]
    heapq.heapify(worth)
    while worth:
        said, at = heapq.heappop(worth)
        now = -len(names[at] - named) / (len(lines[at]) + 8)
        if now > said:  # another line has named some of it since
            if now:
                heapq.heappush(worth, (now, at))
            continue
        if at in chosen or len(lines[at]) + 1 > left:
            continue
        chosen[at], told = lines[at], True
        named |= names[at]
        left -= len(lines[at]) + 1
    if not told:
        return None
    for at in _both_ends(len(lines), (len(lines) + 1) // 2 if ends else 0):
        if at not in chosen:
            if len(lines[at]) + 1 > left:
                break
            chosen[at] = lines[at]
            left -= len(lines[at]) + 1
    return {at: chosen[at].rstrip() for at in sorted(chosen)}


def _both_ends(many: int, ends: int) -> Iterator[int]:
    for at in range(ends):
        yield at
        yield many - 1 - at


def _names(line: str) -> Iterator[str]:
    return (word for word in _word(line) if len(word) > 2 and _has_sign(word))
