from __future__ import annotations

from collections.abc import Sequence

import pytest

import perdure
from perdure.core import clock as time
from perdure.storage.memory_windows import (
    MemoryWindows,
    Replacement,
    TimeWindow,
    WindowEntry,
    fold_oldest,
)
from perdure.storage.store import Store
from perdure.testing.manual_clock import ManualClock

EVER = TimeWindow(time.to_datetime(0))


async def remember(windows: MemoryWindows, clock: ManualClock, *texts: str) -> list[WindowEntry]:
    entries = []
    for text in texts:
        clock.advance(60)
        entries.append(await windows.append("ada/chat", text))
    return entries


async def test_a_window_is_a_span_of_time(store: Store, clock: ManualClock) -> None:
    windows = MemoryWindows(store)
    one, two, three = await remember(windows, clock, "one", "two", "three")
    assert await windows.get_window("ada/chat", EVER) == [one, two, three]
    assert await windows.get_window("ada/chat", TimeWindow(two.at)) == [two, three]
    assert await windows.get_window("ada/chat", TimeWindow(one.at, three.at)) == [one, two]
    assert await windows.get_window("ada", EVER) == []


async def test_entries_of_nested_contexts_do_not_mix(store: Store, clock: ManualClock) -> None:
    windows = MemoryWindows(store)
    inner = await windows.append("ada/chat", "inner")
    outer = await windows.append("ada", "outer")
    assert await windows.get_window("ada", EVER) == [outer]
    assert await windows.get_window("ada/chat", EVER) == [inner]


async def test_compressing_folds_and_keeps_the_originals(store: Store, clock: ManualClock) -> None:
    windows = MemoryWindows(store)
    entries = await remember(windows, clock, "one", "two", "three", "four")
    assert await windows.compress("ada/chat", fold_oldest(keep=1)) == 3
    digest, newest = await windows.get_window("ada/chat", EVER)
    assert (digest.text, digest.covers) == ("one\ntwo\nthree", 3)
    assert newest == entries[3]
    originals = await windows.get_window("ada/chat", EVER, folded=True)
    assert [entry.text for entry in originals] == ["one", "two", "three", "four"]
    await remember(windows, clock, "five")
    assert await windows.compress("ada/chat", fold_oldest(keep=1)) == 2
    digest, newest = await windows.get_window("ada/chat", EVER)
    assert digest.covers == 4
    assert newest.text == "five"


async def test_a_strategy_may_be_async_and_may_do_nothing(store: Store, clock: ManualClock) -> None:
    windows = MemoryWindows(store)
    await remember(windows, clock, "one", "two")

    async def summarize(entries: Sequence[WindowEntry]) -> list[Replacement]:
        return [Replacement(entries, f"{len(entries)} things", kind="summary")]

    assert await windows.compress("ada/chat", summarize) == 2
    (digest,) = await windows.get_window("ada/chat", EVER)
    assert (digest.text, digest.kind) == ("2 things", "summary")
    assert await windows.compress("ada/chat", lambda _: []) == 0


async def test_a_strategy_that_folds_twice_changes_nothing(
    store: Store, clock: ManualClock
) -> None:
    windows = MemoryWindows(store)
    entries = await remember(windows, clock, "one", "two")

    def greedy(found: Sequence[WindowEntry]) -> list[Replacement]:
        return [Replacement(found, "all"), Replacement(found[:1], "again")]

    with pytest.raises(perdure.InvalidInput, match="do not stand"):
        await windows.compress("ada/chat", greedy)
    assert await windows.get_window("ada/chat", EVER) == entries


async def test_a_reserved_context_name_is_refused(store: Store) -> None:
    with pytest.raises(perdure.InvalidKey):
        await MemoryWindows(store).append("ada/~", "text")
