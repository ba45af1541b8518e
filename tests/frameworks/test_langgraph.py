"""LangGraph: its conformance kit for checkpointers, and graphs that run."""

from collections.abc import AsyncIterator, Callable, Iterator
from datetime import UTC, datetime
from typing import Annotated, Any, TypedDict

import pytest
from langchain_core.messages import (
    AIMessage,
    HumanMessage,
    RemoveMessage,
    SystemMessage,
    ToolMessage,
)
from langgraph.checkpoint.conformance import checkpointer_test, validate
from langgraph.graph import END, START, MessagesState, StateGraph
from langgraph.graph.message import add_messages
from langgraph.store.base import BaseStore
from langgraph.types import Command, interrupt

from perdure.bank import Bank
from perdure.core.errors import Conflict, InvalidInput
from perdure.integrations.langgraph import PerdureSaver, PerdureStore
from perdure.sessions.framework_records import FrameworkRecord


async def test_the_kit(url: str) -> None:
    @checkpointer_test(name="PerdureSaver")
    async def saver() -> AsyncIterator[PerdureSaver]:
        async with PerdureSaver.open(url) as made:
            yield made

    report = await validate(saver)
    failures = {name: result.failures for name, result in report.results.items() if result.failures}
    assert not failures
    assert all(result.passed for result in report.results.values())
    assert len(report.results) == 8


def say(state: MessagesState) -> dict[str, Any]:
    last = state["messages"][-1]
    return {"messages": [AIMessage(f"You said: {last.content}")]}


def graph(saver: PerdureSaver, store: PerdureStore | None = None) -> Any:
    builder = StateGraph(MessagesState)
    builder.add_node("say", say)
    builder.add_edge(START, "say")
    builder.add_edge("say", END)
    return builder.compile(checkpointer=saver, store=store)


def thread(name: str, **more: str) -> dict[str, Any]:
    return {"configurable": {"thread_id": name, **more}}


def human(text: str) -> dict[str, Any]:
    return {"messages": [HumanMessage(text)]}


def words(state: Any) -> list[str]:
    return [message.content for message in state.values["messages"]]


async def prompts(bank: Bank, saver: PerdureSaver, name: str) -> list[str]:
    session = await bank.session(saver.session_name(name))
    return [turn.prompt async for turn in session.read()]


async def first(made: Any, fits: Callable[[Any], bool]) -> Any:
    async for state in made.aget_state_history(thread("t")):
        if fits(state):
            return state
    raise LookupError("no such state")


@pytest.fixture
def saver(url: str) -> Iterator[PerdureSaver]:
    with PerdureSaver.open(url) as saver:
        yield saver


async def test_a_thread_is_turns(saver: PerdureSaver, bank: Bank) -> None:
    made = graph(saver)
    for number in range(20):
        await made.ainvoke(human(f"Question {number} about the harbour"), thread("t"))
    session = await bank.session("langgraph/t")
    turns = await session.turns(100)
    assert [turn.prompt for turn in turns] == [
        f"Question {number} about the harbour" for number in range(20)
    ]
    assert all(len(turn.messages) == 2 for turn in turns)
    found = await session.recall("question 7 harbour", deadline=20)
    assert found.hits[0].turn.startswith("T-8")
    assert (await session.context("And?", budget=1_000)).tokens <= 1_000
    assert len(words(await made.aget_state(thread("t")))) == 40


async def test_another_process_sees_the_same_state(saver: PerdureSaver, url: str) -> None:
    mine = graph(saver)
    call = AIMessage(
        [{"type": "text", "text": "I look into the folder."}],
        id="a1",
        tool_calls=[{"id": "c1", "name": "ls", "args": {"path": "a long path of a folder"}}],
        usage_metadata={"input_tokens": 5, "output_tokens": 3, "total_tokens": 8},
        response_metadata={"model_name": "m"},
    )
    said = [
        SystemMessage("You are a librarian, and brief.", id="s1"),
        HumanMessage("What is in the folder, please?", id="h1", name="ann"),
        call,
        ToolMessage("a.py and b.py and c.py", tool_call_id="c1", id="t1", status="error"),
        AIMessage("There are three files in it.", id="a2"),
    ]
    await mine.aupdate_state(thread("t"), {"messages": said}, as_node="say")
    await mine.ainvoke(human("Thanks a lot for this."), thread("t"))
    with PerdureSaver.open(url) as other:
        theirs = graph(other)
        assert (await theirs.aget_state(thread("t"))).values == (
            await mine.aget_state(thread("t"))
        ).values
        assert (await theirs.aget_state(thread("t"))).values["messages"][:5] == said
        await theirs.ainvoke(human("And who are you?"), thread("t"))
        history = [state async for state in theirs.aget_state_history(thread("t"))]
        assert len(history) == len([s async for s in mine.aget_state_history(thread("t"))])
    assert words(await mine.aget_state(thread("t")))[-1] == "You said: And who are you?"


