"""Circuits and preferences that survive a restart."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from perdure.core.errors import ProviderDown
from perdure.gateway import model_status
from perdure.gateway.breaker import Breaker, BreakerPolicy
from perdure.gateway.calls import CallOptions
from perdure.gateway.gateway import Gateway
from perdure.gateway.model_memory import LearnedModel
from perdure.testing import ManualClock, ScriptedModel
from tests.gateway.faulty import FaultyServer, chat, failing
from tests.gateway.opened import ONCE, opened

#: Opens at the first failure, and is probed after 15 to 30 seconds.
TRIPPING = BreakerPolicy(failures=1, rest=30.0)


@asynccontextmanager
async def gateway_on(bank: Path, clock: ManualClock, *servers: Any) -> AsyncIterator[Gateway]:
    url = f"sqlite:///{bank}"
    async with opened(*servers, url=url, clock=clock, tripping=TRIPPING, backoff=ONCE) as gateway:
        yield gateway


@pytest.fixture
def bank(tmp_path: Path) -> Path:
    return tmp_path / "bank.db"


async def test_an_open_circuit_stays_open_over_a_restart(bank: Path) -> None:
    clock = ManualClock()
    async with FaultyServer() as down, ScriptedModel() as other:
        down.script(always=failing(500))
        async with gateway_on(bank, clock, down, other) as gateway:
            for _ in range(3):
                assert (await gateway.complete("x")).provider == "p1"
        asked = down.count
        assert asked == 1
        async with gateway_on(bank, clock, down, other) as gateway:
            assert (await gateway.complete("x")).provider == "p1"
            assert down.count == asked  # nobody found out again that it is down
            (first, _) = await model_status.models(gateway)
            assert first.breaker is not None
            assert first.breaker.state == "open"
        async with gateway_on(bank, clock, down) as gateway:  # nor if it is the only one
            with pytest.raises(ProviderDown):
                await gateway.complete("x")
            assert down.count == asked


async def test_a_stale_open_circuit_is_probed_when_its_time_has_come(bank: Path) -> None:
    clock = ManualClock()
    async with FaultyServer() as server:
        server.script(always=failing(500))
        async with gateway_on(bank, clock, server) as gateway:
            with pytest.raises(ProviderDown):
                await gateway.complete("x")
        clock.advance(31)
        server.script(always=chat("Here again."))
        async with gateway_on(bank, clock, server) as gateway:
            assert (await gateway.complete("x")).text == "Here again."
            assert gateway.targets["p0/m"].breaker.state == "closed"


async def test_preferences_survive_a_restart_and_go_on_fading(bank: Path) -> None:
    clock, options = ManualClock(), CallOptions(task="triage")
    async with FaultyServer() as shaky, ScriptedModel() as other:
        shaky.script(always=failing(500))
        async with gateway_on(bank, clock, shaky, other) as gateway:
            assert (await gateway.complete("x", options)).provider == "p1"
        shaky.script(always=chat("Fine."))
        async with gateway_on(bank, clock, shaky, other) as gateway:
            # One failure without any success: for a while it comes second.
            assert (await gateway.complete("x", options)).fallback == 0
            assert gateway.health.view("triage", "p0/m").preference < 0.7
        clock.advance(3_600)
        async with gateway_on(bank, clock, shaky, other) as gateway:
            assert (await gateway.complete("x", options)).provider == "p0"


async def test_one_small_row_a_model_and_none_before_a_call(bank: Path) -> None:
    clock = ManualClock()
    async with ScriptedModel() as model, gateway_on(bank, clock, model) as gateway:
        await gateway.settle()
        assert await gateway.store.adapter.sizes() == []
        for _ in range(50):
            await gateway.complete("x", CallOptions(task="triage"))
        await gateway.settle()
        (row,) = await gateway.store.adapter.salvage("perdure_models", "", 10)
        assert len(row.value) < 150
        (learned,) = await gateway.store.collection(LearnedModel).query().values()
        assert (learned.name, list(learned.health)) == ("p0/m", ["triage"])


def test_a_circuit_that_was_being_probed_is_probed_again() -> None:
    now = 100.0
    first = Breaker("m", TRIPPING, clock=lambda: now, random=lambda: 0.0)
    first.attempt().end(ProviderDown("down", hint=""))
    now += 30.0
    first.attempt()  # the probe, which nobody ends
    second = Breaker("m", TRIPPING, clock=lambda: now)
    second.restore(first.memory(), 0.0)
    assert second.view().state == "half_open"
    second.attempt().end()
    assert second.view().state == "closed"
