"""The board: entries live, are shown once in full, and roll off."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from perdure.context import board as boards
from perdure.context.board import Board, alive, cap_for, clear, post, pull, render
from perdure.core.errors import InvalidInput
from perdure.core.tokens import o200k
from perdure.storage.store import Store

COUNTER = o200k()
EMPTY = Board("planner/auth")


def test_an_entry_lives_for_so_many_turns_after_the_one_it_was_put_in() -> None:
    board, entry = post(EMPTY, "The port is 8123.", turn=7, counter=COUNTER, turns_to_live=2)
    assert entry.id == "B-1"
    assert [len(alive(board.entries, turn)) for turn in (7, 8, 9, 10)] == [1, 1, 1, 0]
    assert render(board.entries, 10, (), cap=4_000, counter=COUNTER).text == ""


def test_numbers_are_not_used_again() -> None:
    board, _ = post(EMPTY, "one", turn=1, counter=COUNTER)
    board, gone = clear(board)
    assert gone == ("B-1",)
    board, entry = post(board, "two", turn=1, counter=COUNTER)
    assert entry.id == "B-2"
    assert clear(board, "B-9") == (board, ())


def test_a_turn_that_is_pulled_again_takes_its_own_place() -> None:
    board, _ = pull(EMPTY, "T-3", "C", "short", turn=7, counter=COUNTER)
    board, _ = post(board, "note", turn=7, counter=COUNTER)
    board, _ = pull(board, "T-3", "R", "long", turn=8, counter=COUNTER)
    assert [entry.title for entry in board.entries] == ["B-2", "B-3: T-3 at R"]


def test_an_entry_stands_in_full_once_and_again_when_it_was_removed() -> None:
    board, _ = post(EMPTY, "The port is 8123.", turn=1, counter=COUNTER)
    first = render(board.entries, 2, (), cap=4_000, counter=COUNTER)
    assert first.full == ("B-1",)
    assert first.text == "B-1 (4 more turns):\nThe port is 8123."
    named = render(board.entries, 3, {"B-1"}, cap=4_000, counter=COUNTER)
    assert named.full == ()
    assert named.text == "B-1 stands above; 3 more turns."
    again = render(board.entries, 6, (), cap=4_000, counter=COUNTER)
    assert again.text == "B-1 (last turn):\nThe port is 8123."


def test_the_newest_wins_and_what_has_no_room_is_named() -> None:
    board = EMPTY
    for number in range(6):
        board, _ = post(board, f"note {number} " + "word " * 100, turn=1, counter=COUNTER)
    shown = render(board.entries, 2, (), cap=400, counter=COUNTER)
    assert shown.full == ("B-4", "B-5", "B-6")
    assert "No room for B-3, B-2, B-1:" in shown.text


def test_an_entry_that_can_never_fit_is_shown_in_part() -> None:
    board, _ = post(EMPTY, "word " * 5_000, turn=1, counter=COUNTER)
    shown = render(board.entries, 2, (), cap=400, counter=COUNTER)
    assert shown.full == ("B-1",)
    assert shown.text.endswith("[…]")
    assert COUNTER.count(shown.text) <= 400


@given(
    st.lists(st.tuples(st.text(max_size=300), st.integers(1, 6)), max_size=12),
    st.integers(0, 500),
    st.sets(st.integers(1, 12)),
)
def test_the_cap_holds(notes: list[tuple[str, int]], cap: int, standing: set[int]) -> None:
    board = EMPTY
    for text, life in notes:
        board, _ = post(board, f"x{text}", turn=1, counter=COUNTER, turns_to_live=life)
    ids = {f"B-{n}" for n in standing}
    shown = render(board.entries, 3, ids, cap=cap, counter=COUNTER)
    assert not set(shown.full) & ids
    held = shown.text.partition("No room for")[0]
    assert COUNTER.count(held) <= cap
    named = {*ids, *re.findall(r"B-\d+", shown.text)}
    unnamed = {entry.id for entry in alive(board.entries, 3)} - named
    assert not unnamed or f"and {len(unnamed)} more" in shown.text


def test_a_note_without_words_and_a_life_without_turns_are_refused() -> None:
    with pytest.raises(InvalidInput, match="needs words"):
        post(EMPTY, " ", turn=1, counter=COUNTER)
    with pytest.raises(InvalidInput, match="0 turns"):
        post(EMPTY, "x", turn=1, counter=COUNTER, turns_to_live=0)


def test_a_board_is_bounded() -> None:
    assert cap_for(100_000) == 4_000
    assert cap_for(5_000) == 500
    board = EMPTY
    for number in range(200):
        board, _ = post(board, f"{number}", turn=1, counter=COUNTER)
    assert len(board.entries) == boards._MOST_ENTRIES


@pytest.mark.parametrize("store_url", ["sqlite"], indirect=True)
async def test_a_board_survives_a_restart(store: Store) -> None:
    board, _ = pull(EMPTY, "T-3", "C", "short", turn=7, counter=COUNTER)
    await store.collection(Board).put(board)
    assert await store.collection(Board).get("planner/auth") == board
