"""Spans and metrics of model calls, by OpenTelemetry's conventions for generative AI.

Active where the program has set OpenTelemetry up; otherwise nothing is imported or measured.
Prompts, answers and error texts are never part of it.

    with telemetry.CallSpan("chat", provider, model, request=request, options=options) as span:
        answered = ...
        span.answered(answered)
"""

from __future__ import annotations

import functools
import sys
import time
from collections.abc import Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Any, Literal, Self, TypeAlias
from urllib.parse import urlsplit

from perdure.core.errors import GatewayError
from perdure.core.messages import Usage
from perdure.gateway.calls import CallOptions, Finish, ModelAnswer, Request
from perdure.gateway.providers import Provider

if TYPE_CHECKING:
    from opentelemetry.metrics import Histogram
    from opentelemetry.trace import Span, Tracer

Operation: TypeAlias = Literal["chat", "embeddings"]

_SCOPE = "perdure.gateway"
#: The conventions have names for some providers; others are called as we call them.
_NAMES = {"openai-chat": "openai"}
_FINISHES: dict[Finish, str] = {"tools": "tool_call", "filter": "content_filter"}
_DURATIONS = [0.01 * 2**n for n in range(14)]
_TOKENS = [4**n for n in range(14)]


class CallSpan:
    """A context manager that reports one call, if the program uses OpenTelemetry.

    Inside the block the span is the current one, so that an HTTP client's spans hang below it; not
    for a stream, whose reader may leave the block in another context.
    """

    def __init__(
        self,
        operation: Operation,
        provider: Provider,
        model: str,
        *,
        request: Request | None = None,
        options: CallOptions | None = None,
        stream: bool = False,
    ) -> None:
        self._common: dict[str, Any] = {
            "gen_ai.operation.name": operation,
            "gen_ai.provider.name": _NAMES.get(provider.name, provider.name),
            "gen_ai.request.model": model,
        }
        self._server = provider.base_url
        self._request, self._options, self._stream = request, options, stream
        self._span: Span | None = None
        self._token: Any = None
        self._first: float | None = None

    def __enter__(self) -> Self:
        # Who wants to see something has imported this; else there is nobody to tell.
        if "opentelemetry.trace" not in sys.modules and "opentelemetry.metrics" not in sys.modules:
            return self
        from opentelemetry import context, trace

        names = self._common
        names |= _server(self._server)
        self._span = _tracer().start_span(
            f"{names['gen_ai.operation.name']} {names['gen_ai.request.model']}",
            kind=trace.SpanKind.CLIENT if "server.address" in names else trace.SpanKind.INTERNAL,
            attributes={**names, **_asked(self._request, self._options, stream=self._stream)},
        )
        if not self._stream:
            self._token = context.attach(trace.set_span_in_context(self._span))
        self._began = time.perf_counter()
        return self

    def arrived(self) -> None:
        """The first delta of a stream is there. Further calls change nothing."""
        if self._span is not None and self._first is None:
            self._first = time.perf_counter() - self._began
            self._span.set_attribute("gen_ai.response.time_to_first_chunk", self._first)

    def answered(self, answered: ModelAnswer) -> None:
        if self._span is None:
            return
        message = answered.message
        finish = _FINISHES.get(answered.finish, answered.finish)
        self._span.set_attribute("gen_ai.response.finish_reasons", [finish])
        if message.id:
            self._span.set_attribute("gen_ai.response.id", message.id)
        if message.model:
            self._common["gen_ai.response.model"] = message.model
            self._span.set_attribute("gen_ai.response.model", message.model)
        self._used(message.usage)

    def embedded(self, usage: Usage | None, dimension: int = 0) -> None:
        if self._span is not None and dimension:
            self._span.set_attribute("gen_ai.embeddings.dimension.count", dimension)
        self._used(usage)

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if self._span is None:
            return
        took = time.perf_counter() - self._began
        if error is not None:
            from opentelemetry.trace import Status, StatusCode

            # Without its text, which may quote what was asked.
            name = error.kind if isinstance(error, GatewayError) else type(error).__qualname__
            self._common["error.type"] = name
            self._span.set_attribute("error.type", name)
            self._span.set_status(Status(StatusCode.ERROR))
        _durations().record(took, self._common)
        self._span.end()
        if self._token is not None:
            from opentelemetry import context

            context.detach(self._token)

    def _used(self, usage: Usage | None) -> None:
        if usage is None or self._span is None:
            return
        for name, count in (
            ("input_tokens", usage.input),
            ("output_tokens", usage.output),
            ("cache_read.input_tokens", usage.cache_read),
            ("cache_creation.input_tokens", usage.cache_write),
            ("reasoning.output_tokens", usage.reasoning),
        ):
            if count is not None:
                self._span.set_attribute(f"gen_ai.usage.{name}", count)
        for kind, count in (("input", usage.input), ("output", usage.output)):
            if count is not None:
                _tokens().record(count, {**self._common, "gen_ai.token.type": kind})


def _asked(request: Request | None, options: CallOptions | None, *, stream: bool) -> dict[str, Any]:
    said: dict[str, Any] = {"gen_ai.request.stream": stream or None}
    if request is not None:
        said |= {
            "gen_ai.request.max_tokens": request.max_tokens,
            "gen_ai.request.temperature": request.temperature,
            "gen_ai.request.top_p": request.top_p,
            "gen_ai.request.seed": request.seed,
            "gen_ai.request.stop_sequences": list(request.stop) or None,
            "gen_ai.output.type": "json" if request.shape is not None else None,
        }
    if options is not None:
        said |= {
            "gen_ai.agent.name": options.agent or None,
            "gen_ai.conversation.id": options.session or None,
            "perdure.purpose": options.purpose,
            "perdure.task": options.task or None,
        }
    return {name: value for name, value in said.items() if value is not None}


@functools.lru_cache(256)
def _server(base_url: str) -> dict[str, str | int]:
    parts = urlsplit(base_url)
    if not parts.hostname:
        return {}
    port = parts.port or (443 if parts.scheme == "https" else 80)
    return {"server.address": parts.hostname, "server.port": port}


# Instruments follow the program's providers, even if those are set later; so they are made once.


@functools.cache
def _tracer() -> Tracer:
    from opentelemetry import trace

    return trace.get_tracer(_SCOPE)


@functools.cache
def _durations() -> Histogram:
    name = "gen_ai.client.operation.duration"
    return _histogram(name, "s", "GenAI operation duration.", _DURATIONS)


@functools.cache
def _tokens() -> Histogram:
    description = "Number of input and output tokens used."
    return _histogram("gen_ai.client.token.usage", "{token}", description, _TOKENS)


def _histogram(name: str, unit: str, description: str, bounds: Sequence[float]) -> Histogram:
    from opentelemetry import metrics

    return metrics.get_meter(_SCOPE).create_histogram(
        name, unit=unit, description=description, explicit_bucket_boundaries_advisory=bounds
    )
