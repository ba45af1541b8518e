"""Protobuf messages: what comes back, which numbers fields have, and what protoc makes of it."""

from __future__ import annotations

import asyncio
import contextlib
import copy
import enum
import functools
import subprocess
import sys
import uuid
from datetime import UTC, date, datetime, time, timedelta, timezone
from decimal import Decimal
from pathlib import Path
from typing import Annotated, Any, Literal, TypeAlias

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from perdure.core.errors import (
    Corrupted,
    InvalidInput,
    InvalidRecordType,
    InvalidValue,
    Unsupported,
)
from perdure.storage import codecs
from perdure.storage.codecs.protobuf_codec import Protobuf
from perdure.storage.codecs.protobuf_fields import BEYOND, NULLS, Numbers
from perdure.storage.options import DEFAULT
from perdure.storage.records import Indexed, Key, Tags, record
from perdure.storage.rows import Row
from perdure.storage.schemas import schema_records
from perdure.storage.schemas.type_shapes import describe
from perdure.storage.store import Store
from tests.conftest import DURABLE, MakeStore

MSGPACK = codecs.BY_NAME["msgpack"]
Fields: TypeAlias = list[tuple[str, Any, Any]]


def codec_for(cls: type[msgspec.Struct], numbers: Numbers | None = None) -> Protobuf:
    wires = schema_records.wires(describe(cls))
    return Protobuf(schema_records.extended(numbers or {}, wires, 1, 0), wires)


# What comes back ----------------------------------------------------------------------------------


class Mood(enum.Enum):
    CALM = "calm"
    WILD = "wild"


class Rank(enum.IntEnum):
    LOW = 1
    HIGH = 2


class Point(msgspec.Struct, frozen=True):
    x: float
    label: str | None = None
    more: list[int] = []


class Tree(msgspec.Struct, frozen=True, omit_defaults=True):
    name: str
    weight: int = 7
    branches: list[Tree] = []
    by_name: dict[str, Tree] = {}


class Cat(msgspec.Struct, frozen=True, tag=True):
    lives: int


class Dog(msgspec.Struct, frozen=True, tag=True):
    name: str


class Pair(msgspec.Struct, frozen=True, array_like=True):
    left: int
    right: str = ""


texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=8)
ints = st.integers(-(2**63), 2**64 - 1)
floats = st.floats(allow_nan=False)
moments = st.datetimes(timezones=st.sampled_from([UTC, timezone(timedelta(hours=5))]))
points = st.builds(Point, floats, st.none() | texts, st.lists(ints, max_size=3))
trees = st.recursive(
    st.builds(Tree, texts, st.integers(0, 9)),
    lambda inner: st.builds(
        Tree,
        texts,
        st.just(7),
        st.lists(inner, max_size=2),
        st.dictionaries(texts, inner, max_size=2),
    ),
    max_leaves=5,
)
plain: st.SearchStrategy[Any] = st.recursive(
    st.none() | st.booleans() | ints | floats | texts | st.binary(max_size=4),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(texts | ints, inner, max_size=3),
    max_leaves=6,
)
#: A type of a field, and its values.
KINDS: list[tuple[Any, st.SearchStrategy[Any]]] = [
    (str, texts),
    (int, ints),
    (float, floats),
    (bool, st.booleans()),
    (bytes, st.binary(max_size=8)),
    (bytearray, st.binary(max_size=8).map(bytearray)),
    (datetime, moments | st.datetimes()),
    (date, st.dates()),
    (time, st.times()),
    (timedelta, st.timedeltas(timedelta(days=-9), timedelta(days=9))),
    (uuid.UUID, st.uuids()),
    (Decimal, st.decimals(allow_nan=False, allow_infinity=False)),
    (Mood, st.sampled_from(Mood)),
    (Rank, st.sampled_from(Rank)),
    (Literal["a", "b"], st.sampled_from(["a", "b"])),
    (Literal["a", 1], st.sampled_from(["a", 1])),
    (Any, plain),
    (Point, points),
    (Tree, trees),
    (Pair, st.builds(Pair, ints, texts)),
    (Cat | Dog, st.builds(Cat, ints) | st.builds(Dog, texts)),
    (int | str, ints | texts),
    (list[str], st.lists(texts, max_size=3)),
    (list[int], st.lists(ints, max_size=3)),
    (list[int | None], st.lists(st.none() | ints, max_size=3)),
    (list[list[float]], st.lists(st.lists(floats, max_size=2), max_size=2)),
    (list[Point], st.lists(points, max_size=3)),
    (list[datetime], st.lists(moments, max_size=2)),
    (set[int], st.sets(ints, max_size=3)),
    (frozenset[str], st.frozensets(texts, max_size=3)),
    (tuple[int, ...], st.lists(ints, max_size=3).map(tuple)),
    (tuple[int, str], st.tuples(ints, texts)),
    (dict[str, str], st.dictionaries(texts, texts, max_size=3)),
    (dict[int, float], st.dictionaries(ints, floats, max_size=3)),
    (dict[bool, int], st.dictionaries(st.booleans(), ints)),
    (dict[Mood, int], st.dictionaries(st.sampled_from(Mood), ints)),
    (dict[str, Point], st.dictionaries(texts, points, max_size=2)),
    (dict[str, list[str]], st.dictionaries(texts, st.lists(texts, max_size=2), max_size=2)),
    (dict[str, int | None], st.dictionaries(texts, st.none() | ints, max_size=2)),
    (dict[date, int], st.dictionaries(st.dates(), ints, max_size=2)),
]


