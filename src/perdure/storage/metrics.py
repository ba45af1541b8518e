"""Metrics: how often, how long, how much, and what went wrong."""

from __future__ import annotations

import bisect
import time
from typing import Any, ClassVar

import msgspec

from perdure.core.errors import PerdureError
from perdure.storage.adapter import Put
from perdure.storage.middleware import Call, Commit, Find, Get, Handler, Stage, collection_of

#: Upper edges of the latency histogram, in seconds; a last bucket holds the rest.
BUCKETS = (0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 1.0, 5.0)


class Measure(msgspec.Struct):
    """What was seen of one kind of operation on one collection."""

    count: int = 0
    seconds: float = 0.0
    bytes_read: int = 0
    bytes_written: int = 0
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


class Metrics:
    """The middleware. Outermost in the chain, it sees what callers see."""

    stage: ClassVar[Stage] = Stage.WATCH

    def __init__(self) -> None:
        #: By operation ("get", "find", "summarize", "commit", "remove") and collection.
        self.measures: dict[tuple[str, str], Measure] = {}

    async def __call__(self, call: Call, proceed: Handler) -> Any:
        place = (_NAMES[type(call)], collection_of(call))
        try:
            measure = self.measures[place]
        except KeyError:
            measure = self.measures[place] = Measure()
        start = time.perf_counter()
        try:
            answer = await proceed(call)
        except PerdureError as exc:
            name = type(exc).__name__
            measure.errors[name] = measure.errors.get(name, 0) + 1
            raise
        finally:
            took = time.perf_counter() - start
            measure.count += 1
            measure.seconds += took
            measure.buckets[bisect.bisect_left(BUCKETS, took)] += 1
        if isinstance(call, Commit):
            for write in call.batch.writes:
                if isinstance(write, Put):
                    measure.bytes_written += len(write.value)
        elif isinstance(call, Get | Find):
            measure.bytes_read += sum(len(row.value) for row in answer if row is not None)
        return answer


_NAMES = {kind: kind.__name__.lower() for kind in Call.__args__}
