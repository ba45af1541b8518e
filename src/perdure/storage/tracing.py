"""Spans and metrics of storage operations, by OpenTelemetry's conventions for databases.

Active where the program has set OpenTelemetry up; where it has not imported it, nothing is imported
or measured. Keys, values and error texts are never exported.

A span is named ``commit notes``, after operation and collection. It is current while the operation
runs, so spans of inner middleware are its children.
"""

from __future__ import annotations

import sys
from asyncio import CancelledError
from collections.abc import Awaitable
from functools import partial
from time import monotonic, perf_counter
from typing import TYPE_CHECKING, Any, ClassVar

from perdure.storage.middleware import (
    Call,
    Commit,
    Find,
    Get,
    Handler,
    Resident,
    Rewrite,
    SearchCall,
    Stage,
    Summarize,
    collections_of,
    operation_of,
)
from perdure.storage.rows import Put
from perdure.storage.store import Store

if TYPE_CHECKING:
    from opentelemetry.metrics import MeterProvider
    from opentelemetry.trace import Span, TracerProvider

_SCOPE = "perdure.storage"
_DURATIONS = [0.001, 0.005, 0.01, 0.05, 0.1, 0.5, 1, 5, 10]
#: Seconds between two looks whether the program has set OpenTelemetry up meanwhile.
_LOOK_EVERY = 1.0


class Tracing(Resident[Store]):
    """The middleware. Uses the given providers, else the program's, if any."""

    stage: ClassVar[Stage] = Stage.WATCH

    def __init__(
        self,
        tracer_provider: TracerProvider | None = None,
        meter_provider: MeterProvider | None = None,
    ) -> None:
        self._given = (tracer_provider, meter_provider)
        self._signals: _Signals | None = None
        self._look_at = 0.0
        self._system = "perdure"

    def attach(self, store: Store) -> None:
        super().attach(store)
        self._system = store.adapter.system

    def __call__(self, call: Call, proceed: Handler) -> Awaitable[Any]:
        # Not async itself: where nobody looks, this must cost next to nothing.
        signals = self._signals or self._looked()
        return proceed(call) if signals is None else self._watched(call, proceed, signals)

    async def note_sizes(self) -> None:
        """Report rows and bytes of each collection. Call it now and then."""
        signals = self._signals or self._looked()
        if signals is None or self._store is None:
            return
        for size in await self._store.adapter.sizes():
            place = {"db.system.name": self._system, "db.collection.name": size.collection}
            signals.rows.set(size.rows, place)
            if size.bytes is not None:
                signals.size.set(size.bytes, place)

    def _looked(self) -> _Signals | None:
        now = monotonic()
        if now >= self._look_at:
            self._look_at = now + _LOOK_EVERY
            self._signals = _found(*self._given)
        return self._signals

    async def _watched(self, call: Call, proceed: Handler, signals: _Signals) -> Any:
        collections = collections_of(call)
        common: dict[str, Any] = {
            "db.system.name": self._system,
            "db.operation.name": operation_of(call),
        }
        if len(collections) == 1:
            common["db.collection.name"] = collections[0]
        name: str = common["db.operation.name"]
        if len(collections) == 1:
            name = f"{name} {collections[0]}".strip()
        start = perf_counter()
        with signals.span(name, attributes={**common, **_asked(call, collections)}) as span:
            try:
                answer = await proceed(call)
            except BaseException as exc:
                signals.failed(exc, span, common)
                raise
            else:
                moved = _moved(call, answer)
                span.set_attributes(moved)
                signals.moved(moved, common)
                return answer
            finally:
                signals.durations.record(perf_counter() - start, common)


