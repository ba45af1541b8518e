"""Search indexes of a SQLite bank: what the conformance kit cannot look at."""

from __future__ import annotations

import asyncio
import contextlib
import subprocess
import threading
from collections.abc import AsyncIterator, Sequence
from pathlib import Path

import apsw
import numpy as np
import pytest

from perdure.core.errors import Conflict, Corrupted, DeadlineExceeded
from perdure.search import (
    attach,
    sqlite_documents,
    sqlite_search_tables,
    sqlite_vectors,
    vector_graphs,
)
from perdure.search.engine import (
    Document,
    Embedding,
    SearchIndex,
    TextSearch,
    VectorSearch,
    Withdrawal,
    engine_of,
)
from perdure.search.sqlite_search import SQLiteSearch
from perdure.storage.backends.memory import MemoryAdapter
from perdure.storage.backends.sqlite import (
    SQLiteAdapter,
    connections,
)
from perdure.storage.options import DEFAULT, Options
from perdure.storage.rows import Batch, Layout, Put

INDEX = SearchIndex("perdure_recall", ("said", "answered"))
ROWS = Layout("rows")


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "bank.db"


@pytest.fixture
async def bank(file: Path) -> AsyncIterator[SQLiteAdapter]:
    adapter = await opened(file)
    yield adapter
    await adapter.close()


def _engine(adapter: SQLiteAdapter) -> SQLiteSearch:
    engine = engine_of(adapter)
    assert isinstance(engine, SQLiteSearch)
    return engine


async def opened(file: Path) -> SQLiteAdapter:
    adapter = SQLiteAdapter(f"sqlite:///{file}")
    attach(adapter)
    await adapter.initialize()
    await adapter.prepare(ROWS)
    await engine_of(adapter).prepare(INDEX)
    return adapter


def document(place: int, said: str = "", answered: str = "") -> Document:
    return Document(INDEX.name, place, (said, answered), b"note")


async def put(adapter: SQLiteAdapter, *changes: Document | Withdrawal) -> None:
    await adapter.commit(Batch(changes=changes), DEFAULT)


async def append(adapter: SQLiteAdapter, key: str, *changes: Document) -> list[int]:
    batch = Batch((Put("rows", key, b"v", "text/plain", 1),), changes=changes)
    return await adapter.commit(batch, DEFAULT)


async def find(adapter: SQLiteAdapter, term: str) -> list[int]:
    found = await engine_of(adapter).search_text(
        TextSearch(index=INDEX.name, terms=(term,)), DEFAULT
    )
    return [row[0] for row in found.terms[0].found.tolist()]


async def tend(adapter: SQLiteAdapter) -> int:
    steps = 0
    while await engine_of(adapter).tend(INDEX.name):
        steps += 1
    return steps


def found_in(file: Path, what: bytes) -> list[str]:
    """The files of a bank that hold these bytes; another process looks, because of the locks."""
    names = sorted(part.name for part in file.parent.glob(f"{file.name}*"))
    done = subprocess.run(
        ["grep", "-laF", what, *names], cwd=file.parent, capture_output=True, check=False
    )
    assert done.returncode in (0, 1), done.stderr
    return done.stdout.decode().split()


def break_it(file: Path, *texts: str) -> None:
    with contextlib.closing(apsw.Connection(str(file))) as db:
        db.set_busy_timeout(5_000)
        for text in texts:
            db.execute(text)


async def test_writes_while_it_is_checked_are_no_damage(
    file: Path, bank: SQLiteAdapter, monkeypatch: pytest.MonkeyPatch
) -> None:
    await put(bank, document(1, "one"))
    entry = sqlite_search_tables.entry

    async def write() -> None:
        other = await opened(file)
        await put(other, document(2, "two"))
        await other.close()

    def traced(db: apsw.Connection, name: str) -> object:
        found, begun = entry(db, name), list[object]()

        def before_statement(event: object) -> None:
            begun.append(event)
            if len(begun) == 2:  # the documents are counted, their words are not
                thread = threading.Thread(target=lambda: asyncio.run(write()))
                thread.start()
                thread.join()

        db.trace_v2(apsw.SQLITE_TRACE_STMT, before_statement)
        return found

    with monkeypatch.context() as patched:
        patched.setattr(sqlite_search_tables, "entry", traced)
        assert (await engine_of(bank).state(INDEX.name)).faults == ()
    assert (await engine_of(bank).state(INDEX.name)).documents == 2