def test_without_await(saver: PerdureSaver) -> None:
    made = graph(saver)
    made.invoke(human("One of the first words"), thread("t"))
    made.invoke(human("Two of the first words"), thread("t"))
    assert len(words(made.get_state(thread("t")))) == 4
    assert len(list(made.get_state_history(thread("t"), limit=2))) == 2


async def test_going_back_undoes_what_came_after(saver: PerdureSaver, bank: Bank) -> None:
    made = graph(saver)
    for text in ("Tell me of the first ship", "Tell me of the second ship"):
        await made.ainvoke(human(text), thread("t"))
    earlier = await first(made, lambda state: len(words(state)) == 2)
    await made.ainvoke(human("Tell me of the third ship"), earlier.config)
    state = await made.aget_state(thread("t"))
    assert words(state)[::2] == ["Tell me of the first ship", "Tell me of the third ship"]
    assert await prompts(bank, saver, "t") == words(state)[::2]
    # What was left behind is still there for who asks for it.
    whole = [words(s) async for s in made.aget_state_history(thread("t")) if words(s)]
    assert ["Tell me of the first ship", "Tell me of the second ship"] in [w[::2] for w in whole]
    with PerdureSaver.open(bank.url) as other:
        again = [words(s) async for s in graph(other).aget_state_history(thread("t")) if words(s)]
    assert again == whole


async def test_an_answer_that_is_made_again(saver: PerdureSaver, bank: Bank) -> None:
    made = graph(saver)
    for text in ("Tell me of the first ship", "Tell me of the second ship"):
        await made.ainvoke(human(text), thread("t"))
    asked = await first(made, lambda state: state.next == ("say",))
    await made.ainvoke(None, asked.config)
    assert len(words(await made.aget_state(thread("t")))) == 4
    session = await bank.session("langgraph/t")
    assert [len(turn.messages) async for turn in session.read()] == [2, 2]


async def test_a_state_that_is_kept_short_loses_no_turn(saver: PerdureSaver, bank: Bank) -> None:
    def trim(state: MessagesState) -> dict[str, Any]:
        return {"messages": [RemoveMessage(m.id) for m in state["messages"][:-2]]}

    builder = StateGraph(MessagesState)
    builder.add_node("say", say)
    builder.add_node("trim", trim)
    builder.add_edge(START, "say")
    builder.add_edge("say", "trim")
    made = builder.compile(checkpointer=saver)
    for number in range(5):
        await made.ainvoke(human(f"Question {number} about the harbour"), thread("t"))
    assert len(words(await made.aget_state(thread("t")))) == 2
    assert len(await prompts(bank, saver, "t")) == 5
    with PerdureSaver.open(bank.url) as other:
        assert words(await graph(other).aget_state(thread("t")))[0].startswith("Question 4")


async def test_state_that_is_no_message_interrupts_and_subgraphs(
    saver: PerdureSaver, url: str
) -> None:
    class State(TypedDict):
        messages: Annotated[list[Any], add_messages]
        notes: dict[str, Any]

    def ask(state: State) -> dict[str, Any]:
        answer = interrupt("May I?")
        return {"messages": [AIMessage(f"You allowed: {answer}")], "notes": {"big": "x" * 5_000}}

    inner = StateGraph(State)
    inner.add_node("ask", ask)
    inner.add_edge(START, "ask")
    builder = StateGraph(State)
    builder.add_node("inner", inner.compile())
    builder.add_edge(START, "inner")
    made = builder.compile(checkpointer=saver)
    await made.ainvoke(human("Please do the thing"), thread("t"))
    with PerdureSaver.open(url) as other:
        resumed = builder.compile(checkpointer=other)
        assert (await resumed.aget_state(thread("t"))).interrupts[0].value == "May I?"
        await resumed.ainvoke(Command(resume="yes, do"), thread("t"))
    state = await made.aget_state(thread("t"))
    assert state.values["notes"] == {"big": "x" * 5_000}
    assert words(state) == ["Please do the thing", "You allowed: yes, do"]


async def test_forgetting_reaches_the_checkpoints(saver: PerdureSaver, bank: Bank) -> None:
    made = graph(saver)
    for text in ("My dog is called Xerxes", "My cat is called Yolanda"):
        await made.ainvoke(human(text), thread("t"))
    await bank.forget("langgraph/t", turns="T-1")
    assert words(await made.aget_state(thread("t")))[0] == "My cat is called Yolanda"
    with PerdureSaver.open(bank.url) as other:
        everything = str([tup async for tup in other.alist(thread("t"))])
    assert "Xerxes" not in everything
    assert "Yolanda" in everything
    await saver.adelete_thread("t")
    assert [tup async for tup in saver.alist(None)] == []
    assert await bank.sessions() == []
    assert await bank.collection(FrameworkRecord).query().count() == 0


