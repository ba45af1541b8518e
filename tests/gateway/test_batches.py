"""Batches: every answer once, in any order, at half price, whatever the provider does."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec
import pytest

from perdure.bank import Bank
from perdure.config import Config
from perdure.core import clock as clocks
from perdure.core.errors import (
    BudgetReached,
    DeadlineExceeded,
    InvalidInput,
    NotFound,
    Unauthorized,
)
from perdure.core.messages import Message, Usage
from perdure.gateway.batches.batch_apis import BatchLimits
from perdure.gateway.batches.batch_records import BatchItem, BatchRecord, BatchState, ItemState
from perdure.gateway.batches.forget_batches import forget
from perdure.gateway.calls import CallOptions
from perdure.gateway.gateway import Gateway
from perdure.gateway.providers import CallWire
from perdure.jobs import Job
from perdure.storage.registry import adapter_for
from perdure.storage.store import Store
from perdure.testing import (
    BatchFaults,
    ReceivedRequest,
    ScriptedAnswer,
    ScriptedFault,
    ScriptedModel,
)
from tests.conftest import DURABLE
from tests.gateway.batching import (
    HASTY,
    PATIENCE,
    WIRES,
    asked,
    batching,
    config_for,
    driven,
    finished,
    results_of,
)
from tests.gateway.opened import opened, outcomes_of
from tests.waiting import until

REFLECT = CallOptions(purpose="reflect", agent="planner", session="planner/a", task="extract")
MANY = {f"item {number}": asked(f"q{number}") for number in range(7)}
#: Room for a few hundred items.
BUDGET: dict[str, Any] = {"name": "all", "per": "ever", "tokens": 100_000, "dollars": 5.0}

every_wire = pytest.mark.parametrize("wire", WIRES)


def echo(request: ReceivedRequest) -> ScriptedAnswer:
    return ScriptedAnswer(f"a{request.prompt[1:]}", usage=Usage(input=100, output=10))


#: What one of its answers costs: half of 100 × 2 µ$ and 10 × 10 µ$.
COST = 150_000_000


async def spent(gateway: Gateway) -> tuple[int, int, int, int]:
    """Of the budget: tokens and picodollars spent, tokens and picodollars reserved."""
    (status,) = await gateway.budgets()
    found = status.spending
    return found.tokens, found.cost, found.held_tokens, found.held_cost


def assert_paid_once(model: ScriptedModel, count: int = len(MANY)) -> None:
    assert len(model.batches.paid) == count
    assert set(model.batches.paid.values()) == {1}


@every_wire
async def test_every_item_is_answered_once_at_half_price(wire: CallWire) -> None:
    async with ScriptedModel(echo) as model, batching(model, wire, budgets=[BUDGET]) as gateway:
        batch = await gateway.batch.submit(MANY, REFLECT)
        assert batch.state is BatchState.WRITTEN
        done = await finished(gateway, batch)
        assert (done.state, done.mode, done.counts) == ("ended", "batch", {"succeeded": 7})
        assert done.cost == 7 * COST
        results = await results_of(gateway, batch)
        assert list(results) == list(MANY)
        for number, result in enumerate(results.values()):
            assert result.reply is not None
            assert (result.reply.text, result.reply.cost) == (f"a{number}", COST)
        assert_paid_once(model)
        assert [batch.requests[0][1] for batch in model.batches.hosted] == [wire]
        outcomes = await outcomes_of(gateway)
        assert {each.id for each in outcomes} == {
            r.reply.outcome for r in results.values() if r.reply
        }
        for outcome in outcomes:
            assert (outcome.purpose, outcome.task, outcome.cost) == ("reflect", "extract", COST)
            assert (outcome.agent, outcome.session) == ("planner", "planner/a")
            assert outcome.success
            assert outcome.batched
            assert outcome.quality == 1.0
        assert await spent(gateway) == (7 * 110, 7 * COST, 0, 0)
        async with asyncio.timeout(PATIENCE):  # its job ends a moment later
            while await gateway.store.collection(Job).query().values():  # noqa: ASYNC110
                await asyncio.sleep(0.01)
        assert not model.batches.files  # what OpenAI would keep for ever


@every_wire
async def test_one_bad_item_is_told_by_itself(wire: CallWire) -> None:
    def script(request: ReceivedRequest) -> ScriptedAnswer | ScriptedFault:
        if request.prompt == "q2":
            return ScriptedFault(status=400, message="There is no such tool.")
        if request.prompt == "q3":
            return ScriptedAnswer("", finish="filter", usage=Usage(input=100, output=10))
        return echo(request)

    async with ScriptedModel(script) as model, batching(model, wire, budgets=[BUDGET]) as gateway:
        done = await finished(gateway, await gateway.batch.submit(MANY, REFLECT))
        assert done.counts == {"succeeded": 6, "errored": 1}
        results = await results_of(gateway, done)
        bad, filtered = results["item 2"], results["item 3"]
        assert (bad.state, bad.error, bad.reply) == ("errored", "rejected", None)
        assert "no such tool" in bad.reason
        assert filtered.reply is not None
        assert filtered.reply.finish == "filter"
        assert await spent(gateway) == (6 * 110, 6 * COST, 0, 0)
        errors = [each.error for each in await outcomes_of(gateway) if not each.success]
        assert errors == ["rejected"]


@every_wire
async def test_lost_lines_are_fetched_again(wire: CallWire) -> None:
    faults = BatchFaults(lossy=2, lost_lines=3)
    async with (
        ScriptedModel(echo, batch_faults=faults) as model,
        batching(model, wire) as gateway,
    ):
        done = await finished(gateway, await gateway.batch.submit(MANY, REFLECT))
        assert done.counts == {"succeeded": 7}
        assert model.batches.steps.count("results") == 3
        assert_paid_once(model)


@every_wire
async def test_lines_that_stay_lost_count_as_paid(wire: CallWire) -> None:
    faults = BatchFaults(lossy=10, lost_lines=2)
    async with (
        ScriptedModel(echo, batch_faults=faults) as model,
        batching(model, wire, budgets=[BUDGET]) as gateway,
    ):
        batch = await gateway.batch.submit(MANY, REFLECT)
        _, _, held_tokens, held_cost = await spent(gateway)
        done = await finished(gateway, batch)
        assert done.counts == {"succeeded": 5, "missing": 2}
        assert (done.cost, done.unknown_costs) == (5 * COST, 2)
        tokens, cost, *held = await spent(gateway)
        assert held == [0, 0]
        assert tokens == pytest.approx(5 * 110 + held_tokens * 2 / 7, abs=1)
        assert cost == pytest.approx(5 * COST + held_cost * 2 / 7, abs=1)


@every_wire
@pytest.mark.parametrize("times", [1, 10])
async def test_a_broken_line_costs_no_other(wire: CallWire, times: int) -> None:
    async with (
        ScriptedModel(echo, batch_faults=BatchFaults(garbled=times)) as model,
        batching(model, wire) as gateway,
    ):
        done = await finished(gateway, await gateway.batch.submit(MANY, REFLECT))
        assert done.counts == ({"succeeded": 7} if times == 1 else {"succeeded": 6, "missing": 1})
        assert_paid_once(model)


@every_wire
async def test_expired_items_cost_nothing(wire: CallWire) -> None:
    async with (
        ScriptedModel(echo, batch_faults=BatchFaults(expired=3)) as model,
        batching(model, wire, budgets=[BUDGET]) as gateway,
    ):
        done = await finished(gateway, await gateway.batch.submit(MANY, REFLECT))
        assert (done.state, done.counts) == ("ended", {"succeeded": 4, "expired": 3})
        results = await results_of(gateway, done)
        assert [each.state for each in results.values()][4:] == ["expired"] * 3
        assert await spent(gateway) == (4 * 110, 4 * COST, 0, 0)


@every_wire
async def test_a_busy_provider_and_late_results(wire: CallWire) -> None:
    faults = BatchFaults(busy=3, not_yet=2, looks=4)
    async with (
        ScriptedModel(echo, batch_faults=faults) as model,
        batching(model, wire) as gateway,
    ):
        done = await finished(gateway, await gateway.batch.submit(MANY, REFLECT))
        assert done.counts == {"succeeded": 7}
        assert len(model.batches.hosted) == 1
        assert_paid_once(model)


@every_wire
@pytest.mark.parametrize("lists_late", [0, 2])
async def test_a_batch_whose_answer_was_lost_is_found(wire: CallWire, lists_late: int) -> None:
    faults = BatchFaults(cut=1, looks=2, lists_late=lists_late)
    async with (
        ScriptedModel(echo, batch_faults=faults) as model,
        batching(model, wire) as gateway,
    ):
        done = await finished(gateway, await gateway.batch.submit(MANY, REFLECT))
        assert done.counts == {"succeeded": 7}
        assert "list" in model.batches.steps
        assert len(model.batches.hosted) == 1
        assert_paid_once(model)


async def test_a_batch_of_somebody_else_is_not_taken_for_ours() -> None:
    """Anthropic tells whose a batch is only when it has ended."""
    async with ScriptedModel(echo, batch_faults=BatchFaults(looks=3)) as model:
        async with batching(model) as first, batching(model) as second:
            model.batches.faults.cut = 1
            others = await first.batch.submit(MANY, REFLECT)
            ours = await second.batch.submit(MANY, REFLECT)
            for gateway, batch in ((first, others), (second, ours)):
                assert (await finished(gateway, batch)).counts == {"succeeded": 7}
        assert len(model.batches.hosted) == 2
        assert_paid_once(model, 14)


async def test_what_never_arrived_is_sent_again() -> None:
    """The intent is there, and the provider's list does not have it."""
    async with ScriptedModel(echo) as model:

        async def die(step: str, when: str) -> None:
            if (step, when) == ("create", "before") and model.batches.steps.count("create") == 1:
                raise ConnectionResetError

        model.batches.hook = die
        async with batching(model, pace=HASTY) as gateway:
            done = await finished(gateway, await gateway.batch.submit(MANY, REFLECT))
            assert done.counts == {"succeeded": 7}
        assert model.batches.steps.count("create") == 2
        assert_paid_once(model)


