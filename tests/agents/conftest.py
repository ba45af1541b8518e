"""Banks for agents, with a clock to set."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any, TypeAlias

import pytest

from perdure.bank import Bank
from perdure.config import AgentsConfig, ArtifactsConfig, Config
from perdure.testing import ManualClock
from tests.conftest import BACKENDS, url_on
from tests.patience import patient

#: Opens a bank at the test's own address; keywords are settings of ``[agents]``. The fixture closes
#: it.
MakeAgentBank: TypeAlias = Callable[..., Awaitable[Bank]]

#: For what depends on how a database serialises its writers.
everywhere = pytest.mark.parametrize("store_url", BACKENDS, indirect=True)


@pytest.fixture(params=["memory", "sqlite"])
def store_url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    return url_on(request.param, request, tmp_path)


@pytest.fixture
async def make_bank(
    store_url: str, clock: ManualClock, tmp_path: Path
) -> AsyncIterator[MakeAgentBank]:
    opened = list[Bank]()

    async def make(url: str = store_url, *, recalls: bool = False, **settings: Any) -> Bank:
        config = Config(
            artifacts=ArtifactsConfig(folder=str(tmp_path / "artifacts")),
            recall=patient(on=recalls),
            agents=AgentsConfig(**settings),
        )
        bank = Bank(url, config=config, clock=clock)
        await bank.open()
        opened.append(bank)
        return bank

    yield make
    for bank in reversed(opened):
        await bank.close()


@pytest.fixture
async def bank(make_bank: MakeAgentBank) -> Bank:
    return await make_bank()
