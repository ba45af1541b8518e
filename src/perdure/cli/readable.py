"""Times and amounts of money, for people and programs."""

from __future__ import annotations

from datetime import datetime

from perdure.core import clock

_MINUTE, _HOUR, _DAY = 60, 3_600, 86_400


def absolute_time(moment: int | datetime) -> str:
    """In the local time zone, to the minute: ``2026-02-12 16:02``."""
    found = moment if isinstance(moment, datetime) else clock.to_datetime(moment)
    return f"{found.astimezone():%Y-%m-%d %H:%M}"


def relative_time(moment: int | datetime, now: int) -> str:
    """``just now``, ``5 min ago``, ``3 h ago``, ``12 d ago``."""
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


def time_ahead(moment: int, now: int) -> str:
    """``in 5 min``, ``in 3 h``, ``in 12 d``."""
    seconds = max(moment - now, 0) // clock.SECOND
    if seconds < _HOUR:
        return f"in {seconds // _MINUTE + 1} min"
    if seconds < 2 * _DAY:
        return f"in {seconds // _HOUR} h"
    return f"in {seconds // _DAY} d"


#: In picodollars, as `perdure.gateway.prices` has them.
_DOLLAR = 10**12
_PER_MILLION = _DOLLAR // 10**6
UNKNOWN_COST = "cost unknown"


def cost_in_words(picodollars: int | None) -> str:
    """``$0.25``, ``free``, or that nobody knows."""
    from perdure.gateway.prices import dollars

    if picodollars is None:
        return UNKNOWN_COST
    return dollars(picodollars) if picodollars else "free"


def budget_left(picodollars: int) -> str:
    """Rounded down, so that it is really left."""
    from perdure.gateway.prices import dollars

    step = _DOLLAR // 100 if picodollars >= _DOLLAR else _DOLLAR // 10**6
    return dollars(picodollars - picodollars % step)


def in_dollars(picodollars: int | None) -> float | None:
    return None if picodollars is None else picodollars / _DOLLAR


def dollars_per_million(rate: int | None) -> float | None:
    """From picodollars for one token; None if unknown."""
    return None if rate is None else rate / _PER_MILLION


def price_in_words(rate: int) -> str:
    """The same for people: ``$1.25``, ``$0.125``, ``$10``."""
    text = f"{rate / _PER_MILLION:.6f}".rstrip("0")
    whole, _, decimals = text.partition(".")
    return f"${int(whole):,}" + (f".{decimals:0<2}" if decimals else "")