@every_wire
async def test_a_batch_that_is_refused_late(wire: CallWire) -> None:
    faults = BatchFaults(refused_late=1, refusal="The model is not there.")
    async with (
        ScriptedModel(echo, batch_faults=faults) as model,
        batching(model, wire, budgets=[BUDGET]) as gateway,
    ):
        done = await finished(gateway, await gateway.batch.submit(MANY, REFLECT))
        assert done.counts == {"errored": 7}
        assert done.state == ("ended" if wire == "messages" else "failed")
        results = await results_of(gateway, done)
        assert all("The model is not there." in each.reason for each in results.values())
        assert await spent(gateway) == (0, 0, 0, 0)
        assert not model.batches.paid


async def test_too_much_waits_at_the_provider() -> None:
    faults = BatchFaults(refused_late=2, refusal_code="token_limit_exceeded")
    async with (
        ScriptedModel(echo, batch_faults=faults) as model,
        batching(model, "responses") as gateway,
    ):
        done = await finished(gateway, await gateway.batch.submit(MANY, REFLECT))
        assert done.counts == {"succeeded": 7}
        assert len(model.batches.hosted) == 3
        assert_paid_once(model)


async def test_refused_for_now_then_cut_is_not_taken_for_the_refused_one() -> None:
    faults = BatchFaults(refused_late=1, refusal_code="token_limit_exceeded", looks=2)
    async with ScriptedModel(echo, batch_faults=faults) as model:

        async def cut_the_second(step: str, when: str) -> None:
            if (step, when) == ("create", "before") and model.batches.hosted:
                model.batches.faults.cut = len(model.batches.hosted) == 1

        model.batches.hook = cut_the_second
        async with batching(model, "responses") as gateway:
            done = await finished(gateway, await gateway.batch.submit(MANY, REFLECT))
            assert done.counts == {"succeeded": 7}
        assert len(model.batches.hosted) == 2
        assert "cancel" not in model.batches.steps
        assert_paid_once(model)


