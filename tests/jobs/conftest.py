"""Runners that look for work often, so that no test waits for a poll."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from typing import TypeAlias

import pytest

from perdure.jobs import Runner
from perdure.storage.store import Store
from perdure.testing.manual_clock import ManualClock

MakeRunner: TypeAlias = Callable[..., Runner]
Neighbour: TypeAlias = Callable[[], Awaitable[Store]]


@pytest.fixture
async def make_runner(store: Store) -> AsyncIterator[MakeRunner]:
    """Makes runners on the test's store, or on another; they are stopped before it is closed."""
    made: list[Runner] = []

    def make(store: Store = store, **options: float) -> Runner:
        runner = Runner(store, **{"poll": 0.01, **options})  # type: ignore[arg-type]
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
