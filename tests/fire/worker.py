"""What worker processes do; see `zygote`. Each tells a line for what was acknowledged."""

from __future__ import annotations

import asyncio
import os
import random
import resource
from collections.abc import Awaitable, Callable, Coroutine
from pathlib import Path
from typing import Any, TypeAlias

import apsw
import msgspec

# Imported before the first fork, though each is only needed by some.
import perdure.artifacts.artifact_places
import perdure.storage.backends.postgres
import perdure.storage.backends.sqlite
import perdure.sync
from perdure.bank import Bank
from perdure.config import Config, StorageConfig
from perdure.core.clock import SECOND, now
from perdure.storage.options import STRONG
from perdure.storage.subscriptions import EventReceived
from perdure.storage.transaction import Transaction
from tests.fire import agents_at_work, caching, damage, disks, migrants, sealing, talkers
from tests.fire.records import (
    Counter,
    Entry,
    Mirror,
    Paper,
    content_of,
    entry,
    increment,
    mirror,
)
from tests.reflection import reflect_worker

Tell: TypeAlias = Callable[[str], None]

BATCH = 20
TOTAL = "total"

# Writing until it is killed -----------------------------------------------------------------------


class Step:
    """One thing that a writer does, all of it or nothing. Its key says which kind it is."""

    def __init__(self, key: str) -> None:
        self.key = key
        self.kind = random.Random(key).choice(list(_STEPS))

    async def run(self, bank: Bank) -> None:
        await _STEPS[self.kind](bank, self.key)


def step_key(turn: int, lane: int, number: int) -> str:
    return f"{turn:04d}/{lane}/{number:04d}"


def counter_key(key: str) -> str:
    """The counter of the lane that the key lies in."""
    return key.rpartition("/")[0]


async def _put(bank: Bank, key: str) -> None:
    assert await bank.collection(Entry).put(entry(key)) == 1


async def _put_strong(bank: Bank, key: str) -> None:
    assert await bank.collection(Entry).put(entry(key), STRONG) == 1


async def _put_pair(bank: Bank, key: str) -> None:
    async with bank.transaction() as tx:
        await tx.collection(Entry).put(entry(key))
        await tx.collection(Mirror).put(mirror(key))
        tx.emit("pair", key, key=counter_key(key))


async def _put_batch(bank: Bank, key: str) -> None:
    await bank.collection(Entry).put_many([entry(f"{key}/{n}") for n in range(BATCH)])


async def _count(bank: Bank, key: str) -> None:
    counter = counter_key(key)
    await bank.collection(Counter).change(counter, lambda found: increment(found, counter))


async def _count_together(bank: Bank, key: str) -> None:
    """Count what all lanes count; the entry notes which number this was."""

    async def body(tx: Transaction) -> None:
        counter = increment(await tx.collection(Counter).get(TOTAL), TOTAL)
        await tx.collection(Counter).put(counter)
        await tx.collection(Entry).put(entry(key, counter.value))

    await bank.transact(body)


async def _put_paper(bank: Bank, key: str) -> None:
    async with bank.transaction(STRONG) as tx:
        artifact = await bank.artifacts.put(content_of(key), transaction=tx)
        await tx.collection(Paper).put(Paper(key, artifact.hash))


_STEPS: dict[str, Callable[[Bank, str], Awaitable[None]]] = {
    "put": _put,
    "strong": _put_strong,
    "pair": _put_pair,
    "batch": _put_batch,
    "count": _count,
    "count_together": _count_together,
    "paper": _put_paper,
}


async def write(tell: Tell, url: str, turn: int, lanes: int) -> None:
    """Write in several lanes until it is killed; tells the key of each step that is done."""

    async def drive(bank: Bank, lane: int) -> None:
        number = 0
        while True:
            step = Step(step_key(turn, lane, number))
            await step.run(bank)
            tell(step.key)
            number += 1

    async with perdure.open(url) as bank:
        await asyncio.gather(*(drive(bank, lane) for lane in range(lanes)))


# Writing beside others ----------------------------------------------------------------------------


async def share(tell: Tell, url: str, name: str, times: int) -> None:
    """Write records of its own, a shared batch, a shared counter; tells how far it got."""
    async with perdure.open(url) as bank:
        entries, counters = bank.collection(Entry), bank.collection(Counter)
        await entries.get("the first look makes the collection")
        tell("ready")
        for number in range(times):
            own = entry(f"{name}/{number}")
            async with asyncio.TaskGroup() as group:
                group.create_task(entries.put(own))
                group.create_task(_put_pair(bank, f"{name}/pair/{number}"))
                group.create_task(
                    entries.put_many([entry(f"shared/{n}", number) for n in range(BATCH)])
                )
                group.create_task(counters.change(TOTAL, lambda found: increment(found, TOTAL)))
            assert await entries.get(own.id) == own
            tell(f"{name}/{number}")


