"""Idle work: done when nobody writes, a little of it where writers never pause, never lost."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import TypeAlias

import msgspec
import pytest

from perdure.core.errors import InvalidInput, Unavailable
from perdure.jobs import GoOn, Runner, marks_of
from perdure.jobs.marks import PendingMark
from perdure.storage.store import Store
from perdure.storage.transaction import Transaction
from perdure.testing.manual_clock import ManualClock
from tests.waiting import until

MakeRunner: TypeAlias = Callable[..., Runner]

pytestmark = pytest.mark.parametrize("store_url", ["memory", "sqlite"], indirect=True)


class Pile:
    """Units of work, done one by one."""

    def __init__(self, runner: Runner, *, name: str = "pile", **options: float | str) -> None:
        self.left = self.done = self.calls = 0
        self.error: Exception | None = None
        self._runner = runner
        self.wake = runner.idle(name, self.work, **options)  # type: ignore[arg-type]

    def add(self, units: int) -> None:
        self.left += units
        self.wake()

    async def work(self, go_on: GoOn) -> bool:
        self.calls += 1
        if self.error is not None:
            raise self.error
        while self.left:
            self.left -= 1
            self.done += 1
            await self._runner.breathe()
            if not go_on():
                break
        return self.left > 0


async def test_work_holds_off_while_somebody_waits_for_a_read(runner: Runner) -> None:
    pile = Pile(runner)
    pile.add(100_000)
    await runner.start()
    await until(lambda: pile.done)
    runner._idle._quiet = 100.0  # so long a pause that no busy machine makes one by itself
    runner.hold_off()
    await until(lambda: runner._idle._task is None)
    assert pile.left
    runner._idle._quiet = 0.0
    await until(lambda: not pile.left)


async def test_work_waits_for_a_pause(runner: Runner) -> None:
    pile = Pile(runner)
    pile.add(3)
    await asyncio.sleep(0.08)
    assert pile.done == 0, "the runner is not started"
    await runner.start()
    for _ in range(10):
        with runner.writing():
            await asyncio.sleep(0.01)
        assert pile.done == 0
    await until(lambda: pile.done == 3)
    assert pile.calls == 1


async def test_who_writes_goes_first(runner: Runner) -> None:
    pile = Pile(runner)
    await runner.start()
    pile.add(1_000_000)
    await until(lambda: pile.done > 100)
    with runner.writing():
        await asyncio.sleep(0.01)
        done = pile.done
        await asyncio.sleep(0.02)
        assert pile.done <= done + 1
    await until(lambda: pile.done > done + 100)
    pile.left = 0


async def test_writers_that_never_pause_leave_it_a_moment(
    runner: Runner, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("perdure.jobs.idle._BETWEEN", 0.02)
    pile = Pile(runner, patience=0.1)
    other = Pile(runner, name="other", patience=0.1)
    await runner.start()
    pile.add(1_000_000)
    other.add(1_000_000)
    async with asyncio.timeout(30):
        while pile.calls < 3 or other.calls < 3:
            with runner.writing():
                await asyncio.sleep(0.001)
            await asyncio.sleep(0.001)
    assert pile.left
    assert other.left
    pile.left = other.left = 0


async def test_settling_does_all_of_it(runner: Runner) -> None:
    pile, other = Pile(runner), Pile(runner, name="other")
    pile.add(5)
    other.add(5)
    await runner.settle_idle("other")
    assert (pile.done, other.done) == (0, 5)
    await runner.settle_idle()
    assert pile.done == 5
    await runner.start()
    with runner.writing():
        pile.add(5)
        await runner.settle()
        assert pile.done == 10


async def test_work_that_fails_is_tried_again_and_keeps_nobody(
    runner: Runner, caplog: pytest.LogCaptureFixture
) -> None:
    pile, other = Pile(runner), Pile(runner, name="other")
    pile.error = Unavailable("gone")
    await runner.start()
    pile.add(1)
    other.add(1)
    await until(lambda: other.done == 1 and pile.calls == 3)
    with pytest.raises(Unavailable):
        await runner.settle()
    pile.error = None
    await until(lambda: pile.done == 1)
    assert "pile failed" in caplog.text


async def test_at_the_end_each_gets_what_it_asked_for(runner: Runner) -> None:
    whole = Pile(runner, name="whole", closing=60)
    little = Pile(runner, name="little", closing=0.005)
    none = Pile(runner, name="none")
    await runner.start()
    whole.add(1_000)
    little.add(100_000_000)
    none.add(1)
    begun = time.monotonic()
    await runner.stop()
    assert time.monotonic() - begun < 5
    assert (whole.left, none.done) == (0, 0)
    assert little.done
    assert little.left


@pytest.mark.parametrize("ends", [True, False])
async def test_work_that_does_not_end_does_not_keep_the_runner(
    runner: Runner, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, ends: bool
) -> None:
    monkeypatch.setattr("perdure.jobs.idle.CANCEL_PATIENCE", 0.02)
    begun, free = asyncio.Event(), asyncio.Event()

    async def work(_: GoOn) -> bool:
        begun.set()
        while not free.is_set():
            try:
                await free.wait()
            except asyncio.CancelledError:
                if ends:
                    raise
        return False

    wake = runner.idle("endless", work)
    await runner.start()
    wake()
    async with asyncio.timeout(10):
        await begun.wait()
        await runner.stop(0.02)
    assert ("does not end when cancelled" in caplog.text) is not ends
    free.set()


async def test_names_are_unique(runner: Runner) -> None:
    Pile(runner)
    with pytest.raises(InvalidInput):
        Pile(runner)


# Marks -----------------------------------------------------------------------------------------


async def leave(runner: Runner, store: Store, key: str, first: int) -> None:
    async with store.transaction() as transaction:
        await runner.mark(transaction, "turns", key, first)


async def test_a_mark_is_left_once_and_goes_when_all_is_done(
    runner: Runner, store: Store, clock: ManualClock
) -> None:
    one = Pile(runner, name="one", covers="turns")
    two = Pile(runner, name="two", covers="turns")
    with runner.writing():
        await leave(runner, store, "a/b", 7)
        one.add(1)
        two.add(1)
    await leave(runner, store, "a/b", 8)
    assert runner.pending("turns") == {"a/b": 7}
    (mark,) = await store.collection(PendingMark).query().execute()
    assert (mark.version, mark.value.first, mark.value.key) == (1, 7, "a/b")
    assert (mark.value.kind, mark.value.key) == ("turns", "a/b")
    await leave(runner, store, "a/b", 3)
    clock.advance("30s")
    await leave(runner, store, "a/b", 9)  # it is renewed: we are alive
    (mark,) = await store.collection(PendingMark).query().execute()
    assert (mark.version, mark.value.first) == (3, 3)
    await runner.settle_idle("one")
    assert len(await marks_of(store, "turns")) == 1, "the other one is not done"
    await runner.settle_idle()
    assert await marks_of(store, "turns") == []
    assert runner.pending("turns") == {}


async def test_a_mark_stays_while_somebody_writes(runner: Runner, store: Store) -> None:
    pile = Pile(runner, covers="turns")
    with runner.writing():
        await leave(runner, store, "a/b", 1)
        await runner.settle_idle()
        assert len(await marks_of(store, "turns")) == 1
        pile.add(1)
    await runner.settle_idle()
    assert await marks_of(store, "turns") == []


async def test_a_mark_that_did_not_commit_is_none(runner: Runner, store: Store) -> None:
    async def fail(transaction: Transaction) -> None:
        await runner.mark(transaction, "turns", "a/b", 1)
        raise RuntimeError

    with pytest.raises(RuntimeError):
        await store.transact(fail)
    assert runner.pending("turns") == {}
    assert await marks_of(store, "turns") == []


async def test_a_mark_that_is_overtaken_keeps_its_number(runner: Runner, store: Store) -> None:
    """The second is left before the first is known to be there, and written over it."""
    Pile(runner, covers="turns")
    async with store.transaction() as second, store.transaction() as first:
        await runner.mark(first, "turns", "a/b", 1)
        await runner.mark(second, "turns", "a/b", 4)
    (mark,) = await marks_of(store, "turns")
    assert mark.first == 1
    await runner.settle_idle()  # all is done, whatever was marked
    await leave(runner, store, "a/b", 7)
    assert runner.pending("turns") == {"a/b": 7}


async def test_what_others_marked_is_seen_and_adopted_when_they_are_dead(
    make_runner: MakeRunner, store: Store, clock: ManualClock
) -> None:
    dead, alive = make_runner(), make_runner()
    pile = Pile(alive, covers="turns")
    await leave(dead, store, "a/b", 3)
    await leave(alive, store, "a/b", 5)
    await leave(dead, store, "a/c", 1)
    assert {mark.key: mark.first for mark in await alive.marks("turns")} == {"a/b": 3, "a/c": 1}
    assert await alive.marks("other") == []
    (mark,) = await alive.marks("turns", "a/b")
    assert not await alive.adopt(mark)
    await alive.settle_idle()
    clock.advance("2m")
    for mark in await alive.marks("turns"):
        assert await alive.adopt(mark)
    pile.add(1)
    await alive.settle_idle()
    assert await marks_of(store, "turns") == []


async def test_a_mark_that_is_renewed_is_not_taken_away(
    make_runner: MakeRunner, store: Store, clock: ManualClock
) -> None:
    late, alive = make_runner(), make_runner()
    Pile(alive, covers="turns")
    await leave(late, store, "a/b", 3)
    clock.advance("2m")
    (mark,) = await alive.marks("turns")
    assert await alive.adopt(mark)
    await leave(late, store, "a/b", 4)
    await alive.settle_idle()
    (left,) = await marks_of(store, "turns")
    assert msgspec.structs.replace(left, time=0) == msgspec.structs.replace(mark, time=0)
