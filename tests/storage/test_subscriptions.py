"""Events reach subscribers: at least once, in order per key, whatever happens."""

from __future__ import annotations

import asyncio
import itertools
import os
import random
import signal
import subprocess
import sys
import time
from collections import defaultdict
from collections.abc import Awaitable, Callable
from contextlib import suppress
from pathlib import Path
from typing import Annotated, TypeAlias

import msgspec
import pytest

from perdure.core import clock as real_clock
from perdure.core.clock import SECOND
from perdure.core.errors import InvalidInput, InvalidKey
from perdure.storage.backends.sqlite import SQLiteAdapter
from perdure.storage.delivery import Parked, Subscriber
from perdure.storage.records import Key, record
from perdure.storage.store import Store
from perdure.storage.subscriptions import EventReceived, Handler, Subscriptions
from perdure.storage.transaction import Transaction
from perdure.testing.manual_clock import ManualClock

MakeStore: TypeAlias = Callable[..., Awaitable[Store]]
Neighbour: TypeAlias = Callable[[], Awaitable[Store]]


@record("subscribed_notes")
class Note(msgspec.Struct, frozen=True):
    id: Annotated[str, Key()]
    text: str


class Log:
    """A handler that remembers what it was given, and fails on what it is told to."""

    def __init__(self) -> None:
        self.events: list[EventReceived] = []
        self.broken: set[object] = set()
        self.tried: list[object] = []

    async def __call__(self, event: EventReceived) -> None:
        await asyncio.sleep(0)
        self.tried.append(event.payload)
        if any(event.payload == each for each in self.broken):
            raise ValueError(f"cannot take {event.payload}")
        self.events.append(event)

    @property
    def payloads(self) -> list[object]:
        return [event.payload for event in self.events]


@pytest.fixture
def log() -> Log:
    return Log()


@pytest.fixture
def neighbour(store: Store, store_url: str, make_store: MakeStore, clock: ManualClock) -> Neighbour:
    """Opens the same store as another process would have it."""

    async def make() -> Store:
        if store_url == "memory://":
            return Store(store.adapter, clock=clock)
        return await make_store()

    return make


async def emit(store: Store, *events: tuple[str, object], topic: str = "note.added") -> None:
    """Commits one transaction per event, a pair of key and payload."""
    for key, payload in events:
        async with store.transaction() as transaction:
            transaction.emit(topic, payload, key=key)


async def subscribed(store: Store, handler: Handler, **options: int) -> Subscriptions:
    subscriptions = Subscriptions(store, **options)
    await subscriptions.subscribe("reader", handler, from_start=True)
    return subscriptions


# What is delivered -----------------------------------------------------------------------------


async def test_events_arrive_with_all_they_carry(
    store: Store, log: Log, clock: ManualClock
) -> None:
    subscriptions = await subscribed(store, log)
    async with store.transaction() as transaction:
        await transaction.collection(Note).put(Note("a", "hello"))
        transaction.emit("note.added", {"id": "a", "n": [1, None, b"x"]}, key="a")
    assert await subscriptions.deliver() == 1
    (event,) = log.events
    assert (event.topic, event.key) == ("note.added", "a")
    assert event.payload == {"id": "a", "n": [1, None, b"x"]}
    assert event.at == clock()
    assert await subscriptions.deliver() == 0


async def test_a_transaction_that_failed_tells_nobody(store: Store, log: Log) -> None:
    subscriptions = await subscribed(store, log)

    async def fail(transaction: Transaction) -> None:
        transaction.emit("note.added", 1)
        raise RuntimeError

    with pytest.raises(RuntimeError):
        await store.transact(fail)
    assert await subscriptions.deliver() == 0


