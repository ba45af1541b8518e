"""The middleware that counts. It is on the path of every operation, so it does little."""

from __future__ import annotations

from asyncio import CancelledError
from bisect import bisect_left
from collections.abc import Sequence
from time import perf_counter
from typing import Any, ClassVar

from perdure.storage.metrics.measures import (
    BUCKETS,
    Counted,
    Measure,
    Measures,
    copied,
    figures_of,
)
from perdure.storage.middleware import (
    Call,
    Commit,
    Find,
    Get,
    Handler,
    Remove,
    Rewrite,
    Stage,
    collection_of,
    collections_of,
    operation_of,
)
from perdure.storage.rows import Delete, Put


class Metrics:
    """Outermost in the chain, it sees what callers see.

    A commit over several collections counts in each of them: as a call, with all of its time, and
    with the rows and bytes that are theirs. `totals` counts it once. One of events alone counts
    under no collection.
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

    def counted(self) -> Counted:
        """What was counted up to now."""
        return Counted(figures_of(self.measures), copied(self._repeated))

    def totals(self, operation: str = "", collection: str = "") -> Measure:
        """What was counted of an operation and a collection, or of all; each call once."""
        return self.counted().totals(operation, collection)

    def _done(self, call: Call, answer: Any, took: float) -> None:
        measure = self._measure(operation_of(call), collection_of(call))
        _note(measure, took, bisect_left(BUCKETS, took))
        if isinstance(call, Get | Find):
            for row in answer:
                if row is not None:
                    measure.rows += 1
                    measure.bytes_read += len(row.value)
        elif isinstance(call, Remove):
            measure.rows += answer
        elif isinstance(call, Rewrite):
            measure.rows += answer
            measure.bytes_written += sum(len(recode.value) for recode in call.recodes)

    def _wrote(self, writes: Sequence[Put | Delete], took: float) -> None:
        if len(writes) == 1:  # by far the most common
            (write,) = writes
            measure = self._measure("commit", write.collection)
            _note(measure, took, bisect_left(BUCKETS, took))
            measure.rows += 1
            if isinstance(write, Put):
                measure.bytes_written += len(write.value)
            return
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
