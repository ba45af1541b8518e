"""Metrics as Prometheus reads them: the text format 0.0.4.

Labels are names of operations, collections and error types, never keys or content.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple, TypeAlias

from perdure.storage.metrics.metrics_middleware import BUCKETS, OperationCounts
from perdure.storage.rows import Size

TEXT = "text/plain; version=0.0.4; charset=utf-8"

#: Counters by operation and collection: name, field of a `Measure`, help.
_COUNTERS = (
    (
        "operations",
        "count",
        "Calls by operation and collection; one over several collections counts in each.",
    ),
    ("operation_rows", "rows", "Rows that were read, written, deleted or rewritten."),
    ("cancelled", "cancelled", "Calls that were cancelled."),
)

Labels: TypeAlias = tuple[tuple[str, str], ...]


class MetricsSource(NamedTuple):
    """The metrics of one process."""

    counted: OperationCounts
    cache: Mapping[str, int] = {}
    process: str = ""


#: Suffix of the name, labels, value.
_Sample: TypeAlias = tuple[str, Labels, float]
#: Name without its common beginning, kind, help, samples.
_Family: TypeAlias = tuple[str, str, str, list[_Sample]]


def render(sources: Iterable[MetricsSource], sizes: Sequence[Size] = ()) -> str:
    """The text of a scrape. Families without samples are left out."""
    families = _families(list(sources), sizes)
    lines = [line for family in families if family[-1] for line in _rendered(*family)]
    return "\n".join(lines) + "\n" if lines else ""


def _families(sources: list[MetricsSource], sizes: Sequence[Size]) -> Iterator[_Family]:
    figures = [
        (each.measure, _labels(source, operation=each.operation, collection=each.collection))
        for source in sources
        for each in source.counted.figures
    ]
    for name, field, text in _COUNTERS:
        counts = [("", labels, getattr(measure, field)) for measure, labels in figures]
        yield name, "counter", text, counts
    calls: list[_Sample] = [
        ("", _labels(source, operation=operation), source.counted.totals(operation).count)
        for source in sources
        for operation in sorted({each.operation for each in source.counted.figures})
    ]
    yield "calls", "counter", "Calls by operation, each counted once.", calls
    times = [
        sample
        for measure, labels in figures
        for sample in _histogram(measure.buckets, measure.seconds, labels)
    ]
    yield "operation_seconds", "histogram", "How long calls took, waiting included.", times
    moved: list[_Sample] = [
        ("", (*labels, ("direction", direction)), count)
        for measure, labels in figures
        for direction, count in (("read", measure.bytes_read), ("written", measure.bytes_written))
    ]
    text = "Bytes of values that were read and written, before they are compressed."
    yield "bytes", "counter", text, moved
    errors: list[_Sample] = [
        ("", (*labels, ("type", kind)), count)
        for measure, labels in figures
        for kind, count in sorted(measure.errors.items())
    ]
    yield "errors", "counter", "Calls that failed, by the type of the error.", errors
    for name in sorted({name for source in sources for name in source.cache}):
        kept = [source for source in sources if name in source.cache]
        found: list[_Sample] = [("", _labels(source), source.cache[name]) for source in kept]
        yield f"cache_{name}", "counter", f"Cache {name.replace('_', ' ')}.", found
    places = [((("collection", size.collection),), size) for size in sizes]
    rows: list[_Sample] = [("", labels, size.rows) for labels, size in places]
    yield "rows", "gauge", "Rows that a collection holds.", rows
    taken: list[_Sample] = [("", at, size.bytes) for at, size in places if size.bytes is not None]
    yield "size_bytes", "gauge", "Bytes that a collection takes, with its indexes.", taken


def _labels(source: MetricsSource, **labels: str) -> Labels:
    own = (("process", source.process),) if source.process else ()
    return (*labels.items(), *own)


def _histogram(buckets: Sequence[int], seconds: float, labels: Labels) -> Iterator[_Sample]:
    passed = 0
    for edge, calls in zip((*BUCKETS, float("inf")), buckets, strict=True):
        passed += calls
        yield "_bucket", (*labels, ("le", _number(edge))), passed
    yield "_sum", labels, seconds
    yield "_count", labels, passed


def _rendered(name: str, kind: str, text: str, samples: list[_Sample]) -> Iterator[str]:
    name = f"perdure_storage_{name}{'_total' if kind == 'counter' else ''}"
    yield f"# HELP {name} {_escaped(text)}"
    yield f"# TYPE {name} {kind}"
    for suffix, labels, value in samples:
        shown = ",".join(f'{label}="{_quoted(of)}"' for label, of in labels)
        yield f"{name}{suffix}{f'{{{shown}}}' if shown else ''} {_number(value)}"


def _number(value: float) -> str:
    if value == float("inf"):
        return "+Inf"
    return repr(value)


def _escaped(text: str) -> str:
    return text.replace("\\", r"\\").replace("\n", r"\n")


def _quoted(text: str) -> str:
    return _escaped(text).replace('"', r"\"")