@pytest.mark.parametrize(
    ("topics", "expected"),
    [
        ("*", ["note.added", "note.gone", "notes", "turn.added"]),
        ("note.*", ["note.added", "note.gone"]),
        (["note.gone", "turn.*"], ["note.gone", "turn.added"]),
        (["note"], []),
    ],
)
async def test_topics_choose(
    store: Store, log: Log, topics: str | list[str], expected: list[str]
) -> None:
    subscriptions = Subscriptions(store)
    await subscriptions.subscribe("reader", log, topics)
    for topic in ("note.added", "note.gone", "notes", "turn.added"):
        await emit(store, ("k", topic), topic=topic)
    assert await subscriptions.deliver() == len(expected)
    assert log.payloads == expected


async def test_a_new_subscriber_starts_now_or_at_the_start(store: Store) -> None:
    late, early = Log(), Log()
    await emit(store, ("k", 1))
    subscriptions = Subscriptions(store)
    await subscriptions.subscribe("late", late)
    await subscriptions.subscribe("early", early, from_start=True)
    await emit(store, ("k", 2))
    assert await subscriptions.deliver() == 3
    assert late.payloads == [2]
    assert early.payloads == [1, 2]


async def test_a_known_subscriber_goes_on_where_it_was(store: Store, log: Log) -> None:
    first = await subscribed(store, log)
    await emit(store, ("k", 1))
    await first.deliver()
    await first.release()
    await emit(store, ("k", 2))
    again = await subscribed(store, log)
    assert await again.deliver() == 1
    assert log.payloads == [1, 2]


@pytest.mark.parametrize("topics", [[], [""], ["no*te"], ["note.*", "**"]])
async def test_patterns_that_mean_nothing_are_refused(
    store: Store, log: Log, topics: list[str]
) -> None:
    with pytest.raises(InvalidInput):
        await Subscriptions(store).subscribe("reader", log, topics)


@pytest.mark.parametrize("name", ["", "a/b", "x" * 600, "a\x00"])
async def test_names_that_cannot_be_kept_are_refused(store: Store, log: Log, name: str) -> None:
    with pytest.raises((InvalidInput, InvalidKey)):
        await Subscriptions(store).subscribe(name, log)


async def test_a_name_has_one_handler_in_a_process(store: Store, log: Log) -> None:
    subscriptions = await subscribed(store, log)
    with pytest.raises(InvalidInput):
        await subscriptions.subscribe("reader", log)


async def test_many_events_are_delivered_in_one_pass_and_few_commits(
    store: Store, log: Log
) -> None:
    subscriptions = await subscribed(store, log, batch=50)
    async with store.transaction() as transaction:
        for number in range(230):
            transaction.emit("n", number, key=f"k{number % 7}")
    before = await store.collection(Subscriber).fetch("reader")
    assert await subscriptions.deliver() == 230
    after = await store.collection(Subscriber).fetch("reader")
    assert log.payloads == list(range(230))
    assert before is not None
    assert after is not None
    assert after.version - before.version == 6  # the lease, and five batches
    await emit(store, ("k", 1))
    await subscriptions.deliver()
    again = await store.collection(Subscriber).fetch("reader")
    assert again is not None
    assert again.version == after.version + 1  # the lease is still held: one commit


async def test_an_idle_pass_writes_nothing(store: Store, log: Log, clock: ManualClock) -> None:
    subscriptions = await subscribed(store, log)
    before = await store.collection(Subscriber).fetch("reader")
    for _ in range(3):
        clock.advance("1h")
        assert await subscriptions.deliver() == 0
    assert await store.collection(Subscriber).fetch("reader") == before


# Failing handlers ------------------------------------------------------------------------------


async def test_the_key_of_a_failed_event_waits_and_others_go_on(
    store: Store, log: Log, clock: ManualClock
) -> None:
    subscriptions = await subscribed(store, log)
    log.broken = {"a1"}
    await emit(store, ("a", "a1"), ("b", "b1"), ("a", "a2"), ("", "n1"), ("b", "b2"))
    assert await subscriptions.deliver() == 3
    assert log.payloads == ["b1", "n1", "b2"]
    await emit(store, ("a", "a3"), ("b", "b3"))
    assert await subscriptions.deliver() == 1
    assert log.tried.count("a1") == 1, "its time has not come"
    log.broken = set()
    clock.advance(1)
    await emit(store, ("a", "a4"))
    assert await subscriptions.deliver() == 4
    assert log.payloads[4:] == ["a1", "a2", "a3", "a4"]
    assert await store.collection(Parked).query().values() == []