@st.composite
def records(draw: st.DrawFn) -> msgspec.Struct:
    """A record of a type that is made for it."""
    fields: Fields = []
    values: dict[str, Any] = {}
    for number in range(draw(st.integers(1, 8))):
        type_, strategy = draw(st.sampled_from(KINDS))
        name = f"field_{number}"
        if draw(st.booleans()):
            type_, strategy = type_ | None, st.none() | strategy
        if draw(st.booleans()):
            default = draw(strategy)
            made_by = functools.partial(copy.deepcopy, default)
            fields.append((name, type_, msgspec.field(default_factory=made_by)))
            if draw(st.booleans()):
                continue  # the default it is
        else:
            fields.append((name, type_, msgspec.field()))
        values[name] = draw(strategy)
    cls = msgspec.defstruct(
        "Made",
        [(name, type_, field) for name, type_, field in fields],
        frozen=True,
        kw_only=True,
        omit_defaults=draw(st.booleans()),
        rename=draw(st.sampled_from([None, "camel", "kebab"])),
        tag=draw(st.sampled_from([None, "made", 7])),
    )
    made: msgspec.Struct = cls(**values)
    return made


@pytest.mark.repeated
@given(made=records())
def test_records_of_any_type_come_back(made: msgspec.Struct) -> None:
    codec = codec_for(type(made))
    data = codec.encode(made)
    again = codec.decode(data, type(made))
    assert again == made
    assert repr(again) == repr(MSGPACK.decode(MSGPACK.encode(made), type(made)))


@pytest.mark.repeated
@given(made=records())
def test_migrations_get_what_msgpack_would_give_them(made: msgspec.Struct) -> None:
    codec = codec_for(type(made))
    found = codec.decode_plain(codec.encode(made))
    wanted = MSGPACK.decode_plain(MSGPACK.encode(made))
    # Only times without a zone differ: they stay times.
    assert msgspec.to_builtins(found) == msgspec.to_builtins(wanted)
    assert found.keys() == wanted.keys()


class Loose(msgspec.Struct, frozen=True):
    anything: Any = None
    number: int = 0
    maybe: int | None = 5
    some: list[int] | None = msgspec.field(default_factory=lambda: [1])
    named: dict[str, int] = msgspec.field(default_factory=lambda: {"a": 1})


