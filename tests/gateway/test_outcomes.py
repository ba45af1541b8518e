"""Outcomes: noted without waiting, written soon, added up in the database."""

from __future__ import annotations

import asyncio
import logging
import random
from collections import defaultdict
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import msgspec
import pytest

from perdure.core.clock import from_datetime, new_id
from perdure.core.errors import InvalidInput, Unavailable
from perdure.core.messages import Message, Text, ToolCall, Usage
from perdure.gateway.calls import Finish, ModelAnswer, Request, Shape, Tool
from perdure.gateway.outcomes import (
    GROUPS,
    CostRow,
    Outcome,
    OutcomeRecorder,
    cost_of,
    forget,
    summary,
)
from perdure.gateway.quality import follows, heuristic
from perdure.jobs import Runner
from perdure.storage.middleware import Call, Commit, Handler
from perdure.storage.registry import adapter_for
from perdure.storage.store import Store
from perdure.testing import ManualClock
from perdure.wire.chat.reading import read_response as read_chat
from perdure.wire.responses.reading import read_response as read_responses

START = datetime(2026, 7, 1, tzinfo=UTC)


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock(START + timedelta(days=40))


def outcome(at: datetime = START, **fields: Any) -> Outcome:
    plain: dict[str, Any] = {
        "purpose": "chat",
        "provider": "openai",
        "model": "gpt-5",
        "success": True,
    }
    return Outcome(id=new_id(), started=from_datetime(at), **(plain | fields))


class Away:
    """Middleware that can make writing fail."""

    def __init__(self) -> None:
        self.failing = False
        self.commits = 0

    async def __call__(self, call: Call, proceed: Handler) -> Any:
        if isinstance(call, Commit):
            self.commits += 1
            if self.failing:
                raise Unavailable("The store is away.")
        return await proceed(call)

    async def several(self) -> bool:
        """Whether writing was tried again and again."""
        return self.commits > 3


async def eventually(check: Callable[[], Awaitable[bool]], seconds: float = 10) -> None:
    """Wait for what others bring about. Fails if it takes longer."""
    async with asyncio.timeout(seconds):
        while not await check():  # noqa: ASYNC110  # nobody tells us
            await asyncio.sleep(0.002)


@pytest.fixture
def away() -> Away:
    return Away()


@pytest.fixture
async def frail(away: Away, clock: ManualClock) -> Store:
    """A store in memory that can be made to fail."""
    store = Store(adapter_for("memory://", clock), middleware=[away], clock=clock)
    await store.open()
    return store


# Noting -----------------------------------------------------------------------------------------


async def test_noted_now_and_written_soon(store: Store) -> None:
    async with Runner(store) as jobs:
        recorder = OutcomeRecorder(store, jobs)
        noted = outcome(latency=1.5, cost=12, task="review", complexity="simple", fallback=2)
        noted = noted.having(Usage(input=10, output=5, cache_read=3, reasoning=1))
        recorder.note(noted)
        outcomes = store.collection(Outcome)
        assert await outcomes.get(noted.id) is None
        await eventually(lambda: outcomes.query().exists())
        assert await outcomes.get(noted.id) == noted
        assert (noted.day, noted.input, noted.cache_write) == ("2026-07-01", 10, None)
        await recorder.close()


async def test_many_are_few_writes(frail: Store, away: Away) -> None:
    recorder = OutcomeRecorder(frail)
    for _ in range(2_000):
        recorder.note(outcome())
    await recorder.close()
    assert away.commits == 4
    assert await frail.collection(Outcome).query().count() == 2_000
    recorder.note(outcome())
    assert recorder.dropped == 1


async def test_a_failing_store_is_tried_again(
    frail: Store, away: Away, caplog: pytest.LogCaptureFixture
) -> None:
    jobs = Runner(frail, poll=3_600)
    await jobs.start()
    recorder = OutcomeRecorder(frail, jobs, most=1_000)
    await recorder.flush()
    away.failing = True
    first = [outcome() for _ in range(600)]
    with caplog.at_level(logging.WARNING):
        for each in first:
            recorder.note(each)
        await eventually(away.several)
        assert "outcomes failed, and is tried again" in caplog.records[0].getMessage()
    later = [outcome() for _ in range(700)]
    for each in later:
        recorder.note(each)
    assert recorder.dropped == 300  # the oldest
    with pytest.raises(Unavailable):
        await recorder.flush()
    away.failing = False
    await recorder.flush()
    found = {each.id for each in await frail.collection(Outcome).query().values()}
    assert found == {each.id for each in (*first[300:], *later)}
    recorder.note(outcome())
    await jobs.stop()
    await recorder.close()
    assert await frail.collection(Outcome).query().count() == 1_001


