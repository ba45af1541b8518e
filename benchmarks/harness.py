"""Keeping time: contestants that take turns, totals, percentiles, spreads."""

from __future__ import annotations

import asyncio
import gc
import os
import random
import resource
import statistics
import tempfile
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from time import perf_counter
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias, TypeVar

if TYPE_CHECKING:
    from tests.servers import PostgresServer

T = TypeVar("T")

#: Between two blocks, off the clock: lets the one before end what it does in the background.
_BREATH = 0.05
#: Under the repository, because /tmp is often memory, where an fsync costs nothing.
WORK = Path(__file__).parent / "work"


class Block(NamedTuple):
    """One contestant's work in one round: seconds in all, and for each operation."""

    seconds: float
    samples: Sequence[float]


#: Does one block of work; is told the number of the round.
Contestant: TypeAlias = Callable[[int], Awaitable[Block]]


class Tally:
    """What one contestant did in all rounds."""

    def __init__(self) -> None:
        self.blocks: list[Block] = []

    @property
    def mean(self) -> float:
        """Total time over all rounds, per operation."""
        total = sum(block.seconds for block in self.blocks)
        return total / sum(len(block.samples) for block in self.blocks)

    def rounds(self) -> list[float]:
        """The mean of each round."""
        return [block.seconds / len(block.samples) for block in self.blocks]

    def percentile(self, share: float) -> float:
        return percentile([sample for block in self.blocks for sample in block.samples], share)

    def summary(self) -> dict[str, float]:
        """Microseconds per operation."""
        return {
            "mean_us": micros(self.mean),
            "p50_us": micros(self.percentile(0.5)),
            "p95_us": micros(self.percentile(0.95)),
            "p99_us": micros(self.percentile(0.99)),
        }


class Ratio(NamedTuple):
    """A quotient of total times, and the range that holds eight rounds of ten."""

    value: float
    low: float
    high: float


def merged(tallies: Iterable[Tally]) -> Tally:
    """Several tallies as one, for a figure over all of them."""
    whole = Tally()
    whole.blocks = [block for tally in tallies for block in tally.blocks]
    return whole


def ratio(ours: Tally, theirs: Tally) -> Ratio:
    rounds = [a / b for a, b in zip(ours.rounds(), theirs.rounds(), strict=True)]
    return Ratio(
        round(ours.mean / theirs.mean, 3),
        round(percentile(rounds, 0.1), 3),
        round(percentile(rounds, 0.9), 3),
    )


def growth(small: Tally, large: Tally, share: float) -> Ratio:
    """How a percentile grew from one tally to the other."""
    rounds = [
        percentile(b.samples, share) / percentile(a.samples, share)
        for a, b in zip(small.blocks, large.blocks, strict=True)
    ]
    return Ratio(
        round(large.percentile(share) / small.percentile(share), 3),
        round(percentile(rounds, 0.1), 3),
        round(percentile(rounds, 0.9), 3),
    )


def excess(ours: Tally, theirs: Tally, share: float) -> Ratio:
    """By how many milliseconds a percentile is above the other's; no quotient, for once."""
    rounds = [
        percentile(a.samples, share) - percentile(b.samples, share)
        for a, b in zip(ours.blocks, theirs.blocks, strict=True)
    ]
    return Ratio(
        millis(ours.percentile(share) - theirs.percentile(share)),
        millis(percentile(rounds, 0.1)),
        millis(percentile(rounds, 0.9)),
    )


def percentile(values: Sequence[float], share: float) -> float:
    if len(values) < 2:
        return values[0]
    return statistics.quantiles(values, n=1_000, method="inclusive")[round(share * 1_000) - 1]


def micros(seconds: float) -> float:
    return round(seconds * 1e6, 1)


def millis(seconds: float) -> float:
    return round(seconds * 1e3, 4)


async def alternate(
    contestants: Mapping[str, Contestant], rounds: int, *, quick: bool
) -> dict[str, Tally]:
    """Let them take turns. One round more than asked for comes first and does not count.

    Each round has another order, so that nobody always follows the same one: what a block leaves
    to the disk would be paid by its successor.
    """
    names = list(contestants)
    tallies = {name: Tally() for name in names}
    order = random.Random(0)
    for number in range(rounds + 1):
        for name in order.sample(names, len(names)):
            if not quick:
                gc.collect()
                await asyncio.sleep(_BREATH)
            block = await contestants[name](number)
            if number:
                tallies[name].blocks.append(block)
    return tallies


