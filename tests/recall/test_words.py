"""What a text is cut into."""

from __future__ import annotations

import re

import pytest
import Stemmer  # type: ignore[import-not-found,import-untyped,unused-ignore]
from hypothesis import given
from hypothesis import strategies as st

from perdure.recall import words
from perdure.recall.words import LONGEST, MOST_TERMS, sets_rule, tells_time, terms

_is_term = re.compile(r"[\w=:./-]+").fullmatch


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("Tokens were refreshed", ["token", "refresh"]),
        ("on 23.01.2024", ["2024-01-23", "2024-01"]),
        ("Caroline's friends don't know", ["carolin", "friend", "know"]),
        ("O'Brien", ["o", "brien"]),
        ("getUserToken", ["getusertoken", "user", "token"]),
        ("get_user_token", ["get_user_token", "user", "token"]),
        ("HTTPServer", ["httpserver", "http", "server"]),
        ("src/auth/token.py", ["src/auth/token.py", "token.py", "src", "auth", "token", "py"]),
        ("FIN-20", ["fin-20", "fin", "20"]),
        ("v1.2.3", ["v1.2.3", "v1", "2", "3"]),
        ("std::vector", ["std::vector", "std", "vector"]),
        ("ann@example.com", ["ann=example.com", "ann", "exampl", "com"]),
        ("9f86d081884c7d65", ["9f86d081884c7d65"]),
        ("python3", ["python3", "python"]),
        ("OAuth", ["oauth", "auth"]),
        ("e.g. this and/or that", []),
        ("IT and the WHO, not it", ["it", "who"]),
        ("7:30", ["7:30", "7", "30"]),
    ],
)
def test_words_and_names(text: str, expected: list[str]) -> None:
    assert terms(text) == expected


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("naïve café", "naive cafe"),
        ("Müller, Straße", "MULLER strasse"),
        ("résumés", "resume"),
        ("\uff54\uff4f\uff4b\uff45\uff4e", "token"),
        ("Ελληνικά", "ΕΛΛΗΝΙΚΆ"),
        ("tokens", "token"),
        ("went, bought, written", "go buy writes"),
        ("favourite colours, behaviour", "favorite color behaviors"),
        ("organised the initialisation", "organizing initialize"),
    ],
)
def test_the_same_however_it_is_written(one: str, other: str) -> None:
    assert terms(one) == terms(other)


def test_words_that_only_look_like_other_forms_stay_what_they_are() -> None:
    for word in ("hours", "course", "journey", "promise", "raise", "exercise", "noise", "saw"):
        assert terms(word) == [Stemmer.Stemmer("english").stemWord(word)], word


def test_dates_have_a_term_of_their_own() -> None:
    for written in ("May 7, 2023", "7 May 2023", "7th of May, 2023", "2023-05-07", "7 may 2023"):
        assert {"2023-05-07", "2023-05"} <= set(terms(f"It was on {written}."))
    assert "2023-05" in terms("in May 2023")
    assert "may" in terms("in May")
    assert terms("you may go") == ["go"]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("東京都に", ["東京", "京都", "都に"]),
        ("使用Python编写", ["使用", "python", "编写"]),
        ("세계", ["세계"]),
        ("ไทย", ["ไท", "ทย"]),
        ("мы говорили", ["говор"]),
        ("المكتبة", ["مكتب"]),
    ],
)
def test_other_scripts(text: str, expected: list[str]) -> None:
    assert terms(text) == expected


def test_hindi_words_stay_whole() -> None:
    assert len(terms("हिन्दी भाषा")) == 2


@pytest.mark.parametrize("text", ["", " ", "the and of", "\"' -- ()", "€", "\ud800", "\x00"])
def test_nothing_to_find(text: str) -> None:
    assert terms(text) == []


def test_long_words_are_cut_and_told_apart() -> None:
    [one], [other] = terms("a" * 300 + "b"), terms("a" * 300 + "c")
    assert len(one.encode()) <= LONGEST
    assert one != other


def test_a_text_has_so_many_terms_at_most() -> None:
    assert len(terms("word " * 50_000)) == MOST_TERMS


def test_pieces_are_not_remembered_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(words, "_REMEMBERED", 100)
    monkeypatch.setattr(words, "_known", {})
    terms(" ".join(f"w{number}" for number in range(1_000)))
    assert len(words._known) <= 100


@given(st.text(max_size=300))
def test_whatever_is_written(text: str) -> None:
    found = terms(text)
    assert found == terms(text)
    for term in found:
        assert _is_term(term), term
        assert 0 < len(term.encode()) <= LONGEST


def test_texts_that_tell_a_time() -> None:
    assert tells_time("I went yesterday")
    assert tells_time("In May we moved")
    assert not tells_time("I may go")


def test_texts_that_set_a_rule() -> None:
    assert sets_rule("Always use APA style when I ask about references.")
    assert sets_rule("Fine. Never push to main!")
    assert sets_rule("I’d rather work in the mornings")
    assert not sets_rule("I never saw it. It always fails.")
    assert not sets_rule("the preferred way")


@pytest.mark.parametrize("said", ["yes please", "OK, thanks!", "Hey, hello", "And now?"])
def test_what_only_agrees_or_greets_has_no_terms(said: str) -> None:
    assert terms(said) == []
