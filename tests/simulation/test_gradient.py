"""The gradient as a policy: the product's planner and renditions on words, not only sizes."""

from __future__ import annotations

import random
from collections.abc import Sequence

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from perdure.core.messages import Message, Text, ToolCall, ToolResult, assistant, user
from perdure.core.turns import Position
from perdure.simulation import History, simulate
from perdure.simulation.gradient_policy import GradientPolicy
from perdure.simulation.policy_replay import PolicyFigures
from perdure.simulation.replay_input import ReplaySetting, SimulatedRequest

WORDS = ("the", "parser", "fails", "on", "line", "12", "of", "src/engine/lexer.py", "because", "it")


def words(count: int, seed: int) -> str:
    dice = random.Random(seed)
    return " ".join(dice.choice(WORDS) for _ in range(count))


def history(turns: Sequence[Sequence[tuple[int, int]]]) -> History:
    """For each turn its rounds: words that the model said, words that its tool answered."""
    rounds = list[tuple[Position, list[Message]]]()
    for turn, sizes in enumerate(turns, start=1):
        for number, (said, answered) in enumerate(sizes, start=1):
            messages = [user(f"Step {turn}: {words(20, turn)}")] if number == 1 else []
            if answered:
                id = f"c{turn}.{number}"
                call = ToolCall(id, "shell", '{"command": "cat lexer.py"}')
                seed = turn * 1_000 + number
                messages += [
                    Message("assistant", (Text(words(said, seed)), call)),
                    Message("tool", (ToolResult(id, (Text(words(answered, seed + 1)),)),)),
                ]
            else:
                messages.append(assistant(words(said, turn)))
            rounds.append((Position(turn, number), messages))
    return History.of(rounds)


async def requests(given: History, budget: int) -> list[SimulatedRequest]:
    policy = GradientPolicy(ReplaySetting(calls=given.calls, budget=budget))
    try:
        return [await policy.request(number) for number in range(len(given.calls))]
    finally:
        await policy.close()


async def run(given: History, budget: int, name: str = "gradient") -> PolicyFigures:
    return (await simulate(given, budget=budget, policies=[name])).policies[name]


LONG = history([[(30, 200), (30, 300), (40, 0)]] * 40)


async def test_nothing_is_rewritten_while_all_fits() -> None:
    raw, ours = await run(LONG, 10**6, "unlimited"), await run(LONG, 10**6)
    assert (ours.rewrites, ours.prefix_violations) == (0, 0)
    assert ours.span == pytest.approx(1, abs=0.1)  # turns have tags, and a reminder
    assert ours.cache_write <= raw.cache_write * 1.1


async def test_a_long_history_stays_within_its_budget_and_nothing_is_lost() -> None:
    found = await run(LONG, 6_000)
    assert LONG.tokens > 20_000
    assert found.max_tokens <= 6_000
    assert found.prefix_violations == 0
    assert found.covered == 1.0
    assert found.span > 3
    assert 0 < found.rewrites < 60  # of 120 requests
    assert found.fill_mean is not None
    assert found.fill_mean >= 0.75


async def test_it_costs_less_than_dropping_the_oldest() -> None:
    assert (await run(LONG, 6_000)).cost < (await run(LONG, 6_000, "drop_oldest")).cost


async def test_a_turn_that_outgrows_the_window_keeps_its_prompt() -> None:
    given = history([[(20, 0)], [(30, 400)] * 40])
    found = await requests(given, 4_000)
    assert sum(each.rewritten for each in found) > 1
    prompt = found[1].blocks[-1]
    for request in found[1:]:
        assert prompt in request.blocks
        assert sum(block.tokens for block in request.blocks) <= 4_000


async def test_what_stood_by_itself_goes_when_its_turn_has_ended() -> None:
    given = history([[(30, 400)] * 40, *([[(30, 400), (20, 0)]] * 20)])
    found = await requests(given, 4_000)
    prompt = found[0].blocks[-1]
    assert prompt in found[39].blocks
    assert prompt not in found[-1].blocks
    assert max(sum(block.tokens for block in each.blocks) for each in found) <= 4_000


async def test_a_round_that_does_not_fit_is_reduced() -> None:
    given = history([[(20, 0)], [(20, 9_000), (20, 0)], [(20, 0)]])
    found = await run(given, 2_000)
    assert found.max_tokens <= 2_000
    assert found.prefix_violations == 0


async def test_the_same_bytes_every_time() -> None:
    assert await requests(LONG, 5_000) == await requests(LONG, 5_000)


sizes = st.tuples(st.integers(1, 60), st.integers(0, 40) | st.integers(0, 900))


# Each example is a bank of its own.
@settings(max_examples=settings().max_examples // 6)
@given(
    turns=st.lists(st.lists(sizes, min_size=1, max_size=12), min_size=1, max_size=12),
    budget=st.integers(500, 6_000),
)
# The first round of a turn under way is reduced, and the prompt in it is not.
@example(turns=[[(15, 689), (29, 0), (39, 24)]], budget=873)
async def test_any_history_in_any_budget(turns: list[list[tuple[int, int]]], budget: int) -> None:
    given = history(turns)
    found = await run(given, budget)
    assert found.prefix_violations == 0
    assert found.cache_read <= found.input_tokens
    assert 0 <= found.covered <= 1
    assert found.max_tokens <= budget
