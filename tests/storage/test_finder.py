"""The query builder, on every backend."""

from __future__ import annotations

import contextlib
import itertools
from datetime import UTC, datetime
from typing import Annotated, Any

import msgspec
import pytest

from perdure.core.errors import InvalidInput, InvalidQuery, InvalidValue, NotIndexed
from perdure.storage import finder
from perdure.storage.backends.memory import MemoryAdapter
from perdure.storage.finder import QueryBuilder, all_of, any_of, tagged, where
from perdure.storage.query import Condition, SortOrder
from perdure.storage.records import Indexed, Key, record
from perdure.storage.store import Store
from perdure.testing import ManualClock
from tests.storage.notes import Author, Mood, Note, Reply

NOTES = [
    Note("a", "ada", 1, 0.5, Mood.CALM, datetime(2026, 1, 1, tzinfo=UTC), labels={"lang": "py"}),
    Note("b", "ada", 2, 1.5, Mood.WILD, datetime(2026, 2, 1, tzinfo=UTC), done=True),
    Note("c", "bob", 2, None, None, None, labels={"lang": "py", "state": "open"}),
    Note("d", "bobby", None, -1.0, Mood.CALM, datetime(2026, 3, 1, tzinfo=UTC)),
    Note("e", None, None, None, None, None, done=True),
    Note("f/1", "Zoë", 9, 0.5, Mood.WILD, datetime(2025, 1, 1, tzinfo=UTC)),
]


@pytest.fixture
async def notes(store: Store, clock: ManualClock) -> QueryBuilder[Note]:
    collection = store.collection(Note)
    for note in NOTES:
        clock.tick(10)
        await collection.put(note)
    return collection.query()


async def ids(finder: QueryBuilder[Any]) -> str:
    return " ".join(note.id for note in await finder.values())


CONDITIONS: list[tuple[Condition, str]] = [
    (where("author", "=", "ada"), "a b"),
    (where("author", "!=", "ada"), "c d e f/1"),
    (where("author", "=", None), "e"),
    (where("author", "!=", None), "a b c d f/1"),
    (where("author", "prefix", "bob"), "c d"),
    (where("author", ">", "bob"), "d"),
    (where("author", "<=", "ada"), "a b f/1"),
    (where("stars", "<", 2), "a"),
    (where("stars", "<=", 2), "a b c"),
    (where("stars", ">", 1.5), "b c f/1"),
    (where("stars", ">=", 9), "f/1"),
    (where("stars", "in", [1, 9, 100]), "a f/1"),
    (where("stars", "in", []), ""),
    (where("stars", "in", (1, 2, 2)), "a b c"),
    (where("weight", "=", 0.5), "a f/1"),
    (where("weight", "<", 0), "d"),
    (where("mood", "=", Mood.WILD), "b f/1"),
    (where("mood", "in", [Mood.CALM]), "a d"),
    (where("mood", "=", "wild"), "b f/1"),
    (where("done", "=", True), "b e"),
    (where("done", "=", False), "a c d f/1"),
    (where("due", ">=", datetime(2026, 2, 1, tzinfo=UTC)), "b d"),
    (where("id", "=", "c"), "c"),
    (where("id", "in", ["a", "f/1", "x"]), "a f/1"),
    (where("id", "prefix", "f/"), "f/1"),
    (any_of(where("id", "prefix", "f/"), where("id", "prefix", "b")), "b f/1"),
    (any_of(where("id", "prefix", "f/1"), where("id", "prefix", "f")), "f/1"),
    (any_of(where("id", "prefix", "f/"), where("id", "=", "a")), "a f/1"),
    (where("id", ">", "d"), "e f/1"),
    (tagged("lang", "py"), "a c"),
    (all_of(tagged("lang", "py"), tagged("state", "open")), "c"),
    (any_of(where("stars", "=", 9), tagged("state", "open")), "c f/1"),
    (any_of(), ""),
    (all_of(), "a b c d e f/1"),
    (all_of(any_of(where("stars", "=", 2), where("stars", "=", 1)), where("done", "=", True)), "b"),
]


