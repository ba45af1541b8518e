"""Agents: what they are asked and what becomes of it."""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path
from typing import Any

import msgspec
import pytest

import perdure
from perdure.agents.agent_tools import ToolContext
from perdure.agents.interaction import Interaction
from perdure.bank import Bank
from perdure.core.errors import (
    Conflict,
    DeadlineExceeded,
    InvalidInput,
    InvalidValue,
    MessageParked,
    NotFound,
)
from perdure.core.messages import ToolResult
from perdure.gateway.calls import TextDelta
from perdure.gateway.outcomes import Outcome
from perdure.storage.subscriptions import EventReceived
from perdure.storage.transaction import Transaction
from perdure.testing.model import ReceivedRequest, ScriptedAnswer, ScriptedFault, ScriptedModel
from tests.agents.loop.conftest import Brain, OpenBank, calls, config_at, config_for
from tests.waiting import until


async def test_an_agent_answers_with_its_tools(
    bank: Bank, brain: Brain, model: ScriptedModel
) -> None:
    threads = list[int]()

    async def look(who: str, most: int = 3) -> list[str]:
        """Look somebody up.

        Args:
            who: The name.
        """
        return [who] * most

    def count(words: list[str]) -> int:
        threads.append(threading.get_ident())
        return len(words)

    brain.on("Who is ada", calls(("look", '{"who": "ada"}'), ("count", '{"words": ["a", "b"]}')))
    brain.on("2", "Ada, twice.")
    agent = await bank.agent("router", prompt="You route.", tools=[look, count])
    reply = await agent.ask("Who is ada?", task="lookup", context={"mail": 7})
    assert (reply.text, reply.state, reply.turn) == ("Ada, twice.", "done", 1)
    assert (reply.message.steps, reply.message.tool_calls) == (2, 2)
    assert reply.cost == (reply.message.input + reply.message.output) * 10**6
    assert threads[0] != threading.get_ident(), "a function that may block has a thread"
    first = model.requests[0]
    assert "You route." in first.messages[0].text
    assert '"mail": 7' in first.prompt
    offered = {tool["function"]["name"]: tool["function"] for tool in first.body["tools"]}
    assert offered["look"]["parameters"]["properties"]["who"]["description"] == "The name."
    assert {"ask_person", "history_get_turn"} <= offered.keys()
    turn = await (await bank.session("router/main")).turn(1)
    assert [each.role for each in turn.messages] == [
        "user",
        "assistant",
        "tool",
        "tool",
        "assistant",
    ]
    assert (await bank.gateway.costs("task"))[0].of == "lookup"


async def test_the_same_key_is_done_once(bank: Bank, model: ScriptedModel) -> None:
    agent = await bank.agent("router", prompt="You route.")
    replies = await asyncio.gather(*(agent.ask("Hi", key="once") for _ in range(5)))
    assert {reply.id for reply in replies} == {"router/00000001"}
    assert len(model.requests) == 1
    assert (await agent.ask("Hi", key="twice")).id == "router/00000002"


async def test_sessions_are_conversations_of_their_own(bank: Bank, model: ScriptedModel) -> None:
    agent = await bank.agent("router", prompt="You route.")
    for session in ("", "mails", "router/mails"):
        await agent.ask(f"Hi {session}", session=session)
    assert [info.name for info in await bank.sessions(agent="router")] != []
    assert len(model.requests[-1].messages) == len(model.requests[0].messages) + 2
    with pytest.raises(InvalidInput, match="no session of router"):
        await agent.ask("Hi", session="other/main")


async def test_a_stream_tells_words_and_results(bank: Bank, brain: Brain) -> None:
    async def look() -> str:
        return "found"

    brain.on("look", calls(("look", "{}")))
    brain.on("found", "There it is.")
    agent = await bank.agent("router", prompt="You route.", tools=[look])
    async with agent.stream("look") as stream:
        heard = [each async for each in stream]
        reply = stream.reply
    assert "".join(each.text for each in heard if isinstance(each, TextDelta)) == "There it is."
    assert [each.text for each in heard if isinstance(each, ToolResult)] == ["found"]
    assert reply.text == "There it is."
    assert await (await bank.session("router/main")).partials() == []


