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
from time import monotonic, perf_counter
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

from perdure.storage.middleware import (
    Call,
    Commit,
    Find,
    Get,
    Handler,
    Resident,
    Rewrite,
    Stage,
    Summarize,
    collections_of,
    operation_of,
)
from perdure.storage.rows import Put
from perdure.storage.store import Store

if TYPE_CHECKING:
    from opentelemetry.metrics import Meter, MeterProvider
    from opentelemetry.trace import Span, Tracer, TracerProvider

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
        if signals is None or signals.meters is None or self._store is None:
            return
        for size in await self._store.adapter.sizes():
            place = {"db.system.name": self._system, "db.collection.name": size.collection}
            signals.meters.rows.set(size.rows, place)
            if size.bytes is not None:
                signals.meters.size.set(size.bytes, place)

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
        span = token = None
        if signals.spans is not None:
            span, token = signals.spans.begin(call, collections, common)
        start = perf_counter()
        try:
            answer = await proceed(call)
        except BaseException as exc:
            signals.failed(exc, span, common)
            raise
        else:
            moved = _moved(call, answer)
            if span is not None:
                span.set_attributes(moved)
            if signals.meters is not None:
                signals.meters.moved(moved, common)
            return answer
        finally:
            if signals.meters is not None:
                signals.meters.durations.record(perf_counter() - start, common)
            if signals.spans is not None and span is not None:
                signals.spans.end(span, token)


class _Spans:
    def __init__(self, tracer: Tracer) -> None:
        # Imported here, once: only who has set OpenTelemetry up pays for it.
        from opentelemetry import context, trace

        self._tracer = tracer
        self._context = context
        self._kind = trace.SpanKind.CLIENT
        self._within = trace.set_span_in_context
        self._error = trace.Status(trace.StatusCode.ERROR)

    def begin(self, call: Call, collections: list[str], common: dict[str, Any]) -> tuple[Span, Any]:
        name: str = common["db.operation.name"]
        if len(collections) == 1:
            name = f"{name} {collections[0]}".strip()
        attributes = {**common, **_asked(call, collections)}
        span = self._tracer.start_span(name, kind=self._kind, attributes=attributes)
        return span, self._context.attach(self._within(span))

    def end(self, span: Span, token: Any) -> None:
        span.end()
        self._context.detach(token)

    def fail(self, span: Span, kind: str) -> None:
        span.set_attribute("error.type", kind)
        span.set_status(self._error)


class _Meters:
    def __init__(self, meter: Meter) -> None:
        self.durations = meter.create_histogram(
            "db.client.operation.duration",
            unit="s",
            description="Duration of database client operations.",
            explicit_bucket_boundaries_advisory=_DURATIONS,
        )
        self.io = meter.create_counter(
            "perdure.storage.io", unit="By", description="Bytes of values read and written."
        )
        self.errors = meter.create_counter(
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
                self.io.add(size, {**common, "perdure.io.direction": direction})


class _Signals(NamedTuple):
    spans: _Spans | None
    meters: _Meters | None

    def failed(self, error: BaseException, span: Span | None, common: dict[str, Any]) -> None:
        """Record the kind of an error without its text, which may quote a key."""
        if isinstance(error, CancelledError):
            common["perdure.cancelled"] = True
            if span is not None:
                span.set_attribute("perdure.cancelled", True)
            return
        common["error.type"] = type(error).__qualname__
        if self.meters is not None:
            self.meters.errors.add(1, common)
        if self.spans is not None and span is not None:
            self.spans.fail(span, type(error).__qualname__)


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
    return _Signals(
        None if tracers is None else _Spans(tracers.get_tracer(_SCOPE)),
        None if meters is None else _Meters(meters.get_meter(_SCOPE)),
    )


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
    moved = {"perdure.rows": answer}
    if isinstance(call, Rewrite):
        moved["perdure.bytes_written"] = sum(len(recode.value) for recode in call.recodes)
    return moved
