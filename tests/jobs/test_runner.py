"""Jobs are done: once if nothing goes wrong, again if something does, never forgotten."""

from __future__ import annotations

import asyncio
import os
import random
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, TypeAlias

import msgspec
import pytest

from perdure.core import clock as real_clock
from perdure.core.clock import SECOND
from perdure.core.errors import InvalidInput, InvalidKey, Unavailable
from perdure.jobs import Job, JobCounts, JobState, RetryLater, Runner
from perdure.storage.backends.sqlite import _EMITTER, SQLiteAdapter
from perdure.storage.middleware import Call, Commit, Find
from perdure.storage.middleware import Handler as Proceed
from perdure.storage.query import Query
from perdure.storage.rows import Put
from perdure.storage.store import Store
from perdure.storage.transaction import Transaction
from perdure.testing.manual_clock import ManualClock
from tests.conftest import BACKENDS
from tests.waiting import until

MakeRunner: TypeAlias = Callable[..., Runner]
Neighbour: TypeAlias = Callable[[], Awaitable[Store]]


class Worker:
    """A handler that remembers its jobs and fails as often as it is told to."""

    def __init__(self, failures: int = 0) -> None:
        self.jobs: list[Job] = []
        self.failures = failures

    async def __call__(self, job: Job) -> None:
        self.jobs.append(job)
        await asyncio.sleep(0)
        if len(self.jobs) <= self.failures:
            raise ValueError(f"attempt {len(self.jobs)}")

    @property
    def payloads(self) -> list[Any]:
        return [job.payload for job in self.jobs]


class Gate:
    """A handler that stays inside until it is opened."""

    def __init__(self) -> None:
        self.entered = 0
        self.inside = 0
        self.most = 0
        self.cancelled = 0
        self.open = asyncio.Event()

    async def __call__(self, job: Job) -> None:
        self.entered += 1
        self.inside += 1
        self.most = max(self.most, self.inside)
        try:
            await self.open.wait()
        except asyncio.CancelledError:
            self.cancelled += 1
            raise
        finally:
            self.inside -= 1


async def rows(store: Store) -> list[Job]:
    return await store.collection(Job).query().values()


# Enqueuing -------------------------------------------------------------------------------------


async def test_a_job_is_done_and_gone(runner: Runner, store: Store) -> None:
    worker = Worker()
    runner.register("greet", worker)
    await runner.start()
    id = await runner.enqueue(None, "greet", {"name": "ada", "n": [1, None]})
    await runner.settle()
    (job,) = worker.jobs
    assert (job.id, job.kind, job.attempts) == (id, "greet", 1)
    assert job.payload == {"name": "ada", "n": [1, None]}
    assert await rows(store) == []
    assert runner.counts == JobCounts(done=1)


@pytest.mark.parametrize("store_url", BACKENDS, indirect=True)  # procrastinate: as enqueued
async def test_jobs_wait_for_a_runner_and_are_begun_by_due_time(
    make_runner: MakeRunner, clock: ManualClock
) -> None:
    runner = make_runner(concurrency=1)
    for number, delay in enumerate([3, 1, 2, 0]):
        await runner.enqueue(None, "ab"[number % 2], number, delay=delay)
    clock.advance("3s")
    worker = Worker()
    runner.register("a", worker)
    runner.register("b", worker)
    await runner.start()
    await runner.settle()
    assert worker.payloads == [3, 1, 2, 0]


async def test_a_delayed_job_waits_for_its_time(runner: Runner, clock: ManualClock) -> None:
    worker = Worker()
    runner.register("later", worker)
    await runner.start()
    await runner.enqueue(None, "later", delay=60)
    await runner.settle()
    clock.advance("59s")
    await runner.settle()
    assert worker.jobs == []
    clock.advance("1s")
    await runner.settle()
    assert len(worker.jobs) == 1