async def test_what_a_model_writes_wrongly_is_told_to_it(bank: Bank, brain: Brain) -> None:
    def divide(a: int, b: int) -> float:
        return a / b

    given = ('{"a": "x", "b": 1}', '{"a": 1, "b": 0}', "{no json", '{"a": 1, "b": 2}')
    brain.on("go", calls(*(("divide", each) for each in given), ("nothing", "{}")))
    brain.on("no tool 'nothing'", "I see.")
    agent = await bank.agent("math", prompt="Compute.", tools=[divide])
    assert (await agent.ask("go")).text == "I see."
    turn = await (await bank.session("math/main")).turn(1)
    results = [result for each in turn.messages for result in each.results]
    assert [result.is_error for result in results] == [True, True, True, False, True]
    assert "Expected `int`" in results[0].text
    assert results[1].text.startswith("ZeroDivisionError")
    assert results[3].text == "0.5"


async def test_a_person_allows_a_call_and_the_agent_is_free_meanwhile(
    bank: Bank, brain: Brain
) -> None:
    sent = list[str]()

    @perdure.tool(approval=True)
    async def send(to: str) -> str:
        sent.append(to)
        return f"sent to {to}"

    brain.on("mail ada", calls(("send", '{"to": "ada"}')))
    brain.on("mail bob", calls(("send", '{"to": "bob"}')))
    brain.on("sent to", "It is sent.")
    brain.on("did not allow", "Then not.")
    agent = await bank.agent("mailer", prompt="Mail.", tools=[send])
    asked = await agent.ask("mail ada")
    assert (asked.state, asked.text, sent) == ("asking", "", [])
    (question,) = asked.questions
    assert (question.kind, question.tool, question.arguments) == (
        "approval",
        "send",
        '{"to": "ada"}',
    )
    # In the same conversation, behind the turn that waits.
    assert (await agent.ask("Hi")).text == "Hello."
    other = await agent.ask("mail bob")
    await agent.answer(other.questions[0].id, "Not him.", approve=False, by="eve")
    assert (await agent.result(other.id)).text == "Then not."
    await agent.answer(question.id)
    done = await agent.result(asked.id)
    assert (done.text, done.turn, sent) == ("It is sent.", 1, ["ada"])
    with pytest.raises(Conflict, match="has answered"):
        await agent.answer(question.id)
    assert await agent.questions() == []
    turn = await (await bank.session("mailer/main")).turn(1)
    assert turn.messages[-1].text == "It is sent."


async def test_an_approval_is_for_one_call_only(bank: Bank, brain: Brain) -> None:
    """Models use the ids of their calls again: the second call is another question."""

    @perdure.tool(approval=True)
    def send(to: str) -> str:
        return f"sent to {to}"

    brain.on("both", calls(("send", '{"to": "ada"}')))
    brain.on("sent to ada", calls(("send", '{"to": "bob"}')))
    agent = await bank.agent("mailer", prompt="Mail.", tools=[send])
    first = await agent.ask("both")
    await agent.answer(first.questions[0].id)
    second = await agent.result(first.id)
    while second.questions and second.questions[0].id == first.questions[0].id:
        second = await agent.result(first.id)
    assert second.state == "asking"
    assert second.questions[0].arguments == '{"to": "bob"}'


async def test_a_model_asks_a_person(bank: Bank, brain: Brain) -> None:
    brain.on("order", calls(("ask_person", '{"question": "How many?"}')))
    brain.on("twelve", "Twelve it is.")
    agent = await bank.agent("buyer", prompt="Buy.")
    asked = await agent.ask("order")
    assert [(each.kind, each.text) for each in asked.questions] == [("question", "How many?")]
    await bank.agents.answer(asked.questions[0].id, "twelve")
    assert (await agent.result(asked.id)).text == "Twelve it is."
    with pytest.raises(NotFound):
        await agent.answer("buyer/00000001/none")


