"""What a question says beside its words."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from perdure.recall.searching.cues import LOOKED_FOR, MOST_TERMS, Cues, cues

_NOW = datetime(2023, 6, 15, 12, tzinfo=UTC)  # a Thursday


def _cues(text: str) -> Cues:
    return cues(text, int(_NOW.timestamp() * 1e6))


def _holds(text: str, year: int, month: int, day: int) -> bool:
    seconds = int(datetime(year, month, day, 18, tzinfo=UTC).timestamp())
    return any(time.holds(seconds) for time in _cues(text).times)


@pytest.mark.parametrize(
    ("text", "day", "other"),
    [
        ("what happened on 7 May 2023?", (2023, 5, 7), (2023, 5, 8)),
        ("what happened on 07.05.2023?", (2023, 5, 7), (2023, 7, 5)),
        ("what happened on May 7th, 2023?", (2023, 5, 7), (2023, 5, 6)),
        ("what about 2023-05-07", (2023, 5, 7), (2023, 6, 7)),
        ("in May 2023", (2023, 5, 31), (2023, 6, 1)),
        ("since 2023-05", (2023, 5, 1), (2022, 5, 1)),
        ("in May", (2021, 5, 3), (2021, 6, 3)),
        ("on 3 June", (2020, 6, 3), (2020, 6, 4)),
        ("in 2022", (2022, 12, 31), (2023, 1, 1)),
        ("what did I say yesterday?", (2023, 6, 14), (2023, 6, 15)),
        ("earlier today", (2023, 6, 15), (2023, 6, 14)),
        ("last week", (2023, 6, 5), (2023, 6, 12)),
        ("this week", (2023, 6, 12), (2023, 6, 11)),
        ("last weekend", (2023, 6, 11), (2023, 6, 9)),
        ("last month", (2023, 5, 1), (2023, 6, 1)),
        ("last year", (2022, 7, 1), (2023, 1, 1)),
        ("on Monday", (2023, 6, 12), (2023, 6, 13)),
        ("last Thursday", (2023, 6, 8), (2023, 6, 15)),
        ("two weeks ago", (2023, 6, 1), (2023, 6, 8)),
        ("3 days ago", (2023, 6, 12), (2023, 6, 13)),
    ],
)
def test_times(text: str, day: tuple[int, int, int], other: tuple[int, int, int]) -> None:
    assert _holds(text, *day)
    assert not _holds(text, *other)


@pytest.mark.parametrize("text", ["may I go?", "march on", "31 June 2023", "room 2022", "10:30"])
def test_no_time(text: str) -> None:
    assert _cues(text).times == ()


def test_when() -> None:
    assert _cues("When did she leave?").when
    assert _cues("what year was it").when
    assert not _cues("what did she say").when


def test_terms_in_order_and_pairs_side_by_side() -> None:
    asked = _cues("Where is the refresh token of the refresh job?")
    assert asked.terms == ("refresh", "token", "job")
    assert ("refresh", "token") in asked.pairs
    assert asked.names["token"] == "token"


def test_further_words() -> None:
    assert cues("token", 0, ("OAuth clients",)).terms == ("token", "oauth", "auth", "client")


def test_a_long_question_keeps_what_tells_most() -> None:
    text = "do it now, " * 4_000 + " ".join(f"thing{n}" for n in range(400)) + " src/auth/token.py"
    asked = _cues(text)
    assert MOST_TERMS < len(asked.terms) <= LOOKED_FOR
    assert "src/auth/token.py" in asked.terms


@given(st.text(max_size=200))
def test_whatever_is_asked(text: str) -> None:
    asked = _cues(text)
    assert len(asked.terms) == len(set(asked.terms)) <= LOOKED_FOR
    assert all(set(pair) <= set(asked.terms) for pair in asked.pairs)


@pytest.mark.parametrize("moment", [0, 10**6, 250_000_000_000_000_000])
def test_whenever_it_is_asked(moment: int) -> None:
    cues("six years ago, last month, on Monday, 999 years ago", moment)


def test_words_that_only_ask_are_not_looked_for() -> None:
    assert _cues("Do you remember what we said about rhubarb?").terms == ("rhubarb",)
    assert _cues("What was mentioned in the reminders?").terms == ("remind",)
    order = "Can you list the order in which I brought up different aspects of my thesis"
    assert _cues(f"{order} throughout our conversations?").terms == ("thesi",)
    summary = "Give me a comprehensive summary of the migration, so far"
    assert _cues(summary).terms == ("migrat",)


def test_what_is_asked_for_in_other_phrases_may_be_what_is_meant() -> None:
    assert _cues("In which order are the rows of the summary?").terms == ("row", "summari")
    assert _cues("the sort order of the list").terms == ("sort", "order", "list")
    assert _cues("what did we talk about?").terms == ("talk",), "if there is nothing else"