async def test_a_missing_key_is_told_at_once() -> None:
    keyed = {"key_variable": "NOWHERE", "needs_key": True}
    async with (
        ScriptedModel(echo) as model,
        batching(model, provider=keyed, budgets=[BUDGET]) as gateway,
    ):
        with pytest.raises(Unauthorized, match="no key"):
            await gateway.batch.submit(MANY, REFLECT)
        assert await gateway.batch.list() == []
        assert await spent(gateway) == (0, 0, 0, 0)


@every_wire
async def test_a_refused_key_fails_the_batch(wire: CallWire) -> None:
    async with (
        ScriptedModel(echo, key="right") as model,
        batching(model, wire, budgets=[BUDGET]) as gateway,
    ):
        done = await finished(gateway, await gateway.batch.submit(MANY, REFLECT))
        assert (done.state, done.counts) == ("failed", {"errored": 7})
        assert done.error
        assert await spent(gateway) == (0, 0, 0, 0)


@every_wire
async def test_what_is_too_large_is_sent_in_parts(wire: CallWire) -> None:
    faults = BatchFaults(most_requests=3, cut=1)
    limits = BatchLimits(requests=3, bytes=10**6)
    async with (
        ScriptedModel(echo, batch_faults=faults) as model,
        batching(model, wire, limits=limits, budgets=[BUDGET]) as gateway,
    ):
        batch = await gateway.batch.submit(MANY, REFLECT)
        assert [part.count for part in batch.parts] == [3, 3, 1]
        done = await finished(gateway, batch)
        assert done.counts == {"succeeded": 7}
        assert len(model.batches.hosted) == 3
        assert_paid_once(model)
        assert await spent(gateway) == (7 * 110, 7 * COST, 0, 0)
        results = await results_of(gateway, batch)
        assert [r.reply.text for r in results.values() if r.reply] == [f"a{n}" for n in range(7)]