@pytest.mark.parametrize(
    ("limits", "stopped"),
    [({"steps": 3}, "steps"), ({"tokens": 1}, "tokens"), ({"dollars": 1e-9}, "dollars")],
)
async def test_a_turn_that_runs_away_ends_and_says_so(
    bank: Bank, brain: Brain, limits: dict[str, Any], stopped: str
) -> None:
    def more() -> str:
        return "go on"

    brain.default = calls(("more", "{}"), text="Again.")
    agent = await bank.agent("runner", prompt="Run.", tools=[more], limits=limits)
    reply = await agent.ask("go on")
    assert reply.stopped == stopped
    assert "I stopped here: the limit" in reply.text
    assert reply.message.steps <= 3
    session = await bank.session("runner/main")
    turn = await session.turn(1)
    assert turn.status == "closed"
    answered = {result.call for each in turn.messages for result in each.results}
    assert {call.id for each in turn.messages for call in each.calls} == answered
    brain.default = "Fine."
    assert (await agent.ask("Hi")).turn == 2


async def test_time_is_limited_and_what_ran_is_unknown(bank: Bank, brain: Brain) -> None:
    async def forever() -> None:
        await asyncio.Event().wait()

    brain.on("go", calls(("forever", "{}"), ("forever", "{}")))
    agent = await bank.agent("slow", prompt="Wait.", tools=[forever], limits={"seconds": 4})
    reply = await agent.ask("go")
    assert (reply.stopped, reply.interrupted) == ("seconds", ("forever",))
    turn = await (await bank.session("slow/main")).turn(1)
    told = [result.text for each in turn.messages for result in each.results]
    assert told[0].startswith("Interrupted, outcome unknown")
    assert told[1].startswith("Not run")


async def test_agents_ask_agents_but_not_in_a_circle(bank: Bank, brain: Brain) -> None:
    seen = list[str]()

    async def ask_b(ctx: ToolContext) -> str:
        return (await (await bank.agent("b", serve=False)).ask(f"from {ctx.agent}")).text

    async def ask_a() -> str:
        try:
            return (await (await bank.agent("a", serve=False)).ask("back")).text
        except InvalidInput as exc:
            seen.append(str(exc))
            raise

    a = await bank.agent("a", prompt="A.", tools=[ask_b])
    await bank.agent("b", prompt="B.", tools=[ask_a])
    brain.on("go", calls(("ask_b", "{}")))
    brain.on("from a", calls(("ask_a", "{}")))
    brain.on("waits for this itself", "B knows no more.")
    brain.on("B knows no more.", "So be it.")
    assert (await a.ask("go")).text == "So be it."
    assert "a → b → a" in seen[0]
    (sent,) = await (await bank.agents.get("b")).messages()
    assert (sent.chain, sent.parent) == (("a",), "a/00000001")


async def test_a_poisoned_message_is_parked_and_blocks_nobody(
    bank: Bank, brain: Brain, model: ScriptedModel
) -> None:
    brain.on("poison", ScriptedFault(status=400, message="I will not have it."))
    agent = await bank.agent("router", prompt="You route.")
    bad = asyncio.create_task(agent.ask("poison"))
    assert (await agent.ask("Hi", session="other")).text == "Hello."
    with pytest.raises(MessageParked, match="I will not have it") as caught:
        await bad
    assert "agent retry" in caught.value.hint
    assert (await agent.ask("Hi")).text == "Hello.", "nor its own conversation, once it is parked"
    (parked,) = [each for each in await agent.messages() if each.state == "parked"]
    assert (parked.attempts, parked.turn) == (2, 1)
    brain.rules.clear()
    await agent.retry(parked.id)
    assert (await agent.result(parked.id)).text == "Hello."