async def test_events_without_a_key_do_not_wait_for_each_other(store: Store, log: Log) -> None:
    subscriptions = await subscribed(store, log)
    log.broken = {1}
    await emit(store, ("", 1), ("", 2), ("", 3))
    assert await subscriptions.deliver() == 2
    assert log.payloads == [2, 3]


async def test_pauses_double(store: Store, log: Log, clock: ManualClock) -> None:
    subscriptions = await subscribed(store, log, attempts=5)
    log.broken = {1}
    await emit(store, ("k", 1))
    for seconds in (1, 2, 4, 8):
        await subscriptions.deliver()
        due = clock() + seconds * SECOND
        clock.set(due - 1)
        tried = len(log.tried)
        await subscriptions.deliver()
        assert len(log.tried) == tried
        clock.set(due)
    await subscriptions.deliver()
    assert len(log.tried) == 5


async def test_an_event_is_given_up_visibly_and_its_key_goes_on(
    store: Store, log: Log, clock: ManualClock, caplog: pytest.LogCaptureFixture
) -> None:
    subscriptions = await subscribed(store, log, attempts=3)
    log.broken = {"a1"}
    await emit(store, ("a", "a1"), ("a", "a2"), ("a", "a3"))
    for _ in range(3):
        await subscriptions.deliver()
        clock.advance("1h")
    assert log.payloads == ["a2", "a3"]
    (given_up,) = await subscriptions.given_up("reader")
    assert given_up.event.payload == "a1"
    assert given_up.event.key == "a"
    assert given_up.attempts == 3
    assert given_up.error == "ValueError: cannot take a1"
    assert "gave up on event" in caplog.text
    await emit(store, ("a", "a4"))
    assert await subscriptions.deliver() == 1


async def test_what_was_given_up_can_be_retried(
    store: Store, log: Log, clock: ManualClock, neighbour: Neighbour
) -> None:
    woken: list[bool] = []
    store.on_events = lambda: woken.append(True)
    subscriptions = await subscribed(store, log, attempts=1)
    log.broken = {"a1", "a2"}
    await emit(store, ("a", "a1"), ("a", "a2"), ("a", "a3"))
    assert await subscriptions.deliver() == 1
    assert len(await subscriptions.given_up("reader")) == 2
    log.broken = {"a2"}
    woken.clear()
    assert await Subscriptions(await neighbour()).retry("reader") == 2
    assert await subscriptions.deliver() == 1
    assert log.payloads == ["a3", "a1"]
    assert [each.event.payload for each in await subscriptions.given_up("reader")] == ["a2"]
    assert await subscriptions.retry("reader") == 1
    assert woken
    assert await subscriptions.retry("stranger") == 0


async def test_what_is_retried_does_not_disturb_the_order_of_its_key(
    store: Store, log: Log, clock: ManualClock
) -> None:
    subscriptions = await subscribed(store, log, attempts=2)
    log.broken = {"a1", "a2"}
    await emit(store, ("a", "a1"), ("a", "a2"), ("a", "a3"))
    await subscriptions.deliver()
    clock.advance(1)
    await subscriptions.deliver()
    assert log.tried == ["a1", "a1", "a2"], "the first is given up, the second waits"
    log.broken = {"a2"}
    assert await subscriptions.retry("reader") == 1
    assert await subscriptions.deliver() == 1
    assert log.payloads == ["a1"]
    log.broken = set()
    clock.advance(1)
    await subscriptions.deliver()
    assert log.payloads == ["a1", "a2", "a3"]


