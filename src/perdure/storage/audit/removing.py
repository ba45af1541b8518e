"""Removing by query in pages that grow smaller where others write."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from perdure.core.errors import DeadlineExceeded, Unavailable
from perdure.storage.query import All, Compare, Op, Query
from perdure.storage.rows import Row

#: Rows that are removed in one commit. The longer a commit takes, the likelier others are first.
PAGE = 100
_ON = "Try again: it goes on with the others."


class Page(msgspec.Struct, frozen=True):
    """Rows to remove in one commit, and how often rows of it were in one that failed."""

    rows: Sequence[Row]
    attempt: int = 0

    def halves(self, rows: Sequence[Row]) -> list[Page]:
        """What to try next, of the rows as they are now: one that is busy holds up fewer others."""
        middle = (len(rows) + 1) // 2
        return [Page(half, self.attempt + 1) for half in (rows[middle:], rows[:middle]) if half]


def pages(rows: Sequence[Row]) -> list[Page]:
    """All rows, the first page last: it is taken from there."""
    found = [Page(rows[start : start + PAGE]) for start in range(0, len(rows), PAGE)]
    return found[::-1]


def among(query: Query, page: Page) -> Query:
    """Those rows of a page that the query's conditions still fit."""
    wanted = Compare("key", Op.IN, tuple(row.key for row in page.rows))
    return Query(query.collection, All((query.where, wanted)), query.prefix)


def contended(count: int) -> Unavailable:
    """What is raised when others keep being first; so many records were removed before."""
    return Unavailable(
        f"Others kept writing what was to be removed; {count:,} records were.", hint=_ON
    )


def late(count: int) -> DeadlineExceeded:
    """What is raised when the time is over, after so many records."""
    return DeadlineExceeded(
        f"The time allowed was over; {count:,} records were removed.",
        hint=f"Allow more time. {_ON}",
    )
