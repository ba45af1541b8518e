"""The deadline: whatever is slow, the caller goes on in time, with what has arrived."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Callable
from typing import Any

import pytest

from perdure.config import RecallConfig
from perdure.core.errors import ProviderDown
from perdure.recall.background_tasks import Ahead, Underway
from perdure.recall.values import Recalled
from perdure.testing import ReceivedRequest, ScriptedAnswer
from tests.gateway.opened import assert_nothing_left, outcomes_of
from tests.own_time import in_own_time
from tests.patience import patient
from tests.recall.asked import Library, Words, candidate, models, pipeline, question, words_of

SOME = [candidate(number, 0.9 - number / 20) for number in range(1, 9)]
DEADLINE = 0.25
#: Seconds that nobody waits for.
LONG = 3_600.0


def slow(step: str) -> tuple[Any, Words]:
    """A search and texts of which one step sleeps for an hour."""
    delays = {step: LONG}
    words = words_of(SOME)
    words.delays = delays
    return Library(SOME, SOME, delays=delays), words


async def timed(recall: Any, **how: Any) -> tuple[Recalled, float]:
    time = asyncio.get_running_loop().time
    began = time()
    found = await recall.recall(question(), **how)
    return found, time() - began


@pytest.mark.parametrize(
    ("step", "stage", "name", "takes"),
    [
        ("keyword", "none", "keyword", DEADLINE),
        ("vector", "keyword", "vector", 0.05),
        ("full", "vector", "texts", DEADLINE),
        ("tiny", "vector", "judge", DEADLINE - 0.015),  # kept to put the answer together
    ],
)
@in_own_time
async def test_a_slow_step_costs_the_deadline_and_no_more(
    step: str, stage: str, name: str, takes: float
) -> None:
    config = RecallConfig(deadline=DEADLINE, vectors=0.05)
    recall = pipeline(*slow(step), config=config, hops=False)
    found, took = await timed(recall)
    assert took == pytest.approx(takes)
    assert found.stage == stage
    assert any(each.name == name and each.failed for each in found.steps)
    assert bool(found.hits) == (step != "keyword")
    await recall.close()
    assert not len(recall._underway)


@in_own_time
async def test_what_was_found_but_not_read_is_a_reminder() -> None:
    recall = pipeline(*slow("full"), config=RecallConfig(deadline=DEADLINE), hops=False)
    for judged in (True, False):
        found, _ = await timed(recall, judged=judged)
        assert found.hits[0].key == "T-1.1"
        assert not any(hit.full or hit.text for hit in found.hits)
    await recall.close()


@in_own_time
async def test_a_deadline_of_ones_own() -> None:
    recall = pipeline(*slow("keyword"))
    for deadline in (0.05, 0):
        found, took = await timed(recall, deadline=deadline)
        assert found.stage == "none"
        assert took == pytest.approx(deadline)
    await recall.close()


def sleeping(
    *, filters: float = 0.0, judge: float = 0.0
) -> Callable[[ReceivedRequest], ScriptedAnswer]:
    answer = json.dumps({"full": [1], "ticklers": [], "layers": []})

    def script(request: ReceivedRequest) -> ScriptedAnswer:
        if request.model == "fast":
            return ScriptedAnswer(answer, delay=judge)
        return ScriptedAnswer("no", delay=filters)

    return script


@pytest.mark.parametrize(
    ("naps", "limits", "stage"),
    [
        # Who is awake has time enough on any machine; a judge is waited for until the deadline.
        ({"filters": LONG, "judge": LONG}, {"deadline": 1.0, "filters": 0.5}, "vector"),
        ({"judge": LONG}, {"deadline": 5.0, "filters": 5.0, "judge": 0.1}, "filters"),
        ({"filters": LONG}, {"filters": 0.5}, "judge"),
        ({}, {}, "judge"),
    ],
)
async def test_models_that_sleep(
    naps: dict[str, float], limits: dict[str, float], stage: str
) -> None:
    async with models(sleeping(**naps)) as (gateway, model):
        recall = pipeline(Library(SOME, SOME), words_of(SOME), gateway, config=patient(**limits))
        found = await recall.recall(question())
        assert found.stage == stage
        async with asyncio.timeout(60):  # no call goes on behind the caller's back
            while len(recall._underway):  # noqa: ASYNC110 (nobody tells)
                await asyncio.sleep(0.01)
        assert_nothing_left(gateway)
        # Each is on the books once; also one that ended before it reached the server.
        noted = len(await outcomes_of(gateway))
        assert len(model.requests) <= noted <= len(SOME) + 1
        await recall.close()


async def test_the_judge_has_time_although_the_filters_sleep() -> None:
    config = patient(deadline=61.0, filters=LONG, judge=60.0)
    async with models(sleeping(filters=LONG)) as (gateway, _):
        recall = pipeline(Library(SOME, SOME), words_of(SOME), gateway, config=config)
        found = await recall.recall(question())
        await recall.close()
    assert found.stage == "judge"


async def test_a_thread_that_is_busy_is_left_alone() -> None:
    """As one that loads a model: nobody can end it."""
    release = threading.Event()
    loaded = list[bool]()

    def load() -> None:
        loaded.append(release.wait(100))

    class Loading(Library):
        async def vector(self, found: Any, /) -> Any:
            await asyncio.to_thread(load)
            return found

    recall = pipeline(Loading(SOME), words_of(SOME), config=patient(vectors=0.05))
    found = await recall.recall(question())
    assert (found.stage, loaded) == ("keyword", [])
    assert found.hits
    release.set()
    await recall.close()


async def test_work_that_will_not_end_is_not_waited_for() -> None:
    underway, release = Underway(), asyncio.Event()

    async def stubborn() -> None:
        while not release.is_set():
            try:
                await release.wait()
            except asyncio.CancelledError:
                continue

    with pytest.raises(TimeoutError):
        await underway.within(stubborn(), 0.02)
    assert len(underway) == 1
    release.set()
    await underway.close()
    assert not len(underway)


async def test_what_fails_when_nobody_waits_is_no_trouble() -> None:
    underway = Underway()

    async def fails() -> None:
        try:
            await asyncio.sleep(10)
        finally:
            raise OSError("too late")

    with pytest.raises(TimeoutError):
        await underway.within(fails(), 0.01)
    await underway.close()


# Ahead ------------------------------------------------------------------------------------------


class Slowly:
    """An embedder that counts."""

    name = "slow"
    is_quick = False

    def __init__(self) -> None:
        self.asked: list[list[str]] = []
        self.ready = asyncio.Event()

    async def embed(self, texts: Any) -> list[bytes]:
        self.asked.append(list(texts))
        await self.ready.wait()
        return [text.encode() for text in texts]


async def test_a_question_is_embedded_before_it_is_asked_for() -> None:
    slowly = Slowly()
    ahead = Ahead(slowly)
    ahead.expect("one")
    ahead.expect("one")
    await asyncio.sleep(0)
    first = asyncio.create_task(ahead.embed(["one"]))
    await asyncio.sleep(0)
    first.cancel()  # the vector leg was late
    with pytest.raises(asyncio.CancelledError):
        await first
    again = asyncio.create_task(ahead.embed(["one"]))
    await asyncio.sleep(0)
    slowly.ready.set()
    assert await again == [b"one"]
    assert await ahead.embed(["one"]) == [b"one"]
    assert slowly.asked == [["one"]], "not twice"
    assert await ahead.embed(["two", "three"]) == [b"two", b"three"]
    assert ahead.name == "slow"
    await ahead.close()


async def test_what_could_not_be_embedded_is_tried_again() -> None:
    class Failing(Slowly):
        async def embed(self, texts: Any) -> list[bytes]:
            if not self.asked:
                self.asked.append(list(texts))
                raise ProviderDown("The server is away.")
            return await super().embed(texts)

    failing = Failing()
    failing.ready.set()
    ahead = Ahead(failing)
    ahead.expect("one")
    with pytest.raises(ProviderDown):
        await ahead.embed(["one"])
    assert await ahead.embed(["one"]) == [b"one"]
    for number in range(200):
        ahead.expect(str(number))
    assert len(ahead._begun) <= 64
    await ahead.close()


async def test_the_pipeline_says_what_will_be_embedded() -> None:
    expected = list[str]()
    recall = pipeline(Library(SOME), words_of(SOME), expect=expected.append)
    await recall.recall(question("When?"))
    assert expected == ["When?"]
