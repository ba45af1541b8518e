"""Spans and metrics of operations, as OpenTelemetry's own SDK receives them."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import time
from collections.abc import Iterator
from typing import Any

import pytest
from opentelemetry import metrics, trace
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import SpanKind, StatusCode

from perdure.core.errors import Conflict
from perdure.storage import tracing
from perdure.storage.backends.memory import MemoryAdapter
from perdure.storage.middleware import Call, Commit, Find, Get, Handler
from perdure.storage.options import DEFAULT, STRONG, Options
from perdure.storage.rows import Recode
from perdure.storage.store import Store
from perdure.storage.tracing import Tracing
from tests.conftest import MakeStore
from tests.storage.notes import Author, Note


class Watch:
    """What OpenTelemetry was told."""

    def __init__(self) -> None:
        self.exporter = InMemorySpanExporter()
        self.reader = InMemoryMetricReader()
        self.tracers = TracerProvider()
        self.tracers.add_span_processor(SimpleSpanProcessor(self.exporter))
        self.meters = MeterProvider([self.reader])

    @property
    def spans(self) -> list[ReadableSpan]:
        return list(self.exporter.get_finished_spans())

    def points(self, name: str) -> list[Any]:
        data = self.reader.get_metrics_data()
        return [
            point
            for resource in (data.resource_metrics if data else ())
            for scope in resource.scope_metrics
            for metric in scope.metrics
            if metric.name == name
            for point in metric.data.data_points
        ]


@pytest.fixture
def watch() -> Iterator[Watch]:
    watch = Watch()
    yield watch
    watch.tracers.shutdown()
    watch.meters.shutdown()


@pytest.fixture
def traced(watch: Watch) -> Store:
    return Store(MemoryAdapter(), middleware=[Tracing(watch.tracers, watch.meters)])


def attributes(span: ReadableSpan) -> dict[str, Any]:
    return dict(span.attributes or {})


async def test_spans(traced: Store, watch: Watch) -> None:
    notes = traced.collection(Note)
    await notes.put(Note("secret-key", text="secret words"))
    await notes.put_many([Note("a"), Note("b")])
    await notes.get("secret-key", STRONG)
    await notes.get_many(["a", "nobody"])
    await notes.query().where("author", "=", "secret name").values()
    await notes.query().count()
    rows = [row for row in await traced.read("notes", ["a"], DEFAULT) if row]
    await traced.rewrite("notes", [Recode(row, row.value, row.content_type) for row in rows])
    await notes.query().prefix("b").delete()
    async with traced.transaction() as transaction:
        await transaction.collection(Note).put(Note("c"))
        await transaction.collection(Author).put(Author("x", "Ada"))
        transaction.emit("secret.topic", "secret payload")
    spans = {span.name: attributes(span) for span in watch.spans if "perdure_" not in span.name}
    assert set(spans) == {
        *("commit notes", "get notes", "find notes", "summarize notes", "rewrite notes"),
        *("remove notes", "commit"),
    }
    first = next(span for span in watch.spans if span.name == "commit notes")
    assert first.kind is SpanKind.CLIENT
    assert first.status.status_code is StatusCode.UNSET
    one = attributes(first)
    assert one.pop("perdure.bytes_written") > len("secret words")
    assert one == {
        "db.system.name": "memory",
        "db.operation.name": "commit",
        "db.collection.name": "notes",
        "perdure.consistency": "eventual",
        "perdure.checks": 0,
        "perdure.events": 0,
    }
    assert spans["commit notes"]["db.operation.batch.size"] == 2
    assert spans["find notes"]["db.response.returned_rows"] == 0
    assert spans["summarize notes"]["db.response.returned_rows"] == 1
    assert (spans["remove notes"]["perdure.rows"], spans["rewrite notes"]["perdure.rows"]) == (1, 1)
    both = spans["commit"]
    assert both["perdure.collections"] == ("authors", "notes")
    assert "db.collection.name" not in both
    assert both["perdure.events"] == 1
    gets = [attributes(span) for span in watch.spans if span.name == "get notes"]
    assert [span["perdure.consistency"] for span in gets] == ["strong", "eventual", "eventual"]
    assert [span["db.response.returned_rows"] for span in gets] == [1, 1, 1]
    assert gets[0]["perdure.bytes_read"] == first.attributes["perdure.bytes_written"]  # type: ignore[index]
    assert not any("secret" in span.to_json() for span in watch.spans)


async def test_errors_and_cancellations(watch: Watch) -> None:
    async def odd(call: Call, proceed: Handler) -> Any:
        if isinstance(call, Find):
            raise TypeError("secret")
        if isinstance(call, Get):
            await asyncio.sleep(60)
        return await proceed(call)

    tracer = Tracing(watch.tracers, watch.meters)
    store = Store(MemoryAdapter(), middleware=[tracer, odd])
    notes = store.collection(Note)
    await notes.put(Note("secret"))
    with pytest.raises(Conflict):
        await notes.put(Note("secret"), Options(expected=5))
    with pytest.raises(TypeError, match="secret"):
        await notes.query().values()
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.01):
            await notes.get("secret")
    _, conflict, broken, cancelled = [s for s in watch.spans if "perdure_" not in s.name]
    assert attributes(conflict)["error.type"] == "Conflict"
    assert attributes(broken)["error.type"] == "TypeError"
    assert conflict.status.status_code is broken.status.status_code is StatusCode.ERROR
    assert attributes(cancelled)["perdure.cancelled"] is True
    assert cancelled.status.status_code is StatusCode.UNSET
    assert not any(span.events for span in watch.spans)
    assert not any("secret" in span.to_json() for span in watch.spans)
    errors = {point.attributes["error.type"]: point.value for point in watch.points(ERRORS)}
    assert errors == {"Conflict": 1, "TypeError": 1}
    durations = [point.attributes for point in watch.points(DURATION)]
    assert {each.get("error.type") for each in durations} == {None, "Conflict", "TypeError"}
    assert sum(each.get("perdure.cancelled", False) for each in durations) == 1
    assert trace.get_current_span() is trace.INVALID_SPAN


ERRORS, DURATION = "perdure.storage.errors", "db.client.operation.duration"


async def test_metrics(traced: Store, watch: Watch) -> None:
    notes = traced.collection(Note)
    for number in range(3):
        await notes.put(Note(f"n{number}", text="x" * 100))
    await notes.get("n0")
    await notes.query().values()
    places = [
        (point.attributes["db.operation.name"], point.attributes["db.collection.name"], point.count)
        for point in watch.points(DURATION)
        if "perdure_" not in point.attributes["db.collection.name"]
    ]
    assert sorted(places) == [("commit", "notes", 3), ("find", "notes", 1), ("get", "notes", 1)]
    assert watch.points(DURATION)[0].explicit_bounds[0] == 0.001
    moved = {
        (point.attributes["db.operation.name"], point.attributes["perdure.io.direction"]): point
        for point in watch.points("perdure.storage.io")
        if point.attributes["db.collection.name"] == "notes"
    }
    assert moved["commit", "written"].value == moved["find", "read"].value > 300
    assert moved["get", "read"].value * 3 == moved["find", "read"].value


async def test_sizes(watch: Watch, make_store: MakeStore) -> None:
    store = await make_store()
    tracing = Tracing(watch.tracers, watch.meters)
    tracing.attach(store)
    await store.collection(Note).put_many([Note("a"), Note("b")])
    await tracing.note_sizes()
    found = {
        point.attributes["db.collection.name"]: point.value
        for point in watch.points("perdure.storage.rows")
    }
    assert found["notes"] == 2
    (size,) = [
        point
        for point in watch.points("perdure.storage.size")
        if point.attributes["db.collection.name"] == "notes"
    ]
    assert size.value > 0
    assert size.attributes["db.system.name"] in {"memory", "sqlite", "postgresql"}


async def test_spans_hang_below_the_programs_own(traced: Store, watch: Watch) -> None:
    tracer = watch.tracers.get_tracer("program")
    notes = traced.collection(Note)
    await notes.make()

    async def work(name: str) -> None:
        with tracer.start_as_current_span(name):
            await notes.put(Note(name))
            await asyncio.sleep(0)
            await asyncio.gather(notes.get(name), notes.get("nobody"))

    await asyncio.gather(*(work(f"task {number}") for number in range(5)))
    own = {span.context.span_id: span for span in watch.spans if span.name.startswith("task")}
    below = [span for span in watch.spans if span.name in {"commit notes", "get notes"}]
    assert len(below) == 15
    for span in below:
        assert span.parent is not None
        parent = own[span.parent.span_id]
        assert span.context.trace_id == parent.context.trace_id
    counts = [sum(s.parent.span_id == id for s in below if s.parent) for id in own]
    assert counts == [3] * 5


async def test_operations_within_operations(watch: Watch) -> None:
    async def look_first(call: Call, proceed: Handler) -> Any:
        if isinstance(call, Commit) and call.batch.writes[0].collection == "notes":
            await store.collection(Author).get("x")
        return await proceed(call)

    store = Store(MemoryAdapter(), middleware=[Tracing(watch.tracers), look_first])
    await store.collection(Author).put(Author("x", "Ada"))
    await store.collection(Note).make()
    watch.exporter.clear()
    await store.collection(Note).put(Note("a"))
    inner, outer = watch.spans
    assert (inner.name, outer.name) == ("get authors", "commit notes")
    assert inner.parent is not None
    assert inner.parent.span_id == outer.context.span_id
    assert watch.points(DURATION) == []


async def test_the_programs_own_providers(watch: Watch, monkeypatch: pytest.MonkeyPatch) -> None:
    """Looked for again and again, since a program may set them up late."""
    store = Store(MemoryAdapter(), middleware=[Tracing()])
    notes = store.collection(Note)
    await notes.put(Note("a"))
    monkeypatch.setattr(trace, "get_tracer_provider", lambda: watch.tracers)
    monkeypatch.setattr(metrics, "get_meter_provider", lambda: watch.meters)
    await notes.put(Note("b"))
    assert watch.spans == []
    moment = time.monotonic() + 2
    monkeypatch.setattr(tracing, "monotonic", lambda: moment)
    await notes.put(Note("c"))
    assert [span.name for span in watch.spans] == ["commit notes"]
    assert len(watch.points(DURATION)) == 1


async def test_nobody_looks() -> None:
    tracing = Tracing()
    call = Get("notes", ["a"], DEFAULT)
    asked: list[Call] = []

    async def proceed(call: Call) -> list[None]:
        asked.append(call)
        return [None]

    coroutine = proceed(call)
    # Not even a coroutine is put around it.
    assert tracing(call, lambda _: coroutine) is coroutine
    assert await coroutine == [None]
    await tracing.note_sizes()


def test_opentelemetry_is_not_imported() -> None:
    code = """
import asyncio, sys, perdure
from perdure.storage.backends.memory import MemoryAdapter
from perdure.storage.store import Store
from perdure.storage.tracing import Tracing
from tests.storage.notes import Author
async def main():
    store = Store(MemoryAdapter(), middleware=[Tracing()])
    await store.collection(Author).put(Author("a", "b"))
asyncio.run(main())
print([name for name in sys.modules if name.startswith("opentelemetry")])
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"
