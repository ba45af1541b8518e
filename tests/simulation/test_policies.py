"""Policies on small histories; every expected figure was worked out by hand.

A call takes 100 tokens: 10 for its prompt, 20 for the reply, 70 for what its tool says. System text
takes 50. Nothing is too short for the cache.
"""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from perdure.core.errors import BudgetTooSmall
from perdure.simulation.history_policies import POLICIES, UNMASKED
from perdure.simulation.policy_replay import PolicyFigures, replay
from perdure.simulation.prompt_cache import common_blocks
from perdure.simulation.replay_input import Call, SimulatedRequest
from tests.simulation.tiny import BILL, call, calls, setting

#: Ours needs words, not sizes: see test_gradient.py.
COMMON = [name for name in POLICIES if not name.startswith("gradient")]


async def run(name: str, history: list[Call], budget: int = 10**9) -> PolicyFigures:
    given = setting(history, budget)
    return await replay(POLICIES[name](given), given, BILL, system=50)


async def requests(name: str, history: list[Call], budget: int = 10**9) -> list[SimulatedRequest]:
    policy = POLICIES[name](setting(history, budget))
    return [await policy.request(number) for number in range(len(history))]


def keys(request: SimulatedRequest) -> list[str]:
    return [block.key.decode(errors="replace") for block in request.blocks]


async def test_a_request_shows_the_calls_before_it_and_its_own_prompt() -> None:
    first, second, third = await requests("unlimited", calls(3))
    assert keys(first) == ["prompt 0"]
    assert keys(second) == ["prompt 0", "reply 0", "result 0", "prompt 1"]
    assert keys(third)[3:] == ["prompt 1", "reply 1", "result 1", "prompt 2"]


async def test_unlimited() -> None:
    found = await run("unlimited", calls(4))
    assert list(found.sizes) == [10, 110, 210, 310]
    assert found.input_tokens == 60 + 160 + 260 + 360
    assert found.cache_read == 0 + 60 + 160 + 260
    assert found.cache_write == 60 + 100 + 100 + 100
    assert found.hit_ratio == pytest.approx(480 / 840, abs=1e-5)
    assert found.cost == pytest.approx(48 + 1.25 * 360)
    assert (found.rewrites, found.prefix_violations, found.max_tokens) == (0, 0, 310)
    assert (found.span, found.covered) == (1.0, 1.0)


async def test_drop_oldest() -> None:
    # Room for two calls and a prompt. From the fourth on, each request loses one at its beginning.
    found = await run("drop_oldest", calls(5), budget=250)
    assert list(found.sizes) == [10, 110, 210, 210, 210]
    assert found.cache_read == 0 + 60 + 160 + 50 + 50
    assert (found.rewrites, found.prefix_violations) == (2, 0)
    assert (found.span, found.covered) == (1.0, 0.5)


async def test_drop_half() -> None:
    # The fourth request has 310 tokens: 125 may stay, which is one call.
    found = await run("drop_half", calls(6), budget=250)
    assert list(found.sizes) == [10, 110, 210, 110, 210, 110]
    assert found.cache_read == 0 + 60 + 160 + 50 + 160 + 50
    assert (found.rewrites, found.prefix_violations) == (2, 0)


async def test_rolling_summary() -> None:
    # The eleventh request has 1,010 tokens: a summary of 250, and three calls in 35 % of 1,000.
    found = await run("rolling_summary", calls(12), budget=1_000)
    assert list(found.sizes)[9:] == [910, 250 + 310, 250 + 410]
    last_read = 50 + 250 + 310
    assert (found.rewrites, found.prefix_violations) == (1, 0)
    assert found.cache_read == sum(60 + 100 * n for n in range(9)) + 50 + last_read
    # 1,100 tokens of history in a summary and four calls.
    assert found.span == pytest.approx(1_100 / 650, abs=1e-3)
    assert found.covered == 1.0


async def test_a_new_summary_is_new_to_the_cache() -> None:
    found = await requests("rolling_summary", calls(30), budget=1_000)
    summaries = {each.blocks[0].key for each in found if each.covered > each.history}
    assert len(summaries) == sum(each.rewritten for each in found) > 1


async def test_masking() -> None:
    found = await requests("masking", calls(13))
    assert keys(found[UNMASKED]) == keys((await requests("unlimited", calls(13)))[UNMASKED])
    assert keys(found[11])[:6] == ["prompt 0", "reply 0", "masked 0", *keys(found[11])[3:6]]
    assert [each.rewritten for each in found] == [False] * 11 + [True] * 2
    # The place that is rewritten moves: what was masked before stays as it is.
    assert common_blocks(found[10].blocks, found[11].blocks) == 2
    assert common_blocks(found[11].blocks, found[12].blocks) == 5
    figures = await run("masking", calls(13))
    grown = sum(60 + 100 * n for n in range(10))
    assert figures.cache_read == grown + (50 + 30) + (50 + 35 + 30)
    assert figures.max_tokens == 35 + 10 * 100 + 10 + 35
    assert figures.span == pytest.approx(1_200 / (2 * 35 + 1_000), abs=1e-3)


async def test_masking_drops_when_it_is_not_enough() -> None:
    found = await run("masking", calls(40), budget=1_500)
    assert found.max_tokens <= 1_500
    assert found.covered < 1.0
    assert found.prefix_violations == 0


@pytest.mark.parametrize("name", [name for name in COMMON if name != "unlimited"])
async def test_a_call_that_does_not_fit_is_cut_and_not_dropped(name: str) -> None:
    history = [call(0), call(1, result=5_000), call(2), call(3)]
    found = await requests(name, history, budget=800)
    assert "reply 1" in keys(found[2])
    assert sum(block.tokens for block in found[2].blocks) <= 800
    assert found[2].rewritten


@pytest.mark.parametrize("name", [name for name in COMMON if name != "unlimited"])
async def test_a_prompt_that_does_not_fit(name: str) -> None:
    with pytest.raises(BudgetTooSmall):
        await requests(name, [call(0), call(1, prompt=900)], budget=800)


@st.composite
def histories(draw: st.DrawFn) -> list[Call]:
    size = st.integers(0, 300) | st.integers(0, 6_000)
    given = draw(st.lists(st.tuples(st.integers(0, 500), size, size), min_size=1, max_size=60))
    return [call(number, *each, masked=min(each[2], 9)) for number, each in enumerate(given)]


@pytest.mark.parametrize("name", COMMON)
@given(history=histories(), budget=st.integers(500, 20_000))
async def test_any_history_in_any_budget(name: str, history: list[Call], budget: int) -> None:
    found = await run(name, history, budget)
    assert found.prefix_violations == 0
    assert 0 <= found.cache_read <= found.input_tokens
    assert found.cache_read + found.cache_write == found.input_tokens
    assert 0 <= found.covered <= 1
    if name == "unlimited":
        assert found.rewrites == 0
    else:
        assert found.max_tokens <= budget
    for number, request in enumerate(await requests(name, history, budget)):
        own = history[number].prompt
        assert tuple(request.blocks[len(request.blocks) - len(own) :]) == own
        sizes = sum(block.tokens for block in request.blocks)
        assert sizes == request.history + history[number].prompt_tokens
