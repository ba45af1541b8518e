"""Agents whose processes are killed, stopped and made to compete; clocks that jump.

PERDURE_KILLS says how often; `make crash` asks for a thousand.
"""

from __future__ import annotations

import asyncio
import os
import random
import signal
import time
from pathlib import Path

import pytest

from perdure.agents.agent_records import AgentMessage, ToolIntent
from perdure.bank import Bank
from tests.conftest import DURABLE
from tests.fire.agents_at_work import NAME, Journal, ModelThread, Sum, bank_at
from tests.fire.zygote import Zygote

KILLS = int(os.environ.get("PERDURE_KILLS", "30"))
PROCESSES = 8


class Books:
    """What a bank and a journal say about jobs."""

    def __init__(self, journal: Journal) -> None:
        self.journal = journal
        self.messages = dict[str, AgentMessage]()
        #: By job: what the model was told that `bump` did.
        self.told = dict[str, str]()
        self.total = 0

    async def audit(self, url: str, server: str, accepted: set[str]) -> None:
        async with bank_at(url, server).looked_at() as bank:
            await self._read(bank)
            assert [problem async for problem in bank.verify()] == []
            assert await bank.collection(ToolIntent).query().values() == []
        assert accepted <= self.messages.keys(), "what was accepted is there"
        self._check_tools()

    async def _read(self, bank: Bank) -> None:
        agent = await bank.agent(NAME, serve=False, state=Sum)
        found = await agent.messages(limit=100_000)
        assert {each.state for each in found} == {"done"}
        self.messages = {each.body.removeprefix("job "): each for each in found}
        assert len(self.messages) == len(found), "none was accepted twice"
        self.total = (await agent.state.get()).total
        turns = dict[tuple[str, int], str]()
        for info in await bank.sessions(agent=NAME):
            session = await bank.existing_session(info.name)
            for turn in await session.turns(limit=100_000):
                assert turn.status == "closed", turn.id
                roles = [each.role for each in turn.messages]
                assert roles == ["user", "assistant", "tool", "tool", "assistant"], roles
                job = turn.prompt.removeprefix("job ")
                turns[info.name, turn.number] = job
                results = {r.name: r for each in turn.messages for r in each.results}
                self.told[job] = results["bump"].text
                assert results["note"].text == f"noted {job}"
        places = {(each.session, each.turn): job for job, each in self.messages.items()}
        assert turns == places, "each message has one turn, and each turn one message"

    def _check_tools(self) -> None:
        """What must not run twice did not, and nothing is claimed that is not so."""
        lines = self.journal.lines()
        for job, message in self.messages.items():
            assert lines.count(f"begin {job}") <= 1
            told = self.told[job]
            if told == f"bumped {job}":
                assert lines.count(f"end {job}") == 1
                assert message.interrupted == ()
                assert message.reply == f"did {job}"
            elif told.startswith("Interrupted, outcome unknown"):
                assert message.interrupted == ("bump",)
            else:
                raise AssertionError(told)
            assert f"noted {job}" in lines


@pytest.mark.repeated
def test_killed_agents_lose_nothing_and_do_nothing_twice(tmp_path: Path, zygote: Zygote) -> None:
    dice = random.Random(f"agents {KILLS}")
    url, journal = f"sqlite:///{tmp_path / 'bank.db'}", tmp_path / "journal"
    accepted = set[str]()
    with ModelThread() as model:
        details = {"server": model.url, "journal": str(journal)}
        for kill in range(KILLS):
            worker = zygote.start("agent", url, name=f"k{kill}", jobs=4, **details)
            if dice.random() < 0.2:
                worker.listen(dice.uniform(0, 0.2))  # may hit while the bank is being opened
            else:
                worker.listen(20, 1 + dice.randrange(5))
                worker.listen(dice.uniform(0, 0.15))
            accepted |= set(worker.kill()) - {"ready", "over"}
        last = zygote.start("agent", url, name="last", jobs=1, **details)
        assert last.wait(60 + KILLS)[-1] == "over"
        books = Books(Journal(journal))
        asyncio.run(books.audit(url, model.url, accepted))
    unknown = sum(bool(each.interrupted) for each in books.messages.values())
    print(f"{KILLS} kills, {len(accepted)} accepted, {unknown} tools with unknown outcome")
    assert len(accepted) > KILLS
    # Each change that was acknowledged is there; of those that were interrupted, some.
    changed = [line for line in books.journal.lines() if line.startswith("changed ")]
    begun = [line for line in books.journal.lines() if line.startswith("begin ")]
    assert len(changed) <= books.total <= len(begun)


@pytest.mark.slow
@pytest.mark.parametrize("store_url", DURABLE, indirect=True)
def test_processes_that_compete_and_stall_lose_no_write(
    store_url: str, tmp_path: Path, zygote: Zygote
) -> None:
    """A process that is stopped for longer than its lease is taken over; it comes back and wants to
    go on, and must not.
    """
    dice = random.Random("stalls")
    journal = tmp_path / "journal"
    with ModelThread() as model:
        details = {"server": model.url, "journal": str(journal), "lease": 0.6, "pause": 0.1}
        first = zygote.start("agent", store_url, name="first", jobs=0, **details)
        first.wait(60)  # the collections are made
        workers = [
            zygote.start("agent", store_url, name=f"p{number}", jobs=6, **details)
            for number in range(PROCESSES)
        ]
        until = time.monotonic() + 120
        while time.monotonic() < until:
            for worker in workers:
                worker.listen(0)
            if all("over" in worker.lines for worker in workers):
                break
            stalled = dice.sample(workers, 3)
            for worker in stalled:
                worker.signal(signal.SIGSTOP)
            time.sleep(dice.uniform(0.1, 1.2))
            for worker in stalled:
                worker.signal(signal.SIGCONT)
            time.sleep(dice.uniform(0.1, 0.5))
        accepted = set[str]()
        for worker in workers:
            accepted |= set(worker.wait(60)) - {"ready", "over"}
        books = Books(Journal(journal))
        asyncio.run(books.audit(store_url, model.url, accepted))
    assert len(accepted) == PROCESSES * 6
    lines = books.journal.lines()
    changed = sum(line.startswith("changed ") for line in lines)
    assert books.total == changed, "each change that was acknowledged is there, and no other"
    unknown = sum(bool(each.interrupted) for each in books.messages.values())
    print(f"{len(accepted)} jobs, {unknown} interrupted, {changed} changes")
