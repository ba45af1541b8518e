from __future__ import annotations

from collections.abc import Iterator, Sequence

import pytest

from perdure.storage import registry
from perdure.storage.options import Options
from perdure.storage.rows import Row
from perdure.testing import MemoryAdapter
from tests.cli.conftest import Ask, Run


class Forgetful(MemoryAdapter):
    """Declares what it should, but finds every other key only."""

    async def get(self, collection: str, keys: Sequence[str], options: Options) -> list[Row | None]:
        rows = await super().get(collection, keys, options)
        return [row if len(key) % 2 else None for key, row in zip(keys, rows, strict=True)]


@pytest.fixture
def forgetful() -> Iterator[str]:
    registry.register("forgetful", Forgetful)
    yield "forgetful://"
    registry.unregister("forgetful")


def test_a_backend_that_keeps_its_promises(run: Run) -> None:
    result = run("conformance", "memory://")
    assert result.exit_code == 0, result.stdout
    lines = {line.split()[0]: line.split()[1:] for line in result.stdout.splitlines() if line}
    assert lines["transactions"][:2] == ["yes", "proven"]
    assert lines["durable"] == ["no", "not", "declared"]
    assert "level 3" in result.stdout.splitlines()[-1]


def test_a_backend_that_breaks_them(forgetful: str, ask: Ask) -> None:
    code, found = ask("conformance", forgetful)
    assert code == 1
    assert not found["passed"]
    assert found["level"] is None
    standings = {line["capability"]: line["standing"] for line in found["capabilities"]}
    assert standings["core"] == "failed"
    failed = [result for result in found["results"] if result["outcome"] == "failed"]
    assert all(result["guarantee"] and result["detail"] for result in failed)


def test_a_backend_that_is_not_there(run: Run, ask: Ask) -> None:
    result = run("conformance", "nowhere://")
    assert result.exit_code == 1
    assert result.stderr.startswith("perdure: No storage backend is registered for nowhere://.")
    assert ask("conformance", "nowhere://")[1]["error"]["type"] == "UnknownBackend"
