"""Indexes that are added while others use the collection, also with older declarations."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Annotated, Any

import apsw
import msgspec
import psycopg
import pytest

from perdure.core.errors import Unavailable
from perdure.storage import filling, tables
from perdure.storage.backends.sqlite import SQLiteAdapter
from perdure.storage.options import DEFAULT
from perdure.storage.records import Indexed, Key, record
from perdure.storage.rows import Index
from perdure.storage.store import Store
from perdure.testing.manual_clock import ManualClock
from tests.conftest import DURABLE, MakeStore
from tests.servers import PostgresServer

durable = pytest.mark.parametrize("store_url", DURABLE, indirect=True)
on_sqlite = pytest.mark.parametrize("store_url", ["sqlite"], indirect=True)
on_postgresql = pytest.mark.parametrize("store_url", ["postgresql"], indirect=True)


@record("songs")
class Song1(msgspec.Struct, frozen=True):
    id: Annotated[str, Key()]
    title: str
    year: int = 0


@record("songs")
class Song2(msgspec.Struct, frozen=True):
    id: Annotated[str, Key()]
    title: Annotated[str, Indexed()]
    year: int = 0


@record("songs")
class Song3(msgspec.Struct, frozen=True):
    id: Annotated[str, Key()]
    title: Annotated[str, Indexed()]
    year: Annotated[int, Indexed()] = 0


async def titles(store: Store, cls: type[Any] = Song2) -> dict[str, list[str]]:
    """The keys by title, as the index tells them."""
    songs = store.collection(cls)
    rows = await songs.query().group_by("title").aggregate(count="count")
    found = {row["title"]: songs.query().where("title", "=", row["title"]) for row in rows}
    return {title: [s.id for s in await query.values()] for title, query in found.items()}


async def assert_right(store: Store, cls: type[Any] = Song2) -> None:
    """Every record is found by its own title and by no other."""
    wanted: dict[str, list[str]] = {}
    for song in await store.collection(cls).query().values():
        wanted.setdefault(song.title, []).append(song.id)
    assert await titles(store, cls) == wanted


@durable
async def test_records_are_read_and_written_while_it_is_filled(make_store: MakeStore) -> None:
    old = await make_store()
    await old.collection(Song1).put_many([Song1(f"{n:04d}", f"t{n % 5}") for n in range(1_000)])
    new = await make_store()
    songs = new.collection(Song2)
    assert await songs.get("0003") == Song2("0003", "t3")
    await songs.put(Song2("0003", "other"))
    page = await songs.list("00", limit=2)
    assert new._filling.works, "it was filled before the record could be read"
    assert [item.key for item in page.items] == ["0000", "0001"]
    assert await songs.query().where("title", "=", "other").count() == 1
    assert not new._filling.works
    await assert_right(new)


@durable
async def test_old_code_writes_before_during_and_after(make_store: MakeStore) -> None:
    old = await make_store()
    before = old.collection(Song1)
    await before.put_many([Song1(f"{n:04d}", f"t{n % 5}") for n in range(1_500)])
    ended = False

    async def write() -> int:
        number = 0
        while not ended:
            number += 1
            key = f"{number * 7 % 2_000:04d}"
            if number % 11 == 0:
                await before.delete(key)
            else:
                await before.put(Song1(key, f"t{number % 7}"))
            await asyncio.sleep(0)
        return number

    writing = asyncio.create_task(write())
    await asyncio.sleep(0.01)
    new = await make_store()
    await new.declare(Song2)
    await asyncio.sleep(0.05)
    ended = True
    assert await writing > 50
    await new.refill()
    await assert_right(new)
    assert await new.refill() == 0


@durable
async def test_everything_old_code_can_do_is_mended(make_store: MakeStore) -> None:
    old, new = await make_store(), await make_store()
    before, after = old.collection(Song1), new.collection(Song2)
    await before.put_many([Song1(key, "old") for key in "abcde"])
    await new.declare(Song2)
    assert await titles(new) == {"old": list("abcde")}
    await before.put(Song1("a", "changed"))
    await before.delete("b")
    await before.put(Song1("b", "made anew"))
    await before.put(Song1("f", "added"))
    async with old.transaction() as transaction:
        await transaction.collection(Song1).put(Song1("c", "in a transaction"))
    await after.put(Song2("d", "by new code"))
    await before.put(Song1("e", "old, then new"))
    await after.put(Song2("e", "new in the end"))
    assert await new.refill() == 4
    assert await titles(new) == {
        "added": ["f"],
        "by new code": ["d"],
        "changed": ["a"],
        "in a transaction": ["c"],
        "made anew": ["b"],
        "new in the end": ["e"],
    }
    assert await new.refill() == 0
    # Versions are those that writing made.
    assert [(await after.fetch(key)).version for key in "abcdef"] == [2, 1, 2, 2, 3, 1]  # type: ignore[union-attr]


@durable
async def test_what_old_code_left_out_is_mended_at_the_next_start(make_store: MakeStore) -> None:
    old, new = await make_store(), await make_store()
    await old.collection(Song1).put(Song1("a", "x"))
    await new.declare(Song2)
    await old.collection(Song1).put(Song1("b", "x"))
    assert await titles(await make_store()) == {"x": ["a", "b"]}


@durable
async def test_nobody_looks_for_what_is_left_out_when_nothing_is(
    make_store: MakeStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`prepare` tells, in the look that it needs anyway."""
    old, new = await make_store(), await make_store()
    await old.collection(Song1).put(Song1("a", "x"))
    await new.declare(Song2)
    again = await make_store()

    async def refuse(*_: Any) -> None:
        raise AssertionError("rows that lack a column were looked for")

    monkeypatch.setattr(again.adapter, "unfilled", refuse)
    assert await titles(again) == {"x": ["a"]}


