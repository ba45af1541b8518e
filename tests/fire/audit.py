"""Keeping the books on writers that were interrupted: each step took place once, or not at all."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TypeVar

import msgspec

from perdure.bank import Bank
from tests.fire.records import Counter, Entry, Mirror, Paper, content_of, entry, mirror
from tests.fire.worker import BATCH, TOTAL, Step, counter_key, step_key

T = TypeVar("T", bound=msgspec.Struct)


class Lane:
    """What one lane of a writer had acknowledged, and the step in which it was interrupted."""

    def __init__(self, turn: int, lane: int, told: Iterable[str]) -> None:
        prefix = f"{turn:04d}/{lane}/"
        done = [key for key in told if key.startswith(prefix)]
        assert done == [step_key(turn, lane, number) for number in range(len(done))]
        self.name = prefix.rstrip("/")
        self.done = [Step(key) for key in done]
        self.last = Step(step_key(turn, lane, len(done)))


class Found:
    """What a bank holds, by collection: of one writer, or of all."""

    def __init__(self) -> None:
        self.entries: dict[str, Entry] = {}
        self.mirrors: dict[str, Mirror] = {}
        self.counters: dict[str, Counter] = {}
        self.papers: dict[str, Paper] = {}

    async def load(self, bank: Bank, prefix: str = "") -> None:
        self.entries |= await _all(bank, Entry, prefix)
        self.mirrors |= await _all(bank, Mirror, prefix)
        self.counters |= await _all(bank, Counter, prefix)
        self.papers |= await _all(bank, Paper, prefix)


async def _all(bank: Bank, cls: type[T], prefix: str) -> dict[str, T]:
    return {
        item.key: item.value for item in await bank.collection(cls).query().prefix(prefix).execute()
    }


class Auditor:
    """Knows every step that took place, and checks that the bank shows just those."""

    def __init__(self) -> None:
        self.position = ""
        self.events: list[str] = []
        #: Every step that took place.
        self.steps: list[Step] = []
        #: Of the steps that were interrupted: how many took place, and how many did not.
        self.done = 0
        self.undone = 0

    async def audit(self, bank: Bank, lanes: list[Lane]) -> None:
        """Look at what killed writers left; each last step is there wholly or not at all."""
        await self._read_events(bank)
        found = Found()
        for turn in sorted({lane.name.partition("/")[0] for lane in lanes}):
            await found.load(bank, f"{turn}/")
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
                self.done += 1
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
        assert sorted(self.events) == sorted(step.key for step in self.steps if step.kind == "pair")
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
