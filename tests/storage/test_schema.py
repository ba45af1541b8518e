"""Schema versions, and indexes that come and go."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import apsw
import msgspec
import pytest

from perdure.core.errors import MigrationFailed, NewerSchema
from perdure.storage.options import DEFAULT
from perdure.storage.records import Indexed, Key, Tags, record, type_of
from perdure.storage.rows import Batch, Index
from perdure.storage.store import Store
from tests.conftest import DURABLE, MakeStore
from tests.servers import PostgresServer
from tests.storage.notes import Note

# A type through four versions of a program. Each list has one function more than the last.


def split_name(data: dict[str, Any]) -> dict[str, Any]:
    first, _, last = data.pop("name").partition(" ")
    return {**data, "first": first, "last": last}


def add_age(data: dict[str, Any]) -> dict[str, Any]:
    return {**data, "age": -1}


def age_to_text(data: dict[str, Any]) -> dict[str, Any]:
    return {**data, "age": str(data["age"])}


MIGRATIONS = (split_name, add_age, age_to_text)


@record("people")
class Person1(msgspec.Struct, frozen=True):
    id: Annotated[str, Key()]
    name: str


@record("people", migrations=MIGRATIONS[:1])
class Person2(msgspec.Struct, frozen=True):
    id: Annotated[str, Key()]
    first: str
    last: str


@record("people", migrations=MIGRATIONS[:2])
class Person3(msgspec.Struct, frozen=True):
    id: Annotated[str, Key()]
    first: str
    last: str
    age: int


@record("people", migrations=MIGRATIONS, indexes=[Index(("last",))])
class Person4(msgspec.Struct, frozen=True):
    id: Annotated[str, Key()]
    first: str
    last: str
    age: str


VERSIONS: Sequence[Any] = (
    Person1("ada", "Ada Lovelace"),
    Person2("ada", "Ada", "Lovelace"),
    Person3("ada", "Ada", "Lovelace", 36),
    Person4("ada", "Ada", "Lovelace", "36"),
)
OLD_AND_NEW = list(itertools.combinations(range(4), 2))


def _expected(old: int, new: int) -> Any:
    wanted = VERSIONS[new]
    if old < 2 <= new:  # an age was not known then
        wanted = msgspec.structs.replace(wanted, age=-1 if new == 2 else "-1")
    return wanted


@pytest.mark.parametrize(("old", "new"), OLD_AND_NEW)
async def test_every_old_version_is_read(store: Store, old: int, new: int) -> None:
    await store.collection(type(VERSIONS[old])).put(VERSIONS[old])
    later = Store(store.adapter)
    people = later.collection(type(VERSIONS[new]))
    assert await people.get("ada") == _expected(old, new)
    assert await people.query().values() == [_expected(old, new)]
    # Reading does not rewrite; writing does, and bumps the schema.
    assert (await store.adapter.get("people", ["ada"], DEFAULT))[0].schema == old + 1  # type: ignore[union-attr]
    assert await people.put(VERSIONS[new]) == 2
    assert (await store.adapter.get("people", ["ada"], DEFAULT))[0].schema == new + 1  # type: ignore[union-attr]


@pytest.mark.parametrize(("old", "new"), OLD_AND_NEW)
async def test_newer_records_are_refused_and_left_alone(store: Store, old: int, new: int) -> None:
    await store.collection(type(VERSIONS[new])).put(VERSIONS[new])
    before = await store.adapter.get("people", ["ada"], DEFAULT)
    earlier = Store(store.adapter)
    people = earlier.collection(type(VERSIONS[old]))
    with pytest.raises(NewerSchema, match=f"'people' has schema version {new + 1}") as caught:
        await people.get("ada")
    assert "newer declaration" in caught.value.hint
    with pytest.raises(NewerSchema):
        await people.put(VERSIONS[old])
    with pytest.raises(NewerSchema):
        async with earlier.transaction() as transaction:
            await transaction.collection(type(VERSIONS[old])).put(VERSIONS[old])
    assert await store.adapter.get("people", ["ada"], DEFAULT) == before


async def test_newer_records_are_refused_where_the_collection_was_open_before(
    store: Store,
) -> None:
    earlier = Store(store.adapter)
    people = earlier.collection(Person1)
    await people.put(Person1("bob", "Bob"))
    await store.collection(Person2).put(VERSIONS[1])
    before = await store.adapter.get("people", ["ada"], DEFAULT)
    with pytest.raises(NewerSchema, match="people/ada has schema version 2") as caught:
        await people.get("ada")
    assert "Upgrade" in caught.value.hint
    with pytest.raises(NewerSchema):
        await people.put(VERSIONS[0])
    assert await store.adapter.get("people", ["ada"], DEFAULT) == before
    # They do not hide others.
    await people.put(Person1("bob", "Robert"))
    assert await people.get("bob") == Person1("bob", "Robert")


def _broken(data: dict[str, Any]) -> dict[str, Any]:
    return {"id": data["id"], "name": data["no such field"]}


def _useless(data: dict[str, Any]) -> dict[str, Any]:
    return {"id": data["id"], "name": 3}


@pytest.mark.parametrize(("migration", "words"), [(_broken, "KeyError"), (_useless, "Expected")])
async def test_failing_migration(store: Store, migration: Any, words: str) -> None:
    await store.collection(Person1).put(VERSIONS[0])
    before = await store.adapter.get("people", ["ada"], DEFAULT)

    class Next(msgspec.Struct, frozen=True):
        id: Annotated[str, Key()]
        name: str

    later = Store(store.adapter).collection(record("people", migrations=[migration])(Next))
    with pytest.raises(MigrationFailed, match=rf"people/ada .* from schema 1 to 2: .*{words}"):
        await later.get("ada")
    assert await store.adapter.get("people", ["ada"], DEFAULT) == before


async def test_another_serializer_reads_what_is_there(store: Store) -> None:
    class AsJson(msgspec.Struct, frozen=True):
        id: Annotated[str, Key()]
        name: str

    await store.collection(Person1).put(VERSIONS[0])
    later = Store(store.adapter).collection(record("people", serializer="json")(AsJson))
    assert await later.get("ada") == AsJson("ada", "Ada Lovelace")
    await later.put(AsJson("bob", "Bob"))
    earlier = Store(store.adapter).collection(Person1)
    assert await earlier.get("bob") == Person1("bob", "Bob")


# Indexes ----------------------------------------------------------------------------------------


@record("books")
class Book(msgspec.Struct, frozen=True):
    id: Annotated[str, Key()]
    title: str
    year: int | None = None


@record("books", indexes=[Index(("title", "created"))])
class IndexedBook(msgspec.Struct, frozen=True):
    id: Annotated[str, Key()]
    title: str
    year: Annotated[int | None, Indexed()] = None


@record("books")
class TaggedBook(msgspec.Struct, frozen=True):
    id: Annotated[str, Key()]
    title: str
    tags: Annotated[dict[str, str], Tags()] = {}


@record("books", ttl="1h")
class FleetingBook(msgspec.Struct, frozen=True):
    id: Annotated[str, Key()]
    title: str


async def test_adding_an_index_fills_it(store: Store) -> None:
    books = store.collection(Book)
    await books.put_many([Book(f"{n:04d}", f"t{n % 3}", n) for n in range(1_203)])
    told: list[tuple[str, int, int]] = []
    later = Store(store.adapter, progress=lambda *what: told.append(what))
    found = later.collection(IndexedBook).query().where("year", ">", 1_199)
    assert [book.id for book in await found.values()] == ["1200", "1201", "1202"]
    by_title = later.collection(IndexedBook).query().where("title", "=", "t1")
    assert await by_title.count() == 401
    assert (await later.collection(IndexedBook).fetch("0000")).version == 1  # type: ignore[union-attr]
    assert told[0][0] == "indexing books"
    assert told[-1][1] == 1_203


async def test_removed_and_added_again(store: Store) -> None:
    await store.collection(IndexedBook).put(IndexedBook("a", "x", 1))
    await store.collection(IndexedBook).put(IndexedBook("b", "x", 1))
    # The program goes back to a version without indexes, and changes a record there.
    without = Store(store.adapter).collection(Book)
    await without.put(Book("a", "y", 2))
    await without.put(Book("c", "x", 1))
    again = Store(store.adapter).collection(IndexedBook).query()
    assert [book.id for book in await again.where("title", "=", "x").values()] == ["b", "c"]
    assert [book.id for book in await again.where("year", "=", 2).values()] == ["a"]


async def test_adding_tags_and_expiry(store: Store) -> None:
    await store.collection(Book).put(Book("old", "x"))
    tagged = Store(store.adapter).collection(TaggedBook)
    await tagged.put(TaggedBook("new", "x", {"lang": "en"}))
    assert [book.id for book in await tagged.query().tagged(lang="en").values()] == ["new"]
    fleeting = Store(store.adapter, clock=lambda: 10**18).collection(FleetingBook)
    await fleeting.put(FleetingBook("brief", "x"))
    row = (await store.adapter.get("books", ["brief"], DEFAULT))[0]
    assert row is not None
    assert row.expires == 10**18 + 3600 * 10**6
    assert [book.id for book in await fleeting.query().values()] == ["brief", "new", "old"]


async def test_a_record_that_cannot_be_read_does_not_stop_an_index(
    store: Store, caplog: pytest.LogCaptureFixture
) -> None:
    class NewBook(msgspec.Struct, frozen=True):
        id: Annotated[str, Key()]
        title: str

    await store.collection(Book).put(Book("a", "x", 1))
    newer = type_of(record("books", migrations=[dict])(NewBook)).encode(NewBook("b", "x"), None, 0)
    await store.adapter.commit(Batch((newer,)), DEFAULT)
    later = Store(store.adapter).collection(IndexedBook)
    assert [book.id for book in await later.query().where("year", "=", 1).values()] == ["a"]
    assert "not indexed: books/b has schema version 2" in caplog.text


@record("shelves", indexes=[Index(("kind",))])
class Shelf1(msgspec.Struct, frozen=True):
    id: Annotated[str, Key()]
    kind: str


def _louder(data: dict[str, Any]) -> dict[str, Any]:
    return {**data, "kind": data["kind"].upper()}


@record("shelves", migrations=[_louder], indexes=[Index(("kind",))])
class Shelf2(msgspec.Struct, frozen=True):
    id: Annotated[str, Key()]
    kind: str


async def test_a_migration_that_changes_an_indexed_field_changes_the_index(store: Store) -> None:
    await store.collection(Shelf1).put(Shelf1("a", "x"))
    later = Store(store.adapter).collection(Shelf2)
    assert await later.get("a") == Shelf2("a", "X")
    assert await later.query().where("kind", "=", "X").values() == [Shelf2("a", "X")]


async def test_long_names(store: Store) -> None:
    name, first, second = "n" * 48, "f" * 48, "f" * 47 + "g"
    cls = msgspec.defstruct(
        "Long",
        [("id", Annotated[str, Key()]), (first, int), (second, int)],
        frozen=True,
    )
    indexes = [Index((first, second)), Index((second, first)), Index((first,), ((second, 1),))]
    long = record(name, indexes=indexes)(cls)
    collection = store.collection(long)
    await collection.put_many([long("a", 1, 2), long("b", 2, 1)])
    found = await collection.query().where(second, "=", 1).order_by(first).values()
    assert found == [long("b", 2, 1)]
    again = Store(store.adapter).collection(long)
    assert await again.query().where(first, "=", 1).values() == [long("a", 1, 2)]


# What is really in the database -------------------------------------------------------------------


@pytest.mark.parametrize("store_url", ["sqlite"], indirect=True)
async def test_indexes_are_real_in_sqlite(store: Store, tmp_path: Path) -> None:
    path = tmp_path / "bank.db"
    await store.collection(Note).put(Note("a", "ada", 3))
    db = apsw.Connection(str(path))
    columns = {row[1]: row[2] for row in db.execute('PRAGMA table_info("notes")')}
    assert columns["author"] == "TEXT"
    assert columns["stars"] == "INTEGER"
    assert columns["weight"] == "REAL"
    assert db.execute("SELECT author, stars FROM notes").get == ("ada", 3)
    plan = "EXPLAIN QUERY PLAN SELECT * FROM notes WHERE author = 'ada' AND stars > 2"
    assert "author_stars" in str(list(db.execute(plan)))
    db.close()


@pytest.mark.parametrize("store_url", ["postgresql"], indirect=True)
async def test_indexes_are_real_in_postgresql(
    store: Store, postgres_server: PostgresServer, store_url: str
) -> None:
    await store.collection(Note).put(Note("a", "ada", 3))
    with postgres_server.connect(store_url.rpartition("/")[2]) as db:
        rows = db.execute(
            "SELECT column_name, data_type FROM information_schema.columns"
            " WHERE table_schema = 'perdure' AND table_name = 'notes'"
        ).fetchall()
        columns = dict(rows)
        assert columns["author"] == "text"
        assert columns["stars"] == "bigint"
        assert columns["weight"] == "double precision"
        assert db.execute("SELECT author, stars FROM perdure.notes").fetchone() == ("ada", 3)
        indexes = db.execute(
            "SELECT indexdef FROM pg_indexes WHERE schemaname = 'perdure' AND tablename = 'notes'"
        ).fetchall()
        assert any("(author NULLS FIRST, stars NULLS FIRST" in row[0] for row in indexes), indexes


@pytest.mark.parametrize("store_url", DURABLE, indirect=True)
async def test_indexes_survive_reopening(make_store: MakeStore) -> None:
    store = await make_store()
    await store.collection(Book).put(Book("a", "x", 7))
    await store.close()
    store = await make_store()
    found = store.collection(IndexedBook).query().where("year", "=", 7)
    assert await found.exists()
    await store.close()
    store = await make_store()
    assert await store.collection(IndexedBook).query().where("title", "=", "x").exists()