async def test_conditions(notes: QueryBuilder[Note]) -> None:
    for condition, wanted in CONDITIONS:
        finder = notes.where(condition)
        assert await ids(finder) == wanted, condition
        assert await finder.count() == len(wanted.split()), condition
        assert await finder.exists() is bool(wanted), condition


async def test_refining_never_changes_a_builder(notes: QueryBuilder[Note]) -> None:
    ada = notes.where("author", "=", "ada")
    assert await ids(ada.where("stars", "=", 2).limit(1)) == "b"
    assert await ids(ada) == "a b"
    assert await ids(notes.tagged(lang="py", state="open")) == "c"
    assert await ids(notes.prefix("f")) == "f/1"


async def test_time_ranges(notes: QueryBuilder[Note]) -> None:
    january, march = datetime(2026, 1, 1, tzinfo=UTC), datetime(2026, 3, 1, tzinfo=UTC)
    assert await ids(notes.between("due", january, march)) == "a b"
    assert await ids(notes.between("due", january)) == "a b d"
    third = (await notes.execute())[2]
    assert await ids(notes.where("created", ">", third.created)) == "d e f/1"
    assert await ids(notes.between("created", third.created)) == "c d e f/1"
    with pytest.raises(InvalidInput, match="holds times"):
        notes.between("created", third.created_us)
    with pytest.raises(InvalidInput, match="no time zone"):
        notes.where("due", ">", datetime(2026, 1, 1))  # noqa: DTZ001


async def test_first(notes: QueryBuilder[Note]) -> None:
    newest = await notes.order_by("-created").first()
    assert newest is not None
    assert newest.key == "f/1"
    assert await notes.where("stars", "=", 77).first() is None


# Orders and pages ---------------------------------------------------------------------------------

ORDERS = [
    ("id",),
    ("id", "-stars", "created"),
    ("stars", "-id", "weight"),
    ("-id",),
    ("stars",),
    ("-stars",),
    ("author", "-stars"),
    ("-author", "stars"),
    ("-weight", "author", "-id"),
    ("weight", "stars", "author"),
    ("mood", "-created"),
    ("-due", "updated"),
    ("done", "-weight"),
]


def _sorted(order: tuple[str, ...]) -> list[str]:
    """By the definition: a stable sort for each field, NULL first, ties by key."""
    found = sorted(NOTES, key=lambda note: note.id, reverse=order[-1].startswith("-"))
    for field in reversed(order):
        name = field.removeprefix("-")

        def rank(note: Note, name: str = name) -> tuple[bool, Any]:
            value = NOTES.index(note) if name in ("created", "updated") else getattr(note, name)
            value = value.value if isinstance(value, Mood) else value
            return value is not None, 0 if value is None else value

        found.sort(key=rank, reverse=field.startswith("-"))
    return [note.id for note in found]


async def test_pages_both_ways(notes: QueryBuilder[Note]) -> None:
    for order, size in itertools.product(ORDERS, (1, 2, 4)):
        ordered = notes.order_by(*order).limit(size)
        wanted = _sorted(order)
        pages = [await ordered.page()]
        while pages[-1].next is not None:
            pages.append(await ordered.page(after=pages[-1].next))
        assert [note.id for page in pages for note in page.values] == wanted, (order, size)
        assert pages[0].previous is None
        back = [pages[-1]]
        while back[-1].previous is not None:
            back.append(await ordered.page(before=back[-1].previous))
        assert [note.id for page in back[::-1] for note in page.values] == wanted, (order, size)


async def test_a_page_is_where_it_was_though_others_write(
    store: Store, notes: QueryBuilder[Note]
) -> None:
    ordered = notes.order_by("-stars").limit(2)
    first = await ordered.page()
    assert [note.id for note in first.values] == ["f/1", "c"]
    await store.collection(Note).put(Note("new", stars=100))
    await store.collection(Note).delete("c")
    second = await ordered.page(after=first.next)
    assert [note.id for note in second.values] == ["b", "a"]
    back = await ordered.page(before=second.previous)
    assert [note.id for note in back.values] == ["new", "f/1"]


