"""The steps of recall: what each adds, and what is left when one fails."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any, NoReturn

import pytest

from perdure.config import RecallConfig
from perdure.core.errors import InvalidConfig, InvalidInput, Unavailable
from perdure.core.messages import user
from perdure.recall.places import Spot
from perdure.recall.steps.key_lookup import Named
from perdure.recall.values import Candidate, Filters, Note, Question, Recalled
from tests.own_time import in_own_time
from tests.patience import patient
from tests.recall.asked import (
    SESSION,
    Library,
    Words,
    candidate,
    models,
    pipeline,
    question,
    says,
    words_of,
)

SOME = [candidate(number, 0.9 - number / 20) for number in range(1, 9)]


def keys(found: Recalled, *, full: bool | None = None) -> list[str]:
    return [hit.key for hit in found.hits if full is None or hit.full is full]


def step(found: Recalled, name: str) -> str:
    """Why a step failed; empty if it did not."""
    (there,) = [each for each in found.steps if each.name == name]
    return there.failed


async def test_a_search_gives_what_was_found_best_first() -> None:
    recall = pipeline(Library(SOME, SOME[::-1]), words_of(SOME))
    found = await recall.recall(question(limit=3), judged=False)
    assert found.stage == "vector"
    assert keys(found) == ["T-8.1", "T-7.1", "T-6.1"]
    assert found.hits[0].text == f"what {SESSION}#T-8.1 says"
    assert all(hit.level == "R" and hit.full and hit.time for hit in found.hits)
    assert [each.name for each in found.steps] == ["keyword", "vector", "texts"]
    assert found.took_ms >= sum(each.took_ms for each in found.steps) * 0.9


async def test_without_vectors_words_are_enough() -> None:
    found = await pipeline(Library(SOME), words_of(SOME)).recall(question(), judged=False)
    assert found.stage == "keyword"
    assert step(found, "vector")


@in_own_time
async def test_vectors_that_are_late_do_not_count() -> None:
    library = Library(SOME, SOME[::-1], delays={"vector": 5})
    config = RecallConfig(vectors=0.02, deadline=5.0)
    found = await pipeline(library, words_of(SOME), config=config).recall(question(), judged=False)
    assert (found.stage, step(found, "vector")) == ("keyword", "deadline")
    assert keys(found)[0] == "T-1.1"
    assert found.took_ms == pytest.approx(20)


async def test_meaning_can_be_left_out() -> None:
    library = Library(SOME, SOME[::-1])
    config = patient(vectors=0)
    found = await pipeline(library, words_of(SOME), config=config).recall(question(), judged=False)
    assert (found.stage, step(found, "vector")) == ("keyword", "recall.vectors is 0")
    assert keys(found)[0] == "T-1.1"


@pytest.mark.parametrize("text", ["", "  \n "])
async def test_nothing_is_found_for_nothing(text: str) -> None:
    assert await pipeline(Library(SOME), words_of(SOME)).recall(question(text)) == Recalled()


async def test_only_stop_words_find_nothing_by_words() -> None:
    found = await pipeline(Library([], terms=()), words_of(SOME)).recall(question("what is it"))
    assert (found.stage, found.hits) == ("none", ())
    found = await pipeline(Library([], SOME, terms=()), words_of(SOME)).recall(question("is it"))
    assert found.stage == "vector"
    assert found.hits


async def test_an_empty_bank_has_nothing_to_say() -> None:
    found = await pipeline(Library([]), words_of([])).recall(question())
    assert (found.stage, found.hits) == ("keyword", ())


async def test_what_stands_in_the_window_is_not_repeated() -> None:
    shown = frozenset({"T-1.1", f"{SESSION}#T-2.1", "T-3", f"{SESSION}#T-4"})
    recall = pipeline(Library(SOME), words_of(SOME))
    for judged in (True, False):
        found = await recall.recall(question(), shown=shown, judged=judged)
        assert sorted(keys(found)) == ["T-5.1", "T-6.1", "T-7.1", "T-8.1"]


async def test_what_is_gone_is_not_shown() -> None:
    texts = words_of(SOME[3:])
    for judged in (True, False):
        found = await pipeline(Library(SOME), texts).recall(question(), judged=judged)
        assert "T-1.1" not in keys(found)
        assert "T-4.1" in keys(found)


@in_own_time
async def test_what_a_question_names_is_not_told_of_before_it_was_read() -> None:
    there, gone = (candidate(turn, 1.0, named=True) for turn in (50, 51))

    async def named(_: Question, __: object) -> Named:
        return Named((there, gone))

    for judged in (True, False):
        texts = words_of([*SOME, there])
        recall = pipeline(Library(SOME), texts, named=named)
        found = await recall.recall(question("T-50 and T-51"), judged=judged)
        assert "T-50.1" in keys(found)
        assert "T-51.1" not in keys(found)

        texts.delays = {"full": 5}
        found = await recall.recall(question("T-50 and T-51"), judged=judged, deadline=0.2)
        assert found.hits
        assert not {"T-50.1", "T-51.1"} & set(keys(found))


async def test_without_models_an_algorithm_filters_and_judges() -> None:
    weak = candidate(50, 0.001)
    layer = candidate(1, 0.2, kind="reference")
    called_for = candidate(2, 0.05, kind="reference")
    memory = candidate(7, 0.4, kind="memory")
    all_of_them = [*SOME, memory, layer, weak]
    texts = words_of([*all_of_them, called_for])
    texts.texts |= {SOME[2].place: "long " * 4_000}

    async def triggered(_: Question) -> Sequence[Candidate]:
        return [called_for]

    recall = pipeline(Library(all_of_them), texts, triggered=triggered)
    found = await recall.recall(question(limit=20))
    assert found.stage == "keyword"
    assert "no model" in step(found, "filters")
    assert "no model" in step(found, "judge")
    full, ticklers = keys(found, full=True), keys(found, full=False)
    assert "T-50.1" not in keys(found), "it is far worse than the best"
    assert "layer-2" in full, "a word of the prompt calls for it"
    assert ticklers == ["T-3.1", "layer-1"], "too long to be shown, too weak to be loaded"
    assert {"T-1.1", "T-8.1", "M-7"} <= set(full)
    (first, _) = [hit for hit in found.hits if not hit.full]
    assert first.text == f"gist of {SESSION}#T-3.1"


async def test_the_caps_hold() -> None:
    many = [candidate(number, 0.9 - number / 1_000) for number in range(1, 101)]
    texts = Words({each.place: "word " * 80 for each in many})  # 100 tokens each
    config = patient(full_tokens=450, tickler_tokens=100, pointers=20)
    found = await pipeline(Library(many), texts, config=config).recall(question(limit=24))
    assert sum(hit.tokens for hit in found.hits if hit.full) <= 450
    assert (len(keys(found, full=True)), len(keys(found, full=False))) == (4, 3)
    config = patient(pointers=2)
    found = await pipeline(Library(many), texts, config=config).recall(question(limit=40))
    assert len(keys(found, full=False)) == 2
    found = await pipeline(Library(many), texts).recall(question(limit=5))
    assert len(found.hits) == 5


async def test_ten_thousand_candidates_are_cut() -> None:
    many = [candidate(number, 0.5) for number in range(1, 10_001)]
    async with models(says(judged={"full": list(range(1, 10_001))})) as (gateway, model):
        recall = pipeline(Library(many), words_of(many), gateway)
        found = await recall.recall(question(limit=24))
        await recall.close()
    assert len([hit for hit in found.hits if not hit.neighbour]) <= 24
    assert len(model.requests) <= RecallConfig().swarm + 1


async def test_swarm_and_judge_change_what_is_shown() -> None:
    alone = await pipeline(Library(SOME), words_of(SOME)).recall(question())
    script = says(useless=lambda text: "T-5.1" in text, judged={"full": [6], "ticklers": [1, 2]})
    async with models(script) as (gateway, model):
        found = await pipeline(Library(SOME), words_of(SOME), gateway).recall(question())
    assert found.stage == "judge"
    # T-5 was dropped by its filter, so the judge's sixth is T-7.
    assert keys(found, full=True) == ["T-7.1"]
    assert keys(found, full=False) == ["T-1.1", "T-2.1"]
    assert "T-5.1" in keys(alone, full=True)
    judged = model.requests[-1]
    assert judged.model == "fast"
    assert "T-5.1" not in judged.prompt
    assert "The user wanted tokens to rotate." in judged.prompt


async def test_filters_alone() -> None:
    script = says(useless=lambda text: "T-5.1" in text)
    async with models(script, purposes=["filter"]) as (gateway, _):
        found = await pipeline(Library(SOME), words_of(SOME), gateway).recall(question())
    assert found.stage == "filters"
    assert "T-5.1" not in keys(found)
    assert "T-6.1" in keys(found, full=True)


async def test_a_judge_alone_may_leave_everything_out() -> None:
    async with models(says(judged={}), purposes=["judge"]) as (gateway, _):
        found = await pipeline(Library(SOME), words_of(SOME), gateway).recall(question())
    assert (found.stage, found.hits) == ("judge", ())


async def test_a_search_asks_no_model() -> None:
    async with models(says(judged={})) as (gateway, model):
        recall = pipeline(Library(SOME), words_of(SOME), gateway)
        found = await recall.recall(question(), judged=False)
    assert found.hits
    assert not model.requests


async def test_layers_are_loaded_because_a_judge_says_so() -> None:
    layer = candidate(1, 0.05, kind="reference")
    every = [*SOME, layer]
    async with models(says(judged={"layers": [9, 1]}), purposes=["judge"]) as (gateway, _):
        found = await pipeline(Library(every), words_of(every), gateway).recall(question())
    assert keys(found, full=True) == ["layer-1"], "a turn is no layer"


async def test_neighbours_come_along_with_a_prompt_and_do_not_count() -> None:
    asks = candidate(4, 0.9, note=Note(lengths=(9, 0, 0), asks=True))
    short = candidate(9, 0.8, note=Note(lengths=(2, 0, 0)))
    late = candidate(20, 0.7, place=Spot(1, 20, 7).place, key=f"{SESSION}#T-20.7", round=7)
    hits = [asks, short, late]
    beside = [candidate(number) for number in (5, 8, 20)]
    recall = pipeline(Library(hits), words_of([*hits, *beside]))
    found = await recall.recall(question(limit=3), judged=False)
    assert keys(found) == ["T-4.1", "T-9.1", "T-20.7"], "who searches gets what was found"
    found = await recall.recall(question(limit=3), prompt=[user("How do tokens rotate?")])
    assert [(hit.key, hit.neighbour) for hit in found.hits] == [
        ("T-4.1", False),
        ("T-5.1", True),
        ("T-9.1", False),
        ("T-8.1", True),
        ("T-20.7", False),
        ("T-20.1", True),
    ]
    assert found.hits[1].why == "the answer to T-4.1"
    assert keys(found)[:2] == ["T-4.1", "T-5.1"], "behind what it came along with"
    for limit, expected in {
        1: ["T-4.1"],
        3: ["T-4.1", "T-9.1", "T-20.7"],
        5: ["T-4.1", "T-5.1", "T-9.1", "T-8.1", "T-20.7"],
    }.items():
        found = await recall.recall(question(limit=limit))
        assert keys(found) == expected, "without a prompt they take the places that are left"


async def test_a_neighbour_out_of_scope_stays_away() -> None:
    asks = candidate(4, 0.9, note=Note(lengths=(9, 0, 0), asks=True))
    recall = pipeline(Library([asks]), words_of([asks, candidate(5)]))

    class Narrow:
        def allows(self, place: int, /) -> bool:
            return place == asks.place

    async def narrow(_: Question) -> Narrow:
        return Narrow()

    recall._scope_of = narrow
    found = await recall.recall(question(), judged=False)
    assert keys(found) == ["T-4.1"]


# What goes wrong --------------------------------------------------------------------------------


class Broken(Library):
    async def keyword(
        self, question: Question, scope: Any, also: Sequence[str] = (), *, patience: float = 0.0
    ) -> NoReturn:
        raise self.error

    error: Exception = Unavailable("The index is gone.")


async def scan(_: Question) -> Sequence[Candidate]:
    return SOME[:2]


async def test_an_index_that_fails_is_done_without() -> None:
    found = await pipeline(Broken([]), words_of(SOME), scan=scan).recall(question())
    assert found.stage == "keyword"
    assert keys(found) == ["T-1.1", "T-2.1"]
    assert [each.failed for each in found.steps[:2]] == ["The index is gone.", ""]
    found = await pipeline(Broken([]), words_of(SOME)).recall(question())
    assert (found.stage, found.hits) == ("none", ())


async def test_a_session_that_is_not_covered_is_read() -> None:
    recall = pipeline(Broken([]), words_of(SOME), scan=scan, covers=lambda _: False)
    found = await recall.recall(question(), judged=False)
    assert (found.stage, keys(found)) == ("keyword", ["T-1.1", "T-2.1"])


async def test_a_question_that_cannot_be_meant_is_refused() -> None:
    library = Broken([])
    library.error = InvalidInput("There is no such role.")
    with pytest.raises(InvalidInput, match="no such role"):
        await pipeline(library, words_of(SOME), scan=scan).recall(question())


async def test_what_filters_would_not_let_through_does_not_come_along() -> None:
    asks = candidate(4, 0.9, note=Note(lengths=(9, 0, 0), asks=True))
    recall = pipeline(Library([asks]), words_of([asks, candidate(5)]))
    found = await recall.recall(question(filters=Filters(roles=("user",))), judged=False)
    assert keys(found) == ["T-4.1"]


async def test_a_gateway_that_cannot_be_used_is_done_without() -> None:
    def broken() -> Any:
        raise InvalidConfig("There is no such provider.")

    recall = pipeline(Library(SOME), words_of(SOME))
    recall._gateway = broken
    found = await recall.recall(question())
    assert len(found.hits) == len(SOME)


async def test_whoever_is_cancelled_leaves_nothing_behind() -> None:
    recall = pipeline(Library(SOME, delays={"keyword": 60}), words_of(SOME))
    asking = asyncio.create_task(recall.recall(question(), deadline=60))
    await asyncio.sleep(0.01)
    assert len(recall._underway) == 1
    asking.cancel()
    with pytest.raises(asyncio.CancelledError):
        await asking
    await recall.close()
    assert not len(recall._underway)