async def test_a_job_in_a_transaction_exists_if_that_commits(runner: Runner, store: Store) -> None:
    worker = Worker()
    runner.register("greet", worker)
    await runner.start()

    async def fail(transaction: Transaction) -> None:
        await runner.enqueue(transaction, "greet", "never")
        raise RuntimeError

    with pytest.raises(RuntimeError):
        await store.transact(fail)
    async with store.transaction() as transaction:
        await runner.enqueue(transaction, "greet", "yes")
        await runner.settle()
        assert worker.jobs == []
    await runner.settle()
    assert worker.payloads == ["yes"]


async def test_a_committed_job_is_found_long_before_the_next_poll(
    make_runner: MakeRunner, store: Store
) -> None:
    worker = Worker()
    runner = make_runner(poll=60)
    runner.register("greet", worker)
    await runner.start()
    await asyncio.sleep(0.01)
    async with store.transaction() as transaction:
        await runner.enqueue(transaction, "greet")
        await asyncio.sleep(0.05)
    await until(lambda: worker.jobs)


async def test_a_key_waits_once_and_runs_again_if_enqueued_meanwhile(
    runner: Runner, store: Store
) -> None:
    gate, payloads = Gate(), list[Any]()

    async def handler(job: Job) -> None:
        payloads.append(job.payload)
        await gate(job)

    runner.register("index", handler)
    first = await runner.enqueue(None, "index", 1, key="session/7")
    assert await runner.enqueue(None, "index", 2, key="session/7") == first
    assert await runner.enqueue(None, "index", 3, key="session/8") != first
    assert await runner.enqueue(None, "other", 4, key="session/7") != first
    assert len(await rows(store)) == 3
    await runner.start()
    await until(lambda: gate.inside == 2)
    assert await runner.enqueue(None, "index", 5, key="session/7") == first
    assert await runner.enqueue(None, "index", 6, key="session/7") == first
    assert len(await rows(store)) == 3
    gate.open.set()
    await runner.settle()
    assert sorted(payloads) == [1, 3, 5]
    assert await runner.enqueue(None, "index", 7, key="session/7") == first
    await runner.settle()
    assert sorted(payloads) == [1, 3, 5, 7]


async def test_jobs_of_an_order_run_one_after_the_other(
    make_runner: MakeRunner, store: Store, neighbour: Neighbour, clock: ManualClock
) -> None:
    """Also if two processes work and one job is tried again, and beside jobs of other orders."""
    runners = [make_runner(), make_runner(await neighbour())]
    done, inside = list[tuple[str, int]](), Counter[str]()

    async def handler(job: Job) -> None:
        name, number = job.payload
        inside[name] += 1
        assert inside[name] == 1
        try:
            await asyncio.sleep(0.001)
            if number == 3 and job.attempts == 1:
                raise ValueError
        finally:
            inside[name] -= 1
        done.append((name, number))

    for number in range(40):
        await runners[0].enqueue(None, "work", ["a", number], order="agent/a")
    for number in range(6):
        await runners[0].enqueue(None, "work", ["b", number], order="agent/b")
    for runner in runners:
        runner.register("work", handler)
        await runner.start()
    async with asyncio.timeout(30):
        while len(done) < 46:
            clock.advance("1s")
            await asyncio.gather(*(runner.settle() for runner in runners))
    for name, count in (("a", 40), ("b", 6)):
        assert [number for each, number in done if each == name] == list(range(count))
    assert await rows(store) == []


async def test_many_enqueue_the_same_key_at_once(
    runner: Runner, store: Store, neighbour: Neighbour
) -> None:
    other = Runner(await neighbour())
    ids = await asyncio.gather(
        *(each.enqueue(None, "index", key="k") for each in (runner, other) for _ in range(10))
    )
    assert set(ids) == {"index/k"}
    assert len(await rows(store)) == 1