async def test_a_long_queue_behind_a_failed_event_drains_in_order(
    store: Store, log: Log, clock: ManualClock
) -> None:
    subscriptions = await subscribed(store, log, batch=4)
    log.broken = {0, 9}
    async with store.transaction() as transaction:
        for number in range(23):
            transaction.emit("n", number, key="k")
    assert await subscriptions.deliver() == 0
    assert await store.collection(Parked).query().count() == 23
    log.broken = {9}
    clock.advance(1)
    assert await subscriptions.deliver() == 9
    assert log.payloads == list(range(9))
    log.broken = set()
    clock.advance(10)
    assert await subscriptions.deliver() == 14
    assert log.payloads == list(range(23))


async def test_a_handler_that_hangs_is_a_failed_attempt(store: Store) -> None:
    async def hang(event: EventReceived) -> None:
        await asyncio.sleep(60)

    subscriptions = Subscriptions(store, attempts=1, timeout=0.02)
    await subscriptions.subscribe("reader", hang)
    await emit(store, ("k", 1))
    assert await subscriptions.deliver() == 0
    (given_up,) = await subscriptions.given_up("reader")
    assert given_up.error.startswith("TimeoutError")


async def test_a_cancellation_inside_a_handler_is_a_failed_attempt(store: Store) -> None:
    async def cancel(event: EventReceived) -> None:
        raise asyncio.CancelledError

    subscriptions = Subscriptions(store, attempts=1)
    await subscriptions.subscribe("reader", cancel)
    await emit(store, ("k", 1))
    assert await subscriptions.deliver() == 0
    assert len(await subscriptions.given_up("reader")) == 1


async def test_one_slow_subscriber_does_not_hold_up_another(store: Store) -> None:
    arrived = asyncio.Event()

    async def slow(event: EventReceived) -> None:
        await arrived.wait()

    async def fast(event: EventReceived) -> None:
        arrived.set()

    subscriptions = Subscriptions(store)
    await subscriptions.subscribe("slow", slow)
    await subscriptions.subscribe("fast", fast)
    await emit(store, ("k", 1))
    assert await subscriptions.deliver() == 2


# Crashes and leases ----------------------------------------------------------------------------


async def test_after_a_crash_everything_unsaved_comes_again_in_order(
    store: Store, log: Log, clock: ManualClock
) -> None:
    """The first process dies in the middle of its second batch: nothing of that is saved."""

    async def crashing(event: EventReceived) -> None:
        if event.payload == 7:
            raise Crash
        await log(event)

    crashed = await subscribed(store, crashing, batch=5)
    await emit(store, *[("k", number) for number in range(12)])
    with pytest.raises(Crash):
        await crashed.deliver()
    assert log.payloads == [0, 1, 2, 3, 4, 5, 6]
    successor = await subscribed(store, log)
    assert await successor.deliver() == 0, "the lease of the dead one still runs"
    clock.advance("61s")
    assert await successor.deliver() == 7
    assert log.payloads == [0, 1, 2, 3, 4, 5, 6, 5, 6, 7, 8, 9, 10, 11]


async def test_parked_events_survive_a_crash_and_a_trim(
    store: Store, log: Log, clock: ManualClock
) -> None:
    first = await subscribed(store, log)
    log.broken = {"a1"}
    await emit(store, ("a", "a1"), ("a", "a2"), ("b", "b1"))
    await first.deliver()
    assert await first.trim() == 3
    log.broken = set()
    clock.advance("61s")
    successor = await subscribed(store, log)
    assert await successor.deliver() == 2
    assert log.payloads == ["b1", "a1", "a2"]


async def test_a_cancelled_pass_saves_what_was_delivered(store: Store, log: Log) -> None:
    stuck = asyncio.Event()

    async def handler(event: EventReceived) -> None:
        if event.payload == 3 and not stuck.is_set():
            stuck.set()
            await asyncio.sleep(60)
        await log(event)

    subscriptions = await subscribed(store, handler)
    await emit(store, *[("k", number) for number in range(6)])
    delivery = asyncio.create_task(subscriptions.deliver())
    await stuck.wait()
    delivery.cancel()
    with pytest.raises(asyncio.CancelledError):
        await delivery
    assert await subscriptions.deliver() == 3
    assert log.payloads == [0, 1, 2, 3, 4, 5]


