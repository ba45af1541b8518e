"""Every backend against the in-memory reference, in long random stories.

Hypothesis makes up the stories: writes, batches, checks, expiry, queries, pages, figures, events.
Each step is done on all backends, and all must answer alike; where two differ, it shortens the
story to the fewest steps that still show it.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Coroutine, Iterator
from pathlib import Path
from typing import Any, TypeVar

import msgspec
import pytest
from hypothesis import Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    Bundle,
    RuleBasedStateMachine,
    consumes,
    initialize,
    multiple,
    rule,
    run_state_machine_as_test,
)

from perdure.core.errors import Conflict, PerdureError
from perdure.storage.adapter import Adapter
from perdure.storage.options import DEFAULT
from perdure.storage.query import (
    All,
    AnyOf,
    Compare,
    Condition,
    Figure,
    Op,
    Query,
    Scalar,
    SortOrder,
    Summary,
    Tagged,
)
from perdure.storage.registry import adapter_for
from perdure.storage.rows import (
    Batch,
    Check,
    Column,
    Delete,
    Delivered,
    Event,
    Index,
    Layout,
    Put,
    Row,
)
from perdure.testing import ManualClock

T = TypeVar("T")

KINDS = ("", "x", "xy", "y", "Y", "é", "🦊", "x%", "it's")
TAGS = (("p", "1"), ("p", "2"), ("q", "1"), ("q", "x=y"))
COLUMNS = (Column("kind", "text"), Column("size", "integer"), Column("score", "real"))
INDEXES = (Index(("kind",)), Index(("size", "created")), Index(("score",)))

# Few keys, so that stories meet the same ones again; folders inside folders, to try their order.
keys = st.sampled_from(
    ["a", "a/1", "a/1/x", "a/10", "a/2", "a-b", "a-b/1", "a0", "b/c", "b/c/d", "é/1", "🦊", "z"]
)
prefixes = st.sampled_from(["", "", "a", "a/", "a/1", "a/1/", "b/", "b/c/", "é", "none/"])
kinds = st.sampled_from(KINDS)
sizes = st.sampled_from([-(2**63), -1, 0, 1, 2, 3, 2**53 + 1, 2**63 - 1])
scores = st.sampled_from([-1.5, -0.0, 0.5, 1.0, 2.5, 1e300])
VALUES: dict[str, st.SearchStrategy[Scalar]] = {
    "kind": kinds,
    "size": sizes,
    "score": scores,
    "key": keys,
    "version": st.integers(0, 3),
}
_COMPARING = st.sampled_from([Op.EQ, Op.NE, Op.LT, Op.LE, Op.GT, Op.GE])


def _up_to_the_key(order: tuple[SortOrder, ...]) -> tuple[SortOrder, ...]:
    """Without what stands behind the key, as a query has to be."""
    columns = [part.column for part in order]
    return order[: columns.index("key") + 1] if "key" in columns else order


def comparisons(column: str) -> st.SearchStrategy[Condition]:
    values = VALUES[column]
    ways: list[st.SearchStrategy[Any]] = [
        st.builds(Compare, st.just(column), _COMPARING, values),
        st.builds(
            Compare, st.just(column), st.just(Op.IN), st.lists(values, max_size=3).map(tuple)
        ),
    ]
    if column in ("kind", "key"):
        ways.append(st.builds(Compare, st.just(column), st.just(Op.PREFIX), kinds))
    if column in ("kind", "size", "score"):
        nothing = st.sampled_from([Op.EQ, Op.NE])
        ways.append(st.builds(Compare, st.just(column), nothing, st.none()))
    return st.one_of(ways)


conditions: st.SearchStrategy[Condition] = st.recursive(
    st.one_of(
        st.sampled_from(sorted(VALUES)).flatmap(comparisons),
        st.sampled_from(TAGS).map(lambda tag: Tagged(*tag)),
    ),
    lambda inner: st.builds(
        lambda kind, parts: kind(tuple(parts)),
        st.sampled_from([All, AnyOf]),
        st.lists(inner, max_size=3),
    ),
    max_leaves=4,
)
orders = st.lists(
    st.builds(
        SortOrder,
        st.sampled_from(["kind", "size", "score", "key", "created", "updated", "version"]),
        st.booleans(),
    ),
    max_size=3,
    unique_by=lambda part: part.column,
).map(lambda parts: _up_to_the_key(tuple(parts)))
queries = st.builds(
    Query,
    st.just(""),
    st.one_of(st.just(All(())), conditions),
    prefixes,
    orders,
    st.one_of(st.none(), st.integers(0, 5)),
    st.sampled_from([0, 0, 0, 1, 3]),
)
figures = st.lists(
    st.one_of(
        st.just((Figure.COUNT, "")),
        st.tuples(st.sampled_from(Figure), st.just("score")),
        st.tuples(st.sampled_from([Figure.COUNT, Figure.MIN, Figure.MAX]), st.just("size")),
        st.tuples(st.sampled_from([Figure.COUNT, Figure.MIN, Figure.MAX]), st.just("kind")),
        st.tuples(st.sampled_from([Figure.SUM, Figure.AVG]), st.just("version")),
    ),
    min_size=1,
    max_size=4,
).map(tuple)
columns = st.tuples(
    st.one_of(st.none(), kinds),
    st.one_of(st.none(), sizes),
    # Sums of 1e300 and small numbers depend on their order.
    st.one_of(st.none(), scores.filter(lambda score: score < 1e300)),
)
expectations = st.sampled_from([None, None, None, None, 0, 1, 2])
lives = st.sampled_from([None, None, None, 0, 1, 5, 20])


class Write(msgspec.Struct, frozen=True):
    """A write whose collection and times are known only when the story is told."""

    key: str
    second: bool
    delete: bool
    value: bytes
    schema: int
    columns: tuple[Scalar, ...]
    tags: tuple[tuple[str, str], ...]
    life: int | None
    expected: int | None


writes = st.builds(
    Write,
    keys,
    st.booleans(),
    st.sampled_from([False, False, False, True]),
    st.binary(max_size=6),
    st.sampled_from([1, 1, 1, 1, 2]),
    columns,
    st.lists(st.sampled_from(TAGS), max_size=3).map(tuple),
    lives,
    expectations,
)


def batches(least: int, most: int) -> st.SearchStrategy[list[Write]]:
    """Writes of different rows, as a batch wants them."""
    return st.lists(
        writes, min_size=least, max_size=most, unique_by=lambda write: (write.key, write.second)
    )


class Arena:
    """The backends, open for the whole test; every story has collections of its own."""

    def __init__(self, urls: dict[str, str]) -> None:
        self.clock = ManualClock()
        self.adapters = {name: adapter_for(url, self.clock) for name, url in urls.items()}
        self.numbers = itertools.count(1)
        self._runner = asyncio.Runner()
        for adapter in self.adapters.values():
            self.run(adapter.initialize())

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        return self._runner.run(work)

    def close(self) -> None:
        for adapter in self.adapters.values():
            self.run(adapter.close())
        self._runner.close()


@pytest.fixture
def arena(tmp_path: Path, used_postgres_url: str) -> Iterator[Arena]:
    arena = Arena(
        {
            "memory": "memory://",
            "sqlite": f"sqlite:///{tmp_path / 'bank.db'}",
            "sqlite in threads": f"sqlite:///{tmp_path / 'threads.db'}?inline=no",
            "postgresql": used_postgres_url,
        }
    )
    yield arena
    arena.close()


class Story(RuleBasedStateMachine):
    """One story. See the module's docstring."""

    seen = Bundle("seen")

    def __init__(self, arena: Arena) -> None:
        super().__init__()
        self.arena = arena
        number = next(arena.numbers)
        self.layouts = [
            Layout(f"story_{number}_{part}", COLUMNS, INDEXES, expires=True, tagged=True)
            for part in ("one", "two")
        ]
        self.positions: dict[str, str] = {}

    # Telling it -------------------------------------------------------------------------------

    @initialize(first=batches(8, 16))
    def begin(self, first: list[Write]) -> None:
        self.arena.clock.set(1_000_000)
        for name, adapter in self.arena.adapters.items():
            for layout in self.layouts:
                assert self.arena.run(adapter.prepare(layout)) == frozenset()
            self.positions[name] = self.arena.run(_end(adapter))
        blind = [msgspec.structs.replace(write, expected=None, delete=False) for write in first]
        self._commit(Batch(tuple(map(self._write, blind))))

    @rule(batch=batches(1, 6), events=st.lists(st.tuples(keys, st.binary(max_size=3)), max_size=3))
    def write(self, batch: list[Write], events: list[tuple[str, bytes]]) -> None:
        told = tuple(Event("story", key, payload) for key, payload in events)
        blind = [msgspec.structs.replace(write, expected=None) for write in batch]
        self._commit(Batch(tuple(map(self._write, blind)), (), told))

    @rule(batch=batches(1, 2))
    def write_expecting_versions(self, batch: list[Write]) -> None:
        self._commit(Batch(tuple(map(self._write, batch)), (), (Event("story", "", b"e"),)))

    @rule(target=seen, wanted=st.lists(keys, min_size=1, max_size=4), second=st.booleans())
    def read(self, wanted: list[str], second: bool) -> Any:
        name = self.layouts[second].name
        rows = self._same(lambda adapter: adapter.get(name, wanted, DEFAULT))
        return multiple(
            *(
                Check(name, key, row.version if row else 0, row.created if row else 0)
                for key, row in zip(wanted, rows, strict=True)
            )
        )

    @rule(batch=batches(1, 2), checks=st.lists(consumes(seen), min_size=1, max_size=3))
    def write_with_checks(self, batch: list[Write], checks: list[Check]) -> None:
        blind = [msgspec.structs.replace(write, expected=None) for write in batch]
        self._commit(Batch(tuple(map(self._write, blind)), tuple(checks)))

    @rule(asked=st.lists(queries, min_size=2, max_size=5), second=st.booleans())
    def ask(self, asked: list[Query], second: bool) -> None:
        for query in asked:
            there = self._of(query, second)
            self._same(lambda adapter, query=there: adapter.find(query, DEFAULT))

    @rule(query=queries, second=st.booleans(), size=st.integers(1, 4), back=st.booleans())
    def page(self, query: Query, second: bool, size: int, back: bool) -> None:
        query = self._of(query, second)
        order = query.total_order()
        if back:
            order = tuple(SortOrder(part.column, not part.descending) for part in order)
        query = msgspec.structs.replace(query, order=order, limit=None, offset=0)
        everything = self._same(lambda adapter: adapter.find(query, DEFAULT))
        paged: list[Row] = []
        mark: tuple[Scalar, ...] | None = None
        while True:
            part = msgspec.structs.replace(query, limit=size, after=mark)
            rows = self._same(lambda adapter, part=part: adapter.find(part, DEFAULT))
            if not rows:
                break
            paged += rows
            mark = self._mark(query, rows[-1])
        assert paged == everything

    @rule(
        query=st.one_of(st.just(Query("")), queries),
        second=st.booleans(),
        asked=figures,
        group=st.sampled_from([(), ("kind",), ("kind", "size"), ("score", "version")]),
    )
    def summarize(
        self,
        query: Query,
        second: bool,
        asked: tuple[tuple[Figure, str], ...],
        group: tuple[str, ...],
    ) -> None:
        summary = Summary(self._of(query, second), asked, group)
        rows = self._same(lambda adapter: adapter.summarize(summary, DEFAULT))
        for row in rows:
            for (figure, _), value in zip(asked, row[len(group) :], strict=True):
                if figure is Figure.COUNT:
                    assert type(value) is int

    @rule(query=queries, limit=st.integers(0, 2), second=st.booleans())
    def remove(self, query: Query, limit: int, second: bool) -> None:
        few = msgspec.structs.replace(self._of(query, second), limit=limit)
        self._same(lambda adapter: adapter.remove(few, DEFAULT))
        self._compare()

    @rule(microseconds=st.sampled_from([1, 3, 10, 50]), limit=st.sampled_from([0, 0, 1, 1_000]))
    def time_passes(self, microseconds: int, limit: int) -> None:
        self.arena.clock.tick(microseconds)
        self._compare()
        if limit:
            self._same(lambda adapter: _swept(adapter, limit))
            self._compare()

    @rule(limit=st.sampled_from([1, 2, 100]), trim=st.booleans())
    def follow(self, limit: int, trim: bool) -> None:
        found: dict[str, object] = {}
        for name, adapter in self.arena.adapters.items():
            events, self.positions[name] = self.arena.run(
                adapter.events(self.positions[name], limit)
            )
            found[name] = [_told(event) for event in events]
        self._alike(found)
        if trim:
            before = self.arena.clock() - 5
            for name, adapter in self.arena.adapters.items():
                found[name] = self.arena.run(adapter.trim(self.positions[name], before))
            self._alike(found)

    def teardown(self) -> None:
        # The next story's sweeps must not find what this one left to expire.
        if not self.positions:
            return
        for adapter in self.arena.adapters.values():
            for layout in self.layouts:
                self.arena.run(adapter.remove(Query(layout.name), DEFAULT))
            self.arena.clock.tick(1_000)
            while self.arena.run(adapter.sweep(1_000)):
                pass

    # ------------------------------------------------------------------------------------------

    def _write(self, write: Write) -> Put | Delete:
        name = self.layouts[write.second].name
        if write.delete:
            return Delete(name, write.key, write.expected)
        return Put(
            name,
            write.key,
            write.value,
            f"kit/{write.schema}",
            write.schema,
            7,
            write.columns,
            write.tags,
            None if write.life is None else self.arena.clock() + write.life,
            write.expected,
        )

    def _of(self, query: Query, second: bool) -> Query:
        return msgspec.structs.replace(query, collection=self.layouts[second].name)

    def _mark(self, query: Query, row: Row) -> tuple[Scalar, ...]:
        memory: Any = self.arena.adapters["memory"]
        entry = memory._collections[query.collection].entries[row.key]
        return tuple(entry.column(part.column) for part in query.total_order())

    def _commit(self, batch: Batch) -> None:
        self._same(lambda adapter: adapter.commit(batch, DEFAULT))
        self._compare()

    def _compare(self) -> None:
        """Everything there is, row by row."""
        for layout in self.layouts:
            query = Query(layout.name)
            self._same(lambda adapter, query=query: adapter.find(query, DEFAULT))

    def _same(self, call: Any) -> Any:
        found = {}
        for name, adapter in self.arena.adapters.items():
            try:
                found[name] = self.arena.run(call(adapter))
            except PerdureError as exc:
                found[name] = _raised(exc)
        return self._alike(found)

    def _alike(self, found: dict[str, T]) -> T:
        reference = found["memory"]
        for name, answer in found.items():
            assert answer == reference, f"{name} differs from memory"
        return reference


