"""A clock that stands still until a test moves it."""

from __future__ import annotations

from datetime import datetime, timedelta

from perdure.core.clock import duration, from_datetime

#: A day in January 1970. Nothing real was written then, or expires then, so what a test sweeps
#: or trims by this clock can only be its own.
LONG_AGO = 1_000_000_000_000


class ManualClock:
    """Time as a test sets it, in microseconds since 1970."""

    def __init__(self, start: int | datetime = LONG_AGO) -> None:
        self._time = 0
        self.set(start)

    def __call__(self) -> int:
        return self._time

    def set(self, moment: int | datetime) -> None:
        """In microseconds, or an aware datetime."""
        self._time = from_datetime(moment) if isinstance(moment, datetime) else moment

    def advance(self, span: str | timedelta | float) -> int:
        """By ``"30d"``, a timedelta, or seconds. Returns the new time."""
        self._time += duration(span)
        return self._time

    def tick(self, microseconds: int = 1) -> int:
        self._time += microseconds
        return self._time