async def test_closing_without_a_store(
    frail: Store, away: Away, caplog: pytest.LogCaptureFixture
) -> None:
    recorder = OutcomeRecorder(frail)
    recorder.note(outcome())
    away.failing = True
    with caplog.at_level(logging.WARNING):
        await recorder.close()
    assert recorder.dropped == 1
    assert "1 outcomes are lost" in caplog.text


async def test_one_that_cannot_be_stored_does_not_stop_the_others(store: Store) -> None:
    recorder = OutcomeRecorder(store)
    names = "a" * 5_000, "half \ud800", "nul \x00", "ß" * 300
    good = [outcome(agent=name, session=name, task=name, model=name) for name in names]
    bad = outcome(input=2**70)
    for each in (good[0], bad, *good[1:]):
        recorder.note(each)
    await recorder.close()
    assert recorder.dropped == 1
    found = await store.collection(Outcome).get_many([each.id for each in good])
    assert found == good
    assert [each.agent for each in good] == ["a" * 120, "half ?", "nul ", "ß" * 120]


# Feedback ---------------------------------------------------------------------------------------


async def test_feedback_on_what_is_being_written(clock: ManualClock) -> None:
    begun, held = asyncio.Event(), asyncio.Event()

    async def hold_writes(call: Call, proceed: Handler) -> Any:
        if isinstance(call, Commit) and not held.is_set():
            begun.set()
            await held.wait()
        return await proceed(call)

    store = Store(adapter_for("memory://", clock), middleware=[hold_writes], clock=clock)
    await store.open()
    recorder = OutcomeRecorder(store)
    noted = outcome()
    recorder.note(noted)
    writing = asyncio.create_task(recorder.flush())
    await begun.wait()
    rating = asyncio.create_task(recorder.feedback(noted.id, 0.5, "user"))
    await asyncio.sleep(0)
    held.set()
    assert (await rating).quality == 0.5
    await writing
    await store.close()


async def test_feedback_takes_the_place_of_the_guess(store: Store) -> None:
    recorder = OutcomeRecorder(store)
    noted = outcome(quality=1.0)
    recorder.note(noted)
    judged = await recorder.feedback(noted.id, 0.5, "judge")  # it was not even written
    assert (judged.quality, judged.quality_by) == (0.5, "judge")
    assert (await recorder.feedback(noted.id, 0.25, "judge")).quality == 0.25
    assert (await recorder.feedback(noted.id, 0, "user")).quality == 0.0
    assert (await recorder.feedback(noted.id, 1.0, "judge")).quality == 0.0
    assert (await recorder.feedback(noted.id, 0.75, "user")).quality == 0.75
    await recorder.close()
    found = await store.collection(Outcome).get(noted.id)
    assert found == msgspec.structs.replace(noted, quality=0.75, quality_by="user")


async def test_feedback_that_makes_no_sense(store: Store) -> None:
    recorder = OutcomeRecorder(store)
    noted = outcome()
    recorder.note(noted)
    wrong: list[tuple[str, float, Any]] = [
        ("nobody", 0.5, "user"),
        (noted.id, 1.1, "user"),
        (noted.id, -0.1, "judge"),
        (noted.id, float("nan"), "judge"),
        (noted.id, 0.5, "heuristic"),
    ]
    for id, score, by in wrong:
        with pytest.raises(InvalidInput):
            await recorder.feedback(id, score, by)
    await recorder.close()


# Adding up --------------------------------------------------------------------------------------


def added(by: str, of: str, group: list[Outcome]) -> CostRow:
    def total(name: str) -> int:
        return sum(getattr(each, name) or 0 for each in group)

    def mean(name: str) -> Any:
        known = [value for each in group if (value := getattr(each, name)) is not None]
        return pytest.approx(sum(known) / len(known)) if known else None

    unknown = sum(each.cost is None for each in group)
    tells = [o for o in group if o.cost or (o.cost == 0 and o.success and not o.cached)]
    return CostRow(
        of=of,
        provider=group[0].provider if by in {"provider", "model"} else None,
        model=group[0].model if by == "model" else None,
        calls=len(group),
        failures=sum(not each.success and each.error != "cancelled" for each in group),
        cancelled=sum(each.error == "cancelled" for each in group),
        cached=total("cached"),
        input=total("input"),
        output=total("output"),
        cache_read=total("cache_read"),
        cache_write=total("cache_write"),
        reasoning=total("reasoning"),
        cost=None if unknown and not tells else total("cost"),
        unknown_costs=unknown,
        latency=mean("latency"),
        first_token=mean("first_token"),
        quality=mean("quality"),
    )


