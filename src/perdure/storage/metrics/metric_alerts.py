"""Limits that operations should keep, and an event when they do not.

    [[metrics.alerts]]
    name = "slow writes"
    measure = "p95"
    operation = "commit"
    over = 0.05
    window = 60

When a limit is passed within the last `window` seconds, the event ``perdure.alert`` is emitted,
once; when that is over, ``perdure.alert.over``. Subscribers get them like other events: at least
once, in order per alert. Each process speaks for itself, about the calls that it has made.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Sequence
from typing import Any

import msgspec

from perdure.config.settings import AlertConfig
from perdure.core.clock import SECOND
from perdure.core.errors import PerdureError
from perdure.storage.adapter import Capability
from perdure.storage.metrics.metrics_middleware import BUCKETS, Measure, Metrics, OperationCounts
from perdure.storage.metrics.metrics_publisher import process_name
from perdure.storage.store import Store

_log = logging.getLogger(__name__)

BEGINS, ENDS = "perdure.alert", "perdure.alert.over"
_QUANTILES = {"p50": 0.50, "p95": 0.95, "p99": 0.99}
#: A window is cut into so many parts; it slides by one of them at a time.
_PARTS = 60


class Alert(msgspec.Struct, frozen=True, kw_only=True):
    """A limit was passed, or is kept again. The payload of its event."""

    name: str
    measure: str
    #: What was measured; latencies above 30 seconds are told as 30 seconds.
    value: float
    limit: float
    #: Seconds.
    window: float  # seconds
    operation: str
    collection: str
    #: When it was noticed, in microseconds.
    at: int
    #: ``host/pid`` of who noticed.
    process: str
    over: bool


class Alerts:
    """Watches the limits of one process. Call `check` every few seconds."""

    def __init__(self, metrics: Metrics, alerts: Sequence[AlertConfig], store: Store) -> None:
        self._metrics = metrics
        self._store = store
        self._emits = {Capability.OUTBOX, Capability.TRANSACTIONS} <= store.adapter.capabilities
        now, counted = store.now(), metrics.counted()
        self._watches = [_Watch(alert, now, counted) for alert in alerts]

    async def check(self) -> list[Alert]:
        """Report limits that were passed since the last check, or are kept again; returns those.

        Without an outbox in the backend they are only logged. One that cannot be stored is logged,
        and reported the next time.
        """
        now, counted = self._store.now(), self._metrics.counted()
        told: list[Alert] = []
        for watch in self._watches:
            alert = watch.look(now, counted)
            if alert is None:
                continue
            try:
                await self._tell(alert)
            except PerdureError as exc:
                _log.warning("the alert %r could not be told: %s", alert.name, exc)
                continue
            watch.raised = not alert.over
            told.append(alert)
        return told

    async def _tell(self, alert: Alert) -> None:
        if self._emits:
            async with self._store.transaction() as transaction:
                topic = ENDS if alert.over else BEGINS
                transaction.emit(topic, msgspec.structs.asdict(alert), key=alert.name)
        _log.log(
            logging.INFO if alert.over else logging.WARNING,
            "alert %r %s: %s is %g, the limit %g",
            alert.name,
            "is over" if alert.over else "begins",
            alert.measure,
            alert.value,
            alert.limit,
        )


class _Watch:
    """One limit: past counts, and whether it is passed."""

    def __init__(self, alert: AlertConfig, now: int, counted: OperationCounts) -> None:
        self.raised = False
        self._alert = alert
        self._span = int(alert.window * SECOND)
        self._past = deque([(now, self._total(counted))])

    def look(self, now: int, counted: OperationCounts) -> Alert | None:
        current = self._total(counted)
        self._remember(now, current)
        while len(self._past) > 1 and self._past[1][0] <= now - self._span:
            self._past.popleft()
        recent = Measure()
        recent.add(current)
        recent.add(self._past[0][1], -1)
        value = _value(self._alert.measure, recent)
        # Too few calls say nothing, not even that it goes on.
        passed = recent.count >= self._alert.least and value > self._alert.over
        return self._told(value, now, over=self.raised) if passed is not self.raised else None

    def _remember(self, now: int, current: Measure) -> None:
        self._past.append((now, current))
        # Looks that follow each other closely are thinned out: a long window stays affordable.
        if len(self._past) > 2 and now - self._past[-3][0] < self._span // _PARTS:
            del self._past[-2]

    def _told(self, value: float, now: int, *, over: bool) -> Alert:
        alert = self._alert
        return Alert(
            name=alert.name,
            measure=alert.measure,
            value=min(value, BUCKETS[-1]) if alert.measure in _QUANTILES else value,
            limit=alert.over,
            window=alert.window,
            operation=alert.operation,
            collection=alert.collection,
            at=now,
            process=process_name(),
            over=over,
        )

    def _total(self, counted: OperationCounts) -> Measure:
        return counted.totals(self._alert.operation, self._alert.collection)


def _value(measure: str, recent: Measure) -> float:
    values: dict[str, Any] = {
        "error_rate": recent.failures / recent.count if recent.count else 0.0,
        "errors": recent.failures,
        "calls": recent.count,
        "bytes_written": recent.bytes_written,
    }
    if measure in _QUANTILES:
        return recent.quantile(_QUANTILES[measure])
    return float(values[measure])
