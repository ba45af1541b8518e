"""Metrics for Prometheus: the text format, and an ASGI application that answers with it.

    app = prometheus.asgi(bank)             # GET /metrics; mount it, or serve it by itself

Both the text format 0.0.4 and OpenMetrics 1.0 are spoken; who scrapes says which by `Accept`.
Labels are names of operations, collections and error types, never keys or content.
"""

from __future__ import annotations

import logging
import time
from collections.abc import (
    Awaitable,
    Callable,
    Iterable,
    Iterator,
    Mapping,
    MutableMapping,
    Sequence,
)
from typing import Any, NamedTuple, Protocol, TypeAlias

from perdure.core.errors import PerdureError
from perdure.storage.adapter import Size
from perdure.storage.metrics.measures import BUCKETS, Counted
from perdure.storage.metrics.middleware import Metrics
from perdure.storage.metrics.publishing import Cached, stats_of
from perdure.storage.store import Store

_log = logging.getLogger(__name__)

TEXT = "text/plain; version=0.0.4; charset=utf-8"
OPEN = "application/openmetrics-text; version=1.0.0; charset=utf-8"
#: Counting all rows takes a while in a large store, and scrapes come often.
SIZES_EVERY = 60.0

Labels: TypeAlias = tuple[tuple[str, str], ...]


class Source(NamedTuple):
    """What one process has to tell."""

    counted: Counted
    cache: Mapping[str, int] = {}
    #: Its name, if there are several.
    process: str = ""


class _Sample(NamedTuple):
    suffix: str
    labels: Labels
    value: float


class _Family(NamedTuple):
    name: str
    kind: str
    help: str
    samples: list[_Sample]


# The text -----------------------------------------------------------------------------------------


def render(
    sources: Iterable[Source], sizes: Sequence[Size] = (), *, openmetrics: bool = False
) -> str:
    """The text of a scrape. Families without samples are left out."""
    lines: list[str] = []
    for family in _families(list(sources), sizes):
        if family.samples:
            lines += _rendered(family, openmetrics=openmetrics)
    if openmetrics:
        lines.append("# EOF")
    return "\n".join(lines) + "\n" if lines else ""


def _families(sources: list[Source], sizes: Sequence[Size]) -> Iterator[_Family]:
    figures = [
        (each.measure, _labels(source, operation=each.operation, collection=each.collection))
        for source in sources
        for each in source.counted.figures
    ]
    yield _Family(
        "perdure_storage_operations",
        "counter",
        "Calls by operation and collection; one over several collections counts in each.",
        [_Sample("_total", labels, measure.count) for measure, labels in figures],
    )
    yield _Family(
        "perdure_storage_calls",
        "counter",
        "Calls by operation, each counted once.",
        [
            _Sample("_total", _labels(source, operation=operation), totals.count)
            for source in sources
            for operation in sorted({each.operation for each in source.counted.figures})
            for totals in [source.counted.totals(operation)]
        ],
    )
    yield _Family(
        "perdure_storage_operation_seconds",
        "histogram",
        "How long calls took, waiting included.",
        [
            sample
            for measure, labels in figures
            for sample in _histogram(measure.buckets, measure.seconds, labels)
        ],
    )
    yield _Family(
        "perdure_storage_bytes",
        "counter",
        "Bytes of values that were read and written, before they are compressed.",
        [
            _Sample("_total", (*labels, ("direction", direction)), count)
            for measure, labels in figures
            for direction, count in (
                ("read", measure.bytes_read),
                ("written", measure.bytes_written),
            )
        ],
    )
    yield _Family(
        "perdure_storage_operation_rows",
        "counter",
        "Rows that were read, written, deleted or rewritten.",
        [_Sample("_total", labels, measure.rows) for measure, labels in figures],
    )
    yield _Family(
        "perdure_storage_errors",
        "counter",
        "Calls that failed, by the type of the error.",
        [
            _Sample("_total", (*labels, ("type", kind)), count)
            for measure, labels in figures
            for kind, count in sorted(measure.errors.items())
        ],
    )
    yield _Family(
        "perdure_storage_cancelled",
        "counter",
        "Calls that were cancelled.",
        [_Sample("_total", labels, measure.cancelled) for measure, labels in figures],
    )
    yield from _cache(sources)
    yield _Family(
        "perdure_storage_rows",
        "gauge",
        "Rows that a collection holds.",
        [_Sample("", (("collection", size.collection),), size.rows) for size in sizes],
    )
    yield _Family(
        "perdure_storage_size_bytes",
        "gauge",
        "Bytes that a collection takes, with its indexes.",
        [
            _Sample("", (("collection", size.collection),), size.bytes)
            for size in sizes
            if size.bytes is not None
        ],
    )


def _cache(sources: list[Source]) -> Iterator[_Family]:
    for name in sorted({name for source in sources for name in source.cache}):
        yield _Family(
            f"perdure_storage_cache_{name}",
            "counter",
            f"Cache {name.replace('_', ' ')}.",
            [
                _Sample("_total", _labels(source), source.cache[name])
                for source in sources
                if name in source.cache
            ],
        )


def _labels(source: Source, **labels: str) -> Labels:
    own = (("process", source.process),) if source.process else ()
    return (*labels.items(), *own)


def _histogram(buckets: Sequence[int], seconds: float, labels: Labels) -> Iterator[_Sample]:
    passed = 0
    for edge, calls in zip((*BUCKETS, float("inf")), buckets, strict=True):
        passed += calls
        yield _Sample("_bucket", (*labels, ("le", _number(edge))), passed)
    yield _Sample("_sum", labels, seconds)
    yield _Sample("_count", labels, passed)


