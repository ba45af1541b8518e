"""Budgets: nothing is spent that was not reserved, and everything that was is counted."""

from __future__ import annotations

import asyncio
import os
import random
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from perdure.config import BudgetConfig
from perdure.core.clock import from_datetime
from perdure.core.errors import BudgetReached, InvalidConfig, Unavailable
from perdure.gateway.budgets import Budget, BudgetPeriod, Reservation
from perdure.gateway.calls import CallOptions
from perdure.gateway.ledger import Ledger
from perdure.storage.middleware import Call, Commit, Handler
from perdure.storage.registry import adapter_for
from perdure.storage.store import Store
from perdure.testing import ManualClock
from tests.conftest import DURABLE, MakeStore
from tests.gateway.spender import ALLOWED, BUDGETS, TOKENS

ROOT = Path(__file__).parents[2]
DOLLAR = 10**12
NOON = datetime(2026, 8, 9, 12, 30, tzinfo=UTC)
PROCESSES = 8
KILLS = 4


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock(NOON)


def ask(agent: str = "coder", **details: Any) -> CallOptions:
    return CallOptions(agent=agent, **details)


async def pots(store: Store) -> dict[str, tuple[int, ...]]:
    """What lies in the database: settled and held, as calls, tokens and picodollars."""
    return {
        pot.id: (pot.calls, pot.tokens, pot.cost, pot.held, pot.held_tokens, pot.held_cost)
        for pot in await store.collection(BudgetPeriod).query().values()
    }


# One after another ------------------------------------------------------------------------------


