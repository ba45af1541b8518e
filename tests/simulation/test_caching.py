from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from perdure.core.errors import InvalidInput
from perdure.gateway.prices import DOLLAR, Prices
from perdure.simulation.prompt_cache import (
    RULES,
    CacheBlock,
    Charge,
    SimulatedCache,
    common_blocks,
    rules_for,
)
from tests.simulation.tiny import PLAIN


def blocks(*tokens: int, named: str = "abcdefgh") -> list[CacheBlock]:
    return [CacheBlock(name.encode(), count) for name, count in zip(named, tokens, strict=False)]


def test_what_two_requests_begin_with_is_read() -> None:
    cache = SimulatedCache(PLAIN, system=50)
    first = cache.send(blocks(10, 20))
    assert (first.charge, first.extends, first.tokens) == (Charge(0, 80, 0), True, 30)
    second = cache.send(blocks(10, 20, 30))
    assert (second.charge, second.extends, second.tokens) == (Charge(80, 30, 0), True, 60)
    other = cache.send(blocks(10, 20, 30, named="axc"))
    assert (other.charge, other.extends) == (Charge(60, 50, 0), False)
    shorter = cache.send(blocks(10, 20, named="ax"))
    assert (shorter.charge, shorter.extends) == (Charge(80, 0, 0), False)


def test_what_is_injected_is_neither_read_nor_written() -> None:
    cache = SimulatedCache(PLAIN)
    assert cache.send(blocks(10), behind=7).charge == Charge(0, 10, 7)
    assert cache.send(blocks(10, 20), behind=7).charge == Charge(10, 20, 7)


def test_a_short_beginning_is_not_cached() -> None:
    cache = SimulatedCache(RULES["anthropic"])
    assert cache.send(blocks(1_023)).charge == Charge(0, 0, 1_023)
    assert cache.send(blocks(1_023, 1)).charge == Charge(0, 1_024, 0)
    assert cache.send(blocks(1_023, 1, 10)).charge == Charge(1_024, 10, 0)
    assert cache.send(blocks(1_023, 9, named="ax")).charge == Charge(0, 1_032, 0)


def test_openai_reads_in_steps_and_takes_no_fee_for_writing() -> None:
    cache = SimulatedCache(RULES["openai"])
    assert cache.send(blocks(1_200)).charge == Charge(0, 0, 1_200)
    assert cache.send(blocks(1_200, 100)).charge == Charge(1_152, 0, 148)
    newer = SimulatedCache(RULES["openai-5.6"])
    assert newer.send(blocks(1_200)).charge == Charge(0, 1_200, 0)
    assert newer.send(blocks(1_200, 100)).charge == Charge(1_152, 148, 0)


@pytest.mark.parametrize(
    ("name", "units"),
    [("anthropic", 1_360), ("anthropic-1h", 2_110), ("openai", 1_110), ("openai-5.6", 1_360)],
)
def test_what_a_charge_costs(name: str, units: float) -> None:
    assert Charge(100, 1_000, 100).units(RULES[name]) == pytest.approx(units)


@pytest.mark.parametrize("rules", RULES.values(), ids=lambda rules: rules.name)
def test_dollars_agree_with_units(rules: object) -> None:
    """The multiples are those of the price list, for the model that stands for the others."""
    rules = rules_for(rules.name)  # type: ignore[attr-defined]
    price = Prices.load().find(rules.provider, rules.model)
    assert price is not None
    for charge in (Charge(0, 0, 1_000), Charge(1_000, 0, 0), Charge(0, 1_000, 0)):
        paid = Prices.load().cost(rules.provider, rules.model, charge.usage(rules))
        assert paid is not None
        assert paid == pytest.approx(charge.units(rules) * price.rates.input)
        assert paid < DOLLAR


def test_rules_that_are_none() -> None:
    with pytest.raises(InvalidInput, match="Use one of anthropic, "):
        rules_for("acme")


@given(st.lists(st.integers(0, 2), max_size=600), st.integers(0, 600), st.integers(0, 9))
def test_common_beginnings(keys: list[int], cut: int, more: int) -> None:
    first = [CacheBlock(b"%d" % key, 1) for key in keys]
    second = [*first[:cut], *(CacheBlock(b"new", 1) for _ in range(more))]
    assert common_blocks(first, second) == min(cut, len(first))
    assert common_blocks(second, first) == min(cut, len(first))