async def test_a_cancelled_pass_leaves_no_lane_without_a_head(
    store: Store, log: Log, clock: ManualClock
) -> None:
    stuck = asyncio.Event()

    async def handler(event: EventReceived) -> None:
        if event.payload == 2 and not log.broken and not stuck.is_set():
            stuck.set()
            await asyncio.sleep(60)
        await log(event)

    subscriptions = await subscribed(store, handler)
    log.broken = {0}
    await emit(store, *[("k", number) for number in range(5)])
    await subscriptions.deliver()
    log.broken = set()
    clock.advance(1)
    delivery = asyncio.create_task(subscriptions.deliver())
    await stuck.wait()
    delivery.cancel()
    with pytest.raises(asyncio.CancelledError):
        await delivery
    assert log.payloads == [0, 1]
    assert await subscriptions.deliver() == 3
    assert log.payloads == [0, 1, 2, 3, 4]


async def test_only_one_process_delivers_and_another_takes_over(
    store: Store, clock: ManualClock, neighbour: Neighbour
) -> None:
    logs = Log(), Log()
    one = await subscribed(store, logs[0])
    two = await subscribed(await neighbour(), logs[1])
    await emit(store, ("k", 1))
    assert await one.deliver() == 1
    await emit(store, ("k", 2))
    assert await two.deliver() == 0
    assert await one.deliver() == 1
    await emit(store, ("k", 3))
    clock.advance("61s")
    assert await two.deliver() == 1
    await emit(store, ("k", 4))
    assert await one.deliver() == 0
    await two.release()
    assert await one.deliver() == 1
    assert (logs[0].payloads, logs[1].payloads) == ([1, 2, 4], [3])


async def test_a_process_that_stood_still_stops_at_its_next_save(
    store: Store, clock: ManualClock, neighbour: Neighbour
) -> None:
    logs = Log(), Log()
    frozen, thawed = asyncio.Event(), asyncio.Event()

    async def freezing(event: EventReceived) -> None:
        if event.payload == 2:
            frozen.set()
            await thawed.wait()
        await logs[0](event)

    one = await subscribed(store, freezing)
    two = await subscribed(await neighbour(), logs[1])
    await emit(store, *[("k", number) for number in range(1, 6)])
    delivery = asyncio.create_task(one.deliver())
    await frozen.wait()
    clock.advance("61s")
    assert await two.deliver() == 5
    thawed.set()
    assert await delivery == 0, "nothing of it was saved"
    assert logs[0].payloads == [1, 2], "the lease was over, so it did not go on"
    assert logs[1].payloads == [1, 2, 3, 4, 5]
    await emit(store, ("k", 6))
    assert await one.deliver() == 0
    assert await two.deliver() == 1


async def test_a_slow_pass_renews_its_lease_and_saves_on_the_way(
    store: Store, clock: ManualClock, neighbour: Neighbour
) -> None:
    log, other = Log(), Log()
    two = await subscribed(await neighbour(), other)

    async def slow(event: EventReceived) -> None:
        await log(event)
        clock.advance("15s")
        assert await two.deliver() == 0

    one = await subscribed(store, slow)
    await emit(store, *[("k", number) for number in range(20)])
    assert await one.deliver() == 20
    assert log.payloads == list(range(20))
    assert other.payloads == []


async def test_events_of_another_process_arrive(
    store: Store, log: Log, neighbour: Neighbour
) -> None:
    subscriptions = await subscribed(store, log)
    await emit(await neighbour(), ("k", 1), ("k", 2))
    assert await subscriptions.deliver() == 2


