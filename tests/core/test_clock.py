"""Times, as people write them."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import suppress
from datetime import UTC, date, datetime, timedelta, timezone
from typing import Any

import pytest

from perdure.core import clock
from perdure.core.clock import SECOND, moment
from perdure.core.errors import InvalidInput

#: 2026-02-12 16:02 UTC.
NOW = 1_770_912_120 * SECOND
HOUR = 3_600 * SECOND
MIDNIGHT = NOW - 16 * HOUR - 120 * SECOND


@pytest.fixture(autouse=True)
def in_new_york(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Five hours behind UTC, in winter."""
    monkeypatch.setenv("TZ", "EST5EDT")
    time.tzset()
    yield
    monkeypatch.undo()
    time.tzset()


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ("2h", NOW - 2 * HOUR),
        (" 1h30m ago ", NOW - 3 * HOUR // 2),
        (timedelta(hours=2), NOW - 2 * HOUR),
        ("2026-02-12T16:02Z", NOW),
        ("2026-02-12 17:02+01:00", NOW),
        (datetime(2026, 2, 12, 16, 2, tzinfo=UTC), NOW),
        (datetime(2026, 2, 12, 17, 2, tzinfo=timezone(timedelta(hours=1))), NOW),
        # In the local time zone.
        ("2026-02-12 11:02", NOW),
        (datetime(2026, 2, 12, 11, 2), NOW),  # noqa: DTZ001 (a naive one is what is tested)
        ("2026-02-12", MIDNIGHT + 5 * HOUR),
        (date(2026, 2, 12), MIDNIGHT + 5 * HOUR),
        (date(2026, 7, 12), moment("2026-07-12T04:00Z", NOW)),  # in summer, four
        ("now", NOW),
        (" Today", MIDNIGHT + 5 * HOUR),
        ("yesterday", MIDNIGHT - 19 * HOUR),
    ],
)
def test_a_moment_is_named_in_many_ways(given: Any, expected: int) -> None:
    assert moment(given, NOW) == expected


@pytest.mark.parametrize("given", ["2026-02-12", date(2026, 2, 12), "today"])
def test_the_last_moment_of_a_date(given: Any) -> None:
    assert moment(given, NOW, last=True) == MIDNIGHT + 29 * HOUR - 1


@pytest.mark.parametrize("given", ["2026-02-12 00:00", "2h", "now"])
def test_a_moment_has_no_last_one(given: Any) -> None:
    assert moment(given, NOW, last=True) == moment(given, NOW)


@pytest.mark.parametrize(
    "given",
    [
        *("", "soon", "tomorrow", "2026-13-01", "0d", "-3d", "9" * 30 + "d", "ago"),
        *(timedelta(0), timedelta(days=-1), 7, 7.5, True, None, [], b"3d"),
    ],
)
def test_what_names_no_moment_is_refused(given: Any) -> None:
    with pytest.raises(InvalidInput, match="is no time") as caught:
        moment(given, NOW)
    assert "2026-02-12" in str(caught.value)


@pytest.mark.parametrize("given", ["0001-01-01", "9999-12-31T23:59", date.min, date.max])
def test_the_ends_of_time_are_moments_or_refused(given: str | date) -> None:
    with suppress(InvalidInput):
        clock.to_datetime(moment(given, NOW))


def test_what_is_stored_has_a_time_zone() -> None:
    with pytest.raises(InvalidInput, match="no time zone"):
        clock.from_datetime(datetime(2026, 2, 12))  # noqa: DTZ001 (a naive one is what is tested)