@durable
async def test_a_collection_that_was_empty(make_store: MakeStore) -> None:
    old, new = await make_store(), await make_store()
    await old.declare(Song1)
    await new.declare(Song2)
    await old.collection(Song1).put(Song1("a", "x"))
    await new.refill()
    assert await titles(new) == {"x": ["a"]}


@durable
async def test_old_code_that_is_started_later_spoils_nothing(make_store: MakeStore) -> None:
    first, new = await make_store(), await make_store()
    await first.collection(Song1).put(Song1("a", "x"))
    await new.declare(Song2)
    for number in range(3):
        old = await make_store()
        await old.collection(Song1).put(Song1(f"{number}", "y"))
    told: list[str] = []
    again = await make_store()
    again._filling._progress = lambda what, done, _: told.append(f"{what} {done}")
    assert await titles(again) == {"x": ["a"], "y": ["0", "1", "2"]}
    assert told == ["indexing songs 3"], "what was filled was filled again"
    assert await new.refill() == 0
    await assert_right(new)


@durable
async def test_old_code_is_started_beside_new_code_that_made_the_collection(
    make_store: MakeStore,
) -> None:
    """The column has no mark then: it gets one, and those that run learn of it by `refill`."""
    new = await make_store()
    await new.collection(Song2).put_many([Song2("a", "x"), Song2("b", "x")])
    old = await make_store()
    await old.collection(Song1).put(Song1("b", "y"))
    await new.collection(Song2).put(Song2("c", "z"))
    await new.refill()
    assert await titles(new) == {"x": ["a"], "y": ["b"], "z": ["c"]}
    await old.collection(Song1).put(Song1("c", "y"))
    await new.collection(Song2).put(Song2("d", "z"))
    assert await new.refill() == 1
    assert await titles(new) == {"x": ["a"], "y": ["b", "c"], "z": ["d"]}