@pytest.mark.parametrize(
    "value",
    [
        None,
        True,
        0,
        -1,
        2**63,
        -(2**63),
        2**64,
        -(2**200),
        -0.0,
        float("inf"),
        "\0",
        b"",
        [],
        {},
        [None, [[]], {"": {}}],
        {1: "int", "1": "text", False: 2, None: 3},
        datetime(2026, 1, 1, tzinfo=UTC),
        datetime(2026, 1, 1),  # noqa: DTZ001 (of no zone)
        datetime.max.replace(tzinfo=UTC),
        datetime.min.replace(tzinfo=UTC),
        datetime.min.replace(tzinfo=timezone(timedelta(hours=9))),
    ],
    ids=repr,
)
def test_anything_comes_back(value: Any) -> None:
    codec = codec_for(Loose)
    for given_ in (value, [value], {"key": value}):
        found = codec.decode(codec.encode(Loose(given_)), Loose).anything
        assert repr(found) == repr(given_)
        assert type(found) is type(given_)


def test_not_a_number_comes_back() -> None:
    codec = codec_for(Loose)
    assert repr(codec.decode(codec.encode(Loose(float("nan"))), Loose)) == repr(Loose(float("nan")))


def test_absent_null_empty_and_default_are_four_things() -> None:
    codec = codec_for(Loose)
    for loose in (
        Loose(),
        Loose(maybe=None, some=None),
        Loose(maybe=0, some=[], named={}),
        Loose(maybe=5, some=[1]),
    ):
        assert codec.decode(codec.encode(loose), Loose) == loose
    assert codec.decode(b"", Loose) == Loose()
    assert codec.decode_plain(codec.encode(Loose(None, 0, None, [], {}))) == {
        "anything": None,
        "number": 0,
        "maybe": None,
        "some": [],
        "named": {},
    }


def test_the_order_of_a_dict_is_kept() -> None:
    codec = codec_for(Loose)
    named = {name: place for place, name in enumerate(["zebra", "mouse", "0", "é"])}
    assert list(codec.decode(codec.encode(Loose(named=named)), Loose).named) == list(named)


def test_lone_surrogates_are_refused() -> None:
    codec = codec_for(Loose)
    for bad in ("\ud800", ["\udfff"], {"\ud800": 1}):
        with pytest.raises(InvalidValue, match="half a character") as caught:
            codec.encode(Loose(bad))
        assert "msgpack" in caught.value.hint


def test_what_cannot_be_written() -> None:
    codec = codec_for(Loose)
    endless: list[Any] = []
    endless.append(endless)
    for bad in (object(), print, endless):
        with pytest.raises(InvalidValue, match="cannot be stored"):
            codec.encode(Loose(bad))


@pytest.mark.repeated
@given(data=st.binary(max_size=60))
def test_random_bytes_are_read_or_refused(data: bytes) -> None:
    codec = codec_for(Tree)
    for decode in (lambda: codec.decode(data, Tree), lambda: codec.decode_plain(data)):
        with contextlib.suppress(Corrupted):
            decode()


def test_fields_of_newer_code_are_passed_over() -> None:
    class Newer(msgspec.Struct, frozen=True):
        number: int = 0
        extra: str | None = "x"
        many: list[int] = []

    class Older(msgspec.Struct, frozen=True):
        number: int = 0

    wires = schema_records.wires(describe(Older))
    numbers = schema_records.extended({}, wires, 1, 0)
    older = Protobuf(numbers, wires)
    newer = codec_for(Newer, numbers)
    for value in (Newer(1, "y", [1]), Newer(1, None, [])):
        assert older.decode(newer.encode(value), Older) == Older(1)


# Numbers ------------------------------------------------------------------------------------------


def _numbers_after(*versions: Fields) -> dict[str, int]:
    """What fields of versions that follow each other are numbered, as name:wire."""
    numbers: Numbers = {}
    for schema, fields in enumerate(versions, 1):
        cls = msgspec.defstruct("Made", [(name, type_) for name, type_, _ in fields])
        numbers = schema_records.extended(
            numbers, schema_records.wires(describe(cls)), schema, schema
        )
    return {f"{each.name}:{each.wire}": each.number for each in numbers[""]}


