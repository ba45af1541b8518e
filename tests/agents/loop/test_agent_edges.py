"""Agents where things go wrong: doubles, races, what is forgotten, and what fails for ever."""

from __future__ import annotations

import asyncio
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import msgspec
import pytest

import perdure
from perdure.agents import agent_worker
from perdure.agents.agent import Agent
from perdure.agents.agent_lease import AgentLeases
from perdure.agents.agent_records import AgentLease, AgentSchedule, AgentVersion
from perdure.agents.agent_registry import AgentRegistry
from perdure.agents.mailbox import Mailboxes
from perdure.agents.schedules import Schedules
from perdure.bank import Bank
from perdure.core.errors import (
    Conflict,
    Corrupted,
    InvalidInput,
    LeaseLost,
    MessageParked,
    TooLarge,
)
from perdure.core.messages import ToolCall
from perdure.sessions.session import Session
from perdure.storage.store import Store
from perdure.testing import ManualClock
from perdure.testing.model import ScriptedAnswer, ScriptedFault, ScriptedModel
from tests.agents.loop.conftest import Brain, OpenBank, calls
from tests.waiting import until


async def test_calls_of_one_id_are_two_questions(bank: Bank, brain: Brain) -> None:
    paid = list[int]()

    @perdure.tool(approval=True)
    async def refund(euros: int) -> str:
        paid.append(euros)
        return f"paid {euros}"

    both = tuple(ToolCall("call_1", "refund", f'{{"euros": {euros}}}') for euros in (20, 20_000))
    brain.on("go", ScriptedAnswer("", both))
    agent = await bank.agent("payer", prompt="Pay.", tools=[refund])
    asked = await agent.ask("go", deadline=30)
    small, large = asked.questions
    assert [small.arguments, large.arguments] == ['{"euros": 20}', '{"euros": 20000}']
    await agent.answer(small.id)
    await agent.answer(large.id, approve=False)
    done = await agent.result(asked.id, deadline=30)
    assert (done.state, paid) == ("done", [20])
    turn = await (await bank.session("payer/main")).turn(1)
    told = [result.text for each in turn.messages for result in each.results]
    assert [text.split(".")[0] for text in told] == ["paid 20", "A person did not allow this call"]


async def test_what_was_allowed_is_what_runs(bank: Bank, brain: Brain) -> None:
    """Whatever made the two differ."""
    paid = list[int]()

    @perdure.tool(approval=True)
    async def refund(euros: int) -> str:
        paid.append(euros)
        return "paid"

    brain.on("go", calls(("refund", '{"euros": 20000}')))
    brain.on("another call", "Then not.")
    agent = await bank.agent("payer", prompt="Pay.", tools=[refund])
    asked = await agent.ask("go", deadline=30)
    (question,) = asked.questions
    other = msgspec.structs.replace(question, arguments='{"euros": 20}')
    await bank.collection(type(question)).put(other)
    await agent.answer(question.id)
    assert (await agent.result(asked.id, deadline=30)).text == "Then not."
    assert paid == []


@pytest.mark.parametrize(
    "text", ["x" * 300_000, "sk-ant-api03-" + "Zx9" * 31 + "AA", '\u00e9 "q" \n']
)
async def test_what_was_allowed_runs_however_it_was_kept(
    bank: Bank, brain: Brain, text: str
) -> None:
    """Large arguments lie elsewhere, secrets are masked."""
    stored = list[str]()

    @perdure.tool(approval=True)
    async def store(text: str) -> str:
        stored.append(text)
        return "it is stored"

    brain.on("go", calls(("store", msgspec.json.encode({"text": text}).decode())))
    brain.on("it is stored", "Good.")
    agent = await bank.agent("keeper", prompt="Keep.", tools=[store])
    asked = await agent.ask("go", deadline=30)
    await agent.answer(asked.questions[0].id)
    assert (await agent.result(asked.id, deadline=30)).text == "Good."
    assert len(stored) == 1


