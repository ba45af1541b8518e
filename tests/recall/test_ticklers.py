"""Reminders that are followed gain weight, others lose it."""

from __future__ import annotations

import asyncio

import pytest

from perdure.core.clock import SECOND
from perdure.history.forget_sessions import ForgetScope
from perdure.recall.ticklers import HEAVIEST, LIGHTEST, Habit, Ticklers
from perdure.storage.store import Store
from perdure.testing.manual_clock import ManualClock

DAY = 86_400
KEY, OTHER = "ada/chat#T-12.3", "ada/M-7"


async def shown(ticklers: Ticklers, agent: str, keys: list[str]) -> None:
    await ticklers._store.transact(lambda tx: ticklers.shown(tx, agent, keys))


async def weight(ticklers: Ticklers, key: str = KEY, agent: str = "ada") -> float:
    return (await ticklers.weights(agent, [key]))[key]


async def test_what_is_followed_gains_and_what_is_not_loses(store: Store) -> None:
    ticklers = Ticklers(store)
    assert await ticklers.weights("ada", [KEY, OTHER]) == {KEY: 1.0, OTHER: 1.0}
    await shown(ticklers, "ada", [KEY, OTHER, KEY])
    before = await weight(ticklers)
    assert LIGHTEST < before < 1
    assert before == await weight(ticklers, OTHER)
    await ticklers.followed("ada", KEY)
    assert 1 < await weight(ticklers) <= HEAVIEST
    assert await weight(ticklers, OTHER) == before
    assert await weight(ticklers, agent="bob") == 1.0
    await shown(ticklers, "ada", [])


@pytest.mark.parametrize("store_url", ["memory"], indirect=True)
async def test_no_habit_leaves_its_bounds_and_each_can_be_unlearned(store: Store) -> None:
    ticklers = Ticklers(store)
    for _ in range(60):
        await shown(ticklers, "ada", [KEY])
        assert LIGHTEST <= await weight(ticklers) < 1
    for _ in range(20):
        await ticklers.followed("ada", KEY)
    assert 1 < await weight(ticklers) <= HEAVIEST
    for _ in range(20):
        await shown(ticklers, "ada", [KEY])
    assert await weight(ticklers) < 1.05


@pytest.mark.parametrize("store_url", ["memory"], indirect=True)
async def test_habits_fade(store: Store, clock: ManualClock) -> None:
    ticklers = Ticklers(store)
    for _ in range(4):
        await shown(ticklers, "ada", [KEY])
    seen = [await weight(ticklers)]
    for _ in range(4):
        clock.advance(30 * DAY)
        seen.append(await weight(ticklers))
    assert seen == sorted(seen)
    assert seen[0] < 0.9
    assert 0.97 < seen[-1] < 1
    clock.advance(400 * DAY)
    assert await weight(ticklers) == 1.0
    assert await store.collection(Habit).get(f"ada/{KEY}") is None


async def test_many_at_a_time(store: Store) -> None:
    ticklers = Ticklers(store)
    await asyncio.gather(*(shown(ticklers, "ada", [KEY, OTHER]) for _ in range(6)))
    found = await store.collection(Habit).get(f"ada/{KEY}")
    assert found is not None
    assert found.vain == pytest.approx(6, abs=1e-3)


async def test_forgetting_reaches_them(store: Store) -> None:
    ticklers = Ticklers(store)
    keys = [KEY, "ada/chat#T-13.1", "ada/chat2#T-12.1", OTHER, "oauth"]

    async def left(agent: str) -> list[str]:
        rows = await store.collection(Habit).query().prefix(f"{agent}/").values()
        return sorted(row.key for row in rows)

    for agent in ("ada", "bob"):
        await shown(ticklers, agent, keys)
    await ticklers.forget(ForgetScope(sessions=("ada/chat",), turns=(12,)))
    assert await left("ada") == await left("bob") == sorted(set(keys) - {KEY})
    await ticklers.forget(ForgetScope(sessions=("ada/chat",)))
    assert await left("bob") == ["ada/M-7", "ada/chat2#T-12.1", "oauth"]
    await ticklers.forget(ForgetScope(agent="bob"))
    assert await left("bob") == []
    assert await left("ada") == ["ada/M-7", "ada/chat2#T-12.1", "oauth"]
    assert ticklers.collections == {"perdure_recall_habits"}


def test_a_weight_depends_on_nothing_but_the_habit() -> None:
    habit = Habit(id=f"ada/{KEY}", vain=3.0, followed=1.0, time=100 * DAY * SECOND)
    assert habit.weight(100 * DAY * SECOND) == habit.weight(100 * DAY * SECOND)
    assert habit.key == KEY
    assert habit.weight(0) == habit.weight(habit.time)  # a clock that was set back
