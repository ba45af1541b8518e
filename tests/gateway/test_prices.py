"""Prices: known exactly, or not at all."""

from __future__ import annotations

import math
from datetime import date
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from perdure.config import PriceConfig
from perdure.core.errors import InvalidConfig
from perdure.core.messages import Usage
from perdure.gateway.prices import DOLLAR, Prices, dollars, picodollars

PRICES = Prices.load()
CENT = DOLLAR // 100
#: $2 in, $8 out, $0.20 read, $2.50 written and $4 for an hour; the double above 1,000 tokens.
OWN: dict[str, Any] = {
    "input": "2",
    "output": "8",
    "cache_read": "0.2",
    "cache_write": "2.5",
    "cache_write_1h": "4",
}


def own(**more: Any) -> Prices:
    return Prices.load({"here/it": OWN | more})


def test_the_list_that_ships() -> None:
    assert PRICES.as_of >= date(2026, 8, 1)
    assert "litellm" in PRICES.source
    listed = PRICES._listed.models
    assert set(listed) == {"openai", "anthropic", "openrouter", "cloudflare", "huggingface"}
    assert 100 < sum(map(len, listed.values())) <= 250
    for models in listed.values():
        for name, price in models.items():
            rates = price.rates
            # No entry says that something is free, and none has slipped a decimal point.
            assert 0 < rates.input <= 200_000_000, name
            assert rates.output is None or 0 < rates.output <= 1_000_000_000, name
            assert rates.cache_read is None or rates.cache_read < rates.input, name
            assert rates.cache_write is None or rates.cache_write >= rates.input, name
            assert rates.cache_write_1h is None or rates.cache_write_1h == 2 * rates.input, name
            assert (price.long is None) == (price.above is None), name
            assert price.long is None or price.long.input >= rates.input, name
            assert price.window is None or price.window > 1_000, name


def test_a_call_is_computed_by_kind_of_token() -> None:
    usage = Usage(input=10_000, output=500, cache_read=8_000)
    # 2,000 at $1.25, 8,000 at $0.125 and 500 at $10 for a million.
    assert PRICES.cost("openai", "gpt-5", usage) == 8_500 * DOLLAR // 10**6
    usage = Usage(input=1_000, output=10, cache_read=300, cache_write=200)
    assert own().cost("here", "it", usage) == 10**6 * (500 * 2 + 10 * 8) + 300 * 200_000 + (
        200 * 2_500_000
    )


def test_what_is_cached_for_an_hour_costs_more() -> None:
    hour = {"cache_creation": {"ephemeral_1h_input_tokens": 60, "ephemeral_5m_input_tokens": 40}}
    usage = Usage(input=100, output=0, cache_write=100, native=hour)
    assert own().cost("here", "it", usage) == 60 * 4_000_000 + 40 * 2_500_000


def test_long_prompts_cost_more_as_a_whole() -> None:
    prices = own(above=1_000, long={"input": "4", "output": "16"})
    assert prices.cost("here", "it", Usage(input=1_000, output=1)) == 2_000_000_000 + 8_000_000
    assert prices.cost("here", "it", Usage(input=1_001, output=1)) == 4_004_000_000 + 16_000_000
    assert prices.estimate("here", "it", 1_001, 1) == 4_004_000_000 + 16_000_000
    # The rate for reading a cache is not known for these.
    assert prices.cost("here", "it", Usage(input=1_001, output=1, cache_read=1)) is None


def test_what_is_unknown_is_never_zero() -> None:
    usage = Usage(input=10, output=10)
    assert PRICES.cost("openai", "gpt-unheard-of", usage) is None
    assert PRICES.cost("nobody", "gpt-5", usage) is None
    assert PRICES.estimate("nobody", "gpt-5", 1, 1) is None
    assert PRICES.find("nobody", "gpt-5") is None
    assert PRICES.cost("openai", "gpt-5", Usage(input=10)) is None
    assert PRICES.cost("openai", "gpt-5", Usage(output=10)) is None
    assert PRICES.cost("openai", "gpt-5", Usage()) is None
    # A rate that is not listed, for tokens that were there.
    assert PRICES.cost("openai", "gpt-4", Usage(input=10, output=1, cache_read=5)) is None
    assert PRICES.cost("openai", "gpt-4", Usage(input=10, output=1, cache_read=0)) is not None


def test_embeddings_put_nothing_out() -> None:
    model = "text-embedding-3-small"
    assert PRICES.cost("openai", model, Usage(input=1_000_000)) == 2 * CENT
    assert PRICES.estimate("openai", model, 1_000_000, 0) == 2 * CENT
    assert PRICES.estimate("openai", model, 1_000_000, 512) == 2 * CENT


def test_ones_own_machines_are_free_and_that_is_known() -> None:
    for provider in ("local", "ollama", "vllm", "llamacpp"):
        assert PRICES.cost(provider, "anything:latest", Usage(input=10, output=10)) == 0
        assert PRICES.cost(provider, "anything", Usage()) == 0
        assert PRICES.estimate(provider, "anything", 10, 10) == 0


