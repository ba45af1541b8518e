from __future__ import annotations

import asyncio
import math
from typing import NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st

from perdure.core.errors import RateLimited
from perdure.gateway.calls import RateLimits
from perdure.gateway.rate_limits import Gate, GateView, read
from tests.gateway.loops import run

NOW = 1_700_000_000.0  # 2023-11-14T22:13:20Z


# Headers ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("headers", "limits"),
    [
        ({}, None),
        ({"content-type": "application/json"}, None),
        (
            {
                "x-ratelimit-limit-requests": "60",
                "x-ratelimit-remaining-requests": "59",
                "x-ratelimit-reset-requests": "1s",
                "x-ratelimit-limit-tokens": "150000",
                "x-ratelimit-remaining-tokens": "149984",
                "x-ratelimit-reset-tokens": "6m0s",
            },
            RateLimits(59, 1.0, 149_984, 360.0),
        ),
        (
            {"X-RateLimit-Remaining-Requests": "0", "X-RateLimit-Reset-Requests": "1m30.5s"},
            RateLimits(0, 90.5),
        ),
        (
            {"x-ratelimit-remaining-requests": "1", "x-ratelimit-reset-requests": "17ms"},
            RateLimits(1, 0.017),
        ),
        (
            {"x-ratelimit-remaining-tokens": "1", "x-ratelimit-reset-tokens": "1700000060"},
            RateLimits(None, None, 1, 60.0),
        ),
        (
            {"x-ratelimit-remaining-tokens": "1", "x-ratelimit-reset-tokens": "1700000060000"},
            RateLimits(None, None, 1, 60.0),
        ),
        (
            {"x-ratelimit-remaining-tokens": "1", "x-ratelimit-reset-tokens": "12"},
            RateLimits(None, None, 1, 12.0),
        ),
        (
            {
                "anthropic-ratelimit-requests-limit": "50",
                "anthropic-ratelimit-requests-remaining": "49",
                "anthropic-ratelimit-requests-reset": "2023-11-14T22:13:21Z",
                "anthropic-ratelimit-tokens-remaining": "8000",
                "anthropic-ratelimit-tokens-reset": "2023-11-14T22:14:20+00:00",
                "anthropic-ratelimit-input-tokens-remaining": "9000",
                "anthropic-ratelimit-input-tokens-reset": "2023-11-14T22:15:20Z",
            },
            RateLimits(49, 1.0, 8_000, 60.0),
        ),
        (
            {
                "anthropic-ratelimit-input-tokens-remaining": "9000",
                "anthropic-ratelimit-input-tokens-reset": "2023-11-14T22:15:20Z",
            },
            RateLimits(None, None, 9_000, 120.0),
        ),
        (
            {"x-ratelimit-remaining-requests": "5", "x-ratelimit-reset-requests": "soon"},
            RateLimits(5),
        ),
        ({"x-ratelimit-remaining-requests": "many"}, None),
        (
            {"x-ratelimit-remaining-requests": "-1", "x-ratelimit-reset-requests": "-1"},
            RateLimits(0, 0.0),
        ),
    ],
)
def test_headers_are_read(headers: dict[str, str], limits: RateLimits | None) -> None:
    assert read(headers, now=NOW) == limits


@given(
    st.dictionaries(
        st.sampled_from(
            [
                "x-ratelimit-remaining-requests",
                "x-ratelimit-reset-tokens",
                "anthropic-ratelimit-tokens-reset",
                "anthropic-ratelimit-",
                "x-ratelimit-",
            ]
        ),
        st.text(max_size=12) | st.sampled_from(["inf", "nan", "1e400", "0001-01-01T00:00:00Z"]),
    )
)
def test_no_header_is_too_strange(headers: dict[str, str]) -> None:
    limits = read(headers, now=NOW)
    if limits is not None:
        for seconds in (limits.requests_reset, limits.tokens_reset):
            assert seconds is None or (math.isfinite(seconds) and seconds >= 0)


# The gate ---------------------------------------------------------------------------------------


def make_gate(concurrency: int = 2) -> Gate:
    return Gate("p/m", concurrency=concurrency, clock=asyncio.get_running_loop().time)


def now() -> float:
    return asyncio.get_running_loop().time()


def test_so_many_at_a_time_in_the_order_of_arrival() -> None:
    async def main() -> None:
        gate = make_gate(2)
        entered: list[tuple[int, float]] = []
        start = now()

        async def call(number: int) -> None:
            async with gate.slot():
                entered.append((number, now() - start))
                await asyncio.sleep(1)

        await asyncio.gather(*(call(number) for number in range(6)))
        assert entered == [(0, 0), (1, 0), (2, 1), (3, 1), (4, 2), (5, 2)]
        assert gate.view() == GateView(active=0, waiting=0, paused=0, requests=None, tokens=None)

    run(main())