async def test_offset_applies_to_the_first_page_only(notes: QueryBuilder[Note]) -> None:
    ordered = notes.offset(1).limit(2)
    first = await ordered.page()
    second = await ordered.page(after=first.next)
    assert [note.id for note in first.values + second.values] == ["b", "c", "d", "e"]


async def test_empty_pages(notes: QueryBuilder[Note]) -> None:
    nothing = await notes.where("stars", "=", 77).page()
    assert (nothing.items, nothing.next, nothing.previous) == ([], None, None)
    none = await notes.limit(0).page()
    assert (none.items, none.next) == ([], None)


async def test_limit_and_offset(notes: QueryBuilder[Note]) -> None:
    assert await ids(notes.limit(2).offset(3)) == "d e"
    assert await ids(notes.offset(4)) == "e f/1"
    assert await ids(notes.limit(0)) == ""
    with pytest.raises(InvalidQuery):
        notes.limit(-1)
    with pytest.raises(InvalidQuery):
        notes.offset(-1)


async def test_cursors_of_other_queries_are_refused(
    store: Store, notes: QueryBuilder[Note]
) -> None:
    page = await notes.order_by("stars").limit(2).page()
    assert page.next is not None
    authors = store.collection(Author).query()
    for asked in (notes, notes.order_by("-stars"), notes.order_by("stars", "author"), authors):
        with pytest.raises(InvalidQuery, match="does not belong"):
            await asked.page(after=page.next)
    with pytest.raises(InvalidQuery, match="only one"):
        await notes.page(after=page.next, before=page.next)


async def test_garbage_is_no_cursor(notes: QueryBuilder[Note]) -> None:
    for cursor in ("", "x", "é", "AAAA", "a" * 1000, "%%%", "\0"):
        with pytest.raises(InvalidQuery, match="does not belong"):
            await notes.page(after=cursor)


FORGED = [("text", "a"), (1, 2), (1, None), (2**64 - 1, "a"), (1, "\0"), (1.5, "a"), (b"x", "a")]


async def test_forged_cursors_do_no_harm(notes: QueryBuilder[Note]) -> None:
    """A cursor goes through the hands of clients: one with other values is refused, or a page."""
    ordered = notes.order_by("stars").limit(2)
    order = (SortOrder("stars"), SortOrder("key"))
    for mark in FORGED:
        forged = finder.seal("notes", order, mark)  # type: ignore[arg-type]
        with contextlib.suppress(InvalidInput):
            await ordered.page(after=forged)


def test_cursors_are_stable() -> None:
    """They may be kept by clients: a new release must still open those of the last one."""
    order = (SortOrder("stars"), SortOrder("key"))
    sealed = finder.seal("notes", order, (3, "a"))
    assert finder.open("notes", order, sealed) == (3, "a")
    assert sealed == "ks4aScCskgOhYQ"


# Related records --------------------------------------------------------------------------------


async def test_include(store: Store) -> None:
    await store.collection(Author).put_many(
        [Author("ada", "Ada", ["a", "gone", "b"]), Author("bob", "Bob")]
    )
    await store.collection(Note).put_many(
        [Note("a", author="ada"), Note("b", author="ada"), Note("c", author="nobody"), Note("d")]
    )
    await store.collection(Reply).put_many([Reply("r1", "a"), Reply("r2", "a"), Reply("r3", "c")])
    found = (
        await store.collection(Note)
        .query()
        .include(Author, via="author")
        .include(Reply, by="note")
        .execute()
    )
    assert [[author.id for author in item.related(Author)] for item in found] == [
        ["ada"],
        ["ada"],
        [],
        [],
    ]
    assert [[reply.id for reply in item.related(Reply)] for item in found] == [
        ["r1", "r2"],
        [],
        ["r3"],
        [],
    ]
    authors = await store.collection(Author).query().include(Note, via="favourites").execute()
    assert [[note.id for note in item.related(Note)] for item in authors] == [["a", "b"], []]
    page = await store.collection(Note).query().include(Reply, by="note").limit(1).page()
    assert len(page.items[0].related(Reply)) == 2
    assert page.items[0].related(Author) == []