async def test_summaries_are_what_one_would_compute(store: Store) -> None:
    dice = random.Random("outcomes")

    def maybe(value: Any) -> Any:
        return dice.choice([value, value, None])

    def one() -> Outcome:
        return outcome(
            START + timedelta(minutes=dice.randrange(40 * 24 * 60)),
            agent=dice.choice(["", "coder", "planner"]),
            task=dice.choice(["", "review", "title"]),
            purpose=dice.choice(["chat", "judge"]),
            provider=dice.choice(["openai", "ollama"]),
            model=dice.choice(["gpt-5", "qwen/q3:8b"]),
            success=(success := dice.random() < 0.8),
            error="" if success else dice.choice(["rate_limited", "cancelled"]),
            latency=dice.random(),
            first_token=maybe(dice.random()),
            input=maybe(dice.randrange(10**5)),
            output=maybe(dice.randrange(10**4)),
            cache_read=maybe(dice.randrange(10**4)),
            cache_write=maybe(dice.randrange(10**4)),
            reasoning=maybe(dice.randrange(10**4)),
            cost=maybe(dice.randrange(10**13)),
            cached=dice.random() < 0.2,
            quality=maybe(dice.random()),
        )

    noted = [one() for _ in range(600)]
    recorder = OutcomeRecorder(store)
    for each in noted:
        recorder.note(each)
    await recorder.close()
    since, until = START + timedelta(days=3), START + timedelta(days=36, hours=7)
    for by in GROUPS:
        for inside, rows in (
            (noted, await summary(store, by)),
            (
                [o for o in noted if from_datetime(since) <= o.started < from_datetime(until)],
                await summary(store, by, since, until),
            ),
        ):
            groups = defaultdict[str, list[Outcome]](list)
            for each in inside:
                of = f"{each.provider}/{each.model}" if by == "model" else getattr(each, by)
                groups[of].append(each)
            assert rows == [added(by, of, group) for of, group in sorted(groups.items())]
    with pytest.raises(InvalidInput, match="session"):
        await summary(store, "session")  # type: ignore[arg-type]  # on purpose


async def test_nothing_to_add_up(store: Store) -> None:
    assert await summary(store, "model") == []
    assert cost_of([]) == 0


FREE, PAID, UNKNOWN = {"cost": 0}, {"cost": 5}, {"cost": None}
HIT = {"cost": 0, "cached": True}
FAILED = {"cost": 0, "success": False, "error": "down"}
BROKEN = {"cost": None, "success": False, "error": "broken"}


@pytest.mark.parametrize(
    ("given", "cost", "is_free"),
    [
        ([FREE], 0, True),
        ([FREE, FAILED, HIT], 0, True),
        ([FREE, UNKNOWN], 0, True),
        ([HIT], 0, False),
        ([FAILED], 0, False),
        ([UNKNOWN], None, False),
        ([UNKNOWN, FAILED, HIT], None, False),
        ([BROKEN, FAILED], None, False),
        ([PAID], 5, False),
        ([PAID, UNKNOWN, BROKEN, FREE], 5, False),
    ],
)
async def test_what_is_not_known_is_not_zero(
    given: list[dict[str, Any]], cost: int | None, is_free: bool, frail: Store
) -> None:
    noted = [outcome(agent=str(place), **each) for place, each in enumerate(given)]
    await frail.collection(Outcome).put_many(noted)
    (row,) = await summary(frail, "purpose")
    assert (row.cost, row.is_free) == (cost, is_free)
    assert cost_of(await summary(frail, "agent")) == cost  # whatever they are grouped by


async def test_forgetting_takes_the_names_and_leaves_the_costs(store: Store) -> None:
    recorder = OutcomeRecorder(store)
    for number in range(1_100):
        recorder.note(outcome(agent="coder", session=f"coder/{number % 2}", cost=1))
    recorder.note(outcome(agent="planner", session="planner/0", cost=1))
    await recorder.close()
    await forget(store, ("coder/1", ""))
    outcomes = store.collection(Outcome)
    assert await outcomes.query().where("session", "=", "coder/1").count() == 0
    assert await outcomes.query().where("agent", "=", "coder").count() == 1_100
    await forget(store, (), "coder")
    assert {row.of: row.cost for row in await summary(store, "agent")} == {"": 1_100, "planner": 1}
    assert await outcomes.query().where("session", "=", "coder/0").count() == 0


async def test_old_ones_expire(store: Store, clock: ManualClock) -> None:
    recorder = OutcomeRecorder(store)
    recorder.note(outcome())
    await recorder.flush()
    clock.advance("399d")
    assert len(await summary(store, "model")) == 1
    clock.advance("2d")
    assert await summary(store, "model") == []
    await recorder.close()


# Quality ----------------------------------------------------------------------------------------

SHELL = Tool("shell")
PERSON = Shape(
    {
        "type": "object",
        "properties": {"name": {"type": "string"}, "age": {"type": ["integer", "null"]}},
        "required": ["name"],
        "additionalProperties": False,
    }
)


def request(**fields: Any) -> Request:
    return Request(messages=(Message("user", (Text("Well?"),)),), **fields)