def test_the_one_whose_time_is_up_is_told_that_it_is_busy() -> None:
    async def main() -> None:
        gate = make_gate(1)
        async with gate.slot():
            start = now()
            with pytest.raises(RateLimited, match="busy") as caught:
                async with gate.slot(remaining=3):
                    pass
            assert now() - start == 3
            assert caught.value.retry_after is None
        async with gate.slot(remaining=0):  # free: no time is needed
            pass

    run(main())


def test_used_up_requests_are_waited_for() -> None:
    async def main() -> None:
        gate = make_gate(5)
        async with gate.slot() as slot:
            slot.observe(RateLimits(requests=1, requests_reset=60))
        start = now()
        async with gate.slot():
            pass  # the one that was left
        assert now() == start
        assert gate.view().requests == 0
        assert gate.view().paused == 60
        async with gate.slot():
            pass
        assert now() - start == pytest.approx(60)
        assert gate.view().requests is None

    run(main())


def test_calls_on_their_way_are_counted() -> None:
    async def main() -> None:
        gate = make_gate(5)
        async with gate.slot(tokens=400) as first, gate.slot(tokens=300) as second:
            first.observe(RateLimits(requests=2, requests_reset=9, tokens=1_000, tokens_reset=5))
            assert gate.view().requests == 1  # the second may not be in their count
            assert gate.view().tokens == 700
            second.observe(None)
            first.observe(RateLimits(requests=2, requests_reset=9, tokens=1_000, tokens_reset=5))
            assert gate.view().requests == 2
            assert gate.view().tokens == 1_000
            async with gate.slot(tokens=900):
                assert gate.view().tokens == 100
                with pytest.raises(RateLimited) as caught:
                    async with gate.slot(tokens=101, remaining=4):
                        pass
                assert caught.value.retry_after == 5
                async with gate.slot(tokens=100, remaining=0):
                    pass

    run(main())


def test_who_would_wait_beyond_its_deadline_is_told_at_once() -> None:
    async def main() -> None:
        gate = make_gate(5)
        gate.pause(30)
        gate.pause(10)  # does not shorten it
        start = now()
        with pytest.raises(RateLimited, match="p/m has no room") as caught:
            async with gate.slot(remaining=30):
                pass
        assert caught.value.retry_after == pytest.approx(30)
        assert now() == start
        async with gate.slot(remaining=31):
            assert now() - start == pytest.approx(30)

    run(main())


def test_a_pause_reaches_those_who_wait_already() -> None:
    async def main() -> None:
        gate = make_gate(1)
        start = now()
        told: list[tuple[float, float | None]] = []
        entered: list[float] = []

        async def call(remaining: float) -> None:
            try:
                async with gate.slot(remaining=remaining):
                    entered.append(now() - start)
            except RateLimited as exc:
                told.append((now() - start, exc.retry_after))

        async with gate.slot():
            patient = asyncio.create_task(call(120))
            hasty = asyncio.create_task(call(20))
            await asyncio.sleep(1)
            gate.pause(60)
            await hasty
        await patient
        ((moment, retry_after),) = told
        assert moment == 1
        assert retry_after == pytest.approx(60)
        assert entered == [pytest.approx(61)]

    run(main())


def test_a_new_count_opens_the_gate() -> None:
    async def main() -> None:
        gate = make_gate(5)
        async with gate.slot() as running:
            running.observe(RateLimits(requests=0, requests_reset=600))
            waiting = asyncio.create_task(gate.slot().__aenter__())
            await asyncio.sleep(5)
            assert not waiting.done()
            running.observe(RateLimits(requests=3, requests_reset=600))
            start = now()
            slot = await waiting
            assert now() == start
        await slot.__aexit__(None, None, None)

    run(main())


def test_a_count_without_a_reset_is_not_heeded() -> None:
    async def main() -> None:
        gate = make_gate(5)
        async with gate.slot() as slot:
            slot.observe(RateLimits(requests=0))
        async with gate.slot(remaining=0):
            pass

    run(main())


def test_an_estimate_above_every_limit_passes_after_the_reset() -> None:
    async def main() -> None:
        gate = make_gate(5)
        async with gate.slot() as slot:
            slot.observe(RateLimits(tokens=10_000, tokens_reset=60))
        start = now()
        async with gate.slot(tokens=1_000_000):  # the provider is to say no, not we
            assert now() - start == pytest.approx(60)

    run(main())