# Filing -------------------------------------------------------------------------------------------


async def test_documents_are_filed_by_and_by(bank: SQLiteAdapter) -> None:
    for place in range(200):
        await put(bank, document(place, "all", f"t{place}"))
    assert (await engine_of(bank).state(INDEX.name)).unfiled == 200
    assert await engine_of(bank).tend(INDEX.name)
    assert (await engine_of(bank).state(INDEX.name)).unfiled == 200 - sqlite_documents.TOGETHER
    assert await find(bank, "all") == list(range(200))
    await tend(bank)
    assert (await engine_of(bank).state(INDEX.name)).unfiled == 0
    assert await find(bank, "all") == list(range(200))


async def test_what_nobody_files_is_filed_by_commits(bank: SQLiteAdapter) -> None:
    for start in range(0, 2_000, 50):
        await put(bank, *(document(place, "all") for place in range(start, start + 50)))
    state = await engine_of(bank).state(INDEX.name)
    assert state.documents == 2_000
    assert state.unfiled <= sqlite_documents.MOST_UNFILED + 64
    assert await find(bank, "all") == list(range(2_000))


async def test_long_documents_do_not_wait_for_long(bank: SQLiteAdapter) -> None:
    for place in range(40):
        await put(bank, document(place, f"all t{place} " + "long " * 10_000))
    assert (await engine_of(bank).state(INDEX.name)).unfiled < 30
    assert await find(bank, "all") == list(range(40))


async def test_counts_stay_right_when_frequent_terms_are_remembered(bank: SQLiteAdapter) -> None:
    await put(bank, *(document(place, "all") for place in range(3_000)))
    search = TextSearch(index=INDEX.name, terms=("all",))
    before = await engine_of(bank).search_text(search)
    await put(bank, Withdrawal(INDEX.name, 0, 99), document(5_000, "all"))
    after = await engine_of(bank).search_text(search)
    assert abs(before.terms[0].documents - after.terms[0].documents) <= 200
    assert [row[0] for row in after.terms[0].found.tolist()] == [*range(100, 3_000), 5_000]


async def test_a_narrow_range_is_looked_up(bank: SQLiteAdapter) -> None:
    """The same answer, whichever way it was found."""
    memory = MemoryAdapter()
    attach(memory)
    await engine_of(memory).prepare(INDEX)
    documents = [document(place, f"all m{place % 7}", "all all") for place in range(4_000)]
    for adapter in (bank, memory):
        await adapter.commit(Batch(changes=tuple(documents)), DEFAULT)
    await tend(bank)
    await put(bank, document(50, "all fresh"))
    await memory.commit(Batch(changes=(document(50, "all fresh"),)), DEFAULT)
    for within in (
        [(40, 60)],
        [(0, 9), (50, 50), (3_990, 9_999)],
        [(place, place) for place in range(0, 4_000, 100)],
        [(0, 3_500)],
        None,
    ):
        search = TextSearch(
            index=INDEX.name, terms=("all", "m3", "fresh"), within=within, most=100_000
        )
        found, wanted = [await engine_of(each).search_text(search) for each in (bank, memory)]
        for one, other in zip(found.terms, wanted.terms, strict=True):
            assert np.array_equal(one.found, other.found)
            assert one.complete


async def test_terms_that_are_none_find_nothing(bank: SQLiteAdapter) -> None:
    await put(bank, *(document(place, "one two") for place in range(3)))
    await tend(bank)
    terms = ("one two", '"', "one*", "", "one\0", "ONE", "(one)", "one OR two")
    found = await engine_of(bank).search_text(
        TextSearch(index=INDEX.name, terms=terms, within=[(0, 2)]), DEFAULT
    )
    assert [len(each.found) for each in found.terms] == [0] * len(terms)