async def test_a_job_begun_in_between_makes_the_transaction_repeat(
    runner: Runner, store: Store
) -> None:
    """Else the enqueued work would be lost: the old job does not know what we are committing."""
    worker = Worker()
    runner.register("index", worker)
    await runner.enqueue(None, "index", "old", key="k")
    attempts = 0

    async def change(transaction: Transaction) -> None:
        nonlocal attempts
        attempts += 1
        await runner.enqueue(transaction, "index", "new", key="k")
        transaction.emit("changed")
        if attempts == 1:
            await runner.start()
            await until(lambda: worker.jobs)
            await runner.settle()

    await store.transact(change)
    await runner.settle()
    assert attempts == 2
    assert worker.payloads == ["old", "new"]


@pytest.mark.parametrize("kind", ["", "a/b", "x" * 600, "a\x00"])
async def test_kinds_that_cannot_be_kept_are_refused(runner: Runner, kind: str) -> None:
    with pytest.raises((InvalidInput, InvalidKey)):
        await runner.enqueue(None, kind)
    with pytest.raises((InvalidInput, InvalidKey)):
        runner.register(kind, Worker())


async def test_a_kind_has_one_handler(runner: Runner) -> None:
    runner.register("a", Worker())
    with pytest.raises(InvalidInput):
        runner.register("a", Worker())


async def test_jobs_of_unknown_kinds_are_left_alone(runner: Runner, store: Store) -> None:
    worker = Worker()
    runner.register("mine", worker)
    await runner.start()
    for number in range(10):
        await runner.enqueue(None, "foreign", number)
    await runner.enqueue(None, "mine")
    await runner.settle()
    assert len(worker.jobs) == 1
    assert {job.state for job in await rows(store)} == {JobState.PENDING}


# Concurrency -----------------------------------------------------------------------------------


async def test_no_more_run_at_once_than_allowed(make_runner: MakeRunner) -> None:
    gate = Gate()
    runner = make_runner(concurrency=3)
    runner.register("work", gate)
    await runner.start()
    for _ in range(8):
        await runner.enqueue(None, "work")
    await until(lambda: gate.inside == 3)
    await asyncio.sleep(0.03)
    assert gate.inside == 3
    gate.open.set()
    await runner.settle()
    assert (gate.entered, gate.most) == (8, 3)


async def test_two_runners_do_each_job_once(
    store: Store, make_runner: MakeRunner, neighbour: Neighbour
) -> None:
    done: Counter[int] = Counter()
    by: list[Counter[int]] = [Counter(), Counter()]
    runners = [make_runner(store), make_runner(await neighbour())]
    for place, runner in enumerate(runners):

        async def work(job: Job, place: int = place) -> None:
            await asyncio.sleep(0.001)
            done[job.payload] += 1
            by[place][job.payload] += 1

        runner.register("work", work)
    for number in range(60):
        await runners[0].enqueue(None, "work", number)
    for runner in runners:
        await runner.start()
    for runner in runners:
        await runner.settle()
    assert done == Counter(range(60))
    assert all(by), "both had something to do"
    assert sum(runner.counts.done for runner in runners) == 60


async def test_settle_waits_for_the_other_process(
    store: Store, make_runner: MakeRunner, neighbour: Neighbour
) -> None:
    gate = Gate()
    one, two = make_runner(store), make_runner(await neighbour())
    one.register("work", gate)
    two.register("work", Worker())
    await one.start()
    await one.enqueue(None, "work")
    await until(lambda: gate.inside)
    await two.start()
    settled = asyncio.create_task(two.settle())
    await asyncio.sleep(0.03)
    assert not settled.done()
    gate.open.set()
    await settled


