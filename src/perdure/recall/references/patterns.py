"""Patterns of paths: ``*`` and ``?`` within a folder, ``**`` across folders.

A pattern fits the whole path, or the end of it from a folder on. It is compared name by name, and
only the last ``**`` is ever tried again: so the time is bounded by the product of both lengths,
where one regular expression would go back and forth over many ``**`` for ever.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from fnmatch import translate
from functools import lru_cache
from typing import TypeAlias

#: Whether a name in a path fits; None stands for any number of names.
_Fits: TypeAlias = Callable[[str], object] | None


def fits(pattern: str, path: str) -> bool:
    """Whether a path fits a pattern."""
    names = path.removeprefix("./").split("/")
    return any(_fit(wanted, names) for wanted in _taken_apart(pattern.removeprefix("./")))


def _fit(wanted: Sequence[_Fits], names: Sequence[str]) -> bool:
    at = 0  # in what is wanted
    name = 0
    again: tuple[int, int] | None = None  # behind the last ``**``, and what it has not taken yet
    while name < len(names):
        if at < len(wanted) and (test := wanted[at]) is None:
            at += 1
            again = (at, name)
        elif at < len(wanted) and test is not None and test(names[name]):
            at += 1
            name += 1
        elif again is not None:
            at, name = again[0], again[1] + 1
            again = (at, name)
        else:
            return False
    return all(test is None for test in wanted[at:])


@lru_cache(maxsize=1_024)
def _taken_apart(pattern: str) -> tuple[tuple[_Fits, ...], ...]:
    """What is wanted, name by name; in two ways, if a ``**`` stands for a part of a name.

    ``src/test**.py`` is ``src/test*.py``, or what lies below: ``src/test*/**/*.py``.
    """
    spread = re.sub(r"(?<=[^/*])\*\*+", "*/**", pattern)
    spread = re.sub(r"\*\*+(?=[^/*])", "**/*", spread)
    return tuple(
        tuple(
            None if name == "**" else re.compile(translate(name.replace("[", "[[]"))).match
            for name in ("**", *way.split("/"))
        )
        for way in dict.fromkeys((pattern, spread))
    )
