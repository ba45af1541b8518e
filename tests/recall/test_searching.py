"""Questions to the index, and the order of what comes back."""

from __future__ import annotations

import asyncio
import subprocess
import sys

import pytest

from perdure.recall.places import INDEX, REFERENCES, Spot
from perdure.recall.searching.searcher import SearchResult
from perdure.recall.values import MOST_CANDIDATES
from perdure.search.engine import Withdrawal
from tests.recall.indexed import Letters
from tests.recall.library import (
    MEMORIES,
    NUMBERS,
    OTHER,
    SESSION,
    Library,
    library,
    question,
    scope,
)


async def test_found_by_words_whatever_their_form() -> None:
    async with library() as books:
        await books.put(1, "Refreshing the tokens failed in src/auth/tokenStore.py")
        await books.put(9, "Nothing of that")
        for asked in (
            "refresh token",
            "TOKENS!",
            "tokenStore",
            "token_store.py",
            "src/auth",
            "fail",
        ):
            assert (await books.keys(asked))[0] == "planner/auth#T-1.1", asked


@pytest.mark.parametrize("asked", ["", " ", "the of and", '"', "*", "-- ; drop", "🎉", "zzz"])
async def test_nothing_is_found_by_nothing(asked: str) -> None:
    async with library() as books:
        await books.put(1, "Something was said")
        assert await books.keys(asked) == []


@pytest.mark.parametrize(
    "asked", ["x", '"token" OR (NEAR/3', "token:*", "NOT token", "token AND", "{token}", "^token"]
)
async def test_operators_and_letters_are_words(asked: str) -> None:
    async with library() as books:
        await books.put(1, "The x token")
        assert (await books.keys(asked))[:1] == ["planner/auth#T-1.1"]


async def test_a_question_of_fifty_kilobytes() -> None:
    async with library() as books:
        await books.put(1, "The refresh token of FIN-20")
        await books.put(30, "Lunch")
        text = "what about this and that? " * 2_000 + " FIN-20"
        assert (await asyncio.wait_for(books.keys(text), 10))[0] == "planner/auth#T-1.1"


@pytest.mark.parametrize(
    ("said", "asked"),
    [
        ("我们决定使用数据库", "数据库"),
        ("東京都に行きました", "東京"),
        ("мы обновили токены вчера", "токены"),
        ("हम कल दिल्ली गए", "दिल्ली"),
        ("Wir haben die Schlüssel geändert", "schlüssel"),
        ("هذا مفتاح الخادم", "مفتاح"),
    ],
)
async def test_other_languages(said: str, asked: str) -> None:
    async with library() as books:
        await books.put(1, said)
        await books.put(30, "something else entirely")
        assert (await books.keys(asked))[0] == "planner/auth#T-1.1"


async def test_memories_and_layers_have_keys_and_no_neighbours() -> None:
    async with library() as books:
        await books.put(7, "Rotate tokens hourly", group=MEMORIES)
        await books.put(8, "Lunch is at noon", group=MEMORIES)
        await books.put(2, "How to rotate tokens", group=REFERENCES)
        found = await books.searcher.keyword(question("rotate tokens"), scope())
        assert {(each.kind, each.key) for each in found.candidates} == {
            ("memory", "M-7"),
            ("reference", "2"),
        }


async def test_only_what_the_scope_holds() -> None:
    async with library() as books:
        await books.put(1, "Rotate tokens")
        await books.put(1, "Rotate tokens", group=OTHER)
        await books.put(2, "A neighbour", group=OTHER)
        assert await books.keys("rotate tokens", seen=scope(SESSION)) == ["planner/auth#T-1.1"]
        assert await books.keys("rotate tokens", seen=scope(MEMORIES)) == []


async def test_filters_read_on_until_enough_is_found() -> None:
    async with library() as books:
        for turn in range(1, 600):
            await books.put(turn, "tokens rotate", tags={"branch": "main"})
        await books.put(700, "tokens", "and a lot of other words " * 9, tags={"branch": "fix"})
        await books.put(701, "lunch", tags={"branch": "fix"})
        assert await books.keys("tokens rotate", branch="fix") == [
            "planner/auth#T-700.1",
            "planner/auth#T-701.1",
        ]
        assert await books.keys("tokens rotate", branch="none") == []
        assert await books.keys("tokens rotate", kinds=("memory",)) == []


async def test_so_many_candidates_at_most() -> None:
    async with library() as books:
        for turn in range(1, 400):
            await books.put(turn, f"tokens rotate {turn}")
        assert len(await books.keys("tokens rotate")) <= MOST_CANDIDATES


async def test_rounds_of_a_turn_are_found_apart() -> None:
    async with library() as books:
        await books.put(1, "Please fix the build")
        await books.put(1, "", "I run the linter", "ruff check", round=2)
        await books.put(1, "", "The tests of billing fail", "pytest tests/billing", round=3)
        keys = await books.keys("billing tests")
        assert keys[0] == "planner/auth#T-1.3"


async def test_parts_of_a_round_are_one_candidate() -> None:
    async with library() as books:
        await books.put(1, "How do tokens rotate?")
        await books.put(1, "", "Tokens rotate hourly", part=1)
        found = await books.searcher.keyword(question("tokens rotate"), scope())
        [candidate] = found.candidates
        assert candidate.place == Spot(NUMBERS[SESSION], 1).place
        assert candidate.note.lengths == (2, 3, 0)


async def test_what_was_withdrawn_is_gone() -> None:
    async with library() as books:
        await books.put(1, "Rotate tokens")
        await books.put(2, "Rotate tokens again")
        place = Spot(NUMBERS[SESSION], 2).place
        async with books.store.transaction() as transaction:
            transaction.include(Withdrawal(INDEX.name, place, place))
        assert await books.keys("rotate tokens") == ["planner/auth#T-1.1"]


