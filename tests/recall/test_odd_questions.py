"""Questions that are not neat: pasted logs, repetitions, emoji, single letters, operators."""

from __future__ import annotations

import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from perdure.recall.searching.cues import LOOKED_FOR, MOST_TERMS, cues, trim_query
from perdure.recall.steps.hit_texts import as_it_stands
from perdure.recall.words import terms
from perdure.sessions.session import Session
from tests.conftest import DURABLE
from tests.recall.library import library, question, scope
from tests.recall.tied import bank_with, remember, talk

_SAID = (
    "Why do logins fail after an hour? The refresh token is not rotated.",
    "The invoice export crashes with a UnicodeDecodeError in exporter.py.",
    "We moved the staging database to port 5433.",
    "The release is done 🎉🚀",
    "Vitamin C and plan B: that is all.",
    "The kernel says that nvme0n1 has I/O errors.",
)
_NO_WORDS = "The question has no word that something could be found by."
_DO = "connect accept worker thread pool request handler queue flush cache commit retry socket"


@asynccontextmanager
async def _talked(url: str = "memory://") -> AsyncIterator[Session]:
    async with bank_with(url, deadline=30.0, vectors=20.0) as bank:
        session = await bank.session("planner/me")
        for said in _SAID:
            await remember(session, said)
        await talk(session, 20)
        await remember(session, "A worker thread of the pool takes a request from the queue.")
        await bank.settle()
        yield session


