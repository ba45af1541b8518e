"""Runners that look for work often, so that no test waits for a poll; on both engines."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from datetime import timedelta
from pathlib import Path
from typing import TypeAlias

import psycopg
import pytest

from perdure.core.clock import SECOND, duration
from perdure.jobs import Runner
from perdure.jobs.procrastinate_engine import ProcrastinateEngine
from perdure.storage.store import Store
from perdure.testing.manual_clock import ManualClock
from tests.conftest import BACKENDS, url_on

MakeRunner: TypeAlias = Callable[..., Runner]
Neighbour: TypeAlias = Callable[[], Awaitable[Store]]

PROCRASTINATE = "procrastinate"


class PostgresTime(ManualClock):
    """PostgreSQL's clock cannot be moved. So what is to come is moved towards us."""

    url = ""

    def advance(self, span: str | timedelta | float) -> int:
        if self.url:
            seconds = duration(span) / SECOND
            with psycopg.connect(
                self.url, autocommit=True, options="-c search_path=perdure"
            ) as conn:
                table = "procrastinate_jobs"
                if conn.execute("SELECT to_regclass(%s)", (table,)).fetchone() != (None,):
                    conn.execute(
                        f"UPDATE {table} SET scheduled_at = scheduled_at"
                        " - %s * interval '1 second'",
                        (seconds,),
                    )
        return super().advance(span)


@pytest.fixture(params=[*BACKENDS, PROCRASTINATE])
def store_url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """The address of an empty store on every backend; on PostgreSQL, for each engine."""
    return url_on(request.param, request, tmp_path)


@pytest.fixture
def engine_name(request: pytest.FixtureRequest) -> str:
    """ "procrastinate", or the name of a backend whose jobs go by leases."""
    name: str = request.node.callspec.params["store_url"]
    return name


@pytest.fixture
def clock(store_url: str, engine_name: str) -> ManualClock:
    clock = PostgresTime()
    clock.url = store_url if engine_name == PROCRASTINATE else ""
    return clock


@pytest.fixture
async def make_runner(store: Store, engine_name: str) -> AsyncIterator[MakeRunner]:
    """Makes runners on the test's store, or on another; they are stopped before it is closed."""
    made: list[Runner] = []

    def make(store: Store = store, **options: float) -> Runner:
        poll, lease = options.pop("poll", 0.01), options.pop("lease", 30.0)
        engine = None
        if engine_name == PROCRASTINATE:
            engine = ProcrastinateEngine(store, poll=poll, lease=lease, first=0, beat=0.1)
        runner = Runner(store, poll=poll, lease=lease, engine=engine, **options)  # type: ignore[arg-type]
        made.append(runner)
        return runner

    yield make
    for runner in made:
        await runner.stop(0)


@pytest.fixture
def runner(make_runner: MakeRunner) -> Runner:
    return make_runner()


@pytest.fixture
def neighbour(
    store: Store,
    store_url: str,
    make_store: Callable[[], Awaitable[Store]],
    clock: ManualClock,
) -> Neighbour:
    """Opens the same store as another process would have it."""

    async def make() -> Store:
        if store_url == "memory://":
            return Store(store.adapter, clock=clock)
        return await make_store()

    return make
