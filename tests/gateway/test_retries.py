from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

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
from perdure.gateway.fallback import Backoff, Deadline, pause

fractions = st.floats(0, 1, exclude_max=True)
policies = st.builds(
    Backoff,
    attempts=st.integers(1, 2_000),
    base=st.floats(0.001, 10),
    cap=st.floats(0.001, 100),
    patience=st.floats(0, 1_000),
)


@given(policies, st.integers(1, 2_000), fractions, st.floats(0, 1_000))
def test_a_pause_is_below_its_bound_and_before_the_deadline(
    policy: Backoff, attempt: int, fraction: float, remaining: float
) -> None:
    wait = pause(policy, attempt, ProviderDown(), remaining=remaining, random=lambda: fraction)
    if wait is None:
        assert attempt >= policy.attempts or remaining <= policy.cap
    else:
        assert attempt < policy.attempts
        assert 0 <= wait <= policy.cap
        assert wait <= policy.base * 2.0 ** min(attempt - 1, 100)
        assert wait < remaining


@given(policies, st.floats(0, 1_000), fractions, st.floats(0, 2_000))
def test_what_the_provider_asked_for_is_waited_out_or_not_waited_for(
    policy: Backoff, asked: float, fraction: float, remaining: float
) -> None:
    for error in (RateLimited(retry_after=asked), ProviderDown(retry_after=asked)):
        wait = pause(policy, 1, error, remaining=remaining, random=lambda: fraction)
        if wait is not None:
            assert asked <= wait <= asked + policy.base
            assert asked <= policy.patience
            assert wait < remaining


def test_the_bound_doubles_until_the_cap() -> None:
    policy = Backoff(attempts=10, base=0.5, cap=8.0)
    waits = [
        pause(policy, attempt, ProviderDown(), remaining=math.inf, random=lambda: 0.5)
        for attempt in range(1, 8)
    ]
    assert waits == [0.25, 0.5, 1.0, 2.0, 4.0, 4.0, 4.0]


@pytest.mark.parametrize(
    ("error", "again"),
    [
        (ProviderDown(), True),
        (RateLimited(), True),
        (BadAnswer(), True),
        (Rejected(), False),
        (Unauthorized(), False),
        (PromptTooLong(), False),
        (StreamBroken(), False),
        (BudgetReached(), False),
    ],
)
def test_only_what_may_pass_is_tried_again(error: GatewayError, again: bool) -> None:
    wait = pause(Backoff(), 1, error, remaining=math.inf, random=lambda: 0.5)
    assert (wait is not None) is again


def test_a_provider_that_asks_for_too_long_is_not_waited_for() -> None:
    policy = Backoff(patience=20)
    for asked, waits in ((20.0, True), (20.1, False)):
        error = RateLimited(retry_after=asked)
        wait = pause(policy, 1, error, remaining=math.inf, random=lambda: 0.0)
        assert (wait is not None) is waits


def test_a_pause_that_would_end_with_the_deadline_is_not_made() -> None:
    error = RateLimited(retry_after=2.0)
    assert pause(Backoff(), 1, error, remaining=2.0, random=lambda: 0.0) is None
    assert pause(Backoff(), 1, error, remaining=2.1, random=lambda: 0.0) == 2.0


def test_a_deadline_runs_down_and_stays_at_zero() -> None:
    now = 100.0
    deadline = Deadline(5, lambda: now)
    assert deadline.remaining() == 5
    now = 104.0
    assert (deadline.remaining(), deadline.passed) == (1, False)
    now = 105.0
    assert (deadline.remaining(), deadline.passed) == (0, True)
    now = 1_000.0
    assert deadline.remaining() == 0


def test_without_a_limit_there_is_no_end() -> None:
    deadline = Deadline(None)
    assert deadline.remaining() == math.inf
    assert not deadline.passed