def test_a_caller_that_is_cancelled_leaves_nothing_behind() -> None:
    async def main() -> None:
        gate = make_gate(1)

        async def call(seconds: float) -> None:
            async with gate.slot(tokens=5):
                await asyncio.sleep(seconds)

        inside = asyncio.create_task(call(100))
        waiting = [asyncio.create_task(call(100)) for _ in range(3)]
        last = asyncio.create_task(call(0))
        await asyncio.sleep(1)
        waiting[1].cancel()
        # The next one is let in by the first one's end, and cancelled before it can notice.
        inside.cancel()
        await asyncio.sleep(0)
        waiting[0].cancel()
        waiting[2].cancel()
        await asyncio.gather(inside, *waiting, return_exceptions=True)
        await last
        assert gate.view() == GateView(0, 0, 0, None, None)
        assert (gate._unseen, gate._unseen_tokens) == (0, 0)

    run(main())


def test_nobody_overtakes_and_who_leaves_the_queue_makes_room() -> None:
    async def main() -> None:
        gate = make_gate(5)
        async with gate.slot() as slot:
            slot.observe(RateLimits(tokens=100, tokens_reset=600))
        start = now()
        entered: list[int] = []

        async def call(tokens: int) -> None:
            async with gate.slot(tokens=tokens):
                entered.append(tokens)

        large = asyncio.create_task(call(1_000))
        await asyncio.sleep(1)
        small = asyncio.create_task(call(10))
        await asyncio.sleep(1)
        assert entered == []  # there would be room for the small one, but it is not its turn
        large.cancel()
        await small
        assert entered == [10]
        assert now() - start == 2

    run(main())


class Caller(NamedTuple):
    arrives: int
    stays: int
    tokens: int
    remaining: float
    cancelled: int | None  # so many seconds after its arrival
    limits: RateLimits | None
    pause: int | None


callers = st.lists(
    st.builds(
        Caller,
        arrives=st.integers(0, 20),
        stays=st.integers(0, 10),
        tokens=st.integers(0, 50),
        remaining=st.sampled_from([0.0, 1.0, 5.0, 30.0, math.inf]),
        cancelled=st.none() | st.integers(0, 15),
        limits=st.none()
        | st.builds(
            RateLimits,
            requests=st.none() | st.integers(0, 5),
            requests_reset=st.none() | st.floats(0, 20),
            tokens=st.none() | st.integers(0, 100),
            tokens_reset=st.none() | st.floats(0, 20),
        ),
        pause=st.none() | st.integers(0, 10),
    ),
    max_size=25,
)


@pytest.mark.repeated
@given(callers, st.integers(1, 4))
def test_whatever_callers_do_the_gate_keeps_its_word(plans: list[Caller], concurrency: int) -> None:
    async def main() -> None:
        gate = make_gate(concurrency)
        start = now()
        inside = 0
        paused_until = paused_at = 0.0
        arrived: list[int] = []
        entered: dict[int, float] = {}

        async def call(number: int, plan: Caller) -> None:
            nonlocal inside, paused_at, paused_until
            arrived.append(number)
            began = now()
            try:
                async with gate.slot(tokens=plan.tokens, remaining=plan.remaining) as slot:
                    entered[number] = now()
                    inside += 1
                    try:
                        assert inside <= concurrency
                        # Somebody may have paused it between its being let in and its noticing.
                        assert now() >= paused_until or now() == paused_at
                        assert now() - began <= plan.remaining + 1e-6
                        await asyncio.sleep(plan.stays)
                        slot.observe(plan.limits)
                        if plan.pause is not None:
                            gate.pause(plan.pause)
                            paused_at = now()
                            paused_until = max(paused_until, now() + plan.pause)
                    finally:
                        inside -= 1
                return
            except RateLimited as exc:
                retry_after = exc.retry_after
            assert now() - began <= plan.remaining + 1e-6
            # Never told to come back at a moment until which it would have waited.
            assert retry_after is None or now() + retry_after >= began + plan.remaining - 1e-6

        async def live(number: int, plan: Caller) -> None:
            await asyncio.sleep(plan.arrives)
            task = asyncio.create_task(call(number, plan))
            if plan.cancelled is not None:
                asyncio.get_running_loop().call_later(plan.cancelled, task.cancel)
            await asyncio.wait([task])
            if not task.cancelled():
                task.result()

        async with asyncio.timeout(10_000):
            await asyncio.gather(*(live(number, plan) for number, plan in enumerate(plans)))
        moments = [entered[number] for number in arrived if number in entered]
        assert moments == sorted(moments)
        view = gate.view()
        assert (view.active, view.waiting) == (0, 0)
        assert (gate._unseen, gate._unseen_tokens) == (0, 0)
        assert now() - start < 1_000

    run(main())