async def test_include_that_cannot_work(store: Store) -> None:
    query = store.collection(Note).query()
    with pytest.raises(InvalidQuery, match="either via= or by="):
        query.include(Author)
    with pytest.raises(InvalidQuery, match="either via= or by="):
        query.include(Author, via="author", by="id")
    with pytest.raises(InvalidQuery, match="no field 'nope'"):
        query.include(Author, via="nope")
    await store.collection(Note).put(Note("a"))
    with pytest.raises(NotIndexed, match="'name' of Author"):
        await query.include(Author, by="name").execute()


# Figures ----------------------------------------------------------------------------------------


async def test_aggregates(notes: QueryBuilder[Note]) -> None:
    (figures,) = await notes.aggregate(
        notes="count", rated="count stars", sum="sum stars", avg="avg stars", best="max stars",
        first="min author", light="min weight",
    )  # fmt: skip
    assert figures == {
        "notes": 6,
        "rated": 4,
        "sum": 14,
        "avg": 3.5,
        "best": 9,
        "first": "Zoë",
        "light": -1.0,
    }
    groups = await notes.group_by("author").aggregate(notes="count", stars="sum stars")
    assert groups == [
        {"author": None, "notes": 1, "stars": None},
        {"author": "Zoë", "notes": 1, "stars": 9},
        {"author": "ada", "notes": 2, "stars": 3},
        {"author": "bob", "notes": 1, "stars": 2},
        {"author": "bobby", "notes": 1, "stars": None},
    ]
    nothing = notes.where("stars", "=", 77)
    assert await nothing.aggregate(n="count", s="sum stars") == [{"n": 0, "s": None}]
    assert await nothing.group_by("author").aggregate(n="count") == []


@pytest.mark.parametrize(
    ("figure", "words"),
    [
        ("median stars", "no figure 'median'"),
        ("sum", "of what"),
        ("sum author", "is text"),
        ("avg id", "is text"),
        ("count text", "not indexed"),
        ("count(*); DROP TABLE notes", "no figure"),
        ("max stars); --", "no field"),
    ],
)
async def test_figures_that_cannot_be(notes: QueryBuilder[Note], figure: str, words: str) -> None:
    with pytest.raises(InvalidQuery, match=words) as caught:
        await notes.aggregate(x=figure)
    assert caught.value.hint


# Deleting -----------------------------------------------------------------------------------------


async def test_delete(store: Store, notes: QueryBuilder[Note]) -> None:
    assert await notes.where("author", "=", "ada").delete() == 2
    assert await notes.order_by("-stars").limit(1).delete() == 1
    assert await ids(notes) == "c d e"
    assert await notes.tagged(lang="py").delete() == 1
    assert await notes.delete() == 2
    assert await store.collection(Note).query().count() == 0


# What is refused, before any backend is asked -----------------------------------------------------


@pytest.fixture
def query() -> QueryBuilder[Note]:
    return Store(MemoryAdapter()).collection(Note).query()


def test_fields_without_an_index_name_the_declaration(query: QueryBuilder[Note]) -> None:
    store = Store(MemoryAdapter())
    with pytest.raises(NotIndexed, match="'text' of Note is not indexed") as caught:
        query.where("text", "=", "x")
    assert "text: Annotated[…, Indexed()]" in caught.value.hint
    with pytest.raises(NotIndexed) as caught:
        store.collection(Reply).query().order_by("-created")
    assert 'indexes=[Index(("created",))]' in caught.value.hint
    with pytest.raises(NotIndexed) as caught:
        query.group_by("nope")
    assert "author" in caught.value.hint
    with pytest.raises(NotIndexed, match="has no tags"):
        store.collection(Reply).query().tagged(a="b")