async def test_a_search_that_is_cancelled_harms_nothing(bank: SQLiteAdapter) -> None:
    await put(bank, *(document(place, "all " * 50) for place in range(2_000)))
    search = TextSearch(index=INDEX.name, terms=("all",), most=10**6)
    for turns in (0, 1, 3, 50):
        task = asyncio.create_task(engine_of(bank).search_text(search))
        for _ in range(turns):
            await asyncio.sleep(0)
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task
    with contextlib.suppress(DeadlineExceeded):
        await engine_of(bank).search_text(search, Options(deadline=0.001))
    assert len((await engine_of(bank).search_text(search)).terms[0].found) == 100_000


async def test_one_conflict_in_a_group_takes_no_document_along(bank: SQLiteAdapter) -> None:
    def batch(number: int) -> Batch:
        expected = 7 if number % 3 == 0 else None
        put = Put("rows", str(number), b"v", "text/plain", 1, expected=expected)
        return Batch((put,), changes=(document(number, "all"),))

    results = await asyncio.gather(
        *(bank.commit(batch(number), DEFAULT) for number in range(30)), return_exceptions=True
    )
    done = [number for number, result in enumerate(results) if not isinstance(result, Conflict)]
    assert done == [number for number in range(30) if number % 3]
    assert await find(bank, "all") == done


# Erasure ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("filed", [False, True])
@pytest.mark.parametrize("way", ["withdrawn", "replaced"])
async def test_a_withdrawn_word_is_in_no_file(
    bank: SQLiteAdapter, file: Path, way: str, filed: bool
) -> None:
    secrets = [f"{letter * 3}swordfish" for letter in "klmnop"]
    texts = [f"w{place} {secrets[place % 6]} all" for place in range(300)]
    await put(bank, *(document(place, text) for place, text in enumerate(texts)))
    if filed:
        await tend(bank)
        await put(bank, document(1_000, "kkkswordfish fresh"))
    if way == "withdrawn":
        await put(bank, Withdrawal(INDEX.name, 0, 2_000))
    else:
        await put(bank, *(document(place, "all") for place in (*range(300), 1_000)))
    await bank.scrub()
    assert found_in(file, b"swordfish") == []
    left = [] if way == "withdrawn" else [*range(300), 1_000]
    assert await find(bank, "all") == left
    assert (await engine_of(bank).state(INDEX.name)).faults == ()


async def test_segments_that_another_process_merged_are_no_damage(
    bank: SQLiteAdapter, file: Path
) -> None:
    other = await opened(file)
    for place in range(300):
        await put(other, document(place, f"common w{place}"))
        if place % 20 == 0:
            await tend(other)
    assert len(await find(bank, "common")) == 300
    for place in range(300, 600):
        await put(other, document(place, f"common w{place}"))
    await tend(other)
    with apsw.Connection(str(file)) as db:
        db.execute("INSERT INTO perdure_recall__words(perdure_recall__words) VALUES('optimize')")
    assert await bank.inspect() == []
    assert len(await find(bank, "common")) == 600
    await other.close()


async def test_a_damaged_index_is_removed_by_scrubbing(bank: SQLiteAdapter, file: Path) -> None:
    await put(bank, *(document(place, "kkkswordfish") for place in range(300)))
    await tend(bank)
    break_it(file, 'DROP TABLE "perdure_recall__words_config"')
    await append(bank, "row")
    await bank.scrub()
    assert found_in(file, b"swordfish") == []
    assert (await bank.get("rows", ["row"], DEFAULT))[0] is not None
    assert await engine_of(bank).prepare(INDEX)
    await put(bank, document(1, "again"))
    assert await find(bank, "again") == [1]


# Damage -------------------------------------------------------------------------------------------

BROKEN = {
    "documents": 'DROP TABLE "perdure_recall__documents"',
    "fresh": 'DROP TABLE "perdure_recall__fresh"',
    "words": 'DROP TABLE "perdure_recall__words"',
    "data": 'DROP TABLE "perdure_recall__words_data"',
    "config": 'DROP TABLE "perdure_recall__words_config"',
    "content": 'DELETE FROM "perdure_recall__words_data"',
    "structure": "UPDATE \"perdure_recall__words_data\" SET block = x'ff' WHERE id = 10",
}


