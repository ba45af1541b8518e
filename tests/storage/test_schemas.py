"""The schema registry: what is kept of types, checking data, comparing versions, migrations."""

from __future__ import annotations

import asyncio
import enum
from collections.abc import Callable
from datetime import UTC, date, datetime
from typing import Annotated, Any, Literal

import msgspec
import pytest

from perdure.core.errors import (
    Corrupted,
    InvalidInput,
    InvalidRecordType,
    MigrationFailed,
    NewerSchema,
    SchemaMismatch,
)
from perdure.storage.adapter import Capability
from perdure.storage.options import DEFAULT, Options
from perdure.storage.records import Indexed, Key, record
from perdure.storage.rows import Batch, Index, Row
from perdure.storage.schemas.schema_comparison import compare
from perdure.storage.schemas.schema_validation import find_problems
from perdure.storage.schemas.type_shapes import describe
from perdure.storage.state_records import StateRecord
from perdure.storage.store import Store
from perdure.testing.manual_clock import ManualClock

SERIALIZERS = ("msgpack", "json", "protobuf")
memory_only = pytest.mark.parametrize("store_url", ["memory"], indirect=True)


class Color(enum.Enum):
    RED = "red"
    BLUE = "blue"


class Address(msgspec.Struct, frozen=True):
    city: str
    zip: Annotated[int, msgspec.Meta(ge=1, le=99_999)] = 1


class Person(msgspec.Struct, frozen=True, rename="camel"):
    id: Annotated[str, Key()]
    full_name: str
    address: Address
    age: Annotated[int | None, Indexed()] = None
    color: Color = Color.RED
    friends: list[Address] = []
    rooms: dict[int, str] = {}
    born: date | None = None
    kind: Literal["a", "b"] | None = None
    extra: Any = None
    pair: tuple[int, str] = (0, "")


def declared(serializer: str = "msgpack", **more: Any) -> type[Person]:
    """Person as a record, written in this way."""
    return record("people", serializer=serializer, **more)(Person)


ADA = Person("ada", "Ada", Address("London", 12), 36, rooms={1: "x"}, born=date(1815, 12, 10))


# What is kept -------------------------------------------------------------------------------------


async def test_a_type_is_registered_when_it_is_written(store: Store, clock: ManualClock) -> None:
    clock.set(datetime(2026, 4, 1, tzinfo=UTC))
    assert await store.schemas.collections() == []
    await store.collection(declared(ttl="1d", indexes=[Index(("created",))])).put(ADA)
    assert await store.schemas.collections() == ["people"]
    schema = await Store(store.adapter).schemas.describe("people")
    (version,) = schema.versions
    assert version is schema.current
    assert (version.schema, version.serializer, schema.numbers) == (1, "msgpack", {})
    assert version.since == datetime(2026, 4, 1, tzinfo=UTC)
    assert version.indexes == (Index(("age",)), Index(("created",)))
    assert version.ttl == 86_400_000_000
    described = {field.name: str(field.shape) for field in version.description.fields}
    assert described == {
        "id": "str",
        "fullName": "str",
        "address": "Address",
        "age": "int | None",
        "color": "'blue' | 'red'",
        "friends": "list[Address]",
        "rooms": "dict[int, str]",
        "born": "date | None",
        "kind": "'a' | 'b' | None",
        "extra": "anything",
        "pair": "tuple[int, str]",
    }
    address = version.description.types["Address"].fields
    assert [(field.name, str(field.shape), field.required) for field in address] == [
        ("city", "str", True),
        ("zip", "int (ge 1, le 99999)", False),
    ]


async def test_nothing_is_known_of_what_was_not_written(store: Store) -> None:
    assert await store.collection(declared()).get("ada") is None
    assert await store.collection(declared()).query().count() == 0
    assert await store.schemas.collections() == []
    with pytest.raises(InvalidInput, match="No schema is known of a collection 'people'"):
        await store.schemas.describe("people")
    if Capability.DURABLE in store.capabilities:  # looking leaves no empty tables behind
        assert await store.adapter.sizes() == []


async def test_types_of_our_own_are_not_registered(store: Store) -> None:
    await store.collection(StateRecord).put(StateRecord(id="a/b", type="chat"))
    assert await store.schemas.collections() == []
    with pytest.raises(InvalidRecordType, match="of Perdure's own"):
        await store.schemas.register(StateRecord)


async def test_registering_by_hand(store: Store) -> None:
    schema = await store.schemas.register(declared())
    assert schema.current.description.name == "Person"
    assert await store.schemas.register(declared()) == schema
    assert await store.schemas.describe("people") == schema


