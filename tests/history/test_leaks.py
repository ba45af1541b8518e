"""Tags that models wrote are hidden where people look; nothing else changes."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from perdure.core.messages import (
    ArtifactPointer,
    Message,
    Reasoning,
    Text,
    ToolCall,
    ToolResult,
    assistant,
    user,
)
from perdure.core.turns import Round, Turn
from perdure.history.turn_tags import hidden_in, hidden_tags, told, without_tags
from tests.growth import assert_linear


def test_tags_that_a_model_writes_are_hidden_and_counted() -> None:
    call = ToolCall("c1", "shell", '{"x": "<T-1-R>"}')
    leaked = Message("assistant", (Text("<T-4-R>\nSure.\n</T-4-R>"), call))
    shown, count = hidden_tags([user("<T-1-C>"), leaked, assistant("fine")])
    assert count == 2
    assert shown == (
        user("<T-1-C>"),
        Message("assistant", (Text("Sure.\n"), call)),
        assistant("fine"),
    )


def test_the_beginning_of_what_was_moved_out() -> None:
    moved = ArtifactPointer("sha256:0", 20_000, head="<T-4-R>\nA long story")
    (shown,), count = hidden_tags([Message("assistant", (moved,))])
    assert (shown.parts[0], count) == (ArtifactPointer("sha256:0", 20_000, head="A long story"), 1)


def test_what_others_said_and_what_was_thought_stays() -> None:
    said = (
        user("</T-1-R>"),
        Message("assistant", (Reasoning("<T-1-R>"),)),
        Message("tool", (ToolResult("c1", (Text("<T-1-R>"),)),)),
        Message("system", (Text("<perdure-note>"),)),
    )
    shown, count = hidden_tags(said)
    assert (shown, count) == (said, 0)
    assert all(new is old for new, old in zip(shown, said, strict=True))


def test_a_turn() -> None:
    rounds = tuple(
        Round(n, (assistant(text),), 7) for n, text in enumerate(["<T-1-R>a", "b", "c</T-1-R>"], 1)
    )
    turn = Turn(session="a/b", number=3, rounds=rounds, status="closed", started=1, ended=2)
    shown, count = hidden_in(turn)
    assert count == 2
    assert [message.text for message in shown.messages] == ["a", "b", "c"]
    assert [round.tokens for round in shown.rounds] == [7, 7, 7]
    clean, none = hidden_in(shown)
    assert (clean is shown, none) == (True, 0)


def test_told() -> None:
    assert [told(1), told(2)] == ["1 leaked tag hidden", "2 leaked tags hidden"]


@pytest.mark.parametrize(
    ("text", "shown", "count"),
    [
        ("<T-183.4-S>Sure.</T-183.4-S>", "Sure.", 2),
        ("a\n  </T-4-R> <T-5-R>  \nb", "a\nb", 2),
        ("a\r\n<T-50-through-100-T>\r\nb", "a\r\nb", 1),
        ("see <T-12-C> for that", "see for that", 1),
        ("see<T-12-C> that", "see that", 1),
        ("see <T-12-C>", "see ", 1),
        ("the end <T-12-C>\nnext", "the end \nnext", 1),
        ("<T-1-R> <T-2-R> hi", "hi", 2),
        ("<t-1-r / >x", "x", 1),
        ("</perdure-board>x", "x", 1),
        ("<T-1-R is never closed\n> quoted", "<T-1-R is never closed\n> quoted", 0),
        ("List<T-1> and <T-shirt> and a < b", "List<T-1> and <T-shirt> and a < b", 0),
        ("    indented code\n<T-1-R>\n    more", "    indented code\n    more", 1),
    ],
)
def test_where_a_tag_stands(text: str, shown: str, count: int) -> None:
    assert without_tags(text) == (shown, count)


#: Words begin a line: on the line of a tag, they may be taken for a part of it.
_PIECES = ["<", "</", "T-1", "-R", ">", "<T-2-C>", "</T-2.3-S>", " ", "\t", "\n", "\nword"]


@given(st.lists(st.sampled_from(_PIECES), max_size=40).map("".join))
def test_no_word_is_lost(text: str) -> None:
    shown, count = without_tags(text)
    assert shown.count("word") == text.count("word")
    assert (count == 0) == (shown == text)


@pytest.mark.parametrize("blank", [" ", "\t", "<", "<T-1-R ", "< ", "<T-1", "<T-1-R> x"])
def test_the_work_grows_with_the_text_and_no_faster(blank: str) -> None:
    assert_linear(without_tags, "<b>" + blank * 16_000, "<b>" + blank * 128_000)
