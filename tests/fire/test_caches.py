"""Several processes with caches on one bank, one of them writing."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.fire import caching
from tests.fire.caching import KEY
from tests.fire.zygote import Worker, Zygote
from tests.storage.caching import opened
from tests.valkey_server import ValkeyServer

#: Reads that were told: when they began, and what they found.
Told = list[tuple[float, int]]


def told_by(worker: Worker) -> Told:
    lines = [line.split() for line in worker.lines if line != "ready"]
    return [(float(start), int(found)) for start, found, *rest in lines if not rest]


def stats_of(worker: Worker) -> list[int]:
    return [int(part) for part in worker.lines[-1].split()]


def start(zygote: Zygote, url: str, levels: list[str], shared: str = "") -> dict[str, Worker]:
    """Processes that read, one for each level."""
    workers = {level: zygote.start("watch", url, level=level, shared=shared) for level in levels}
    for worker in workers.values():
        assert worker.listen(30, 1)
    return workers


async def reads_on(worker: Worker) -> None:
    """Wait until a process has read for a while; one that waits for a server would not."""
    since = time.monotonic()
    await asyncio.sleep(0.4)
    while sum(begun > since for begun, _ in told_by(worker)) < 20:
        assert time.monotonic() < since + 30, "it waits for the server"
        await asyncio.to_thread(worker.listen, 0.1)


@pytest.fixture
def url(tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path / 'bank.db'}"


@pytest.fixture
def valkey(valkey_server: ValkeyServer) -> Iterator[str]:
    yield f"valkey://127.0.0.1:{valkey_server.port}/0"
    valkey_server.start()


@pytest.mark.repeated
async def test_the_levels_differ_across_processes(url: str, zygote: Zygote) -> None:
    async with opened(url) as bank:
        await bank.put(1, KEY)
        workers = start(zygote, url, ["eventual", "1.0", "strong"])
        acknowledged = []
        for number in range(2, 5):
            await asyncio.sleep(1.3)
            await bank.put(number, KEY)
            acknowledged.append((time.monotonic(), number))
        await asyncio.sleep(1.3)
    await caching.stop(url)
    for worker in workers.values():
        worker.wait()

    assert {found for _, found in told_by(workers["eventual"])} == {1}, "its minute is not over"
    old = 0
    for at, number in acknowledged:
        assert all(found >= number for begun, found in told_by(workers["strong"]) if begun >= at)
        bounded = [(begun, found) for begun, found in told_by(workers["1.0"]) if begun >= at]
        assert all(found >= number for begun, found in bounded if begun >= at + 1.0)
        old += sum(found < number for _, found in bounded)
    assert old > 0, "a bounded read may be old, and sometimes is"
    assert stats_of(workers["1.0"])[0] > 10 * stats_of(workers["1.0"])[2], "mostly from memory"


@pytest.mark.repeated
async def test_a_shared_cache_tells_other_processes(url: str, zygote: Zygote, valkey: str) -> None:
    async with opened(url, shared=valkey) as bank:
        await bank.put(1, KEY)
        workers = start(zygote, url, ["eventual"], valkey)
        acknowledged = []
        for number in range(2, 7):
            await asyncio.sleep(0.1)
            await bank.put(number, KEY)
            acknowledged.append((time.monotonic(), number))
        await asyncio.sleep(0.1)
    await caching.stop(url)
    workers["eventual"].wait()
    told = told_by(workers["eventual"])
    late = [
        next(begun for begun, found in told if found >= number) - at for at, number in acknowledged
    ]
    assert max(late) < 10, "after moments, and not after a minute"
    assert stats_of(workers["eventual"])[0] > len(told) / 2


@pytest.mark.repeated
async def test_the_shared_cache_is_killed_under_load(
    url: str, zygote: Zygote, valkey: str, valkey_server: ValkeyServer
) -> None:
    async with opened(url) as bank:
        await bank.put(0, KEY)
    writer = zygote.start("count_up", url, shared=valkey)
    assert writer.listen(30, 1)
    workers = start(zygote, url, ["eventual", "0.05", "strong"], valkey)
    for _ in range(2):
        await reads_on(workers["eventual"])
        await asyncio.to_thread(valkey_server.kill)
        await reads_on(workers["eventual"])
        await asyncio.to_thread(valkey_server.start)
    back = time.monotonic()
    while len({found for begun, found in told_by(workers["eventual"]) if begun > back}) < 5:
        assert time.monotonic() < back + 30, "messages do not arrive any more"
        await asyncio.to_thread(workers["eventual"].listen, 0.1)
    await caching.stop(url)
    writer.wait()
    for worker in workers.values():
        worker.wait()

    acknowledged = told_by(writer)
    assert len(acknowledged) > 50
    for level, age in (("strong", 0.0), ("0.05", 0.05)):
        for begun, found in told_by(workers[level]):
            assert found >= max((n for at, n in acknowledged if at <= begun - age), default=0)