@pytest.mark.parametrize("store_url", ["memory"], indirect=True)
async def test_settle_does_not_miss_a_job_between_two_states(
    store: Store, make_runner: MakeRunner, clock: ManualClock
) -> None:
    dice = random.Random(1)

    async def slow(call: Call, proceed: Proceed) -> Any:
        for _ in range(dice.randrange(8)):
            await asyncio.sleep(0)
        answer = await proceed(call)
        for _ in range(dice.randrange(8)):
            await asyncio.sleep(0)
        return answer

    worker = Worker()
    runner = make_runner(Store(store.adapter, middleware=[slow], clock=clock))
    runner.register("work", worker)
    await runner.start()
    for number in range(1, 201):
        await runner.enqueue(None, "work")
        await runner.settle()
        assert (len(worker.jobs), runner.counts.done) == (number, number)


async def test_settle_needs_a_runner_at_work(runner: Runner) -> None:
    with pytest.raises(InvalidInput):
        await runner.settle()


async def test_a_runner_is_started_once_at_a_time(runner: Runner) -> None:
    worker = Worker()
    runner.register("work", worker)
    await runner.start()
    with pytest.raises(InvalidInput):
        await runner.start()
    await runner.stop()
    await runner.stop()
    await runner.start()
    await runner.enqueue(None, "work")
    await runner.settle()
    assert len(worker.jobs) == 1


# Failing ---------------------------------------------------------------------------------------


async def test_a_failed_job_is_retried_with_growing_pauses(
    runner: Runner, store: Store, clock: ManualClock
) -> None:
    worker = Worker(failures=3)
    runner.register("work", worker)
    await runner.start()
    await runner.enqueue(None, "work")
    for attempt, seconds in enumerate((1, 2, 4), start=1):
        await runner.settle()
        (job,) = await rows(store)
        assert job.state is JobState.PENDING
        assert (job.attempts, job.error) == (attempt, f"ValueError: attempt {attempt}")
        assert job.due == clock() + seconds * SECOND
        clock.advance(seconds)
    await runner.settle()
    assert [job.attempts for job in worker.jobs] == [1, 2, 3, 4]
    assert runner.counts == JobCounts(done=1, retried=3)


async def test_a_kind_has_its_own_pause(runner: Runner, store: Store, clock: ManualClock) -> None:
    runner.register("work", Worker(failures=2), pause=120)
    await runner.start()
    await runner.enqueue(None, "work")
    for seconds in (120, 240):
        await runner.settle()
        (job,) = await rows(store)
        assert job.due == clock() + seconds * SECOND
        clock.advance(seconds)
    await runner.settle()
    assert await rows(store) == []


async def test_a_job_that_cannot_be_done_now_does_not_fail(
    runner: Runner, store: Store, clock: ManualClock
) -> None:
    tries = list[int]()

    async def handler(job: Job) -> None:
        tries.append(job.attempts)
        if len(tries) < 4:
            raise RetryLater(60, "no budget")

    runner.register("work", handler, retries=0)
    await runner.start()
    await runner.enqueue(None, "work")
    for _ in range(3):
        await runner.settle()
        (job,) = await rows(store)
        assert (job.state, job.attempts, job.error) == (JobState.PENDING, 0, "no budget")
        assert job.due == clock() + 60 * SECOND
        clock.advance(60)
    await runner.settle()
    assert tries == [1, 1, 1, 1]


async def test_what_is_enqueued_again_while_it_puts_itself_off_begins_at_once(
    runner: Runner, store: Store
) -> None:
    begun, told, tries = asyncio.Event(), asyncio.Event(), list[int]()

    async def handler(job: Job) -> None:
        tries.append(job.attempts)
        if len(tries) == 1:
            begun.set()
            await told.wait()
            raise RetryLater(60, "not yet")

    runner.register("look", handler, retries=0)
    await runner.start()
    await runner.enqueue(None, "look", key="batch/7")
    await begun.wait()
    await runner.enqueue(None, "look", key="batch/7")
    told.set()
    await runner.settle()
    assert tries == [1, 1]
    assert await rows(store) == []


async def test_what_is_enqueued_again_begins_at_the_earlier_time(
    runner: Runner, store: Store, clock: ManualClock
) -> None:
    for delay, due in ((60, 60), (90, 60), (10, 10), (20, 10)):
        await runner.enqueue(None, "index", key="session/7", delay=delay)
        (job,) = await rows(store)
        assert job.due == clock() + due * SECOND


