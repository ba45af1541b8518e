"""What newcomers do: each gets one clear error, and nothing is written."""

from __future__ import annotations

from datetime import UTC, datetime
from decimal import Decimal
from typing import Annotated, Any

import msgspec
import pytest

import perdure
from perdure import Compressed, Indexed, InvalidInput, InvalidValue, Key, Options
from perdure.storage.store import Store
from tests.conftest import DURABLE, MakeStore


@perdure.record("misused")
class Item(msgspec.Struct, frozen=True):
    id: Annotated[str, Key()]
    size: Annotated[int, Indexed()] = 0
    weight: Annotated[float | None, Indexed()] = None
    name: Annotated[str, Indexed()] = ""
    due: Annotated[datetime | None, Indexed()] = None
    plain: int = 0


@pytest.mark.parametrize(
    "fields",
    [
        {"size": 2.5},
        {"size": 3.0},
        {"size": "3"},
        {"size": Decimal(3)},
        {"weight": "heavy"},
        {"name": 5},
        {"due": "2024-01-01"},
        {"due": 17},
        {"plain": "three"},
        {"plain": None},
    ],
    ids=str,
)
async def test_a_field_of_another_type_is_refused(store: Store, fields: dict[str, Any]) -> None:
    """Structs do not check their fields, so it is found out here, and not when it is read."""
    items = store.collection(Item)
    with pytest.raises(InvalidValue) as caught:
        await items.put(Item("a", **fields))
    assert caught.value.hint
    assert await items.get("a") is None


@pytest.mark.parametrize(
    "options",
    [
        {"consistency": "strong"},
        {"consistency": "stong"},
        {"expected": "1"},
        {"expected": -1},
        {"deadline": 0},
        {"deadline": -1.0},
        {"max_staleness": 3.0},
        {"consistency": perdure.Consistency.BOUNDED},
        {"consistency": perdure.Consistency.BOUNDED, "max_staleness": -1},
        {"consistency": perdure.Consistency.BOUNDED, "max_staleness": float("nan")},
        {"consistency": perdure.Consistency.BOUNDED, "max_staleness": "1"},
    ],
    ids=str,
)
def test_options_that_would_not_be_honoured_are_refused(options: dict[str, Any]) -> None:
    with pytest.raises(InvalidInput) as caught:
        Options(**options)
    assert caught.value.hint


def test_declarations_without_a_name() -> None:
    with pytest.raises(perdure.InvalidRecordType, match="name of its collection"):
        perdure.record(Item)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "settings", [{"migrations": "abc"}, {"migrations": [1]}, {"indexes": ["name"]}], ids=str
)
def test_declarations_of_other_types(settings: dict[str, Any]) -> None:
    with pytest.raises(perdure.InvalidRecordType) as caught:
        perdure.record("misuse", **settings)
    assert caught.value.hint


def test_tags_that_are_no_pairs() -> None:
    class Tagged(msgspec.Struct, frozen=True):
        id: Annotated[str, perdure.Key()]
        labels: Annotated[str, perdure.Tags()] = ""

    with pytest.raises(perdure.InvalidRecordType, match="no dict of texts"):
        perdure.record("misuse")(Tagged)


async def test_queries_that_ask_for_nothing_sensible(store: Store) -> None:
    items = store.collection(Item)
    with pytest.raises(perdure.InvalidQuery, match="computed"):
        await items.query().aggregate()
    for wrong in ("a", 1.5, True):
        with pytest.raises(perdure.InvalidQuery):
            items.query().limit(wrong)  # type: ignore[arg-type]


def test_a_collection_by_name(store: Store) -> None:
    with pytest.raises(perdure.InvalidRecordType, match="not declared"):
        store.collection("notes")  # type: ignore[arg-type]


async def test_a_field_that_is_not_there(store: Store) -> None:
    with pytest.raises(perdure.NotIndexed, match="no field 'sise'"):
        store.collection(Item).query().where("sise", "=", 1)


async def test_the_same_class_declared_again_as_in_a_notebook(store: Store) -> None:
    def declare(*fields: Any) -> type[Any]:
        cls = msgspec.defstruct("Cell", [("id", Annotated[str, Key()]), *fields], frozen=True)
        return perdure.record("cells")(cls)

    first = declare()
    await store.collection(first).put(first("a"))
    again = declare(("size", Annotated[int | None, Indexed()], None))
    found = await store.collection(again).query().where("size", "=", None).values()
    assert found == [again("a")]


async def test_times_come_back_as_times(store: Store) -> None:
    items = store.collection(Item)
    due = datetime(2026, 1, 2, tzinfo=UTC)
    await items.put_many([Item("a", due=due), Item("b", due=due), Item("c")])
    assert await items.query().aggregate(last="max due") == [{"last": due}]
    groups = await items.query().group_by("due").aggregate(items="count")
    assert groups == [{"due": None, "items": 1}, {"due": due, "items": 2}]


@pytest.mark.parametrize("store_url", DURABLE, indirect=True)
async def test_an_index_added_to_compressed_records_is_filled(make_store: MakeStore) -> None:
    """Filling reads through the chain, and decompressing needs another collection."""

    def declare(*marks: Any) -> type[Any]:
        fields: list[Any] = [
            ("id", Annotated[str, Key()]),
            ("text", Annotated[str, Compressed()]),
            ("size", Annotated[int, *marks] if marks else int, 0),
        ]
        return perdure.record("packed")(msgspec.defstruct("Packed", fields, frozen=True))

    store = await make_store()
    before = declare()
    await store.collection(before).put_many([before(f"a/{n}", "word " * 50, n) for n in range(9)])
    after = declare(Indexed())
    await store.close()
    second = await make_store()
    found = await second.collection(after).query().where("size", ">=", 7).values()
    assert [item.id for item in found] == ["a/7", "a/8"]
