"""Numbers in words for people."""

from __future__ import annotations

_UNITS = ("B", "KB", "MB", "GB", "TB")


def size(count: float) -> str:
    """A number of bytes: ``1.4 MB``."""
    for unit in _UNITS:
        if count < 1_000 or unit == _UNITS[-1]:
            return f"{count:.0f} {unit}" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1_000
    raise AssertionError("unreachable")


def plural(count: int, noun: str) -> str:
    """``1 record``, ``2,000 records``."""
    return f"{count:,} {noun}" if count == 1 else f"{count:,} {noun}s"