def test_a_number_is_given_once() -> None:
    first: Fields = [("id", str, 0), ("stars", int, 0)]
    assert _numbers_after(first) == {"id:string": 1, "stars:int64": 2}
    assert _numbers_after(first, first) == _numbers_after(first)
    gone: Fields = [("id", str, 0)]
    assert _numbers_after(first, gone) == _numbers_after(first)
    assert _numbers_after(first, gone, first) == _numbers_after(first)
    other: Fields = [("stars", float, 0), ("text", str, 0), ("id", str, 0)]
    both = {"id:string": 1, "stars:int64": 2, "stars:double": 3, "text:string": 4}
    assert _numbers_after(first, other) == both
    assert _numbers_after(first, other, first, gone, other) == both


def test_ours_and_theirs_are_left_out() -> None:
    many: Fields = [(f"f{number}", int, 0) for number in range(20_100)]
    given_ = set(_numbers_after(many).values())
    assert len(given_) == 20_100
    assert not given_ & set(range(2045, NULLS + 1))
    assert not given_ & set(range(19_000, 20_000))
    assert BEYOND not in given_


def test_numbers_stay_when_a_nested_type_changes() -> None:
    old = msgspec.defstruct("Address", [("street", str), ("city", str)])
    new = msgspec.defstruct("Address", [("zip", int), ("city", str)])
    wires = [
        schema_records.wires(describe(msgspec.defstruct("Made", [("home", address)])))
        for address in (old, new)
    ]
    before = schema_records.extended({}, wires[0], 1, 0)
    after = schema_records.extended(before, wires[1], 2, 0)
    assert after[""] == before[""]
    assert [(each.name, each.number) for each in after["Address"]] == [
        ("street", 1),
        ("city", 2),
        ("zip", 3),
    ]
    assert schema_records.extended(after, wires[0], 3, 0) is after


# In a store ---------------------------------------------------------------------------------------


@record("letters", serializer="protobuf", ttl="1d")
class Letter(msgspec.Struct, frozen=True):
    id: Annotated[str, Key()]
    sender: Annotated[str, Indexed()]
    pages: Annotated[int, Indexed()] = 1
    read: datetime | None = None
    labels: Annotated[dict[str, str], Tags()] = {}
    stamps: list[Point] = []


LETTER = Letter("a", "ada", 3, datetime(2026, 5, 1, tzinfo=UTC), {"to": "bob"}, [Point(1.5, "x")])


async def _row(store: Store, collection: str, key: str) -> Row:
    (row,) = await store.adapter.get(collection, [key], DEFAULT)
    assert row is not None
    return row


async def test_records_in_a_store(store: Store) -> None:
    letters = store.collection(Letter)
    await letters.put_many([LETTER, Letter("b", "bob", 9)])
    assert (await _row(store, "letters", "a")).content_type == "application/protobuf"
    later = Store(store.adapter).collection(Letter)
    assert await later.get("a") == LETTER
    assert await later.get_many(["b", "a"]) == [Letter("b", "bob", 9), LETTER]
    assert [each.id for each in await later.query().where("pages", ">", 2).values()] == ["a", "b"]
    assert await later.query().tagged(to="bob").values() == [LETTER]
    assert await later.query().order_by("-pages").values() == [Letter("b", "bob", 9), LETTER]
    assert await later.query().aggregate(pages="sum pages") == [{"pages": 12}]
    assert (await later.list(limit=1)).items[0].value == LETTER
    changed = await later.change("a", lambda old: msgspec.structs.replace(old or LETTER, pages=4))
    assert await letters.get("a") == changed


async def test_records_in_a_transaction(store: Store) -> None:
    await store.collection(Letter).put(LETTER)
    async with Store(store.adapter).transaction() as transaction:
        letters = transaction.collection(Letter)
        assert await letters.get("a") == LETTER
        await letters.put(Letter("b", "bob", 9))
        assert await letters.get("b") == Letter("b", "bob", 9)
        found = await letters.query().where("pages", ">", 1).order_by("-pages").values()
        assert [letter.id for letter in found] == ["b", "a"]
        transaction.emit("letter.sent", {"id": "b"})
    assert await store.collection(Letter).get("b") == Letter("b", "bob", 9)


