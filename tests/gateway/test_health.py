from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from perdure.gateway.breaker import State
from perdure.gateway.calls import CallOptions
from perdure.gateway.catalog import ModelCandidate
from perdure.gateway.model_selection import (
    CandidateStatus,
    HealthSelector,
    HealthView,
    ModelHealth,
    Selector,
)
from perdure.gateway.providers import Provider

NAME = "p/m"


class Time:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def time() -> Time:
    return Time()


@pytest.fixture
def health(time: Time) -> ModelHealth:
    return ModelHealth(half_life=100, clock=time)


def note(health: ModelHealth, outcomes: str) -> list[float]:
    """Preferences after each call: ``+`` for one that succeeded, ``-`` for one that did not."""
    preferences = []
    for outcome in outcomes:
        health.note("t", NAME, ok=outcome == "+")
        preferences.append(health.view("t", NAME).preference)
    return preferences


def test_without_data_all_is_well(health: ModelHealth) -> None:
    view = health.view("t", NAME)
    assert view == HealthView(preference=1, success=None, latency=None, calls=0)
    assert view.healthy


def test_preference_falls_with_failures_and_recovers_with_successes(health: ModelHealth) -> None:
    falling = note(health, "-----")
    assert all(after < before for before, after in pairwise([1.0, *falling]))
    assert not health.view("t", NAME).healthy
    rising = note(health, "+++++")
    assert all(after > before for before, after in pairwise([falling[-1], *rising]))
    note(health, "++++++++++")
    assert health.view("t", NAME).healthy


def test_preference_recovers_with_time(health: ModelHealth, time: Time) -> None:
    note(health, "-----")
    seen = []
    for _ in range(6):
        seen.append(health.view("t", NAME).preference)
        time.now += 100
    assert all(after > before for before, after in pairwise(seen))
    assert health.view("t", NAME).healthy
    time.now += 10_000
    assert health.view("t", NAME).preference == pytest.approx(1)
    assert health.view("t", NAME).success == 0  # what happened is still shown


def test_one_failure_among_many_successes_changes_little_and_five_much(health: ModelHealth) -> None:
    note(health, "+" * 50)
    assert note(health, "-") > [0.9]
    assert health.view("t", NAME).healthy
    note(health, "----")
    assert not health.view("t", NAME).healthy


def test_old_glory_does_not_hide_a_failure_of_today(health: ModelHealth, time: Time) -> None:
    note(health, "+" * 10_000)
    time.now += 500
    note(health, "--")
    assert not health.view("t", NAME).healthy


def test_latency_is_that_of_recent_successes(health: ModelHealth, time: Time) -> None:
    health.note("t", NAME, ok=True, latency=1.0)
    health.note("t", NAME, ok=False, latency=60.0)
    assert health.view("t", NAME).latency == pytest.approx(1.0)
    time.now += 100
    health.note("t", NAME, ok=True, latency=4.0)
    latency = health.view("t", NAME).latency
    assert latency is not None
    assert 2.5 < latency < 4.0  # nearer to the newer one


def test_kinds_of_work_and_models_are_told_apart(health: ModelHealth) -> None:
    health.note("review", NAME, ok=False)
    health.note("title", NAME, ok=True)
    assert health.view("review", NAME).success == 0
    assert health.view("title", NAME).success == 1
    assert health.view("review", "p/other").success is None
    assert list(health.views()) == [("review", NAME), ("title", NAME)]


def test_what_is_not_called_for_long_is_forgotten(health: ModelHealth) -> None:
    for number in range(4_095):
        health.note(f"task {number}", NAME, ok=False)
    health.note("task 0", NAME, ok=False)
    health.note("one", NAME, ok=False)
    health.note("more", NAME, ok=False)
    assert len(health.views()) == 4_096
    assert health.view("task 0", NAME).success == 0
    assert health.view("task 1", NAME).success is None


@given(st.lists(st.tuples(st.booleans(), st.floats(0, 1e6), st.floats(0, 100)), max_size=50))
def test_values_stay_in_their_bounds(calls: list[tuple[bool, float, float]]) -> None:
    time = Time()
    health = ModelHealth(clock=time)
    for ok, pause, latency in calls:
        time.now += pause
        health.note("t", NAME, ok=ok, latency=latency)
        view = health.view("t", NAME)
        assert 0 < view.preference <= 1
        assert view.success is not None
        assert -1e-9 <= view.success <= 1 + 1e-9
        assert 0 <= view.calls <= 10
        assert view.latency is None or -1e-9 <= view.latency <= 100 + 1e-6


# The order of candidates ------------------------------------------------------------------------

SICK = HealthView(preference=0.3)


def candidate(name: str) -> ModelCandidate:
    return ModelCandidate(Provider(name=name, base_url="http://127.0.0.1"), "m")


def order(names: str, **standings: CandidateStatus) -> str:
    selector: Selector = HealthSelector()
    known = {f"{name}/m": standing for name, standing in standings.items()}
    ordered = selector.order(CallOptions(), [candidate(name) for name in names], known)
    return "".join(each.provider.name for each in ordered)


def test_without_data_the_configured_order() -> None:
    assert order("cab") == "cab"
    assert order("") == ""
    assert order("cab", a=CandidateStatus(), b=CandidateStatus(), c=CandidateStatus()) == "cab"


def test_the_sick_go_behind_the_healthy_and_the_open_last() -> None:
    assert order("abc", a=CandidateStatus(health=SICK)) == "bca"
    assert order("abc", a=CandidateStatus(state="open")) == "bca"
    assert order("abc", a=CandidateStatus(state="open"), b=CandidateStatus(health=SICK)) == "cba"
    assert order("abcd", a=CandidateStatus(health=SICK), c=CandidateStatus(health=SICK)) == "bdac"


def test_one_that_would_keep_us_waiting_goes_behind() -> None:
    assert order("abc", a=CandidateStatus(paused=20)) == "bca"
    assert order("abc", a=CandidateStatus(paused=0.2)) == "abc"


def test_a_circuit_that_wants_a_probe_gets_it_when_its_turn_comes() -> None:
    assert order("ab", a=CandidateStatus(state="half_open")) == "ab"
    assert order("ab", a=CandidateStatus(state="half_open", health=SICK)) == "ba"


states: list[State] = ["closed", "open", "half_open"]


@given(
    st.permutations("abcde"),
    st.dictionaries(
        st.sampled_from("abcde"),
        st.builds(
            CandidateStatus,
            state=st.sampled_from(states),
            health=st.sampled_from([SICK, HealthView()]),
            paused=st.sampled_from([0.0, 30.0]),
        ),
    ),
)
def test_nobody_is_lost_and_equals_keep_their_order(
    names: list[str], standings: dict[str, CandidateStatus]
) -> None:
    ordered = order("".join(names), **standings)
    assert sorted(ordered) == sorted(names)
    for first, second in pairwise(ordered):
        if standings.get(first, CandidateStatus()) == standings.get(second, CandidateStatus()):
            assert names.index(first) < names.index(second)