async def test_parts_keep_to_a_size() -> None:
    limits = BatchLimits(requests=100, bytes=2_000)
    async with ScriptedModel(echo) as model, batching(model, limits=limits) as gateway:
        long = {f"{number}": asked("q" + "x" * 500) for number in range(6)}
        batch = await gateway.batch.submit(long, REFLECT)
        assert [part.count for part in batch.parts] == [2, 2, 2]
        assert (await finished(gateway, batch)).counts == {"succeeded": 6}


@pytest.mark.parametrize("batch", [True, False])
async def test_over_a_budget_nothing_is_sent(batch: bool) -> None:
    small = {**BUDGET, "tokens": 300}
    async with (
        ScriptedModel(echo) as model,
        batching(model, budgets=[small], provider={"batch": batch}) as gateway,
    ):
        with pytest.raises(BudgetReached, match="'all' does not allow"):
            await gateway.batch.submit(MANY, REFLECT)
        assert await gateway.batch.list() == []
        assert await gateway.store.collection(BatchItem).query().values() == []
        assert await gateway.store.collection(Job).query().values() == []
        assert not model.batches.steps
        assert not model.requests
        assert await spent(gateway) == (0, 0, 0, 0)


async def test_the_same_key_is_the_same_batch() -> None:
    async with ScriptedModel(echo) as model, batching(model, budgets=[BUDGET]) as gateway:
        first, second = await asyncio.gather(
            *(gateway.batch.submit(MANY, REFLECT, key="run/7") for _ in range(2))
        )
        assert first.id == second.id
        await finished(gateway, first)
        assert (await gateway.batch.submit(MANY, REFLECT, key="run/7")).state == "ended"
        with pytest.raises(InvalidInput, match="another batch"):
            await gateway.batch.submit({"x": asked("other")}, REFLECT, key="run/7")
        assert_paid_once(model)
        assert len(await gateway.store.collection(BatchItem).query().values()) == 7
        assert await spent(gateway) == (7 * 110, 7 * COST, 0, 0)


@every_wire
async def test_cancelled_while_it_is_worked_on(wire: CallWire) -> None:
    async with (
        ScriptedModel(echo, batch_faults=BatchFaults(looks=10**6)) as model,
        batching(model, wire, budgets=[BUDGET]) as gateway,
    ):
        batch = await gateway.batch.submit(MANY, REFLECT)
        await until(lambda: "look" in model.batches.steps)
        await gateway.batch.cancel(batch)
        done = await finished(gateway, batch)
        assert (done.state, done.counts) == ("cancelled", {"cancelled": 7})
        assert model.batches.steps.count("cancel") == 1
        assert await spent(gateway) == (0, 0, 0, 0)
        assert (await gateway.batch.cancel(batch)).state == "cancelled"


async def test_cancelled_before_it_was_sent() -> None:
    async with (
        ScriptedModel(echo, batch_faults=BatchFaults(busy=10**6)) as model,
        batching(model, budgets=[BUDGET]) as gateway,
    ):
        batch = await gateway.batch.submit(MANY, REFLECT)
        await until(lambda: model.batches.steps)
        await gateway.batch.cancel(batch)
        assert (await finished(gateway, batch)).state == "cancelled"
        assert not model.batches.hosted
        assert await spent(gateway) == (0, 0, 0, 0)


# Live -----------------------------------------------------------------------------------------


