"""kill -9 at every step of a batch: nothing is lost, nothing is paid twice, budgets are exact."""

from __future__ import annotations

import asyncio
import random
import sys
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

from perdure.core.clock import now
from perdure.core.messages import Usage
from perdure.gateway.batches.batch_records import BatchItem
from perdure.gateway.gateway import Gateway
from perdure.gateway.outcomes import Outcome
from perdure.gateway.providers import CallWire
from perdure.storage.registry import adapter_for
from perdure.storage.store import Store
from perdure.testing import BatchFaults, ReceivedRequest, ScriptedAnswer, ScriptedModel
from tests.fire import batcher
from tests.gateway.batching import driven, finished, results_of

ITEMS = 5
TOKENS, COST = 110, 150_000_000  # of each answer
_FILES = [(step, when) for step in ("upload", "delete") for when in ("before", "after")]
_STEPS = [(step, when) for step in ("create", "look", "results") for when in ("before", "after")]
POINTS: list[tuple[CallWire, str, str]] = [
    *(("messages", *point) for point in _STEPS),
    *(("responses", *point) for point in (*_FILES, *_STEPS)),
]


def answer(request: ReceivedRequest) -> ScriptedAnswer:
    return ScriptedAnswer(f"a{request.prompt[1:]}", usage=Usage(input=100, output=10))


class Trap:
    """Holds the first request that reaches a point, for ever."""

    def __init__(self, step: str, when: str) -> None:
        self._point = step, when
        self.reached = asyncio.Event()

    async def __call__(self, step: str, when: str) -> None:
        if (step, when) == self._point and not self.reached.is_set():
            self.reached.set()
            await asyncio.Event().wait()


@asynccontextmanager
async def process(
    url: str, model: ScriptedModel, wire: str, mode: str, count: int
) -> AsyncIterator[Any]:
    """One that is killed at the end."""
    started = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "tests.fire.batcher", url, model.url, wire, mode, str(count)),
        stdout=asyncio.subprocess.PIPE,
    )
    try:
        yield started
    finally:
        with suppress(ProcessLookupError):
            started.kill()
        await started.wait()


@asynccontextmanager
async def after_it(
    url: str, model: ScriptedModel, wire: CallWire, mode: str = "batch"
) -> AsyncIterator[Gateway]:
    """The gateway of another process, in which the work goes on."""
    async with (
        Store(adapter_for(url, now), clock=now) as store,
        driven(
            store, batcher.config(model.url, wire, mode), pace=batcher.PACE, lease=batcher.LEASE
        ) as gateway,
    ):
        yield gateway


async def check(gateway: Gateway, model: ScriptedModel, count: int) -> None:
    """All is there, once."""
    batch = await gateway.batch.submit(batcher.requests(count), batcher.OPTIONS, key=batcher.KEY)
    done = await finished(gateway, batch)
    assert done.counts == {"succeeded": count}
    assert done.cost == count * COST
    results = await results_of(gateway, batch)
    assert [each.reply.text for each in results.values() if each.reply] == [
        f"a{number}" for number in range(count)
    ]
    assert len(model.batches.hosted) == 1
    assert len(model.batches.paid) == count
    assert set(model.batches.paid.values()) == {1}
    (status,) = await gateway.budgets()
    spending = status.spending
    assert (spending.tokens, spending.cost) == (count * TOKENS, count * COST)
    assert (spending.held, spending.held_tokens, spending.held_cost) == (0, 0, 0)
    assert len(await gateway.store.collection(Outcome).query().values()) == count
    assert len(await gateway.store.collection(BatchItem).query().values()) == count


@pytest.mark.slow
@pytest.mark.parametrize(("wire", "step", "when"), POINTS)
async def test_killed_at_a_step(wire: CallWire, step: str, when: str, tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'bank.db'}"
    async with ScriptedModel(answer) as model:
        model.batches.hook = trap = Trap(step, when)
        async with process(url, model, wire, "batch", ITEMS), asyncio.timeout(60):
            await trap.reached.wait()
        async with after_it(url, model, wire) as gateway:
            await check(gateway, model, ITEMS)


@pytest.mark.slow
@pytest.mark.parametrize("wire", ["messages", "responses"])
async def test_killed_again_and_again(wire: CallWire, tmp_path: Path) -> None:
    """At any moment, also while results are written."""
    url, dice, count = f"sqlite:///{tmp_path / 'bank.db'}", random.Random(7), 250
    faults = BatchFaults(looks=3, lossy=1, not_yet=1, busy=1, lists_late=1)
    async with ScriptedModel(answer, batch_faults=faults) as model:
        for _ in range(8):
            async with process(url, model, wire, "batch", count) as started, asyncio.timeout(60):
                await started.stdout.readline()
                await asyncio.sleep(dice.random() * 1.5)
        async with after_it(url, model, wire) as gateway:
            await check(gateway, model, count)


@pytest.mark.slow
@pytest.mark.parametrize("wire", ["messages", "responses"])
async def test_two_processes_send_one_batch(wire: CallWire, tmp_path: Path) -> None:
    """The same key, at the same time; one of them is killed while it sends."""
    url = f"sqlite:///{tmp_path / 'bank.db'}"
    async with ScriptedModel(answer, batch_faults=BatchFaults(looks=10)) as model:
        model.batches.hook = trap = Trap("create", "after")
        async with process(url, model, wire, "batch", ITEMS) as first, asyncio.timeout(90):
            await trap.reached.wait()
            async with process(url, model, wire, "batch", ITEMS) as second:
                assert await second.stdout.readline() == b"submitted\n"
                first.kill()
                assert await second.stdout.readline() == b"ended\n"
                assert await second.wait() == 0
        async with after_it(url, model, wire) as gateway:
            await check(gateway, model, ITEMS)


@pytest.mark.slow
async def test_a_live_batch_goes_on_where_it_was(tmp_path: Path) -> None:
    """What was answered is not asked again; what was under way is, since its answer is lost."""
    url = f"sqlite:///{tmp_path / 'bank.db'}"
    reached = asyncio.Event()

    async def script(request: ReceivedRequest) -> ScriptedAnswer:
        if request.prompt == "q3" and not reached.is_set():
            reached.set()
            await asyncio.Event().wait()
        return answer(request)

    async with ScriptedModel(script) as model:
        async with process(url, model, "chat", "live", ITEMS), asyncio.timeout(60):
            await reached.wait()
        async with after_it(url, model, "chat", "live") as gateway:
            batch = await gateway.batch.submit(
                batcher.requests(ITEMS), batcher.OPTIONS, key=batcher.KEY
            )
            assert (await finished(gateway, batch)).counts == {"succeeded": ITEMS}
            asked = Counter(request.prompt for request in model.requests)
            assert asked == {"q0": 1, "q1": 1, "q2": 1, "q3": 2, "q4": 1}
            await gateway.settle()
            (status,) = await gateway.budgets()
            assert status.spending.tokens == ITEMS * TOKENS
            assert status.spending.held == 1  # the one that was lost may have been charged for
