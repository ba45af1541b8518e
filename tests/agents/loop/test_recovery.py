"""Turns that were interrupted go on exactly where they were. `tests/fire` does it by kill -9."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import msgspec
import pytest

import perdure
from perdure.agents.agent import Agent
from perdure.agents.agent_records import AgentLease, AgentMessage
from perdure.bank import Bank
from perdure.core.errors import LeaseLost, MessageParked
from perdure.testing.model import ReceivedRequest, ScriptedModel
from tests.agents.loop.conftest import Brain, OpenBank, calls
from tests.waiting import until


class Gate:
    """A tool that waits in the middle of its work."""

    def __init__(self) -> None:
        self.begun = 0
        self.open = asyncio.Event()

    async def run(self) -> str:
        self.begun += 1
        await self.open.wait()
        return "passed"


def agent_with(gate: Gate, **settings: Any) -> Callable[[Bank], Any]:
    @perdure.tool(**settings)
    async def wait() -> str:
        return await gate.run()

    return lambda bank: bank.agent("worker", prompt="Work.", tools=[wait])


async def broken_off(bank: Bank) -> None:
    """End it as if its process had died: what runs is cancelled, leases stay."""
    bank.agents._leases.release = _nothing  # type: ignore[method-assign]
    await bank.agents.stop(0)
    await bank.close()
    async with perdure.open(bank.url).looked_at() as looked:
        lease = await looked.collection(AgentLease).get("worker")
        assert lease is not None
        assert lease.owner
        gone = msgspec.structs.replace(lease, pid=2**22 + 1)  # no system has so many
        await looked.collection(AgentLease).put(gone)


async def _nothing(held: object) -> None:
    pass


@pytest.mark.parametrize("idempotent", [False, True])
async def test_a_tool_that_had_begun_is_reported_or_run_again(
    open_bank: OpenBank, brain: Brain, *, idempotent: bool
) -> None:
    brain.on("go", calls(("wait", "{}")))
    brain.on("Interrupted, outcome unknown", "Nobody knows.")
    brain.on("passed", "It passed.")
    gate = Gate()
    make = agent_with(gate, idempotent=idempotent)
    first = await open_bank()
    sent = await (await make(first)).send("go")
    await until(lambda: gate.begun)
    await broken_off(first)
    gate.open.set()
    agent: Agent = await make(await open_bank())
    reply = await agent.result(sent.id, deadline=30)
    if idempotent:
        assert (reply.text, reply.interrupted, gate.begun) == ("It passed.", (), 2)
    else:
        assert (reply.text, reply.interrupted, gate.begun) == ("Nobody knows.", ("wait",), 1)


async def test_a_model_call_without_an_answer_is_made_again(
    open_bank: OpenBank, brain: Brain, model: ScriptedModel
) -> None:
    held = asyncio.Event()

    async def answer(request: ReceivedRequest) -> str:
        if len(model.requests) == 1:
            await held.wait()
        return "Late."

    brain.default = answer
    first = await open_bank()
    agent = await first.agent("worker", prompt="Work.")
    sent = await agent.send("Hi")
    await until(lambda: model.requests)
    await broken_off(first)
    second = await open_bank()
    reply = await (await second.agent("worker")).result(sent.id, deadline=30)
    held.set()
    assert (reply.text, reply.turn) == ("Late.", 1)
    turn = await (await second.session("worker/main")).turn(1)
    assert [each.text for each in turn.messages] == ["Hi", "Late."]
    assert model.requests[0].messages == model.requests[1].messages, "the same prompt"


async def test_a_process_that_was_overtaken_writes_nothing(
    open_bank: OpenBank, brain: Brain
) -> None:
    """It stood still in a tool, its lease ran out, another went on; then it comes back."""
    brain.on("go", calls(("wait", "{}")))
    brain.on("Interrupted, outcome unknown", "Nobody knows.")
    gate = Gate()
    make = agent_with(gate)
    late = await open_bank(lease=600.0)
    agent: Agent = await make(late)
    sent = await agent.send("go")
    await until(lambda: gate.begun)
    leases = late.collection(AgentLease)
    held = await leases.get("worker")
    assert held is not None
    await leases.put(msgspec.structs.replace(held, until=0))
    other: Agent = await make(await open_bank())
    assert (await other.result(sent.id, deadline=30)).text == "Nobody knows."
    lease = late.agents._leases.held["worker"]
    gate.open.set()
    await until(lambda: lease.lost)
    turn = await (await late.session("worker/main")).turn(1)
    assert [each.role for each in turn.messages] == ["user", "assistant", "tool", "assistant"]
    async with late.transaction() as transaction:
        with pytest.raises(LeaseLost):
            await lease.check(transaction)
    assert (await agent.ask("Hi", deadline=30)).text == "Hello."


async def test_a_message_that_kills_its_processes_is_parked(open_bank: OpenBank) -> None:
    first = await open_bank()
    agent = await first.agent("worker", prompt="Work.")
    await first.agents.pause("worker")
    sent = await agent.send("You will die of this.")
    dying = msgspec.structs.replace(sent, state="working", turn=1, deaths=19)
    await first.collection(AgentMessage).put(dying)
    await first.agents.resume("worker")
    with pytest.raises(MessageParked, match="20 processes ended"):
        await agent.result(sent.id, deadline=30)
    assert (await agent.ask("Hi", deadline=30)).text == "Hello."


async def test_closing_a_bank_lets_the_message_under_way_end(
    open_bank: OpenBank, brain: Brain
) -> None:
    brain.on("go", calls(("wait", "{}")))
    brain.on("passed", "It passed.")
    gate = Gate()
    make = agent_with(gate)
    bank = await open_bank()
    agent: Agent = await make(bank)
    first, second = await agent.send("go"), await agent.send("Hi")
    await until(lambda: gate.begun)
    asyncio.get_running_loop().call_later(0.1, gate.open.set)
    await bank.close()
    again: Agent = await make(await open_bank())
    assert (await again.result(first.id, deadline=30)).text == "It passed."
    assert (await again.result(second.id, deadline=30)).text == "Hello."
    assert gate.begun == 1
