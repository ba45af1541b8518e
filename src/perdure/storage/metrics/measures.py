"""What is counted of operations. Counters only grow, as long as a process lives."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TypeAlias

import msgspec

#: Upper edges of the latency histogram, in seconds; a last bucket holds the rest.
BUCKETS = (
    *(0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05),
    *(0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0),
)


class Measure(msgspec.Struct):
    """What was seen of one kind of operation on one collection."""

    #: Calls, also those that failed or were cancelled.
    count: int = 0
    seconds: float = 0.0
    #: Rows that were read, written, deleted or rewritten.
    rows: int = 0
    bytes_read: int = 0
    bytes_written: int = 0
    #: Calls that were cancelled; those are no errors.
    cancelled: int = 0
    #: Calls per latency bucket; one more than `BUCKETS`.
    buckets: list[int] = msgspec.field(default_factory=lambda: [0] * (len(BUCKETS) + 1))
    #: Errors by the name of their type.
    errors: dict[str, int] = {}

    def quantile(self, share: float) -> float:
        """An upper bound of the latency that this share of calls kept, in seconds."""
        wanted = share * self.count
        passed = 0
        for edge, calls in zip((*BUCKETS, float("inf")), self.buckets, strict=True):
            passed += calls
            if passed >= wanted:
                return edge
        return 0.0

    def estimate(self, share: float) -> float:
        """The latency that this share of calls kept, as if they lay evenly within a bucket.

        Infinite if it lies above the last edge.
        """
        wanted = share * self.count
        passed, lower = 0, 0.0
        for edge, calls in zip(BUCKETS, self.buckets, strict=False):
            if calls and passed + calls >= wanted:
                return lower + (edge - lower) * max(wanted - passed, 0.0) / calls
            passed += calls
            lower = edge
        return float("inf") if self.count else 0.0

    @property
    def failures(self) -> int:
        """Errors of all types."""
        return sum(self.errors.values())

    def add(self, other: Measure, times: int = 1) -> None:
        """Count what another has counted as well, or with ``times=-1`` no longer."""
        self.count += times * other.count
        self.seconds += times * other.seconds
        self.rows += times * other.rows
        self.bytes_read += times * other.bytes_read
        self.bytes_written += times * other.bytes_written
        self.cancelled += times * other.cancelled
        self.buckets = [a + times * b for a, b in zip(self.buckets, other.buckets, strict=True)]
        for name, errors in other.errors.items():
            self.errors[name] = self.errors.get(name, 0) + times * errors


#: By operation ("get", "find", "summarize", "commit", "remove", "rewrite") and collection.
Measures: TypeAlias = dict[tuple[str, str], Measure]


class Figures(msgspec.Struct, frozen=True):
    """The measure of an operation on a collection."""

    operation: str
    collection: str
    measure: Measure


class Counted(msgspec.Struct, frozen=True):
    """What was counted, as it was at one moment."""

    figures: tuple[Figures, ...] = ()
    #: What commits over several collections are counted for more than once.
    repeated: Measure = msgspec.field(default_factory=Measure)

    def totals(self, operation: str = "", collection: str = "") -> Measure:
        """What was counted of an operation and a collection, or of all; each call once."""
        whole = Measure()
        for each in self.figures:
            if operation in {"", each.operation} and collection in {"", each.collection}:
                whole.add(each.measure)
        if not collection and operation in {"", "commit"}:
            whole.add(self.repeated, -1)
        return whole


def figures_of(measures: Mapping[tuple[str, str], Measure]) -> tuple[Figures, ...]:
    """Measures in order, as copies: they go on to grow."""
    return tuple(
        Figures(operation, collection, copied(measure))
        for (operation, collection), measure in sorted(measures.items())
    )


def copied(measure: Measure) -> Measure:
    """A measure that does not grow with the first."""
    copy = Measure()
    copy.add(measure)
    return copy


def together(several: Iterable[Counted]) -> Counted:
    """What several processes have counted, as one."""
    measures: Measures = {}
    repeated = Measure()
    for counted in several:
        repeated.add(counted.repeated)
        for each in counted.figures:
            measures.setdefault((each.operation, each.collection), Measure()).add(each.measure)
    return Counted(figures_of(measures), repeated)