async def test_a_copied_thread_shares_turns_and_goes_its_own_way(
    saver: PerdureSaver, bank: Bank
) -> None:
    made = graph(saver)
    await made.ainvoke(human("Tell me of the first ship"), thread("t"))
    await saver.acopy_thread("t", "u")
    await made.ainvoke(human("Tell me of the second ship"), thread("u"))
    assert len(words(await made.aget_state(thread("t")))) == 2
    assert len(await prompts(bank, saver, "u")) == 2
    with pytest.raises(Conflict, match="already"):
        await saver.acopy_thread("t", "u")
    await saver.adelete_thread("t")
    assert len(words(await made.aget_state(thread("u")))) == 4
    with PerdureSaver.open(bank.url) as other:
        assert words(await graph(other).aget_state(thread("u")))[0] == "Tell me of the first ship"


async def test_values_that_are_no_plain_data_stay_in_the_checkpoint(
    saver: PerdureSaver, url: str
) -> None:
    made = graph(saver)
    artifact = {"when": datetime(2026, 1, 2, tzinfo=UTC)}
    said = [
        HumanMessage("A question", id="h"),
        ToolMessage("x", tool_call_id="c", artifact=artifact),
    ]
    await made.aupdate_state(thread("t"), {"messages": said}, as_node="say")
    with PerdureSaver.open(url) as other:
        state = await graph(other).aget_state(thread("t"))
        assert state.values["messages"][1].artifact == artifact


async def test_the_store(url: str) -> None:
    async with PerdureStore.open(url) as store:
        await store.aput(("users", "ann"), "pets", {"text": "Ann has a cat and a dog", "n": 2})
        await store.aput(("users", "ann"), "food", {"text": "Ann likes soup in winter", "n": 5})
        await store.aput(("users", "bob"), "pets", {"text": "Bob has no animals", "n": 0})
        await store.aput(("users ann",), "a/b#c d", {"text": "odd names"}, index=False)
        item = await store.aget(("users", "ann"), "pets")
        assert item is not None
        assert item.value == {"text": "Ann has a cat and a dog", "n": 2}
        assert item.created_at == item.updated_at
        await store.aput(("users", "ann"), "pets", {"text": "Ann has a cat", "n": 1})
        item = await store.aget(("users", "ann"), "pets")
        assert item.updated_at > item.created_at
        assert await store.aget(("users ann",), "a/b#c d") is not None
        assert await store.aget(("users",), "pets") is None
        found = await store.asearch(("users", "ann"), query="which animals does she keep")
        assert [each.key for each in found] == ["pets", "food"]
        assert found[0].score > found[1].score
        few = await store.asearch(("users",), filter={"n": {"$gte": 1, "$lt": 5}})
        assert [each.key for each in few] == ["pets"]
        assert len(await store.asearch(("users",), limit=2, offset=1)) == 2
        assert await store.alist_namespaces() == [
            ("users", "ann"),
            ("users", "bob"),
            ("users ann",),
        ]
        assert await store.alist_namespaces(prefix=("users",), max_depth=1) == [("users",)]
        assert await store.alist_namespaces(suffix=("*", "bob")) == [("users", "bob")]
        await store.adelete(("users", "bob"), "pets")
        assert await store.aget(("users", "bob"), "pets") is None
    with PerdureStore.open(url) as store:
        assert store.get(("users", "ann"), "pets").value["n"] == 1
        with pytest.raises(InvalidInput, match="no JSON"):
            store.put(("users",), "x", {"o": object()})


async def test_the_store_of_a_graph_goes_with_its_agent(
    saver: PerdureSaver, bank: Bank, url: str
) -> None:
    def remember(state: MessagesState, *, store: BaseStore) -> dict[str, Any]:
        store.put(("facts",), "last", {"text": state["messages"][-1].content})
        return {"messages": [AIMessage("Noted.")]}

    builder = StateGraph(MessagesState)
    builder.add_node("say", remember)
    builder.add_edge(START, "say")
    with PerdureStore.open(url) as store:
        made = builder.compile(checkpointer=saver, store=store)
        made_result = await made.ainvoke(human("Water boils at 100 degrees"), thread("store"))
        assert made_result["messages"][-1].content == "Noted."
        await saver.adelete_thread("store")
        assert (await store.aget(("facts",), "last")).value["text"].startswith("Water")
        await bank.forget_agent("langgraph")
        assert await store.aget(("facts",), "last") is None
