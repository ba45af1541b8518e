"""The conformance kit over Perdure's own backends, and the kit itself under test."""

from __future__ import annotations

from pathlib import Path
from typing import Any, ClassVar

import msgspec
import pytest

from perdure.core.errors import UnknownBackend
from perdure.storage import registry
from perdure.storage.adapter import Capability
from perdure.storage.backends.memory import MemoryAdapter
from perdure.storage.backends.postgres import PostgresAdapter
from perdure.storage.backends.sqlite import SQLiteAdapter
from perdure.storage.backends.valkey import ValkeyAdapter
from perdure.storage.options import DEFAULT, Options
from perdure.storage.query import Query
from perdure.storage.registry import adapter_for
from perdure.storage.rows import Batch, Layout, Put, Row
from perdure.testing import ManualClock, perform, run, trials_for
from perdure.testing.conformance import (
    LEVELS,
    CapabilityStatus,
    ConformanceReport,
    Trial,
    registered,
)
from tests.conftest import DURABLE

COVERED = frozenset(Capability)
LASTING = {Capability.DURABLE, Capability.STRONG, Capability.SHARED}
ADAPTERS: dict[str, Any] = {
    "memory": MemoryAdapter,
    "sqlite": SQLiteAdapter,
    "postgresql": PostgresAdapter,
    "valkey": ValkeyAdapter,
}


@pytest.mark.parametrize(
    ("backend", "trial"),
    [
        pytest.param(backend, trial, id=f"{backend}-{trial.id}")
        for backend, adapter in ADAPTERS.items()
        for trial in trials_for(adapter.capabilities)
    ],
)
async def test_kit(
    backend: str, trial: Trial, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    urls = {"memory": "memory://", "sqlite": f"sqlite:///{tmp_path / 'bank.db'}"}
    # The kit cleans up after itself, so one database will do.
    fixtures = {"postgresql": "used_postgres_url", "valkey": "used_valkey_url"}
    await perform(trial, urls.get(backend) or request.getfixturevalue(fixtures[backend]))


@pytest.mark.parametrize("store_url", DURABLE, indirect=True)
async def test_a_new_store_is_made_by_many_at_once(store_url: str) -> None:
    """In `test_kit` the store may be there already; here it is not, and four make it together."""
    (trial,) = [trial for trial in registered() if trial.id == "shared-opening_together"]
    await perform(trial, store_url)


def test_our_backends_have_every_capability_that_is_covered() -> None:
    assert SQLiteAdapter.capabilities == COVERED
    assert PostgresAdapter.capabilities == COVERED
    assert MemoryAdapter.capabilities == COVERED - LASTING


def test_valkey_declares_what_one_server_can_promise() -> None:
    assert ValkeyAdapter.capabilities == {
        Capability.VERSIONS,
        Capability.LISTING,
        Capability.TTL,
        Capability.TRANSACTIONS,
        Capability.SHARED,
        Capability.ERASURE,
    }


def test_every_covered_capability_is_in_a_level_and_has_checks() -> None:
    assert {capability for added in LEVELS.values() for capability in added} == COVERED
    assert {trial.group for trial in registered()} == {"core", *COVERED}
    assert all(trial.guarantee.endswith(".") for trial in registered())


# What the kit says --------------------------------------------------------------------------


async def test_report_of_a_sound_backend() -> None:
    seen: list[tuple[str, int, int]] = []
    report = await run("memory://", progress=lambda trial, *rest: seen.append((trial.id, *rest)))
    assert report.passed, report.failures
    assert report.level is not None
    assert (report.level.number, report.level.name) == (3, "transactional")
    standings = {line.capability: line.standing for line in report.table}
    assert standings["core"] is CapabilityStatus.PROVEN
    assert standings["outbox"] is CapabilityStatus.PROVEN
    assert standings["shared"] is CapabilityStatus.NOT_DECLARED
    assert standings["extensions"] is CapabilityStatus.PROVEN
    assert [entry[1] for entry in seen] == list(range(len(report.results)))
    assert "level 3, transactional" in str(report)
    told = msgspec.json.decode(msgspec.json.encode(report.to_builtins()))
    assert told["level"] == {"number": 3, "name": "transactional"}
    assert told["passed"] is True
    assert len(told["results"]) == len(report.results)


async def test_some_groups_only() -> None:
    report = await run("memory://", groups=["tags"])
    assert {result.group for result in report.results} == {"tags"}
    assert report.passed
    assert report.level is None  # the core was not tried
    lines = {line.capability: line for line in report.table}
    assert lines["tags"].standing is CapabilityStatus.PROVEN
    assert lines["core"].standing is CapabilityStatus.NOT_TRIED


class Forgetful(MemoryAdapter):
    """Ignores expected versions, and search indexes."""

    async def commit(self, batch: Batch, options: Options) -> list[int]:
        blind = tuple(msgspec.structs.replace(write, expected=None) for write in batch.writes)
        return await super().commit(Batch(blind, batch.checks, batch.events), options)


class Modest(MemoryAdapter):
    """Can everything, says little."""

    capabilities: ClassVar[frozenset[Capability]] = frozenset({Capability.VERSIONS})


class Wild(MemoryAdapter):
    """Raises what is not ours."""

    async def get(self, collection: str, keys: Any, options: Options) -> list[Row | None]:
        raise ZeroDivisionError("division by zero")


async def _report(adapter: type[MemoryAdapter], **options: Any) -> ConformanceReport:
    registry.register("kit-test", adapter)
    try:
        return await run("kit-test://", **options)
    finally:
        registry.unregister("kit-test")


async def test_a_broken_promise_is_no_level() -> None:
    report = await _report(Forgetful)
    assert not report.passed
    assert report.level is None
    lines = {line.capability: line for line in report.table}
    assert lines["versions"].standing is CapabilityStatus.FAILED
    assert lines["listing"].standing is CapabilityStatus.PROVEN
    assert lines["extensions"].standing is CapabilityStatus.FAILED
    assert "versions-not_met_exists" in {result.id for result in report.failures}
    assert "Conflict was not raised" in {
        result.detail.removeprefix("Unmet: ") for result in report.failures
    }
    assert "no level" in str(report)
    assert report.to_builtins()["level"] is None


async def test_what_is_not_declared_must_be_refused() -> None:
    report = await _report(Modest, groups=["core"])
    failed = {result.name for result in report.failures}
    assert "undeclared_is_refused_transactions" in failed
    assert "undeclared_is_refused_ttl" in failed
    assert "undeclared_is_refused_versions" not in failed


async def test_any_error_is_a_finding() -> None:
    report = await _report(Wild, groups=["core"])
    assert "ZeroDivisionError: division by zero" in {each.detail for each in report.failures}


async def test_unknown_backend_is_an_error() -> None:
    with pytest.raises(UnknownBackend):
        await run("nobody://")


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("postgresql://me:secret@host:1/db?x=1", "postgresql://me:…@host:1/db?x=1"),
        ("postgresql://me@host/db", "postgresql://me@host/db"),
        ("sqlite:////tmp/a.db", "sqlite:////tmp/a.db"),
        ("memory://", "memory://"),
    ],
)
def test_passwords_are_not_shown(url: str, shown: str) -> None:
    assert registry.shown(url) == shown