@durable
async def test_two_indexes_one_after_the_other(make_store: MakeStore) -> None:
    one, two, three = [await make_store() for _ in range(3)]
    await one.collection(Song1).put(Song1("a", "x", 1))
    await two.declare(Song2)
    await three.declare(Song3)
    await one.collection(Song1).put(Song1("b", "x", 2))
    await two.collection(Song2).put(Song2("c", "y", 3))
    await three.collection(Song3).put(Song3("d", "y", 4))
    assert await two.refill() == 1  # it knows the title of b, and nothing of years
    await three.refill()
    assert await titles(two) == {"x": ["a", "b"], "y": ["c", "d"]}
    assert await titles(three, Song3) == {"x": ["a", "b"], "y": ["c", "d"]}
    by_year = three.collection(Song3).query().order_by("year")
    assert [song.id for song in await by_year.values()] == list("abcd")
    assert await two.refill() == await three.refill() == 0


def shout(data: dict[str, Any]) -> dict[str, Any]:
    return data | {"title": data["title"].upper()}


@record("songs", migrations=[shout])
class Loud(msgspec.Struct, frozen=True):
    id: Annotated[str, Key()]
    title: Annotated[str, Indexed()]
    year: int = 0


@durable
async def test_code_of_an_older_schema_goes_on(make_store: MakeStore) -> None:
    old, new = await make_store(), await make_store()
    await old.collection(Song2).put_many([Song2("a", "x"), Song2("b", "y")])
    await new.declare(Loud)
    assert await titles(new, Loud) == {"X": ["a"], "Y": ["b"]}
    await old.collection(Song2).put(Song2("a", "z"))
    for _ in range(2):
        assert await old.refill() == 0  # it does not take back what newer code computed
        await old.collection(Song2).put(Song2("c", "x"))
    assert await new.refill() == 2
    assert await titles(new, Loud) == {"X": ["c"], "Y": ["b"], "Z": ["a"]}
    assert await new.refill() == await old.refill() == 0


@durable
async def test_an_index_of_another_definition_replaces_one_of_the_same_name(
    make_store: MakeStore,
) -> None:
    fields = [("id", Annotated[str, Key()]), ("a", int), ("b", int), ("a_b", int)]
    one = msgspec.defstruct("Thing", fields, frozen=True)
    two = msgspec.defstruct("Thing", fields, frozen=True)
    first = record("things", indexes=[Index(("a_b",)), Index(("a",)), Index(("b",))])(one)
    then = record("things", indexes=[Index(("a", "b")), Index(("a_b", "a"))])(two)
    await (await make_store()).collection(first).put(first("x", 1, 2, 3))
    later = await make_store()
    await later.declare(then)
    await (await make_store()).declare(then)
    found = later.collection(then).query().where("a", "=", 1).where("b", "=", 2)
    assert [item.key for item in await found.execute()] == ["x"]
    if isinstance(later.adapter, SQLiteAdapter):
        db = apsw.Connection(str(later.adapter.path))
        text = "SELECT sql FROM sqlite_schema WHERE name = 'things__by_a_b'"
        assert db.execute(text).get.endswith('("a", "b")')
        db.close()


@durable
async def test_a_record_that_expired_and_was_made_anew(
    make_store: MakeStore, clock: ManualClock
) -> None:
    """It counts its versions anew: the mark of its predecessor must not do for it."""

    class Brief1(msgspec.Struct, frozen=True):
        id: Annotated[str, Key()]
        title: str

    class Brief2(msgspec.Struct, frozen=True):
        id: Annotated[str, Key()]
        title: Annotated[str, Indexed()]

    one, two = record("brief", ttl=10)(Brief1), record("brief", ttl=10)(Brief2)
    old, new = await make_store(), await make_store()
    await old.collection(one).put(one("a", "x"))
    await new.declare(two)
    assert await titles(new, two) == {"x": ["a"]}
    clock.advance(11)
    await old.collection(one).put(one("a", "y"))
    row = (await old.adapter.get("brief", ["a"], DEFAULT))[0]
    assert row is not None
    assert row.version == 1
    assert await new.refill() == 1
    assert await titles(new, two) == {"y": ["a"]}
    clock.advance(11)
    assert await new.refill() == 0


