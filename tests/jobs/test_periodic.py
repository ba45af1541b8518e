"""Periodic work: at the start, at its time, when woken, never twice at once."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TypeAlias

import pytest

from perdure.core.errors import InvalidInput
from perdure.jobs import Runner
from tests.waiting import until

MakeRunner: TypeAlias = Callable[..., Runner]

pytestmark = pytest.mark.parametrize("store_url", ["memory"], indirect=True)


class Chore:
    """A function that counts its calls."""

    def __init__(self) -> None:
        self.calls = 0
        self.inside = 0
        self.most = 0
        self.error: BaseException | None = None
        self.open = asyncio.Event()
        self.open.set()

    async def __call__(self) -> int:
        self.calls += 1
        self.inside += 1
        self.most = max(self.most, self.inside)
        try:
            await self.open.wait()
            if self.error is not None:
                raise self.error
        finally:
            self.inside -= 1
        return self.calls


async def test_it_runs_at_the_start_and_every_so_often(runner: Runner) -> None:
    chore = Chore()
    runner.every("chore", 0.01, chore)
    periodic = runner._periodic["chore"]
    await asyncio.sleep(0.02)
    assert chore.calls == 0, "the runner is not started"
    await runner.start()
    await until(lambda: periodic.runs >= 4)
    await runner.stop()
    calls = chore.calls
    await asyncio.sleep(0.03)
    assert chore.calls == calls == periodic.runs


async def test_woken_it_runs_at_once(runner: Runner) -> None:
    chore = Chore()
    await runner.start()
    wake = runner.every("chore", 3_600, chore)
    await until(lambda: chore.calls == 1)
    await asyncio.sleep(0.01)
    assert chore.calls == 1
    wake()
    await until(lambda: chore.calls == 2)


async def test_it_never_overlaps_itself(runner: Runner) -> None:
    chore = Chore()
    chore.open.clear()
    wake = runner.every("chore", 0.001, chore)
    await runner.start()
    await until(lambda: chore.inside)
    for _ in range(5):
        wake()
        await asyncio.sleep(0.002)
    assert chore.calls == 1
    chore.open.set()
    await until(lambda: chore.calls > 3)
    assert chore.most == 1


async def test_woken_while_it_runs_it_runs_once_more(runner: Runner) -> None:
    chore = Chore()
    chore.open.clear()
    wake = runner.every("chore", 3_600, chore)
    await runner.start()
    await until(lambda: chore.inside)
    for _ in range(3):
        wake()
    chore.open.set()
    await until(lambda: chore.calls == 2)
    await asyncio.sleep(0.01)
    assert chore.calls == 2


@pytest.mark.parametrize("error", [ValueError("broken"), asyncio.CancelledError()])
async def test_it_survives_errors_and_slows_down(
    runner: Runner,
    error: BaseException,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    pauses: list[float] = []
    cut_short: list[bool] = []

    async def pause_until(event: asyncio.Event, seconds: float) -> None:
        pauses.append(seconds)
        cut_short.append(event is periodic._woken)
        if len(pauses) == 3:
            chore.error = None
        await asyncio.sleep(0)

    monkeypatch.setattr("perdure.jobs.periodic.pause_until", pause_until)
    chore = Chore()
    chore.error = error
    runner.every("chore", 7.0, chore)
    periodic = runner._periodic["chore"]
    await runner.start()
    await until(lambda: periodic.runs >= 2)
    assert pauses[:5] == [0.1, 0.2, 0.4, 7.0, 7.0]
    assert cut_short[:5] == [False, False, False, True, True], "waking does not hurry a failure"
    assert "chore failed" in caplog.text
    assert periodic.failures == 3


async def test_stop_waits_for_a_run_then_cancels_it(runner: Runner) -> None:
    chore = Chore()
    chore.open.clear()
    runner.every("chore", 0.001, chore)
    await runner.start()
    await until(lambda: chore.inside)
    stopping = asyncio.create_task(runner.stop(10))
    await asyncio.sleep(0.01)
    assert not stopping.done()
    chore.open.set()
    await stopping
    assert chore.calls == 1
    chore.open.clear()
    runner.every("chore", 0.001, chore)
    await runner.start()
    await until(lambda: chore.inside)
    await runner.stop(0.01)
    assert chore.inside == 0


async def test_names_are_unique_and_forgotten_at_the_end(runner: Runner) -> None:
    wake = runner.every("chore", 1, Chore())
    with pytest.raises(InvalidInput):
        runner.every("chore", 1, Chore())
    await runner.start()
    await runner.stop()
    wake()
    runner.every("chore", 1, Chore())
