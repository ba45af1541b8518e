"""Values to bytes and back."""

from __future__ import annotations

import contextlib
import re
import uuid
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any

import msgspec
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from perdure.core.errors import Corrupted, InvalidValue
from perdure.storage import codecs

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


@pytest.mark.long
@pytest.mark.parametrize("codec", [MSGPACK, JSON], ids=["msgpack", "json"])
@given(thing=things)
def test_things_come_back(codec: codecs.Codec, thing: Thing) -> None:
    assume(codec is MSGPACK or not _split(repr(thing)))
    assert codec.decode(codec.encode(thing), Thing) == thing


@pytest.mark.parametrize("codec", [MSGPACK, JSON], ids=["msgpack", "json"])
@pytest.mark.parametrize("text", ["\0", "a\0b", "\ud800", "x\udfffy", "🦊"])
def test_any_text_comes_back(codec: codecs.Codec, text: str) -> None:
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


@pytest.mark.long
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
def test_what_cannot_be_encoded(codec: codecs.Codec, value: object) -> None:
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
def test_damaged_bytes(codec: codecs.Codec, data: bytes) -> None:
    with pytest.raises(Corrupted, match="does not fit its type"):
        codec.decode(data, Point)


@pytest.mark.long
@given(data=st.binary(max_size=40))
def test_random_bytes_never_raise_anything_else(data: bytes) -> None:
    for codec in (MSGPACK, JSON):
        for decode in (lambda: codec.decode(data, Thing), lambda: codec.decode_plain(data)):  # noqa: B023
            with contextlib.suppress(Corrupted):
                decode()


def test_unknown_content_type() -> None:
    with pytest.raises(Corrupted, match="application/x-unknown"):
        codecs.codec_of("application/x-unknown")
