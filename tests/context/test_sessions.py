"""Contexts of real sessions: budgets, prefixes, epochs, forks, echoes, the past."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from typing import Any

import pytest

import perdure
from examples.made_up_project import project_turn
from perdure.bank import Bank
from perdure.context import history_tools
from perdure.context.context import Context
from perdure.core.messages import Message, Reasoning, Text, ToolCall, ToolResult, assistant, user
from perdure.sessions.session import Session
from perdure.testing import ManualClock
from perdure.wire import codec

BUDGET = 6_000
WIRES = ("chat", "responses", "messages")


@pytest.fixture
async def bank() -> AsyncIterator[Bank]:
    async with perdure.open("memory://") as bank:
        yield bank


@pytest.fixture
async def session(bank: Bank) -> Session:
    return await bank.session("planner/auth", budget=BUDGET)


def body_of(context: Context, wire: str) -> list[Any]:
    made = {
        "chat": context.to_chat,
        "responses": context.to_responses,
        "messages": context.to_messages,
    }[wire]()
    items: list[Any] = made["input" if wire == "responses" else "messages"]
    return items


def blocks(context: Context, wire: str) -> list[str]:
    """Block by block, cache markers aside."""
    found = list[str]()
    for item in body_of(context, wire):
        content = item.get("content")
        parts = content if isinstance(content, list) else [content]
        rest = {key: value for key, value in item.items() if key != "content"}
        for part in parts:
            if isinstance(part, dict):
                marks = ("cache_control", "prompt_cache_breakpoint")
                part = {k: v for k, v in part.items() if k not in marks}  # noqa: PLW2901
            found.append(json.dumps([rest, part], sort_keys=True))
    return found


async def live(
    session: Session, number: int, *, recalling: Bank | None = None
) -> AsyncIterator[Context]:
    """One turn of a made-up project, request by request, as an agent's loop does it.

    Given its bank, the session recalls. All that was said before has its vector then: what stands
    beside a prompt, and so when the window is full, does not depend on how fast they are made.
    """
    messages = project_turn(number)
    prompt, rest = messages[0], messages[1:]
    if recalling is not None:
        await recalling.settle()
    context = await session.context([prompt], recall=recalling is not None)
    yield context
    waiting = list[Message]()
    is_first = True
    for at, message in enumerate(rest):
        waiting.append(message)
        following = rest[at + 1].role if at + 1 < len(rest) else ""
        if message.role == "tool" and following != "tool":
            await session.append(waiting, context=context if is_first else None)
            is_first, waiting = False, []
            yield await session.context()
    if waiting:
        await session.append(waiting, context=context if is_first else None)


@pytest.mark.slow
@pytest.mark.parametrize("recall", [True, False])
async def test_a_long_session_stays_valid_within_its_budget_and_only_grows(
    bank: Bank, session: Session, *, recall: bool
) -> None:
    before: dict[str, list[str]] = {}
    epoch = requests = 0
    context = await session.context("Hello?")
    for number in range(1, 120):
        async for context in live(session, number, recalling=bank if recall else None):
            requests += 1
            assert context.tokens <= BUDGET
            for wire in WIRES:
                assert codec(wire).violations(body_of(context, wire)) == []
                sent = blocks(context, wire)
                if wire in before and context.shown.epoch == epoch:
                    assert sent[: len(before[wire])] == before[wire]
                before[wire] = sent
            epoch = context.shown.epoch
    made = await session.epochs()
    assert len(made) == epoch
    # A small window that recalls much is planned anew often: else it would stay half empty.
    assert 3 < epoch < requests / (2.5 if recall else 5)
    # What is recalled stands in the window until the next epoch: it is full before its raw band is.
    assert {each.reason for each in made} >= ({"budget"} if recall else {"budget", "mark"})
    assert all(each.after <= BUDGET for each in made)
    # With recall, what went down for what was injected comes up when that has left.
    assert recall or all(each.after < each.before for each in made if each.before)
    # Everything is there, in order, without a gap.
    assert context.bands[0].first == "T-1.1"
    assert [band.level for band in context.bands] == ["T", "C", "S", "R"]


async def test_what_was_written_is_the_conversation_and_nothing_that_was_injected(
    bank: Bank, session: Session
) -> None:
    for number in range(1, 31):
        async for _ in live(session, number, recalling=bank):
            pass
    for number in range(1, 31):
        turn = await session.turn(number, resolve=True)
        assert [m.parts for m in turn.messages] == [m.parts for m in project_turn(number)]


async def test_two_processes_send_the_same_bytes(bank: Bank, session: Session) -> None:
    for number in range(1, 60):
        async for _ in live(session, number, recalling=bank):
            pass
    # A session object of its own knows nothing of what the other one remembers.
    other = await bank.session(session.name)
    ours, theirs = await session.context("And now?"), await other.context("And now?")
    assert [blocks(theirs, wire) for wire in WIRES] == [blocks(ours, wire) for wire in WIRES]


async def test_a_past_prompt_is_rebuilt_byte_for_byte(bank: Bank, session: Session) -> None:
    sent = dict[str, list[list[str]]]()
    for number in range(1, 60):
        step = 0
        async for context in live(session, number, recalling=bank):
            step += 1
            sent[f"T-{number}.{step}"] = [blocks(context, wire) for wire in WIRES]
    other = await bank.session(session.name)
    for at in list(sent)[::7]:
        past = await other.past_context(at)
        assert [blocks(past, wire) for wire in WIRES] == sent[at], at
    first = await other.past_context("T-40")
    assert [blocks(first, wire) for wire in WIRES] == sent["T-40.1"]


async def test_a_fork_shares_its_parents_epoch(bank: Bank, session: Session) -> None:
    for number in range(1, 60):
        async for _ in live(session, number):
            pass
    fork = await session.fork("coder/auth")
    # What each recalls is its own affair: the agents differ.
    ours = await session.context("Go on.", recall=False)
    theirs = await fork.context("Go on.", recall=False)
    assert theirs.shown.blocks == ours.shown.blocks
    assert [blocks(theirs, wire) for wire in WIRES] == [blocks(ours, wire) for wire in WIRES]
    (adopted,) = await fork.epochs()
    assert adopted.reason == "fork"
    for number in range(60, 90):
        async for context in live(fork, number, recalling=bank):
            assert context.tokens <= BUDGET


async def test_looking_changes_nothing(session: Session) -> None:
    for number in range(1, 20):
        async for _ in live(session, number):
            pass
    before = await session.epochs()
    small = await session.context("And now?", budget=1_000, keep=False)
    assert small.tokens <= 1_000
    assert await session.epochs() == before


async def test_nothing_is_demoted_while_all_fits_raw(bank: Bank) -> None:
    session = await bank.session("planner/auth", budget=200_000)
    for number in range(1, 40):
        async for context in live(session, number, recalling=bank):
            assert {band.level for band in context.bands} <= {"R"}
    assert await session.epochs() == []


async def test_a_prompt_that_does_not_fit_is_refused(session: Session) -> None:
    with pytest.raises(perdure.BudgetTooSmall):
        await session.context("word " * 7_000)
    with pytest.raises(perdure.BudgetTooSmall, match="500 are needed"):
        await session.context("hello", budget=499)
    with pytest.raises(perdure.InvalidInput, match="no open turn"):
        await session.context()


async def test_a_tool_result_that_does_not_fit_is_reduced_and_named(session: Session) -> None:
    context = await session.context("What is in the log?")
    output = "\n".join(f"line {n}: nothing happened at all" for n in range(4_000))
    call = Message("assistant", (ToolCall("c1", "shell", '{"command": "cat log"}'),))
    result = Message("tool", (ToolResult("c1", (Text(output),)),))
    await session.append([call, result], context=context)
    large = await session.context()
    assert large.tokens <= BUDGET
    text = json.dumps(large.to_chat())
    assert "T-1.1" in text
    assert "What is in the log?" in text
    assert "line 0:" in text
    assert "line 3999:" in text
    # It stays as it was sent.
    await session.append([assistant("Nothing.")])
    after = await session.context("Thanks.")
    if after.shown.epoch == large.shown.epoch:
        sent = blocks(large, "chat")
        assert blocks(after, "chat")[: len(sent)] == sent


async def test_a_caller_may_echo_all_that_it_was_sent(bank: Bank, session: Session) -> None:
    for number in range(1, 40):
        async for _ in live(session, number, recalling=bank):
            pass
    context = await session.context("How many tests are there?")
    sent = context.to_chat()["messages"]
    await session.append([*sent, {"role": "assistant", "content": "41."}], context=context)
    turn = await session.turn(40)
    assert [message.text for message in turn.messages] == ["How many tests are there?", "41."]
    assert (await session.head()).turn == 40


async def test_thinking_is_kept_until_the_prefix_changes_or_the_model_does(bank: Bank) -> None:
    session = await bank.session("planner/auth", budget=3_000)

    def thought(text: str, model: str) -> Message:
        parts = (Reasoning(text, signature="sig"), Text("Done."))
        return Message("assistant", parts, model=model)

    def thoughts(context: Context) -> list[str]:
        found = [part for m in context.messages for part in m.parts]
        return [part.text for part in found if isinstance(part, Reasoning)]

    for number in range(3):
        context = await session.context(f"Task {number}", model="claude-x", recall=False)
        await session.append([thought(f"hm {number}", "claude-x-20260101")], context=context)
    context = await session.context("Next", model="claude-x", recall=False)
    assert thoughts(context) == ["hm 0", "hm 1", "hm 2"]
    other = await session.context("Next", model="gpt-y", recall=False)
    assert thoughts(other) == []
    assert [epoch.reason for epoch in await session.epochs()] == ["model"]
    await session.append([assistant("ok " * 1_500)], context=other)
    await session.append([user("more"), thought("hm again", "gpt-y")])
    await session.append([user("more"), assistant("ok " * 1_500)])
    full = await session.context("Last", model="gpt-y", recall=False)
    assert full.shown.epoch == 2
    assert thoughts(full) == []


@pytest.mark.parametrize(
    ("model", "kept"),
    [
        ("claude-sonnet-4-5-20250929", True),
        ("claude-opus-4-20250514", True),
        ("anthropic/claude-fable-5-1-20261001", False),
        ("claude-fable-6", False),
        ("deepseek-r3", True),
    ],
)
async def test_thinking_of_a_turn_that_was_only_appended_is_kept_unless_bound_to_its_prompt(
    bank: Bank, model: str, kept: bool
) -> None:
    session = await bank.session("planner/auth", budget=8_000)
    for number in range(2):
        parts = (Reasoning(f"hm {number}", signature="sig"), Text("Done."))
        await session.append([user(f"Task {number}"), Message("assistant", parts, model=model)])
    before: dict[str, list[str]] = {}
    for prompt in ("Next?", "And then?"):
        context = await session.context(prompt, model=model, recall=False)
        thoughts = [p.text for m in context.messages for p in m.parts if isinstance(p, Reasoning)]
        assert thoughts == (["hm 0", "hm 1"] if kept else [])
        for wire in WIRES:
            assert codec(wire).violations(body_of(context, wire)) == []
            sent = blocks(context, wire)
            assert sent[: len(before.get(wire, []))] == before.get(wire, [])
            before[wire] = sent
        await session.append([assistant("Done.")], context=context)
    other = await session.context("By another model?", model="gpt-y", recall=False)
    assert not any(isinstance(part, Reasoning) for m in other.messages for part in m.parts)
    assert [epoch.reason for epoch in await session.epochs()] == (["model"] if kept else [])


async def test_a_turn_is_shown_at_the_level_that_was_asked_for(session: Session) -> None:
    for number in range(1, 60):
        async for _ in live(session, number):
            pass
    said = await session.set_fidelity("T-3", "S")
    assert "next rewrite" in said
    before = await session.context("And now?", recall=False)
    assert not any(block.element.name == "T-3" for block in before.shown.blocks)
    said = await session.run_tool(
        "history_set_fidelity", {"id": "<T-4-T>", "level": "C", "now": True}
    )
    assert "anew" in said
    after = await session.context("And now?", recall=False)
    levels = {block.element.name: block.element.level for block in after.shown.blocks}
    assert (levels["T-3"], levels["T-4"]) == ("S", "C")
    assert (await session.epochs())[-1].reason == "asked"
    assert after.tokens <= BUDGET
    raised = await session.set_fidelity("T-59", "T", now=True)
    assert "anew" in raised
    lowered = await session.context("And now?", recall=False)
    assert not any(native.place.turn == 59 for native in lowered.shown.rounds)
    for wire in WIRES:
        assert codec(wire).violations(body_of(lowered, wire)) == []
    await session.append([user("big"), assistant("word " * 3_000)])
    with pytest.raises(perdure.InvalidInput, match="1,500 are allowed"):
        await session.set_fidelity("T-60", "R")


async def test_the_board_counts_down_and_stands_in_full_once(session: Session) -> None:
    for number in range(1, 10):
        async for _ in live(session, number):
            pass
    tools = history_tools.HISTORY_TOOLS
    said = await session.run_tool("board_pull", {"id": "T-2", "level": "S", "turns_to_live": 2})
    assert "B-1" in said
    first = await session.context("One", tools=tools, recall=False)
    assert first.injection is not None
    assert "B-1: T-2 at S (1 more turn)" in first.injection.text
    await session.append([assistant("ok")], context=first)
    second = await session.context("Two", tools=tools, recall=False)
    assert second.injection is not None
    assert "B-1: T-2 at S stands above; last turn." in second.injection.text
    await session.append([assistant("ok")], context=second)
    third = await session.context("Three", tools=tools, recall=False)
    assert third.injection is not None
    assert "B-1" not in third.injection.text
    assert [entry.id for entry in await session.board()] == []


async def test_undone_turns_are_shown_no_more(session: Session) -> None:
    for number in range(1, 40):
        async for _ in live(session, number):
            pass
    before = await session.context("And now?", recall=False)
    assert any(native.place.turn == 39 for native in before.shown.rounds)
    await session.undo(numbers=[39, 2])
    after = await session.context("And now?", recall=False)
    assert not any(native.place.turn == 39 for native in after.shown.rounds)
    text = json.dumps(after.to_chat())
    assert "T-2:" not in text
    assert after.tokens <= BUDGET


async def test_what_is_forgotten_is_gone_from_the_window_and_from_past_prompts(
    session: Session, bank: Bank
) -> None:
    await session.append([user("The password is swordfish-77."), assistant("Noted.")])
    for number in range(2, 40):
        async for _ in live(session, number, recalling=bank):
            pass
    shown = await session.context("And now?")
    assert "swordfish" in json.dumps(
        [await session.run_tool("history_search", {"query": "swordfish"})]
    )
    await bank.forget(session.name, turns=["T-1"])
    assert shown.shown.epoch
    other = await bank.session(session.name)
    for context in (await other.context("And now?"), await other.past_context("T-20")):
        assert "swordfish" not in json.dumps(context.to_chat())
    async for problem in bank.verify():
        raise AssertionError(problem)


async def test_the_regular_strategy_drops_the_oldest_and_never_tears_a_round(bank: Bank) -> None:
    session = await bank.session("planner/auth", strategy="regular", budget=3_000)
    context = await session.context("Hello?")
    for number in range(1, 40):
        async for context in live(session, number, recalling=bank):
            assert context.tokens <= 3_000
            assert context.shown.blocks == ()
            for wire in WIRES:
                assert codec(wire).violations(body_of(context, wire)) == []
    assert "<T-" not in json.dumps(context.to_chat())
    assert context.shown.rounds[0].place.turn > 1
    same = await bank.session("planner/auth", strategy="gradient")
    gradient = await same.context("And now?")
    assert gradient.bands[0].first == "T-1.1"


async def test_an_epoch_is_made_early_when_the_cache_is_surely_cold(clock: ManualClock) -> None:
    async with Bank("memory://", clock=clock) as bank:
        session = await bank.session("planner/auth", budget=BUDGET)
        number = 0
        while not 0.88 < await _share(session) < 0.93:
            number += 1
            async for _ in live(session, number):
                pass
        before = len(await session.epochs())
        await session.context("And now?", recall=False)
        assert len(await session.epochs()) == before
        clock.advance(3_601)
        await session.context("And after lunch?", recall=False)
        assert [epoch.reason for epoch in await session.epochs()][before:] == ["cold"]


async def _share(session: Session) -> float:
    """What is shown of a history that is shown in part, as a share of the budget."""
    context = await session.context("And now?", recall=False, keep=False)
    shown = sum(band.tokens for band in context.bands)
    return shown / BUDGET if context.shown.blocks else 0.0


async def test_ten_turns_are_no_reason_if_that_would_not_pay(bank: Bank) -> None:
    session = await bank.session("planner/auth", budget=20_000)
    for _ in range(12):
        await session.append([user("big"), assistant("word " * 2_000)])
    await session.context("Hm?", recall=False)
    assert len(await session.epochs()) == 1
    for number in range(25):
        context = await session.context(f"Small talk {number}", recall=False)
        await session.append([assistant("Yes.")], context=context)
    assert len(await session.epochs()) == 1


async def test_past_prompts_of_forks_and_of_other_strategies(bank: Bank, session: Session) -> None:
    sent = dict[str, list[list[str]]]()
    for number in range(1, 50):
        if number == 30:
            session = await bank.session(session.name, strategy="regular")
        async for context in live(session, number, recalling=bank):
            sent.setdefault(f"T-{number}", [blocks(context, wire) for wire in WIRES])
    session = await bank.session(session.name, strategy="gradient")
    fork = await session.fork("coder/auth")
    for number in range(50, 55):
        async for context in live(fork, number, recalling=bank):
            sent.setdefault(f"T-{number}", [blocks(context, wire) for wire in WIRES])
    for at, bodies in list(sent.items())[5::4]:
        past = await fork.past_context(at)
        assert [blocks(past, wire) for wire in WIRES] == bodies, at


async def test_a_forgotten_turn_is_a_tombstone_in_past_prompts(
    bank: Bank, session: Session
) -> None:
    for number in range(1, 6):
        async for _ in live(session, number, recalling=bank):
            pass
    await bank.forget(session.name, turns=["T-3"])
    other = await bank.session(session.name)
    past = await other.past_context("T-5")
    assert "<T-3-R>\n(forgotten)" in "\n".join(
        part.text for m in past.messages for part in m.parts if isinstance(part, Text)
    )
    for wire in WIRES:
        assert codec(wire).violations(body_of(past, wire)) == []
    with pytest.raises(perdure.InvalidInput, match="Nothing is known"):
        await other.past_context("T-3")
    with pytest.raises(perdure.InvalidInput, match="no round 99"):
        await other.past_context("T-5.99")


async def test_what_changes_behind_a_request_is_an_epoch(session: Session) -> None:
    for number in range(1, 4):
        async for _ in live(session, number):
            pass
    await session.context("And now?", recall=False)
    assert await session.epochs() == []
    await session.undo()
    await session.context("And now?", recall=False)
    assert [epoch.reason for epoch in await session.epochs()] == ["changed"]
    # A request that is made before all results are there has to say so, and cannot be extended.
    context = await session.context("Look.", recall=False)
    call = Message("assistant", (ToolCall("c1", "shell", "{}"), ToolCall("c2", "shell", "{}")))
    await session.append(
        [call, Message("tool", (ToolResult("c1", (Text("a"),)),))], context=context
    )
    await session.context()
    await session.append([Message("tool", (ToolResult("c2", (Text("b"),)),))])
    whole = await session.context()
    assert [epoch.reason for epoch in await session.epochs()] == ["changed", "changed"]
    for wire in WIRES:
        assert codec(wire).violations(body_of(whole, wire)) == []


async def test_answers_find_the_turns_of_their_prompts_whoever_writes_meanwhile(
    bank: Bank,
) -> None:
    one, other = await bank.session("o/s"), await bank.session("o/s")
    asked = await one.context("Delete the bucket?")
    await other.append([user("What is 1+1?"), assistant("2")])
    await other.append([user("And 2+2?"), assistant("4")])
    turn = await one.append("Yes.", context=asked)
    assert isinstance(turn, perdure.Turn)
    assert [m.text for m in turn.messages] == ["Delete the bucket?", "Yes."]
    # A context that nobody answered is in nobody's way.
    first, second = await one.context("p1"), await one.context("p2")
    await one.append("r2", context=second)
    await one.append("r1", context=first)
    said = [[m.text for m in turn.messages] for turn in await one.turns()]
    assert said[-2:] == [["p2", "r2"], ["p1", "r1"]]


async def test_tool_loops_of_two_writers_do_not_mix(bank: Bank) -> None:
    writers = [await bank.session("o/s") for _ in range(2)]
    contexts = [await each.context(f"prompt {at}") for at, each in enumerate(writers)]

    def call(at: int) -> Message:
        return Message("assistant", (ToolCall(f"c{at}", "shell", "{}"),))

    def result(at: int) -> Message:
        return Message("tool", (ToolResult(f"c{at}", (Text(f"out {at}"),)),))

    for at, (session, context) in enumerate(zip(writers, contexts, strict=True)):
        await session.append(call(at), context=context)
    for at, session in enumerate(writers):
        await session.append(result(at))
    for at, session in enumerate(writers):
        going_on = await session.context()
        for wire in WIRES:
            assert codec(wire).violations(body_of(going_on, wire)) == []
        assert f"out {at}" in json.dumps(body_of(going_on, "chat")[-1])
        await session.append(f"done {at}", context=going_on)
    turns = await writers[0].turns()
    assert [t.prompt for t in turns] == [
        "prompt 0",
        "prompt 1",
    ]
    assert [t.messages[-1].text for t in turns] == ["done 0", "done 1"]


async def test_what_is_no_context_of_this_session_is_refused(bank: Bank, session: Session) -> None:
    other = await bank.session("coder/auth")
    context = await other.context("Hi?")
    with pytest.raises(perdure.InvalidInput, match="one of coder/auth"):
        await session.append("Hello.", context=context)
    with pytest.raises(perdure.InvalidInput, match="no context"):
        await session.append("Hello.", context="foo")  # type: ignore[arg-type]


async def test_many_calls_at_once_stay_within_the_budget(bank: Bank) -> None:
    session = await bank.session("o/s", budget=1_000)
    context = await session.context("go")
    calls = tuple(ToolCall(f"c{n}", "read_file", f'{{"path": "src/{n}.py"}}') for n in range(25))
    results = tuple(ToolResult(call.id, (Text("line\n" * 50),)) for call in calls)
    await session.append([Message("assistant", calls), Message("tool", results)], context=context)
    assert (await session.context()).tokens <= 1_000
    more = tuple(ToolCall(f"d{n}", "read_file", "{}") for n in range(200))
    results = tuple(ToolResult(call.id, (Text("line"),)) for call in more)
    await session.append([Message("assistant", more), Message("tool", results)])
    with pytest.raises(perdure.BudgetTooSmall):
        await session.context()


async def test_a_large_newest_reply_stays_and_the_rest_makes_room(bank: Bank) -> None:
    session = await bank.session("o/s", budget=10_000)
    for number in range(6):
        await session.append([user(f"Question {number}?"), assistant("word " * 600)])
    for size in (5_800, 6_600, 9_000):
        await session.append([user("A report, please."), assistant(f"Section 3. {'word ' * size}")])
        context = await session.context("Shorten section 3.", keep=False)
        assert "Section 3. word word" in json.dumps(context.to_chat())
        assert context.tokens + size * 0.3 > 8_000
        assert context.tokens <= 10_000
        assert context.bands[0].first == "T-1.1"


async def test_what_was_taken_back_makes_room_again(session: Session) -> None:
    for number in range(1, 60):
        async for _ in live(session, number):
            pass
    await session.undo(25)
    after = await session.context("And now?", recall=False)
    assert after.bands[-1].level == "R"
    assert after.tokens > BUDGET / 5
    assert all(
        "through-" not in b.element.name or b.element.last.turn <= 34 for b in after.shown.blocks
    )
