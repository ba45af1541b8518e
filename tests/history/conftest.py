"""Banks on every backend, with a clock to set."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any, TypeAlias

import pytest

from perdure.bank import Bank
from perdure.config import ArtifactsConfig, Config, HistoryConfig
from perdure.core.clock import Clock
from perdure.sessions.session import Session
from perdure.storage.middleware import Middleware
from perdure.testing import ManualClock
from tests.conftest import BACKENDS, url_on
from tests.patience import patient

#: Tests run in memory and on SQLite; those that depend on how a database serialises its writers run
#: on every backend.
everywhere = pytest.mark.parametrize("store_url", BACKENDS, indirect=True)

#: Opens a bank at the test's own address, or another; keywords are settings of ``[history]``. The
#: fixture closes it.
MakeBank: TypeAlias = Callable[..., Awaitable[Bank]]


@pytest.fixture(params=["memory", "sqlite"])
def store_url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """The address of an empty store."""
    return url_on(request.param, request, tmp_path)


@pytest.fixture
def recalls() -> bool:
    """Whether banks index what is written, as they do by default.

    It costs as much as the rest of a short test. Modules say so that are about writing under
    competition and about forgetting, which the index has a part in.
    """
    return False


@pytest.fixture
async def make_bank(
    store_url: str, clock: ManualClock, tmp_path: Path, recalls: bool
) -> AsyncIterator[MakeBank]:
    opened = list[Bank]()

    async def make(
        url: str = store_url,
        *,
        clock: Clock = clock,
        middleware: tuple[Middleware, ...] = (),
        **history: Any,
    ) -> Bank:
        bank = Bank(
            url,
            config=config_for(tmp_path, recalls=recalls, **history),
            clock=clock,
            middleware=middleware,
        )
        await bank.open()
        opened.append(bank)
        return bank

    yield make
    for bank in reversed(opened):
        await bank.close()


def config_for(folder: Path, *, recalls: bool = False, **history: Any) -> Config:
    """A configuration that keeps artifacts in the test's folder, whatever the backend."""
    return Config(
        artifacts=ArtifactsConfig(folder=str(folder / "artifacts")),
        history=HistoryConfig(**history),
        recall=patient(on=recalls),
    )


@pytest.fixture
async def bank(make_bank: MakeBank) -> Bank:
    """An open bank, empty."""
    return await make_bank()


@pytest.fixture
async def session(bank: Bank) -> Session:
    """A session without turns."""
    return await bank.session("planner/auth")