async def test_a_provider_without_batch_mode_is_asked_live() -> None:
    running = most = 0

    async def script(request: ReceivedRequest) -> ScriptedAnswer | ScriptedFault:
        nonlocal running, most
        running += 1
        most = max(most, running)
        await asyncio.sleep(0.01)
        running -= 1
        if request.prompt == "q2":
            return ScriptedFault(status=400, message="No.")
        return echo(request)

    async with (
        ScriptedModel(script) as model,
        batching(
            model, "chat", provider={"batch": False}, budgets=[BUDGET], batch_concurrency=3
        ) as gateway,
    ):
        done = await finished(gateway, await gateway.batch.submit(MANY, REFLECT))
        assert (done.state, done.mode) == ("ended", "live")
        assert done.counts == {"succeeded": 6, "errored": 1}
        assert done.cost == 6 * 2 * COST  # the full price
        assert most == 3
        results = await results_of(gateway, done)
        assert list(results) == list(MANY)
        assert results["item 4"].reply is not None
        assert (results["item 4"].reply.text, results["item 2"].error) == ("a4", "rejected")
        assert not model.batches.steps
        await gateway.settle()
        assert await spent(gateway) == (6 * 110, 6 * 2 * COST, 0, 0)
        assert [each.batched for each in await outcomes_of(gateway)] == [False] * 7


async def test_a_live_provider_in_trouble_is_asked_again() -> None:
    down = 3  # as often as one call tries

    def script(request: ReceivedRequest) -> ScriptedAnswer | ScriptedFault:
        nonlocal down
        if request.prompt == "q3" and down:
            down -= 1
            return ScriptedFault(status=503)
        return echo(request)

    async with (
        ScriptedModel(script) as model,
        batching(model, "chat", batch=False) as gateway,
    ):
        done = await finished(gateway, await gateway.batch.submit(MANY, REFLECT))
        assert done.mode == "live"
        assert (down, done.counts) == (0, {"succeeded": 7})


async def test_a_live_batch_is_cancelled() -> None:
    async with (
        ScriptedModel(ScriptedAnswer("late", delay=0.2)) as model,
        batching(model, "chat", batch=False, batch_concurrency=1, budgets=[BUDGET]) as gateway,
    ):
        many = {f"{number}": asked("q") for number in range(150)}
        batch = await gateway.batch.submit(many, REFLECT)
        await until(lambda: model.requests)
        await gateway.batch.cancel(batch)
        # What was begun ends; the rest is not asked.
        done = await finished(gateway, batch)
        assert done.counts[ItemState.CANCELLED] > 0
        assert sum(done.counts.values()) == 150
        await gateway.settle()
        assert (await spent(gateway))[2:] == (0, 0)


# What callers do ------------------------------------------------------------------------------


async def test_applied_in_the_callers_transaction() -> None:
    async with (
        ScriptedModel(echo, batch_faults=BatchFaults(looks=5)) as model,
        batching(model) as gateway,
    ):
        batch = await gateway.batch.submit(MANY, REFLECT)
        with pytest.raises(InvalidInput, match="has not ended"):
            await gateway.batch.applied(batch)
        await finished(gateway, batch)

        class Oops(Exception):
            pass

        async def apply_in_vain() -> None:
            async with gateway.store.transaction() as transaction:
                await gateway.batch.applied(batch, transaction)
                raise Oops

        with pytest.raises(Oops):
            await apply_in_vain()
        assert (await gateway.batch.get(batch)).state == "ended"
        async with gateway.store.transaction() as transaction:
            await gateway.batch.applied(batch, transaction)
        assert (await gateway.batch.get(batch)).state == "applied"
        items = gateway.store.collection(BatchItem)

        async def said() -> list[bytes]:
            return [each.answer + each.request for each in await items.query().values()]

        async with asyncio.timeout(100):
            while any(await said()):  # noqa: ASYNC110  # the store tells nobody
                await asyncio.sleep(0.01)
        assert all(each.reply is None for each in (await results_of(gateway, batch)).values())


async def test_waiting_ends() -> None:
    async with (
        ScriptedModel(echo, batch_faults=BatchFaults(looks=10**6)) as model,
        batching(model) as gateway,
    ):
        batch = await gateway.batch.submit(MANY, REFLECT)
        with pytest.raises(DeadlineExceeded, match="not ended"):
            await gateway.batch.wait(batch, 0.01)
        assert (await gateway.batch.poll(batch)).id == batch.id