class _Signals:
    def __init__(self, tracers: TracerProvider | None, meters: MeterProvider | None) -> None:
        # Imported here, once: only who has set OpenTelemetry up pays for it.
        from opentelemetry import metrics, trace

        tracer = (tracers or trace.get_tracer_provider()).get_tracer(_SCOPE)
        meter = (meters or metrics.get_meter_provider()).get_meter(_SCOPE)
        self.span = partial(
            tracer.start_as_current_span,
            kind=trace.SpanKind.CLIENT,
            record_exception=False,
            set_status_on_exception=False,
        )
        self._error = trace.Status(trace.StatusCode.ERROR)
        self.durations = meter.create_histogram(
            "db.client.operation.duration",
            unit="s",
            description="Duration of database client operations.",
            explicit_bucket_boundaries_advisory=_DURATIONS,
        )
        self._io = meter.create_counter(
            "perdure.storage.io", unit="By", description="Bytes of values read and written."
        )
        self._errors = meter.create_counter(
            "perdure.storage.errors", unit="{error}", description="Operations that failed."
        )
        self.rows = meter.create_gauge(
            "perdure.storage.rows", unit="{row}", description="Rows that a collection holds."
        )
        self.size = meter.create_gauge(
            "perdure.storage.size", unit="By", description="Bytes that a collection takes."
        )

    def moved(self, moved: dict[str, int], common: dict[str, Any]) -> None:
        for direction in ("read", "written"):
            if size := moved.get(f"perdure.bytes_{direction}"):
                self._io.add(size, {**common, "perdure.io.direction": direction})

    def failed(self, error: BaseException, span: Span, common: dict[str, Any]) -> None:
        """Record the kind of an error without its text, which may quote a key."""
        if isinstance(error, CancelledError):
            common["perdure.cancelled"] = True
            span.set_attribute("perdure.cancelled", True)
            return
        common["error.type"] = type(error).__qualname__
        self._errors.add(1, common)
        span.set_attribute("error.type", type(error).__qualname__)
        span.set_status(self._error)


def _found(tracers: TracerProvider | None, meters: MeterProvider | None) -> _Signals | None:
    """The signals to use; None if OpenTelemetry is not set up."""
    if tracers is None and "opentelemetry.trace" in sys.modules:
        from opentelemetry import trace

        tracers = _real(trace.get_tracer_provider(), "opentelemetry.trace")
    if meters is None and "opentelemetry.metrics" in sys.modules:
        from opentelemetry import metrics

        meters = _real(metrics.get_meter_provider(), "opentelemetry.metrics")
    if tracers is None and meters is None:
        return None
    return _Signals(tracers, meters)


def _real(provider: Any, api: str) -> Any:
    """The provider, unless it is one of the API's no-op ones."""
    return None if type(provider).__module__.startswith(api) else provider


def _asked(call: Call, collections: list[str]) -> dict[str, Any]:
    asked: dict[str, Any] = {"perdure.consistency": call.options.consistency.value}
    size = 1
    if isinstance(call, Commit):
        size = len(call.batch.writes)
        asked["perdure.checks"] = len(call.batch.checks)
        asked["perdure.events"] = len(call.batch.events)
        if len(collections) > 1:
            asked["perdure.collections"] = collections
    elif isinstance(call, Get):
        size = len(call.keys)
    elif isinstance(call, Rewrite):
        size = len(call.recodes)
    elif isinstance(call, SearchCall):
        asked["perdure.search"] = call.kind
    if size > 1:
        asked["db.operation.batch.size"] = size
    return asked


def _moved(call: Call, answer: Any) -> dict[str, int]:
    if isinstance(call, Commit):
        puts = [write for write in call.batch.writes if isinstance(write, Put)]
        return {"perdure.bytes_written": sum(len(put.value) for put in puts)}
    if isinstance(call, Get | Find):
        rows = [row for row in answer if row is not None]
        return {
            "db.response.returned_rows": len(rows),
            "perdure.bytes_read": sum(len(row.value) for row in rows),
        }
    if isinstance(call, Summarize):
        return {"db.response.returned_rows": len(answer)}
    if isinstance(call, SearchCall):
        return {"db.response.returned_rows": call.count(answer)}
    moved = {"perdure.rows": answer}
    if isinstance(call, Rewrite):
        moved["perdure.bytes_written"] = sum(len(recode.value) for recode in call.recodes)
    return moved
