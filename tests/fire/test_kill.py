"""kill -9 of a writing process, at random moments: what was acknowledged is there, once.

PERDURE_KILLS says how often; `make crash` asks for a thousand.
"""

from __future__ import annotations

import asyncio
import os
import random
import time
from collections.abc import Iterable

import msgspec
import pytest

import perdure
from perdure.bank import Bank
from tests.conftest import DURABLE
from tests.fire.records import (
    Counter,
    Entry,
    Mirror,
    Paper,
    content_of,
    entry,
    mirror,
)
from tests.fire.worker import BATCH, TOTAL, Step, counter_key, step_key
from tests.fire.zygote import Zygote
from tests.servers import PostgresServer

pytestmark = [pytest.mark.long, pytest.mark.parametrize("store_url", DURABLE, indirect=True)]

KILLS = int(os.environ.get("PERDURE_KILLS", "30"))
LANES = 3


class Lane:
    """What one lane of a dead writer had acknowledged, and the step that it died in."""

    def __init__(self, round_: int, lane: int, told: Iterable[str]) -> None:
        prefix = f"{round_:04d}/{lane}/"
        done = [key for key in told if key.startswith(prefix)]
        assert done == [step_key(round_, lane, number) for number in range(len(done))]
        self.name = prefix.rstrip("/")
        self.done = [Step(key) for key in done]
        self.last = Step(step_key(round_, lane, len(done)))


class Found:
    """What a bank holds, by collection: of one round, or of all."""

    def __init__(self) -> None:
        self.entries: dict[str, Entry] = {}
        self.mirrors: dict[str, Mirror] = {}
        self.counters: dict[str, Counter] = {}
        self.papers: dict[str, Paper] = {}

    async def load(self, bank: Bank, prefix: str = "") -> None:
        for cls, place in (
            (Entry, self.entries),
            (Mirror, self.mirrors),
            (Counter, self.counters),
            (Paper, self.papers),
        ):
            found = await bank.collection(cls).query().prefix(prefix).values()
            place.update({record.id: record for record in found})  # type: ignore[attr-defined]


class Auditor:
    """Keeps the books: what every writer acknowledged, and what became of its last steps."""

    def __init__(self) -> None:
        self.position = ""
        self.events: list[str] = []
        #: Every step that took place.
        self.steps: list[Step] = []
        self.undone = 0

    async def audit(self, bank: Bank, lanes: list[Lane]) -> None:
        """Look at what killed writers left; each last step is there wholly or not at all."""
        await self._read_events(bank)
        found = Found()
        for round_ in sorted({lane.name.partition("/")[0] for lane in lanes}):
            await found.load(bank, f"{round_}/")
        before = len(self.steps)
        for lane in lanes:
            self.steps += lane.done
            counts = sum(step.kind == "count" for step in lane.done)
            counter = found.counters.get(lane.name)
            if lane.last.kind == "count":
                # Whether it was counted cannot be seen from anything else.
                took_place = counter is not None and counter.value == counts + 1
            else:
                took_place = _is_trace(lane.last.key, found, self.events)
            if took_place:
                self.steps.append(lane.last)
            else:
                self.undone += 1
        await self._compare(bank, found, self.steps[before:])

    async def audit_all(self, bank: Bank) -> None:
        """The same over everything there is: nothing disappeared or was added since."""
        await self._read_events(bank)
        found = Found()
        await found.load(bank)
        together = [step for step in self.steps if step.kind == "count_together"]
        total = found.counters.pop(TOTAL, Counter(TOTAL, 0))
        assert total.value == len(together)
        await self._compare(bank, found, self.steps)
        numbers = sorted(found.entries[step.key].number for step in together)
        assert numbers == list(range(1, len(together) + 1))
        assert sorted(self.events) == sorted(
            step.key for step in self.steps if step.kind == "pair"
        )
        assert [problem async for problem in bank.verify()] == []

    async def _read_events(self, bank: Bank) -> None:
        while True:
            events, self.position = await bank.store.adapter.events(self.position, 1_000)
            self.events += [msgspec.msgpack.decode(event.payload) for event in events]
            if not events:
                return

    async def _compare(self, bank: Bank, found: Found, steps: list[Step]) -> None:
        """What is found is what the steps wrote: no more, no less, nothing else."""
        numbers = {key: kept.number for key, kept in found.entries.items()}
        entries: dict[str, Entry] = {}
        mirrors: dict[str, Mirror] = {}
        counters: dict[str, Counter] = {}
        papers: set[str] = set()
        told = set(self.events)
        for step in steps:
            key = step.key
            match step.kind:
                case "batch":
                    keys = [f"{key}/{number}" for number in range(BATCH)]
                    entries.update({each: entry(each) for each in keys})
                case "count":
                    lane = counter_key(key)
                    value = counters[lane].value if lane in counters else 0
                    counters[lane] = Counter(lane, value + 1)
                case "paper":
                    papers.add(key)
                case "pair":
                    mirrors[key] = mirror(key)
                    entries[key] = entry(key)
                    assert key in told
                case "count_together":
                    entries[key] = entry(key, numbers.get(key, 0))
                case _:
                    entries[key] = entry(key)
        assert found.entries == entries
        assert found.mirrors == mirrors
        assert found.counters == counters
        assert found.papers.keys() == papers
        for paper in found.papers.values():
            assert await bank.artifacts.read(paper.artifact) == content_of(paper.id)


