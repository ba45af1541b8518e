from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from perdure.artifacts import ArtifactStore
from perdure.storage.adapter import Adapter
from perdure.storage.backends.memory import MemoryAdapter
from perdure.storage.backends.sqlite import SQLiteAdapter
from perdure.storage.store import Store


@pytest.fixture(params=["memory", "sqlite"])
async def store(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Store]:
    adapter: Adapter = MemoryAdapter()
    if request.param == "sqlite":
        adapter = SQLiteAdapter(f"sqlite:///{tmp_path}/bank.db")
    async with Store(adapter) as opened:
        yield opened


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return tmp_path / "artifacts"


@pytest.fixture
def artifacts(store: Store, root: Path) -> ArtifactStore:
    return ArtifactStore(store, root)
