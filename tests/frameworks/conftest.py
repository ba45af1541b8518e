"""Tests of `perdure.integrations` with the frameworks themselves: `make frameworks` runs them, in
an environment that has no other tool of the tests. They are no part of `make test`.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

import perdure
from perdure.bank import Bank


@pytest.fixture
def url(tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path}/memory.db"


@pytest.fixture
async def bank(url: str) -> AsyncIterator[Bank]:
    async with perdure.open(url) as bank:
        yield bank
