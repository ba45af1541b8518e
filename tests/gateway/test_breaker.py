from __future__ import annotations

import asyncio
import random
from collections import deque
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from perdure.core.errors import (
    BadAnswer,
    BudgetReached,
    GatewayError,
    PromptTooLong,
    ProviderDown,
    RateLimited,
    Rejected,
    StreamBroken,
    Unauthorized,
)
from perdure.gateway.breaker import Breaker, BreakerPermit, BreakerPolicy, counts

DOWN = ProviderDown("down")


class Time:
    def __init__(self) -> None:
        self.now = 1_000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def time() -> Time:
    return Time()


def make(time: Time, fraction: float = 0.0, **tripping: Any) -> Breaker:
    return Breaker("p/m", BreakerPolicy(**tripping), clock=time, random=lambda: fraction)


def state(breaker: Breaker) -> str:
    return breaker.state


def fail(breaker: Breaker, times: int = 1, error: BaseException = DOWN) -> None:
    for _ in range(times):
        with pytest.raises(type(error)), breaker.attempt():
            raise error


def succeed(breaker: Breaker, times: int = 1) -> None:
    for _ in range(times):
        with breaker.attempt():
            pass


def refused(breaker: Breaker) -> ProviderDown:
    with pytest.raises(ProviderDown, match="p/m has failed") as caught:
        breaker.attempt()
    return caught.value


def test_failures_in_a_row_open_it(time: Time) -> None:
    breaker = make(time, failures=3)
    fail(breaker, 2)
    succeed(breaker)
    fail(breaker, 2)
    assert state(breaker) == "closed"
    fail(breaker)
    assert state(breaker) == "open"
    assert refused(breaker).retry_after == 5.0


def test_a_share_of_failures_opens_it(time: Time) -> None:
    breaker = make(time, failures=100, share=0.5, calls=10, window=60)
    for _ in range(4):
        succeed(breaker)
        fail(breaker)
        time.now += 1
    assert state(breaker) == "closed"  # too few calls to judge
    assert breaker.view().share == 0.5
    succeed(breaker)
    fail(breaker)
    assert state(breaker) == "open"


def test_what_is_older_than_the_window_does_not_count(time: Time) -> None:
    breaker = make(time, failures=100, share=0.5, calls=10, window=60)
    fail(breaker, 9)
    time.now += 61
    fail(breaker)
    assert state(breaker) == "closed"
    succeed(breaker, 9)
    assert breaker.view().share == 0.1


def test_one_probe_at_a_time_closes_it(time: Time) -> None:
    breaker = make(time, failures=1, rest=5)
    fail(breaker)
    time.now += 4.9
    assert refused(breaker).retry_after == pytest.approx(0.1)
    time.now += 0.1
    assert state(breaker) == "half_open"
    with breaker.attempt():
        assert refused(breaker).retry_after is None
    assert state(breaker) == "closed"
    succeed(breaker, 3)


def test_the_rest_grows_with_each_failed_probe_up_to_the_cap(time: Time) -> None:
    breaker = make(time, failures=1, rest=5, cap=30)
    fail(breaker)
    rests = []
    for _ in range(5):
        rest = breaker.view().next_probe
        assert rest is not None
        rests.append(rest)
        time.now += rest
        fail(breaker)
    assert rests == [5, 10, 20, 30, 30]


def test_an_opening_soon_after_it_closed_lasts_longer(time: Time) -> None:
    breaker = make(time, failures=1, rest=5, cap=30)
    fail(breaker)
    time.now += 5
    succeed(breaker)
    fail(breaker)
    assert breaker.view().next_probe == 10
    time.now += 10
    succeed(breaker)
    time.now += 30
    succeed(breaker)  # it has held
    fail(breaker)
    assert breaker.view().next_probe == 5


@given(st.floats(0, 1, exclude_max=True))
def test_jitter_shortens_by_a_half_at_most(fraction: float) -> None:
    breaker = make(Time(), fraction, failures=1, rest=8)
    fail(breaker)
    rest = breaker.view().next_probe
    assert rest is not None
    assert 4 <= rest <= 8


@pytest.mark.parametrize(
    ("error", "verdict"),
    [
        (ProviderDown(), True),
        (ProviderDown(retry_after=3), True),
        (BadAnswer(), True),
        (StreamBroken(), True),
        (RateLimited(), False),
        (RateLimited(retry_after=3), False),
        (Rejected(), False),
        (Unauthorized(), False),
        (PromptTooLong(), False),
        (BudgetReached(), None),
        (GatewayError(), None),
        (asyncio.CancelledError(), None),
        (KeyError(), None),
        (KeyboardInterrupt(), None),
    ],
)
def test_only_the_providers_failures_count(
    error: BaseException, verdict: bool | None, time: Time
) -> None:
    assert counts(error) is verdict
    breaker = make(time, failures=1)
    fail(breaker, 1, error)
    assert state(breaker) == ("open" if verdict else "closed")
    assert breaker.view().share == (1.0 if verdict else None)