async def hold(tell: Tell, url: str, seconds: float) -> None:
    """Be a program that keeps SQLite's write lock for a while."""
    db = apsw.Connection(url.removeprefix("sqlite:///"))
    db.set_busy_timeout(10_000)
    db.execute("BEGIN IMMEDIATE")
    tell("locked")
    await asyncio.sleep(seconds)
    db.execute("COMMIT")
    tell("free")


# Events -------------------------------------------------------------------------------------------


async def emit_number(bank: Bank, key: str) -> int:
    """Emit the next number of a key; the numbers are in the order of the commits."""

    async def body(tx: Transaction) -> int:
        counter = increment(await tx.collection(Counter).get(key), key)
        await tx.collection(Counter).put(counter)
        tx.emit("number", counter.value, key=key)
        return counter.value

    return await bank.transact(body)


async def emit(tell: Tell, url: str, keys: list[str], times: int) -> None:
    """Emit numbers, whoever else does the same."""
    async with perdure.open(url) as bank:
        for number in range(times):
            await asyncio.gather(*(emit_number(bank, key) for key in keys[number % 2 :]))
    tell("done")


async def receive(tell: Tell, url: str, expected: int) -> None:
    """Subscribe, and tell the events until so many have come."""
    enough = asyncio.Event()
    received = 0

    async def handler(event: EventReceived) -> None:
        nonlocal received
        tell(f"{event.key} {event.payload}")
        received += 1
        if received == expected:
            enough.set()

    config = Config(storage=StorageConfig(deliver_every=0.02))
    async with perdure.open(url, config=config) as bank:
        await bank.subscribe("receiver", handler, ["number"], from_start=True)
        await enough.wait()
        await bank.settle()


async def emit_and_receive(tell: Tell, url: str, keys: list[str], ahead: int) -> None:
    """Do both until it is killed; tells what was committed and what was received.

    The clock is ahead, so that the lease of a killed predecessor has run out.
    """

    async def handler(event: EventReceived) -> None:
        tell(f"received {event.key} {event.payload}")
        await asyncio.sleep(0.001)  # so that there is always something left to deliver

    async def drive(bank: Bank, key: str) -> None:
        while True:
            number = await emit_number(bank, key)
            tell(f"committed {key} {number}")

    async with Bank(url, clock=lambda: now() + ahead * SECOND) as bank:
        await bank.subscribe("receiver", handler, ["number"], from_start=True)
        await asyncio.gather(*(drive(bank, key) for key in keys))


# Without room -------------------------------------------------------------------------------------


async def limited(tell: Tell, url: str, size: int) -> None:
    """Fill a bank whose files may not grow beyond a size, then lift the limit."""
    async with perdure.open(url) as bank:
        early = await disks.prepare(bank)
        resource.setrlimit(resource.RLIMIT_FSIZE, (size, resource.RLIM_INFINITY))
        late = await disks.write_until_full(bank)
        await disks.assert_sound(bank, early, late)
        with disks.no_room():
            await bank.artifacts.put(bytes(2 * size))
        resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY,) * 2)
        await disks.assert_sound(bank, early, late)
        await disks.assert_works_again(bank)
        await bank.artifacts.put(bytes(2 * size))
    tell(f"{len(late)} fitted")


# Looking at damage --------------------------------------------------------------------------------


async def flip(tell: Tell, url: str, seed: int, times: int) -> None:
    """Flip one byte in copies of a bank's file, and tell what comes of it."""
    dice = random.Random(seed)
    sound = Path(url.removeprefix("sqlite:///"))
    content = sound.read_bytes()
    for number in range(times):
        place, change = dice.randrange(len(content)), dice.randrange(1, 256)
        flipped = bytearray(content)
        flipped[place] ^= change
        copy = sound.with_name(f"flipped-{seed}-{number}.db")
        copy.write_bytes(flipped)
        tell(f"{place} ^ {change}")
        found = await damage.inspect(f"sqlite:///{copy}")
        tell(msgspec.json.encode(found).decode())


# Without rights -----------------------------------------------------------------------------------


async def trespass(tell: Tell, url: str) -> None:
    """Open a bank as somebody without any rights, and tell the error."""
    async with perdure.open("memory://"):
        pass  # everything is imported: there may be no right to read the modules either
    if os.geteuid() == 0:
        os.setgroups([])
        os.setgid(65534)
        os.setuid(65534)
    try:
        async with perdure.open(url, config=Config()) as bank:
            await bank.collection(Entry).put(entry("trespasser"))
    except perdure.PerdureError as exc:
        tell(type(exc).__name__)
        tell(exc.message)
        tell(exc.hint)


TASKS: dict[str, Callable[..., Coroutine[Any, Any, None]]] = {
    task.__name__: task
    for task in (
        emit,
        emit_and_receive,
        flip,
        hold,
        limited,
        receive,
        share,
        trespass,
        write,
    )
} | (agents_at_work.TASKS | caching.TASKS | migrants.TASKS | sealing.TASKS | talkers.TASKS)
TASKS |= reflect_worker.TASKS