class _Counting:
    """An adapter's calls about schemas, counted."""

    def __init__(self, store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
        self.reads = self.writes = 0
        get, commit = store.adapter.get, store.adapter.commit

        async def counted_get(name: str, keys: Any, options: Options) -> list[Row | None]:
            self.reads += name == "perdure_schemas"
            return await get(name, keys, options)

        async def counted_commit(batch: Batch, options: Options) -> list[int]:
            self.writes += any(write.collection == "perdure_schemas" for write in batch.writes)
            return await commit(batch, options)

        monkeypatch.setattr(store.adapter, "get", counted_get)
        monkeypatch.setattr(store.adapter, "commit", counted_commit)


async def test_it_costs_one_read_per_collection_and_process(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    counted = _Counting(store, monkeypatch)
    cls = declared("protobuf")
    for place in range(5):
        await store.collection(cls).put(msgspec.structs.replace(ADA, id=f"k{place}"))
        await store.collection(cls).get("k0")
        async with store.transaction() as transaction:
            await transaction.collection(cls).get("k0")
    assert counted.writes == 1
    assert counted.reads <= 1
    later = Store(store.adapter)
    await later.collection(cls).put(ADA)
    await later.collection(cls).put_many([ADA])
    await later.collection(cls).query().values()
    assert counted.writes == 1
    assert counted.reads <= 2


async def test_the_history_of_versions(store: Store, clock: ManualClock) -> None:
    key = ("id", Annotated[str, Key()])
    one = [key, ("name", str)]
    two = [*one, ("age", int, 0)]
    steps: list[tuple[list[Any], dict[str, Any]]] = [
        (one, {"serializer": "msgpack"}),
        (one, {}),
        (two, {"serializer": "json"}),
        (two, {"serializer": "json", "migrations": [dict]}),
        (two, {"serializer": "protobuf", "migrations": [dict]}),
    ]
    for fields, options in steps:
        clock.advance("1h")
        cls = record("things", **options)(msgspec.defstruct("Thing", fields, frozen=True))
        for _ in range(2):  # a second process adds nothing
            await Store(store.adapter, clock=clock).collection(cls).put(cls("a", "b"))
    found = (await store.schemas.describe("things")).versions
    assert [(each.schema, each.serializer, len(each.description.fields)) for each in found] == [
        (1, "msgpack", 2),
        (1, "json", 2),
        (1, "json", 3),
        (2, "json", 3),
        (2, "protobuf", 3),
    ]
    assert sorted(found, key=lambda each: each.since) == list(found)
    assert len({each.since for each in found}) == 5


@memory_only
async def test_programs_that_take_turns_do_not_make_the_history_longer(store: Store) -> None:
    for serializer in ("json", "msgpack") * 10:
        await Store(store.adapter).collection(declared(serializer)).put(ADA)
    found = (await store.schemas.describe("people")).versions
    assert [each.serializer for each in found] == ["json", "msgpack"]


async def test_many_who_register_at_once(store: Store) -> None:
    async def write(place: int) -> None:
        fields: list[Any] = [("id", Annotated[str, Key()]), (f"field_{place}", int, 0)]
        cls = record("crowd")(msgspec.defstruct("Crowd", fields, frozen=True))
        await Store(store.adapter).collection(cls).put(cls(f"k{place}", place))

    await asyncio.gather(*map(write, range(8)))
    found = (await store.schemas.describe("crowd")).versions
    assert {each.description.fields[1].name for each in found} == {f"field_{n}" for n in range(8)}


async def test_a_type_with_fewer_migrations_is_refused_and_changes_nothing(store: Store) -> None:
    newer = declared(migrations=[dict, dict], indexes=[Index(("created",))])
    await store.collection(newer).put(ADA)
    before = await store.schemas.describe("people")
    older = Store(store.adapter)
    for use in (
        lambda: older.collection(declared()).get("ada"),
        lambda: older.collection(declared()).put(ADA),
        lambda: older.collection(declared("protobuf")).put(ADA),
        lambda: older.collection(declared()).query().values(),
        lambda: older.declare(declared()),
    ):
        with pytest.raises(
            NewerSchema, match=r"'people' has schema version 3; Person .* 1"
        ) as caught:
            await use()
        assert "migrations" in caught.value.hint
    assert await store.schemas.describe("people") == before
    (row,) = await store.adapter.get("people", ["ada"], DEFAULT)
    assert row is not None
    assert (row.schema, row.version) == (3, 1)


async def test_a_damaged_schema_is_told(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    await store.collection(declared()).put(ADA)
    get = store.adapter.get

    async def damaged(name: str, keys: Any, options: Options) -> list[Row | None]:
        rows = await get(name, keys, options)
        return [row and msgspec.structs.replace(row, value=b"x" + row.value) for row in rows]

    monkeypatch.setattr(store.adapter, "get", damaged)
    with pytest.raises(Corrupted, match="The schema of 'people' is damaged") as caught:
        await Store(store.adapter).collection(declared()).put(ADA)
    assert caught.value.record == "perdure_schemas/people"


# Checking data ------------------------------------------------------------------------------------

GOOD: dict[str, Any] = {"id": "a", "fullName": "A", "address": {"city": "Rome"}}
WRONG: list[tuple[dict[str, Any], list[str]]] = [
    ({"id": 1}, ["id: expected str, got int"]),
    ({"fullName": None}, ["fullName: expected str, got None"]),
    ({"address": {"city": 3}}, ["address.city: expected str, got int"]),
    ({"address": {}}, ["address.city: is missing"]),
    ({"address": {"city": "x", "zip": 0}}, ["address.zip: expected int >= 1"]),
    ({"address": "Rome"}, ["address: expected Address, got str"]),
    ({"age": "old"}, ["age: expected int | None, got 'old'"]),
    ({"color": "green"}, ["color: expected 'blue' | 'red', got 'green'"]),
    ({"friends": {}}, ["friends: expected list, got dict"]),
    (
        {"friends": [{"city": "x"}, {"city": 1}, 2]},
        ["friends[1].city: expected str, got int", "friends[2]: expected Address, got int"],
    ),
    ({"rooms": {"one": "x"}}, ["rooms['one']: as a key: expected int, got str"]),
    ({"rooms": {1: 2}}, ["rooms[1]: expected str, got int"]),
    ({"born": "yesterday"}, ["born: expected date | None, got 'yesterday'"]),
    ({"kind": "c"}, ["kind: expected 'a' | 'b' | None, got 'c'"]),
    ({"pair": [1]}, ["pair: expected 2 values, got 1"]),
    ({"pair": ["1", 2]}, ["pair[0]: expected int, got str", "pair[1]: expected str, got int"]),
    (
        {"id": 1, "address": {"city": 3}, "age": 1.5},
        [
            "id: expected str, got int",
            "address.city: expected str, got int",
            "age: expected int | None, got 1.5",
        ],
    ),
]
FINE: list[dict[str, Any]] = [
    {},
    {"unknown": 1},
    {"age": 3, "born": "2020-01-01", "rooms": {"1": "x"}},
    {"born": date(2020, 1, 1), "kind": "a", "extra": object()},
    {"friends": [{"city": "x"}], "pair": (1, "x"), "color": "blue"},
]


@pytest.mark.parametrize(("change", "wanted"), WRONG, ids=lambda each: str(each)[:40])
def test_everything_that_does_not_fit_is_named(change: dict[str, Any], wanted: list[str]) -> None:
    found = find_problems(describe(Person), GOOD | change)
    assert [str(problem) for problem in found] == wanted


@pytest.mark.parametrize("change", FINE, ids=range(len(FINE)))
def test_what_fits(change: dict[str, Any]) -> None:
    assert find_problems(describe(Person), GOOD | change) == []


@memory_only
@pytest.mark.parametrize("serializer", SERIALIZERS)
async def test_validating_with_and_without_the_class(store: Store, serializer: str) -> None:
    cls = declared(serializer)
    await store.collection(cls).put(ADA)
    (row,) = await store.adapter.get("people", ["ada"], DEFAULT)
    assert row is not None
    schemas = Store(store.adapter).schemas
    for what in ("people", cls):
        await schemas.validate(what, GOOD)
        await schemas.validate(what, ADA)
        await schemas.validate(what, row.value)
        with pytest.raises(SchemaMismatch, match=r"address.city: expected str, got int") as caught:
            await schemas.validate(what, GOOD | {"address": {"city": 3}, "age": "x"})
        assert caught.value.field == "address.city"
        assert "age: expected int | None, got 'x'" in caught.value.message
        odd = Person("a", "A", "Rome", "x")  # type: ignore[arg-type]
        assert [problem.field for problem in await schemas.problems(what, odd)] == [
            "address",
            "age",
        ]
        with pytest.raises(Corrupted):
            await schemas.validate(what, b"\xc1\xff{")
    with pytest.raises(InvalidInput, match="No schema is known"):
        await schemas.validate("elsewhere", GOOD)


@record("even")
class Even(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    id: Annotated[str, Key()]
    number: int | str | list[Address] = 0

    def __post_init__(self) -> None:
        if isinstance(self.number, int) and self.number % 2:
            raise ValueError("the number is odd")


@memory_only
async def test_what_only_the_class_knows(store: Store) -> None:
    schemas = store.schemas
    await schemas.validate(Even, {"id": "a", "number": 2})
    with pytest.raises(SchemaMismatch, match="the number is odd"):
        await schemas.validate(Even, {"id": "a", "number": 1})
    with pytest.raises(SchemaMismatch, match="more: is not a field"):
        await schemas.validate(Even, {"id": "a", "more": 1})
    (problem,) = await schemas.problems(Even, {"id": "a", "number": [{"city": 1}]})
    assert str(problem) == "number[0].city: expected str, got int"
    (problem,) = await schemas.problems(Even, {"id": "a", "number": 1.5})
    assert str(problem) == "number: expected int | str | list[Address], got 1.5"


async def test_checking_what_is_stored(store: Store) -> None:
    cls = declared("protobuf")
    people = store.collection(cls)
    await people.put_many([msgspec.structs.replace(ADA, id=f"k{n:03}") for n in range(700)])
    checked = await Store(store.adapter).schemas.check("people")
    assert (checked.records, checked.unfit, checked.versions) == (700, 0, {1: 700})

    # A type that was changed without a migration.
    class Person2(Person, frozen=True, kw_only=True):
        email: str

    changed = record("people", serializer="protobuf")(Person2)
    other = Store(store.adapter).collection(changed)
    await other.put(Person2("new", "N", Address("Rome"), email="x"))
    checked = await Store(store.adapter).schemas.check("people")
    assert (checked.records, checked.unfit, len(checked.problems)) == (701, 700, 100)
    assert checked.problems["k000"] == ["email: is missing"]
    # Records of an older version are a migration's business.
    upgraded = record("people", serializer="protobuf", migrations=[dict])(Person2)
    await Store(store.adapter).schemas.register(upgraded)
    checked = await Store(store.adapter).schemas.check("people")
    assert (checked.unfit, checked.versions) == (0, {1: 701})


# Comparing ----------------------------------------------------------------------------------------


def _type(*fields: Any, **options: Any) -> type[msgspec.Struct]:
    return msgspec.defstruct("Made", [("id", str), *fields], **options)


_one: Any = msgspec.defstruct("Inner", [("a", int)])
_two: Any = msgspec.defstruct("Inner", [("a", int), ("b", int, 0)])
_three: Any = msgspec.defstruct("Inner", [("a", str)])


class Loop(msgspec.Struct):
    inner: Loop | None = None
    all: list[Loop] = []


COMPARED: list[tuple[Any, Any, list[str], bool]] = [
    ((), (), [], False),
    ((), (("x", int),), ["x: is new, int"], True),
    ((), (("x", int, 0),), ["x: is new, int, with a default"], False),
    ((("x", int),), (), ["x: is gone, int"], False),
    ((("x", int),), (("x", str),), ["x: was int, is str"], True),
    ((("x", int),), (("x", float),), ["x: was int, is float"], False),
    ((("x", float),), (("x", int),), ["x: was float, is int"], True),
    ((("x", int),), (("x", int | None),), ["x: may be None now"], False),
    ((("x", int | None),), (("x", int),), ["x: may not be None any more"], True),
    ((("x", int),), (("x", int | str),), ["x: was int, is int | str"], False),
    ((("x", int),), (("x", Any),), ["x: was int, is anything"], False),
    ((("x", Any),), (("x", int),), ["x: was anything, is int"], True),
    ((("x", int, 0),), (("x", int),), ["x: has no default any more"], True),
    ((("x", int),), (("x", int, 0),), ["x: has a default now"], False),
    ((("x", date),), (("x", str),), ["x: was date, is str"], False),
    ((("x", Literal["a"]),), (("x", Literal["a", "b"]),), ["x: was 'a', is 'a' | 'b'"], False),
    ((("x", Literal["a", "b"]),), (("x", Literal["a"]),), ["x: was 'a' | 'b', is 'a'"], True),
    ((("x", Literal["a", "b"]),), (("x", str),), ["x: was 'a' | 'b', is str"], False),
    ((("x", list[int]),), (("x", set[int]),), ["x: was list[int], is set[int]"], False),
    ((("x", list[int]),), (("x", list[str]),), ["x[]: was int, is str"], True),
    ((("x", dict[str, int]),), (("x", dict[str, str]),), ["x[]: was int, is str"], True),
    (
        (("x", int),),
        (("x", Annotated[int, msgspec.Meta(ge=0)]),),
        ["x: was int, is int (ge 0)"],
        True,
    ),
    (
        (("x", Annotated[int, msgspec.Meta(ge=0)]),),
        (("x", int),),
        ["x: was int (ge 0), is int"],
        False,
    ),
    ((("x", _one),), (("x", _two),), ["x.b: is new, int, with a default"], False),
    ((("x", list[_one]),), (("x", list[_three]),), ["x[].a: was int, is str"], True),
    ((("x", _one | None),), (("x", _three | None),), ["x.a: was int, is str"], True),
    ((("x", Loop),), (("x", Loop),), [], False),
]


@pytest.mark.parametrize(("old", "new", "changes", "migrate"), COMPARED)
def test_comparing_versions(old: Any, new: Any, changes: list[str], *, migrate: bool) -> None:
    found = compare(_type(*old), describe(_type(*new)))
    assert [str(change) for change in found.changes] == changes
    assert found.needs_migration is migrate


def test_unknown_fields_that_are_refused_need_a_migration() -> None:
    assert compare(_type(("x", int)), _type(forbid_unknown_fields=True)).needs_migration


@memory_only
async def test_comparing_what_is_kept(store: Store) -> None:
    await store.collection(declared()).put(ADA)
    kept = (await store.schemas.describe("people")).current.description
    assert store.schemas.compare(kept, Person).changes == ()
    assert store.schemas.compare(kept, Even).needs_migration


# Migrations ---------------------------------------------------------------------------------------


def _split(data: dict[str, Any]) -> dict[str, Any]:
    first, _, last = data.pop("name").partition(" ")
    return {**data, "first": first, "last": last}


def _nest(data: dict[str, Any]) -> dict[str, Any]:
    return {**data, "home": {"city": data.pop("city"), "zip": 1}}


def _many_homes(data: dict[str, Any]) -> dict[str, Any]:
    return {**data, "homes": [data.pop("home")]}


def _shout(data: dict[str, Any]) -> dict[str, Any]:
    homes = [{**home, "city": home["city"].upper()} for home in data["homes"]]
    return {**data, "homes": homes}


STEPS = (_split, _nest, _many_homes, _shout)
_id = ("id", Annotated[str, Key()])
_when = ("since", datetime)
LAYOUTS: list[list[Any]] = [
    [_id, _when, ("name", str), ("city", str)],
    [_id, _when, ("first", str), ("last", str), ("city", str)],
    [_id, _when, ("first", str), ("last", str), ("home", Address)],
    [_id, _when, ("first", str), ("last", str), ("homes", list[Address])],
    [_id, _when, ("first", str), ("last", str), ("homes", list[Address])],
]
SINCE = datetime(2026, 1, 1, tzinfo=UTC)
VALUES: list[tuple[Any, ...]] = [
    ("Ada L", "Rome"),
    ("Ada", "L", "Rome"),
    ("Ada", "L", Address("Rome")),
    ("Ada", "L", [Address("Rome")]),
    ("Ada", "L", [Address("ROME")]),
]


def _citizen(version: int, serializer: str, steps: Any = STEPS) -> Any:
    cls = msgspec.defstruct("Citizen", LAYOUTS[version - 1], frozen=True)
    return record("citizens", migrations=steps[: version - 1], serializer=serializer)(cls)


@pytest.mark.parametrize("serializer", SERIALIZERS)
async def test_every_step_from_the_first_version_to_the_fifth(
    store: Store, serializer: str
) -> None:
    for version in range(1, 6):
        cls = _citizen(version, serializer)
        citizens = Store(store.adapter).collection(cls)
        await citizens.put(cls(f"v{version}", SINCE, *VALUES[version - 1]))
        for older in range(1, version + 1):
            found: Any = await citizens.get(f"v{older}")
            assert found == cls(f"v{older}", SINCE, *VALUES[version - 1])
            (row,) = await store.adapter.get("citizens", [f"v{older}"], DEFAULT)
            assert row is not None
            assert (row.schema, row.version) == (older, 1)
    # Another serializer reads all of them, too.
    for other in SERIALIZERS:
        cls = _citizen(5, other)
        citizens = Store(store.adapter).collection(cls)
        found = await citizens.query().values()
        assert [each.homes for each in found] == [[Address("ROME")]] * 5


def _fails_on(step: int) -> tuple[Callable[[dict[str, Any]], dict[str, Any]], ...]:
    def fail(data: dict[str, Any]) -> dict[str, Any]:
        raise KeyError("what is missing")

    return (*STEPS[: step - 1], fail, *STEPS[step:])


@pytest.mark.parametrize("serializer", SERIALIZERS)
@pytest.mark.parametrize("step", [1, 2, 3, 4])
async def test_a_step_that_fails_is_named(store: Store, serializer: str, step: int) -> None:
    first = _citizen(1, serializer)
    await store.collection(first).put(first("a", SINCE, *VALUES[0]))
    before = await store.adapter.get("citizens", ["a"], DEFAULT)
    broken = Store(store.adapter).collection(_citizen(5, serializer, _fails_on(step)))
    words = f"citizens/a could not be brought from schema {step} to {step + 1}: KeyError"
    with pytest.raises(MigrationFailed, match=words) as caught:
        await broken.get("a")
    assert "unchanged" in caught.value.hint
    assert await store.adapter.get("citizens", ["a"], DEFAULT) == before
    # Mended, it works.
    mended = _citizen(5, serializer)
    found = await Store(store.adapter).collection(mended).get("a")
    assert found == mended("a", SINCE, *VALUES[4])


@pytest.mark.parametrize("serializer", SERIALIZERS)
async def test_a_change_without_a_migration_names_record_and_field(
    store: Store, serializer: str
) -> None:
    old = msgspec.defstruct("Old", [_id, ("home", Address)], frozen=True)
    new_address = msgspec.defstruct("Address", [("city", int)], frozen=True)
    new = msgspec.defstruct("New", [_id, ("home", new_address)], frozen=True)
    newest = msgspec.defstruct("Newest", [_id, ("home", Address), ("more", str)], frozen=True)
    old_type = record("homes", serializer=serializer)(old)
    await store.collection(old_type).put(old_type("a", Address("Rome")))
    reader = Store(store.adapter).collection(record("homes", serializer=serializer)(new))
    with pytest.raises(Corrupted, match=r"homes/a: .* home.city: expected int, got str") as caught:
        await reader.get("a")
    assert "add a migration" in caught.value.hint
    assert caught.value.record == "homes/a"
    reader = Store(store.adapter).collection(record("homes", serializer=serializer)(newest))
    with pytest.raises(Corrupted, match=r"homes/a: .* more: is missing"):
        await reader.get("a")


# Data that is not in a store ----------------------------------------------------------------------


def _rename(old: dict[str, Any]) -> dict[str, Any]:
    old["name"] = old.pop("title")
    return old


def _age(old: dict[str, Any]) -> dict[str, Any]:
    return old | {"age": 7}


@record("lodgers", migrations=[_rename, _age])
class Lodger(msgspec.Struct, frozen=True):
    id: Annotated[str, Key()]
    name: str
    age: int


async def test_the_registry_migrates_data_from_any_version(store: Store) -> None:
    schemas, first = store.schemas, {"id": "a", "title": "Ada"}
    now = {"id": "a", "name": "Ada", "age": 7}
    assert schemas.migrate("lodgers", first, 1) == schemas.migrate(Lodger, first, 1) == now
    assert first == {"id": "a", "title": "Ada"}  # what was given stays as it was
    assert schemas.migrate("lodgers", {"id": "a", "name": "Ada"}, from_version=2) == now
    assert schemas.migrate("lodgers", now, 3) == now
    assert await store.collection(Lodger).query().values() == []  # nothing is stored


async def test_what_the_registry_cannot_migrate(store: Store) -> None:
    schemas = store.schemas
    with pytest.raises(MigrationFailed, match=r"Data of lodgers .* from schema 1 to 2: KeyError"):
        schemas.migrate("lodgers", {"id": "a"}, 1)
    with pytest.raises(MigrationFailed, match=r"from schema 3 .*name"):
        schemas.migrate("lodgers", {"id": "a"}, 3)
    with pytest.raises(NewerSchema, match="version 4"):
        schemas.migrate("lodgers", {}, 4)
    with pytest.raises(InvalidInput, match="Versions begin at 1"):
        schemas.migrate("lodgers", {}, 0)
    with pytest.raises(InvalidInput, match="No type is declared here for a collection 'nobody'"):
        schemas.migrate("nobody", {}, 1)
