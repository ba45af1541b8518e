"""Values to bytes and back."""

from __future__ import annotations

import contextlib
import re
import uuid
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Annotated, Any

import msgspec
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from perdure.core.errors import Corrupted, InvalidInput, InvalidRecordType, InvalidValue
from perdure.storage import codecs
from perdure.storage.options import DEFAULT
from perdure.storage.records import Compressed, Indexed, Key, Tags, record
from perdure.storage.store import Store
from perdure.testing.manual_clock import ManualClock

MSGPACK, JSON = codecs.BY_NAME["msgpack"], codecs.BY_NAME["json"]


class Point(msgspec.Struct, frozen=True):
    x: float
    y: int = 0


class Thing(msgspec.Struct, frozen=True):
    """A bit of everything."""

    text: str
    maybe: str | None = None
    texts: list[str] = []
    pair: tuple[str, int] = ("", 0)
    by_name: dict[str, str] = {}
    by_number: dict[int, str] = {}
    data: bytes = b""
    moment: datetime | None = None
    day: date | None = None
    exact: Decimal | None = None
    id: uuid.UUID | None = None
    some: set[str] = set()
    point: Point | None = None
    anything: Any = None


_split = re.compile(r"\\ud[89ab][0-9a-f]{2}\\ud[c-f]").search
# Lone surrogates and NUL are text, too.
texts = st.text(st.characters(exclude_categories=()), max_size=8)
plain: st.SearchStrategy[Any] = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(-(2**63), 2**63 - 1), texts),
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(texts, inner, max_size=3)),
    max_leaves=6,
)
things = st.builds(
    Thing,
    texts,
    st.none() | texts,
    st.lists(texts, max_size=3),
    st.tuples(texts, st.integers(-(2**63), 2**63 - 1)),
    st.dictionaries(texts, texts, max_size=3),
    st.dictionaries(st.integers(-100, 100), texts, max_size=3),
    st.binary(max_size=8),
    st.none() | st.datetimes(timezones=st.just(UTC)),
    st.none() | st.dates(),
    st.none() | st.decimals(allow_nan=False, allow_infinity=False),
    st.none() | st.uuids(),
    st.sets(texts, max_size=3),
    st.none()
    | st.builds(Point, st.floats(allow_nan=False, allow_infinity=False), st.integers(0, 9)),
    plain,
)


@pytest.mark.repeated
@pytest.mark.parametrize("codec", [MSGPACK, JSON], ids=["msgpack", "json"])
@given(thing=things)
def test_things_come_back(codec: codecs.ValueCodec, thing: Thing) -> None:
    assume(codec is MSGPACK or not _split(repr(thing)))
    assert codec.decode(codec.encode(thing), Thing) == thing


@pytest.mark.parametrize("codec", [MSGPACK, JSON], ids=["msgpack", "json"])
@pytest.mark.parametrize("text", ["\0", "a\0b", "\ud800", "x\udfffy", "🦊"])
def test_any_text_comes_back(codec: codecs.ValueCodec, text: str) -> None:
    for thing in (
        Thing(text),
        Thing("", texts=[text], by_name={text: text}, some={text}),
        Thing("", anything=text),
        Thing("", anything=[text, {"a": text}]),
        Thing("", anything={text: 1}),
    ):
        assert codec.decode(codec.encode(thing), Thing) == thing


def test_split_characters_are_kept_or_refused_but_never_joined() -> None:
    split = Thing("\ud83e\udd8a")  # in JSON, nothing tells it from a fox
    assert MSGPACK.decode(MSGPACK.encode(split), Thing) == split
    for value in (split, ["\ud83e\udd8a"], {"\ud83e\udd8a": 1}):
        with pytest.raises(InvalidValue, match="two halves"):
            JSON.encode(value)


@pytest.mark.repeated
@given(value=plain)
def test_plain_data_comes_back(value: Any) -> None:
    assert MSGPACK.decode_plain(MSGPACK.encode(value)) == value


@pytest.mark.parametrize("number", [float("inf"), float("-inf"), float("nan")])
def test_msgpack_keeps_what_json_refuses(number: float) -> None:
    again = MSGPACK.decode(MSGPACK.encode(Point(number)), Point)
    assert repr(again) == repr(Point(number))
    with pytest.raises(InvalidValue, match="not finite") as caught:
        JSON.encode(Point(number))
    assert "msgpack" in caught.value.hint