def _rendered(family: _Family, *, openmetrics: bool) -> Iterator[str]:
    # OpenMetrics names the family of a counter, the older format the counter itself.
    total = "_total" if family.kind == "counter" and not openmetrics else ""
    yield f"# HELP {family.name}{total} {_escaped(family.help)}"
    yield f"# TYPE {family.name}{total} {family.kind}"
    for sample in family.samples:
        labels = ",".join(f'{name}="{_quoted(value)}"' for name, value in sample.labels)
        place = f"{family.name}{sample.suffix}" + (f"{{{labels}}}" if labels else "")
        yield f"{place} {_number(sample.value)}"


def _number(value: float) -> str:
    if value == float("inf"):
        return "+Inf"
    return repr(value)


def _escaped(text: str) -> str:
    return text.replace("\\", r"\\").replace("\n", r"\n")


def _quoted(text: str) -> str:
    return _escaped(text).replace('"', r"\"")


# The application ----------------------------------------------------------------------------------

Scope: TypeAlias = MutableMapping[str, Any]
Receive: TypeAlias = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send: TypeAlias = Callable[[MutableMapping[str, Any]], Awaitable[None]]
Application: TypeAlias = Callable[[Scope, Receive, Send], Awaitable[None]]


class Observed(Protocol):
    """What can be scraped: a bank, or a `Scraped` of a store and its metrics."""

    @property
    def store(self) -> Store: ...
    @property
    def metrics(self) -> Metrics: ...


class Scraped(NamedTuple):
    """A store without a bank around it, and the metrics in its chain."""

    store: Store
    metrics: Metrics


def asgi(
    observed: Observed, *, cache: Cached | None = None, sizes_every: float = SIZES_EVERY
) -> Application:
    """An ASGI application that answers ``GET /metrics`` with what this process has counted.

    It can be served by itself or mounted anywhere, and has to run in the event loop of the bank.
    Sizes are looked up at most every `sizes_every` seconds, and left out while the store is in
    trouble. There is no access control: let only those reach it who may see the names of your
    collections.
    """
    return _Endpoint(observed, cache, sizes_every)


class _Endpoint:
    def __init__(self, observed: Observed, cache: Cached | None, sizes_every: float) -> None:
        self._observed = observed
        self._cache = cache
        self._sizes_every = sizes_every
        self._sizes: list[Size] = []
        self._sizes_due = 0.0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        match scope["type"]:
            case "lifespan":
                await _live(receive, send)
            case "http":
                await self._answer(scope, send)
            case _:  # a WebSocket that nobody answers
                await receive()
                await send({"type": "websocket.close", "code": 1000})

    async def _answer(self, scope: Scope, send: Send) -> None:
        if not _is_here(scope):
            await _respond(send, 404, b"There is only /metrics here.\n")
        elif scope["method"] not in {"GET", "HEAD"}:
            await _respond(send, 405, b"Only GET and HEAD.\n", (b"allow", b"GET, HEAD"))
        else:
            openmetrics = _wants_openmetrics(scope)
            body = (await self._page(openmetrics=openmetrics)).encode()
            kind = (OPEN if openmetrics else TEXT).encode()
            headers = ((b"content-type", kind), (b"vary", b"accept"))
            await _respond(send, 200, body, *headers, empty=scope["method"] == "HEAD")

    async def _page(self, *, openmetrics: bool) -> str:
        source = Source(self._observed.metrics.counted(), stats_of(self._cache))
        return render([source], await self._known_sizes(), openmetrics=openmetrics)

    async def _known_sizes(self) -> list[Size]:
        if time.monotonic() >= self._sizes_due:
            self._sizes_due = time.monotonic() + self._sizes_every
            try:
                self._sizes = await self._observed.store.adapter.sizes()
            except PerdureError as exc:
                _log.warning("sizes could not be looked up: %s", exc)
                self._sizes = []
        return self._sizes


async def _live(receive: Receive, send: Send) -> None:
    while True:
        message = await receive()
        await send({"type": f"{message['type']}.complete"})
        if message["type"] == "lifespan.shutdown":
            return


def _is_here(scope: Scope) -> bool:
    """Whether this is the path; mounted somewhere, that place itself is, too."""
    root = scope.get("root_path", "").rstrip("/")
    path = scope["path"].removeprefix(root) if root else scope["path"]
    return path == "/metrics" or (bool(root) and path in {"", "/"})


def _wants_openmetrics(scope: Scope) -> bool:
    """Whether who asks would rather have OpenMetrics: by the weights in `Accept`."""
    weights = {"application/openmetrics-text": 0.0, "text/plain": 0.0}
    for name, value in scope.get("headers", ()):
        if name.lower() != b"accept":
            continue
        for part in value.decode("latin-1").split(","):
            kind, *parameters = (piece.strip().lower() for piece in part.split(";"))
            if kind in weights:
                weights[kind] = max(weights[kind], _weight(parameters))
    return weights["application/openmetrics-text"] > weights["text/plain"]


def _weight(parameters: Iterable[str]) -> float:
    for parameter in parameters:
        if parameter.startswith("q="):
            try:
                return float(parameter.removeprefix("q="))
            except ValueError:
                return 0.0
    return 1.0


async def _respond(
    send: Send, status: int, body: bytes, *headers: tuple[bytes, bytes], empty: bool = False
) -> None:
    if not any(name == b"content-type" for name, _ in headers):
        headers = (*headers, (b"content-type", b"text/plain; charset=utf-8"))
    length = (b"content-length", str(len(body)).encode())
    await send({"type": "http.response.start", "status": status, "headers": [*headers, length]})
    await send({"type": "http.response.body", "body": b"" if empty else body})
