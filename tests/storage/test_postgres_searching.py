"""Search indexes on PostgreSQL: what the conformance kit cannot know."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from typing import TypeAlias

import psycopg
import pytest

from perdure.core.errors import Conflict, Corrupted, InvalidInput, InvalidValue
from perdure.search import attach, postgres_terms, postgres_vectors
from perdure.search.engine import (
    Document,
    Embedding,
    Postings,
    Range,
    SearchIndex,
    TextFound,
    TextSearch,
    VectorSearch,
    Withdrawal,
    engine_of,
)
from perdure.search.postgres_search_tables import lexeme, rows_of
from perdure.storage.adapter import Adapter
from perdure.storage.backends.memory import MemoryAdapter
from perdure.storage.backends.postgres import PostgresAdapter
from perdure.storage.options import DEFAULT
from perdure.storage.rows import Batch, Layout, Put
from tests.servers import PostgresServer

INDEX = SearchIndex("shelf", ("title", "text"))
ROWS = Layout("things")
WORDS = "perdure.shelf__words2"

Open: TypeAlias = Callable[[], Awaitable[PostgresAdapter]]


@pytest.fixture
async def opened(postgres_url: str) -> AsyncIterator[Open]:
    """Opens the same bank, as another process would, with its index and a collection."""
    adapters: list[PostgresAdapter] = []

    async def make() -> PostgresAdapter:
        adapter = PostgresAdapter(postgres_url)
        attach(adapter)
        await adapter.initialize()
        adapters.append(adapter)
        await adapter.prepare(ROWS)
        await engine_of(adapter).prepare(INDEX)
        return adapter

    yield make
    for adapter in adapters:
        await adapter.close()


@pytest.fixture
async def adapter(opened: Open) -> PostgresAdapter:
    return await opened()


def document(place: int, *texts: str, note: bytes = b"") -> Document:
    return Document("shelf", place, (*texts, *[""] * (2 - len(texts))), note)


def row(key: str, expected: int | None = None) -> Put:
    return Put("things", key, b"value", "text/plain", 1, expected=expected)


async def change(adapter: Adapter, *changes: Document | Withdrawal) -> None:
    await adapter.commit(Batch(changes=changes), DEFAULT)


async def search(
    adapter: Adapter, *terms: str, within: Sequence[Range] | None = None, most: int = 12_000
) -> TextFound:
    return await engine_of(adapter).search_text(
        TextSearch(index="shelf", terms=terms, within=within, most=most), DEFAULT
    )


async def find(adapter: Adapter, term: str) -> list[list[int]]:
    found: list[list[int]] = (await search(adapter, term)).terms[0].found.tolist()
    return found


async def near(
    adapter: Adapter, vector: bytes, within: Sequence[Range] | None = None, limit: int = 10
) -> list[int]:
    asked = VectorSearch(index="shelf", model="m", vector=vector, within=within, limit=limit)
    return [each.place for each in await engine_of(adapter).search_vectors(asked, DEFAULT)]


def run_sql(url: str, *statements: str) -> list[tuple[object, ...]]:
    """What the last of them returns, if anything."""
    found: list[tuple[object, ...]] = []
    with psycopg.connect(url, autocommit=True) as db:
        for text in statements:
            cursor = db.execute(text)
            found = cursor.fetchall() if cursor.description else []
    return found


# Words --------------------------------------------------------------------------------------------


async def test_documents_longer_than_a_tsvector(adapter: PostgresAdapter) -> None:
    """Positions beyond 16,383, and more than 255 of one term, are not lost."""
    terms = ["often" if number % 50 == 0 else f"w{number % 9_000}" for number in range(40_000)]
    await change(
        adapter, document(1, "often last", " ".join(terms), note=b"long"), document(2, "often")
    )
    wanted = [[1, 0, 0], *([1, 1, offset] for offset in range(0, 40_000, 50)), [2, 0, 0]]
    assert await find(adapter, "often") == wanted
    assert await find(adapter, "w8999") == [
        [1, 1, offset] for offset in range(8_999, 40_000, 9_000)
    ]
    found = await search(adapter, "often", "w8999")
    assert [found.documents, *(term.documents for term in found.terms)] == [2, 2, 1]
    assert await engine_of(adapter).places("shelf", -1, 10) == [1, 2]
    assert await engine_of(adapter).notes("shelf", [1]) == [b"long"]
    await change(adapter, document(1, "short"))
    assert await find(adapter, "often") == [[2, 0, 0]]
    assert await find(adapter, "short") == [[1, 0, 0]]


def test_rows_of_a_document() -> None:
    assert list(rows_of(("", ""), 10)) == [(0, "")]
    assert list(rows_of(("a b a", "b"), 10)) == [(0, "'a':1,3 'b':2,11")]
    assert [start for start, _ in rows_of(("x " * 25, ""), 10)] == [0, 10, 20]


@pytest.mark.parametrize(
    "term",
    ["it's", "'", "\\", "\\'", "a\\", "a:1A", "&|!()<->:*", '"', "%s", "{}", "a\0b", "\ud800", "#"],
    ids=ascii,
)
async def test_terms_that_nobody_should_write(adapter: PostgresAdapter, term: str) -> None:
    await change(adapter, document(1, f"a {term} b"))
    assert await find(adapter, term) == [[1, 0, 1]]
    assert await find(adapter, "b") == [[1, 0, 2]]
    assert (await engine_of(adapter).state("shelf")).faults == ()


def test_long_terms_stay_different() -> None:
    long = ["x" * 5_000, "x" * 5_001, "語" * 19, "語" * 20]
    assert len({lexeme(term) for term in long}) == len(long)
    assert all(len(lexeme(term).encode()) <= 56 for term in long)
    assert lexeme("x" * 56) == "x" * 56


@pytest.mark.parametrize("seed", range(4))
async def test_it_answers_as_the_backend_in_memory_does(
    adapter: PostgresAdapter, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Random documents, replaced and withdrawn; random searches with ranges and limits."""
    monkeypatch.setattr(postgres_terms, "FRESH", 0.0)
    dice = random.Random(seed)
    memory = MemoryAdapter()
    attach(memory)
    await memory.initialize()
    await engine_of(memory).prepare(INDEX)
    letters = "aaaaaaaabbbbcccdde"
    for _ in range(12):
        batch: list[Document | Withdrawal] = [
            document(
                dice.randrange(200),
                *(" ".join(dice.choices(letters, k=dice.randrange(9))) for _ in range(2)),
                note=dice.randbytes(3),
            )
            for _ in range(dice.randrange(40))
        ]
        first = dice.randrange(200)
        batch.insert(dice.randrange(len(batch) + 1), Withdrawal("shelf", first, first + 9))
        for each in (memory, adapter):
            await change(each, *batch)
        await engine_of(adapter).tend("shelf")
        for _ in range(4):
            terms = dice.sample("abcdefg", dice.randrange(1, 7))
            edges = sorted(dice.sample(range(200), 2 * dice.randrange(5)))
            ranges = list(zip(edges[::2], edges[1::2], strict=True))
            within, most = dice.choice([None, ranges]), dice.choice([12_000, 100, 20, 3, 0])
            wanted = await search(memory, *terms, within=within, most=most)
            found = await search(adapter, *terms, within=within, most=most)
            assert told(found) == told(wanted), (terms, within, most)
    places = list(range(200))
    assert await engine_of(adapter).notes("shelf", places) == await engine_of(memory).notes(
        "shelf", places
    )