def _is_trace(key: str, found: Found, events: list[str]) -> bool:
    """Whether anything of a step can be seen."""
    return (
        any(each == key or each.startswith(f"{key}/") for each in found.entries)
        or key in found.mirrors
        or key in found.papers
        or key in events
    )


def wait_until_alone(url: str, server: PostgresServer) -> None:
    """The server carries out what a dead client has sent before it notices the death."""
    with server.connect(url.rpartition("/")[2]) as db:
        text = (
            "SELECT 1 FROM pg_stat_activity"
            " WHERE datname = current_database() AND pid <> pg_backend_pid()"
            " AND backend_type = 'client backend'"
        )
        deadline = time.monotonic() + 10
        while db.execute(text).fetchone() is not None:
            assert time.monotonic() < deadline
            time.sleep(0.002)


def test_nothing_acknowledged_is_lost_and_nothing_is_doubled(
    store_url: str, zygote: Zygote, request: pytest.FixtureRequest
) -> None:
    dice = random.Random(f"kills {KILLS}")
    auditor = Auditor()
    fresh: list[Lane] = []
    acknowledged = 0

    async def audit(*, everything: bool) -> None:
        async with perdure.open(store_url) as bank:
            await auditor.audit(bank, fresh)
            fresh.clear()
            if everything:
                await auditor.audit_all(bank)

    for round_ in range(KILLS):
        worker = zygote.start("write", store_url, round=round_, lanes=LANES)
        if dice.random() < 0.3:
            worker.listen(dice.uniform(0, 0.15))  # may hit while the bank is being opened
        else:
            worker.listen(10, dice.randrange(40))
            worker.listen(dice.uniform(0, 0.01))
        told = worker.kill()
        if "postgres" in store_url:
            wait_until_alone(store_url, request.getfixturevalue("postgres_server"))
        fresh += [Lane(round_, lane, told) for lane in range(LANES)]
        acknowledged += len(told)
        # Not always: the next writer also has to cope with what this one left.
        if dice.random() < 0.7:
            asyncio.run(audit(everything=False))
    asyncio.run(audit(everything=True))
    print(f"{KILLS} kills, {acknowledged} acknowledged, {auditor.undone} undone")
    assert acknowledged > KILLS
    assert auditor.undone, "no kill came in the middle of a step"


def test_a_bank_that_was_being_made_can_be_opened(
    store_url: str, zygote: Zygote, request: pytest.FixtureRequest
) -> None:
    dice = random.Random(f"births {KILLS}")

    async def audit(url: str, lane: Lane) -> None:
        async with perdure.open(url) as bank:
            auditor = Auditor()
            await auditor.audit(bank, [lane])
            await auditor.audit_all(bank)

    for number in range(KILLS // 3):
        url = f"{store_url}_{number}"
        if "postgres" in store_url:
            url = f"{store_url}?schema=born_{number}"
        worker = zygote.start("write", url, round=0, lanes=1)
        worker.listen(dice.uniform(0, 0.1), 1)
        told = worker.kill()
        if "postgres" in store_url:
            wait_until_alone(store_url, request.getfixturevalue("postgres_server"))
        asyncio.run(audit(url, Lane(0, 0, told)))
