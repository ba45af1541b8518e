"""Chooses lines of a long tool output: those that name most that no other line has named.

What an agent comes back to, twenty calls later, is mostly a name: a function, a path, a key, a
code. The two ends of a file name few of those in it. So of a long output the lines are kept that
name most for their length, each name once, in their order, with its first and its last lines.
"""

from __future__ import annotations

import heapq
import re
from collections.abc import Iterator, Sequence
from collections.abc import Set as AbstractSet

_FEWEST = 12  # Lines to choose from.
_LONGEST = 400  # Characters of a line that may be chosen.
_ANY_LINE = 8  # Characters that any line costs more than it has.
#: What a name counts that is not preferred; and in a line that lists names and says no more.
_OTHERS, _LISTED = 0.1, 0.25
_numbered = re.compile(r"^ *\d+(?:→|\t|: | \| )", re.MULTILINE)
_word = re.compile(r"[A-Za-z_$][\w$]*(?:[./:-]+[\w$]+)*|\d[\d.,:]{2,}").findall
#: A word of its own, or a sign of code.
_says = re.compile(r"[()\[\]{}<>=]|(?<![\w./:$-])[A-Za-z][a-z]+(?![\w./:$-])").search
_has_sign = re.compile(r"[_$./:\d-]|[a-z][A-Z]").search


def telling_lines(text: str, cap: int, *, ends: int = 3) -> dict[int, str] | None:
    """Lines of at most `cap` characters together, by their number from 0, in order; `ends` of them
    at either end, as far as these take a quarter of the room. None if there are too few lines to
    choose from, or if they name nothing. Where names leave room, more of both ends fills it.
    """
    lines = without_numbers(text).split("\n")
    if len(lines) < _FEWEST:
        return None
    chosen, left, told = dict[int, str](), cap, False
    for at in _both_ends(len(lines), ends):
        if cap - left + len(lines[at]) + 1 <= cap // 4:
            chosen[at] = lines[at]
            left -= len(lines[at]) + 1
    named = {name for line in chosen.values() for name in names_in_line(line)}
    offered = [
        ("", set[str]()) if at in chosen else (line, set(names_in_line(line)))
        for at, line in enumerate(lines)
    ]
    for at in best_lines(offered, left, named):
        chosen[at], told = lines[at], True
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


def best_lines(
    lines: Sequence[tuple[str, AbstractSet[str]]],
    room: int,
    named: AbstractSet[str],
    *,
    preferred: AbstractSet[str] | None = None,
) -> list[int]:
    """Which of these lines, each with the names in it, to take into so many characters, the best
    first: those that name most for their length, where what is `named` before, by these or by
    others, counts nothing. With `preferred` names, all others count a tenth.
    """
    named = set(named)

    def worth(at: int) -> float:
        text, names = lines[at]
        new = names - named
        wanted = len(new) if preferred is None else len(new & preferred)
        weight = wanted + (len(new) - wanted) * _OTHERS
        return weight * (1 if _says(text) else _LISTED) / (len(text) + _ANY_LINE)

    queue = [
        (-worth(at), at)
        for at, (text, names) in enumerate(lines)
        if names and len(text) <= _LONGEST
    ]
    heapq.heapify(queue)
    taken = list[int]()
    while queue:
        said, at = heapq.heappop(queue)
        now = -worth(at)
        text, names = lines[at]
        if now > said:  # another line has named some of it since
            if now:
                heapq.heappush(queue, (now, at))
        elif len(text) + 1 <= room:
            taken.append(at)
            named |= names
            room -= len(text) + 1
    return taken


def without_numbers(text: str) -> str:
    """A file as a tool shows it, without the number in front of each line."""
    return _numbered.sub("", text)


def names_in_line(line: str) -> Iterator[str]:
    return (word for word in _word(line) if len(word) > 2 and _has_sign(word))


def _both_ends(many: int, ends: int) -> Iterator[int]:
    for at in range(ends):
        yield at
        yield many - 1 - at
