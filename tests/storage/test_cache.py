"""The cache of one process: what it answers, and what it must not."""

from __future__ import annotations

import asyncio
import itertools
import random
import tempfile
import time
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Any, ClassVar

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from perdure.config.settings import CacheConfig
from perdure.core.clock import now
from perdure.core.errors import Conflict, InvalidInput, Unavailable
from perdure.storage.backends.memory import MemoryAdapter
from perdure.storage.cache import RowCache
from perdure.storage.cache.cache_entries import LARGEST, CacheStats, Entries
from perdure.storage.middleware import Call, Commit, Get, Handler, Stage
from perdure.storage.options import DEFAULT, STRONG, Consistency, Options, bounded
from perdure.storage.rows import Batch, Check, Put, Recode, Row
from perdure.testing.manual_clock import ManualClock
from tests.storage.caching import Cached, Fleeting, Thing, opened


@pytest.fixture
def url(tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path / 'bank.db'}"


@pytest.fixture
async def bank(url: str) -> AsyncIterator[Cached]:
    async with opened(url) as bank:
        yield bank


@pytest.fixture
async def other(url: str, bank: Cached) -> AsyncIterator[Cached]:
    """Another store on the same file: as good as another process."""
    async with opened(url) as other:
        yield other


class Gate:
    """Stands below the cache; lets calls of a kind through, and holds back their answers."""

    stage: ClassVar[Stage] = Stage.BACKEND

    def __init__(self, kind: type[Call]) -> None:
        self._kind = kind
        self._open = asyncio.Event()
        self._open.set()
        self.done = asyncio.Event()
        self.error: Exception | None = None

    def close(self) -> None:
        self._open.clear()
        self.done.clear()

    def open(self) -> None:
        self._open.set()

    async def __call__(self, call: Call, proceed: Handler) -> Any:
        answer = await proceed(call)
        if isinstance(call, self._kind):
            self.done.set()
            await self._open.wait()
            if self.error is not None:
                raise self.error
        return answer


# Levels -------------------------------------------------------------------------------------------


async def test_what_was_read_once_is_answered_from_memory(bank: Cached) -> None:
    await bank.put(1)
    assert [await bank.get() for _ in range(5)] == [1] * 5
    assert (bank.hits, bank.misses) == (4, 1)
    await bank.put(2, "b")
    found = await bank.things.get_many(["b", "a", "c", "a", "b"])
    assert [thing and thing.n for thing in found] == [2, 1, None, 1, 2]
    assert (bank.hits, bank.misses) == (5, 3)


async def test_eventual_shows_the_old_and_strong_the_new(bank: Cached, other: Cached) -> None:
    await bank.put(1)
    assert await bank.get() == 1
    await other.put(2)
    assert await bank.get() == 1
    assert await bank.get(STRONG) == 2
    assert await bank.get() == 2, "a strong read refreshes what is kept"
    await other.things.delete("a")
    assert await bank.get() == 2
    assert await bank.get(STRONG) is None
    assert await bank.get() is None


async def test_bounded_shows_the_old_for_so_long_and_no_longer(bank: Cached, other: Cached) -> None:
    await bank.put(1)
    assert await bank.get() == 1
    start = time.monotonic()
    await other.put(2)
    seen = []
    while time.monotonic() < start + 1.6:
        asked = time.monotonic()
        seen.append(await bank.get(bounded(1.5)))
        assert seen[-1] == 2 or asked < start + 1.5
        await asyncio.sleep(0.002)
    assert seen[0] == 1
    assert seen[-1] == 2
    await other.put(3)
    assert await bank.get(bounded(0)) == 3
    assert await bank.get() == 3


async def test_a_look_at_the_file_makes_everything_fresh(bank: Cached) -> None:
    await bank.things.put_many([Thing(f"{n}", n) for n in range(10)])
    keys = [f"{n}" for n in range(10)]
    await bank.things.get_many(keys)
    await asyncio.sleep(0.02)
    assert bank.misses == 10
    for key in keys:
        assert await bank.get(bounded(0.01), key) == int(key)
    await bank.put(11, "else")
    assert await bank.get(bounded(0), "3") == 3, "own writes do not count as somebody else's"
    assert bank.misses == 10
    assert bank.hits == 11


async def test_somebody_elses_write_drops_everything(bank: Cached, other: Cached) -> None:
    await bank.put(1)
    await bank.put(2, "b")
    await bank.things.get_many(["a", "b"])
    await other.put(7, "c")
    assert await bank.get(bounded(0), "a") == 1
    assert bank.misses == 3
    assert bank.cache.stats.invalidations >= 2
    assert await bank.get(bounded(0), "a") == 1
    assert bank.misses == 3