async def test_two_processes_deliver_everything_once_while_both_try(
    store: Store, neighbour: Neighbour
) -> None:
    log = Log()
    stores = [store, await neighbour()]
    both = [await subscribed(each, log, batch=3) for each in stores]
    for round_ in range(10):
        await emit(store, *[(f"k{number % 3}", 10 * round_ + number) for number in range(10)])
        await asyncio.gather(*(each.deliver() for each in both))
        await both[round_ % 2].release()
    assert sum([await each.deliver() for each in both]) == 0
    lanes: dict[str, list[int]] = defaultdict(list)
    for event in log.events:
        lanes[event.key].append(event.payload)
    assert sum(map(len, lanes.values())) == 100
    assert all(lane == sorted(set(lane)) for lane in lanes.values())


class Crash(BaseException):
    """The end of a process, as far as its code can tell."""


@pytest.mark.parametrize("store_url", ["memory"], indirect=True)
@pytest.mark.parametrize("seed", range(25))
async def test_whatever_happens_the_order_of_a_key_holds(
    store: Store, clock: ManualClock, seed: int
) -> None:
    """Random emits, failures, crashes, cancellations, pauses, trims, and two processes."""
    dice = random.Random(seed)
    emitted: dict[str, list[int]] = {key: [] for key in "abc"}
    taken: dict[str, list[int]] = {key: [] for key in "abc"}
    calm = False

    async def handler(event: EventReceived) -> None:
        await asyncio.sleep(0)
        fate = 1.0 if calm else dice.random()
        if fate < 0.02:
            raise Crash
        if fate < 0.2:
            raise ValueError
        clock.advance(dice.choice([0.1, 5, 15]))
        if event.payload not in taken[event.key]:  # else it comes again, which is allowed
            taken[event.key].append(event.payload)

    async def process() -> Subscriptions:
        return await subscribed(store, handler, attempts=10_000, batch=dice.choice([2, 5, 100]))

    both = [await process(), await process()]
    for number in range(120):
        key = dice.choice("abc")
        emitted[key].append(number)
        await emit(store, (key, number))
        place = dice.randrange(2)
        match dice.randrange(8):
            case 0 | 1 | 2:
                with suppress(Crash):
                    await both[place].deliver()
            case 3:
                delivery = asyncio.create_task(both[place].deliver())
                for _ in range(dice.randrange(12)):
                    await asyncio.sleep(0)
                delivery.cancel()
                with suppress(Crash, asyncio.CancelledError):
                    await delivery
            case 4:
                both[place] = await process()
            case 5:
                clock.advance(dice.choice([1, 61, 700]))
            case 6:
                await both[place].trim()
            case _:
                await both[place].release()
    calm = True
    for _ in range(3):
        clock.advance("1h")
        await both[0].deliver()
    assert taken == emitted
    await both[0].trim()
    assert await outbox(store) == []
    assert await store.collection(Parked).query().count() == 0


# The outbox ------------------------------------------------------------------------------------


async def outbox(store: Store) -> list[object]:
    events, _ = await store.adapter.events("", 10_000)
    return [msgspec.msgpack.decode(event.payload) for event in events]


async def test_trim_keeps_what_any_subscriber_still_needs(store: Store) -> None:
    fast, slow = Subscriptions(store), Subscriptions(store)
    await fast.subscribe("fast", Log(), from_start=True)
    await slow.subscribe("slow", Log(), from_start=True)
    await emit(store, *[("k", number) for number in range(4)])
    await fast.deliver()
    assert await fast.trim() == 0
    await slow.deliver()
    await emit(store, *[("k", number) for number in range(4, 7)])
    await fast.deliver()
    assert await fast.trim() == 4
    assert await outbox(store) == [4, 5, 6]
    assert await slow.deliver() == 3
    assert await fast.trim() == 3
    assert await outbox(store) == []


