"""Cost, quality, latency and success of model calls, by any fields together; added up in the
database.

What a call is: an attempt at a model, as in `gateway.outcomes`. Outcomes are kept for 400 days.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Any

import msgspec

from perdure.core import clock
from perdure.core.errors import InvalidInput
from perdure.gateway.calls import indexable
from perdure.gateway.outcomes import CANCELLED, GROUPS, Outcome
from perdure.storage.options import DEFAULT
from perdure.storage.store import Store

#: What can be selected; `model` is its name without the provider.
FILTERS = ("agent", "task", "provider", "model", "purpose")
_FIGURES = {
    "calls": "count",
    **{f"sum_{name}": f"sum {name}" for name in ("cost", "latency", "quality", "input", "output")},
    **{f"count_{name}": f"count {name}" for name in ("cost", "quality")},
}


class UsageRow(msgspec.Struct, frozen=True, kw_only=True):
    """Calls that have some fields in common, added up."""

    #: These fields, in the order asked for.
    group: dict[str, str]
    calls: int
    #: Without those that their callers gave up.
    failures: int
    cancelled: int
    cached: int
    #: The share of calls that succeeded, of those that were not given up; None without any.
    success: float | None
    #: Picodollars, as far as they are known, and how many calls they are unknown of.
    cost: int
    unknown_costs: int
    #: Of a call of known cost, in picodollars.
    average_cost: float | None
    #: Mean seconds of successful calls, without answers from the cache.
    latency: float | None
    #: The mean of the labels of judges and people, and how many there are.
    quality: float | None
    labels: int
    input: int
    output: int


async def usage(
    store: Store,
    by: Sequence[str] = ("agent",),
    *,
    since: datetime | None = None,
    until: datetime | None = None,
    **only: str | None,
) -> list[UsageRow]:
    """Calls that began in [since, until), and that `only` selects: see `FILTERS`. In order of days
    if they are asked for, else the dearest first. Flush the `OutcomeRecorder` first.

    Raises `InvalidInput` for a field that calls are not grouped by, or not selected by.
    """
    fields = _checked(by)
    finder = store.collection(Outcome).query()
    if since is not None:
        finder = finder.where("started", ">=", clock.from_datetime(since))
    if until is not None:
        finder = finder.where("started", "<", clock.from_datetime(until))
    for name, value in only.items():
        if name not in FILTERS:
            raise InvalidInput(
                f"Calls are not selected by {name!r}.", hint=f"Use one of {', '.join(FILTERS)}."
            )
        if value is not None:
            finder = finder.where(name, "=", indexable(value))
    ends = ("success", "cached", "error", "quality_by")
    groups = dict[tuple[str, ...], list[dict[str, Any]]]()
    for found in await finder.group_by(*fields, *ends).aggregate(DEFAULT, **_FIGURES):
        groups.setdefault(tuple(found[field] for field in fields), []).append(found)
    rows = [_row(dict(zip(fields, group, strict=True)), sums) for group, sums in groups.items()]
    if "day" in fields:
        return sorted(rows, key=lambda row: (row.group["day"], -row.cost, -row.calls))
    return sorted(rows, key=lambda row: (-row.cost, -row.calls, tuple(row.group.values())))


def parse_fields(text: str) -> tuple[str, ...]:
    """From what a user writes: ``task,provider``. Raises `InvalidInput`."""
    return _checked([part.strip() for part in text.split(",")])


def _checked(by: Sequence[str]) -> tuple[str, ...]:
    fields = tuple(dict.fromkeys(by))
    unknown = next((field for field in fields if field not in GROUPS), None)
    if not fields or unknown is not None:
        raise InvalidInput(
            f"Calls are not grouped by {unknown or 'nothing'!r}.",
            hint=f"Use some of {', '.join(GROUPS)}, with commas between them.",
        )
    return fields


def _row(group: dict[str, str], sums: list[dict[str, Any]]) -> UsageRow:
    def total(name: str, among: list[dict[str, Any]]) -> float:
        return sum(float(each[name] or 0) for each in among)

    failed = [each for each in sums if not each["success"]]
    cancelled = [each for each in failed if each["error"] == CANCELLED]
    answered = [each for each in sums if each["success"] and not each["cached"]]
    rated = [each for each in sums if each["quality_by"] != "heuristic"]
    calls, given_up = total("calls", sums), total("calls", cancelled)
    kept, known = calls - given_up, total("count_cost", sums)
    labels, answers = total("count_quality", rated), total("calls", answered)
    cost = sum(int(each["sum_cost"] or 0) for each in sums)
    return UsageRow(
        group=group,
        calls=int(calls),
        failures=int(total("calls", failed) - given_up),
        cancelled=int(given_up),
        cached=int(total("calls", [each for each in sums if each["cached"]])),
        success=total("calls", [each for each in sums if each["success"]]) / kept if kept else None,
        cost=cost,
        unknown_costs=int(calls - known),
        average_cost=cost / known if known else None,
        latency=total("sum_latency", answered) / answers if answers else None,
        quality=total("sum_quality", rated) / labels if labels else None,
        labels=int(labels),
        input=int(total("sum_input", sums)),
        output=int(total("sum_output", sums)),
    )