@pytest.mark.parametrize("what", BROKEN)
async def test_a_broken_index_breaks_nothing_else(
    bank: SQLiteAdapter, file: Path, what: str
) -> None:
    await append(bank, "before", *(document(place, "all") for place in range(100)))
    await tend(bank)
    assert await find(bank, "all") == list(range(100))
    break_it(file, BROKEN[what])
    # Appends go on, alone, together, and those that replace what is filed.
    assert await append(bank, "one", document(500, "all"), document(3, "all")) == [1]
    done = await asyncio.gather(
        *(append(bank, f"many{number}", document(600 + number, "all")) for number in range(5))
    )
    assert done == [[1]] * 5
    rows = await bank.get("rows", ["before", "one", "many4"], DEFAULT)
    assert all(row is not None for row in rows)
    await tend(bank)
    with pytest.raises(Corrupted, match="perdure index rebuild"):
        await find(bank, "all")
    state = await engine_of(bank).state(INDEX.name)
    assert state.faults
    # Who opens the bank anew is told as well.
    other = await opened(file)
    with pytest.raises(Corrupted, match="perdure index rebuild"):
        await find(other, "all")
    await other.close()
    await engine_of(bank).erase(INDEX.name)
    assert await engine_of(bank).prepare(INDEX)
    await append(bank, "after", document(7, "all"))
    assert await find(bank, "all") == [7]
    assert (await engine_of(bank).state(INDEX.name)).faults == ()
    assert await bank.inspect() == []


async def test_an_index_that_is_gone(bank: SQLiteAdapter, file: Path) -> None:
    await append(bank, "one", document(1, "all"))
    other = await opened(file)
    await engine_of(other).erase(INDEX.name)
    with pytest.raises(Corrupted, match="it is gone"):
        await find(bank, "all")
    assert (await engine_of(bank).state(INDEX.name)).faults == ("It is gone.",)
    assert not await engine_of(bank).tend(INDEX.name)
    assert await append(bank, "two", document(2, "all")) == [1]
    await other.close()


# Whole banks --------------------------------------------------------------------------------------


async def test_a_snapshot_leaves_indexes_out(bank: SQLiteAdapter, tmp_path: Path) -> None:
    await append(bank, "one", document(1, "all"))
    await tend(bank)
    target = await opened(tmp_path / "other.db")
    await put(target, document(5, "old"))
    async with bank.snapshot() as snapshot:
        assert [layout.name for layout in await snapshot.layouts()] == ["rows"]
        await target.load(snapshot, replace=True)
    assert (await target.get("rows", ["one"], DEFAULT))[0] is not None
    assert await engine_of(target).prepare(INDEX)
    assert await find(target, "old") == []
    await put(target, document(1, "all"))
    assert await find(target, "all") == [1]
    assert [size.collection for size in await target.sizes()] == ["rows"]
    assert await target.inspect() == []
    await target.close()


# Vectors ------------------------------------------------------------------------------------------


def vectors(count: int, seed: int = 1) -> list[bytes]:
    """Vectors in bunches, as those of texts are."""
    dice = np.random.default_rng(seed)
    middles = dice.normal(size=(20, 64))
    found = middles[dice.integers(0, 20, count)] + 0.6 * dice.normal(size=(count, 64))
    scaled = np.rint(found * (127 / np.abs(found).max(axis=1, keepdims=True)))
    return [row.tobytes() for row in scaled.astype(np.int8)]


async def embed(adapter: SQLiteAdapter, start: int, given: Sequence[bytes]) -> None:
    places = range(start, start + len(given))
    await put(adapter, *(document(place, "x") for place in places))
    pairs = [Embedding(place, vector) for place, vector in zip(places, given, strict=True)]
    assert await engine_of(adapter).embed(INDEX.name, "m", pairs) == len(given)