def test_names_are_exact_but_for_a_date() -> None:
    usage = Usage(input=1_000_000, output=0)
    plain = PRICES.cost("openai", "gpt-4o", usage)
    assert PRICES.cost("openai", "gpt-4o-2024-11-20", usage) == plain
    assert PRICES.cost("openai-chat", "gpt-4o", usage) == plain
    # One that is listed with its date has its own price.
    assert PRICES.cost("openai", "gpt-4o-2024-05-13", usage) == 2 * (plain or 0)
    assert PRICES.find("anthropic", "claude-haiku-4-5-20251001") == PRICES.find(
        "anthropic", "claude-haiku-4-5"
    )
    for near in ("gpt-4o-latest", "GPT-4o", "gpt-4o-20", "gpt-4o:free", "gpt", "gpt-4o-2024-13"):
        assert PRICES.find("openai", near) is None
    assert PRICES.find("openrouter", "gpt-4o") is None


def test_what_a_provider_says_it_charged_counts() -> None:
    usage = Usage(input=10, output=10, native={"cost": 0.00014})
    assert PRICES.cost("openrouter", "some/new-model", usage) == 140_000_000
    assert PRICES.cost("openrouter", "openai/gpt-5", usage) == 140_000_000
    listed = PRICES.cost("openai", "gpt-5", usage)
    assert listed == PRICES.cost("openai", "gpt-5", Usage(input=10, output=10))
    strange: object
    for strange in (None, "0.1", True, -1.0, math.inf, math.nan, []):
        usage = Usage(input=10, output=10, native={"cost": strange})
        assert PRICES.cost("openrouter", "some/new-model", usage) is None


def test_estimates_take_the_dearer_way_in() -> None:
    assert own().estimate("here", "it", 100, 10) == 100 * 2_500_000 + 10 * 8_000_000


# Overrides ----------------------------------------------------------------------------------------


def test_the_configuration_comes_first() -> None:
    prices = Prices.load({"openai/gpt-5": PriceConfig(input=1.0, output=2.0)})
    # A rate that is left out is as `input`.
    usage = Usage(input=100, output=10, cache_read=50, cache_write=20)
    assert prices.cost("openai", "gpt-5", usage) == 120_000_000
    assert prices.cost("openai", "gpt-5-2025-08-07", usage) == 120_000_000
    assert prices.cost("openai", "gpt-5-mini", Usage(input=1, output=1)) is not None
    assert PRICES.cost("openai", "gpt-5", Usage(input=100, output=10)) != 120_000_000
    cached = Prices.load({"a/b": PriceConfig(input=1.0, output=2.0, cache_read=0.1)})
    assert cached.cost("a", "b", Usage(input=100, output=0, cache_read=100)) == 10_000_000


def test_a_price_for_a_whole_provider_or_an_address() -> None:
    prices = Prices.load(
        {
            "mine/*": {"input": 0, "output": 0},
            "mine/dear": {"input": 5, "output": 5},
            "http://127.0.0.1:8080/v1#qwen/q3": {"input": "0.5", "output": "0.5"},
            "ollama/paid": {"input": 1, "output": 1},
        }
    )
    usage = Usage(input=1, output=1)
    assert prices.cost("mine", "anything", usage) == 0
    assert prices.cost("mine", "dear", usage) == 10_000_000
    assert prices.cost("http://127.0.0.1:8080/v1", "qwen/q3", usage) == 1_000_000
    assert prices.cost("ollama", "paid", usage) == 2_000_000
    assert prices.cost("ollama", "other", usage) == 0


@pytest.mark.parametrize(
    "wrong",
    [
        {"gpt-5": {"input": 1, "output": 1}},
        {"openai/": {"input": 1, "output": 1}},
        {"http://127.0.0.1/v1": {"input": 1, "output": 1}},
        {"a/b": {"output": 1}},
        {"a/b": {"input": 1, "output": 1, "cache_raed": 1}},
        {"a/b": {"input": -1, "output": 1}},
        {"a/b": {"input": "a lot", "output": 1}},
        {"a/b": {"input": math.nan, "output": 1}},
        {"a/b": {"input": math.inf, "output": 1}},
        {"a/b": {"input": "0.0000001", "output": 1}},
        {"a/b": {"input": [], "output": 1}},
    ],
)
def test_overrides_that_make_no_sense(wrong: dict[str, Any]) -> None:
    with pytest.raises(InvalidConfig) as caught:
        Prices.load(wrong)
    assert caught.value.hint


# Amounts ------------------------------------------------------------------------------------------


def test_amounts() -> None:
    assert picodollars("0.1") == picodollars(0.1) == DOLLAR // 10
    assert picodollars(3) == picodollars(3.0) == 3 * DOLLAR
    assert picodollars(1e-7) == 100_000
    assert dollars(0) == "$0.00"
    assert dollars(1) == "$0.000001"
    assert dollars(420_000_000) == "$0.000420"
    assert dollars(1_234_567 * CENT) == "$12,345.67"


@given(
    fresh=st.integers(0, 10**7),
    read=st.integers(0, 10**7),
    written=st.integers(0, 10**7),
    out=st.integers(0, 10**7),
)
def test_costs_are_exact_and_shares_add_up(fresh: int, read: int, written: int, out: int) -> None:
    usage = Usage(input=fresh + read + written, output=out, cache_read=read, cache_write=written)
    # In tenths of a dollar for a million tokens.
    tenths = fresh * 20 + read * 2 + written * 25 + out * 80
    assert own().cost("here", "it", usage) == tenths * 100_000