async def test_reserved_then_settled(store: Store, clock: ManualClock) -> None:
    ledger = Ledger(store, [Budget(name="daily", tokens=1_000, cost=DOLLAR)], clock)
    held = await ledger.reserve(ask(), 600, DOLLAR // 2)
    assert await pots(store) == {"daily/2026-08-09": (0, 0, 0, 1, 600, DOLLAR // 2)}
    await ledger.settle(held, 150, DOLLAR // 10)
    assert await pots(store) == {"daily/2026-08-09": (1, 150, DOLLAR // 10, 0, 0, 0)}
    await ledger.settle(held, 150, DOLLAR // 10)
    assert await pots(store) == {"daily/2026-08-09": (1, 150, DOLLAR // 10, 0, 0, 0)}
    (standing,) = await ledger.status()
    assert (standing.tokens_left, standing.cost_left) == (850, DOLLAR * 9 // 10)
    assert standing.renews == from_datetime(datetime(2026, 8, 10, tzinfo=UTC))


async def test_reaching_one(store: Store, clock: ManualClock) -> None:
    ledger = Ledger(store, [Budget(name="daily", tokens=1_000)], clock)
    held = await ledger.reserve(ask(), 900, None)
    with pytest.raises(BudgetReached) as caught:
        await ledger.reserve(ask(), 101, None)
    assert caught.value.message == (
        "The budget 'daily' does not allow the call, which may take 101 tokens:"
        " 100 of 1,000 tokens are left, besides what 1 call reserved."
    )
    assert caught.value.hint == "It renews at 2026-08-10 00:00 UTC; or raise it."
    with pytest.raises(BudgetReached) as caught:
        await ledger.reserve(ask(), 8_200, None, assumed=8_192)
    assert caught.value.hint == (
        "Set max_tokens: without it, an answer of 8,192 tokens was assumed."
        " It renews at 2026-08-10 00:00 UTC; or raise it."
    )
    with pytest.raises(BudgetReached) as caught:  # what is sent alone is too much
        await ledger.reserve(ask(), 8_300, None, assumed=8_192)
    assert "max_tokens" not in caught.value.hint
    assert caught.value.kind == "budget"
    await ledger.reserve(ask(), 100, None)  # to the last token
    with pytest.raises(BudgetReached):
        await ledger.reserve(ask(), 1, None)
    await ledger.settle(held, 0, None)
    await ledger.reserve(ask(), 900, None)


async def test_reaching_one_of_money(store: Store, clock: ManualClock) -> None:
    budgets = [Budget(name="money", per="ever", agent="*", cost=DOLLAR // 100)]
    ledger = Ledger(store, budgets, clock)
    await ledger.settle(await ledger.reserve(ask(), 10, DOLLAR // 200), 10, DOLLAR // 250)
    with pytest.raises(BudgetReached) as caught:
        await ledger.reserve(ask(), 10, DOLLAR // 100)
    assert caught.value.message == (
        "The budget 'money' of 'coder' does not allow the call, which may take 10 tokens and"
        " $0.010000: $0.006000 of $0.010000 are left."
    )
    assert caught.value.hint == "It does not renew: raise it to go on."


async def test_an_answer_larger_than_reserved_counts_in_full(
    store: Store, clock: ManualClock
) -> None:
    ledger = Ledger(store, [Budget(name="daily", tokens=1_000)], clock)
    await ledger.settle(await ledger.reserve(ask(), 10, None), 1_500, None)
    with pytest.raises(BudgetReached, match="0 of 1,000 tokens"):
        await ledger.reserve(ask(), 1, None)


async def test_a_cost_that_nobody_knows(store: Store, clock: ManualClock) -> None:
    ledger = Ledger(
        store,
        [Budget(name="tokens", tokens=1_000), Budget(name="chat", purpose="chat", cost=DOLLAR)],
        clock,
    )
    with pytest.raises(BudgetReached) as caught:
        await ledger.reserve(ask(), 10, None, model="here/it")
    assert caught.value.message == (
        "The price of here/it is unknown, so the budget 'chat', which limits money, cannot be kept."
    )
    assert await pots(store) == {}
    await ledger.reserve(ask(purpose="judge"), 10, None)  # money is not limited there
    # Unknown only afterwards: what was reserved is taken for it.
    held = await ledger.reserve(ask(), 10, 700)
    await ledger.settle(held, 5, None)
    assert (await pots(store))["chat/2026-08-09"] == (1, 5, 700, 0, 0, 0)


async def test_budgets_cover_what_they_name(store: Store, clock: ManualClock) -> None:
    budgets = [
        Budget(name="all", tokens=10**6),
        Budget(name="judging", purpose="judge", tokens=10**6),
        Budget(name="coder", agent="coder", tokens=10**6),
        Budget(name="each", agent="*", per="month", tokens=10**6),
        Budget(name="hourly", per="hour", tokens=10**6),
        Budget(name="ever", per="ever", tokens=10**6),
    ]
    ledger = Ledger(store, budgets, clock)
    for agent, purpose, tokens in (("coder", "chat", 1), ("planner", "judge", 10), ("", "chat", 9)):
        asked = ask(agent, purpose=purpose)
        await ledger.settle(await ledger.reserve(asked, 50, 0), tokens, 0)
    standings = await ledger.status()
    assert [
        (each.budget.name, each.agent, each.period, each.spending.tokens) for each in standings
    ] == [
        ("all", "", "2026-08-09", 20),
        ("judging", "", "2026-08-09", 10),
        ("coder", "", "2026-08-09", 1),
        ("each", "", "2026-08", 9),
        ("each", "coder", "2026-08", 1),
        ("each", "planner", "2026-08", 10),
        ("hourly", "", "2026-08-09T12", 20),
        ("ever", "", "ever", 20),
    ]


async def test_all_budgets_or_none(store: Store, clock: ManualClock) -> None:
    budgets = [Budget(name="wide", tokens=1_000), Budget(name="narrow", agent="*", tokens=10)]
    ledger = Ledger(store, budgets, clock)
    await ledger.reserve(ask("a"), 10, None)
    with pytest.raises(BudgetReached, match="narrow"):
        await ledger.reserve(ask("a"), 10, None)
    await ledger.reserve(ask("b"), 10, None)
    assert (await pots(store))["wide/2026-08-09"] == (0, 0, 0, 2, 20, 0)


async def test_a_reservation_is_settled_where_it_was_made(store: Store, clock: ManualClock) -> None:
    budgets = [Budget(name=per, per=per, tokens=100) for per in ("hour", "day", "month")]
    ledger = Ledger(store, budgets, clock)
    clock.set(from_datetime(datetime(2026, 9, 1, tzinfo=UTC)) - 1)
    late = await ledger.reserve(ask(), 100, None)
    with pytest.raises(BudgetReached):
        await ledger.reserve(ask(), 1, None)
    clock.tick()
    early = await ledger.reserve(ask(), 100, None)
    clock.advance("2h")
    await ledger.settle(late, 60, None)
    await ledger.settle(early, 70, None)
    assert {key: values[:2] for key, values in (await pots(store)).items()} == {
        "hour/2026-08-31T23": (1, 60),
        "day/2026-08-31": (1, 60),
        "month/2026-08": (1, 60),
        "hour/2026-09-01T00": (1, 70),
        "day/2026-09-01": (1, 70),
        "month/2026-09": (1, 70),
    }
    assert [each.tokens_left for each in await ledger.status()] == [100, 30, 30]
    assert [each.renews for each in await ledger.status()] == [
        from_datetime(datetime(2026, 9, 1, 3, tzinfo=UTC)),
        from_datetime(datetime(2026, 9, 2, tzinfo=UTC)),
        from_datetime(datetime(2026, 10, 1, tzinfo=UTC)),
    ]


async def test_strange_names_of_agents(store: Store, clock: ManualClock) -> None:
    ledger = Ledger(store, [Budget(name="each", agent="*", tokens=10)], clock)
    names = ["a/b", "ü" * 400, "half \ud800", "nul \x00", "", "//"]
    for name in names:
        await ledger.reserve(ask(name), 10, None)
        with pytest.raises(BudgetReached):
            await ledger.reserve(ask(name), 1, None)
    assert len(await ledger.status()) == len(names)
    await ledger.forget("a/b")
    await ledger.forget("")
    assert len(await ledger.status()) == len(names) - 1


async def test_forgetting_during_a_call(store: Store, clock: ManualClock) -> None:
    ledger = Ledger(store, [Budget(name="each", agent="*", tokens=100)], clock)
    held = await ledger.reserve(ask("a"), 50, None)
    other = await ledger.reserve(ask("b"), 50, None)
    await ledger.forget("a")
    await ledger.settle(held, 40, None)
    assert [each.agent for each in await ledger.status()] == ["b"]
    await ledger.settle(other, 40, None)
    held = await ledger.reserve(ask("a"), 50, None)
    await ledger.forget("a")
    await ledger.reserve(ask("a"), 10, None)
    await ledger.settle(held, 40, None)
    left = {each.agent: each.spending for each in await ledger.status()}
    assert (left["a"].tokens, left["a"].held_tokens) == (40, 0)


def test_budgets_that_make_no_sense(clock: ManualClock) -> None:
    for wrong in ({"name": "a"}, {"name": "", "tokens": 1}, {"name": "a/b", "tokens": 1}):
        with pytest.raises(InvalidConfig):
            Budget(**wrong)
    with pytest.raises(InvalidConfig, match="same name, 'a'"):
        Ledger(
            Store(adapter_for("memory://", clock)),
            [Budget(name="a", tokens=1), Budget(name="a", cost=1)],
        )
    configured = BudgetConfig(name="a", agent="*", per="month", dollars=0.1)
    assert Budget.configured(configured) == Budget(
        name="a", agent="*", per="month", cost=DOLLAR // 10
    )


# Without work -----------------------------------------------------------------------------------


class Watch:
    """Middleware that counts calls, and can make commits fail."""

    def __init__(self) -> None:
        self.calls = 0
        self.failing = False

    async def __call__(self, call: Call, proceed: Handler) -> Any:
        self.calls += 1
        if self.failing and isinstance(call, Commit):
            raise Unavailable("The store is away.")
        return await proceed(call)


@pytest.fixture
def watch() -> Watch:
    return Watch()


@pytest.fixture
async def watched(watch: Watch, clock: ManualClock) -> Store:
    """A store in memory whose calls are counted."""
    store = Store(adapter_for("memory://", clock), middleware=[watch], clock=clock)
    await store.open()
    return store


async def test_no_budget_no_work(watched: Store, watch: Watch, clock: ManualClock) -> None:
    for ledger in (
        Ledger(watched),
        Ledger(watched, [Budget(name="judging", purpose="judge", tokens=1)], clock),
    ):
        held = await ledger.reserve(ask(), 10**9, None)
        assert held == Reservation()
        await ledger.settle(held, 10**9, None)
    assert watch.calls == 0


async def test_a_thousand_at_once_are_few_transactions(
    watched: Store, watch: Watch, clock: ManualClock
) -> None:
    ledger = Ledger(watched, [Budget(name="daily", tokens=1_000)], clock)
    await ledger.status()
    watch.calls = 0
    held = await asyncio.gather(*(ledger.reserve(ask(), 1, None) for _ in range(1_000)))
    assert watch.calls <= 4
    with pytest.raises(BudgetReached):
        await ledger.reserve(ask(), 1, None)
    await asyncio.gather(*(ledger.settle(each, 1, None) for each in held))
    assert watch.calls <= 8
    assert await pots(watched) == {"daily/2026-08-09": (1_000, 1_000, 0, 0, 0, 0)}


async def test_a_store_that_fails(watched: Store, watch: Watch, clock: ManualClock) -> None:
    ledger = Ledger(watched, [Budget(name="daily", tokens=1_000)], clock)
    held = await ledger.reserve(ask(), 10, None)
    watch.failing = True
    failed = await asyncio.gather(
        ledger.reserve(ask(), 10, None), ledger.settle(held, 1, None), return_exceptions=True
    )
    assert [type(each) for each in failed] == [Unavailable, Unavailable]
    watch.failing = False
    await ledger.settle(held, 1, None)  # too late: it counts as spent
    assert await pots(watched) == {"daily/2026-08-09": (0, 0, 0, 1, 10, 0)}
    await ledger.settle(await ledger.reserve(ask(), 10, None), 1, None)
    assert await pots(watched) == {"daily/2026-08-09": (1, 1, 0, 1, 10, 0)}


# Many at once -----------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(4))
async def test_many_tasks(store: Store, clock: ManualClock, seed: int) -> None:
    """Reserved, settled, cancelled, in any order: in the end the pot holds what was settled."""
    dice = random.Random(seed)
    limit = 3_000
    ledger = Ledger(store, [Budget(name="daily", tokens=limit, cost=DOLLAR)], clock)
    settled = list[tuple[int, int]]()
    refused = 0

    async def one() -> None:
        nonlocal refused
        wanted, taken, cost = dice.randrange(1, 100), dice.randrange(1, 60), dice.randrange(1_000)
        try:
            held = await ledger.reserve(ask(), wanted, cost)
        except BudgetReached:
            refused += 1
            return
        try:
            await asyncio.sleep(dice.random() * 0.003)
        finally:
            taken = min(wanted, taken)
            settled.append((taken, cost))
            await ledger.settle(held, taken, cost)

    tasks = [asyncio.create_task(one()) for _ in range(200)]
    for task in dice.sample(tasks, 60):
        await asyncio.sleep(dice.choice([0, 0, 0.0005]))
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    await ledger.close()
    tokens, costs = sum(each for each, _ in settled), sum(cost for _, cost in settled)
    assert await pots(store) == {"daily/2026-08-09": (len(settled), tokens, costs, 0, 0, 0)}
    assert tokens <= limit
    assert refused


async def test_cancelled_while_it_waits(store: Store, clock: ManualClock) -> None:
    ledger = Ledger(store, [Budget(name="daily", tokens=10)], clock)
    for steps in range(12):
        task = asyncio.create_task(ledger.reserve(ask(), 10, None))
        for _ in range(steps):
            await asyncio.sleep(0)
        task.cancel()
        held = (await asyncio.gather(task, return_exceptions=True))[0]
        await ledger.close()
        if isinstance(held, Reservation):  # it was too late
            await ledger.settle(held, 0, None)
        else:
            assert isinstance(held, asyncio.CancelledError)
        assert all(values[3:] == (0, 0, 0) for values in (await pots(store)).values())


async def test_two_ledgers_of_one_bank(make_store: MakeStore, clock: ManualClock) -> None:
    store = await make_store()
    budgets = [Budget(name="daily", tokens=200)]
    ledgers = [Ledger(store, budgets, clock) for _ in range(3)]

    async def spend(ledger: Ledger) -> int:
        granted = 0
        while True:
            try:
                held = await ledger.reserve(ask(), 4, None)
            except BudgetReached:
                return granted
            granted += 1
            await ledger.settle(held, 4, None)

    assert sum(await asyncio.gather(*(spend(each) for each in ledgers))) == 50
    assert await pots(store) == {"daily/2026-08-09": (50, 200, 0, 0, 0, 0)}


# Processes --------------------------------------------------------------------------------------


@contextmanager
def processes(url: str, task: str, count: int) -> Iterator[list[subprocess.Popen[str]]]:
    """Processes that are ready, and wait for a line."""
    started = [
        subprocess.Popen(
            [sys.executable, "-m", "tests.gateway.spender", url, task],
            cwd=ROOT,
            env={**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT / "src"), str(ROOT)])},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        for _ in range(count)
    ]
    try:
        for process in started:
            assert process.stdout is not None
            assert process.stdout.readline() == "ready\n"
        yield started
    finally:
        for process in started:
            process.kill()
            process.communicate()


def go(process: subprocess.Popen[str]) -> None:
    assert process.stdin is not None
    process.stdin.write("go\n")
    process.stdin.flush()


@pytest.mark.slow
@pytest.mark.parametrize("store_url", DURABLE, indirect=True)
async def test_eight_processes_spend_one_budget(store_url: str, make_store: MakeStore) -> None:
    with processes(store_url, "spend", PROCESSES) as started:
        for process in started:
            go(process)
        granted = [int(process.communicate(timeout=60)[0]) for process in started]
    assert sum(granted) == ALLOWED
    found = {
        standing.agent: standing.spending
        for standing in await Ledger(await make_store(), BUDGETS).status()
    }
    total = found.pop("")
    assert (total.calls, total.tokens, total.cost) == (ALLOWED, ALLOWED * TOKENS, ALLOWED * 5)
    assert sum(pot.cost for pot in found.values()) == ALLOWED * 5
    assert all(pot.held == 0 for pot in (total, *found.values()))


@pytest.mark.parametrize("store_url", DURABLE, indirect=True)
async def test_what_the_dead_reserved_is_spent(store_url: str, make_store: MakeStore) -> None:
    dice = random.Random("kills")
    with processes(store_url, "die", KILLS) as started:
        for process in started:
            assert process.stdout is not None
            go(process)
            assert process.stdout.readline() == "open\n"
            for _ in range(dice.randrange(20)):
                process.stdout.readline()
            process.kill()
            process.wait()
    if "postgres" in store_url:
        await asyncio.sleep(0.2)  # the server may still be at what they sent
    (standing, *_) = await Ledger(await make_store(), BUDGETS).status()
    pot = standing.spending
    assert pot.tokens == KILLS * 3
    assert pot.cost == KILLS * 5
    # The one that it left open, and perhaps one of a single token that it was just making.
    assert KILLS <= pot.held <= 2 * KILLS
    assert pot.held_tokens == KILLS * TOKENS + (pot.held - KILLS)
    assert pot.held_cost == KILLS * 7
    assert standing.tokens_left == ALLOWED * TOKENS - pot.tokens - pot.held_tokens
