"""What is counted, what is raised when a limit is passed, and how it is told."""

from __future__ import annotations

import asyncio
import logging
import math
import re
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import pytest

import perdure
from perdure.config import Config
from perdure.config.settings import AlertConfig, CacheConfig
from perdure.core.clock import now
from perdure.core.errors import Conflict, Unavailable
from perdure.storage.adapter import Capability
from perdure.storage.backends.memory import MemoryAdapter
from perdure.storage.cache import RowCache
from perdure.storage.delivery import EventReceived
from perdure.storage.metrics import (
    BUCKETS,
    Alerts,
    Measure,
    Metrics,
    Publisher,
    prometheus_text,
)
from perdure.storage.metrics.metric_alerts import BEGINS, ENDS
from perdure.storage.metrics.metrics_app import Application, Scraped, asgi
from perdure.storage.metrics.metrics_middleware import LatencyFigures, OperationCounts, together
from perdure.storage.metrics.metrics_publisher import ProcessMetrics, process_name, published
from perdure.storage.metrics.prometheus_text import MetricsSource, render
from perdure.storage.middleware import Call, Commit, Find, Get, Handler
from perdure.storage.options import DEFAULT, Options
from perdure.storage.rows import Recode, Size
from perdure.storage.store import Store
from perdure.storage.subscriptions import Subscriptions
from perdure.testing.manual_clock import ManualClock
from tests.conftest import MakeStore
from tests.storage.notes import Author, Note


@pytest.fixture
def metrics() -> Metrics:
    return Metrics()


@pytest.fixture
async def counted(metrics: Metrics, clock: ManualClock) -> AsyncIterator[Store]:
    """A store whose operations are counted."""
    async with Store(MemoryAdapter(clock=clock), middleware=[metrics], clock=clock) as store:
        await store.declare(Note, Author)
        yield store


# Counting -----------------------------------------------------------------------------------------


async def test_a_commit_counts_in_each_of_its_collections(counted: Store, metrics: Metrics) -> None:
    async with counted.transaction() as transaction:
        await transaction.collection(Note).put(Note("a", text="x" * 100))
        await transaction.collection(Author).put(Author("x", "Ada"))
        await transaction.collection(Note).delete("b")
        transaction.emit("written", None)
    notes, authors = (metrics.measures["commit", name] for name in ("notes", "authors"))
    assert (notes.count, notes.rows, authors.count, authors.rows) == (1, 2, 1, 1)
    assert notes.bytes_written > 100 > authors.bytes_written > 0
    assert notes.seconds == authors.seconds > 0
    with pytest.raises(Conflict):
        await counted.collection(Note).put(Note("a"), Options(expected=9))
    together = metrics.totals("commit")
    own = [each for (kind, _), each in metrics.measures.items() if kind == "commit"]
    assert together.count == sum(each.count for each in own) - 1
    assert together.rows == sum(each.rows for each in own)
    assert sum(together.buckets) == together.count
    assert metrics.totals("commit", "notes").errors == {"Conflict": 1}
    async with counted.transaction() as transaction:
        transaction.emit("alone", None)
    assert metrics.measures["commit", ""].count == 1


async def test_a_commit_over_several_collections_that_fails(metrics: Metrics) -> None:
    async def fail(call: Call, proceed: Handler) -> Any:
        raise Unavailable

    store = Store(MemoryAdapter(), middleware=[metrics, fail])
    batch = Commit(_batch("notes", "authors", "notes"), DEFAULT)
    with pytest.raises(Unavailable):
        await metrics(batch, store.below(metrics))
    assert {name for _, name in metrics.measures} == {"notes", "authors"}
    assert all(each.errors == {"Unavailable": 1} for each in metrics.measures.values())
    assert (metrics.totals().count, metrics.totals().errors) == (1, {"Unavailable": 1})


def _batch(*collections: str) -> Any:
    from perdure.storage.rows import Batch, Delete

    return Batch(tuple(Delete(name, str(n)) for n, name in enumerate(collections)))