async def awaited(operation: Callable[[T], Awaitable[object]], items: Sequence[T]) -> Block:
    """Await the operation on each item, one after another."""
    samples = []
    start = last = perf_counter()
    for item in items:
        await operation(item)
        now = perf_counter()
        samples.append(now - last)
        last = now
    return Block(last - start, samples)


def called(operation: Callable[[T], object], items: Sequence[T]) -> Block:
    """The same for a plain function."""
    samples = []
    start = last = perf_counter()
    for item in items:
        operation(item)
        now = perf_counter()
        samples.append(now - last)
        last = now
    return Block(last - start, samples)


async def together(
    operation: Callable[[T], Awaitable[object]], lanes: Sequence[Sequence[T]]
) -> Block:
    """Each lane is a task that awaits the operation on its own items."""
    start = perf_counter()
    blocks = await asyncio.gather(*(awaited(operation, lane) for lane in lanes))
    return Block(perf_counter() - start, [sample for block in blocks for sample in block.samples])


@asynccontextmanager
async def ticking(stalls: list[float]) -> AsyncIterator[None]:
    """Note, about every millisecond, by how many seconds the event loop was late."""
    interval = 0.001

    async def tick() -> None:
        while True:
            due = perf_counter() + interval
            await asyncio.sleep(interval)
            stalls.append(max(0.0, perf_counter() - due))

    begun, before = perf_counter(), len(stalls)
    ticker = asyncio.create_task(tick())
    try:
        yield
    finally:
        ticker.cancel()
        if len(stalls) == before:  # it was over before the first tick, or the loop stood still
            stalls.append(max(0.0, perf_counter() - begun - interval))


def work_folder() -> tempfile.TemporaryDirectory[str]:
    """An empty folder on a real disk, removed in the end."""
    WORK.mkdir(exist_ok=True)
    return tempfile.TemporaryDirectory(dir=WORK)


def as_installed() -> dict[str, str]:
    """Variables for a command that is measured as users have it: compiled when it was installed,
    which some test machines switch off.
    """
    return {k: v for k, v in os.environ.items() if k != "PYTHONDONTWRITEBYTECODE"}


def seconds_of_children() -> float:
    """Processor time of the processes that this one has waited for. Unlike the clock it hardly
    depends on what else the machine does.
    """
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def bytes_in(folder: Path) -> int:
    """What all files in it take."""
    return sum(file.stat().st_size for file in folder.rglob("*") if file.is_file())


def postgres_server() -> PostgresServer | None:
    """A PostgreSQL of our own; None where the tests' packages are not installed."""
    try:
        from tests.servers import PostgresServer
    except ImportError:
        return None
    return PostgresServer()


class Report:
    """The figures of one benchmark, and the lines that tell them."""

    def __init__(self) -> None:
        self.figures: dict[str, Any] = {}
        self.spread: dict[str, list[float]] = {}

    def say(self, line: str) -> None:
        print(line, flush=True)

    def ratio(self, metric: str, measured: Ratio | None) -> None:
        """Note a ratio; None if there was nobody to compare with."""
        self.figures[metric] = None if measured is None else measured.value
        if measured is not None:
            self.spread[metric] = [measured.low, measured.high]

    def tallies(self, tallies: Mapping[str, Tally]) -> None:
        """Note and tell how long each contestant took."""
        heading = "microseconds per operation"
        width = max(len(heading), *map(len, tallies))
        self.say(f"  {heading:{width}}      mean      p50      p95      p99")
        for name, tally in tallies.items():
            summary = tally.summary()
            self.say(f"  {name:{width}} " + "".join(f"{value:9.1f}" for value in summary.values()))
        self.figures["contestants"] = {name: tally.summary() for name, tally in tallies.items()}

    def as_json(self) -> dict[str, Any]:
        return {**self.figures, "spread": self.spread}
