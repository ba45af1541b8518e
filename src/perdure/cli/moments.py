"""Times, as people read them. How they write them is for `perdure.core.clock.moment`."""

from __future__ import annotations

from datetime import datetime

from perdure.core import clock

_MINUTE, _HOUR, _DAY = 60, 3_600, 86_400


def absolute(moment: int | datetime) -> str:
    """In the local time zone, to the minute: ``2026-02-12 16:02``."""
    found = moment if isinstance(moment, datetime) else clock.to_datetime(moment)
    return f"{found.astimezone():%Y-%m-%d %H:%M}"


def relative(moment: int | datetime, now: int) -> str:
    """How long ago: ``just now``, ``5 min ago``, ``3 h ago``, ``12 d ago``."""
    then = clock.from_datetime(moment) if isinstance(moment, datetime) else moment
    seconds = (now - then) // clock.SECOND
    if seconds < -_MINUTE:
        return "in the future"
    if seconds < _MINUTE:
        return "just now"
    if seconds < _HOUR:
        return f"{seconds // _MINUTE} min ago"
    if seconds < 2 * _DAY:
        return f"{seconds // _HOUR} h ago"
    if seconds < 60 * _DAY:
        return f"{seconds // _DAY} d ago"
    if seconds < 730 * _DAY:
        return f"{seconds // (30 * _DAY)} months ago"
    return f"{seconds // (365 * _DAY)} years ago"


def ahead(moment: int, now: int) -> str:
    """In how long: ``in 5 min``, ``in 3 h``, ``in 12 d``."""
    seconds = max(moment - now, 0) // clock.SECOND
    if seconds < _HOUR:
        return f"in {seconds // _MINUTE + 1} min"
    if seconds < 2 * _DAY:
        return f"in {seconds // _HOUR} h"
    return f"in {seconds // _DAY} d"