@pytest.mark.parametrize(
    "field", ["stars; --", 'stars" = 1 OR 1 = 1 --', "", "_value", "_id", "r.stars", "NOTES", "*"]
)
def test_names_are_never_sql(query: QueryBuilder[Note], field: str) -> None:
    with pytest.raises(NotIndexed):
        query.where(field, "=", 1)
    with pytest.raises(NotIndexed):
        query.where(any_of(where(field, "=", 1)))
    with pytest.raises(NotIndexed):
        query.order_by(field)
    with pytest.raises(NotIndexed):
        query.group_by(field)


@pytest.mark.parametrize("op", ["", "==", "like", "IS NOT", "= 1 OR 1 =", "; --", "IN"])
def test_operators_are_a_closed_set(query: QueryBuilder[Note], op: str) -> None:
    with pytest.raises(InvalidQuery, match="no operator") as caught:
        query.where("stars", op, 1)
    assert "prefix" in caught.value.hint


@pytest.mark.parametrize(
    ("field", "op", "value", "error"),
    [
        ("stars", "=", "3", InvalidValue),
        ("stars", "=", 2**63, InvalidValue),
        ("stars", "<", None, InvalidQuery),
        ("stars", "prefix", 1, InvalidQuery),
        ("stars", "in", 3, InvalidQuery),
        ("stars", "in", ["x"], InvalidValue),
        ("author", "=", 3, InvalidValue),
        ("author", "=", ["ada"], InvalidValue),
        ("author", "in", "ada", InvalidQuery),
        ("author", "=", "a\0", InvalidValue),
        ("author", "prefix", "\ud800", InvalidValue),
        ("author", "in", ["x", "\0"], InvalidValue),
        ("weight", "=", float("nan"), InvalidValue),
        ("weight", "=", "1.5", InvalidValue),
        ("id", "=", "a\0", InvalidInput),
        ("author", "=", object(), InvalidValue),
        ("stars", "in", list(range(10_001)), InvalidQuery),
    ],
)
def test_values_of_the_wrong_kind(
    query: QueryBuilder[Note], field: str, op: str, value: Any, error: type[InvalidInput]
) -> None:
    with pytest.raises(error) as caught:
        query.where(field, op, value)
    assert caught.value.hint


async def test_long_lists(notes: QueryBuilder[Note]) -> None:
    assert await ids(notes.where("stars", "in", list(range(10_000)))) == "a b c f/1"


async def test_a_tag_is_not_found_under_another_split(store: Store) -> None:
    """The tag a, "b=c" is stored as text, and must not be found as the tag "a=b", c."""
    notes = store.collection(Note)
    await notes.put(Note("x", labels={"a": "b=c"}))
    assert await ids(notes.query().where(tagged("a", "b=c"))) == "x"
    with pytest.raises(InvalidQuery, match="'a=b' cannot be the name of a tag"):
        notes.query().where(tagged("a=b", "c"))


@record("loads", serializer="msgpack")  # JSON has no infinities
class Load(msgspec.Struct, frozen=True):
    id: Annotated[str, Key()]
    weight: Annotated[float | None, Indexed()] = None


async def test_infinities(store: Store) -> None:
    notes = store.collection(Load)
    infinity = float("inf")
    await notes.put_many([Load("a", infinity), Load("b", -infinity), Load("c", 0.0), Load("d")])
    ordered = notes.query().order_by("weight")
    assert [note.id for note in await ordered.values()] == ["d", "b", "c", "a"]
    assert await ids(notes.query().where("weight", "=", infinity)) == "a"
    assert await ids(notes.query().where("weight", "<", infinity)) == "b c"
    page = await ordered.limit(3).page()
    assert [note.id for note in (await ordered.limit(3).page(after=page.next)).values] == ["a"]