def _raised(exc: PerdureError) -> object:
    details = ()
    if isinstance(exc, Conflict):
        details = (exc.collection, exc.key, exc.expected, exc.found)  # type: ignore[assignment]
    return type(exc), str(exc), details


def _told(event: Delivered) -> tuple[str, str, bytes, int]:
    return event.topic, event.key, event.payload, event.at


async def _end(adapter: Adapter) -> str:
    position = ""
    while True:
        events, following = await adapter.events(position, 1_000)
        if not events and following == position:
            return position
        position = following


async def _swept(adapter: Adapter, limit: int) -> list[int]:
    """How many each sweep takes, until nothing is left: which of them go first is not agreed."""
    swept: list[int] = []
    while not swept or swept[-1]:
        swept.append(await adapter.sweep(limit))
    return swept


@pytest.mark.repeated
def test_all_backends_tell_the_same_story(arena: Arena) -> None:
    profile = settings.default
    assert profile is not None
    run_state_machine_as_test(
        lambda: Story(arena),  # type: ignore[arg-type]  # anything that makes one will do
        settings=settings(
            profile,
            # A thousand stories on five backends would take more than an hour.
            max_examples=min(profile.max_examples // 3, 150),
            stateful_step_count=30,
            phases=[Phase.generate, Phase.shrink],  # explaining takes minutes, and helps little
        ),
    )