async def test_jobs_of_a_kind_that_is_no_longer_registered_are_put_back(
    runner: Runner, store: Store
) -> None:
    gate = Gate()
    runner.register("work", gate)
    await runner.start()
    await runner.enqueue(None, "work")
    await until(lambda: gate.inside == 1)
    await runner.unregister("work")
    (job,) = await rows(store)
    assert (job.state, job.attempts) == (JobState.PENDING, 0)
    gate.open.set()
    runner.register("work", gate)
    await runner.settle()
    assert await rows(store) == []


async def test_a_job_is_given_up_kept_and_can_be_retried(
    runner: Runner, store: Store, clock: ManualClock, caplog: pytest.LogCaptureFixture
) -> None:
    worker = Worker(failures=2)
    runner.register("work", worker, retries=1)
    await runner.start()
    id = await runner.enqueue(None, "work", "payload")
    await runner.settle()
    clock.advance(1)
    await runner.settle()
    (job,) = await runner.failed()
    assert (job.id, job.error, job.attempts) == (id, "ValueError: attempt 2", 2)
    assert "gave up on job" in caplog.text
    clock.advance("1h")
    await runner.settle()
    assert len(worker.jobs) == 2
    await runner.retry(id)
    await runner.settle()
    assert worker.jobs[-1].attempts == 1
    assert await rows(store) == []
    assert runner.counts == JobCounts(done=1, retried=1, failed=1)
    with pytest.raises(InvalidInput):
        await runner.retry(id)


async def test_a_key_that_failed_can_be_enqueued_again(runner: Runner) -> None:
    worker = Worker(failures=1)
    runner.register("work", worker, retries=0)
    await runner.start()
    id = await runner.enqueue(None, "work", 1, key="k")
    await runner.settle()
    assert len(await runner.failed()) == 1
    assert await runner.enqueue(None, "work", 2, key="k") == id
    await runner.settle()
    assert worker.payloads == [1, 2]
    assert await runner.failed() == []


async def test_a_job_that_takes_too_long_has_failed(runner: Runner) -> None:
    gate = Gate()
    runner.register("work", gate, retries=0, timeout=0.02)
    await runner.start()
    await runner.enqueue(None, "work")
    await runner.settle()
    assert gate.cancelled == 1
    (job,) = await runner.failed()
    assert job.error.startswith("TimeoutError")


async def test_a_cancellation_inside_a_handler_is_a_failed_attempt(runner: Runner) -> None:
    async def cancel(job: Job) -> None:
        raise asyncio.CancelledError

    runner.register("work", cancel, retries=0)
    await runner.start()
    await runner.enqueue(None, "work")
    await runner.settle()
    (job,) = await runner.failed()
    assert job.error == "CancelledError"


@pytest.mark.parametrize("store_url", ["memory"], indirect=True)
async def test_the_runner_outlives_a_store_that_is_away(
    store: Store, clock: ManualClock, caplog: pytest.LogCaptureFixture
) -> None:
    away = False

    async def outage(call: Call, proceed: Proceed) -> Any:
        if away:
            raise Unavailable
        return await proceed(call)

    worker = Worker()
    runner = Runner(Store(store.adapter, middleware=[outage], clock=clock), poll=0.01)
    runner.register("work", worker)
    async with runner:
        await runner.enqueue(None, "work")
        await runner.settle()
        away = True
        await until(lambda: "cannot look for jobs" in caplog.text)
        away = False
        await runner.enqueue(None, "work")
        await runner.settle()
    assert len(worker.jobs) == 2


