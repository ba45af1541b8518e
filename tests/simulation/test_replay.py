from __future__ import annotations

import msgspec
import pytest

from perdure.core.errors import BudgetTooSmall, InvalidInput
from perdure.gateway.prices import Prices
from perdure.simulation import RULES, History, SimulatedRequest, simulate
from perdure.simulation.policy_replay import Bill, replay
from perdure.simulation.prompt_cache import CacheBlock
from perdure.simulation.replay_input import ReplaySetting
from tests.simulation.tiny import BILL, PLAIN, call, calls, setting

OTHERS = ("unlimited", "drop_oldest", "drop_half", "rolling_summary", "masking")


class Liar:
    """Rewrites everything each time, and does not say so."""

    def __init__(self, setting: ReplaySetting) -> None:
        self._setting = setting

    async def request(self, number: int) -> SimulatedRequest:
        return SimulatedRequest(
            [CacheBlock(b"%d" % number, 100), *self._setting.calls[number].prompt]
        )

    async def close(self) -> None:
        pass


async def test_a_policy_that_rewrites_unannounced_is_found_out() -> None:
    given = setting(calls(5))
    found = await replay(Liar(given), given, BILL, system=50)
    assert (found.rewrites, found.prefix_violations) == (0, 4)
    assert found.cache_read == 4 * 50


async def test_injections_are_paid_in_full_and_count_in_the_budget() -> None:
    history = History(tuple(calls(5)))
    plain = await simulate(history, budget=500, policies=OTHERS, bill=BILL, system=50)
    injected = await simulate(
        history, budget=500, policies=OTHERS, bill=BILL, system=50, injection=30
    )
    for name in ("unlimited", "drop_half"):
        before, after = plain.policies[name], injected.policies[name]
        assert after.input_tokens == before.input_tokens + 5 * 30
        assert after.cache_read == before.cache_read
        assert after.cost == pytest.approx(before.cost + 5 * 30)
        assert after.max_tokens == before.max_tokens + 30
    tight = await simulate(history, budget=500, policies=OTHERS, bill=BILL, injection=470)
    for name in OTHERS[1:]:
        assert tight.policies[name].max_tokens <= 500
        assert tight.policies[name].rewrites


async def test_what_is_compared_is_said() -> None:
    found = await simulate(History(tuple(calls(3))), budget=500, policies=["unlimited"], system=9)
    assert (found.requests, found.turns, found.tokens) == (3, 3, 300)
    assert (found.budget, found.system, found.injection) == (500, 9, 0)
    assert (found.prices, found.model) == ("anthropic", RULES["anthropic"].model)


async def test_dollars() -> None:
    """Long prompts can be dearer as a whole, which units do not know."""
    history = History(tuple(call(number, reply=50_000) for number in range(8)))
    price = Prices.load().find("openai", "gpt-5.5")
    assert price is not None
    assert price.above == 272_000
    found = await simulate(
        history, budget=10**6, policies=["unlimited"], bill=Bill.of(RULES["openai"])
    )
    figures = found.policies["unlimited"]
    assert figures.dollars is not None
    assert figures.dollars > figures.cost * price.rates.input / 10**12
    cheap = Bill.of(RULES["openai"], "gpt-5-mini")
    few = History(history.calls[:3])
    found = await simulate(few, budget=10**6, policies=["unlimited"], bill=cheap)
    small = found.policies["unlimited"]
    assert small.dollars == pytest.approx(small.cost * 0.25e-6, rel=1e-3)


async def test_a_model_without_a_price() -> None:
    found = await simulate(History(tuple(calls(3))), budget=500, policies=["unlimited"], bill=BILL)
    assert found.policies["unlimited"].dollars is None
    with pytest.raises(InvalidInput, match="nobody has no model 'dear' with a known price"):
        Bill.of(PLAIN, "dear")


async def test_budgets_that_cannot_be_kept() -> None:
    history = History((call(0, prompt=900), call(1)))
    with pytest.raises(BudgetTooSmall, match="500 are needed"):
        await simulate(history, budget=499, policies=["unlimited"])
    with pytest.raises(BudgetTooSmall, match="950 are needed"):
        await simulate(history, budget=949, policies=["unlimited"], injection=50)
    found = await simulate(history, budget=950, policies=OTHERS, injection=50)
    assert found.requests == 2


async def test_a_policy_that_does_not_exist() -> None:
    with pytest.raises(InvalidInput, match="Use one of unlimited, drop_oldest"):
        await simulate(History(tuple(calls(1))), budget=500, policies=["hope"])


async def test_the_same_history_gives_the_same_figures() -> None:
    history = History(tuple(calls(40)))
    first = await simulate(history, budget=1_500, policies=OTHERS)
    second = await simulate(history, budget=1_500, policies=OTHERS)
    assert msgspec.json.encode(first) == msgspec.json.encode(second)


async def test_a_history_without_calls() -> None:
    found = await simulate(History(()), budget=500, policies=OTHERS)
    assert {each.input_tokens for each in found.policies.values()} == {0}