async def near(
    adapter: SQLiteAdapter, vector: bytes, within: list[tuple[int, int]] | None = None
) -> list[int]:
    search = VectorSearch(index=INDEX.name, model="m", vector=vector, within=within, limit=20)
    return [each.place for each in await engine_of(adapter).search_vectors(search)]


def overlap(found: list[int], wanted: list[int]) -> float:
    return len(set(found) & set(wanted)) / len(wanted)


async def test_what_others_remove_is_not_found(bank: SQLiteAdapter, file: Path) -> None:
    """Old vectors as well as new ones, whichever process removes or replaces them."""
    given = vectors(1_500)
    await embed(bank, 0, given)
    assert (await near(bank, given[3]))[0] == 3
    other = await opened(file)
    changes = [(other, 3), (bank, 1_490), (other, 1_499), (bank, 700)]
    for number, (writer, place) in enumerate(changes):
        await put(writer, Withdrawal(INDEX.name, place, place), document(place + 10_000))
        gone = [place for _, place in changes[: number + 1]]
        for reader in (bank, other):
            assert not {*await near(reader, given[place])} & {*gone}
            found = await engine_of(reader).vectors(INDEX.name, "m", [*gone, 5])
            assert (found.at.tolist(), found.rows.tobytes()) == ([len(gone)], given[5])
    await put(bank, document(8, "x"))
    await engine_of(other).embed(INDEX.name, "m", [Embedding(8, given[3])])
    for reader in (bank, other):
        assert (await near(reader, given[3]))[0] == 8
        found = await engine_of(reader).vectors(INDEX.name, "m", [8])
        assert found.rows.tobytes() == given[3]
    await other.close()


async def test_a_search_that_began_earlier_sees_no_more_than_it_should(
    bank: SQLiteAdapter, file: Path
) -> None:
    given = vectors(60)
    await embed(bank, 0, given[:50])
    await near(bank, given[0])
    known = _engine(bank)._opened[INDEX.name].nearness
    with contextlib.closing(connections.connect_to_read(file)) as db, connections.snapshot(db):
        assert known.search(db, VectorSearch(index=INDEX.name, model="m", vector=given[9]))
        await embed(bank, 50, given[50:])
        await put(bank, Withdrawal(INDEX.name, 7, 7))
        assert (await near(bank, given[55]))[0] == 55  # another thread is ahead now
        search = VectorSearch(index=INDEX.name, model="m", vector=given[55])
        assert max(each.place for each in known.search(db, search)) == 49
        found = known.vectors(db, "m", [3, 7, 55])
        assert (found.at.tolist(), found.rows.tobytes()) == ([0, 1], given[3] + given[7])
    assert (await near(bank, given[55]))[0] == 55
    found = await engine_of(bank).vectors(INDEX.name, "m", [3, 7, 55])
    assert (found.at.tolist(), found.rows.tobytes()) == ([0, 2], given[3] + given[55])


@pytest.mark.parametrize("asked", ["nearest", "vectors"])
async def test_the_event_loop_never_waits_for_a_thread_that_has_the_vectors(
    bank: SQLiteAdapter, monkeypatch: pytest.MonkeyPatch, asked: str
) -> None:
    given = vectors(60)
    await embed(bank, 0, given)
    await near(bank, given[0])
    known = _engine(bank)._opened[INDEX.name].nearness
    # A thread takes them in the moment after one looked whether any has.
    monkeypatch.setattr(known, "may_be_quick", lambda *_: True)
    taken, done, went_on = threading.Event(), threading.Event(), list[bool]()

    def take() -> None:
        with known._lock:
            taken.set()
            went_on.append(done.wait(timeout=10))

    thread = threading.Thread(target=take)
    thread.start()
    await asyncio.to_thread(taken.wait)
    asyncio.get_running_loop().call_later(0.01, done.set)  # which the loop has to get to
    if asked == "nearest":
        assert (await near(bank, given[7]))[0] == 7
    else:
        assert (await engine_of(bank).vectors(INDEX.name, "m", [7])).rows.tobytes() == given[7]
    thread.join()
    assert went_on == [True]


