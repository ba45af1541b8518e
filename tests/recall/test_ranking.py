"""What speaks for a candidate, and how it is told."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path

import numpy as np
import pytest

from benchmarks.fit_recall import module
from perdure.recall.places import Spot, spot
from perdure.recall.searching import weights
from perdure.recall.searching.evidence import Tally, sittings
from perdure.recall.searching.features import GROUPS, NAMES
from perdure.recall.searching.rounds import inside
from perdure.recall.searching.weights import LIKELY, WEIGHTS
from perdure.search.engine import Postings, TextFound
from tests.recall.library import OTHER, Library, library, question, scope


def _postings(*rows: tuple[int, int, int], documents: int = 0) -> Postings:
    found = np.array(sorted(rows), np.int64).reshape(-1, 3)
    return Postings(documents or len({row[0] for row in rows}), found)


def _at(turn: int, round: int = 1, part: int = 0, group: int = 1) -> int:
    return Spot(group, turn, round, part).place


def test_every_feature_has_a_weight_and_only_asking_speaks_against() -> None:
    assert set(WEIGHTS) == set(NAMES)
    assert [name for name, weight in WEIGHTS.items() if weight < 0] == ["asks"]
    assert LIKELY[0] > 0


def test_weights_are_as_they_are_printed() -> None:
    assert Path(weights.__file__).read_text() == module(WEIGHTS, LIKELY)


def test_windows_count_what_stands_around_a_turn() -> None:
    text = TextFound(100, (_postings((_at(10), 0, 0), (_at(13), 0, 0), (_at(13), 0, 4)),))
    evidence = Tally(text).evidence()
    turns = [spot(place).turn for place in evidence.places.tolist()]
    assert turns == [8, 9, 10, 11, 12, 13, 14, 15]
    by_turn = dict(zip(turns, evidence.window("around")[:, 0].tolist(), strict=True))
    assert by_turn[10] == 3.0
    assert by_turn[9] == 1.0
    assert by_turn[15] == 2.0
    pair = dict(zip(turns, evidence.window("pair")[:, 0].tolist(), strict=True))
    assert (pair[11], pair[14], pair[9]) == (1.0, 2.0, 0.0)


def test_groups_do_not_touch() -> None:
    text = TextFound(100, (_postings((_at(1, group=1), 0, 0), (_at(1, group=2), 0, 0)),))
    evidence = Tally(text).evidence()
    assert evidence.window("stretch").max() == 1.0
    assert all(place > 0 for place in evidence.places)


def test_what_has_no_order_has_no_neighbours() -> None:
    text = TextFound(100, (_postings((_at(1), 0, 0), (_at(2), 0, 0)),))
    evidence = Tally(text, alone=(1,)).evidence()
    assert [spot(place).turn for place in evidence.places.tolist()] == [1, 2]
    assert evidence.window("stretch")[:, 0].tolist() == [1.0, 1.0]


def test_parts_of_a_round_count_together() -> None:
    text = TextFound(100, (_postings((_at(5), 0, 0), (_at(5, part=1), 1, 0)),))
    evidence = Tally(text).evidence()
    row = evidence.places.tolist().index(_at(5))
    assert evidence.own[:, row, 0].tolist() == [1, 1, 0]
    assert evidence.parts.tolist() == [_at(5), _at(5, part=1)]


def test_phrases_stand_side_by_side_in_one_field() -> None:
    text = TextFound(
        100,
        (
            _postings((_at(1), 0, 3), (_at(9), 0, 3), (_at(20), 0, 3)),
            _postings((_at(1), 0, 4), (_at(9), 0, 9), (_at(20), 1, 4)),
        ),
    )
    evidence = Tally(text, [(0, 1)]).evidence()
    rows = {spot(place).turn: row for row, place in enumerate(evidence.places.tolist())}
    assert evidence.phrases[rows[1]] > 0
    assert evidence.phrases[rows[9]] == evidence.phrases[rows[20]] == 0


def test_windows_end_where_people_paused() -> None:
    begins = sittings(np.array([1, 2, 3, 4]), np.array([0, 60, 90_000, 90_060]))
    assert begins.tolist() == [3]
    text = TextFound(100, (_postings((_at(2), 0, 0), (_at(4), 0, 0)),))
    evidence = Tally(text).evidence()
    axis = evidence.axis[evidence.places.tolist().index(_at(3))]
    cut = evidence.only(np.arange(evidence.rows), np.array([axis]))
    rows = {spot(place).turn: row for row, place in enumerate(cut.places.tolist())}
    assert cut.window("around")[rows[2], 0] == 1.0
    assert evidence.window("around")[rows[2], 0] == 2.0


def test_ten_thousand_turns_are_counted_and_a_few_kept() -> None:
    rows = [(_at(turn), 0, 0) for turn in range(1, 10_001)]
    rare = [(_at(turn), 0, 1) for turn in (77, 5_000)]
    text = TextFound(10_000, (_postings(*rows), _postings(*rare)))
    evidence = Tally(text).evidence()
    assert evidence.rows < 2_500
    assert {77, 5_000} <= {spot(place).turn for place in evidence.places.tolist()}


def test_which_places_are_inside() -> None:
    places = np.array([0, 5, 9, 10, 15, 21])
    assert inside([(5, 9), (15, 20)], places).tolist() == [False, True, True, False, True, False]
    assert not inside([], places).any()


async def _first(books: Library, text: str) -> tuple[str, str]:
    found = await books.searcher.keyword(question(text), scope())
    return found.candidates[0].key, found.candidates[0].why


async def test_own_words_are_named_as_they_were_asked() -> None:
    async with library() as books:
        await books.put(1, "We talked about lunch")
        await books.put(2, "The token is refreshed every hour")
        key, why = await _first(books, "How are tokens refreshed?")
    assert key == "planner/auth#T-2.1"
    assert "in its own words" in why
    assert "refreshed" in why
    assert "tokens" in why


async def test_a_speaker_is_told_from_who_is_addressed() -> None:
    async with library() as books:
        await books.put(1, "Caroline, do you like painting?", speaker="melanie")
        await books.put(2, "I like painting lakes", speaker="caroline")
        await books.put(9, "Painting lakes is what I like", speaker="melanie")
        key, why = await _first(books, "What does Caroline like painting?")
    assert key == "planner/auth#T-2.1"
    assert "said by Caroline" in why


async def test_what_is_said_first_after_a_pause_is_what_is_new() -> None:
    day = 86_400
    async with library() as books:
        for turn, time in ((1, day), (2, day + 60), (3, 3 * day), (4, 3 * day + 60)):
            await books.put(turn, "I went hiking", speaker="ann", time=time)
        found = await books.searcher.keyword(question("Who went hiking?"), scope())
        why = {each.turn: each.why for each in found.candidates}
    assert [turn for turn in sorted(why) if "first after a pause" in why[turn]] == [1, 3]


async def test_a_task_that_begins_is_as_good_as_one_that_goes_on() -> None:
    async with library() as books:
        for turn in (1, 2, 3):  # nobody's name is known: this is somebody with a model
            await books.put(turn, "Rotate the tokens", time=turn * 86_400)
        found = await books.searcher.keyword(question("rotate tokens"), scope())
    assert not any("pause" in each.why for each in found.candidates)


async def test_times_are_reasons() -> None:
    async with library() as books:
        for turn, month in enumerate((4, 6, 8), 1):
            time = int(datetime(2023, month, 7, tzinfo=UTC).timestamp())
            await books.put(10 * turn, "We went hiking in the hills", time=time)
        key, why = await _first(books, "Where did we go hiking in June 2023?")
    assert key == "planner/auth#T-20.1"
    assert "said in June 2023" in why


async def test_what_answers_is_found_without_a_word_of_the_question() -> None:
    async with library() as books:
        for turn in range(1, 30):
            await books.put(turn, f"Something else, number {turn * 7}")
        await books.put(30, "Which database do we take?")
        await books.put(31, "Let us go with PostgreSQL then")
        assert "planner/auth#T-31.1" in (await books.keys("which database was taken?"))[:2]


async def test_user_words_stand_above_long_answers_and_tools() -> None:
    async with library() as books:
        filler = "other words here to make it long and longer " * 20
        await books.put(1, "ok", f"the staging password rotates weekly {filler}")
        await books.put(11, "the staging password rotates weekly")
        await books.put(21, "ok", "", f"the staging password rotates weekly {filler}")
        first, *others = await books.keys("staging password rotates")
        assert first == "planner/auth#T-11.1"
        assert others == ["planner/auth#T-1.1", "planner/auth#T-21.1"]


async def test_scores_tell_a_good_answer_from_none() -> None:
    async with library() as books:
        for turn in range(1, 40):
            await books.put(turn, f"Chatting about topic number {turn} and the weather")
        await books.put(50, "The deploy key of staging is rotated each Friday")
        good = await books.searcher.keyword(
            question("when is the staging deploy key rotated"), scope()
        )
        poor = await books.searcher.keyword(
            question("which opera singer visited the Norwegian topic"), scope()
        )
    assert good.candidates[0].score > 2 * poor.candidates[0].score
    assert all(0 <= each.score <= 1 for each in (*good.candidates, *poor.candidates))
    scores = [each.score for each in good.candidates]
    assert scores == sorted(scores, reverse=True)


async def test_reasons_are_few_and_shares_of_a_whole() -> None:
    async with library() as books:
        await books.put(1, "Tokens rotate hourly", speaker="ann")
        await books.put(2, "What rotates hourly?", group=OTHER)
        found = await books.searcher.keyword(question("What did Ann say about tokens?"), scope())
    for candidate in found.candidates:
        assert len(candidate.reasons) <= 4
        assert all(reason.name and 0 < reason.share <= 1 for reason in candidate.reasons)


@pytest.mark.parametrize("group", GROUPS)
def test_groups_are_of_known_features(group: str) -> None:
    assert set(GROUPS[group]) <= set(NAMES)


async def test_pages_that_have_the_words_do_not_drown_what_a_user_said() -> None:
    """Where each turn is a page, what stands around one is another matter."""
    async with library() as books:
        other = "Rain is likely in the north, and the wind turns to the west. " * 12
        about = f"The budget of a draft is reviewed. A draft has a budget. {other}"
        for turn in range(1, 40):
            await books.put(turn, f"Please look at item {turn}", about if turn < 12 else other)
        await books.put(40, "My budget for the draft is 300 euros", other)
        key, _ = await _first(books, "What is the budget of my draft?")
    assert key == "planner/auth#T-40.1"


async def test_a_rule_comes_before_what_is_merely_about_the_same() -> None:
    async with library() as books:
        await books.put(1, "The dates of the deadline")
        await books.put(20, "Format dates of deadlines", binds=True)
        key, why = await _first(books, "Which dates do deadlines have?")
    assert key == "planner/auth#T-20.1"
    assert "says how it is to be done" in why


async def test_both_speakers_that_are_named_are_no_part_of_what_is_meant() -> None:
    async with library() as books:
        await books.put(1, "Ann, Bea, Ann, Bea!", speaker="ann")
        await books.put(20, "I play chess", speaker="bea")
        await books.put(40, "Chess is what I play", speaker="ann")
        found = await books.searcher.keyword(question("Do Ann and Bea both play chess?"), scope())
    assert {each.turn for each in found.candidates[:2]} == {20, 40}
