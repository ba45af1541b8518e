"""Stores each process's metrics for others: `perdure metrics` reads them.

Each process stores a record of its counters now and then, and overwrites it the next time. Records
of ended processes stay for a day.
"""

from __future__ import annotations

import os
import re
import socket
from datetime import datetime
from typing import TYPE_CHECKING, Annotated

import msgspec

from perdure.core import clock
from perdure.storage.adapter import Capability
from perdure.storage.delivery import Parked, Subscriber
from perdure.storage.metrics.metrics_middleware import (
    BUCKETS,
    LatencyFigures,
    Metrics,
    OperationCounts,
)
from perdure.storage.options import DEFAULT
from perdure.storage.records import Key, system_record, type_of
from perdure.storage.store import Store

if TYPE_CHECKING:
    from perdure.storage.cache import RowCache


@system_record("metrics", ttl="1d")
class ProcessMetrics(msgspec.Struct, frozen=True, kw_only=True):
    """The counts of one process since it began."""

    id: Annotated[str, Key()]  # host/pid/start
    process: str
    started: datetime
    at: datetime
    counted: OperationCounts
    #: Edges of the latency buckets. Another version of the code may have others.
    edges: tuple[float, ...] = BUCKETS
    cache: dict[str, int] = {}


#: Seconds that a process lives before it leaves its first record.
PATIENCE = 10.0
_OWN = type_of(ProcessMetrics).name
#: Looked at by every process all the time, also when it has nothing to do. The type of jobs is
#: declared in a layer above this one, so only its name can stand here.
_IDLE = frozenset({_OWN, "perdure_jobs", type_of(Subscriber).name, type_of(Parked).name})
_READS = frozenset({"get", "find", "summarize", "search"})


class Publisher:
    """Stores the counters of this process. Call `publish` now and then."""

    def __init__(
        self,
        metrics: Metrics,
        store: Store,
        cache: RowCache | None = None,
        *,
        patience: float = PATIENCE,
    ) -> None:
        self._patience = int(patience * clock.SECOND)
        self._metrics = metrics
        self._store = store
        self._cache = cache
        self._started = store.now()
        self._published = -1  # calls that had been counted then; -1: never

    async def publish(self) -> bool:
        """Store a record if anything was counted since the last one; True if stored.

        Polling for jobs and events does not count: an idle process does not write. Nor does one
        younger than `patience` seconds, so short programs leave no records. Backends in which
        records do not expire get none.
        """
        if self._store.now() - self._started < self._patience:
            return False
        counted = self._metrics.counted()
        calls = sum(each.measure.count for each in counted.figures if _matters(each))
        if (
            calls == max(self._published, 0)
            or Capability.TTL not in self._store.adapter.capabilities
        ):
            return False
        process = process_name()
        await self._store.collection(ProcessMetrics).put(
            ProcessMetrics(
                id=f"{process}/{self._started:x}",
                process=process,
                started=clock.to_datetime(self._started),
                at=clock.to_datetime(self._store.now()),
                counted=counted,
                cache=stats_of(self._cache),
            )
        )
        self._published = calls
        return True

    async def close(self) -> None:
        """Store a last record, if there is one already: a short process leaves none."""
        if self._published >= 0:
            await self.publish()


async def published(store: Store) -> list[ProcessMetrics]:
    """Records of the last day, newest first; those with other buckets are left out."""
    found = await store.collection(ProcessMetrics).query().values(DEFAULT)
    whole = [each for each in found if each.edges == BUCKETS]
    return sorted(whole, key=lambda each: each.at, reverse=True)


def stats_of(cache: RowCache | None) -> dict[str, int]:
    return {} if cache is None else msgspec.structs.asdict(cache.stats)


def _matters(figures: LatencyFigures) -> bool:
    if figures.collection == _OWN:
        return False
    return not (figures.collection in _IDLE and figures.operation in _READS)


_odd = re.compile(r"[^A-Za-z0-9._-]+")


def process_name() -> str:
    """``host/pid``."""
    return f"{_odd.sub('-', socket.gethostname())[:100] or 'unknown'}/{os.getpid()}"
