"""Artifact stores to test: in a folder and on S3, beside banks in memory and in a file."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from perdure.artifacts import ArtifactStore, PlaceAddress, place_of
from perdure.storage.adapter import Adapter
from perdure.storage.backends.memory import MemoryAdapter
from perdure.storage.backends.sqlite import SQLiteAdapter
from perdure.storage.store import Store
from perdure.testing.manual_clock import ManualClock


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Tests of a place run in a folder and on S3, unless they look at its files."""
    if "place" in metafunc.fixturenames:
        if "backend" not in metafunc.fixturenames:
            metafunc.parametrize("place", ["disk", "s3"], indirect=True)
            return
        pairs = [("memory", "disk"), ("sqlite", "disk"), ("sqlite", "s3")]
        if "root" in metafunc.fixturenames:
            pairs = pairs[:2]
        metafunc.parametrize(
            ("backend", "place"), pairs, indirect=True, ids=[" on ".join(pair) for pair in pairs]
        )


@pytest.fixture
def backend(request: pytest.FixtureRequest) -> str:
    return str(getattr(request, "param", "sqlite"))


@pytest.fixture
async def store(backend: str, tmp_path: Path) -> AsyncIterator[Store]:
    adapter: Adapter = MemoryAdapter()
    if backend == "sqlite":
        adapter = SQLiteAdapter(f"sqlite:///{tmp_path}/bank.db")
    async with Store(adapter) as opened:
        yield opened


@pytest.fixture
async def timed_store(clock: ManualClock, tmp_path: Path) -> AsyncIterator[Store]:
    """A store whose time stands still until the test moves it."""
    async with Store(SQLiteAdapter(f"sqlite:///{tmp_path}/timed.db", clock), clock=clock) as opened:
        yield opened


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return tmp_path / "artifacts"


@pytest.fixture
def place(request: pytest.FixtureRequest, tmp_path: Path) -> PlaceAddress:
    if request.param == "disk":
        return tmp_path / "artifacts"
    return place_of(request.getfixturevalue("s3_url"))


@pytest.fixture
def artifacts(store: Store, place: PlaceAddress) -> ArtifactStore:
    return ArtifactStore(store, place)