@pytest.mark.parametrize(
    ("codec", "value"),
    [
        (MSGPACK, 2**70),
        *((codec, value) for codec in (MSGPACK, JSON) for value in (object(), [print], {1: print})),
    ],
)
def test_what_cannot_be_encoded(codec: codecs.ValueCodec, value: object) -> None:
    with pytest.raises(InvalidValue, match="cannot be stored"):
        codec.encode(value)


def test_endless_values_are_refused() -> None:
    endless: list[Any] = []
    endless.append(endless)
    for codec in (MSGPACK, JSON):
        with pytest.raises(InvalidValue):
            codec.encode(endless)


@pytest.mark.parametrize("codec", [MSGPACK, JSON], ids=["msgpack", "json"])
@pytest.mark.parametrize("data", [b"", b"\xc1", b"{", b"\x81\xa1x", b"\xff\xff", b'"\xff"', b"[1]"])
def test_damaged_bytes(codec: codecs.ValueCodec, data: bytes) -> None:
    with pytest.raises(Corrupted, match="does not fit its type"):
        codec.decode(data, Point)


@pytest.mark.repeated
@given(data=st.binary(max_size=40))
def test_random_bytes_never_raise_anything_else(data: bytes) -> None:
    for codec in (MSGPACK, JSON):
        for decode in (lambda: codec.decode(data, Thing), lambda: codec.decode_plain(data)):  # noqa: B023
            with contextlib.suppress(Corrupted):
                decode()


def test_unknown_content_type() -> None:
    with pytest.raises(Corrupted, match="application/x-unknown"):
        codecs.codec_of("application/x-unknown")


# Of the user's own --------------------------------------------------------------------------------


class Backwards:
    """JSON from behind."""

    content_type = "application/x-backwards"

    def encode(self, value: object) -> bytes:
        return msgspec.json.encode(value)[::-1]

    def decode(self, data: bytes, type: Any) -> Any:
        return msgspec.json.decode(data[::-1], type=type)

    def decode_plain(self, data: bytes) -> Any:
        return msgspec.json.decode(data[::-1])


