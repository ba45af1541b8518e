"""Renditions as they are stored: against the words of their round, and back."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from perdure.core.errors import Corrupted
from perdure.core.levels import Level
from perdure.core.messages import ArtifactPointer, Message, Text, ToolCall, ToolResult, event, user
from perdure.history.renditions.rendition_packing import clean, ground, pack, unpack
from perdure.history.renditions.rendition_records import (
    EVERY_LEVEL,
    MOST_VARIANTS,
    Rendition,
    Tiny,
    TinyVariant,
    Variant,
    lacking,
    makers,
    recipe_of,
    status_of,
    tiny_without_later,
    without_later,
)
from perdure.jobs import Job, JobState

LISTING = "\n".join(f"src/module_{n}/file_{n * 7}.py: {n * 31} lines" for n in range(400))
ROUND = (
    user("Which files are there?"),
    Message("assistant", (Text("I look."), ToolCall("c1", "shell", '{"command": "ls -R src"}'))),
    Message("tool", (ToolResult("c1", (Text(LISTING),)),)),
)


@given(st.text(), st.text(), st.binary(max_size=400))
def test_whatever_is_packed_comes_back(smooth: str, compact: str, words: bytes) -> None:
    smooth, compact = clean(smooth), clean(compact)
    assert unpack(pack(smooth, compact, words), words) == (smooth, compact)


def test_the_words_of_the_round_are_not_stored_again() -> None:
    smooth, compact = LISTING[: len(LISTING) // 3], LISTING[:600]
    packed = pack(smooth, compact, ground(ROUND))
    assert len(packed) < len((smooth + compact).encode()) / 40
    assert len(packed) * 4 < len(pack(smooth, compact, b""))


def test_the_same_text_twice_is_stored_once() -> None:
    assert pack("Yes.", "Yes.", b"") == b"\x00Yes."
    assert unpack(b"\x00Yes.", b"") == ("Yes.", "Yes.")


def test_other_words_are_noticed() -> None:
    packed = pack(LISTING[:3_000], LISTING[:300], ground(ROUND))
    other = (*ROUND[:2], Message("tool", (ToolResult("c1", (Text(LISTING.upper()),)),)))
    with pytest.raises(Corrupted, match="cannot be read"):
        unpack(packed, ground(other))
    for broken in (packed[:-3], packed[:1], b"\x07" + packed[1:], b"\x00\xff\xfe"):
        with pytest.raises(Corrupted):
            unpack(broken, ground(ROUND))


def test_the_ground_never_changes() -> None:
    """Stored renditions are read against it: this is a format, not an implementation."""
    reference = ArtifactPointer("sha256:00", 9, head="a head")
    messages = (
        Message("user", (Text("hi \ud800"), reference), name="Ada"),
        event("compacted", "not this"),
        Message("assistant", (Text("yes"), ToolCall("c", "shell", '{"a": 1}'))),
        Message("tool", (ToolResult("c", (Text("out"), reference)),)),
    )
    words = ground(messages).decode()
    assert words == (
        " was called and failed: was called: tool → lines, in all: Assistant: User: "
        'User (Ada): hi \ufffd\nUser (Ada): a head\nAssistant: yes\ntool shell {"a": 1}\n'
        "→ out\n→ a head"
    )


def variant(messages: int, recipe: str = "a1") -> Variant:
    return Variant(b"\x00x", 1, 1, messages, recipe)


def test_the_newest_variant_for_so_many_messages() -> None:
    row = Rendition("a/b/00000003.00000002", (variant(2), variant(3), variant(2, "m1 x/y")))
    assert (row.turn, row.round) == (3, 2)
    assert (row.best(2), row.best(3), row.best(4)) == (2, 1, None)
    assert row.newest == variant(3)
    assert Rendition("a/b/00000003.00000002").newest is None
    assert MOST_VARIANTS < 256


def test_what_is_made_of_more_than_a_fork_shares_stays_behind() -> None:
    row = Rendition("a/b/00000003.00000002", (variant(2), variant(5), variant(2)))
    copy = without_later(row, 2, "c/d/00000003.00000002")
    assert [bool(each.packed) for each in copy.variants] == [True, False, True]
    assert (copy.id, copy.best(2), copy.best(5)) == ("c/d/00000003.00000002", 2, None)
    tiny = Tiny("a/b/00000003", (TinyVariant("short", 1, 2, "a1"), TinyVariant("no", 1, 3, "a1")))
    copied = tiny_without_later(tiny, 2, "c/d/00000003")
    assert [each.text for each in copied.variants] == ["short", ""]


def test_how_a_row_stands() -> None:
    row = Rendition("a/b/00000003.00000002", (Variant(b"\x00x", 99, 9, 2, "a1"),))
    short = Rendition("a/b/00000003.00000003", (Variant(b"\x00x", 9, 9, 2, "a1"),))
    job = Job("renditions/a/b/00000003", "renditions", ["a/b", 3], JobState.PENDING, due=5)

    def status(job: Job | None, recipe: str = "a1", row: Rendition = row) -> str:
        return status_of(row, job, recipe=recipe, prompt=None)

    assert status(None) == "done"
    assert status(job) == "pending"
    assert status(job.running("us", 9)) == "pending"
    again = job.running("us", 9).pending(7)
    assert status(again) == status(again.running("us", 9)) == "failed"
    assert status(job.failed("too long")) == "given up"
    assert status(job, row=short) == status(job.failed("too long"), row=short) == "done"
    assert status(None, recipe="a2") == "stale"
    by_model = Tiny("a/b/00000003", (TinyVariant("x", 1, 1, "m2 ours/big"),))
    assert status_of(by_model, job, recipe="a9", prompt=None) == "done"
    assert status_of(by_model, None, recipe="a9", prompt="m2") == "done"
    assert status_of(by_model, None, recipe="a9", prompt="m3") == "stale"


def test_what_of_a_row_no_model_has_made() -> None:
    def lacks(recipe: str, smooth: int = 99, levels: frozenset[Level] = EVERY_LEVEL) -> str:
        row = Rendition("a/b/00000003.00000002", (Variant(b"\x00x", smooth, 9, 2, recipe),))
        return "".join(sorted(lacking(row, levels)))

    assert lacks("a1") == lacks("m1 ours/old") == "CS"
    assert lacks("m2 ours/small") == lacks("m2 ours/s ours/c") == ""
    assert lacks("m2 ours/s a1") == "C"
    assert lacks("m2 a1 ours/c") == "S"
    assert lacks("a1", smooth=9) == lacks("a1", levels=frozenset({"T"})) == ""
    assert recipe_of("ours/s", "ours/s") == "m2 ours/s"
    for pair in (("ours/s", "a1"), ("a1", "ours/c"), ("ours/s", "ours/s")):
        assert makers(recipe_of(*pair)) == pair