async def test_while_a_provider_is_away_messages_wait(
    bank: Bank, brain: Brain, model: ScriptedModel
) -> None:
    brain.default = ScriptedFault(status=503)
    agent = await bank.agent("router", prompt="You route.")
    waiting = asyncio.create_task(agent.ask("Hi"))
    await until(lambda: len(model.requests) >= 3)  # more attempts than it would have
    (found,) = await agent.messages()
    assert not found.is_over
    assert (found.attempts, found.outages >= 1, bool(found.error)) == (0, True, True)
    brain.default = "Back."
    assert (await waiting).text == "Back."


async def test_a_reply_that_breaks_off_is_asked_for_again(bank: Bank, brain: Brain) -> None:
    half = ScriptedFault(how="truncated", after=2, answer=ScriptedAnswer("Half of it " * 9))
    lines = [half, "Whole."]
    brain.default = lambda _: lines.pop(0)
    agent = await bank.agent("router", prompt="You route.")
    async with agent.stream("Hi") as stream:
        async for _ in stream:
            pass
        assert stream.reply.text == "Whole."
    turn = await (await bank.session("router/main")).turn(1)
    assert [each.text for each in turn.messages] == ["Hi", "Whole."]


class Counts(msgspec.Struct, frozen=True):
    routed: int = 0
    last: str = ""


async def test_state_is_typed_durable_and_versioned(bank: Bank, open_bank: OpenBank) -> None:
    agent = await bank.agent("router", prompt="You route.", state=Counts)
    assert await agent.state.get() == Counts()
    await asyncio.gather(
        *(agent.state.change(lambda c: Counts(c.routed + 1, c.last)) for _ in range(20))
    )
    other = await (await open_bank()).agent("router", state=Counts)
    assert (await other.state.get(), await other.state.version()) == (Counts(20), 20)
    assert await other.state.put(Counts(0, "x"), expected=20) == 21
    with pytest.raises(Conflict, match="at version 21, not 20"):
        await other.state.put(Counts(), expected=20)
    with pytest.raises(InvalidValue):
        await other.state.put(Counts(routed="many"))  # type: ignore[arg-type]  # as some will

    class Other(msgspec.Struct):
        must: int

    with pytest.raises(InvalidInput, match="cannot be read as Other"):
        await (await bank.agent("router", state=Other)).state.get()


async def test_events_reach_their_handlers(bank: Bank) -> None:
    heard = list[tuple[str, Any]]()

    async def note(event: EventReceived) -> None:
        heard.append((event.topic, event.payload["message"]))

    agent = await bank.agent("router", prompt="You route.")
    other = await bank.agent("other", prompt="You do not.")
    await agent.on("replied", note)
    await other.ask("Hi")
    reply = await agent.ask("Hi")
    await bank.settle()
    assert heard == [("agent.replied", reply.id)]
    with pytest.raises(InvalidInput, match="no event"):
        await agent.on("sneezed", note)


async def test_who_records_interactions_takes_part_in_the_end(bank: Bank, brain: Brain) -> None:
    seen = list[Interaction]()

    async def record(transaction: Transaction, interaction: Interaction) -> None:
        seen.append(interaction)

    bank.agents.seams.record.append(record)
    agent = await bank.agent("router", prompt="You route.")
    reply = await agent.ask("Hi", task="routing", context={"a": 1})
    await reply.feedback(0.25, "Meh.")
    (one,) = seen
    assert (one.id, one.request, one.response) == (reply.id, "Hi", "Hello.")
    assert (one.task, one.context, one.success, one.steps) == ("routing", {"a": 1}, True, 1)
    assert one.outcomes == reply.message.outcomes
    (outcome,) = await bank.collection(Outcome).query().values()
    assert (outcome.quality, outcome.quality_by) == (0.25, "user")
    assert (await bank.gateway.costs("task"))[0].quality == 0.25


