"""Events after a crash and under concurrent commits: each at least once, in order per key."""

from __future__ import annotations

import random
from collections import defaultdict
from collections.abc import Iterable

import pytest

from perdure.bank import Bank
from perdure.core.clock import SECOND, now
from perdure.storage.subscriptions import EventReceived
from tests.conftest import DURABLE
from tests.fire.records import Counter
from tests.fire.zygote import Zygote

pytestmark = pytest.mark.parametrize("store_url", DURABLE, indirect=True)

KEYS = ["a", "b", "c/d"]
KILLS = 6
EMITTERS = 8
#: A lease lasts a minute: after two, somebody else may deliver.
LATER = 120


def by_key(told: Iterable[str]) -> dict[str, list[int]]:
    """The numbers of each key, in the order in which they came."""
    found: dict[str, list[int]] = defaultdict(list)
    for line in told:
        key, number = line.rsplit(" ", 1)
        found[key].append(int(number))
    return found


async def committed(bank: Bank) -> dict[str, int]:
    """The last number of each key; all below were committed before it."""
    return {found.id: found.value for found in await bank.collection(Counter).query().values()}


async def test_what_was_not_delivered_when_it_was_killed_is_delivered_afterwards(
    store_url: str, zygote: Zygote
) -> None:
    dice = random.Random(3)
    seen: dict[str, set[int]] = defaultdict(set)
    acknowledged: dict[str, int] = {}
    undelivered = 0

    def check(received: dict[str, list[int]]) -> None:
        """Without gaps, and going on where the last one was, or before."""
        for key, numbers in received.items():
            assert numbers == list(range(numbers[0], numbers[0] + len(numbers)))
            assert numbers[0] <= max(seen[key], default=0) + 1
            seen[key] |= set(numbers)

    for kill in range(KILLS):
        worker = zygote.start("emit_and_receive", store_url, keys=KEYS, ahead=kill * LATER)
        assert worker.listen(20, 10)
        worker.listen(dice.uniform(0, 0.15))
        told = worker.kill()
        ours = [line.partition(" ") for line in told]
        for key, numbers in by_key(line for kind, _, line in ours if kind == "committed").items():
            acknowledged[key] = max(numbers)
        check(by_key(line for kind, _, line in ours if kind == "received"))
        undelivered += any(acknowledged[key] not in seen[key] for key in acknowledged)
    assert undelivered, "every kill came when all was delivered"

    received: list[str] = []

    async def handler(event: EventReceived) -> None:
        received.append(f"{event.key} {event.payload}")

    async with Bank(store_url, clock=lambda: now() + KILLS * LATER * SECOND) as bank:
        await bank.subscribe("receiver", handler, ["number"])
        await bank.settle()
        last = await committed(bank)
    check(by_key(received))
    for key in KEYS:
        assert last[key] >= acknowledged[key]
        assert seen[key] == set(range(1, last[key] + 1))


async def test_eight_emitters_and_a_subscriber(store_url: str, zygote: Zygote) -> None:
    times = 10
    # Every second round an emitter leaves out the first key, so that they fall out of step.
    expected = EMITTERS * times * len(KEYS) - EMITTERS * times // 2
    receiver = zygote.start("receive", store_url, expected=expected)
    emitters = [
        zygote.start("emit", store_url, keys=[*KEYS[turn % 3 :], *KEYS[: turn % 3]], times=times)
        for turn in range(EMITTERS)
    ]
    for emitter in emitters:
        assert emitter.wait() == ["done"]
    received = by_key(receiver.wait())
    async with Bank(store_url) as bank:
        last = await committed(bank)
        assert sum(last.values()) == expected
        assert received == {key: list(range(1, last[key] + 1)) for key in KEYS}
        assert [problem async for problem in bank.verify()] == []
