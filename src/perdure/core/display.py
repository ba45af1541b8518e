"""Sizes, plurals, first words, and suggestions of similar names, for people."""

from __future__ import annotations

from collections.abc import Iterable

_MOST = 3
#: Least similarity of two names, from 0 to 1.
_ALIKE = 0.6
#: Least similarity of a name with its beginning, and the least length of that.
_BEGUN, _BEGINNING = 0.8, 2


def nearest_names(name: str, names: Iterable[str]) -> list[str]:
    """The few names most similar to one that does not exist, best first; perhaps none.

    Of ``agent/name``, the last part decides. A name is similar to its beginning.
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
    """``Did you mean planner/auth or planner/oauth?``; empty if nothing is similar."""
    found = nearest_names(name, names)
    return f"Did you mean {' or '.join(found)}?" if found else ""


_UNITS = ("B", "KB", "MB", "GB", "TB")


def format_size(count: float) -> str:
    """``1.4 MB``, of a number of bytes."""
    for unit in _UNITS:
        if count < 1_000 or unit == _UNITS[-1]:
            return f"{count:.0f} {unit}" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1_000
    raise AssertionError("unreachable")


def plural(count: int, noun: str) -> str:
    return f"{count:,} {noun}" if count == 1 else f"{count:,} {noun}s"


def with_article(noun: str, article: str = "a") -> str:
    """``an AgentMessage``, ``a str``; with "A" at the beginning of a sentence."""
    return f"{article}{'n' if noun[:1].lower() in set('aeiou') else ''} {noun}"


def install_hint(extra: str) -> str:
    """How to get an optional part of Perdure, wherever it was installed from."""
    return f"Run: pip install 'perdure[{extra}]'"


def one_line(text: str, most: int) -> str:
    """The words of a text on one line of at most so many characters, cut between two of them."""
    line = " ".join(text[: most * 4].split())
    if len(line) <= most and len(text) <= most * 4:
        return line
    cut = line[: most - 1]
    space = cut.rfind(" ", most * 2 // 3)
    return f"{cut[:space] if space > 0 else cut}…"