def told(found: TextFound) -> tuple[int, list[tuple[int, list[list[int]], bool]]]:
    def plain(postings: Postings) -> tuple[int, list[list[int]], bool]:
        return postings.documents, postings.found.tolist(), postings.complete

    return found.documents, [plain(each) for each in found.terms]


async def test_frequent_terms_are_estimated(
    adapter: PostgresAdapter, postgres_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(postgres_terms, "MANY", 500)
    monkeypatch.setattr(postgres_terms, "FREQUENT", 200)
    monkeypatch.setattr(postgres_terms, "FRESH", 0.0)
    await change(
        adapter,
        *(document(n, f"all {'half' if n % 2 else ''} ten{n % 100} own{n}") for n in range(1_000)),
    )
    run_sql(postgres_url, f"ANALYZE {WORDS}")
    found = await search(adapter, "all", "half", "ten5", "own7", "none", most=600)
    assert [term.documents for term in found.terms] == [1_000, 500, 10, 1, 0]
    assert [len(term.found) for term in found.terms] == [0, 500, 10, 1, 0]
    assert [term.complete for term in found.terms] == [False, True, True, True, True]
    # Most of the index, and more than there is room for; then a part of it that is small.
    wide = await search(adapter, "all", "own7", within=[(0, 900)], most=100)
    assert [len(term.found) for term in wide.terms] == [0, 1]
    narrow = await search(adapter, "all", "own7", within=[(3, 5), (7, 9)], most=100)
    assert [len(term.found) for term in narrow.terms] == [6, 1]
    # Only one that there is too much of: the first of it.
    (cut,) = (await search(adapter, "all", most=50)).terms
    assert (cut.found[:, 0].tolist(), cut.complete) == (list(range(50)), False)


# Trouble ------------------------------------------------------------------------------------------

BREAKING = {
    "table": f"DROP TABLE {WORDS}",
    "column": f"ALTER TABLE {WORDS} DROP COLUMN start",
    "type": f"ALTER TABLE {WORDS} DROP COLUMN words, ADD COLUMN words integer",
    "trigger": "CREATE FUNCTION no() RETURNS trigger LANGUAGE plpgsql AS"
    " $$ BEGIN RAISE 'no' USING ERRCODE = 'XX002'; END $$;"
    f" CREATE TRIGGER no BEFORE INSERT ON {WORDS} FOR EACH ROW EXECUTE FUNCTION no()",
    "list": "DROP TABLE perdure.perdure_search__indexes",
}


@pytest.mark.parametrize("how", BREAKING)
async def test_an_append_does_without_a_broken_index(
    opened: Open, postgres_url: str, how: str
) -> None:
    adapter = await opened()
    await change(adapter, document(1, "before"))
    run_sql(postgres_url, BREAKING[how])
    for number in range(3):
        batch = Batch((row(f"k{number}"),), changes=(document(2 + number, "after"),))
        assert await adapter.commit(batch, DEFAULT) == [1]
    with pytest.raises(Conflict):
        await adapter.commit(Batch((row("k0", 7),), changes=(document(9, "x"),)), DEFAULT)
    assert len([each for each in await adapter.get("things", ["k0", "k2"], DEFAULT) if each]) == 2
    with pytest.raises(Corrupted, match="perdure index rebuild"):
        await find(adapter, "before")
    assert (await engine_of(adapter).state("shelf")).faults
    # Another process makes it anew; this one goes on with it.
    other = await opened()
    await engine_of(other).erase("shelf")
    assert await engine_of(other).prepare(INDEX)
    await change(adapter, document(5, "anew"))
    for each in (adapter, other):
        assert await find(each, "anew") == [[5, 0, 0]]
        assert (await engine_of(each).state("shelf")).faults == ()


async def test_what_is_wrong_with_rows_is_not_blamed_on_the_index(
    adapter: PostgresAdapter,
) -> None:
    wrong = Batch((row("a\0b"),), changes=(document(1, "word"),))
    with pytest.raises(InvalidValue):
        await adapter.commit(wrong, DEFAULT)
    assert (await engine_of(adapter).state("shelf")).faults == ()
    await change(adapter, document(1, "word"))
    assert await find(adapter, "word") == [[1, 0, 0]]


async def test_a_fault_is_remembered(opened: Open, postgres_url: str) -> None:
    """Documents that were not filed make the index faulty for everybody, until it is made anew."""
    adapter = await opened()
    run_sql(postgres_url, BREAKING["trigger"])
    await change(adapter, document(1, "word"))
    run_sql(postgres_url, f"DROP TRIGGER no ON {WORDS}")
    other = await opened()
    (fault,) = (await engine_of(other).state("shelf")).faults
    assert "no" in fault
    with pytest.raises(Corrupted):
        await find(other, "word")
    with pytest.raises(Corrupted):
        await near(other, b"\1\2")


async def test_many_prepare_at_once(postgres_url: str) -> None:
    adapters = [PostgresAdapter(postgres_url) for _ in range(5)]
    for adapter in adapters:
        attach(adapter)
    await asyncio.gather(*(adapter.initialize() for adapter in adapters))
    made = await asyncio.gather(*(engine_of(adapter).prepare(INDEX) for adapter in adapters))
    assert sorted(made) == [False, False, False, False, True]
    await asyncio.gather(
        *(change(adapter, document(n, "word")) for n, adapter in enumerate(adapters))
    )
    assert await find(adapters[0], "word") == [[n, 0, 0] for n in range(5)]
    for adapter in adapters:
        await adapter.close()


async def test_loading_leaves_no_index(adapter: PostgresAdapter) -> None:
    await adapter.commit(Batch((row("a"),), changes=(document(1, "word"),)), DEFAULT)
    memory = MemoryAdapter()
    attach(memory)
    await memory.initialize()
    async with adapter.snapshot() as snapshot:
        assert [layout.name for layout in await snapshot.layouts()] == ["things"]
        await memory.load(snapshot)
    async with memory.snapshot() as snapshot:
        await adapter.load(snapshot, replace=True)
    assert [size.collection for size in await adapter.sizes()] == ["things"]
    assert await adapter.inspect() == []
    await adapter.prepare(ROWS)
    assert await engine_of(adapter).prepare(INDEX)
    assert await find(adapter, "word") == []


async def test_withdrawn_words_are_not_in_the_index_file(
    adapter: PostgresAdapter, postgres_server: PostgresServer, postgres_url: str
) -> None:
    """PostgreSQL never removes a word from such an index, even if no row has it any more."""
    await change(adapter, *(document(n, f"swordfish{n % 3} x") for n in range(30)))
    await engine_of(adapter).tend("shelf")
    await change(adapter, Withdrawal("shelf", 0, 29), document(50, "x"))
    await adapter.scrub()
    ((path,),) = run_sql(
        postgres_url, "CHECKPOINT", f"SELECT pg_relation_filepath('{WORDS}__filed')"
    )
    assert b"swordfish" not in (postgres_server.data_dir / str(path)).read_bytes()
    assert await find(adapter, "x") == [[50, 0, 0]]
    assert (
        run_sql(postgres_url, "SELECT 1 FROM pg_stats WHERE most_common_elems::text ~ 'sword'")
        == []
    )


@pytest.mark.parametrize("name", ["Upper", "a-b", "x" * 41, "", "a.b"])
async def test_names_that_cannot_be(adapter: PostgresAdapter, name: str) -> None:
    with pytest.raises(InvalidInput):
        await engine_of(adapter).prepare(SearchIndex(name, ("a",)))


# Vectors ------------------------------------------------------------------------------------------


def vectors(count: int, length: int = 32) -> dict[int, bytes]:
    dice = random.Random(1)
    return {n: bytes(dice.randrange(-127, 128) & 255 for _ in range(length)) for n in range(count)}


async def embed(adapter: Adapter, given: dict[int, bytes]) -> int:
    return await engine_of(adapter).embed(
        "shelf", "m", [Embedding(*pair) for pair in given.items()]
    )


async def test_many_vectors_get_an_index(
    adapter: PostgresAdapter, postgres_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    given = vectors(600)
    await change(adapter, *(document(n, "x") for n in given))
    await embed(adapter, given)
    exact = {n: await near(adapter, given[n]) for n in range(0, 600, 50)}
    within = [(100, 199), (300, 399)]
    limited = await near(adapter, given[5], within)
    monkeypatch.setattr(postgres_vectors, "MANY", 500)
    monkeypatch.setattr(postgres_vectors, "FEW", 50)
    assert not await engine_of(adapter).tend("shelf")
    assert not await engine_of(adapter).tend("shelf")
    built = run_sql(postgres_url, "SELECT indexdef FROM pg_indexes WHERE indexdef ~ 'USING hnsw'")
    assert len(built) == 1
    found = {n: await near(adapter, given[n]) for n in exact}
    shared = [len(set(found[n]) & set(exact[n])) for n in exact]
    assert sum(shared) >= 9 * len(exact)
    assert [places[0] for places in found.values()] == list(exact)
    assert len(set(await near(adapter, given[5], within)) & set(limited)) >= 8
    assert await near(adapter, given[5], [(7, 9)]) == await near(adapter, given[5], [(7, 9)], 3)
    # What comes later is in it, too; what goes is not.
    await change(adapter, document(700, "y"), Withdrawal("shelf", 0, 0))
    await embed(adapter, {700: given[0]})
    assert (await near(adapter, given[0]))[0] == 700


async def test_without_pgvector_vectors_are_compared_here(
    postgres_server: PostgresServer, postgres_url: str
) -> None:
    """A role that may not install it: everything works nevertheless."""
    run_sql(
        postgres_url,
        "DROP ROLE IF EXISTS guest",
        "CREATE ROLE guest LOGIN",
        "CREATE SCHEMA perdure AUTHORIZATION guest",
    )
    adapter = PostgresAdapter(postgres_url.replace("postgres@", "guest@"))
    attach(adapter)
    await adapter.initialize()
    try:
        assert await engine_of(adapter).prepare(INDEX)
        given = vectors(50)
        await change(adapter, *(document(n, "x") for n in given))
        assert await embed(adapter, given | {99: given[0]}) == 50
        memory = MemoryAdapter()
        attach(memory)
        await memory.initialize()
        await engine_of(memory).prepare(INDEX)
        await change(memory, *(document(n, "x") for n in given))
        await embed(memory, given)
        for within in (None, [(3, 9), (20, 22)]):
            assert await near(adapter, given[7], within) == await near(memory, given[7], within)
        found = await engine_of(adapter).vectors("shelf", "m", [4, 99])
        assert (found.at.tolist(), found.rows.tobytes()) == ([0], given[4])
        await engine_of(adapter).tend("shelf")
        assert (await engine_of(adapter).state("shelf")).vectors == {"m": 50}
        kinds = run_sql(postgres_url, "SELECT vectors FROM perdure.perdure_search__indexes")
        assert kinds == [("bytea",)]
    finally:
        await adapter.close()
        run_sql(postgres_url, "DROP SCHEMA perdure CASCADE", "DROP ROLE guest")


async def test_every_signed_byte_is_kept(adapter: PostgresAdapter) -> None:
    every = bytes(number & 255 for number in range(-128, 128))
    nothing = bytes(256)
    await change(adapter, *(document(n, "x") for n in range(3)))
    await embed(adapter, {0: every, 1: nothing, 2: bytes(-n & 255 for n in range(-127, 129))})
    found = await engine_of(adapter).vectors("shelf", "m", [0, 1])
    assert [row.tobytes() for row in found.rows] == [every, nothing]
    assert await near(adapter, every) == [0, 1, 2]  # nowhere is nearer than the other way
    assert await near(adapter, nothing) == [0, 1, 2]


async def test_no_vector_stays_without_its_document(opened: Open, postgres_url: str) -> None:
    """Documents are replaced and withdrawn while others embed them."""
    one, other = await opened(), await opened()
    given = vectors(40)
    for _ in range(10):
        await change(one, *(document(n, "x") for n in given))
        await asyncio.gather(
            embed(other, given),
            change(one, Withdrawal("shelf", 0, 19)),
            embed(one, dict(reversed(given.items()))),
        )
        orphans = run_sql(
            postgres_url,
            "SELECT count(*) FROM perdure.shelf__vectors AS v WHERE NOT EXISTS"
            f" (SELECT FROM {WORDS} AS w WHERE w.place = v.place)",
        )
        assert orphans == [(0,)]