async def test_rows_leave_after_their_time(url: str, other: Cached) -> None:
    async with opened(url, ttl=1.5) as bank:
        await bank.put(1)
        assert await bank.get() == 1
        await other.put(2)
        assert await bank.get() == 1
        await asyncio.sleep(1.6)
        assert await bank.get() == 2


async def test_a_store_that_cannot_tell_goes_by_the_moment_of_reading() -> None:
    async with opened("memory://") as bank:
        await bank.put(1)
        assert await bank.get() == 1
        assert await bank.get(bounded(60)) == 1
        assert bank.hits == 1
        await asyncio.sleep(0.02)
        assert await bank.get(bounded(0.01)) == 1
        assert bank.misses == 2
        assert await bank.get(bounded(0)) == 1
        assert bank.misses == 3


# Writes of its own --------------------------------------------------------------------------------


async def test_own_writes_are_seen_at_once(bank: Cached) -> None:
    for number in range(3):
        await bank.put(number)
        assert await bank.get() == number
    await bank.things.change("a", lambda found: Thing("a", found.n + 1 if found else 0))
    assert await bank.get() == 3
    async with bank.store.transaction() as tx:
        await tx.collection(Thing).put(Thing("a", 9))
    assert await bank.get() == 9
    await bank.things.delete("a")
    assert await bank.get() is None
    await bank.put(1)
    assert await bank.get() == 1
    assert await bank.things.query().where("n", "=", 1).delete() == 1
    assert await bank.get() is None


async def test_a_rewritten_row_is_read_again(bank: Cached) -> None:
    await bank.put(1)
    (row,) = await bank.store.read("things", ["a"], DEFAULT)
    assert row is not None
    value = msgspec.msgpack.encode({"id": "a", "n": 2})
    assert await bank.store.rewrite("things", [Recode(row, value, row.content_type)]) == 1
    (again,) = await bank.store.read("things", ["a"], DEFAULT)
    assert again is not None
    assert (again.value, again.version) == (value, row.version)


async def test_a_slow_read_does_not_bring_back_what_was_overwritten(url: str) -> None:
    gate = Gate(Get)
    async with opened(url, below=[gate]) as bank:
        await bank.put(1)
        await bank.put(1, "b")
        gate.close()
        slow = asyncio.create_task(bank.things.get_many(["a", "b"]))
        await gate.done.wait()
        await bank.put(2)
        gate.open()
        old = [thing and thing.n for thing in await slow]
        assert old == [1, 1], "it began before the write"
        assert await bank.get() == 2
        misses = bank.misses
        assert await bank.get(key="b") == 1
        assert bank.misses == misses, "what nobody wrote is kept"


async def test_a_slow_read_does_not_bring_back_what_was_removed(url: str) -> None:
    gate = Gate(Get)
    async with opened(url, below=[gate]) as bank:
        await bank.put(1)
        gate.close()
        slow = asyncio.create_task(bank.get())
        await gate.done.wait()
        assert await bank.things.query().delete() == 1
        gate.open()
        assert await slow == 1
        assert await bank.get() is None


async def test_nothing_is_answered_from_memory_while_it_is_written(url: str) -> None:
    """Committed, not yet acknowledged: whoever insists on the newest must get it."""
    gate = Gate(Commit)
    async with opened(url, below=[gate]) as bank:
        await bank.put(1)
        assert await bank.get() == 1
        gate.close()
        writing = asyncio.create_task(bank.put(2))
        await gate.done.wait()
        assert await bank.get(bounded(0)) == 2
        assert await bank.get() == 2
        gate.open()
        await writing
        assert await bank.get() == 2


async def test_a_write_whose_outcome_is_unknown_counts_as_done(url: str) -> None:
    gate = Gate(Commit)
    async with opened(url, below=[gate]) as bank:
        await bank.put(1)
        assert await bank.get() == 1
        gate.error = Unavailable("It broke, and nobody knows what came of it.")
        with pytest.raises(Unavailable):
            await bank.put(2)
        assert await bank.get() == 2


async def test_a_cancelled_write_counts_as_done(url: str) -> None:
    gate = Gate(Commit)
    async with opened(url, below=[gate]) as bank:
        await bank.put(1)
        assert await bank.get() == 1
        gate.close()
        writing = asyncio.create_task(bank.put(2))
        await gate.done.wait()
        writing.cancel()
        with pytest.raises(asyncio.CancelledError):
            await writing
        assert await bank.get() == 2


async def test_a_conflict_drops_everything_that_was_looked_at(bank: Cached, other: Cached) -> None:
    for key in "abc":
        await bank.put(1, key)
        assert await bank.get(key=key) == 1
        await other.put(2, key)
    with pytest.raises(Conflict):
        await bank.put(9, "a", Options(expected=1))
    assert await bank.get() == 2
    assert await bank.get(key="b") == 1, "nobody has complained about this one"
    put = Put("things", "b", b"\x81\xa1n\x05", "application/msgpack", 1, columns=(5,))
    with pytest.raises(Conflict):
        await bank.store.commit(Batch((put,), (Check("things", "c", 1),)), DEFAULT)
    assert [await bank.get(key=key) for key in "abc"] == [2, 2, 2]