async def test_every_error_counts_and_cancelling_is_none(metrics: Metrics) -> None:
    async def odd(call: Call, proceed: Handler) -> Any:
        if isinstance(call, Find):
            raise ZeroDivisionError
        if isinstance(call, Get):
            await asyncio.sleep(60)
        return await proceed(call)

    store = Store(MemoryAdapter(), middleware=[metrics, odd])
    notes = store.collection(Note)
    await notes.put(Note("a"))
    with pytest.raises(ZeroDivisionError):
        await notes.query().values()
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.01):
            await notes.get("a")
    find, get = metrics.measures["find", "notes"], metrics.measures["get", "notes"]
    assert (find.count, find.errors, find.failures, find.cancelled) == (
        *(1, {"ZeroDivisionError": 1}, 1, 0),
    )
    assert (get.count, get.errors, get.cancelled, get.rows) == (1, {}, 1, 0)


async def test_rows_and_rewrites(counted: Store, metrics: Metrics) -> None:
    notes = counted.collection(Note)
    await notes.put_many([Note("a"), Note("b"), Note("c")])
    await notes.get_many(["a", "nobody"])
    await notes.query().values()
    rows = [row for row in await counted.read("notes", ["a", "b"], DEFAULT) if row]
    await counted.rewrite("notes", [Recode(row, row.value, row.content_type) for row in rows])
    await notes.query().prefix("a").delete()
    await notes.query().count()
    found = {kind: each.rows for (kind, name), each in metrics.measures.items() if name == "notes"}
    assert found == {"commit": 3, "get": 3, "find": 3, "rewrite": 2, "remove": 1, "summarize": 0}
    assert metrics.measures["rewrite", "notes"].bytes_written == sum(len(r.value) for r in rows)


def measure(*seconds: float, **facts: Any) -> Measure:
    found = Measure(len(seconds), sum(seconds), **facts)
    for each in seconds:
        found.buckets[next((n for n, e in enumerate(BUCKETS) if each <= e), len(BUCKETS))] += 1
    return found


def test_estimates_lie_within_their_bucket() -> None:
    found = measure(*[0.002] * 90, *[0.02] * 10)
    assert 0.001 < found.quantile(0.5) < 0.0025 < found.quantile(0.95)
    assert 0.01 < found.quantile(0.95) < 0.025
    assert measure(100.0).quantile(0.5) == math.inf
    assert Measure().quantile(0.5) == 0
    assert measure(0.00005).quantile(0) == 0


# Alerts -------------------------------------------------------------------------------------------


def alert(**facts: Any) -> AlertConfig:
    return AlertConfig(**{"name": "slow", "measure": "calls", "over": 5, "window": 60.0, **facts})


async def call(store: Store, times: int) -> None:
    for _ in range(times):
        await store.collection(Note).get("a")


async def test_it_is_told_once_when_it_begins_and_once_when_it_ends(
    make_store: MakeStore, clock: ManualClock
) -> None:
    made = await make_store()
    metrics = Metrics()
    store = Store(made.adapter, middleware=[metrics], clock=clock)
    heard: list[EventReceived] = []
    subscriptions = Subscriptions(store)
    await subscriptions.subscribe("watch", heard.append, ["perdure.alert*"])
    await store.declare(Note)
    alerts = Alerts(metrics, [alert(operation="get", collection="notes", name="busy")], store)
    assert await alerts.check() == []
    await call(store, 6)
    (begun,) = await alerts.check()
    at = clock()
    assert await alerts.check() == []
    clock.advance("59s")
    assert await alerts.check() == []
    clock.advance("2s")
    (over,) = await alerts.check()
    assert await alerts.check() == []
    while await subscriptions.deliver():
        pass
    assert [(event.topic, event.key) for event in heard] == [(BEGINS, "busy"), (ENDS, "busy")]
    assert heard[0].payload == {
        "name": "busy",
        "measure": "calls",
        "value": 6.0,
        "limit": 5.0,
        "window": 60.0,
        "operation": "get",
        "collection": "notes",
        "at": at,
        "process": process_name(),
        "over": False,
    }
    assert heard[1].payload == msgspec.structs.asdict(over)
    assert (begun.over, over.over, over.value) == (False, True, 0)
    await subscriptions.release()