# Leases ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("store_url", BACKENDS, indirect=True)
async def test_a_job_of_a_dead_process_is_taken_over(
    store: Store, make_runner: MakeRunner, neighbour: Neighbour, clock: ManualClock
) -> None:
    gate, worker = Gate(), Worker()
    dead, alive = make_runner(store, concurrency=1), make_runner(await neighbour())
    dead.register("work", gate)
    alive.register("work", worker)
    await dead.start()
    await dead.enqueue(None, "work", 1)
    await until(lambda: gate.inside)
    await alive.start()
    clock.advance("29s")
    await asyncio.sleep(0.03)
    assert worker.jobs == []
    clock.advance("2s")
    await until(lambda: worker.jobs)
    assert worker.jobs[0].attempts == 2
    await alive.settle()
    gate.open.set()
    await until(lambda: dead.counts.lost == 1)
    assert (dead.counts.done, alive.counts.done) == (0, 1)


@pytest.mark.parametrize("store_url", BACKENDS, indirect=True)
async def test_a_lease_is_renewed_while_the_handler_runs(
    store: Store, make_runner: MakeRunner, neighbour: Neighbour, clock: ManualClock
) -> None:
    renewed: list[int] = []

    async def spy(call: Call, proceed: Proceed) -> Any:
        answer = await proceed(call)
        if isinstance(call, Commit) and isinstance(put := call.batch.writes[0], Put):
            renewed.append(msgspec.msgpack.decode(put.value)["until"])
        return answer

    gate, worker = Gate(), Worker()
    watched = Store(store.adapter, middleware=[spy], clock=clock)
    one, two = make_runner(watched, lease=0.06), make_runner(await neighbour())
    one.register("work", gate)
    two.register("work", worker)
    await one.start()
    await one.enqueue(None, "work")
    await until(lambda: gate.inside)
    await two.start()
    for _ in range(5):
        clock.tick(int(0.05 * SECOND))
        await until(lambda: renewed[-1:] == [clock() + int(0.06 * SECOND)])
    gate.open.set()
    await one.settle()
    assert worker.jobs == []
    assert one.counts == JobCounts(done=1)


@pytest.mark.parametrize("store_url", BACKENDS, indirect=True)
async def test_who_lost_the_lease_stops_working(
    store: Store, make_runner: MakeRunner, neighbour: Neighbour, clock: ManualClock
) -> None:
    gate, worker = Gate(), Worker()
    sleepy = make_runner(store, lease=0.3, concurrency=1)
    quick = make_runner(await neighbour(), lease=3_600)
    sleepy.register("work", gate)
    quick.register("work", worker)
    await sleepy.start()
    await sleepy.enqueue(None, "work")
    await until(lambda: gate.inside)
    await quick.start()
    await until(lambda: clock.advance(0.31) and worker.jobs)  # it may renew once more before
    await until(lambda: gate.cancelled)
    await until(lambda: sleepy.counts.lost)
    assert gate.entered == 1
    await quick.settle()
    assert await rows(store) == []


async def test_a_late_process_keeps_its_job_if_nobody_took_it(
    store: Store, runner: Runner, clock: ManualClock
) -> None:
    gate = Gate()
    runner.register("work", gate)
    await runner.start()
    await runner.enqueue(None, "work")
    await until(lambda: gate.inside)
    clock.advance("31s")
    await asyncio.sleep(0.03)
    assert [job.state for job in await rows(store)] == [JobState.RUNNING]
    gate.open.set()
    await runner.settle()
    assert runner.counts == JobCounts(done=1)


@pytest.mark.parametrize("store_url", BACKENDS, indirect=True)
async def test_a_job_taken_from_a_late_process_is_not_begun_there_beside_itself(
    store: Store, make_runner: MakeRunner, clock: ManualClock
) -> None:
    gate = Gate()
    late = make_runner(store, lease=0.3)
    late.register("work", gate)
    await late.start()
    await late.enqueue(None, "work")
    await until(lambda: gate.inside)
    (job,) = await rows(store)
    # As another process does, which then dies.
    await store.collection(Job).put(job.pending(clock()))
    await late.enqueue(None, "work")
    await until(lambda: gate.inside == 2)
    await until(lambda: gate.cancelled == 1)
    gate.open.set()
    await late.settle()
    assert (gate.entered, gate.most) == (3, 2)
    assert late.counts == JobCounts(done=2, lost=1)