def test_a_probe_that_says_nothing_makes_room_for_the_next(time: Time) -> None:
    breaker = make(time, failures=1)
    fail(breaker)
    time.now += 5
    fail(breaker, 3, asyncio.CancelledError())
    assert state(breaker) == "half_open"
    succeed(breaker)
    assert state(breaker) == "closed"


async def test_a_task_that_is_cancelled_while_it_probes_releases_the_probe(time: Time) -> None:
    breaker = make(time, failures=1)
    fail(breaker)
    time.now += 5

    async def probe() -> None:
        with breaker.attempt():
            await asyncio.sleep(3_600)

    task = asyncio.create_task(probe())
    await asyncio.sleep(0)
    refused(breaker)
    task.cancel()
    await asyncio.wait([task])
    succeed(breaker)


def test_a_refused_probe_shows_that_the_provider_is_there(time: Time) -> None:
    breaker = make(time, failures=1)
    fail(breaker)
    time.now += 5
    fail(breaker, 1, Rejected())
    assert state(breaker) == "closed"


def test_calls_from_before_do_not_change_what_came_after(time: Time) -> None:
    breaker = make(time, failures=1)
    early, late = breaker.attempt(), breaker.attempt()
    fail(breaker)
    early.end()  # a success that began before it opened
    assert state(breaker) == "open"
    time.now += 5
    succeed(breaker)
    late.end(DOWN)
    assert state(breaker) == "closed"


def test_the_first_word_about_an_end_counts(time: Time) -> None:
    breaker = make(time, failures=1)
    with breaker.attempt() as attempt:
        attempt.end(DOWN)
    assert state(breaker) == "open"
    attempt.end()
    assert state(breaker) == "open"


def test_how_it_stands_can_be_seen(time: Time) -> None:
    breaker = make(time, failures=2)
    time.now += 3
    view = breaker.view()
    assert (view.state, view.since, view.next_probe, view.failures) == ("closed", 3, None, 0)
    fail(breaker, 2)
    time.now += 1
    view = breaker.view()
    assert (view.state, view.since, view.next_probe, view.failures) == ("open", 1, 4, 2)
    assert view.share == 1.0
    time.now += 6
    view = breaker.view()
    assert (view.state, view.since, view.next_probe) == ("half_open", 2, None)


def test_memory_is_bounded(time: Time) -> None:
    breaker = make(time, failures=10**9, calls=10**9, window=60)
    for _ in range(5_000):
        time.now += 0.7
        succeed(breaker)
    assert len(breaker._window._counts) <= 11
    assert breaker.view().share == 0


class Machine(RuleBasedStateMachine):
    """Random calls that overlap, random time: what must hold, whatever happens."""

    def __init__(self) -> None:
        super().__init__()
        self.time = Time()
        self.dice = random.Random(7)
        self.tripping = BreakerPolicy(failures=3, calls=6, window=20, rest=4, cap=30)
        self.breaker = Breaker("p/m", self.tripping, clock=self.time, random=self.dice.random)
        self.running: deque[BreakerPermit] = deque()
        self.probes = 0

    @rule(seconds=st.floats(0, 40))
    def time_passes(self, seconds: float) -> None:
        self.time.now += seconds

    @rule()
    def begin(self) -> None:
        before = self.breaker.state
        try:
            attempt = self.breaker.attempt()
        except ProviderDown as exc:
            wait = exc.retry_after
            if before == "open":
                assert wait is not None
                assert 0 < wait <= self.tripping.cap
            else:
                assert before == "half_open"
                assert wait is None
                assert self.probes == 1
        else:
            assert before != "open"
            if before == "half_open":
                assert self.probes == 0
                self.probes = 1
                self.running.appendleft(attempt)
            else:
                self.running.append(attempt)

    @precondition(lambda self: self.running)
    @rule(
        which=st.integers(0, 50),
        error=st.sampled_from(
            [None, None, DOWN, BadAnswer(), Rejected(), asyncio.CancelledError(), RateLimited()]
        ),
    )
    def end(self, which: int, error: BaseException | None) -> None:
        index = which % len(self.running)
        attempt = self.running[index]
        del self.running[index]
        before = self.breaker.state
        is_probe = self.probes == 1 and index == 0
        attempt.end(error)
        after = self.breaker.state
        if is_probe:
            self.probes = 0
            verdict = error is not None and counts(error)
            assert after == {True: "open", False: "closed", None: "half_open"}[verdict]
        elif before != "closed":
            assert after == before
        elif after != before:
            assert after == "open"
            assert error is not None
            assert counts(error)

    @invariant()
    def a_probe_is_always_due_at_last(self) -> None:
        view = self.breaker.view()
        assert view.since >= 0
        if view.state == "open":
            assert view.next_probe is not None
            assert 0 < view.next_probe <= self.tripping.cap
        else:
            assert view.next_probe is None


TestWhateverHappens = pytest.mark.repeated(Machine.TestCase)