async def test_the_window_slides(counted: Store, metrics: Metrics, clock: ManualClock) -> None:
    alerts = Alerts(metrics, [alert(over=10)], counted)
    told: list[tuple[int, bool]] = []
    for second in range(0, 300, 5):
        # Four calls every five seconds from 60 to 120: more than ten within a minute.
        if 60 <= second < 120:
            await call(counted, 4)
        told += [(second, each.over) for each in await alerts.check()]
        clock.advance("5s")
    (begins, over), (ends, gone) = told
    assert (begins, over, gone) == (70, False, True)
    assert 160 <= ends <= 175


@pytest.mark.parametrize(
    ("config", "value"),
    [
        (alert(measure="p50", over=0.05), 0.075),
        (alert(measure="p95", over=1.0), 1.75),
        (alert(measure="p99", over=29.0), 30.0),
        (alert(measure="error_rate", over=0.2), 0.25),
        (alert(measure="errors", over=24), 25),
        (alert(measure="bytes_written", over=100), 101),
        (alert(measure="calls", over=99, operation="commit"), 100),
        (alert(measure="calls", over=99, least=101), None),
        (alert(measure="calls", over=0, collection="authors"), None),
        (alert(measure="calls", over=100), None),
    ],
)
async def test_what_can_be_limited(
    counted: Store, metrics: Metrics, config: AlertConfig, value: float | None
) -> None:
    alerts = Alerts(metrics, [config], counted)
    metrics.measures["commit", "notes"] = measure(
        *[0.075] * 80, *[2.0] * 18, *[100.0] * 2, errors={"A": 20, "B": 5}, bytes_written=101
    )
    if config.measure == "p50":  # the middle of its bucket
        metrics.measures["commit", "notes"] = measure(*[0.075] * 100)
    if config.measure == "p95":
        metrics.measures["commit", "notes"] = measure(*[2.0] * 190, *[3.0] * 10)
        value = 1 + 1.5 * 190 / 190
    told = await alerts.check()
    assert [each.value for each in told] == ([] if value is None else [pytest.approx(value)])


async def test_several_limits(counted: Store, metrics: Metrics) -> None:
    limits = [alert(name="a"), alert(name="b", over=100), alert(name="c", over=0)]
    alerts = Alerts(metrics, limits, counted)
    await call(counted, 10)
    assert [each.name for each in await alerts.check()] == ["a", "c"]


async def test_a_store_in_trouble_is_told_later(
    metrics: Metrics, clock: ManualClock, caplog: pytest.LogCaptureFixture
) -> None:
    broken = True

    async def fail(call: Call, proceed: Handler) -> Any:
        if broken and isinstance(call, Commit) and call.batch.events:
            raise Unavailable("The store is gone.")
        return await proceed(call)

    store = Store(MemoryAdapter(clock=clock), middleware=[metrics, fail], clock=clock)
    await store.declare(Note)
    alerts = Alerts(metrics, [alert(), alert(name="too", over=3)], store)
    await call(store, 6)
    with caplog.at_level(logging.WARNING):
        assert await alerts.check() == []
    assert caplog.text.count("could not be told: The store is gone.") == 2
    broken = False
    assert [each.name for each in await alerts.check()] == ["slow", "too"]


async def test_without_an_outbox_it_is_logged(
    metrics: Metrics, clock: ManualClock, caplog: pytest.LogCaptureFixture
) -> None:
    class Simple(MemoryAdapter):
        capabilities = MemoryAdapter.capabilities - {Capability.OUTBOX}

    store = Store(Simple(clock=clock), middleware=[metrics], clock=clock)
    await store.declare(Note)
    alerts = Alerts(metrics, [alert()], store)
    await call(store, 6)
    with caplog.at_level(logging.INFO):
        assert len(await alerts.check()) == 1
        clock.advance("2m")
        await alerts.check()
        clock.advance("2m")
        await alerts.check()
    assert "alert 'slow' begins: calls is 6, the limit 5" in caplog.text
    assert "alert 'slow' is over: calls is 0" in caplog.text


# Publishing ---------------------------------------------------------------------------------------


