"""What processes have counted, on the command line."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from perdure.core import clock
from perdure.core.errors import Conflict
from perdure.storage.metrics import BUCKETS, Metrics, Publisher
from perdure.storage.metrics.metrics_publisher import ProcessMetrics
from perdure.storage.options import Options
from perdure.storage.registry import adapter_for
from perdure.storage.store import Store
from tests.cli.conftest import Ask, Note, Run
from tests.storage.test_metrics import parse, value_of


@pytest.fixture
def busy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """The address of a bank in which two processes were busy; it is the default of the test."""
    url = f"sqlite:///{tmp_path / 'busy.db'}"
    asyncio.run(_work(url))
    monkeypatch.setenv("PERDURE_BANK", url)
    return url


async def _work(url: str) -> None:
    metrics = Metrics()
    async with Store(adapter_for(url), middleware=[metrics]) as store:
        publisher = Publisher(metrics, store, patience=0)
        notes = store.collection(Note)
        await notes.put_many([Note("a", "x" * 2_000), Note("b", "y")])
        with pytest.raises(Conflict):
            await notes.put(Note("a", "z"), Options(expected=7))
        await notes.get("a")
        await publisher.publish()
        other = Metrics()
        other.measures["get", "notes"] = metrics.measures["get", "notes"]
        moment = clock.to_datetime(clock.now())
        await store.collection(ProcessMetrics).put(
            ProcessMetrics(
                id="elsewhere/7/1",
                process="elsewhere/7",
                started=moment,
                at=moment,
                counted=other.counted(),
                cache={"hits": 5, "misses": 1},
            )
        )


def test_a_table(run: Run, busy: str) -> None:
    result = run("metrics")
    assert (result.exit_code, result.stderr) == (0, "")
    lines = result.stdout.splitlines()
    assert lines[0] == "2 processes within the last day, just now last."
    commit = next(line.split() for line in lines if line.startswith("commit") and " notes " in line)
    assert commit[1:4] == ["notes", "2", "1"]
    get = next(line.split() for line in lines if line.startswith("get") and " notes " in line)
    assert get[1:4] == ["notes", "2", "0"]
    assert "1 Conflict" in lines
    assert any(line.split()[:2] == ["notes", "2"] for line in lines)


def test_as_json(ask: Ask, busy: str) -> None:
    code, answer = ask("metrics")
    assert code == 0
    assert {each["process"] for each in answer["processes"]} > {"elsewhere/7"}
    (commit,) = [
        each
        for each in answer["operations"]
        if (each["operation"], each["collection"]) == ("commit", "notes")
    ]
    assert (commit["calls"], commit["errors"], commit["rows"]) == (2, {"Conflict": 1}, 2)
    assert commit["bytes_written"] > 2_000
    assert 0 < commit["p50"] <= commit["p99"] <= BUCKETS[-1]
    assert {
        key: value
        for each in answer["sizes"]
        if each["collection"] == "notes"
        for key, value in each.items()
        if key != "bytes"
    } == {"collection": "notes", "rows": 2}


def test_for_prometheus(run: Run, busy: str) -> None:
    result = run("metrics", "--prometheus")
    assert result.exit_code == 0
    families = parse(result.stdout)
    place = {"operation": "get", "collection": "notes", "process": "elsewhere/7"}
    assert value_of(families, "perdure_storage_operations_total", **place) == 1
    assert value_of(families, "perdure_storage_cache_hits_total", process="elsewhere/7") == 5
    assert value_of(families, "perdure_storage_rows", collection="notes") == 2
    assert run("metrics", "--prometheus", "--json").exit_code == 2


def test_nobody_has_left_anything(run: Run, ask: Ask, notes: str) -> None:
    result = run("metrics", "--bank", notes)
    assert result.exit_code == 0
    assert "notes  " in result.stdout
    _, answer = ask("metrics", "--bank", notes)
    assert answer["total"]["calls"] == sum(each["calls"] for each in answer["operations"])
    assert run("metrics", "--bank", "sqlite:///nowhere.db").exit_code == 1