async def test_a_cancelled_message_is_not_done(
    bank: Bank, model: ScriptedModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    inside, gate, compose = asyncio.Event(), asyncio.Event(), Session.context

    async def slow(self: Session, *args: Any, **named: Any) -> Any:
        inside.set()
        await gate.wait()
        return await compose(self, *args, **named)

    monkeypatch.setattr(Session, "context", slow)
    agent = await bank.agent("w", prompt="p")
    sent = await agent.send("do it")
    await inside.wait()
    assert (await bank.agents.mailboxes.cancel(sent.id)).state == "cancelled"
    gate.set()
    assert (await agent.ask("and this", deadline=30)).turn == 1
    assert (await bank.agents.mailboxes.get(sent.id)).state == "cancelled"
    assert len(model.requests) == 1


async def test_one_bad_schedule_stops_nobody() -> None:
    clock = ManualClock()
    store = Bank("memory://", clock=clock).store
    async with store:
        registry = AgentRegistry(store)
        for name in ("bad", "good", "gone"):
            await registry.define(name, AgentVersion(id="", number=0, prompt="x"))
        boxes = Mailboxes(store)
        schedules = Schedules(store, boxes)
        with pytest.raises(TooLarge):
            await schedules.add("bad", 1, "x" * 1_000_001)
        for name in ("bad", "good", "gone"):
            await schedules.add(name, None, "tick", every=60)
        (bad,) = await schedules.list("bad")
        await store.collection(AgentSchedule).put(
            msgspec.structs.replace(bad, body="x" * 1_000_001)
        )
        await registry.set_status("gone", "retired")
        clock.advance(61)
        assert await schedules.send_due(None) == 1
        (bad,) = await schedules.list("bad")
        assert "1,000,001 characters" in bad.error
        assert await boxes.list("gone") == []
        clock.advance(61)
        assert await schedules.send_due(None) == 1
        await registry.set_status("gone", "active")
        assert await schedules.send_due(None) == 1, "what was missed is sent once"


async def test_messages_are_looked_for_if_schedules_fail(
    open_bank: OpenBank, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def fail(self: Schedules, agents: object) -> int:
        raise Corrupted("damaged", record="x")

    monkeypatch.setattr(Schedules, "send_due", fail)
    bank, other = await open_bank(), await open_bank()
    await bank.agent("w", prompt="p")
    sender = await other.agent("w", serve=False)
    assert (await sender.ask("Hi", deadline=30)).text == "Hello."


@pytest.mark.parametrize("when", [datetime(1, 1, 1), datetime(2020, 1, 1, tzinfo=UTC)])  # noqa: DTZ001  # the subject
async def test_a_past_moment_is_not_later(bank: Bank, when: datetime) -> None:
    agent = await bank.agent("w", prompt="p")
    with pytest.raises(InvalidInput, match="not later than now"):
        await agent.schedule(when, "x")
    await agent.schedule(datetime.now() + timedelta(hours=1), "x")  # noqa: DTZ005  # local time


async def test_damage_parks_its_message_only(bank: Bank, monkeypatch: pytest.MonkeyPatch) -> None:
    compose = Session.context

    async def damaged(self: Session, *args: Any, **named: Any) -> Any:
        if self.name == "w/bad":
            raise Corrupted("damaged", record="x")
        return await compose(self, *args, **named)

    monkeypatch.setattr(Session, "context", damaged)
    agent = await bank.agent("w", prompt="p")
    bad = await agent.send("1", session="bad")
    assert (await agent.ask("2", session="good", deadline=30)).text == "Hello."
    with pytest.raises(MessageParked, match="damaged"):
        await agent.result(bad.id, deadline=30)


async def test_a_message_that_a_provider_fails_at_is_parked_in_the_end(
    bank: Bank, brain: Brain, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(agent_worker, "_LONGEST_WAIT", 0.05)
    monkeypatch.setattr(agent_worker, "_MOST_OUTAGES", 3)
    brain.on("poison", ScriptedFault(status=500))
    agent = await bank.agent("w", prompt="p")
    with pytest.raises(MessageParked):
        await agent.ask("poison", deadline=60)
    (parked,) = await agent.messages()
    assert (parked.attempts, parked.outages) == (1, 2)
    brain.rules.clear()
    assert (await agent.retry(parked.id)).outages == 0
    assert (await agent.result(parked.id, deadline=60)).text == "Hello."


async def test_a_message_that_waits_holds_up_its_own_session_only(
    bank: Bank, brain: Brain, model: ScriptedModel
) -> None:
    brain.on("limited", ScriptedFault(status=429))
    agent = await bank.agent("w", prompt="p")
    await agent.send("limited")
    await until(lambda: bool(model.requests))
    behind = await agent.send("behind it")
    assert (await agent.ask("Hi", session="other", deadline=60)).text == "Hello."
    assert (await bank.agents.mailboxes.get(behind.id)).state == "accepted"


async def test_an_answer_that_never_ends_counts_as_an_attempt(bank: Bank, brain: Brain) -> None:
    brain.default = lambda _: ScriptedFault(
        how="truncated", after=2, answer=ScriptedAnswer("Half of it " * 9)
    )
    agent = await bank.agent("w", prompt="p")
    leave = bank.agents.hear("w/00000001", lambda _: None)  # so that it is a stream
    with pytest.raises(MessageParked):
        await agent.ask("Hi", deadline=60)
    leave()


async def test_another_agent_of_the_name_has_its_own_prompt(
    bank: Bank, model: ScriptedModel
) -> None:
    agent = await bank.agent("w", prompt="OLD")
    await agent.ask("hi", session="one", deadline=30)
    await bank.forget_agent("w")
    agent = await bank.agent("w", prompt="NEW")
    await agent.ask("hi again", session="two", deadline=60)
    assert "NEW" in model.requests[-1].messages[0].text


async def test_a_forgotten_session_costs_no_attempt(open_bank: OpenBank) -> None:
    bank = await open_bank(attempts=1)
    agent = await bank.agent("w", prompt="p")
    await agent.ask("hi", deadline=30)
    await bank.forget("w/main")
    assert (await agent.ask("again", deadline=30)).turn == 1


async def test_a_lease_of_a_forgotten_agent_is_void(bank: Bank) -> None:
    await bank.agent("w", prompt="p", serve=False)
    stale, fresh = (AgentLeases(bank.store, seconds=600.0) for _ in range(2))
    first = await stale.take("w")
    await bank.forget_agent("w")
    await bank.agent("w", prompt="another", serve=False)
    second = await fresh.take("w")
    assert first is not None
    assert second is not None
    assert first.token == second.token
    async with bank.transaction() as transaction:
        await second.check(transaction)
        with pytest.raises(LeaseLost):
            await first.check(transaction)


async def test_a_lease_that_cannot_be_renewed_starves_no_other(
    bank: Bank, monkeypatch: pytest.MonkeyPatch
) -> None:
    leases = AgentLeases(bank.store, seconds=600.0)
    for name in ("a", "b"):
        await leases.take(name)
    before = await bank.collection(AgentLease).get("b")
    transact, tried = Store.transact, list[object]()

    async def fail_first(self: Store, body: Any, *args: Any) -> Any:
        tried.append(body)
        if len(tried) == 1:
            raise Conflict("agent_leases", "a")
        return await transact(self, body, *args)

    monkeypatch.setattr(Store, "transact", fail_first)
    await leases.renew()
    after = await bank.collection(AgentLease).get("b")
    assert before is not None
    assert after is not None
    assert after.until > before.until


async def test_tools_that_hang_keep_no_thread_of_others(bank: Bank, brain: Brain) -> None:
    release, begun = threading.Event(), list[int]()

    def hang() -> str:
        begun.append(1)
        release.wait(120)
        return "passed"

    def quick() -> str:
        return "passed"

    brain.on("go", calls(("hang", "{}")))
    brain.on("fast", calls(("quick", "{}")))
    loop = asyncio.get_running_loop()
    loop.set_default_executor(ThreadPoolExecutor(2))  # as on a small machine
    hanging = [await bank.agent(f"a{at}", prompt="p", tools=[hang]) for at in range(4)]
    sent = [await each.send("go") for each in hanging]
    try:
        await until(lambda: len(begun) >= 2)
        other = await bank.agent("f", prompt="p", tools=[quick])
        assert (await other.ask("fast", deadline=60)).text == "Hello."
    finally:
        release.set()
    for agent, message in zip(hanging, sent, strict=True):
        await agent.result(message.id, deadline=60)


async def test_a_tool_cannot_end_the_process(bank: Bank, brain: Brain) -> None:
    def stop() -> str:
        return next(iter(list[str]()))

    def leave() -> str:
        sys.exit(3)

    async def leave_too() -> str:
        sys.exit(4)

    def interrupt() -> str:
        raise KeyboardInterrupt

    tools = [stop, leave, leave_too, interrupt]
    brain.on("go", calls(*((each.__name__, "{}") for each in tools)))
    agent = await bank.agent("w", prompt="p", tools=tools)
    assert (await agent.ask("go", deadline=30)).text == "Hello."
    turn = await (await bank.session("w/main")).turn(1)
    told = [result for each in turn.messages for result in each.results]
    assert all(each.is_error for each in told)
    for each, name in zip(told, ("StopIteration", "SystemExit: 3", "SystemExit: 4"), strict=False):
        assert name in each.text
    assert "KeyboardInterrupt" in told[3].text


async def test_asks_that_cross_are_refused(bank: Bank, brain: Brain) -> None:
    """Three agents, each at a message of its own, ask each other in a circle."""
    agents, together = dict[str, Agent](), asyncio.Barrier(3)
    names = ("a", "b", "c")

    def asking(other: str) -> Any:
        @perdure.tool(name="ask_other")
        async def ask() -> str:
            await asyncio.wait_for(together.wait(), 30)
            return (await agents[other].ask("hello")).text

        return ask

    brain.on("go", calls(("ask_other", "{}")))
    brain.on("itself", "I was refused.")
    for name, other in zip(names, (*names[1:], names[0]), strict=True):
        agents[name] = await bank.agent(name, prompt="p", tools=[asking(other)])
    sent = [(agent, await agent.send("go")) for agent in agents.values()]
    replies = [await agent.result(each.id, deadline=60) for agent, each in sent]
    assert sum(each.text == "I was refused." for each in replies) == 1


async def test_a_tool_that_is_run_again_gets_its_own_answers(bank: Bank, brain: Brain) -> None:
    agents, runs = dict[str, Agent](), list[int]()

    @perdure.tool(idempotent=True)
    async def prices() -> str:
        runs.append(1)
        order = ["apples", "pears", "pears"]
        if len(runs) > 1:
            order.reverse()
        told = {each: (await agents["b"].ask(f"price of {each}")).text for each in order}
        if len(runs) == 1:
            raise asyncio.CancelledError  # its process ends here
        return f"told: {sorted(told.items())}"

    brain.on("apples", "A1")
    brain.on("pears", "P2")
    brain.on("go", calls(("prices", "{}")))
    brain.on("told", lambda request: request.messages[-1].results[-1].text)
    agents["b"] = await bank.agent("b", prompt="p")
    agents["a"] = await bank.agent("a", prompt="p", tools=[prices])
    reply = await agents["a"].ask("go", deadline=60)
    assert reply.text == "told: [('apples', 'A1'), ('pears', 'P2')]"
    assert len(runs) == 2
    assert len(await agents["b"].messages()) == 3


async def test_limits_that_nobody_knows_are_refused(bank: Bank, tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match="no limit stepz") as caught:
        await bank.agent("w", prompt="p", limits={"stepz": 4})
    assert "steps, tokens, dollars, seconds" in caught.value.hint
    file = tmp_path / "w.md"
    file.write_text("---\nname: w\nlimits: {stepz: 4}\n---\nYou work.\n")
    with pytest.raises(InvalidInput, match=r"w\.md, line 3: There is no limit stepz"):
        await bank.agent(file=file)


async def test_a_question_wants_a_text(
    bank: Bank, brain: Brain, monkeypatch: pytest.MonkeyPatch
) -> None:
    brain.on("order", calls(("ask_person", '{"question": "How many?"}')))
    agent = await bank.agent("buyer", prompt="Buy.")
    (question,) = (await agent.ask("order", deadline=30)).questions
    with pytest.raises(InvalidInput, match="is empty"):
        await agent.answer(question.id, " ")
    await agent.answer(question.id, "twelve")
    transact, bodies = Store.transact, list[BaseException | None]()

    async def noting(self: Store, body: Any, *args: Any) -> Any:
        async def noted(transaction: Any) -> Any:
            try:
                return await body(transaction)
            except Conflict as exc:
                bodies.append(exc)
                raise

        return await transact(self, noted, *args)

    monkeypatch.setattr(Store, "transact", noting)
    with pytest.raises(Conflict, match="has answered"):
        await agent.answer(question.id, "thirteen")
    assert not any("has answered" in str(each) for each in bodies), "it would be tried again"


async def test_events_that_there_are_are_named(bank: Bank) -> None:
    async def heard(_: object) -> None:
        pass

    agent = await bank.agent("w", prompt="p")
    with pytest.raises(InvalidInput) as caught:
        await agent.on("nonsense", heard)
    assert "rated" in caught.value.hint