async def test_a_job_that_kills_its_workers_is_given_up(
    store: Store, runner: Runner, clock: ManualClock
) -> None:
    worker = Worker()
    runner.register("work", worker, retries=2)
    await store.collection(Job).put(
        Job("work/1", "work", None, JobState.RUNNING, 0, attempts=3, owner="dead", until=clock())
    )
    await runner.start()
    await runner.settle()
    (job,) = await runner.failed()
    assert job.error == "the process that ran it ended"
    assert worker.jobs == []


@pytest.mark.parametrize("store_url", ["memory"], indirect=True)
async def test_a_job_whose_end_cannot_be_recorded_runs_again(
    store: Store, clock: ManualClock
) -> None:
    failing = False

    async def outage(call: Call, proceed: Proceed) -> Any:
        if failing and isinstance(call, Commit):
            raise Unavailable
        return await proceed(call)

    worker = Worker()

    async def work(job: Job) -> None:
        nonlocal failing
        failing = not worker.jobs
        await worker(job)

    runner = Runner(Store(store.adapter, middleware=[outage], clock=clock), poll=0.01)
    runner.register("work", work)
    async with runner:
        await runner.enqueue(None, "work")
        await until(lambda: failing and not runner._running)
        failing = False
        clock.advance("31s")
        await runner.settle()
    assert len(worker.jobs) == 2
    assert await rows(store) == []


# Stopping --------------------------------------------------------------------------------------


async def test_stop_lets_running_jobs_end_and_begins_no_more(
    make_runner: MakeRunner, store: Store
) -> None:
    gate = Gate()
    runner = make_runner(concurrency=2)
    runner.register("work", gate)
    await runner.start()
    for _ in range(5):
        await runner.enqueue(None, "work")
    await until(lambda: gate.inside == 2)
    stopping = asyncio.create_task(runner.stop(10))
    await asyncio.sleep(0.02)
    assert not stopping.done()
    gate.open.set()
    await stopping
    assert gate.entered == 2
    assert runner.counts == JobCounts(done=2)
    assert [job.state for job in await rows(store)] == [JobState.PENDING] * 3


async def test_after_the_grace_jobs_are_cancelled_and_put_back(
    runner: Runner, store: Store, clock: ManualClock
) -> None:
    gate = Gate()
    runner.register("work", gate)
    await runner.start()
    await runner.enqueue(None, "work")
    await until(lambda: gate.inside)
    await runner.stop(0.01)
    assert gate.cancelled == 1
    (job,) = await rows(store)
    assert (job.state, job.attempts, job.owner) == (JobState.PENDING, 0, "")
    assert job.due == clock()
    assert runner.counts == JobCounts(withdrawn=1)