def said(text: str = "", *calls: ToolCall, finish: Finish = "stop", **more: Any) -> ModelAnswer:
    parts = (*((Text(text),) if text else ()), *calls)
    return ModelAnswer(Message("assistant", parts, **more), finish)


@pytest.mark.parametrize(
    ("answered", "asked", "score"),
    [
        (said("Paris."), request(), 1.0),
        (said(""), request(), 0.0),
        (said("  \n"), request(), 0.0),
        (said("", finish="filter"), request(), 0.1),
        (said("It beg", finish="filter"), request(), 0.1),
        (said("It beg", finish="length"), request(), 0.4),
        (said("It beg", finish="other"), request(), 0.5),
        (said("It beg", partial=True), request(), 0.5),
        # Tools
        (said("", ToolCall("1", "shell", '{"a": 1}'), finish="tools"), request(tools=(SHELL,)), 1),
        (said("", ToolCall("1", "shell", ""), finish="tools"), request(tools=(SHELL,)), 1.0),
        (said("", ToolCall("1", "shell", '{"a": '), finish="tools"), request(tools=(SHELL,)), 0.2),
        (said("", ToolCall("1", "shell", "[1]"), finish="tools"), request(tools=(SHELL,)), 0.2),
        (said("", ToolCall("1", "shall", "{}"), finish="tools"), request(tools=(SHELL,)), 0.2),
        (said("Done."), request(tools=(SHELL,)), 1.0),
        (said("Done."), request(tools=(SHELL,), tool_choice="required"), 0.3),
        (said("Done."), request(tools=(SHELL,), tool_choice="shell"), 0.3),
        (said("Done."), request(tools=(SHELL,), tool_choice="none"), 1.0),
        # Shapes
        (said('{"name": "Ada", "age": 36}'), request(shape=PERSON), 1.0),
        (said('{"name": "Ada"'), request(shape=PERSON), 0.1),
        (said("Ada"), request(shape=PERSON), 0.1),
        (said('{"age": 36}'), request(shape=PERSON), 0.3),
        (said('{"name": "Ada", "age": "36"}'), request(shape=PERSON), 0.3),
        (said('{"name": "Ada", "born": 1815}'), request(shape=PERSON), 0.3),
        # Refusals
        (said("I'm sorry, but I can't help with that."), request(), 0.3),
        (said("I cannot assist with that request."), request(), 0.3),
        (said("As an AI language model, I have no opinion."), request(), 0.3),
        (said("I can't reproduce the bug. " + "Here is what I tried. " * 60), request(), 1.0),
        (said("Sorry for the delay: it works now."), request(), 1.0),
    ],
)
def test_how_good_it_looks(answered: ModelAnswer, asked: Request, score: float) -> None:
    assert heuristic(answered, asked) == score


def test_a_refusal_in_its_own_place() -> None:
    body = {"role": "assistant", "content": None, "refusal": "No."}
    choice = {"index": 0, "finish_reason": "stop", "message": body}
    (message,) = read_chat([{"object": "chat.completion", "choices": [choice]}])
    assert heuristic(ModelAnswer(message), request()) == 0.3
    content = [{"type": "refusal", "refusal": "No."}]
    item = {"type": "message", "id": "m", "role": "assistant", "content": content}
    (message,) = read_responses([{"object": "response", "output": [item]}])
    assert heuristic(ModelAnswer(message), request()) == 0.3


def test_schemas() -> None:
    tree = {
        "$defs": {
            "node": {
                "type": "object",
                "properties": {
                    "value": {"enum": [1, 2]},
                    "next": {"anyOf": [{"$ref": "#/$defs/node"}, {"type": "null"}]},
                },
                "required": ["value"],
            }
        },
        "type": "array",
        "items": {"$ref": "#/$defs/node"},
    }
    assert follows([{"value": 1, "next": {"value": 2, "next": None}}], tree)
    assert not follows([{"value": 1, "next": {"value": 3}}], tree)
    assert not follows([{"value": 1, "next": 5}], tree)
    assert not follows({"value": 1}, tree)
    assert follows(1.0, {"type": "integer"})
    assert not follows(True, {"type": "integer"})
    assert not follows(1.5, {"type": "integer"})
    assert not follows("b", {"const": "a"})
    assert not follows(1, {"allOf": [{"type": "integer"}, {"enum": [2]}]})
    assert not follows({"a": 1}, {"additionalProperties": {"type": "string"}})
    # What it does not know, or what makes no sense, is taken for fulfilled.
    assert follows("x", {"format": "date", "pattern": "[0-9]"})
    assert follows("x", {"type": "unheard-of"})
    assert follows("x", {"$ref": "https://example.org/schema"})
    assert follows("x", {"$ref": "#/$defs/nobody"})
    assert follows("x", {"$ref": "#"})  # without end
