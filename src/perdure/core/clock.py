"""Time as integers: microseconds since 1970, UTC. Ids (`new_id`) sort by it.

A clock is any callable that returns such an integer, so that tests can set the time.
"""

from __future__ import annotations

import os
import re
import time
from collections.abc import Callable
from contextlib import suppress
from datetime import UTC, date, datetime, timedelta
from datetime import time as time_of_day
from typing import TypeAlias

from perdure.core.errors import InvalidInput

Clock = Callable[[], int]
#: What callers may name a moment by: see `moment`.
When: TypeAlias = str | date | timedelta

SECOND = 1_000_000
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND = timedelta(microseconds=1)
_UNITS = {"s": 1, "m": 60, "h": 3600, "d": 86_400, "w": 604_800}


def now() -> int:
    return time.time_ns() // 1_000


def to_datetime(microseconds: int) -> datetime:
    return _EPOCH + microseconds * _MICROSECOND


def from_datetime(moment: datetime) -> int:
    """Raises `InvalidInput` for a naive one, since its zone is unknown."""
    if moment.tzinfo is None:
        raise InvalidInput(
            f"The time {moment.isoformat()} has no time zone.",
            hint="Use an aware datetime, such as datetime.now(UTC).",
        )
    return (moment - _EPOCH) // _MICROSECOND


def moment(given: When, now: int, *, last: bool = False) -> int:
    """A time in microseconds, from what a user gives.

    A datetime or date; ISO 8601 text (``2026-02-12``, ``2026-02-12 16:00``); ``now``, ``today``,
    ``yesterday``; or how long ago, as for `duration` (``3d``, ``1h30m ago``, a timedelta). Local
    time without a zone. A date is its first moment, or with `last` its end. Raises `InvalidInput`.
    """
    try:
        return from_datetime(_zoned(_named(given, now), last=last))
    except (InvalidInput, ValueError, OverflowError, OSError):  # of years that have no clock
        raise InvalidInput(
            f"{given!r} is no time.",
            hint='Write 2026-02-12, "2026-02-12 16:00", yesterday, or 3d for 3 days ago.',
        ) from None


def _named(given: When, now: int) -> date:
    if isinstance(given, str):
        return _written(given.strip(), now)
    if isinstance(given, timedelta):
        return to_datetime(now - duration(given))
    if isinstance(given, date):
        return given
    raise ValueError  # from callers who do not run a type checker


def _written(given: str, now: int) -> date:
    today = to_datetime(now).astimezone()
    names = {"now": today, "today": today.date(), "yesterday": today.date() - timedelta(days=1)}
    if given.lower() in names:
        return names[given.lower()]
    with suppress(InvalidInput):
        return to_datetime(now - duration(given.removesuffix("ago").strip()))
    with suppress(ValueError):
        return date.fromisoformat(given)
    return datetime.fromisoformat(given)


def _zoned(given: date, *, last: bool) -> datetime:
    if not isinstance(given, datetime):  # it gets its zone below
        given = datetime.combine(given, time_of_day.max if last else time_of_day.min)
    return given if given.tzinfo is not None else given.astimezone()


def duration(text: str | timedelta | float) -> int:
    """Microseconds of ``"30d"``, ``"1h30m"``, ``"45s"``, a timedelta, or a number of seconds."""
    if isinstance(text, timedelta):
        span = text // _MICROSECOND
    elif isinstance(text, str):
        parts = re.findall(r"(\d+)([smhdw])", text)
        if not parts or "".join(n + u for n, u in parts) != text:
            raise InvalidInput(
                f"{text!r} is not a duration.", hint='Write it like "30d", "12h", "1h30m" or "45s".'
            )
        span = sum(int(number) * _UNITS[unit] for number, unit in parts) * SECOND
    elif isinstance(text, int | float):
        span = int(text * SECOND)
    else:
        raise InvalidInput(
            f"A duration is text or seconds, not {type(text).__name__}.", hint='Write "30d" or 60.'
        )
    if span <= 0:
        raise InvalidInput(f"The duration {text!r} is not positive.", hint="Use a longer one.")
    return span


def new_id() -> str:
    """32 hexadecimal characters: 12 of milliseconds, 20 random. Sorts by creation time.

    Within one millisecond the order is random.
    """
    return f"{time.time_ns() // 1_000_000:012x}{os.urandom(10).hex()}"