async def test_many_vectors_are_never_read_on_the_event_loop(
    bank: SQLiteAdapter, file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sqlite_vectors, "_FEW_NEW", 20)
    given, read = vectors(90), list[tuple[bool, int]]()
    follow = sqlite_vectors._Model.follow

    def noted(model: sqlite_vectors._Model, db: apsw.Connection, held: int) -> bool:
        on_loop = threading.current_thread() is threading.main_thread()
        before = model.vectors.size
        is_exact = follow(model, db, held)
        read.append((on_loop, model.vectors.size - before))
        return is_exact

    monkeypatch.setattr(sqlite_vectors._Model, "follow", noted)
    await embed(bank, 0, given[:30])
    await near(bank, given[0])
    other = await opened(file)
    await embed(other, 30, given[30:35])
    assert (await near(bank, given[33]))[0] == 33  # a few: at once
    await embed(other, 35, given[35:])
    assert (await near(bank, given[80]))[0] == 80  # more than a few
    await put(other, *(document(place, "x") for place in range(30)))
    await engine_of(other).embed(
        INDEX.name, "n", [Embedding(place, given[place]) for place in range(30)]
    )
    search = VectorSearch(index=INDEX.name, model="n", vector=given[3])
    assert (await engine_of(bank).search_vectors(search))[0].place == 3  # of another model
    assert read == [(False, 30), (True, 5), (False, 55), (False, 30)]
    await other.close()


async def test_vectors_of_a_file_that_were_not_checked_are_not_relied_on(
    bank: SQLiteAdapter, monkeypatch: pytest.MonkeyPatch
) -> None:
    await embed(bank, 0, vectors(5))
    check = sqlite_vectors._Model.check

    def stopped(model: sqlite_vectors._Model, db: apsw.Connection) -> None:
        raise apsw.InterruptError("interrupted")

    monkeypatch.setattr(sqlite_vectors._Model, "check", stopped)
    with pytest.raises(DeadlineExceeded):
        await near(bank, vectors(5)[0])
    monkeypatch.setattr(sqlite_vectors._Model, "check", check)
    assert not _engine(bank)._opened[INDEX.name].nearness._models
    assert (await near(bank, vectors(5)[0]))[0] == 0


@pytest.fixture
def small_graphs(monkeypatch: pytest.MonkeyPatch) -> None:
    """Graphs are made of a few hundred vectors."""
    monkeypatch.setattr(sqlite_vectors, "EXACT", 500)
    monkeypatch.setattr(sqlite_vectors, "_BEHIND", 100)
    monkeypatch.setattr(vector_graphs, "STEP", 300)


def graph_files(file: Path) -> list[Path]:
    return sorted(file.parent.glob("*.vectors*"))


@pytest.mark.usefixtures("small_graphs")
async def test_many_vectors_get_a_graph(bank: SQLiteAdapter, file: Path) -> None:
    given = vectors(1_500)
    await embed(bank, 0, given[:1_400])
    wanted = [await near(bank, given[place]) for place in range(0, 1_400, 100)]
    assert await tend(bank) >= 5
    assert len(graph_files(file)) == 1
    assert graph_files(file)[0].stat().st_mode & 0o777 == 0o600
    found = [await near(bank, given[place]) for place in range(0, 1_400, 100)]
    hits = [overlap(*pair) for pair in zip(found, wanted, strict=True)]
    assert sum(hits) / len(hits) > 0.95
    # What is added, replaced and withdrawn behind it.
    await embed(bank, 1_400, given[1_400:])
    assert (await near(bank, given[1_450]))[0] == 1_450
    await put(bank, Withdrawal(INDEX.name, 0, 99), document(1_450, "x"))
    assert 1_450 not in await near(bank, given[1_450])
    assert min(await near(bank, given[50])) >= 100
    # Narrow and broad ranges.
    assert (await near(bank, given[700], [(690, 710)]))[0] == 700
    inside = await near(bank, given[700], [(600, 1_300)])
    assert inside[0] == 700
    assert all(600 <= place <= 1_300 for place in inside)