@durable
async def test_what_nobody_declares_goes_after_a_day(
    make_store: MakeStore, clock: ManualClock
) -> None:
    new = await make_store()
    await new.collection(Song2).put(Song2("a", "x"))
    assert await _indexes(new) == {"songs": 1}
    await (await make_store()).declare(Song1)
    assert await _indexes(new) == {"songs": 1}, "it was dropped at once"
    clock.advance(tables.KEPT // 1_000_000 + 1)
    later = await make_store()
    await later.declare(Song1)
    assert await _indexes(later) == {}
    await later.collection(Song1).put(Song1("b", "y"))
    again = await make_store()
    assert await titles(again) == {"x": ["a"], "y": ["b"]}
    assert await _indexes(again) == {"songs": 1}


@durable
async def test_what_somebody_declares_stays(make_store: MakeStore, clock: ManualClock) -> None:
    old, new = await make_store(), await make_store()
    await old.declare(Song1)
    await new.declare(Song2)
    for _ in range(3):
        await (await make_store()).declare(Song1)
        clock.advance(tables.KEPT // 2_000_000 + 1)
        await new.refill()
    await (await make_store()).declare(Song1)
    assert await _indexes(new) == {"songs": 1}


async def _indexes(store: Store) -> dict[str, int]:
    """How many indexes over titles there are, by table; those over what is unfilled aside."""
    adapter: Any = store.adapter
    if isinstance(adapter, SQLiteAdapter):
        db = apsw.Connection(str(adapter.path))
        rows = [r[0] for r in db.execute("SELECT name FROM sqlite_schema WHERE type = 'index'")]
        db.close()
    else:
        found = await adapter.reader.fetch(
            "SELECT indexname FROM pg_indexes WHERE schemaname = 'perdure'"
        )
        rows = [row[0] for row in found]
    names = [name for name in rows if "title" in name and "unfilled" not in name]
    return {"songs": len(names)} if names else {}


@durable
async def test_a_record_that_cannot_be_read_is_not_tried_all_the_time(
    make_store: MakeStore, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    trouble = {"a"}

    def fragile(data: dict[str, Any]) -> dict[str, Any]:
        if data["id"] in trouble:
            raise ValueError("no")
        return data

    class Fragile(msgspec.Struct, frozen=True):
        id: Annotated[str, Key()]
        title: Annotated[str, Indexed()]

    cls = record("songs", migrations=[fragile])(Fragile)
    old, new = await make_store(), await make_store()
    await old.collection(Song1).put_many([Song1("a", "x"), Song1("b", "x")])
    await new.declare(cls)
    assert [item.id for item in await new.collection(cls).query().where("title", "=", "x").values()]
    for _ in range(5):
        await new.refill()
    assert caplog.text.count("not indexed: songs/a") == 1
    trouble.clear()
    monkeypatch.setattr(filling, "_AGAIN", 0.0)
    assert await new.refill() == 1
    assert await titles(new, cls) == {"x": ["a", "b"]}


@durable
async def test_interrupted_it_goes_on(make_store: MakeStore) -> None:
    old = await make_store()
    await old.collection(Song1).put_many([Song1(f"{n:04d}", "x") for n in range(1_000)])
    new = await make_store()
    stopped = asyncio.Event()

    def stop(what: str, done: int, total: int) -> None:
        if done >= 300:
            stopped.set()
            raise asyncio.CancelledError

    new._filling._progress = stop
    await new.collection(Song2).get("0000")
    await stopped.wait()
    await asyncio.sleep(0)
    seen: list[int] = []
    another = await make_store()
    another._filling._progress = lambda _, done, __: seen.append(done)
    assert await another.collection(Song2).query().where("title", "=", "x").count() == 1_000
    assert seen[-1] <= 700
    # And so does the one that was stopped, when it needs the column.
    new._filling._progress = None
    assert await new.collection(Song2).query().where("title", "=", "x").count() == 1_000


@durable
async def test_a_failure_is_told_and_repaired(
    make_store: MakeStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    old, new = await make_store(), await make_store()
    await old.collection(Song1).put(Song1("a", "x"))
    fill = new.adapter.fill

    async def fail(*_: Any) -> None:
        raise Unavailable("The disk went for a walk.")

    monkeypatch.setattr(new.adapter, "fill", fail)
    with pytest.raises(Unavailable, match="walk"):
        await new.collection(Song2).query().where("title", "=", "x").count()
    assert await new.collection(Song2).get("a") == Song2("a", "x")
    monkeypatch.setattr(new.adapter, "fill", fill)
    assert await titles(new) == {"x": ["a"]}


# PostgreSQL ---------------------------------------------------------------------------------------


@on_postgresql
async def test_nobody_waits_behind_a_long_reader(make_store: MakeStore, store_url: str) -> None:
    old, new = await make_store(), await make_store()
    songs = old.collection(Song1)
    await songs.put(Song1("a", "x"))
    slowest = 0.0
    with psycopg.connect(store_url) as reader:
        reader.execute("SELECT count(*) FROM perdure.songs")  # and its transaction stays open
        adding = asyncio.create_task(new.declare(Song2))
        loop = asyncio.get_running_loop()
        for _ in range(30):
            began = loop.time()
            await songs.put(Song1("b", "x"))
            slowest = max(slowest, loop.time() - began)
            await asyncio.sleep(0.03)
        assert not adding.done()
    await adding
    assert slowest < 1.5, "a writer waited for the reader"
    await new.refill()
    await assert_right(new)


@on_postgresql
async def test_an_index_that_was_left_unfinished(
    make_store: MakeStore, store_url: str, postgres_server: PostgresServer
) -> None:
    old, new = await make_store(), await make_store()
    await old.collection(Song1).put_many([Song1(f"{n}", "x") for n in range(20)])
    with psycopg.connect(store_url) as reader:
        reader.execute("BEGIN ISOLATION LEVEL REPEATABLE READ")
        reader.execute("SELECT 1")
        building = asyncio.create_task(new.declare(Song2))
        with psycopg.connect(store_url, autocommit=True) as admin:
            query = "SELECT pid FROM pg_stat_activity WHERE query LIKE 'CREATE INDEX CONCURRENTLY%'"
            found = None
            while found is None:
                await asyncio.sleep(0.1)
                found = admin.execute(query).fetchone()  # it waits for the reader
            admin.execute("SELECT pg_terminate_backend(%s)", found)
        with pytest.raises(Unavailable):
            await building
    with psycopg.connect(store_url) as admin:
        invalid = "SELECT count(*) FROM pg_index WHERE NOT indisvalid"
        assert admin.execute(invalid).fetchone() == (1,)
    await assert_right(new)
    with psycopg.connect(store_url) as admin:
        assert admin.execute(invalid).fetchone() == (0,)
    await assert_right(await make_store())


# SQLite -------------------------------------------------------------------------------------------


@on_sqlite
async def test_collections_of_one_declaration_have_no_marks(
    make_store: MakeStore, tmp_path: Path
) -> None:
    store = await make_store()
    await store.collection(Song3).put(Song3("a", "x", 1))
    await (await make_store()).declare(Song3)
    db = apsw.Connection(str(tmp_path / "bank.db"))
    names = [row[1] for row in db.execute("PRAGMA table_info(songs)")]
    assert not [name for name in names if name.startswith("_filled")]
    indexes = [row[0] for row in db.execute("SELECT name FROM sqlite_schema WHERE type = 'index'")]
    assert not [name for name in indexes if "unfilled" in name]
    db.close()


@on_sqlite
async def test_looking_for_what_is_unfilled_is_a_look_at_an_index(
    make_store: MakeStore, tmp_path: Path
) -> None:
    old, new = await make_store(), await make_store()
    await old.collection(Song1).put(Song1("a", "x"))
    await new.declare(Song2)
    db = apsw.Connection(str(tmp_path / "bank.db"))
    text = (
        "SELECT r._id FROM songs AS r CROSS JOIN perdure_folders AS f ON f.id = r._folder"
        f" WHERE r._id > 0 AND {tables.mark_of('title')} IS NOT {tables.mark(1)}"
        " ORDER BY r._id LIMIT 5"
    )
    plan = str(list(db.execute(f"EXPLAIN QUERY PLAN {text}")))
    assert "songs__unfilled_1_title" in plan
    db.close()
