"""A second hop: what the first hits mention is searched for, and stands behind them."""

from __future__ import annotations

from perdure.recall.steps import hops
from perdure.recall.words import terms
from tests.recall.asked import SESSION, Library, Words, candidate, pipeline, question

FIRST = [candidate(number, 0.8 - number / 50) for number in range(1, 9)]
FAR = candidate(90, 0.9)
TEXTS = {each.place: f"number {each.turn}" for each in FIRST} | {
    FIRST[0].place: "Ann wrote that her sister Vera left, with src/auth/login.py open.",
    FAR.place: "Vera moved to Lisbon.",
}


def test_names_that_the_question_does_not_have() -> None:
    asked = terms("Where did Ann's sister move?")
    text = "Yesterday I met Ann, and her sister Vera. She broke token_cache and getUserToken."
    assert hops.further(asked, [text]) == ("Vera", "token_cache", "getUserToken")


def test_what_most_hits_mention_comes_first() -> None:
    texts = ["It was Paul, they say.", "We saw Vera there.", "I like Vera."]
    assert hops.further((), texts)[0] == "Vera"
    assert hops.further((), ["nothing here", ""]) == ()


async def test_a_second_hop_adds_behind_the_first() -> None:
    library = Library(FIRST, hopped=[FAR, FIRST[6]])
    found = await pipeline(library, Words(TEXTS)).recall(question(limit=20))
    assert library.also == [("Vera", "src/auth/login.py")]
    keys = [hit.key for hit in found.hits]
    assert keys[:5] == ["T-1.1", "T-2.1", "T-3.1", "T-4.1", "T-5.1"], "as without it"
    assert "T-90.1" in keys
    assert len(keys) == len(set(keys))
    (far,) = [hit for hit in found.hits if hit.key == "T-90.1"]
    assert far.score == 0.39, "half of the best that the question itself found"
    assert "by way of Vera" in far.why


async def test_who_was_found_first_keeps_its_score_also_behind_the_limit() -> None:
    library = Library(FIRST, hopped=[candidate(7, 0.99), candidate(8, 0.98)])
    recall = pipeline(library, Words(TEXTS))
    found = await recall.recall(question(limit=7))
    assert library.also
    assert [hit.key for hit in found.hits] == [f"T-{number}.1" for number in range(1, 8)]
    assert not [hit for hit in found.hits if "by way of" in hit.why]
    assert found.hits[-1].score == round(FIRST[6].score, 4)


async def test_it_can_be_switched_off() -> None:
    library = Library(FIRST, hopped=[FAR])
    recall = pipeline(library, Words(TEXTS), hops=False)
    found = await recall.recall(question(limit=20))
    assert not library.also
    assert f"{SESSION}#T-90.1" not in [hit.key for hit in found.hits]
    assert "hops" not in [step.name for step in found.steps]


async def test_who_searches_gets_what_was_asked_for_and_no_more() -> None:
    library = Library(FIRST, hopped=[FAR])
    found = await pipeline(library, Words(TEXTS)).recall(question(limit=20), judged=False)
    assert not library.also
    assert "hops" not in [step.name for step in found.steps]