@pytest.mark.usefixtures("small_graphs")
async def test_another_process_begins_with_the_file(bank: SQLiteAdapter, file: Path) -> None:
    given = vectors(1_200)
    await embed(bank, 0, given[:1_000])
    await tend(bank)
    await embed(bank, 1_000, given[1_000:1_050])
    other = await opened(file)
    assert await near(other, given[1_020]) == await near(bank, given[1_020])
    known = _engine(other)._opened[INDEX.name].nearness._models
    assert [model.vectors.guide is not None for model in known.values()] == [True]
    await embed(bank, 1_050, given[1_050:])  # more than are left behind the graph
    before = graph_files(file)[0].read_bytes()
    await tend(other)
    assert graph_files(file)[0].read_bytes() != before
    assert (await near(other, given[1_150]))[0] == 1_150
    await other.close()


@pytest.mark.usefixtures("small_graphs")
@pytest.mark.parametrize("harm", ["missing", "cut", "flipped", "empty", "other"])
async def test_a_harmed_graph_is_made_again(
    bank: SQLiteAdapter, file: Path, tmp_path: Path, harm: str
) -> None:
    given = vectors(800)
    await embed(bank, 0, given)
    wanted = await near(bank, given[5])
    await tend(bank)
    (graph,) = graph_files(file)
    data = graph.read_bytes()
    match harm:
        case "missing":
            graph.unlink()
        case "cut":
            graph.write_bytes(data[:-100])
        case "flipped":
            middle = len(data) // 2
            graph.write_bytes(data[:middle] + bytes([data[middle] ^ 1]) + data[middle + 1 :])
        case "empty":
            graph.write_bytes(b"")
        case _:
            graph.write_bytes(b"perdure vectors 1\n{}\nnothing")
    assert overlap(await near(bank, given[5]), wanted) > 0.9  # whoever has it goes on
    other = await opened(file)
    assert await near(other, given[5]) == wanted
    await tend(other)
    assert graph.read_bytes()[:100] == data[:100]
    assert overlap(await near(other, given[5]), wanted) > 0.9
    await other.close()


@pytest.mark.usefixtures("small_graphs")
async def test_scrubbing_removes_graphs(bank: SQLiteAdapter, file: Path) -> None:
    given = vectors(800)
    await embed(bank, 0, given)
    await tend(bank)
    assert set(found_in(file, given[700][:32].replace(b"\n", b""))) or graph_files(file)
    await put(bank, Withdrawal(INDEX.name, 600, 799))
    await bank.scrub()
    assert graph_files(file) == []
    await tend(bank)
    (graph,) = graph_files(file)
    assert given[10] in graph.read_bytes()
    assert given[700] not in graph.read_bytes()
    assert (await near(bank, given[10]))[0] == 10
    await engine_of(bank).erase(INDEX.name)
    assert graph_files(file) == []


@pytest.mark.usefixtures("small_graphs")
async def test_two_who_tend_make_one_graph(bank: SQLiteAdapter, file: Path) -> None:
    await embed(bank, 0, vectors(1_500))
    while (await engine_of(bank).state(INDEX.name)).unfiled:
        await engine_of(bank).tend(INDEX.name)
    other = await opened(file)
    while not list(file.parent.glob("*.claim")):
        await engine_of(bank).tend(INDEX.name)
    assert not await engine_of(other).tend(INDEX.name)
    await bank.close()  # who leaves lets others go on
    await tend(other)
    assert [path.suffix for path in graph_files(file)] == [".vectors"]
    await other.close()


async def test_where_a_term_stands_is_told_in_order_of_fields(bank: SQLiteAdapter) -> None:
    """Although FTS5 has the last field in front."""
    await put(bank, document(1, "x all", "all all"), document(2, "", "all"), document(3, "all"))
    await tend(bank)
    found = await engine_of(bank).search_text(TextSearch(index=INDEX.name, terms=("all",)), DEFAULT)
    assert found.terms[0].found.tolist() == [[1, 0, 1], [1, 1, 0], [1, 1, 1], [2, 1, 0], [3, 0, 0]]
