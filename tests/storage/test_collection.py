"""Collections on every backend: records go in and come out."""

from __future__ import annotations

import asyncio
import json
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any, assert_type

import msgspec
import pytest

from perdure.core.errors import (
    Closed,
    Conflict,
    InvalidKey,
    InvalidQuery,
    InvalidRecordType,
    InvalidValue,
    TooLarge,
)
from perdure.storage.backends.sqlite import SQLiteAdapter
from perdure.storage.collection_reader import Stored
from perdure.storage.options import STRONG, Consistency, Options
from perdure.storage.records import Key, record
from perdure.storage.registry import adapter_for
from perdure.storage.rows import MAX_VALUE_BYTES, Layout
from perdure.storage.store import Store
from perdure.testing import ManualClock
from tests.conftest import MakeStore
from tests.storage.notes import Author, Mood, Note, Page, Spark

FULL = Note(
    "planner/auth/00000001",
    "ada",
    3,
    0.5,
    Mood.WILD,
    datetime(2026, 1, 2, 3, 4, 5, 678, tzinfo=UTC),
    done=True,
    text="long " * 100,
    extra={"a": [1, None, "x"]},
    labels={"lang": "py"},
)


async def test_records_come_back_typed(store: Store) -> None:
    notes = store.collection(Note)
    assert await notes.get(FULL.id) is None
    assert await notes.put(FULL) == 1
    found = await notes.get(FULL.id)
    assert_type(found, Note | None)
    assert found == FULL


async def test_what_the_store_knows(store: Store, clock: ManualClock) -> None:
    notes = store.collection(Note)
    clock.set(datetime(2026, 1, 1, tzinfo=UTC))
    await notes.put(Note("a"))
    clock.advance("1h")
    assert await notes.put(Note("a", stars=1)) == 2
    found = await notes.fetch("a")
    assert_type(found, Stored[Note] | None)
    assert found is not None
    assert (found.key, found.value, found.version) == ("a", Note("a", stars=1), 2)
    assert found.created == datetime(2026, 1, 1, tzinfo=UTC)
    assert found.updated == datetime(2026, 1, 1, 1, tzinfo=UTC)
    assert await notes.fetch("b") is None


async def test_expected_versions(store: Store) -> None:
    notes = store.collection(Note)
    await notes.put(Note("a"), Options(expected=0))
    with pytest.raises(Conflict, match="notes/a was expected absent but is at version 1") as caught:
        await notes.put(Note("a", stars=1), Options(expected=0))
    assert (caught.value.expected, caught.value.found) == (0, 1)
    assert await notes.put(Note("a", stars=2), Options(expected=1)) == 2
    with pytest.raises(Conflict):
        await notes.delete("a", Options(expected=1))
    await notes.delete("a", Options(expected=2))
    assert await notes.get("a") is None
    await notes.delete("a")


async def test_many_at_a_time(store: Store) -> None:
    notes = store.collection(Note)
    assert await notes.put_many([Note(f"{n}") for n in range(5)]) == [1] * 5
    assert await notes.put_many([]) == []
    twice = [Note("x", stars=1), Note("y"), Note("x", stars=2)]
    assert await notes.put_many(twice) == [1, 1, 1]
    assert await notes.get("x") == Note("x", stars=2)
    found = await notes.get_many(["4", "none", "0", "4"])
    assert found == [Note("4"), None, Note("0"), Note("4")]
    assert await notes.get_many([]) == []
    with pytest.raises(Conflict):
        await notes.put_many([Note("new"), Note("0")], Options(expected=0))
    assert await notes.get("new") is None
    await notes.delete_many(["0", "1", "none"])
    assert [item.key for item in (await notes.list(limit=9)).items] == ["2", "3", "4", "x", "y"]


async def test_change_is_repeated_until_it_fits(store: Store) -> None:
    notes = store.collection(Note)

    def add_star(note: Note | None) -> Note:
        stars = 0 if note is None else note.stars or 0
        return Note("a", stars=stars + 1)

    await asyncio.gather(*(notes.change("a", add_star) for _ in range(10)))
    assert await notes.get("a") == Note("a", stars=10)


@pytest.mark.parametrize("store_url", ["memory"], indirect=True)  # it takes its time
async def test_change_gives_up_in_the_end(store: Store) -> None:
    notes = store.collection(Note)
    calls = 0

    def meddle(note: Note | None) -> Note:
        nonlocal calls
        calls += 1
        return Note("other")  # what was read and what is written never fit

    await notes.put(Note("other"))
    with pytest.raises(Conflict):
        await notes.change("a", meddle)
    assert calls > 1