def _log(lines: int, line: str) -> str:
    """A long log, with this line in the middle of it."""
    chance = random.Random(lines)
    found = [
        f"2026-11-16T10:{at // 60 % 60:02}:{at % 60:02}.123Z INFO [worker-{chance.randrange(64)}]"
        f" {' '.join(chance.choices(_DO.split(), k=5))} id={chance.getrandbits(64):016x}"
        for at in range(lines)
    ]
    return "\n".join([*found[: lines // 2], line, *found[lines // 2 :]])


_ASKS = "Why does the invoice export crash with a UnicodeDecodeError?"
_LONG = {
    "a sentence, 200 times": (200 * "Why do logins fail after an hour? ", 1),
    "a line, 200 times": (200 * "Why do logins fail after an hour?\n", 1),
    "a word, 5000 times": (5_000 * "logins ", 1),
    "an error in a log": (_log(400, "ERROR exporter.py: UnicodeDecodeError in the export"), 2),
    "a log, and a question": (f"{_log(400, 'INFO')}\n{_ASKS}", 2),
    "a question, and a log": (f"{_ASKS}\n{_log(400, 'INFO')}", 2),
    "lines of one kind": (
        "\n".join(f"[{at}.25] I/O error, dev nvme0n1, sector {7 * at}" for at in range(900)),
        6,
    ),
}


@pytest.mark.parametrize("name", _LONG)
async def test_a_long_question_finds_what_is_there(name: str) -> None:
    text, turn = _LONG[name]
    async with _talked() as session:
        found = await session.recall(text, deadline=30)
        assert [hit.turn for hit in found.hits[:1]] == [f"T-{turn}.1"]


@pytest.mark.parametrize("store_url", DURABLE, indirect=True)
async def test_so_it_does_wherever_it_is_stored(store_url: str) -> None:
    async with _talked(store_url) as session:
        unheard = " ".join(
            f"thing{at} blorf{at:016x} unheard{'abcdef'[at % 6]}" for at in range(90)
        )
        found = await session.recall(f"{_ASKS} {unheard}", deadline=30)
        assert [hit.turn for hit in found.hits[:1]] == ["T-2.1"]
        await remember(session, "Wir haben die Kündigungsfristen im Vertrag geändert.")
        found = await session.recall("Welche Kündigungsfrist haben die Verträge?", deadline=30)
        assert "Kündigungsfristen" in found.hits[0].text
        assert "‘Kündigungsfristen’" in found.hits[0].why  # noqa: RUF001


def test_no_half_words_are_looked_for() -> None:
    text = 2_000 * "logins fail "
    assert set(trim_query(text).split()) == {"logins", "fail"}
    assert cues(text, 0).terms == ("login", "fail")


def test_lines_that_differ_in_numbers_count_once() -> None:
    assert (
        trim_query("\n".join(f"took {at} ms, id {at:08x}" for at in range(9_000))).count("\n") < 9
    )


async def test_of_a_long_question_the_terms_count_that_are_there() -> None:
    async with library() as books:
        await books.put(1, "the zebra quagga gateway")
        unheard = " ".join(f"thing{at} blorf{at:016x}" for at in range(300))
        found = await books.searcher.keyword(question(f"{unheard} zebra gateway"), scope())
        assert set(found.terms) == {"zebra", "gateway"}
        assert found.candidates[0].turn == 1
        asked = cues(f"{unheard} zebra gateway", 0)
        assert MOST_TERMS < len(asked.terms) <= LOOKED_FOR
        alone = await books.searcher.keyword(question("zebra gateway"), scope())
        assert found.candidates[0].score == alone.candidates[0].score


def test_a_time_with_seconds_is_not_asked_for() -> None:
    assert cues("2026-11-16T10:00:00Z INFO started", 0).times == ()
    assert cues("2026-11-16 10:00:00 started", 0).times == ()
    [day] = cues("What happened on 2026-11-16 at 10:00?", 0).times
    assert day.name == "on 16 November 2026"


@pytest.mark.parametrize(
    ("query", "turn"),
    [("🚀", 4), ("🎉🎉", 4), ("C", 5), ("c", 5), ("5433", 3), ("token AND logins", 1)],
)
async def test_little_is_asked(query: str, turn: int) -> None:
    async with _talked() as session:
        found = await session.recall(query, deadline=30)
        assert [hit.turn for hit in found.hits[:1]] == [f"T-{turn}.1"]
        assert found.notes == ()


@pytest.mark.parametrize(
    "query", ["the", "what was it", "a", "?", '"', "€", "AND OR", "Wie ist es"]
)
async def test_a_question_without_a_word_is_told_so(query: str) -> None:
    async with _talked() as session:
        found = await session.recall(query, deadline=30)
        assert found.hits == ()
        assert [note.startswith(_NO_WORDS) for note in found.notes] == [True]


def test_an_emoji_is_meant_only_if_it_stands_alone() -> None:
    assert terms("done 🎉🚀🎉") == ["done", "e-1f389", "e-1f680"]
    assert cues("🎉", 0).terms == ("e-1f389",)
    assert cues("is it done 🎉", 0).terms == ("done",)


@pytest.mark.parametrize("query", ["token AND login", "(token OR login)", "token NOT login"])
def test_operators_are_no_words(query: str) -> None:
    assert cues(query, 0).terms == ("token", "login")


@pytest.mark.parametrize(
    ("asked", "stands"),
    [
        ("migrating", "migration"),
        ("token", "Tokens"),
        ("retry", "retries"),
        ("datei", "Dateien"),
        ("mietvertrag", "Mietverträge"),
        ("паролями", "Пароли"),
        ("rhubarb", "rhubarb"),
        ("auth/x.py", "auth/x.py"),
        ("migration", "migration"),
        ("form", "form"),  # not "information"
    ],
)
def test_a_reason_names_words_as_they_stand_in_the_text(asked: str, stands: str) -> None:
    text = "The migration of Tokens, retries, information. Die Dateien, Mietverträge. Пароли тоже."
    why = f"‘{asked}’ in its own words · similar in meaning"  # noqa: RUF001
    assert as_it_stands(why, text) == why.replace(asked, stands)


async def test_a_hit_says_what_stands_there() -> None:
    async with _talked() as session:
        [hit, *_] = (await session.recall("exporting invoices", deadline=30)).hits
        assert "‘export’" in hit.why  # noqa: RUF001
        assert "‘invoice’" in hit.why  # noqa: RUF001


def test_a_number_of_very_many_digits_is_read_once() -> None:
    # Read again from each of its digits, it would take minutes.
    number = "8" * 90_000 + "th"
    assert trim_query(f"what is\n{number}\nfor?").split() == ["what", "is", "for?"]
