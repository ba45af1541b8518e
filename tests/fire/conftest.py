from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.fire.zygote import Zygote


@pytest.fixture(scope="session")
def zygotes() -> Iterator[Zygote]:
    """One for all tests of this process."""
    with Zygote() as zygote:
        yield zygote


@pytest.fixture
def zygote(zygotes: Zygote) -> Iterator[Zygote]:
    """Starts worker processes. None of them outlives the test."""
    yield zygotes
    zygotes.kill_all()
