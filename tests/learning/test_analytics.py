"""Calls added up by any fields, in the database."""

from __future__ import annotations

from collections.abc import AsyncIterator
from datetime import timedelta
from pathlib import Path

import msgspec
import pytest

import perdure
from perdure.core import clock
from perdure.core.errors import InvalidInput
from perdure.gateway.outcomes import Outcome
from perdure.learning.analytics import parse_fields, usage
from perdure.storage.store import Store
from tests.learning.lives import LARGE, SMALL, outcome

DAY = 86_400 * clock.SECOND
NOW = 1_800_000_000 * clock.SECOND


@pytest.fixture(params=["memory", "sqlite"])
async def store(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Store]:
    url = "memory://" if request.param == "memory" else f"sqlite:///{tmp_path / 'bank.db'}"
    async with perdure.open_store(url) as made:
        rows = [
            outcome(SMALL, agent="a", task="t1", dollars=0.01, quality=1.0),
            outcome(SMALL, agent="a", task="t1", dollars=0.03, quality=0.4, by="judge"),
            outcome(SMALL, agent="a", task="t2", ok=False),
            outcome(LARGE, agent="a", task="t2", ok=False, error="cancelled"),
            outcome(LARGE, agent="b", task="t1", dollars=0.5, quality=0.8, by="user"),
            outcome(LARGE, agent="b", task="t1", quality=1.0),
        ]
        placed = [
            msgspec.structs.replace(row, started=NOW - at * 20 * DAY, day="")
            for at, row in enumerate(rows)
        ]
        await made.collection(Outcome).put_many(placed)
        yield made


async def test_any_two_fields_together(store: Store) -> None:
    rows = await usage(store, ("agent", "task"))
    found = {(row.group["agent"], row.group["task"]): row for row in rows}
    assert list(found) == [("b", "t1"), ("a", "t1"), ("a", "t2")]  # the dearest first
    ours = found["a", "t1"]
    assert (ours.calls, ours.cost, ours.success) == (2, 40_000_000_000, 1.0)
    assert ours.average_cost == 20_000_000_000
    assert (ours.quality, ours.labels) == (0.4, 1)  # a guess is no label
    assert ours.latency == 1.0
    failed = found["a", "t2"]
    assert (failed.calls, failed.failures, failed.cancelled) == (2, 1, 1)
    assert (failed.success, failed.quality, failed.latency) == (0.0, None, None)
    assert found["b", "t1"].unknown_costs == 1
    assert found["b", "t1"].quality == 0.8


async def test_times_filters_and_days(store: Store) -> None:
    since = clock.to_datetime(NOW) - timedelta(days=30)
    (row,) = await usage(store, ("provider",), since=since)
    assert (row.group, row.calls) == ({"provider": "p"}, 2)
    days = await usage(store, ("day", "model"))
    assert [row.group["day"] for row in days] == sorted(row.group["day"] for row in days)
    assert len(days) == 6
    (row,) = await usage(store, ("model",), agent="b")
    assert (row.group, row.calls) == ({"model": "large"}, 2)
    assert await usage(store, ("model",), agent="nobody") == []
    (row,) = await usage(store, ("purpose",), task="t2", model="small")
    assert row.calls == 1


async def test_what_calls_are_not_grouped_by_is_refused(store: Store) -> None:
    assert parse_fields("task, provider,task") == ("task", "provider")
    for wrong in ("", "taste", "task,,day"):
        with pytest.raises(InvalidInput, match="not grouped by"):
            parse_fields(wrong)
    with pytest.raises(InvalidInput, match="not selected by"):
        await usage(store, ("task",), session="s")
