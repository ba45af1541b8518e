"""Declarations: what they come to, and what is refused."""

from __future__ import annotations

import enum
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Annotated, Any, Literal, Optional

import msgspec
import pytest

from perdure.core.errors import (
    Corrupted,
    InvalidInput,
    InvalidRecordType,
    InvalidValue,
    TooLarge,
)
from perdure.storage import records
from perdure.storage.records import (
    Compressed,
    Encrypted,
    Indexed,
    Key,
    Tags,
    record,
    system_record,
    type_of,
)
from perdure.storage.rows import MAX_VALUE_BYTES, Column, Index, Row
from tests.storage.notes import Author, Mood, Note, Spark

Frozen = msgspec.Struct


def test_declaration_becomes_a_layout() -> None:
    layout = type_of(Note).layout
    assert layout.name == "notes"
    assert layout.columns == (
        Column("author", "text"),
        Column("stars", "integer"),
        Column("weight", "real"),
        Column("mood", "text"),
        Column("due", "integer"),
        Column("done", "integer"),
    )
    assert Index(("stars",)) in layout.indexes
    # This one serves the author alone, too.
    assert Index(("author", "stars")) in layout.indexes
    assert Index(("author",)) not in layout.indexes
    assert layout.tagged
    assert not layout.expires
    assert type_of(Note).compressed
    assert type_of(Spark).layout.expires
    assert not type_of(Author).compressed


def test_columns_of_a_record() -> None:
    due = datetime(2026, 1, 2, 3, 4, 5, 6, tzinfo=UTC)
    note = Note("a", "ada", 3, 0.5, Mood.WILD, due, done=True)
    wanted = ("ada", 3, 0.5, "wild", int(due.timestamp()) * 1_000_000 + 6, 1)
    assert type_of(Note).columns(note) == wanted
    assert type_of(Note).columns(Note("a")) == (None, None, None, None, None, 0)


class Level(enum.IntEnum):
    LOW = 1


@pytest.mark.parametrize(
    ("hint", "kind"),
    [
        (str, "text"),
        (int, "integer"),
        (bool, "integer"),
        (float, "real"),
        (datetime, "integer"),
        (Mood, "text"),
        (Level, "integer"),
        (Literal["a", "b"], "text"),
        (Literal[1, 2], "integer"),
        (str | None, "text"),
        (Optional[float], "real"),  # noqa: UP045
    ],
)
def test_what_can_be_indexed(hint: Any, kind: str) -> None:
    cls = msgspec.defstruct(
        "Made", [("id", Annotated[str, Key()]), ("x", Annotated[hint, Indexed()])], frozen=True
    )
    assert type_of(record("made")(cls)).layout.columns == (Column("x", kind),)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "hint", [list[str], dict[str, int], bytes, Any, int | str, Literal["a", 1], Author, timedelta]
)
def test_what_cannot_be_indexed(hint: Any) -> None:
    cls = msgspec.defstruct(
        "Made", [("id", Annotated[str, Key()]), ("x", Annotated[hint, Indexed()])], frozen=True
    )
    with pytest.raises(InvalidRecordType, match=r"Made\.x") as caught:
        record("made")(cls)
    assert "Index text" in caught.value.hint


def test_one_encrypted_field_makes_the_whole_value_encrypted() -> None:
    @record("secrets")
    class Secret(msgspec.Struct, frozen=True):
        id: Annotated[str, Key()]
        pin: Annotated[str, Encrypted()]
        owner: Annotated[str, Indexed()]

    assert type_of(Secret).encrypted
    assert not type_of(Note).encrypted


class Thawed(msgspec.Struct):
    id: Annotated[str, Key()]


class Keyless(msgspec.Struct, frozen=True):
    id: str


class TwoKeys(msgspec.Struct, frozen=True):
    id: Annotated[str, Key()]
    other: Annotated[str, Key()]


class NumberKey(msgspec.Struct, frozen=True):
    id: Annotated[int, Key()]


class IndexedKey(msgspec.Struct, frozen=True):
    id: Annotated[str, Key(), Indexed()]


class Taken(msgspec.Struct, frozen=True):
    id: Annotated[str, Key()]
    created: Annotated[int, Indexed()]


class Shouting(msgspec.Struct, frozen=True):
    id: Annotated[str, Key()]
    Loud: Annotated[str, Indexed()]


class Fine(msgspec.Struct, frozen=True):
    id: Annotated[str, Key()]
    kind: str = ""
    size: int = 0