async def test_a_process_leaves_what_it_has_counted(
    make_store: MakeStore, clock: ManualClock
) -> None:
    made = await make_store()
    metrics = Metrics()
    store = Store(made.adapter, middleware=[metrics], clock=clock)
    publisher = Publisher(metrics, store)
    await publisher.close()
    assert await published(store) == []
    await store.declare(Note)
    await store.collection(Note).put(Note("a"))
    assert not await publisher.publish()  # it has only just begun
    await publisher.close()
    clock.advance("10s")
    assert await publisher.publish()
    assert not await publisher.publish()  # what it does itself does not count
    clock.advance("1h")
    await store.collection(Note).get("a")
    await publisher.close()
    (found,) = await published(store)
    assert re.fullmatch(rf"{re.escape(process_name())}/[0-9a-f]+", found.id)
    assert (found.at - found.started).total_seconds() == 3_610
    assert found.counted.totals("get", "notes").count == 1
    assert found.counted.totals("commit", "notes").count == 1
    clock.advance("25h")
    assert await published(store) == []


def some_cache() -> RowCache:
    cache = RowCache(CacheConfig(entries=10), now)
    cache.stats.hits, cache.stats.misses = 3, 1
    return cache


async def test_an_idle_process_writes_nothing(counted: Store, metrics: Metrics) -> None:
    publisher = Publisher(metrics, counted, some_cache(), patience=0)
    await counted.collection(Note).put(Note("a"))
    assert await publisher.publish()
    subscriptions = Subscriptions(counted)
    for _ in range(3):
        await subscriptions.deliver()
    assert not await publisher.publish()
    (found,) = await published(counted)
    assert (found.cache["hits"], found.cache["misses"]) == (3, 1)


async def test_several_processes(counted: Store, clock: ManualClock) -> None:
    records = counted.collection(ProcessMetrics)
    moment = clock_time(clock)
    one = OperationCounts((LatencyFigures("get", "notes", measure(0.1, 0.2, errors={"A": 1})),))
    two = OperationCounts(
        (
            LatencyFigures("commit", "notes", measure(0.3)),
            LatencyFigures("get", "notes", measure(0.4)),
        ),
        measure(0.3),
    )
    for pid, (counts, edges) in enumerate([(one, BUCKETS), (two, BUCKETS), (one, (1.0,))]):
        await records.put(
            ProcessMetrics(
                id=f"host/{pid}/1",
                process=f"host/{pid}",
                started=moment,
                at=moment,
                counted=counts,
                edges=edges,
            )
        )
    found = await published(counted)
    assert {each.process for each in found} == {"host/0", "host/1"}  # one has other buckets
    both = together(each.counted for each in found)
    assert both.totals("get").count == 3
    assert both.totals("get").errors == {"A": 1}
    assert both.totals("commit").count == 0


def clock_time(clock: ManualClock) -> Any:
    from perdure.core.clock import to_datetime

    return to_datetime(clock())


# Prometheus ---------------------------------------------------------------------------------------

_VALUE = r'"(?:[^"\\\n]|\\[\\n"])*"'
_SAMPLE = re.compile(rf"([a-zA-Z_:][a-zA-Z0-9_:]*)(?:\{{((?:[a-z_]+={_VALUE},?)*)\}})? (\S+)")
_LABEL = re.compile(r'([a-z_]+)="((?:[^"\\\n]|\\[\\n"])*)"')
_UNESCAPED = {r"\\": "\\", r"\n": "\n", r"\"": '"'}


class Sample(NamedTuple):
    name: str
    labels: dict[str, str]
    value: float


class Family(NamedTuple):
    kind: str
    help: str
    samples: list[Sample]


def parse(text: str, *, openmetrics: bool = False) -> dict[str, Family]:
    """Reads the text format strictly; raises if a line or the order of lines is not allowed."""
    assert text.endswith("\n")
    lines = text.split("\n")[:-1]
    if openmetrics:
        assert lines.pop() == "# EOF"
    families: dict[str, Family] = {}
    current = ""
    while lines:
        line = lines.pop(0)
        if line.startswith("# HELP "):
            _, _, current, help_ = line.split(" ", 3)
            assert current not in families, "a family stands in one place"
            kind = lines.pop(0).removeprefix(f"# TYPE {current} ")
            assert kind in {"counter", "gauge", "histogram"}
            families[current] = Family(kind, help_, [])
            continue
        matched = _SAMPLE.fullmatch(line)
        assert matched, line
        name, labels, value = matched.groups()
        family = families[current]
        if family.kind == "histogram":
            assert name in {f"{current}_bucket", f"{current}_sum", f"{current}_count"}
        elif family.kind == "counter":
            assert name == (f"{current}_total" if openmetrics else current)
            assert name.endswith("_total")
        else:
            assert name == current
        pairs = {
            key: re.sub(r"\\.", lambda found: _UNESCAPED[found[0]], text)
            for key, text in _LABEL.findall(labels or "")
        }
        family.samples.append(Sample(name, pairs, float(value)))
    for name, family in families.items():
        places = [(sample.name, tuple(sorted(sample.labels.items()))) for sample in family.samples]
        assert len(set(places)) == len(places), f"{name} has a sample twice"
        if family.kind == "histogram":
            check_histogram(name, family.samples)
    return families