async def test_paused_agents_accept_and_wait(bank: Bank) -> None:
    agent = await bank.agent("router", prompt="You route.")
    await bank.agents.pause("router")
    sent = await agent.send("Hi")
    with pytest.raises(DeadlineExceeded):
        await agent.result(sent.id, deadline=0.3)
    await bank.agents.resume("router")
    assert (await agent.result(sent.id)).text == "Hello."
    await bank.agents.retire("router")
    with pytest.raises(InvalidInput, match="retired"):
        await agent.send("Hi")


async def test_a_process_without_the_tools_leaves_messages_to_one_that_has_them(
    bank: Bank, open_bank: OpenBank, brain: Brain
) -> None:
    def look() -> str:
        return "found"

    brain.on("look", calls(("look", "{}")))
    brain.on("found", "There.")
    maker = await open_bank()
    await maker.agent("router", prompt="You route.", tools=[look], serve=False)
    without = await bank.agent("router")
    sent = await without.send("look")
    with pytest.raises(DeadlineExceeded):
        await without.result(sent.id, deadline=0.3)
    await maker.agent("router", tools=[look])
    assert (await without.result(sent.id, deadline=30)).text == "There."


async def test_files_make_agents(bank: Bank, tmp_path: Path) -> None:
    path = tmp_path / "p" / "router.md"
    path.parent.mkdir()
    path.write_text(
        "---\nname: router\nskills: mail\nmood: good\n---\nYou route.", encoding="utf-8"
    )
    agent = await bank.agent(file=path)
    assert (agent.name, agent.version.number) == ("router", 1)
    assert agent.version.front_matter["mood"] == "good"
    assert (await agent.ask("Hi")).text == "Hello."
    await bank.agent("router", model="scripted/other")
    again = await bank.agent("router", file=path)
    assert again.version.number == 3
    assert again.id == agent.id
    assert [each.name for each in await bank.agents.find(skill="mail")] == ["router"]
    with pytest.raises(InvalidInput, match="is called router, not other"):
        await bank.agent("other", file=path)
    with pytest.raises(NotFound, match="no agent 'nobody'"):
        await bank.agent("nobody")
    for bad in ({"prompt": 3}, {"limits": {"steps": 0}}, {"tools": [3]}, {"strategy": "odd"}):
        with pytest.raises(InvalidInput):
            await bank.agent("router", **bad)


async def test_forgetting_an_agent_leaves_nothing(bank: Bank, brain: Brain, tmp_path: Path) -> None:
    brain.on("order", calls(("ask_person", '{"question": "zirkonium?"}')))
    agent = await bank.agent("buyer", prompt="zirkonium", state=Counts)
    await agent.state.put(Counts(1, "zirkonium"))
    await agent.schedule("1d", "zirkonium")
    await agent.ask("zirkonium hello", context={"what": "zirkonium"})
    await agent.ask("order zirkonium", session="other")
    other = await bank.agent("keeper", prompt="Stay.")
    kept = await other.ask("Hi")
    turn = await agent.ask("Once more zirkonium")
    await bank.forget("buyer/main", turns=[turn.turn])
    assert turn.id not in {each.id for each in await agent.messages()}
    await bank.forget("buyer/other")
    assert await agent.questions() == []
    assert (await bank.forget_agent("buyer")).erased
    with pytest.raises(NotFound):
        await bank.agents.get("buyer")
    assert (await other.messages())[0].id == kept.id
    assert [problem async for problem in bank.verify()] == []
    await bank.close()
    for file in tmp_path.rglob("bank.db*"):
        assert b"zirkonium" not in file.read_bytes(), file