async def test_what_does_not_fit_is_not_written(store: Store) -> None:
    letters = store.collection(Letter)
    for bad, words in [
        (Letter("a", "ada", "three"), "pages: expected int, got str"),  # type: ignore[arg-type]
        (Letter("a", "ada", stamps=[Point("x")]), r"stamps\[0\].x: expected float, got str"),  # type: ignore[arg-type]
        (Letter("a", "\ud800"), "half a character"),
    ]:
        with pytest.raises(InvalidValue, match=words):
            await letters.put(bad)
    deep: Any = 0
    for _ in range(60):
        deep = [deep]
    with pytest.raises(InvalidValue, match="could not be read again") as caught:
        await store.collection(record("loose", serializer="protobuf")(_Loose)).put(
            _Loose("a", deep)
        )
    assert "another serializer" in caught.value.hint
    assert await letters.get("a") is None


class _Loose(msgspec.Struct, frozen=True):
    id: Annotated[str, Key()]
    anything: Any = None


def _next_letter(*fields: tuple[str, Any]) -> Any:
    """The type of the letters with more fields, as another version of a program declares it."""
    named = [(name, type_ | None, None) for name, type_ in fields]
    cls = msgspec.defstruct(
        "Letter",
        [("id", Annotated[str, Key()]), ("sender", Annotated[str, Indexed()]), *named],
        frozen=True,
    )
    return record("letters", serializer="protobuf")(cls)


async def test_fields_that_are_added_at_the_same_moment(store: Store) -> None:
    """Each in a process of its own: what one numbers, the others must not number otherwise."""
    types = [_next_letter((f"extra_{number}", int), ("shared", str)) for number in range(8)]
    stores = [Store(store.adapter) for _ in types]
    await asyncio.gather(
        *(
            each.collection(type_).put(type_(f"k{place}", "ada", place, "both"))
            for place, (each, type_) in enumerate(zip(stores, types, strict=True))
        )
    )
    numbers = (await store.schemas.describe("letters")).numbers[""]
    assert len({each.number for each in numbers}) == len(numbers) == 11
    for place, type_ in enumerate(types):
        found = await Store(store.adapter).collection(type_).get(f"k{place}")
        assert found == type_(f"k{place}", "ada", place, "both")


@pytest.mark.parametrize("store_url", DURABLE, indirect=True)
async def test_fields_that_are_added_through_connections_of_their_own(
    make_store: MakeStore,
) -> None:
    stores = [await make_store() for _ in range(4)]
    types = [_next_letter((f"extra_{number}", int)) for number in range(4)]

    async def write(place: int) -> None:
        await stores[place].collection(types[place]).put(types[place](f"k{place}", "ada", place))

    await asyncio.gather(*map(write, range(4)))
    numbers = (await stores[0].schemas.describe("letters")).numbers[""]
    assert sorted(each.number for each in numbers) == [1, 2, 3, 4, 5, 6]
    reader = await make_store()
    all_of_them = _next_letter(*((f"extra_{number}", int) for number in range(4)))
    found: list[Any] = await reader.collection(all_of_them).query().values()
    assert [getattr(each, f"extra_{place}") for place, each in enumerate(found)] == [0, 1, 2, 3]


async def test_reading_writes_nothing(store: Store) -> None:
    await store.collection(Letter).put(LETTER)
    before = await _row(store, "perdure_schemas", "letters")
    newer = _next_letter(("extra", int))
    reader = Store(store.adapter).collection(newer)
    assert await reader.get("a") == newer("a", "ada", None)
    assert await _row(store, "perdure_schemas", "letters") == before
    await reader.put(newer("b", "bob", 7))
    assert (await _row(store, "perdure_schemas", "letters")).version == before.version + 1
    assert await reader.get("b") == newer("b", "bob", 7)


async def test_a_process_that_opened_it_before_messages_came_says_so(store: Store) -> None:
    plain_letter = record("letters")(
        msgspec.defstruct("Letter", [("id", Annotated[str, Key()])], frozen=True)
    )
    early = Store(store.adapter).collection(plain_letter)
    await early.put(plain_letter("z"))
    newer = _next_letter()
    await store.collection(newer).put(newer("a", "ada"))
    with pytest.raises(Corrupted, match="letters/a: A value was written as protobuf") as caught:
        await early.get("a")
    assert "open the store again" in caught.value.hint
    assert await Store(store.adapter).collection(plain_letter).get("a") == plain_letter("a")