def check_histogram(name: str, samples: list[Sample]) -> None:
    series: dict[tuple[tuple[str, str], ...], list[Sample]] = {}
    for sample in samples:
        place = tuple(sorted((k, v) for k, v in sample.labels.items() if k != "le"))
        series.setdefault(place, []).append(sample)
    for found in series.values():
        buckets = [sample for sample in found if sample.name == f"{name}_bucket"]
        edges = [float(sample.labels["le"]) for sample in buckets]
        assert edges == sorted(edges)
        assert edges[-1] == math.inf
        counts = [sample.value for sample in buckets]
        assert counts == sorted(counts)
        (count,) = [sample.value for sample in found if sample.name == f"{name}_count"]
        assert count == counts[-1]
        assert [sample.name for sample in found].count(f"{name}_sum") == 1


def value_of(families: dict[str, Family], name: str, **labels: str) -> float:
    (found,) = [
        sample.value
        for family in families.values()
        for sample in family.samples
        if sample.name == name and labels.items() <= sample.labels.items()
    ]
    return found


async def test_the_text(counted: Store, metrics: Metrics) -> None:
    notes = counted.collection(Note)
    await notes.put_many([Note("a", text="x" * 100), Note("b")])
    await notes.get("a")
    with pytest.raises(Conflict):
        await notes.put(Note("a"), Options(expected=9))
    source = MetricsSource(metrics.counted(), {"hits": 7, "misses": 2})
    families = parse(render([source], await counted.adapter.sizes()))
    commits = {"operation": "commit", "collection": "notes"}
    assert value_of(families, "perdure_storage_operations_total", **commits) == 2
    assert value_of(families, "perdure_storage_operation_seconds_count", **commits) == 2
    assert value_of(families, "perdure_storage_operation_seconds_sum", **commits) > 0
    assert value_of(families, "perdure_storage_errors_total", type="Conflict") == 1
    written = value_of(families, "perdure_storage_bytes_total", direction="written", **commits)
    assert written > 100
    assert value_of(families, "perdure_storage_rows", collection="notes") == 2
    assert value_of(families, "perdure_storage_size_bytes", collection="notes") == written
    assert value_of(families, "perdure_storage_cache_hits_total") == 7
    assert value_of(families, "perdure_storage_cache_misses_total") == 2
    assert value_of(families, "perdure_storage_calls_total", operation="get") >= 1


def test_nothing_to_tell() -> None:
    assert render([]) == ""


def test_names_are_escaped_and_processes_told_apart() -> None:
    odd = 'a"b\\c\nd'
    counted = OperationCounts((LatencyFigures("get", odd, measure(0.1)),))
    text = render(
        [MetricsSource(counted, process="h/1"), MetricsSource(counted, process=odd)],
        [Size(odd, 3, None)],
    )
    families = parse(text)
    for process in ("h/1", odd):
        labels = {"collection": odd, "process": process}
        assert value_of(families, "perdure_storage_operations_total", **labels) == 1
    assert value_of(families, "perdure_storage_rows", collection=odd) == 3
    assert "perdure_storage_size_bytes" not in families


class Answer(NamedTuple):
    status: int
    headers: dict[str, str]
    body: bytes


