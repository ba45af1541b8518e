"""Names that are not there, and those that may have been meant."""

from __future__ import annotations

from collections.abc import Iterable

_MOST = 3
#: From 0 to 1: how much two names have to have in common.
_ALIKE = 0.6


def nearest(name: str, names: Iterable[str]) -> list[str]:
    """The few names that are most like one that is not there, best first; perhaps none.

    Of ``agent/name``, the last part decides, and may stand for all of it.
    """
    from difflib import SequenceMatcher

    wanted = name.lower()
    whole, last = SequenceMatcher(b=wanted), SequenceMatcher(b=wanted.rpartition("/")[2])
    found = list[tuple[float, float, str]]()
    for each in sorted(set(names)):
        last.set_seq1(each.lower().rpartition("/")[2])
        if last.quick_ratio() >= _ALIKE and (alike := last.ratio()) >= _ALIKE:
            whole.set_seq1(each.lower())
            found.append((-alike, -whole.ratio(), each))
    return [each for _, _, each in sorted(found)[:_MOST]]


def meant(name: str, names: Iterable[str]) -> str:
    """A question for whoever gave the name: ``Did you mean planner/auth or planner/oauth?``

    Empty if nothing is like it.
    """
    found = nearest(name, names)
    return f"Did you mean {' or '.join(found)}?" if found else ""