def test_array_like_records_are_refused() -> None:
    cls = msgspec.defstruct("L", [("id", Annotated[str, Key()])], frozen=True, array_like=True)
    with pytest.raises(InvalidRecordType, match="array_like"):
        record("letters", serializer="protobuf")(cls)


@pytest.mark.parametrize("store_url", ["memory"], indirect=True)
async def test_without_the_package(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "perdure.storage.codecs.protobuf_codec", None)
    with pytest.raises(Unsupported, match="needs protobuf") as caught:
        await store.collection(Letter).put(LETTER)
    assert caught.value.hint == "Run: pip install 'perdure[protobuf]'"


def test_without_a_store_it_is_refused() -> None:
    codec = codecs.BY_NAME["protobuf"]
    with pytest.raises(InvalidValue, match="only into a store"):
        codec.encode(LETTER)
    for decode in (lambda: codec.decode(b"", Letter), lambda: codec.decode_plain(b"")):
        with pytest.raises(Corrupted, match="not known here"):
            decode()


# What protoc makes of it --------------------------------------------------------------------------


class Protoc:
    """The compiler of Google's, which decodes values to text."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def decode(self, proto: str, message: str, value: bytes) -> list[str]:
        """The lines of a message, without their indentation."""
        (self._folder / "it.proto").write_text(proto)
        command = [sys.executable, "-m", "grpc_tools.protoc", f"-I{self._folder}"]
        done = subprocess.run(
            [*command, f"--decode={message}", "it.proto"],
            input=value,
            capture_output=True,
            check=False,
        )
        assert done.returncode == 0, f"{done.stderr.decode()}\n{proto}"
        assert not done.stderr, done.stderr.decode()
        return [line.strip() for line in done.stdout.decode().splitlines()]


@pytest.fixture
def protoc(tmp_path: Path) -> Protoc:
    folder = tmp_path / "protos"
    folder.mkdir()
    return Protoc(folder)


memory_only = pytest.mark.parametrize("store_url", ["memory"], indirect=True)


@memory_only
async def test_protoc_decodes_what_is_stored(store: Store, protoc: Protoc) -> None:
    await store.collection(Letter).put(LETTER)
    proto = await store.schemas.proto("letters")
    value = (await _row(store, "letters", "a")).value
    lines = protoc.decode(proto, "perdure.letters.Letter", value)
    text = " ".join(lines)
    assert lines[:3] == ['id: "a"', 'sender: "ada"', "pages: 3"]
    assert "read { seconds: 1777593600 }" in text
    assert 'labels { key: "to" value: "bob" }' in text
    assert 'stamps { x: 1.5 label: "x" perdure_empties: 3 }' in text


@memory_only
async def test_protoc_decodes_through_all_versions(store: Store, protoc: Protoc) -> None:
    """A field is added, removed, renamed and gets another type, one after another."""
    key = ("id", Annotated[str, Key()])
    versions: list[tuple[list[Any], list[str]]] = [
        ([key, ("stars", int)], ['id: "k"', "stars: 1"]),
        ([key, ("stars", int), ("text", str)], ['id: "k"', "stars: 1", 'text: "t"']),
        ([key, ("text", str)], ['id: "k"', 'text: "t"']),
        ([key, ("body", str)], ['id: "k"', 'body: "t"']),
        ([key, ("body", list[str])], ['id: "k"', 'body: "t"']),
        ([key, ("stars", int), ("body", str)], ['id: "k"', "stars: 1", 'body: "t"']),
    ]
    samples = {str: "t", int: 1, list[str]: ["t"]}
    values: list[bytes] = []
    proto = ""
    for place, (fields, wanted) in enumerate(versions):
        cls = msgspec.defstruct("Note", fields, frozen=True)
        type_ = record("notes", serializer="protobuf", migrations=[dict] * place)(cls)
        made = type_("k", *(samples[kind] for _, kind in fields[1:]))
        await Store(store.adapter).collection(type_).put(made)
        values.append((await _row(store, "notes", "k")).value)
        proto = await store.schemas.proto("notes")
        assert protoc.decode(proto, "perdure.notes.Note", values[-1]) == wanted, proto
        # Older values are decoded, too; what is no longer there is left unnamed.
        assert 'id: "k"' in protoc.decode(proto, "perdure.notes.Note", values[0])
    assert "reserved 3;  // text: string, since schema version 2 (" in proto
    assert "reserved 5;  // body: repeated string, since schema version 5 (" in proto
    assert "  optional int64 stars = 2;\n" in proto
    assert "  optional string body = 4;  // body, since schema version 4 (" in proto
    assert protoc.decode(proto, "perdure.notes.Note", values[1]) == [
        'id: "k"',
        "stars: 1",
        '3: "t"',
    ]


class Anything(msgspec.Struct, frozen=True):
    """Has the name of a message of ours."""

    bytes: int = 1


class google(msgspec.Struct, frozen=True):  # noqa: N801 (hides a package)
    protobuf: int = 2


class string(msgspec.Struct, frozen=True):  # noqa: N801 (the name of a type)
    message: int = 3


class Odd(msgspec.Struct, frozen=True, rename={"dashed": "a-b", "spaced": "ä b", "digit": "1st"}):
    """Names that get in the way."""

    id: Annotated[str, Key()]
    a_b: int = 1
    aB: int = 2  # noqa: N815
    dashed: int = 3
    spaced: int = 4
    digit: int = 5
    message: str = "m"
    reserved: tuple[str, ...] = ("r",)
    map: dict[str, int] = {}
    google: google = google()
    when: datetime = datetime(2026, 1, 1, tzinfo=UTC)
    Anything: Anything = Anything()
    what: Any = None
    string: string = string()
    perdure_nulls: int = 6
    itself: Odd | None = None
    more: dict[str, Any] = {}
    Odd: int = 7


@memory_only
async def test_names_that_get_in_the_way(store: Store, protoc: Protoc) -> None:
    for collection in ("google", "message", "odd"):
        type_ = record(collection, serializer="protobuf")(Odd)
        odd = Odd("k", itself=Odd("l"), what=[None, True, -3, 2**63, "x"], more={"x": {"y": 2**70}})
        await Store(store.adapter).collection(type_).put(odd)
        assert await Store(store.adapter).collection(type_).get("k") == odd
        proto = await store.schemas.proto(collection)
        value = (await _row(store, collection, "k")).value
        lines = protoc.decode(proto, f"perdure.{collection}.Odd", value)
        text = " ".join(lines)
        assert 'id: "k" a_b: 1' in text
        assert f'big: "{2**70}"' in text
        assert "integer: -3" in text
        assert "unsigned: 9223372036854775808" in text
        assert 'itself { id: "l"' in text
        # Everything has a name.
        assert not [line for line in lines if line[:1].isdigit()], lines


@pytest.mark.repeated
@memory_only
async def test_any_type_can_be_exported(store: Store, protoc: Protoc) -> None:
    fields = [(f"field_{place}", kind | None, None) for place, (kind, _) in enumerate(KINDS)]
    cls = msgspec.defstruct("All", [("id", Annotated[str, Key()]), *fields], frozen=True)
    type_ = record("all", serializer="protobuf")(cls)
    await store.collection(type_).put(type_("k"))
    proto = await store.schemas.proto("all")
    value = (await _row(store, "all", "k")).value
    lines = protoc.decode(proto, "perdure.all.All", value)
    assert lines == ['id: "k"', *(f"perdure_nulls: {n}" for n in range(2, len(KINDS) + 2))]


async def test_no_proto_of_what_is_not_protobuf(store: Store) -> None:
    with pytest.raises(InvalidInput, match="No schema is known of a collection 'bare'"):
        await store.schemas.proto("bare")
    cls = record("bare")(msgspec.defstruct("B", [("id", Annotated[str, Key()])], frozen=True))
    await store.collection(cls).put(cls("a"))
    with pytest.raises(InvalidInput, match="never written as protobuf"):
        await store.schemas.proto("bare")