@pytest.mark.parametrize(
    ("declare", "words"),
    [
        (lambda: record("x")(Thawed), "frozen"),
        (lambda: record("x")(dict), "frozen"),  # type: ignore[type-var]
        (lambda: record("x")(Keyless), "marked Key"),
        (lambda: record("x")(TwoKeys), "marked Key"),
        (lambda: record("x")(NumberKey), "marked Key"),
        (lambda: record("x")(IndexedKey), "cannot be an indexed field"),
        (lambda: record("x")(Taken), "cannot be an indexed field"),
        (lambda: record("x")(Shouting), "cannot be an indexed field"),
        (lambda: record("")(Fine), "cannot be the name"),
        (lambda: record("Notes")(Fine), "cannot be the name"),
        (lambda: record("a__b")(Fine), "cannot be the name"),
        (lambda: record('x"; DROP TABLE y; --')(Fine), "cannot be the name"),
        (lambda: record("é")(Fine), "cannot be the name"),
        (lambda: record("a" * 49)(Fine), "cannot be the name"),
        (lambda: record("perdure_x")(Fine), "reserved"),
        (lambda: record("sqlite_x")(Fine), "reserved"),
        (lambda: record("x", serializer="pickle")(Fine), "serializer 'pickle'"),
        (lambda: record("x", indexes=[Index(("nope",))])(Fine), "nope not being a field"),
        (lambda: record("x", indexes=[Index(())])(Fine), "over nothing"),
        (
            lambda: record("x", indexes=[Index(("kind",), (("size", "1' OR '1"),))])(Fine),
            "no plain word",
        ),
    ],
)
def test_what_cannot_be_declared(declare: Callable[[], object], words: str) -> None:
    with pytest.raises(InvalidRecordType, match=words) as caught:
        declare()
    assert caught.value.hint


@pytest.mark.parametrize("ttl", ["", "soon", "1x", "-1h", "1h30", 0, -5, timedelta(0)])
def test_what_is_no_ttl(ttl: Any) -> None:
    with pytest.raises(InvalidInput, match="duration"):
        record("x", ttl=ttl)(Fine)


@pytest.mark.parametrize(
    ("ttl", "seconds"),
    [("45s", 45), ("1h30m", 5400), ("30d", 2_592_000), (timedelta(minutes=1), 60), (2.5, 2.5)],
)
def test_ttl(ttl: Any, seconds: float) -> None:
    assert type_of(record("x", ttl=ttl)(Fine)).ttl == seconds * 1_000_000


def test_fields_of_indexes_get_columns() -> None:
    declared = record("x", indexes=[Index(("kind", "created"), (("size", 1),))])(Fine)
    assert type_of(declared).layout.columns == (Column("kind", "text"), Column("size", "integer"))


def test_system_records_have_names_of_their_own() -> None:
    try:
        assert type_of(system_record("x")(Fine)).name == "perdure_x"
    finally:
        records._types.pop(Fine, None)  # or it would be one of Perdure's own in other tests


def test_a_marker_may_be_a_class() -> None:
    class Bare(msgspec.Struct, frozen=True):
        id: Annotated[str, Key]
        kind: Annotated[str, Indexed]
        text: Annotated[str, Compressed]
        tags: Annotated[dict[str, str], Tags]

    declared = type_of(record("bare")(Bare))
    assert declared.compressed
    assert declared.layout.tagged
    assert declared.layout.columns == (Column("kind", "text"),)


@pytest.mark.parametrize(
    ("note", "words"),
    [
        (Note("a", "x\0y"), "'author' contains a NUL"),
        (Note("a", "x\ud800"), "'author' contains half a surrogate"),
        (Note("a", "é" * 257), "'author' is longer than 512 bytes"),
        (Note("a", stars=2**63), "64 bits"),
        (Note("a", stars=-(2**63) - 1), "64 bits"),
        (Note("a", weight=float("nan")), "not finite"),
        (Note("a", due=datetime(2026, 1, 1)), "no time zone"),  # noqa: DTZ001
        (Note("a", labels={"a=b": "c"}), "cannot be a tag"),
        (Note("a", labels={"": "c"}), "cannot be a tag"),
        (Note("a", labels={"a": "\0"}), "'tags' contains a NUL"),
        (Note("a", labels={"a": "b" * 512}), "'tags' is longer"),
    ],
)
def test_values_that_cannot_be_indexed(note: Note, words: str) -> None:
    with pytest.raises(InvalidValue, match=words) as caught:
        type_of(Note).encode(note, None, None)
    assert caught.value.hint


def test_oversize_values_are_refused() -> None:
    with pytest.raises(TooLarge, match="notes/big takes") as caught:
        type_of(Note).encode(Note("big", text="x" * MAX_VALUE_BYTES), None, None)
    assert "artifact" in caught.value.hint


def test_other_types_are_refused() -> None:
    with pytest.raises(InvalidValue, match="holds Note, not Author"):
        type_of(Note).encode(Author("a", "A"), None, None)  # type: ignore[arg-type]


def row(key: str, value: bytes, content_type: str = "application/msgpack") -> Row:
    return Row(key, value, content_type, 1, 1, 0, 0, None, 0)


def test_many_rows_are_decoded_like_each_of_them() -> None:
    declared = type_of(Author)
    one, two = Author("a", "Ada"), Author("b", "Bo", ["a"])
    rows = [
        row("a", msgspec.msgpack.encode(one)),
        row("b", msgspec.json.encode(two), "application/json"),  # written by another serializer
    ]
    assert declared.decode_all(rows) == [declared.decode(each) for each in rows] == [one, two]


def test_of_many_rows_the_damaged_one_is_named() -> None:
    rows = [row("a", msgspec.msgpack.encode(Author("a", "Ada"))), row("b", b"\xc1")]
    with pytest.raises(Corrupted, match="authors/b") as caught:
        type_of(Author).decode_all(rows)
    assert caught.value.record == "authors/b"