async def test_trim_goes_through_any_number_of_events(store: Store) -> None:
    subscriptions = await subscribed(store, Log())
    async with store.transaction() as transaction:
        for number in range(2_500):
            transaction.emit("n", number, key="k")
    await subscriptions.deliver()
    await emit(store, ("k", "new"))
    assert await subscriptions.trim() == 2_500
    assert await outbox(store) == ["new"]
    assert await subscriptions.deliver() == 1


async def test_a_forgotten_subscriber_holds_nothing_back(store: Store, log: Log) -> None:
    gone, stays = await subscribed(store, log, attempts=1), Subscriptions(store)
    await stays.subscribe("stays", Log())
    log.broken = {1}
    await emit(store, ("k", 1))
    await gone.deliver()
    await emit(store, ("k", 2))
    await stays.deliver()
    assert await stays.trim() == 1
    await stays.forget("reader")
    assert await stays.trim() == 1
    assert await store.collection(Parked).query().count() == 0
    assert await gone.deliver() == 0, "it is not brought back by who still has a handler"


async def test_without_subscribers_old_events_go(store: Store, clock: ManualClock) -> None:
    subscriptions = Subscriptions(store)
    await emit(store, ("k", 1), ("k", 2))
    clock.advance("6d")
    await emit(store, ("k", 3))
    assert await subscriptions.trim() == 0
    clock.advance("2d")
    assert await subscriptions.trim() == 2
    assert await outbox(store) == [3]


# The real thing --------------------------------------------------------------------------------

_VICTIM = """
import asyncio, os, sys
from perdure.storage.backends.sqlite import SQLiteAdapter
from perdure.storage.store import Store
from perdure.storage.subscriptions import Subscriptions

async def main(url, log):
    out = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    async def handler(event):
        if event.payload == 5:
            raise ValueError("poison")
        os.write(out, f"{event.key} {event.payload}\\n".encode())
        await asyncio.sleep(0.0005)
    async with Store(SQLiteAdapter(url)) as store:
        subscriptions = Subscriptions(store, batch=10)
        await subscriptions.subscribe("reader", handler, from_start=True)
        await subscriptions.deliver()
        os.write(out, b"end\\n")

asyncio.run(main(*sys.argv[1:]))
"""


def spawn(url: str, log: Path) -> subprocess.Popen[bytes]:
    return subprocess.Popen([sys.executable, "-c", _VICTIM, url, str(log)])


@pytest.mark.parametrize("store_url", ["sqlite"], indirect=True)
@pytest.mark.parametrize("lines", [1, 95, 205])
async def test_kill_9_loses_nothing_and_keeps_the_order(
    store_url: str, tmp_path: Path, lines: int
) -> None:
    async with Store(SQLiteAdapter(store_url)) as store, store.transaction() as transaction:
        for number in range(600):
            transaction.emit("n", number, key=f"k{number % 4}")
    seen = tmp_path / "seen"
    child = spawn(store_url, seen)
    deadline = time.monotonic() + 30
    while not seen.exists() or seen.read_bytes().count(b"\n") < lines:
        assert child.poll() is None
        assert time.monotonic() < deadline
        await asyncio.sleep(0.001)
    os.kill(child.pid, signal.SIGKILL)
    child.wait()
    before: dict[str, list[int]] = defaultdict(list)
    for line in seen.read_text().splitlines():
        key, payload = line.split()
        before[key].append(int(payload))
    after: dict[str, list[int]] = defaultdict(list)

    async def handler(event: EventReceived) -> None:
        after[event.key].append(event.payload)

    moment = real_clock.now() + 61 * SECOND
    async with Store(SQLiteAdapter(store_url), clock=lambda: moment) as store:
        subscriptions = Subscriptions(store)
        await subscriptions.subscribe("reader", handler)
        assert await subscriptions.deliver() > 0
    for lane in range(4):
        key, expected = f"k{lane}", list(range(lane, 600, 4))
        assert set(before[key]) | set(after[key]) == set(expected)
        for part in (before[key], after[key]):
            assert all(b - a == 4 for a, b in itertools.pairwise(part)), "in order, without a gap"