# What is not kept ---------------------------------------------------------------------------------


async def test_expired_rows_are_not_answered(url: str) -> None:
    clock = ManualClock()
    async with opened(url, clock=clock) as bank:
        fleeting = bank.store.collection(Fleeting)
        await fleeting.put(Fleeting("a"))
        assert await fleeting.get("a") == Fleeting("a")
        assert await fleeting.get("a") == Fleeting("a")
        assert bank.hits == 1
        clock.advance(10)
        assert await fleeting.get("a") is None


async def test_absent_rows_are_asked_for_again(bank: Cached, other: Cached) -> None:
    await bank.put(1)
    assert await bank.get(key="b") is None
    await other.put(2, "b")
    assert await bank.get(key="b") == 2


async def test_perdures_own_records_are_not_kept(url: str, bank: Cached, other: Cached) -> None:
    layout = msgspec.structs.replace(bank.things.declared.layout, name="perdure_things")
    for each in (bank, other):
        await each.store.adapter.prepare(layout)
    for number in range(2):
        put = Put("perdure_things", "a", b"%d" % number, "text/plain", 1, columns=(number,))
        await other.store.commit(Batch((put,)), DEFAULT)
        (row,) = await bank.store.read("perdure_things", ["a"], DEFAULT)
        assert row is not None
        assert row.value == b"%d" % number
    assert bank.misses == 0


async def test_only_the_collections_that_were_named_are_kept(url: str) -> None:
    async with opened(url, collections=("fleeting",)) as bank:
        await bank.put(1)
        await bank.get()
        assert (bank.hits, bank.misses) == (0, 0)
        fleeting = bank.store.collection(Fleeting)
        await fleeting.put(Fleeting("a"))
        await fleeting.get("a")
        await fleeting.get("a")
        assert (bank.hits, bank.misses) == (1, 1)


async def test_the_least_recently_used_leave_first(url: str) -> None:
    async with opened(url, entries=3) as bank:
        for n in range(4):
            await bank.put(n, f"{n}")
        for key in "0120":
            await bank.get(key=key)
        assert bank.hits == 1
        await bank.get(key="3")
        assert len(bank.cache._entries) == 3
        for key in "023":
            await bank.get(key=key)
        assert bank.hits == 4
        await bank.get(key="1")
        assert bank.misses == 5


async def test_large_values_are_not_kept(bank: Cached) -> None:
    put = Put("things", "big", bytes(LARGEST + 1), "x/y", 1, columns=(1,))
    await bank.put(1)
    await bank.store.commit(Batch((put,)), DEFAULT)
    for _ in range(2):
        await bank.store.read("things", ["big"], DEFAULT)
    assert bank.hits == 0


async def test_it_can_be_cleared(bank: Cached, other: Cached) -> None:
    await bank.put(1)
    await bank.get()
    await other.put(2)
    await bank.cache.clear()
    assert await bank.get() == 2


async def test_a_store_that_is_opened_again_starts_with_nothing(
    bank: Cached, other: Cached
) -> None:
    await bank.put(1)
    assert await bank.get() == 1
    await bank.store.close()
    await other.put(2)
    await bank.store.open()
    assert await bank.get() == 2
    assert await bank.get(bounded(0)) == 2


async def test_a_cache_belongs_to_a_store() -> None:
    with pytest.raises(InvalidInput, match="belongs to no store"):
        await RowCache(CacheConfig(entries=1), now).open()


# Behind a replica ---------------------------------------------------------------------------------


class Lagging(MemoryAdapter):
    """Answers what is not strong from a copy that somebody has to bring up to date."""

    def __init__(self) -> None:
        super().__init__("memory://")
        self.copy: dict[str, Row | None] = {}

    @property
    def replicated(self) -> bool:
        return True

    async def get(self, collection: str, keys: Sequence[str], options: Options) -> list[Row | None]:
        rows = await super().get(collection, keys, options)
        if options.consistency is Consistency.STRONG or collection != "things":
            return rows
        return [self.copy.get(key) for key in keys]

    async def catch_up(self) -> None:
        (self.copy["a"],) = await super().get("things", ["a"], DEFAULT)