@pytest.mark.parametrize(
    ("requests", "says"),
    [({}, "no requests"), (["a"], "mapping"), ({1: "a"}, "mapping"), ({"a": []}, "no messages")],
)
async def test_bad_input(requests: Any, says: str) -> None:
    async with ScriptedModel(echo) as model, batching(model) as gateway:
        with pytest.raises(InvalidInput, match=says):
            await gateway.batch.submit(requests, REFLECT)
        with pytest.raises(NotFound, match="no batch 'x'"):
            await gateway.batch.get("x")


async def test_a_gateway_without_a_worker_says_so() -> None:
    async with ScriptedModel(echo) as model, opened(model) as gateway:
        with pytest.raises(InvalidInput, match="no worker"):
            await gateway.batch.submit(MANY, CallOptions())


async def test_secrets_are_masked_in_what_is_kept_and_sent() -> None:
    def mask(messages: tuple[Message, ...]) -> tuple[Message, ...]:
        raw = msgspec.msgpack.encode(messages).replace(b"hunter2", b"[gone] ")
        return msgspec.msgpack.decode(raw, type=tuple[Message, ...])

    async with (
        ScriptedModel(lambda request: f"{request.prompt} and hunter2") as model,
        batching(model, mask=mask) as gateway,
    ):
        done = await finished(gateway, await gateway.batch.submit({"a": asked("hunter2?")}))
        assert model.requests[0].prompt == "[gone] ?"
        (result,) = (await results_of(gateway, done)).values()
        assert result.reply is not None
        assert result.reply.text == "[gone] ? and [gone] "


async def test_what_was_sent_without_the_forgotten_is_found() -> None:
    async with (
        ScriptedModel(echo, batch_faults=BatchFaults(busy=10**6)) as model,
        batching(model, pace=HASTY) as gateway,
    ):
        batch = await gateway.batch.submit(MANY, REFLECT, sessions={"item 0": "planner/b"})
        await until(lambda: "create" in model.batches.steps)
        await forget(gateway.store, ("planner/b",))
        model.batches.faults.cut, model.batches.faults.busy = 1, 0
        done = await finished(gateway, batch)
        assert done.counts == {"succeeded": 6, "cancelled": 1}
        assert set(model.batches.paid.values()) == {1}


@pytest.mark.parametrize("all_of_it", [False, True], ids=["one", "all"])
async def test_what_is_forgotten_after_the_upload_is_not_sent(*, all_of_it: bool) -> None:
    async with (
        ScriptedModel(echo) as model,
        batching(model, "responses", pace=HASTY) as gateway,
    ):
        sessions = {"planner/a", "planner/b"} if all_of_it else {"planner/b"}

        async def forgotten(step: str, when: str) -> None:
            if (step, when) == ("upload", "after"):
                await forget(gateway.store, tuple(sessions))

        model.batches.hook = forgotten
        batch = await gateway.batch.submit(MANY, REFLECT, sessions={"item 0": "planner/b"})
        done = await finished(gateway, batch)
        left = 0 if all_of_it else 6
        assert done.counts[ItemState.CANCELLED] == 7 - left
        assert all("q0" not in str(each.requests) for each in model.batches.hosted)
        assert sum(model.batches.paid.values()) == left
        # What holds it does not lie there for ever, either.
        assert not any(b"q0" in content for content in model.batches.files.values())


@pytest.mark.parametrize("sent", [False, True])
async def test_forgotten_sessions(sent: bool) -> None:
    faults = BatchFaults(busy=0 if sent else 10**6, looks=10**6)
    async with (
        ScriptedModel(echo, batch_faults=faults) as model,
        batching(model, budgets=[BUDGET]) as gateway,
    ):
        sessions = {"item 0": "planner/b", "item 1": ""}
        batch = await gateway.batch.submit(MANY, REFLECT, sessions=sessions)
        await until(lambda: ("look" if sent else "create") in model.batches.steps)
        await forget(gateway.store, ("planner/b",))
        kept = {
            each.custom_id: each
            for each in await gateway.store.collection(BatchItem).query().values()
        }
        assert {id for id, item in kept.items() if not item.request} == {"item 0", "item 1"}
        assert kept["item 0"].session == ""
        model.batches.faults.busy = model.batches.faults.looks = 0
        done = await finished(gateway, batch)
        results = await results_of(gateway, done)
        assert [id for id, each in results.items() if each.reply is None] == ["item 0", "item 1"]
        assert done.counts == ({"succeeded": 7} if sent else {"succeeded": 5, "cancelled": 2})
        assert (await spent(gateway))[2:] == (0, 0)
        await forget(gateway.store, (), agent="planner")
        assert all(each.reply is None for each in (await results_of(gateway, done)).values())
        record = await gateway.batch.get(done)
        assert (record.agent, record.options.agent, record.options.session) == ("", "", "")


