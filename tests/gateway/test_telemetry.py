from __future__ import annotations

import asyncio
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import pytest
from opentelemetry import metrics, trace
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from perdure.core.errors import RateLimited
from perdure.core.messages import Message, Text, Usage, user
from perdure.gateway import telemetry
from perdure.gateway.calls import CallOptions, ModelAnswer, Request, Shape
from perdure.gateway.providers import BUILT_IN, Provider

OPENAI = BUILT_IN["openai-chat"]
BOX = Provider(name="box", base_url="http://127.0.0.1:8080/v1")
SAID = ModelAnswer(
    Message(
        "assistant",
        (Text("private words"),),
        id="r1",
        model="m-2026",
        usage=Usage(input=100, output=20, cache_read=60, reasoning=5),
    ),
    finish="tools",
)
REQUEST = Request(
    messages=(user("private words"),),
    max_tokens=50,
    temperature=0.5,
    stop=("END",),
    shape=Shape({"type": "object"}),
)


class Watch:
    """What OpenTelemetry was told."""

    def __init__(self) -> None:
        self.exporter = InMemorySpanExporter()
        self.reader = InMemoryMetricReader()
        self.tracing = TracerProvider()
        self.tracing.add_span_processor(SimpleSpanProcessor(self.exporter))
        self.metering = MeterProvider([self.reader])

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
def watch(monkeypatch: pytest.MonkeyPatch) -> Iterator[Watch]:
    """OpenTelemetry as a program sets it up, for one test. It can be set up once in a process."""
    watch = Watch()
    monkeypatch.setattr(trace, "get_tracer", watch.tracing.get_tracer)
    monkeypatch.setattr(metrics, "get_meter", watch.metering.get_meter)
    instruments = (telemetry._tracer, telemetry._durations, telemetry._tokens)
    for instrument in instruments:
        instrument.cache_clear()
    yield watch
    for instrument in instruments:
        instrument.cache_clear()
    watch.metering.shutdown()


def test_a_call_is_a_span(watch: Watch) -> None:
    options = CallOptions(purpose="judge", task="rank", agent="planner", session="planner/auth")
    with telemetry.CallSpan("chat", OPENAI, "m", request=REQUEST, options=options) as span:
        span.answered(SAID)
    (seen,) = watch.spans
    assert seen.name == "chat m"
    assert seen.kind is trace.SpanKind.CLIENT
    assert seen.status.is_unset
    assert dict(seen.attributes or {}) == {
        "gen_ai.operation.name": "chat",
        "gen_ai.provider.name": "openai",
        "gen_ai.request.model": "m",
        "server.address": "api.openai.com",
        "server.port": 443,
        "gen_ai.request.max_tokens": 50,
        "gen_ai.request.temperature": 0.5,
        "gen_ai.request.stop_sequences": ("END",),
        "gen_ai.output.type": "json",
        "gen_ai.agent.name": "planner",
        "gen_ai.conversation.id": "planner/auth",
        "perdure.purpose": "judge",
        "perdure.task": "rank",
        "gen_ai.response.id": "r1",
        "gen_ai.response.model": "m-2026",
        "gen_ai.response.finish_reasons": ("tool_call",),
        "gen_ai.usage.input_tokens": 100,
        "gen_ai.usage.output_tokens": 20,
        "gen_ai.usage.cache_read.input_tokens": 60,
        "gen_ai.usage.reasoning.output_tokens": 5,
    }


def test_a_call_is_measured(watch: Watch) -> None:
    with telemetry.CallSpan("chat", BOX, "m") as span:
        span.answered(SAID)
    (took,) = watch.points("gen_ai.client.operation.duration")
    assert took.count == 1
    assert 0 < took.sum < 1
    assert took.explicit_bounds[:3] == (0.01, 0.02, 0.04)
    assert took.explicit_bounds[-1] == 81.92
    common = {
        "gen_ai.operation.name": "chat",
        "gen_ai.provider.name": "box",
        "gen_ai.request.model": "m",
        "gen_ai.response.model": "m-2026",
        "server.address": "127.0.0.1",
        "server.port": 8080,
    }
    assert dict(took.attributes) == common
    tokens = watch.points("gen_ai.client.token.usage")
    assert {point.attributes["gen_ai.token.type"]: point.sum for point in tokens} == {
        "input": 100,
        "output": 20,
    }
    assert dict(tokens[0].attributes).items() > common.items()
    assert tokens[0].explicit_bounds[-1] == 67_108_864