@pytest.mark.slow
async def test_five_hundred_agents_in_one_process(bank: Bank, brain: Brain) -> None:
    def look(number: int) -> str:
        return f"found {number}"

    def asked(request: ReceivedRequest) -> ScriptedAnswer:
        last = request.messages[-1]
        if last.results:
            return ScriptedAnswer(last.results[0].text)
        number = last.text.rpartition("#")[2].split("<")[0].strip()
        return calls(("look", f'{{"number": {number}}}'))

    brain.default = asked
    agents = [await bank.agent(f"a{number}", prompt="Look.", tools=[look]) for number in range(500)]
    replies = await asyncio.gather(
        *(agent.ask(f"Number #{number}") for number, agent in enumerate(agents))
    )
    assert [reply.text for reply in replies] == [f"found {number}" for number in range(500)]
    again = await asyncio.gather(*(agent.ask("Number #7", key="again") for agent in agents))
    assert {(reply.text, reply.turn) for reply in again} == {("found 7", 2)}


async def test_backups_and_copies_hold_agents(
    bank: Bank, model: ScriptedModel, tmp_path: Path
) -> None:
    agent = await bank.agent("router", prompt="You route.", state=Counts)
    await agent.state.put(Counts(3))
    await agent.schedule("1d", "Later.")
    await bank.agents.pause("router")
    sent = await agent.send("Hi")
    await bank.settle()
    await bank.backup(tmp_path / "backups")
    copied, restored = f"sqlite:///{tmp_path / 'copy.db'}", f"sqlite:///{tmp_path / 'again.db'}"
    await bank.copy_to(copied)
    await perdure.restore(tmp_path / "backups", restored)
    for url in (copied, restored):
        async with Bank(url, config=config_for(model)) as other:
            there = await other.agent("router", state=Counts)
            assert (there.id, await there.state.get()) == (agent.id, Counts(3))
            assert len(await there.schedules()) == 1
            await other.agents.resume("router")
            assert (await there.result(sent.id, deadline=30)).text == "Hello."
            assert [problem async for problem in other.verify()] == []


def test_agents_without_await(model_url: str, url: str) -> None:
    def look() -> str:
        """Look."""
        return "found"

    with perdure.open_sync(url, config=config_at(model_url)) as bank:
        agent = bank.agent("router", prompt="You route.", tools=[look], state=Counts)
        assert agent.ask("Hi").text == "Hello."
        with agent.stream("Hi again") as stream:
            heard = [each.text for each in stream if isinstance(each, TextDelta)]
            assert "".join(heard) == stream.reply.text == "Hello."
        assert agent.state.change(lambda found: Counts(found.routed + 1)) == Counts(1)
        assert [each.name for each in bank.agents.find()] == ["router"]
        assert len(agent.messages()) == 2


async def test_a_server_works_for_all_agents_without_tools(
    bank: Bank, open_bank: OpenBank, model: ScriptedModel
) -> None:
    sender = await open_bank()
    agent = await sender.agent("router", prompt="You route.", serve=False)
    await agent.schedule(0.1, "Wake up.")
    sent = await agent.send("Hi")
    bank.agents.serve_all()
    assert (await agent.result(sent.id, deadline=30)).text == "Hello."
    await until(lambda: any("Wake up." in each.prompt for each in model.requests))


async def test_questions_hold_no_secrets(bank: Bank, brain: Brain) -> None:
    key = "sk-ant-api03-" + "Zx9" * 31 + "AA"

    @perdure.tool(approval=True)
    def login(key: str) -> str:
        return key

    brain.on("log in", calls(("login", f'{{"key": "{key}"}}')))
    agent = await bank.agent("user", prompt="Log in.", tools=[login])
    (question,) = (await agent.ask("log in")).questions
    assert key not in question.arguments
    assert question.arguments.startswith('{"key": ')


async def test_a_session_that_was_forgotten_begins_anew(bank: Bank) -> None:
    agent = await bank.agent("router", prompt="You route.")
    await agent.ask("Hi")
    await bank.forget("router/main")
    assert await agent.messages() == []
    reply = await agent.ask("Who are you?", deadline=30)
    assert (reply.text, reply.turn) == ("Hello.", 1)