async def test_what_a_replica_says_proves_nothing() -> None:
    adapter = Lagging()
    async with opened(adapter) as bank:
        await bank.put(1)
        await adapter.catch_up()
        value = msgspec.msgpack.encode(Thing("a", 2))
        put = Put("things", "a", value, "application/msgpack", 1, columns=(2,))
        await bank.store.below(bank.cache)(Commit(Batch((put,)), DEFAULT))
        assert await bank.get() == 1
        assert await bank.get() == 1
        assert (bank.hits, bank.misses) == (1, 1)
        await adapter.catch_up()
        assert await bank.get(bounded(60)) == 2, "nobody knows how old the row in memory is"
        assert await bank.get(bounded(60)) == 2
        assert bank.misses == 3, "this answer was up to a minute old already"
        assert await bank.get(STRONG) == 2
        assert await bank.get(bounded(60)) == 2
        assert bank.hits == 2


# Against the truth --------------------------------------------------------------------------------


def test_a_generation_proves_only_what_was_read_under_it() -> None:
    entries = Entries(10, CacheStats())
    row = Row("a", b"", "x/y", 1, 1, 0, 0, None, 0)

    def fresh(since: float) -> bool:
        return entries.get(("c", "a"), since, proven=True, moment=0) is not None

    assert not entries.confirm(1.0, 7, 2.0)
    entries.put(("c", "a"), row, 1.5, 1.5)  # read before the answer came: maybe before a write
    assert entries.confirm(10.0, 7, 11.0)
    assert fresh(1.5)
    assert not fresh(2.0)
    entries.put(("c", "a"), row, 2.5, 2.5)
    assert fresh(10.0)
    assert not fresh(10.5)
    assert not entries.confirm(20.0, 8, 21.0)
    assert not entries.holds(("c", "a"))


_OPS = st.lists(
    st.tuples(
        st.sampled_from(["get", "fresh", "strong", "put", "delete", "remove", "transact"]),
        st.integers(0, 1),
        st.sampled_from("ab"),
    ),
    max_size=40,
)


@given(_OPS)
def test_random_work_over_two_stores(work: list[tuple[str, int, str]]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        asyncio.run(_do(work, f"sqlite:///{folder}/bank.db"))


async def _do(work: list[tuple[str, int, str]], url: str) -> None:
    """The strict levels answer the truth; eventual nothing older than one's own last write."""
    numbers = itertools.count(1)
    history: dict[str, list[int | None]] = {"a": [None], "b": [None]}
    own = [{"a": 0, "b": 0}, {"a": 0, "b": 0}]
    async with opened(url) as one, opened(url) as two:
        for what, who, key in work:
            bank, known = (one, two)[who], history[key]
            match what:
                case "get":
                    found = await bank.get(key=key)
                    assert found in known[own[who][key] :]
                case "fresh":
                    assert await bank.get(bounded(0), key) == known[-1]
                case "strong":
                    assert await bank.get(STRONG, key) == known[-1]
                case "remove":
                    await bank.things.query().prefix(key).delete()
                    known.append(None)
                case "delete":
                    await bank.things.delete(key)
                    known.append(None)
                case "put":
                    known.append(next(numbers))
                    await bank.put(known[-1] or 0, key)
                case _:
                    async with bank.store.transaction() as tx:
                        thing = await tx.collection(Thing).get(key)
                        assert (thing and thing.n) == known[-1]
                        known.append(next(numbers))
                        await tx.collection(Thing).put(Thing(key, known[-1] or 0))
            if what not in {"get", "fresh", "strong"}:
                own[who][key] = len(known) - 1


@pytest.mark.repeated
async def test_answers_are_never_older_than_they_may_be(bank: Cached, other: Cached) -> None:
    """Many tasks, two stores, one file, and the time of each acknowledgement."""
    dice, stopping = random.Random(7), False
    numbers = itertools.count(1)
    begun: dict[str, list[tuple[float, int]]] = {key: [] for key in "abc"}
    ended: dict[str, list[tuple[float, int]]] = {key: [] for key in "abc"}
    busy = {key: asyncio.Lock() for key in "abc"}

    async def writer(bank: Cached) -> None:
        while not stopping:
            key = dice.choice("abc")
            async with busy[key]:
                number = next(numbers)
                begun[key].append((time.monotonic(), number))
                await bank.put(number, key)
                ended[key].append((time.monotonic(), number))
            await asyncio.sleep(dice.random() * 0.01)

    async def reader(bank: Cached) -> None:
        while not stopping:
            key, age = dice.choice("abc"), dice.choice([0, 0.005, 0.02, None])
            start = time.monotonic()
            found = await bank.get(STRONG if age is None else bounded(age), key) or 0
            oldest = start - (age or 0)
            assert found >= max((n for at, n in ended[key] if at <= oldest), default=0)
            assert not found or any(n == found for _, n in begun[key])
            await asyncio.sleep(0)

    tasks = [asyncio.create_task(work(each)) for work in (writer, reader) for each in (bank, other)]
    tasks += [asyncio.create_task(reader(each)) for each in (bank, other)]
    await asyncio.sleep(1.0)
    stopping = True
    await asyncio.gather(*tasks)
    assert bank.hits > 100
    assert bank.misses > 100