@pytest.fixture
def registered(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever a test registers is gone afterwards."""
    monkeypatch.setattr(codecs, "BY_NAME", dict(codecs.BY_NAME))
    monkeypatch.setattr(codecs, "_BY_TYPE", dict(codecs._BY_TYPE))


@pytest.mark.usefixtures("registered")
def test_a_codec_of_ones_own() -> None:
    own = Backwards()
    codecs.register("backwards", own)
    codecs.register("backwards", own)  # a module that is loaded twice
    codec = codecs.BY_NAME["backwards"]
    assert codecs.codec_of("application/x-backwards") is codec
    assert codec.decode(codec.encode(Point(1.5)), Point) == Point(1.5)
    assert codec.decode_plain(codec.encode(Point(1.5))) == {"x": 1.5, "y": 0}


@pytest.mark.usefixtures("registered")
def test_names_and_content_types_that_are_taken() -> None:
    before = set(codecs.BY_NAME)
    codecs.register("backwards", Backwards())
    another = Backwards()
    with pytest.raises(InvalidInput, match="the name 'backwards'"):
        codecs.register("backwards", another)
    with pytest.raises(InvalidInput, match="the content type 'application/x-backwards'"):
        codecs.register("other", another)
    with pytest.raises(InvalidInput, match="the name 'msgpack'"):
        codecs.register("msgpack", another)
    for bad in ("", "application/json;zstd=3", "ä"):
        another.content_type = bad
        with pytest.raises(InvalidInput, match="cannot be the content type"):
            codecs.register("other", another)
    assert set(codecs.BY_NAME) == before | {"backwards"}


class Broken(Backwards):
    content_type = "application/x-broken"

    def encode(self, value: object) -> bytes:
        raise ZeroDivisionError("of all things")

    def decode(self, data: bytes, type: Any) -> Any:
        raise ZeroDivisionError("of all things")

    def decode_plain(self, data: bytes) -> Any:
        raise ZeroDivisionError("of all things")


class Careless(Backwards):
    content_type = "application/x-careless"

    def encode(self, value: object) -> Any:
        return "text"

    def decode(self, data: bytes, type: Any) -> Any:
        return {"x": 1}


@pytest.mark.usefixtures("registered")
def test_whatever_a_codec_raises_becomes_an_error_of_ours() -> None:
    codecs.register("broken", Broken())
    codecs.register("careless", Careless())
    codecs.register("backwards", Backwards())
    broken, careless = codecs.BY_NAME["broken"], codecs.BY_NAME["careless"]
    with pytest.raises(InvalidValue, match="x-broken: ZeroDivisionError: of all things"):
        broken.encode(Point(1))
    with pytest.raises(Corrupted, match="x-broken: ZeroDivisionError: of all things"):
        broken.decode(b"", Point)
    with pytest.raises(Corrupted, match="x-broken: ZeroDivisionError"):
        broken.decode_plain(b"")
    with pytest.raises(InvalidValue, match="made str, not bytes"):
        careless.encode(Point(1))
    with pytest.raises(Corrupted, match="read a dict, not a Point"):
        careless.decode(b"", Point)
    with pytest.raises(Corrupted, match="ValidationError"):
        codecs.BY_NAME["backwards"].decode(b"}{", Point)


# In a store ---------------------------------------------------------------------------------------


def _slip(serializer: str) -> Any:
    """The type of the slips as a program declares it that uses this serializer."""

    class Slip(msgspec.Struct, frozen=True):
        id: Annotated[str, Key()]
        author: Annotated[str, Indexed()]
        at: datetime
        number: dict[int, str] = {}
        labels: Annotated[dict[str, str], Tags()] = {}
        text: Annotated[str, Compressed()] = ""

    return record("slips", serializer=serializer, ttl="1h")(Slip)


CONTENT_TYPES = {
    "msgpack": "application/msgpack",
    "json": "application/json",
    "protobuf": "application/protobuf",
    "backwards": "application/x-backwards",
}
_AT = datetime(2026, 3, 1, 12, 30, 15, 123456, tzinfo=UTC)


@pytest.mark.usefixtures("registered")
async def test_a_collection_is_switched_and_old_values_stay_readable(
    store: Store, clock: ManualClock
) -> None:
    codecs.register("backwards", Backwards())
    order = ["msgpack", "json", "protobuf", "backwards", "msgpack", "protobuf"]
    written: list[str] = []
    for place, serializer in enumerate(order):
        cls = _slip(serializer)
        slips = Store(store.adapter, clock=clock).collection(cls)
        author = f"author {place % 2}"
        labels = {"by": serializer, "place": str(place)}
        await slips.put(cls(f"k{place}", author, _AT, {place: "x"}, labels, "text " * 50))
        written.append(f"k{place}")
        (row,) = await store.adapter.get("slips", [f"k{place}"], DEFAULT)
        assert row is not None
        assert row.content_type == CONTENT_TYPES[serializer]
        # Everything that was ever written is read, found and counted.
        found: list[Any] = await slips.get_many(written)
        assert [slip.number for slip in found] == [{at: "x"} for at in range(place + 1)]
        assert {slip.at for slip in found} == {_AT}
        assert len(await slips.query().where("author", "=", "author 0").values()) == place // 2 + 1
        tagged = await slips.query().tagged(place="0").values()
        assert [slip.id for slip in tagged] == ["k0"]
        assert await slips.query().count() == place + 1
    # A value that is written again is written anew.
    last = Store(store.adapter, clock=clock).collection(_slip("protobuf"))
    again: Any = await last.get("k0")
    await last.put(msgspec.structs.replace(again, text="again"))
    (row,) = await store.adapter.get("slips", ["k0"], DEFAULT)
    assert row is not None
    assert (row.content_type, row.version) == ("application/protobuf", 2)
    clock.advance(3_601)
    assert await last.query().count() == 0


@pytest.mark.usefixtures("registered")
async def test_an_unknown_content_type_names_the_record(store: Store) -> None:
    codecs.register("backwards", Backwards())
    cls = _slip("backwards")
    await store.collection(cls).put(cls("a", "ada", _AT))
    del codecs.BY_NAME["backwards"]
    del codecs._BY_TYPE["application/x-backwards"]
    slips = Store(store.adapter).collection(_slip("msgpack"))
    with pytest.raises(Corrupted, match=r"slips/a: .* 'application/x-backwards'") as caught:
        await slips.get("a")
    assert "register(name, codec)" in caught.value.hint
    assert caught.value.record == "slips/a"
    with pytest.raises(InvalidRecordType, match="no serializer 'backwards'") as refused:
        _slip("backwards")
    assert "register" in refused.value.hint