async def test_listing_pages_both_ways(store: Store) -> None:
    notes = store.collection(Note)
    await notes.put_many([Note(f"s/{n:02d}") for n in range(10)] + [Note("t/1")])
    first = await notes.list("s/", limit=4)
    assert [note.id for note in first.values] == ["s/00", "s/01", "s/02", "s/03"]
    assert first.previous is None
    second = await notes.list("s/", limit=4, after=first.next)
    third = await notes.list("s/", limit=4, after=second.next)
    assert [note.id for note in third.values] == ["s/08", "s/09"]
    assert third.next is None
    back = await notes.list("s/", limit=4, before=third.previous)
    assert back.items == second.items
    assert (await notes.list("s/", limit=4, before=back.previous)).items == first.items
    newest = await notes.list("s/", limit=1, descending=True)
    assert [note.id for note in newest.values] == ["s/09"]


async def test_what_comes_behind_a_key(store: Store) -> None:
    notes = store.collection(Note)
    await notes.put_many([Note(f"s/{n:02d}") for n in range(5)] + [Note("t/1")])

    async def behind(key: str, prefix: str = "", **how: Any) -> list[str]:
        return [note.id for note in await notes.behind(key, prefix, **how)]

    assert await behind("s/02", "s/") == ["s/03", "s/04"]
    assert await behind("s/02x", "s/", limit=1) == ["s/03"]
    assert await behind("s/02", "s/", descending=True) == ["s/01", "s/00"]
    assert await behind("", limit=2) == ["s/00", "s/01"]
    assert await behind("s/04") == ["t/1"]
    assert await behind("t/1") == []


async def test_reading_what_nobody_has_written(store: Store) -> None:
    notes = store.collection(Note)
    assert await notes.get("a") is None
    assert await notes.get_many(["a", "b"]) == [None, None]
    assert await notes.behind("") == []
    assert await notes.query().where("stars", ">", 2).values() == []
    assert await notes.query().count() == 0
    assert await notes.query().delete() == 0
    assert await notes.query().aggregate(n="count", most="max stars") == [{"n": 0, "most": None}]
    assert await notes.query().group_by("author").aggregate(n="count") == []
    assert (await notes.list()).values == []
    await notes.put(Note("a"))
    assert await notes.get("a") == Note("a")


KEYS = ["", "/a", "a/", "a//b", "a\0b", "a\ud800", "é" * 257]


@pytest.mark.parametrize("key", KEYS, ids=ascii)
async def test_what_is_no_key(store: Store, key: str) -> None:
    authors = store.collection(Author)
    for attempt in (
        authors.put(Author(key, "x")),
        authors.put_many([Author("fine", "x"), Author(key, "x")]),
        authors.get(key),
        authors.get_many(["fine", key]),
        authors.delete(key),
    ):
        with pytest.raises(InvalidKey) as caught:
            await attempt
        assert caught.value.hint
    assert await authors.get("fine") is None


async def test_what_is_no_prefix(store: Store) -> None:
    for prefix in ("a\0", "\ud800"):
        with pytest.raises(InvalidKey):
            await store.collection(Author).list(prefix)


@pytest.mark.parametrize("text", ["\0", "a\0b", "\ud800", "\udc00x", "🦊", "'\""])
async def test_any_text_in_a_value_comes_back(store: Store, text: str) -> None:
    note = Note("a", text=text * 40, extra={text: [text]})
    await store.collection(Note).put(note)
    assert await store.collection(Note).get("a") == note


def parcels(**serializer: Any) -> Any:
    fields = [("id", Annotated[str, Key()]), ("content", Any)]
    return record("parcels", **serializer)(msgspec.defstruct("Parcel", fields, frozen=True))


@pytest.mark.parametrize("content", [b"\0", FULL.due, float("inf"), "\ud83e\udd8a"], ids=ascii)
async def test_what_json_would_change_is_refused_and_msgpack_keeps_it(
    store: Store, content: Any
) -> None:
    plain = parcels()
    await store.collection(plain).put(plain("fine", {"a": (1, None, "x", 2.5)}))
    (row,) = await store.adapter.get("parcels", ["fine"], Options())
    assert row is not None
    assert json.loads(row.value) == {"id": "fine", "content": {"a": [1, None, "x", 2.5]}}
    with pytest.raises(InvalidValue, match="JSON") as caught:
        await store.collection(plain).put(plain("a", [content]))
    assert "msgpack" in caught.value.hint
    packed = parcels(serializer="msgpack")
    other = Store(store.adapter).collection(packed)
    await other.put(packed("a", [content]))
    assert await other.get("a") == packed("a", [content])
    assert await other.get("fine") == packed("fine", {"a": [1, None, "x", 2.5]})


@pytest.mark.parametrize("text", ["\0", "\ud800"], ids=ascii)
async def test_indexed_text_and_tags_are_refused_if_no_database_can_hold_them(
    store: Store, text: str
) -> None:
    notes = store.collection(Note)
    for note in (Note("a", text), Note("a", labels={"x": text}), Note("a", labels={text: "x"})):
        with pytest.raises(InvalidValue):
            await notes.put(note)
    assert await notes.get("a") is None