async def test_a_handler_that_ignores_its_end_is_left_to_itself(
    runner: Runner, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("perdure.jobs.runner.CANCEL_PATIENCE", 0.02)
    gate, released = Gate(), asyncio.Event()

    async def stubborn(job: Job) -> None:
        try:
            await gate(job)
        except asyncio.CancelledError:
            await released.wait()

    runner.register("work", stubborn)
    await runner.start()
    await runner.enqueue(None, "work")
    await until(lambda: gate.inside)
    await runner.stop(0.01)
    (job,) = await rows(store)
    assert job.state is JobState.RUNNING, "nobody begins it while the lease lasts"
    released.set()
    await asyncio.sleep(0)


# The database ----------------------------------------------------------------------------------


@pytest.mark.parametrize("store_url", ["sqlite"], indirect=True)
async def test_looking_for_work_uses_the_partial_indexes(store_url: str) -> None:
    asked: list[Query] = []

    async def spy(call: Call, proceed: Proceed) -> Any:
        if isinstance(call, Find):
            asked.append(call.query)
        return await proceed(call)

    adapter = SQLiteAdapter(store_url)

    def plan(query: Query) -> tuple[str, ...]:
        text, params = _EMITTER.select(query, "f.path || r._name", None)
        lines = adapter._db.execute(f"EXPLAIN QUERY PLAN {text}", params)
        return tuple(line[3] for line in lines if " f " not in line[3])

    async with Store(adapter, middleware=[spy]) as store:
        runner = Runner(store, poll=0.01)
        runner.register("work", Worker())
        await runner.enqueue(None, "work")  # before the first look: what was never made is not read
        async with runner:
            await runner.settle()
        await runner.failed()
        plans = {plan(query) for query in asked}
    sort = "USE TEMP B-TREE FOR LAST TERM OF ORDER BY"  # by key, among jobs due at the same time
    assert plans == {
        ("SCAN r USING INDEX perdure_jobs__by_due_kind_state_pending", sort),
        ("SEARCH r USING INDEX perdure_jobs__by_until_kind_state_running (until<?)", sort),
        ("SCAN r USING INDEX perdure_jobs__by_due_state_failed", sort),
    }


async def test_an_idle_runner_hardly_asks(store: Store, clock: ManualClock) -> None:
    asked = 0

    async def spy(call: Call, proceed: Proceed) -> Any:
        nonlocal asked
        asked += 1
        return await proceed(call)

    runner = Runner(Store(store.adapter, middleware=[spy], clock=clock))
    for kind in "abc":
        runner.register(kind, Worker())
        await runner.enqueue(None, kind, delay=3_600)
    async with runner:
        await asyncio.sleep(0.1)
        assert asked <= 6 + 2 * 6, "six for enqueuing, and one or two looks"


_VICTIM = """
import asyncio, os, sys
from perdure.jobs import Runner
from perdure.storage.backends.sqlite import SQLiteAdapter
from perdure.storage.store import Store

async def main(url, log):
    out = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    async def handler(job):
        os.write(out, f"begin {job.payload}\\n".encode())
        await asyncio.sleep(0.005 if job.payload < 20 else 60)
        os.write(out, f"end {job.payload}\\n".encode())
    async with Store(SQLiteAdapter(url)) as store:
        runner = Runner(store, concurrency=4)
        runner.register("work", handler)
        await runner.start()
        await runner.settle()

asyncio.run(main(*sys.argv[1:]))
"""


def spawn(url: str, log: Path) -> subprocess.Popen[bytes]:
    return subprocess.Popen([sys.executable, "-c", _VICTIM, url, str(log)])


@pytest.mark.slow
@pytest.mark.parametrize("store_url", ["sqlite"], indirect=True)
async def test_kill_9_of_a_worker_loses_no_job(store_url: str, tmp_path: Path) -> None:
    async with Store(SQLiteAdapter(store_url)) as store:
        for number in range(30):
            await Runner(store).enqueue(None, "work", number)
    log = tmp_path / "log"
    child = spawn(store_url, log)
    # Twenty are quick; then four hang, and fill the worker.
    await until(lambda: log.exists() and log.read_text().count("begin") == 24)
    os.kill(child.pid, signal.SIGKILL)
    child.wait()
    lines = log.read_text().splitlines()
    ended = {int(line.split()[1]) for line in lines if line.startswith("end")}
    assert ended == set(range(20))
    worker = Worker()
    late = real_clock.now() + 31 * SECOND
    async with Store(SQLiteAdapter(store_url), clock=lambda: late) as store:
        runner = Runner(store, poll=0.01)
        runner.register("work", worker)
        async with runner:
            await runner.settle()
        assert await rows(store) == []
    assert sorted(worker.payloads) == list(range(20, 30))
    assert {job.payload for job in worker.jobs if job.attempts == 2} == set(range(20, 24))
