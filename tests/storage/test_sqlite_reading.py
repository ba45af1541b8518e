"""SQLite reads on the event loop, which are stopped when they take too long."""

from __future__ import annotations

from pathlib import Path

import pytest

from perdure.storage.backends.sqlite import SQLiteAdapter, reader
from perdure.storage.options import DEFAULT
from perdure.storage.query import Query
from perdure.storage.rows import Batch, Layout, Put

LAYOUT = Layout("rows")


def _put(key: str, value: bytes) -> Put:
    return Put("rows", key, value, "text/plain", 1)


async def test_a_read_that_is_stopped_leaves_no_transaction_behind(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Wherever it is stopped, also in its very last step, later reads see later writes."""
    monkeypatch.setattr(reader, "STEPS", 1)
    adapter = SQLiteAdapter(f"sqlite:///{tmp_path / 'bank.db'}")
    await adapter.initialize()
    await adapter.prepare(LAYOUT)
    names = [f"{folder}/{name}" for folder in ("a", "a/b", "c") for name in "xyz"]
    await adapter.commit(Batch(tuple(_put(name, b"") for name in names)), DEFAULT)
    for allowance in range(0, 1_500, 3):
        monkeypatch.setattr(reader, "LOOKS", allowance)
        # Each limit counts as another kind of read, to be tried on the event loop first.
        found = await adapter.find(Query("rows", limit=100 + allowance), DEFAULT)
        assert [row.key for row in found] == sorted(names)
        monkeypatch.setattr(reader, "LOOKS", 10**9)
        value = b"%d" % allowance
        await adapter.commit(Batch((_put("a/x", value),)), DEFAULT)
        (row,) = await adapter.get("rows", ["a/x"], DEFAULT)
        assert row is not None
        assert row.value == value, f"a stale read after {allowance} steps"
    await adapter.close()
