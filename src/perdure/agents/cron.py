"""Times by cron expressions: ``minute hour day month weekday``.

    0 9 * * 1-5       at nine, Monday to Friday
    */15 * * * *      every quarter of an hour
    30 4 1,15 * *     at half past four, on the first and the fifteenth
    @daily            at midnight

Names of months and days (``jan``, ``mon``) are understood; Sunday is 0 or 7. If both day and
weekday are given, either is enough, as in every cron. Times are those of a clock on the wall: one
that does not exist because the clock is put forward is taken as the same moment after it, and one
that comes twice counts once.
"""

from __future__ import annotations

from datetime import UTC, datetime, time, timedelta, tzinfo
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

import msgspec

from perdure.core.errors import InvalidInput

_NICKNAMES = {
    "@yearly": "0 0 1 1 *",
    "@annually": "0 0 1 1 *",
    "@monthly": "0 0 1 * *",
    "@weekly": "0 0 * * 0",
    "@daily": "0 0 * * *",
    "@midnight": "0 0 * * *",
    "@hourly": "0 * * * *",
}
_MONTHS = ("jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec")
_DAYS = ("sun", "mon", "tue", "wed", "thu", "fri", "sat")
_FIELDS = (("minute", 0, 59), ("hour", 0, 23), ("day", 1, 31), ("month", 1, 12), ("weekday", 0, 7))
_YEARS = 5  # A leap day is at most eight years away; we look five, for what is nonsense, too.


class Cron(msgspec.Struct, frozen=True):
    """When something is due."""

    minutes: frozenset[int]
    hours: frozenset[int]
    days: frozenset[int]
    months: frozenset[int]
    weekdays: frozenset[int]
    #: Whether the day, and the weekday, are given.
    by_day: bool
    by_weekday: bool

    def next(self, after: datetime, zone: tzinfo | None = None) -> datetime:
        """The first time behind a moment. Raises `InvalidInput` if there is none in years."""
        local = after.astimezone(zone).replace(tzinfo=None, second=0, microsecond=0)
        day = local.date()
        start = local.hour * 60 + local.minute + 1
        for _ in range(366 * _YEARS + 2):
            if self._is_on(day.day, day.month, day.isoweekday() % 7):
                for minute in range(start, 1440):
                    if minute // 60 in self.hours and minute % 60 in self.minutes:
                        wall = datetime.combine(day, time(minute // 60, minute % 60))
                        found = _at(wall, zone)
                        if found > after:
                            return found
            day += timedelta(days=1)
            start = 0
        raise InvalidInput("This time never comes.", hint="Check day and month.")

    def _is_on(self, day: int, month: int, weekday: int) -> bool:
        if month not in self.months:
            return False
        on_day, on_weekday = day in self.days, weekday in self.weekdays
        if self.by_day and self.by_weekday:
            return on_day or on_weekday
        return on_day and on_weekday


def parse_cron(text: str) -> Cron:
    """Raises `InvalidInput`, naming the field."""
    parts = _NICKNAMES.get(text.strip().lower(), text).lower().split()
    if len(parts) != len(_FIELDS):
        raise InvalidInput(
            f"{text!r} is no cron expression: it has {len(parts)} fields.",
            hint='Write minute, hour, day, month and weekday: "0 9 * * 1-5".',
        )
    minutes, hours, days, months, weekdays = (
        _values(part, *field) for part, field in zip(parts, _FIELDS, strict=True)
    )
    made = Cron(
        minutes,
        hours,
        days,
        months,
        frozenset(each % 7 for each in weekdays),
        by_day=not parts[2].startswith("*"),
        by_weekday=not parts[4].startswith("*"),
    )
    made.next(datetime(2024, 1, 1, tzinfo=UTC), UTC)  # a 31st of February never comes
    return made


def zone_of(name: str) -> tzinfo | None:
    """None for the local one. Raises `InvalidInput`."""
    if not name:
        return None
    try:
        return ZoneInfo(name)
    except (ZoneInfoNotFoundError, ValueError, OSError) as exc:
        raise InvalidInput(
            f"There is no time zone {name!r}.", hint="Write it like Europe/Berlin, or UTC."
        ) from exc


def _values(part: str, name: str, least: int, most: int) -> frozenset[int]:
    found = set[int]()
    for each in part.split(","):
        span, slash, step_text = each.partition("/")
        first_text, dash, last_text = span.partition("-")
        if span == "*":
            first, last = least, most
        else:
            first = _number(first_text, name, least, most)
            last = _number(last_text, name, least, most) if dash else first
            if slash and not dash:
                last = most
        step = _number(step_text, name, 1, most) if slash else 1
        if last < first:
            raise _fault(each, name, least, most)
        found.update(range(first, last + 1, step))
    return frozenset(found)


def _number(text: str, name: str, least: int, most: int) -> int:
    names = {"month": _MONTHS, "weekday": _DAYS}.get(name, ())
    if text in names:
        return names.index(text) + least
    if text.isascii() and text.isdecimal() and least <= int(text) <= most:
        return int(text)
    raise _fault(text, name, least, most)


def _fault(text: str, name: str, least: int, most: int) -> InvalidInput:
    return InvalidInput(
        f"{text!r} is no {name} of a cron expression.",
        hint=f"Use {least} to {most}, *, ranges (1-5), steps (*/15), lists (1,15).",
    )


def _at(wall: datetime, zone: tzinfo | None) -> datetime:
    return wall.astimezone(UTC) if zone is None else wall.replace(tzinfo=zone).astimezone(UTC)