async def ask(
    app: Application, path: str = "/metrics", method: str = "GET", **scope: Any
) -> Answer:
    """Speaks the server's side of ASGI."""
    sent: list[Any] = []

    async def receive() -> dict[str, Any]:
        return {"type": "http.request", "body": b"", "more_body": False}

    async def send(message: Any) -> None:
        sent.append(message)

    headers = [(b"host", b"x"), *scope.pop("headers", [])]
    await app(
        {"type": "http", "method": method, "path": path, "headers": headers, **scope}, receive, send
    )
    start, body = sent
    assert (start["type"], body["type"]) == ("http.response.start", "http.response.body")
    assert not body.get("more_body")
    told = {name.decode(): value.decode() for name, value in start["headers"]}
    return Answer(start["status"], told, body["body"])


async def test_the_endpoint(counted: Store, metrics: Metrics) -> None:
    app = asgi(Scraped(counted, metrics, some_cache()))
    await counted.collection(Note).put(Note("a"))
    answer = await ask(app)
    assert (answer.status, answer.headers["content-type"]) == (200, prometheus_text.TEXT)
    assert answer.headers["content-length"] == str(len(answer.body))
    families = parse(answer.body.decode())
    assert value_of(families, "perdure_storage_rows", collection="notes") == 1
    assert value_of(families, "perdure_storage_cache_hits_total") == 3
    head = await ask(app, method="HEAD")
    assert (head.status, head.body) == (200, b"")
    assert int(head.headers["content-length"]) > 0
    post = await ask(app, method="POST")
    assert (post.status, post.headers["allow"]) == (405, "GET, HEAD")
    assert (await ask(app, "/")).status == (await ask(app, "/metrics/x")).status == 404
    for path in ("/inner/metrics", "/inner", "/inner/"):
        assert (await ask(app, path, root_path="/inner")).status == 200
    assert (await ask(app, "/inner/other", root_path="/inner")).status == 404


async def test_a_bank_tells_of_its_cache(tmp_path: Path) -> None:
    config = Config(cache=CacheConfig(entries=10))
    async with perdure.open(f"sqlite:///{tmp_path / 'bank.db'}", config=config) as bank:
        notes = bank.store.collection(Note)
        await notes.put(Note("a"))
        for _ in range(3):
            await notes.get("a")
        families = parse((await ask(asgi(bank))).body.decode())
    assert value_of(families, "perdure_storage_cache_hits_total") == 2
    async with perdure.open("memory://", config=Config()) as bank:
        assert b"cache" not in (await ask(asgi(bank))).body


async def test_whatever_a_scraper_accepts_it_gets_the_text_format(
    counted: Store, metrics: Metrics
) -> None:
    accept = b"application/openmetrics-text;version=1.0.0,text/plain;version=0.0.4;q=0.5"
    answer = await ask(asgi(Scraped(counted, metrics)), headers=[(b"Accept", accept)])
    assert answer.headers["content-type"] == prometheus_text.TEXT
    parse(answer.body.decode())


async def test_sizes_are_looked_up_now_and_then(metrics: Metrics) -> None:
    class Slow(MemoryAdapter):
        looks = 0

        async def sizes(self) -> list[Size]:
            self.looks += 1
            if self.looks == 2:
                raise Unavailable
            return await super().sizes()

    adapter = Slow()
    store = Store(adapter, middleware=[metrics])
    await store.collection(Note).put(Note("a"))
    app = asgi(Scraped(store, metrics))
    assert b"perdure_storage_rows" in (await ask(app)).body
    await ask(app)
    assert adapter.looks == 1
    app = asgi(Scraped(store, metrics), sizes_every=0)
    assert b"perdure_storage_rows" not in (await ask(app)).body  # the store is in trouble
    assert b"perdure_storage_rows" in (await ask(app)).body


async def test_the_life_of_a_server(counted: Store, metrics: Metrics) -> None:
    app = asgi(Scraped(counted, metrics))
    sent: list[Any] = []

    async def send(message: Any) -> None:
        sent.append(message["type"])

    messages = iter(["lifespan.startup", "lifespan.shutdown"])

    async def receive() -> dict[str, Any]:
        return {"type": next(messages)}

    await app({"type": "lifespan"}, receive, send)
    assert sent == ["lifespan.startup.complete", "lifespan.shutdown.complete"]
    sent.clear()
    messages = iter(["websocket.connect"])
    await app({"type": "websocket", "path": "/metrics"}, receive, send)
    assert sent == ["websocket.close"]