async def test_oversize_value(store: Store) -> None:
    authors = store.collection(Author)
    with pytest.raises(TooLarge):
        await authors.put(Author("a", "x" * MAX_VALUE_BYTES))
    assert await authors.get("a") is None
    largest = Author("a", "x" * (MAX_VALUE_BYTES - 100))
    await authors.put(largest)
    assert await authors.get("a") == largest


HOSTILE = [
    "' OR '1'='1",
    "'; DROP TABLE notes; --",
    '"; DROP TABLE notes; --',
    "%s %(x)s {0} ? $1 :a",
    "\\'; --",
    "NULL",
]


@pytest.mark.parametrize("text", HOSTILE)
async def test_hostile_text_is_only_text(store: Store, text: str) -> None:
    notes = store.collection(Note)
    await notes.put(Note("keep", author="keep"))
    note = Note(text, author=text, text=text, labels={"x": text, text.replace("=", ""): "y"})
    await notes.put(note)
    assert await notes.get(text) == note
    assert await notes.query().where("author", "=", text).values() == [note]
    assert await notes.query().where("author", "in", [text]).values() == [note]
    assert await notes.query().tagged(x=text).values() == [note]
    assert await notes.query().prefix(text).values() == [note]
    assert await notes.query().where("author", "=", text).delete() == 1
    assert await notes.get("keep") is not None


async def test_records_expire(store: Store, clock: ManualClock) -> None:
    sparks = store.collection(Spark)
    await sparks.put(Spark("a"))
    clock.advance("59m")
    await sparks.put(Spark("b"))
    assert await sparks.query().count() == 2
    clock.advance("1m")
    assert await sparks.get("a") is None
    assert [spark.id for spark in await sparks.query().values()] == ["b"]
    assert await sparks.put(Spark("a"), Options(expected=0)) == 1
    clock.advance("1h")
    assert await store.adapter.sweep(100) == 2


async def test_two_types_of_one_name(store: Store) -> None:
    class Impostor(msgspec.Struct, frozen=True):
        id: Annotated[str, Key()]

    await store.collection(Author).put(Author("a", "Ada"))
    with pytest.raises(InvalidRecordType, match="Both Author and Impostor"):
        await store.collection(record("authors")(Impostor)).get("a")


async def test_undeclared_types(store: Store) -> None:
    with pytest.raises(InvalidRecordType, match="not declared"):
        store.collection(msgspec.defstruct("Stray", ["id"], frozen=True))


async def test_json_records(store: Store) -> None:
    pages = store.collection(Page)
    for page in (Page("a", "text", 1.5), Page("b", "\0\ud800"), Page("c")):
        await pages.put(page)
        assert await pages.get(page.id) == page
    with pytest.raises(InvalidValue, match="not finite"):
        await pages.put(Page("d", number=float("inf")))


@pytest.mark.parametrize("consistency", list(Consistency))
async def test_every_consistency(store: Store, consistency: Consistency) -> None:
    staleness = 1.0 if consistency is Consistency.BOUNDED else None
    options = Options(consistency=consistency, max_staleness=staleness)
    notes = store.collection(Note)
    await notes.put(Note("a", author="x"), options)
    assert await notes.get("a", options) == Note("a", author="x")
    assert await notes.query().where("author", "=", "x").count(options) == 1


async def test_strong_writes(store: Store) -> None:
    notes = store.collection(Note)
    await asyncio.gather(*(notes.put(Note(f"{n}"), STRONG) for n in range(20)))
    assert await notes.query().count() == 20


@pytest.mark.parametrize("limit", [-1, -100])
async def test_limits_that_make_no_sense(store: Store, limit: int) -> None:
    with pytest.raises(InvalidQuery):
        await store.collection(Note).list(limit=limit)


async def test_closed_stores_are_closed(make_store: MakeStore) -> None:
    store = await make_store()
    notes = store.collection(Note)
    await notes.put(Note("a"))
    await store.close()
    attempts: list[Any] = [
        notes.get("a"),
        notes.put(Note("a")),
        notes.delete("a"),
        notes.query().where("author", "=", "x").values(),
        notes.query().count(),
        notes.query().delete(),
    ]
    for attempt in attempts:
        with pytest.raises(Closed):
            await attempt


async def test_a_collection_that_is_not_there_is_not_asked_for(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'bank.db'}"
    asked: list[str] = []

    class Watched(SQLiteAdapter):
        async def prepare(self, layout: Layout, *, make: bool = True) -> frozenset[str] | None:
            asked.append(layout.name)
            return await super().prepare(layout, make=make)

    async with Store(Watched(url)) as store, Store(adapter_for(url)) as other:
        for _ in range(3):
            assert await store.collection(Author).get("ada") is None
            assert await store.collection(Author).query().values() == []
        assert asked == []
        ada = Author("ada", "Ada")
        await other.collection(Author).put(ada)
        assert await store.collection(Author).get("ada") == ada
        assert asked.count("authors") == 1