def test_nothing_of_what_was_said_is_told(watch: Watch) -> None:
    def fail() -> None:
        with telemetry.CallSpan("chat", BOX, "m", request=REQUEST) as span:
            span.answered(SAID)
            raise RateLimited("You said: private words")

    with pytest.raises(RateLimited):
        fail()
    assert "private" not in "".join(span.to_json() for span in watch.spans)


@pytest.mark.parametrize(
    ("error", "name"),
    [(RateLimited(), "rate_limited"), (asyncio.CancelledError(), "CancelledError")],
)
def test_an_error_is_named(watch: Watch, error: BaseException, name: str) -> None:
    def fail() -> None:
        with telemetry.CallSpan("chat", BOX, "m"):
            raise error

    with pytest.raises(type(error)):
        fail()
    (seen,) = watch.spans
    assert seen.status.status_code is trace.StatusCode.ERROR
    assert seen.status.description is None
    assert not seen.events
    assert seen.attributes is not None
    assert seen.attributes["error.type"] == name
    (took,) = watch.points("gen_ai.client.operation.duration")
    assert took.attributes["error.type"] == name


def test_embeddings(watch: Watch) -> None:
    with telemetry.CallSpan("embeddings", BUILT_IN["local"], "wordllama") as span:
        span.embedded(Usage(input=7), 256)
    (seen,) = watch.spans
    assert seen.name == "embeddings wordllama"
    assert seen.kind is trace.SpanKind.INTERNAL  # no server is called
    assert seen.attributes is not None
    assert seen.attributes["gen_ai.embeddings.dimension.count"] == 256
    (tokens,) = watch.points("gen_ai.client.token.usage")
    assert tokens.attributes["gen_ai.token.type"] == "input"


def test_spans_of_the_http_client_hang_below_it(watch: Watch) -> None:
    tracer = watch.tracing.get_tracer("http")
    with telemetry.CallSpan("chat", BOX, "m"), tracer.start_as_current_span("POST"):
        pass
    with tracer.start_as_current_span("after"):
        pass
    below, above, after = watch.spans
    assert below.parent is not None
    assert above.context is not None
    assert below.parent.span_id == above.context.span_id
    assert after.parent is None


async def test_a_stream_may_end_in_another_context(
    watch: Watch, caplog: pytest.LogCaptureFixture
) -> None:
    async def stream() -> Any:
        with telemetry.CallSpan("chat", BOX, "m", stream=True) as span:
            span.arrived()
            yield "one"
            await asyncio.sleep(0.05)
            span.arrived()
            yield "two"

    reading = stream()
    await anext(reading)
    assert not trace.get_current_span().is_recording()  # what its reader does is not part of it
    await asyncio.create_task(anext(reading))
    await asyncio.create_task(reading.aclose())
    assert not caplog.records
    (seen,) = watch.spans
    assert seen.attributes is not None
    assert seen.attributes["gen_ai.request.stream"] is True
    first = seen.attributes["gen_ai.response.time_to_first_chunk"]
    assert isinstance(first, float)
    assert 0 <= first < 0.05
    assert seen.attributes["error.type"] == "GeneratorExit"


def test_where_nobody_listens_nothing_is_imported() -> None:
    code = """
import sys
from perdure.gateway import telemetry
from perdure.gateway.providers import BUILT_IN
with telemetry.CallSpan("chat", BUILT_IN["openai"], "m") as span:
    span.arrived()
    span.embedded(None)
assert not any(name.startswith("opentelemetry") for name in sys.modules)
"""
    subprocess.run([sys.executable, "-c", code], check=True)


def test_without_an_sdk_nothing_goes_wrong() -> None:
    with telemetry.CallSpan("chat", BOX, "m", request=REQUEST) as span:
        span.arrived()
        span.answered(SAID)
