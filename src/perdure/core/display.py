"""Words for people: sizes, plurals, and names that may have been meant."""

from __future__ import annotations

from collections.abc import Iterable

_MOST = 3
#: From 0 to 1: how much two names have to have in common.
_ALIKE = 0.6
#: How much a name has in common with its beginning, at least, if that has so many characters.
_BEGUN, _BEGINNING = 0.8, 2


def nearest_names(name: str, names: Iterable[str]) -> list[str]:
    """The few names that are most like one that is not there, best first; perhaps none.

    Of ``agent/name``, the last part decides, and may stand for all of it. A name is like its
    beginning, however long it goes on.
    """
    from difflib import SequenceMatcher

    wanted = name.lower()
    end = wanted.rpartition("/")[2]
    whole, last = SequenceMatcher(b=wanted), SequenceMatcher(b=end)
    found = list[tuple[float, float, str]]()
    for each in sorted(set(names)):
        other = each.lower().rpartition("/")[2]
        last.set_seq1(other)
        alike = last.ratio() if last.quick_ratio() >= _ALIKE else 0.0
        if len(end) >= _BEGINNING and other.startswith(end):
            alike = max(alike, _BEGUN)
        if alike >= _ALIKE:
            whole.set_seq1(each.lower())
            found.append((-alike, -whole.ratio(), each))
    return [each for _, _, each in sorted(found)[:_MOST]]


def did_you_mean(name: str, names: Iterable[str]) -> str:
    """A question for whoever gave the name: ``Did you mean planner/auth or planner/oauth?``

    Empty if nothing is like it.
    """
    found = nearest_names(name, names)
    return f"Did you mean {' or '.join(found)}?" if found else ""


_UNITS = ("B", "KB", "MB", "GB", "TB")


def format_size(count: float) -> str:
    """A number of bytes: ``1.4 MB``."""
    for unit in _UNITS:
        if count < 1_000 or unit == _UNITS[-1]:
            return f"{count:.0f} {unit}" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1_000
    raise AssertionError("unreachable")


def plural(count: int, noun: str) -> str:
    """``1 record``, ``2,000 records``."""
    return f"{count:,} {noun}" if count == 1 else f"{count:,} {noun}s"
