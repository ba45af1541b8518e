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


class _Sample(NamedTuple):
    suffix: str
    labels: Labels
    value: float


class _Family(NamedTuple):
    name: str
    kind: str
    help: str
    samples: list[_Sample]


def render(sources: Iterable[MetricsSource], sizes: Sequence[Size] = ()) -> str:
    """The text of a scrape. Families without samples are left out."""
    lines: list[str] = []
    for family in _families(list(sources), sizes):
        if family.samples:
            lines += _rendered(family)
    return "\n".join(lines) + "\n" if lines else ""


def _families(sources: list[MetricsSource], sizes: Sequence[Size]) -> Iterator[_Family]:
    figures = [
        (each.measure, _labels(source, operation=each.operation, collection=each.collection))
        for source in sources
        for each in source.counted.figures
    ]
    for name, field, text in _COUNTERS:
        samples = [_Sample("", labels, getattr(measure, field)) for measure, labels in figures]
        yield _Family(f"perdure_storage_{name}", "counter", text, samples)
    yield _Family(
        "perdure_storage_calls",
        "counter",
        "Calls by operation, each counted once.",
        [
            _Sample("", _labels(source, operation=operation), totals.count)
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
            _Sample("", (*labels, ("direction", direction)), count)
            for measure, labels in figures
            for direction, count in (
                ("read", measure.bytes_read),
                ("written", measure.bytes_written),
            )
        ],
    )
    yield _Family(
        "perdure_storage_errors",
        "counter",
        "Calls that failed, by the type of the error.",
        [
            _Sample("", (*labels, ("type", kind)), count)
            for measure, labels in figures
            for kind, count in sorted(measure.errors.items())
        ],
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


def _cache(sources: list[MetricsSource]) -> Iterator[_Family]:
    for name in sorted({name for source in sources for name in source.cache}):
        yield _Family(
            f"perdure_storage_cache_{name}",
            "counter",
            f"Cache {name.replace('_', ' ')}.",
            [
                _Sample("", _labels(source), source.cache[name])
                for source in sources
                if name in source.cache
            ],
        )


def _labels(source: MetricsSource, **labels: str) -> Labels:
    own = (("process", source.process),) if source.process else ()
    return (*labels.items(), *own)


def _histogram(buckets: Sequence[int], seconds: float, labels: Labels) -> Iterator[_Sample]:
    passed = 0
    for edge, calls in zip((*BUCKETS, float("inf")), buckets, strict=True):
        passed += calls
        yield _Sample("_bucket", (*labels, ("le", _number(edge))), passed)
    yield _Sample("_sum", labels, seconds)
    yield _Sample("_count", labels, passed)


def _rendered(family: _Family) -> Iterator[str]:
    total = "_total" if family.kind == "counter" else ""
    yield f"# HELP {family.name}{total} {_escaped(family.help)}"
    yield f"# TYPE {family.name}{total} {family.kind}"
    for sample in family.samples:
        labels = ",".join(f'{name}="{_quoted(value)}"' for name, value in sample.labels)
        place = f"{family.name}{total}{sample.suffix}" + (f"{{{labels}}}" if labels else "")
        yield f"{place} {_number(sample.value)}"


def _number(value: float) -> str:
    if value == float("inf"):
        return "+Inf"
    return repr(value)


def _escaped(text: str) -> str:
    return text.replace("\\", r"\\").replace("\n", r"\n")


def _quoted(text: str) -> str:
    return _escaped(text).replace('"', r"\"")
