"""The server goes away and comes back while tasks write; or another program holds the lock."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Self

import pytest

import perdure
from perdure.bank import Bank
from tests.fire.audit import Auditor, Lane
from tests.fire.records import Entry, entry
from tests.fire.worker import Step, step_key
from tests.fire.zygote import Zygote
from tests.servers import PostgresServer

LANES = 4


class Writers:
    """Tasks that write. A context manager: leaving it ends them, each after its step."""

    def __init__(self, bank: Bank) -> None:
        self.acknowledged = 0
        self.unavailable = 0
        self.lanes: list[Lane] = []
        self._bank = bank
        self._stopping = False
        self._tasks = [asyncio.create_task(self._drive(lane)) for lane in range(LANES)]

    async def until(self, acknowledged: int) -> None:
        """Wait for so many more acknowledgements."""
        goal = self.acknowledged + acknowledged
        async with asyncio.timeout(60):
            while self.acknowledged < goal:
                for task in self._tasks:
                    if task.done():
                        task.result()
                await asyncio.sleep(0.005)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, kind: type[BaseException] | None, *exc: object) -> None:
        self._stopping = True
        if kind is not None:
            for task in self._tasks:
                task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=kind is not None)

    async def _drive(self, lane: int) -> None:
        turn = 0
        while not self._stopping:
            done = await self._write(turn, lane)
            self.lanes.append(Lane(turn, lane, done))
            turn += 1

    async def _write(self, turn: int, lane: int) -> list[str]:
        """Write steps until one is interrupted; it may have taken place or not."""
        done: list[str] = []
        while not self._stopping:
            step = Step(step_key(turn, lane, len(done)))
            try:
                await step.run(self._bank)
            except perdure.Unavailable:
                self.unavailable += 1
                break
            done.append(step.key)
            self.acknowledged += 1
        return done


@pytest.mark.parametrize("how", ["stop", "kill"])
async def test_the_server_goes_away_and_comes_back(
    postgres_server: PostgresServer, postgres_url: str, how: str
) -> None:
    async with perdure.open(postgres_url) as bank:
        async with Writers(bank) as writers:
            for _ in range(3):
                await writers.until(20)
                await asyncio.to_thread(getattr(postgres_server, how))
                await asyncio.sleep(0.1)
                await asyncio.to_thread(postgres_server.start)
            await writers.until(20)
        auditor = Auditor()
        await auditor.audit(bank, writers.lanes)
        await auditor.audit_all(bank)
    assert writers.unavailable == 0, "a short outage is waited for"


async def test_a_deadline_ends_the_wait_for_the_server(
    postgres_server: PostgresServer, postgres_url: str
) -> None:
    async with perdure.open(postgres_url) as bank:
        entries = bank.collection(Entry)
        await entries.put(entry("kept"))
        await asyncio.to_thread(postgres_server.stop)
        async with asyncio.timeout(100):  # it does not come back before
            with pytest.raises((perdure.DeadlineExceeded, perdure.Unavailable)) as caught:
                await entries.put(entry("late"), perdure.Options(deadline=0.2))
            with pytest.raises((perdure.DeadlineExceeded, perdure.Unavailable)):
                await entries.get("kept", perdure.Options(deadline=0.2))
        assert caught.value.hint
        await asyncio.to_thread(postgres_server.start)
        assert await entries.get("kept") == entry("kept")
        assert await entries.get("late") is None
        assert await entries.put(entry("late")) == 1


async def test_opening_waits_for_no_server(
    postgres_server: PostgresServer, postgres_url: str
) -> None:
    await asyncio.to_thread(postgres_server.stop)
    with pytest.raises(perdure.Unavailable, match="cannot be reached") as caught:
        async with perdure.open(postgres_url):
            pass
    assert "Check that the server runs" in caught.value.hint


async def test_writers_wait_for_a_lock_that_another_program_holds(
    tmp_path: Path, zygote: Zygote
) -> None:
    url = f"sqlite:///{tmp_path}/bank.db"
    async with perdure.open(url) as bank:
        async with Writers(bank) as writers:
            await writers.until(20)
            holder = zygote.start("hold", url, seconds=1.0)
            assert await asyncio.to_thread(holder.listen, 60, 1)
            before, beats = writers.acknowledged, 0
            while not await asyncio.to_thread(holder.listen, 0, 2):
                await asyncio.sleep(0.005)
                beats += 1
            assert writers.acknowledged - before <= 2 * LANES, "nobody can have written"
            assert beats > 2, "the event loop went on"
            await writers.until(20)
        holder.wait()
        auditor = Auditor()
        await auditor.audit(bank, writers.lanes)
        await auditor.audit_all(bank)
    assert writers.unavailable == 0


async def test_a_bank_can_be_opened_and_read_while_it_is_locked(
    tmp_path: Path, zygote: Zygote
) -> None:
    url = f"sqlite:///{tmp_path}/bank.db"
    async with perdure.open(url) as bank:
        await bank.collection(Entry).put(entry("kept"))
    holder = zygote.start("hold", url, seconds=0.5)
    assert holder.listen(10, 1)
    async with perdure.open(url) as bank:
        entries = bank.collection(Entry)
        assert await entries.get("kept") == entry("kept")
        with pytest.raises(perdure.DeadlineExceeded):
            await entries.put(entry("late"), perdure.Options(deadline=0.05))
        await entries.put(entry("patient"))
        assert await entries.get("late") is None
    holder.wait()