async def test_by_meaning_what_no_word_finds() -> None:
    async with library(Letters()) as books:
        await books.put(1, "zzzz zzzz zzzz")
        await books.put(30, "quiet lunch")
        found = await books.searcher.keyword(question("zzz zzz zzz zzz"), scope())
        assert found.candidates == ()
        found = await books.searcher.vector(found)
        assert found.candidates[0].key == "planner/auth#T-1.1"
        assert "similar in meaning" in found.candidates[0].why


@pytest.mark.parametrize("asked", ["And now?", "the of and", "?", "Who was it then?"])
async def test_a_question_without_terms_is_left_to_its_meaning(asked: str) -> None:
    async with library(Letters()) as books:
        await books.put(1, "And now?")
        await books.put(30, "lunch")
        found = await _both(books, asked)
        assert found.terms == ()
        assert {each.turn for each in found.candidates} <= {1, 30}
        assert all("similar in meaning" in each.why for each in found.candidates[:1])


async def test_vectors_join_what_words_found() -> None:
    async with library(Letters()) as books:
        await books.put(1, "tokens rotate")
        await books.put(40, "tnokes ratoet")
        by_words = await books.searcher.keyword(question("tokens rotate"), scope())
        found = await books.searcher.vector(by_words)
        assert [each.turn for each in by_words.candidates] == [1]
        assert {each.turn for each in found.candidates} == {1, 40}
        assert found.candidates[0].turn == 1
        assert found.terms == by_words.terms == ("token", "rotat")


async def test_the_name_of_who_speaks_is_not_what_is_meant() -> None:
    letters = Letters()
    async with library(letters) as books:
        await books.put(1, "zaza, how is zaza?", speaker="bob")
        await books.put(40, "lakes", speaker="zaza")
        for asked, meant in (
            ("zaza's lakes", " lakes"),
            ("What of Bob and Zaza’s lakes?", "What of  and  lakes?"),
        ):
            await _both(books, asked)
            assert letters.embedded[-2:] == [asked, meant]
        for asked in ("lakes of Ann", "Zaza", "zazas"):
            await _both(books, asked)
            assert letters.embedded[-1] == asked


async def test_what_has_no_vector_yet_is_not_behind_for_that() -> None:
    letters = Letters()
    async with library(letters) as books:
        for turn in range(1, 30):
            await books.put(turn, f"Lunch was quiet on day {turn}")
        await books.put(1, "OAuth tokens rotate every hour", group=OTHER)
        books.embedder = None
        await books.put(90, "OAuth tokens rotate every hour", group=OTHER)
        found = await _both(books, "When do OAuth tokens rotate?")
    first, second = found.candidates[:2]
    assert {first.turn, second.turn} == {1, 90}
    assert second.score > first.score / 2


async def test_a_model_that_takes_a_while_is_asked_once() -> None:
    letters = Letters()
    letters.is_quick = False
    async with library(letters) as books:
        await books.put(1, "lakes", speaker="zaza")
        await _both(books, "zaza's lakes")
        assert letters.embedded[-1] == "zaza's lakes"


async def test_what_is_ranked_together_is_described_once() -> None:
    async with library(Letters()) as books:
        await books.put(1, "tokens rotate")
        found = await books.searcher.keyword(question("tokens rotate"), scope(), patience=60)
        again = await books.searcher.vector(found)
        assert again is not found
        assert again.candidates is found.candidates


async def test_without_vectors_the_same_comes_back() -> None:
    async with library() as books:
        await books.put(1, "tokens rotate")
        found = await books.searcher.keyword(question("tokens"), scope())
        assert await books.searcher.vector(found) is found


async def test_an_empty_index() -> None:
    async with library(Letters()) as books:
        found = await books.searcher.vector(await books.searcher.keyword(question("x"), scope()))
        assert found.candidates == ()


async def test_the_same_question_has_the_same_answer() -> None:
    async with library(Letters()) as books:
        for turn in range(1, 80):
            await books.put(turn, f"tokens {turn % 7} rotate {turn % 5}")
        answers = {
            tuple(each.key for each in (await _both(books, "tokens 3 rotate")).candidates)
            for _ in range(3)
        }
        assert len(answers) == 1


async def _both(books: Library, asked: str) -> SearchResult:
    return await books.searcher.vector(await books.searcher.keyword(question(asked), scope()))


def test_numpy_is_not_loaded_before_something_is_asked() -> None:
    code = (
        "import sys; import perdure.recall.searching.searcher, perdure.recall.words as words;"
        "words.terms('a few tokens'); sys.exit('numpy' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


async def test_rounds_of_a_long_turn_are_told_apart() -> None:
    async with library() as books:
        await books.put(1, "Work through the list until everything is done.")
        for round in range(2, 61):
            await books.put(1, tools=f"pytest ran, {round} passed", round=round)
        await books.put(1, answered="The parser drops commas.", round=30, part=1)
        await books.put(1, answered="Fixed: fields are quoted now.", round=31, part=1)
        await books.put(1, answered="The parser of dates is fine.", round=50, part=1)
        await books.put(2, "Thanks.")
        found = await books.keys("How were the commas of the parser fixed?")
        assert set(found[:2]) == {"planner/auth#T-1.30", "planner/auth#T-1.31"}


async def test_all_rounds_of_a_long_turn_may_be_found() -> None:
    async with library() as books:
        for round in range(1, 41):
            await books.put(1, answered="a zebra" if round % 4 == 0 else "a parrot", round=round)
        found = await books.keys("zebra")
        assert {f"planner/auth#T-1.{round}" for round in range(4, 41, 4)} <= set(found)