@every_wire
@pytest.mark.parametrize("store_url", DURABLE, indirect=True)
async def test_two_workers_never_ask_at_the_same_time(wire: CallWire, store_url: str) -> None:
    faults = BatchFaults(looks=20, cut=1, busy=1)
    async with ScriptedModel(echo, batch_faults=faults) as model:
        config = config_for(model.url, wire, budgets=[BUDGET])
        busy = 0

        async def alone(step: str, when: str) -> None:
            nonlocal busy
            busy += 1 if when == "before" else -1
            assert busy <= 1
            await asyncio.sleep(0.002)

        model.batches.hook = alone
        async with (
            Store(adapter_for(store_url, clocks.now)) as one,
            Store(adapter_for(store_url, clocks.now)) as two,
            driven(one, config) as first,
            driven(two, config) as second,
        ):
            batch = await first.batch.submit(MANY, REFLECT)
            for gateway in (second, first):
                assert (await finished(gateway, batch)).counts == {"succeeded": 7}
            assert await spent(first) == (7 * 110, 7 * COST, 0, 0)
        assert len(model.batches.hosted) == 1
        assert_paid_once(model)


async def test_a_bank_goes_on_with_batches_of_an_earlier_one(tmp_path: Path) -> None:
    faults = BatchFaults(looks=10**6)
    async with ScriptedModel(echo, batch_faults=faults) as model:
        gateway = config_for(model.url, batch_poll=0.01)
        config, url = Config(gateway=gateway), f"sqlite:///{tmp_path}/bank.db"
        async with Bank(url, config=config) as bank:
            batch = await bank.gateway.batch.submit(MANY, REFLECT)
            await until(lambda: "look" in model.batches.steps)
        faults.looks = 0
        async with Bank(url, config=config) as bank:
            # Nobody asks for the gateway: the worker drives what is there.
            ended = bank.collection(BatchRecord).query().where("state", "=", "ended")
            async with asyncio.timeout(100):
                while not await ended.values():  # noqa: ASYNC110
                    await asyncio.sleep(0.01)
            await bank.forget_agent("planner")
            results = await results_of(bank.gateway, batch)
            assert all(each.reply is None for each in results.values())
        assert_paid_once(model)


# The double -----------------------------------------------------------------------------------


async def test_the_official_sdks_take_the_double_for_the_real_thing() -> None:
    anthropic, openai = pytest.importorskip("anthropic"), pytest.importorskip("openai")
    async with ScriptedModel(echo, batch_faults=BatchFaults(looks=0)) as model:
        async with anthropic.AsyncAnthropic(
            base_url=model.url.removesuffix("/v1"), api_key="k"
        ) as client:
            params = {
                "model": "m",
                "max_tokens": 5,
                "messages": [{"role": "user", "content": "q1"}],
            }
            made = await client.messages.batches.create(
                requests=[{"custom_id": "a", "params": params}]
            )
            seen = await client.messages.batches.retrieve(made.id)
            assert (made.processing_status, seen.processing_status) == ("in_progress", "ended")
            assert [each.id async for each in client.messages.batches.list()] == [made.id]
        async with openai.AsyncOpenAI(base_url=model.url, api_key="k") as client:
            body: Mapping[str, Any] = {"model": "m", "input": "q2"}
            line = {"custom_id": "b", "method": "POST", "url": "/v1/responses", "body": body}
            file = await client.files.create(
                file=("in.jsonl", msgspec.json.encode(line)), purpose="batch"
            )
            batch = await client.batches.create(
                input_file_id=file.id, endpoint="/v1/responses", completion_window="24h"
            )
            batch = await client.batches.retrieve(batch.id)
            assert batch.status == "completed"
            content = await client.files.content(batch.output_file_id)
            (said,) = [msgspec.json.decode(each) for each in content.iter_lines()]
            assert said["response"]["body"]["output"][0]["content"][0]["text"] == "a2"
        assert model.batches.paid == {"a": 1, "b": 1}
