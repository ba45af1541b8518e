"""Middleware that counts. It is on the path of every operation, so it does little."""

from __future__ import annotations

from asyncio import CancelledError
from bisect import bisect_left
from collections.abc import Iterable, Mapping, Sequence
from time import perf_counter
from typing import Any, ClassVar, TypeAlias

import msgspec

from perdure.storage.middleware import (
    Call,
    Commit,
    Find,
    Get,
    Handler,
    Remove,
    Rewrite,
    SearchCall,
    Stage,
    collection_of,
    collections_of,
    operation_of,
)
from perdure.storage.rows import Delete, Put


class Metrics:
    """Outermost in the chain, it sees what callers see.

    A commit over several collections counts in each: as a call, with all of its time, and with its
    own rows and bytes. `totals` counts it once. One of events alone counts in none.
    """

    stage: ClassVar[Stage] = Stage.WATCH

    def __init__(self) -> None:
        self.measures: Measures = {}
        #: What commits are counted for more than once: calls, times and errors.
        self._repeated = Measure()

    async def __call__(self, call: Call, proceed: Handler) -> Any:
        start = perf_counter()
        try:
            answer = await proceed(call)
        except BaseException as exc:
            self._failed(call, perf_counter() - start, exc)
            raise
        took = perf_counter() - start
        if isinstance(call, Commit):
            self._wrote(call.batch.writes, took)
        else:
            self._done(call, answer, took)
        return answer

    def counted(self) -> OperationCounts:
        return OperationCounts(figures_of(self.measures), copied(self._repeated))

    def totals(self, operation: str = "", collection: str = "") -> Measure:
        return self.counted().totals(operation, collection)

    def _done(self, call: Call, answer: Any, took: float) -> None:
        measure = self._measure(operation_of(call), collection_of(call))
        _note(measure, took, bisect_left(BUCKETS, took))
        if isinstance(call, Get | Find):
            sizes = [len(row.value) for row in answer if row is not None]
            measure.rows += len(sizes)
            measure.bytes_read += sum(sizes)
        elif isinstance(call, SearchCall):
            measure.rows += call.count(answer)
        elif isinstance(call, Remove):
            measure.rows += answer
        elif isinstance(call, Rewrite):
            measure.rows += answer
            measure.bytes_written += sum(len(recode.value) for recode in call.recodes)

    def _wrote(self, writes: Sequence[Put | Delete], took: float) -> None:
        bucket = bisect_left(BUCKETS, took)
        touched: dict[str, Measure] = {}
        for write in writes:
            name = write.collection
            known = touched.get(name)
            if known is None:
                known = touched[name] = self._measure("commit", name)
                _note(known, took, bucket)
            known.rows += 1
            if isinstance(write, Put):
                known.bytes_written += len(write.value)
        if not touched:
            _note(self._measure("commit", ""), took, bucket)
        elif len(touched) > 1:
            _note(self._repeated, took, bucket, len(touched) - 1)

    def _failed(self, call: Call, took: float, error: BaseException) -> None:
        names = collections_of(call) or [""]
        operation = operation_of(call)
        for name in names:
            _note_failure(self._measure(operation, name), took, error)
        for _ in range(len(names) - 1):
            _note_failure(self._repeated, took, error)

    def _measure(self, operation: str, collection: str) -> Measure:
        place = (operation, collection)
        try:
            return self.measures[place]
        except KeyError:
            measure = self.measures[place] = Measure()
            return measure


def _note(measure: Measure, took: float, bucket: int, times: int = 1) -> None:
    measure.count += times
    measure.seconds += took * times
    measure.buckets[bucket] += times


def _note_failure(measure: Measure, took: float, error: BaseException) -> None:
    _note(measure, took, bisect_left(BUCKETS, took))
    if isinstance(error, CancelledError):
        measure.cancelled += 1
    else:
        name = type(error).__name__
        measure.errors[name] = measure.errors.get(name, 0) + 1


#: Upper edges of the latency histogram, in seconds; a last bucket holds the rest.
BUCKETS = (
    *(0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05),
    *(0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0),
)


class Measure(msgspec.Struct):
    """Counts of one kind of operation on one collection."""

    count: int = 0
    seconds: float = 0.0
    rows: int = 0
    bytes_read: int = 0
    bytes_written: int = 0
    #: Calls that were cancelled; those are no errors.
    cancelled: int = 0
    #: Calls per latency bucket; one more than `BUCKETS`.
    buckets: list[int] = msgspec.field(default_factory=lambda: [0] * (len(BUCKETS) + 1))
    errors: dict[str, int] = {}

    def quantile(self, share: float) -> float:
        """This quantile of the latency, interpolated; infinite above the last edge."""
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
        return sum(self.errors.values())

    def add(self, other: Measure, times: int = 1) -> None:
        """Add another's counts, or with ``times=-1`` subtract them."""
        self.count += times * other.count
        self.seconds += times * other.seconds
        self.rows += times * other.rows
        self.bytes_read += times * other.bytes_read
        self.bytes_written += times * other.bytes_written
        self.cancelled += times * other.cancelled
        self.buckets = [a + times * b for a, b in zip(self.buckets, other.buckets, strict=True)]
        for name, errors in other.errors.items():
            self.errors[name] = self.errors.get(name, 0) + times * errors


#: By operation, as `operation_of` calls them ("get", "commit"), and collection.
Measures: TypeAlias = dict[tuple[str, str], Measure]


class LatencyFigures(msgspec.Struct, frozen=True):
    """The measure of an operation on a collection."""

    operation: str
    collection: str
    measure: Measure


class OperationCounts(msgspec.Struct, frozen=True):
    """All counts at one moment."""

    figures: tuple[LatencyFigures, ...] = ()
    repeated: Measure = msgspec.field(default_factory=Measure)

    def totals(self, operation: str = "", collection: str = "") -> Measure:
        whole = Measure()
        for each in self.figures:
            if operation in {"", each.operation} and collection in {"", each.collection}:
                whole.add(each.measure)
        if not collection and operation in {"", "commit"}:
            whole.add(self.repeated, -1)
        return whole


def figures_of(measures: Mapping[tuple[str, str], Measure]) -> tuple[LatencyFigures, ...]:
    return tuple(
        LatencyFigures(operation, collection, copied(measure))
        for (operation, collection), measure in sorted(measures.items())
    )


def copied(measure: Measure) -> Measure:
    copy = Measure()
    copy.add(measure)
    return copy


def together(several: Iterable[OperationCounts]) -> OperationCounts:
    measures: Measures = {}
    repeated = Measure()
    for counted in several:
        repeated.add(counted.repeated)
        for each in counted.figures:
            measures.setdefault((each.operation, each.collection), Measure()).add(each.measure)
    return OperationCounts(figures_of(measures), repeated)