# What the kit leaves behind -------------------------------------------------------------------

MINE = Layout("mine", expires=True)


@pytest.mark.parametrize("backend", ["sqlite", "postgresql"])
async def test_a_store_in_use_is_not_touched(
    backend: str, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    if backend == "sqlite":
        url = f"sqlite:///{tmp_path / 'bank.db'}"
    else:
        url = request.getfixturevalue("postgres_url")
    mine = adapter_for(url)
    await mine.initialize()
    await mine.prepare(MINE)
    # Long expired by the wall clock, not by the kit's: not the kit's to sweep.
    puts = [Put("mine", f"{n}", b"data", "text/plain", 1, expires=10**15) for n in range(5)]
    clock = ManualClock(10**15 - 1)
    then = adapter_for(url, clock)
    await then.initialize()
    await then.prepare(MINE)
    await then.commit(Batch(tuple(puts)), DEFAULT)
    before = await then.find(Query("mine"), DEFAULT)
    report = await run(url, groups=["ttl", "outbox"])
    assert report.passed, report.failures
    assert await then.find(Query("mine"), DEFAULT) == before
    kit = [size for size in await mine.sizes() if size.collection.startswith("perdure_kit")]
    assert kit
    assert {size.rows for size in kit} == {0}
    assert (await mine.events("", 10))[0] == []
    await then.close()
    await mine.close()
